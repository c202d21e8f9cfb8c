//! Power: INA3221 monitors of a Jetson, a PC's battery, and the processor's energy counters.

use super::root::Root;
use super::state::{Alarm, Rail, Unread};

#[derive(Clone, Debug)]
pub(super) enum RailSource {
    /// Millivolts and milliamperes in two files; alarms in two more.
    Monitor {
        name: String,
        volts: String,
        amperes: String,
        alarms: Vec<String>,
    },
    Battery {
        name: String,
        directory: String,
    },
}

/// Finds monitors on the I2C bus, then batteries. Sources: jetson_stats, `power.py`;
/// Documentation/hwmon/ina3221.rst; Documentation/ABI/testing/sysfs-class-power.
pub(super) fn find(root: &Root) -> Vec<RailSource> {
    let mut rails = Vec::new();
    for device in root.entries("/sys/bus/i2c/devices") {
        if root.text(&format!("{device}/name")).as_deref() != Some("ina3221") {
            continue;
        }
        for monitor in root.entries(&format!("{device}/hwmon")) {
            // Channels above 3 are sums.
            for channel in 1..=3 {
                let label = root.text(&format!("{monitor}/in{channel}_label"));
                let Some(name) = label.filter(|label| label != "NC" && !label.is_empty()) else {
                    continue;
                };
                let alarms = ["crit", "max"]
                    .map(|limit| format!("{monitor}/curr{channel}_{limit}_alarm"))
                    .into_iter()
                    .filter(|path| root.exists(path))
                    .collect();
                rails.push(RailSource::Monitor {
                    name,
                    volts: format!("{monitor}/in{channel}_input"),
                    amperes: format!("{monitor}/curr{channel}_input"),
                    alarms,
                });
            }
        }
    }
    for directory in root.entries("/sys/class/power_supply") {
        if root.text(&format!("{directory}/type")).as_deref() == Some("Battery") {
            let name = directory.rsplit('/').next().unwrap_or("battery").to_owned();
            rails.push(RailSource::Battery { name, directory });
        }
    }
    rails
}

pub(super) fn rail(root: &Root, source: &RailSource) -> Option<Rail> {
    match source {
        RailSource::Monitor { name, volts, amperes, .. } => {
            let milli = root.number::<f64>(volts)? * root.number::<f64>(amperes)? / 1e3;
            // The supply of the whole module, on boards that measure it.
            let all = name == "VDD_IN";
            Some(Rail { name: name.clone(), watts: milliwatts(milli), all })
        }
        RailSource::Battery { name, directory } => {
            let number = |file: &str| root.number::<f64>(&format!("{directory}/{file}"));
            if root.text(&format!("{directory}/status"))? != "Discharging" {
                return None;
            }
            let microwatts = number("power_now")
                .or_else(|| Some(number("voltage_now")? * number("current_now")? / 1e6))?;
            Some(Rail { name: name.clone(), watts: milliwatts(microwatts.abs() / 1e3), all: true })
        }
    }
}

/// Rounds to milliwatts, the monitors' resolution; returns watts.
fn milliwatts(milliwatts: f64) -> f64 {
    milliwatts.round() / 1e3
}

/// Alarm of a monitor: current above its limit. Source: Documentation/hwmon/ina3221.rst.
pub(super) fn alarm(root: &Root, source: &RailSource) -> Option<Alarm> {
    let RailSource::Monitor { name, alarms, .. } = source else { return None };
    let active = alarms.iter().any(|path| root.number::<u8>(path).is_some_and(|level| level > 0));
    let name = format!("{name} above its current limit");
    (!alarms.is_empty()).then_some(Alarm { name, active, count: None })
}

/// An energy counter of the processor, in microjoules; wraps to zero after `range`.
#[derive(Clone, Debug)]
pub(super) struct CounterSource {
    path: String,
    range: f64,
}

/// Finds the counter of the whole machine (`psys`), else those of the packages. Readable by root
/// only on most machines. Source: Documentation/power/powercap/powercap.rst.
pub(super) fn find_counters(root: &Root, notes: &mut Vec<Unread>) -> Vec<CounterSource> {
    let mut found: Vec<(bool, CounterSource)> = Vec::new();
    for zone in root.entries("/sys/class/powercap") {
        // `intel-rapl:0`; its subzones are `intel-rapl:0:1`. AMD uses the same names.
        let name = zone.rsplit('/').next().unwrap_or_default();
        if !name.starts_with("intel-rapl:") || name.matches(':').count() != 1 {
            continue;
        }
        let path = format!("{zone}/energy_uj");
        if root.wanted("energy of the processor", &path, notes).is_none() {
            continue;
        }
        let range = root.number(&format!("{zone}/max_energy_range_uj")).unwrap_or(0.0);
        let machine = root.text(&format!("{zone}/name")).as_deref() == Some("psys");
        found.push((machine, CounterSource { path, range }));
    }
    let machine = found.iter().any(|(machine, _)| *machine);
    found.into_iter().filter(|(of, _)| *of == machine).map(|(_, source)| source).collect()
}

/// Joules counted so far, across counter wraps.
#[derive(Clone, Debug, Default)]
pub(super) struct Counters {
    last: Vec<Option<f64>>,
    total: f64,
}

impl Counters {
    pub(super) fn read(&mut self, root: &Root, sources: &[CounterSource]) -> Option<f64> {
        self.last.resize(sources.len(), None);
        for (source, last) in sources.iter().zip(&mut self.last) {
            let now: f64 = root.number(&source.path)?;
            if let Some(before) = last.replace(now) {
                let step = now - before;
                self.total += if step < 0.0 { step + source.range } else { step }.max(0.0);
            }
        }
        (!sources.is_empty()).then_some(self.total / 1e6)
    }
}
