//! The machine for the head of a profile, from telemetry: release, board, power mode, clocks.
//! Serial numbers and other identifiers of one board are left out.

use std::collections::BTreeMap;

use tegra_profile::{Clock, Machine};

use telemetry::{self, Probe};

/// The simulator's library, which identifies a simulated Orin: its profile must not pass for a real
/// one.
const SIMULATOR: &str = "tegra_sim_preload";

pub(super) fn look(probe: &Probe) -> Machine {
    let state = probe.state();
    let preloaded = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    Machine {
        simulated: preloaded.to_string_lossy().contains(SIMULATOR),
        model: state.board.as_deref().and_then(printable),
        l4t: state.release.map(|r| format!("{}.{}.{}", r.major, r.minor, r.patch)),
        kernel: state.drivers.kernel.as_deref().and_then(printable),
        sms: state.gpu.and_then(|gpu| gpu.sms()),
        power_mode: state.power_mode.as_ref().and_then(|mode| printable(&mode.to_string())),
        cpus: std::thread::available_parallelism().ok().and_then(|n| u32::try_from(n.get()).ok()),
        memory_bytes: state.memory.total,
        clocks: by_name(&state.now),
        ..Machine::default()
    }
}

/// The current clocks, by name.
pub(super) fn clocks(probe: &Probe) -> BTreeMap<String, Clock> {
    by_name(&probe.sample())
}

/// `gpu`, `emc`, and each CPU cluster by its first core: `cpu0`, `cpu4`.
fn by_name(sample: &telemetry::Sample) -> BTreeMap<String, Clock> {
    let cores = sample.clusters.iter().filter_map(|cluster| {
        let first = cluster.cpus.split(|c: char| !c.is_ascii_digit()).find(|n| !n.is_empty())?;
        Some((format!("cpu{first}"), &cluster.clock))
    });
    let gpu = sample.gpu_clock.as_ref().map(|clock| ("gpu".to_owned(), clock));
    let memory = sample.memory_clock.as_ref().map(|clock| ("emc".to_owned(), clock));
    let hz = |clock: &telemetry::Clock| Clock {
        now_hz: clock.now_hz,
        min_hz: clock.min_hz,
        max_hz: clock.max_hz,
    };
    gpu.into_iter().chain(memory).chain(cores).map(|(name, clock)| (name, hz(clock))).collect()
}

/// Removes control characters, which could drive a reader's terminal.
fn printable(text: &str) -> Option<String> {
    let text: String = text.chars().filter(|c| !c.is_control()).collect();
    Some(text).filter(|text| !text.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::Root;

    #[test]
    fn a_machine_from_its_files() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("proc/device-tree/model", "\x1bNVIDIA Jetson AGX Orin Developer Kit\0");
        put("proc/device-tree/compatible", "nvidia,p3701-0005\0nvidia,tegra234\0");
        put("etc/nv_tegra_release", "# R36 (release), REVISION: 4.4, GCID: 1\n");
        put("proc/meminfo", "MemTotal:       64307200 kB\nMemFree: 1 kB\n");
        put("sys/class/devfreq/17000000.gpu/device/of_node/name", "gpu\0");
        put("sys/class/devfreq/17000000.gpu/cur_freq", "612000000\n");
        put("sys/class/devfreq/17000000.gpu/max_freq", "612000000\n");
        put("sys/class/devfreq/17000000.gpu/device/tpc_pg_mask", "240\n");
        put("sys/kernel/nvpmodel_clk_cap/emc", "3199000000\n");
        put("sys/devices/system/cpu/cpufreq/policy4/affected_cpus", "4 5 6 7\n");
        put("sys/devices/system/cpu/cpufreq/policy4/scaling_cur_freq", "729600\n");
        put("var/lib/nvpmodel/status", "pmode:0002\n");
        put("etc/nvpmodel.conf", "< POWER_MODEL ID=2 NAME=MODE_30W >\n");
        let machine = look(&Probe::new(Root::new(root.path())));
        assert_eq!(machine.model.as_deref(), Some("NVIDIA Jetson AGX Orin Developer Kit"));
        assert_eq!(machine.l4t.as_deref(), Some("36.4.4"));
        assert_eq!(machine.memory_bytes, Some(64_307_200 * 1024));
        assert_eq!((machine.kernel, machine.sms), (None, Some(8)));
        assert_eq!(machine.power_mode.as_deref(), Some("MODE_30W (mode 2)"));
        let gpu = machine.clocks["gpu"];
        assert_eq!((gpu.now_hz, gpu.min_hz), (Some(612_000_000), None));
        assert_eq!(machine.clocks["emc"].max_hz, Some(3_199_000_000));
        assert_eq!(machine.clocks["cpu4"].now_hz, Some(729_600_000));
    }
}
