//! Temperatures, and signs of throttling.

use super::root::Root;
use super::state::{Alarm, Zone};

/// A thermal zone: name, directory, throttling temperature.
#[derive(Clone, Debug)]
pub(super) struct ZoneSource {
    name: String,
    directory: String,
    throttles_at: Option<f64>,
}

/// Thermal zones. Source: Documentation/ABI/testing/sysfs-class-thermal. On an Orin: `cpu-thermal`,
/// `gpu-thermal`, `soc0-thermal` .., `tj-thermal` (the hottest of them). Zones of powered-off parts
/// cannot be read (jetson_stats, `temperature.py`).
pub(super) fn find_zones(root: &Root) -> Vec<ZoneSource> {
    let entries = root.entries("/sys/class/thermal");
    let zones = entries.into_iter().filter(|entry| entry.contains("/thermal_zone"));
    zones
        .filter_map(|directory| {
            let kind = root.text(&format!("{directory}/type"))?;
            let name = kind.strip_suffix("-thermal").unwrap_or(&kind).to_owned();
            let passive = (0..12).find(|trip| {
                let kind = root.text(&format!("{directory}/trip_point_{trip}_type"));
                kind.as_deref() == Some("passive")
            });
            let throttles_at = passive
                .and_then(|trip| root.number(&format!("{directory}/trip_point_{trip}_temp")))
                .map(|millidegrees: f64| millidegrees / 1e3);
            Some(ZoneSource { name, directory, throttles_at })
        })
        .collect()
}

pub(super) fn zone(root: &Root, source: &ZoneSource) -> Option<Zone> {
    let millidegrees: f64 = root.number(&format!("{}/temp", source.directory))?;
    // A powered-off sensor reads far below zero.
    let celsius = millidegrees / 1e3;
    let there = celsius > -100.0;
    there.then(|| Zone { name: source.name.clone(), celsius, throttles_at: source.throttles_at })
}

#[derive(Clone, Debug)]
pub(super) enum AlarmSource {
    /// Active if the file's number is above zero.
    Level { name: String, path: String },
    /// Counted since boot, summed over the files.
    Count { name: String, paths: Vec<String> },
}

pub(super) fn find_alarms(root: &Root) -> Vec<AlarmSource> {
    let mut alarms = cooling(root);
    alarms.extend(over_current(root));
    alarms.extend(processor(root));
    alarms
}

/// Cooling devices that indicate throttling: `gpu-throttle-alert`, `cpu-throttle-alert`,
/// `hot-surface-alert`, and those that lower a clock (`cpufreq-cpu0`, `devfreq-17000000.gpu`). Fans
/// do not count. Source: NVIDIA Jetson Linux Developer Guide, "Thermal Management in Linux".
fn cooling(root: &Root) -> Vec<AlarmSource> {
    let entries = root.entries("/sys/class/thermal");
    let devices = entries.into_iter().filter(|entry| entry.contains("/cooling_device"));
    devices
        .filter_map(|directory| {
            let name = root.text(&format!("{directory}/type"))?;
            let holds_back = name.ends_with("-alert")
                || name.starts_with("cpufreq-")
                || name.starts_with("devfreq-");
            let path = format!("{directory}/cur_state");
            holds_back.then_some(AlarmSource::Level { name, path })
        })
        .collect()
}

/// Over-current events: 1 under-voltage, 2 average and 3 instantaneous over-current. Sources: L4T
/// R36.4.3, `tegra234-oc-event.c`; NVIDIA Jetson Linux Developer Guide, "Electrical Management".
fn over_current(root: &Root) -> Vec<AlarmSource> {
    const EVENTS: [(u32, &str); 3] = [
        (1, "under-voltage (OC1)"),
        (2, "average over-current (OC2)"),
        (3, "instantaneous over-current (OC3)"),
    ];
    let is_soctherm =
        |entry: &String| root.text(&format!("{entry}/name")).as_deref() == Some("soctherm_oc");
    let Some(entry) = root.entries("/sys/class/hwmon").into_iter().find(is_soctherm) else {
        return Vec::new();
    };
    EVENTS
        .iter()
        .map(|(number, name)| (format!("{entry}/oc{number}_event_cnt"), *name))
        .filter(|(path, _)| root.exists(path))
        .map(|(path, name)| AlarmSource::Count { name: name.into(), paths: vec![path] })
        .collect()
}

/// Thermal throttle counts of Intel processors. Source: Linux,
/// `arch/x86/kernel/cpu/mce/therm_throt.c`.
fn processor(root: &Root) -> Option<AlarmSource> {
    let path = |cpu: &String| format!("{cpu}/thermal_throttle/core_throttle_count");
    let cpus = root.entries("/sys/devices/system/cpu");
    let paths: Vec<String> = cpus.iter().map(path).filter(|path| root.exists(path)).collect();
    let name = "processor too hot".to_owned();
    (!paths.is_empty()).then_some(AlarmSource::Count { name, paths })
}

pub(super) fn alarm(root: &Root, source: &AlarmSource) -> Option<Alarm> {
    match source {
        AlarmSource::Level { name, path } => {
            let level: i64 = root.number(path)?;
            Some(Alarm { name: name.clone(), active: level > 0, count: None })
        }
        AlarmSource::Count { name, paths } => {
            let counts = paths.iter().filter_map(|path| root.number::<u64>(path));
            let count = counts.fold(0, u64::saturating_add);
            Some(Alarm { name: name.clone(), active: false, count: Some(count) })
        }
    }
}
