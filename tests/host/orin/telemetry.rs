//! Telemetry of each recorded machine.

use telemetry::{Probe, Release, SwapDevice};

use super::tree::Machine;

const GIB: u64 = 1 << 30;

fn close(a: f64, b: f64) -> bool {
    (a - b).abs() < 3e-3
}

#[test]
fn an_agx_orin_without_limits_is_read() {
    let state = Machine::new("agx64-maxn").probe().state();
    assert!(state.orin);
    assert_eq!(state.board.as_deref(), Some("NVIDIA Jetson AGX Orin Developer Kit"));
    assert_eq!(state.release, Some(Release { major: 36, minor: 4, patch: 3 }));
    assert!(state.drivers.nvgpu && state.drivers.cuda_toolkit.as_deref() == Some("12.6.68"));
    let mode = state.power_mode.clone().unwrap();
    assert_eq!((mode.to_string().as_str(), mode.default), ("MAXN (mode 0)", Some(2)));
    assert_eq!(mode.is_unlimited(), Some(true));
    let gpu = state.gpu.unwrap();
    assert_eq!((gpu.gated_mask, gpu.sms(), gpu.of_tpcs), (Some(0), Some(16), Some(8)));
    let clock = state.now.gpu_clock.clone().unwrap();
    assert_eq!((clock.now_hz, clock.is_pinned()), (Some(1_300_500_000), Some(true)));
    assert_eq!(clock.hardware_max_hz, Some(1_300_500_000));
    let memory = state.now.memory_clock.clone().unwrap();
    assert_eq!((memory.now_hz, memory.max_hz), (Some(3_199_000_000), Some(3_199_000_000)));
    // The data sheet's 204.8 GB/s.
    assert!((state.pin_rate().unwrap() / 1e9 - 204.7).abs() < 0.1);
    let cpus: Vec<&str> = state.now.clusters.iter().map(|c| c.cpus.as_str()).collect();
    assert_eq!(cpus, ["0 1 2 3", "4 5 6 7", "8 9 10 11"]);
    let names: Vec<&str> = state.now.zones.iter().map(|zone| zone.name.as_str()).collect();
    assert_eq!(names, ["cpu", "gpu", "soc0", "tj"], "cv0 is off and cannot be read");
    let hottest = state.now.hottest().unwrap();
    assert_eq!((hottest.celsius, hottest.throttles_at), (52.3, Some(99.0)));
    assert!(state.now.alarms.iter().all(|alarm| !alarm.active));
    assert_eq!(state.now.alarms.iter().filter(|alarm| alarm.count == Some(0)).count(), 3);
    let rails: Vec<&str> = state.now.rails.iter().map(|rail| rail.name.as_str()).collect();
    assert_eq!(rails, ["VDD_GPU_SOC", "VDD_CPU_CV", "VIN_SYS_5V0", "VDDQ_VDD2_1V8AO"]);
    let watts = 12.104 * 1.48 + 12.104 * 0.412 + 4.968 * 0.952 + 1.8 * 0.341;
    assert!(close(state.now.watts().unwrap(), watts), "{:?}", state.now.watts());
    let memory = &state.memory;
    assert_eq!(memory.nvmap, Some(128 << 20));
    assert_eq!(memory.available, Some(60 * GIB));
    assert_eq!(memory.largest_buffer, Some(60 * GIB - 240_128 * 1024));
    assert_eq!(memory.largest_contiguous, Some(4 << 20));
    assert_eq!(memory.swaps[0].device, SwapDevice::Zram);
    assert_eq!(state.unread, []);
}

#[test]
fn an_agx_orin_with_factory_settings_is_read() {
    let state = Machine::new("agx64-30w").probe().state();
    let mode = state.power_mode.clone().unwrap();
    assert_eq!(
        (mode.to_string().as_str(), mode.is_unlimited()),
        ("MODE_30W (mode 2)", Some(false))
    );
    // The GPU is suspended: the count follows from the module's size and the disabled TPCs.
    assert_eq!(state.gpu.unwrap().sms(), Some(8));
    let clock = state.now.gpu_clock.clone().unwrap();
    assert_eq!((clock.is_pinned(), clock.max_hz), (Some(false), Some(612_000_000)));
    assert_eq!(state.now.clusters.len(), 2);
    // Users cannot read debugfs: the state has the limit of the clock, not the clock.
    let memory = state.now.memory_clock.clone().unwrap();
    assert_eq!((memory.now_hz, memory.max_hz), (None, Some(3_199_000_000)));
    let unread: Vec<&str> = state.unread.iter().map(|unread| unread.what.as_str()).collect();
    assert_eq!(unread, ["memory clock now"]);
    assert!(state.unread[0].path.starts_with("/sys/kernel/debug"), "{:?}", state.unread);
}

#[test]
fn throttling_is_read() {
    let machine = Machine::new("agx64-throttling");
    let probe = machine.probe();
    let now = probe.sample();
    let active: Vec<&str> =
        now.alarms.iter().filter(|a| a.active).map(|a| a.name.as_str()).collect();
    assert_eq!(active, ["gpu-throttle-alert", "VDD_GPU_SOC above its current limit"]);
    let counts: Vec<u64> = now.alarms.iter().filter_map(|alarm| alarm.count).collect();
    assert_eq!(counts, [0, 3, 27]);
    assert!(close(now.gpu_load.unwrap(), 0.42));
    // Each reading opens known files again.
    machine.write("/sys/class/thermal/cooling_device1/cur_state", "0");
    machine.write("/sys/class/devfreq/17000000.gpu/cur_freq", "306000000");
    let later = probe.sample();
    assert!(later.alarms.iter().all(|alarm| alarm.name != "gpu-throttle-alert" || !alarm.active));
    assert_eq!(later.gpu_clock.unwrap().now_hz, Some(306_000_000));
}

#[test]
fn allocation_limits_and_swap_on_emmc_are_read() {
    let state = Machine::new("nano8-limit").probe().state();
    let release = state.release.unwrap();
    assert!(release.limits_allocations() && release.is_supported());
    // Mode 2 is MAXN_SUPER on this board.
    assert_eq!(state.power_mode.clone().unwrap().is_unlimited(), Some(true));
    assert_eq!(state.gpu.unwrap().sms(), Some(8));
    let memory = &state.memory;
    assert!(memory.largest_buffer.unwrap() < memory.free.unwrap());
    assert_eq!(memory.swaps[0].device, SwapDevice::Emmc);
    assert_eq!(memory.swaps[0].used, 1 << 30);
    // VDD_IN feeds the other rails, so it is the sum.
    assert!(close(state.now.watts().unwrap(), 4.984 * 1.856));
    assert!((state.pin_rate().unwrap() / 1e9 - 102.4).abs() < 0.1);
}

#[test]
fn an_older_release_with_other_paths_is_read() {
    let state = Machine::new("agx32-r35").probe().state();
    let release = state.release.unwrap();
    assert_eq!((release.to_string().as_str(), release.is_supported()), ("R35.5.0", false));
    assert_eq!(release.cuda(), Some((11, 4)));
    let gpu = state.gpu.unwrap();
    assert_eq!((gpu.gated_mask, gpu.sms()), (Some(0), Some(14)));
    assert_eq!(state.now.gpu_clock.unwrap().now_hz, Some(1_300_500_000));
    assert_eq!(state.now.memory_clock.unwrap().max_hz, Some(3_199_000_000));
}

#[test]
fn a_pc_has_no_orin_telemetry() {
    let machine = Machine::new("pc");
    let probe = machine.probe();
    let state = probe.state();
    assert!(!state.orin && state.power_mode.is_none() && state.gpu.is_none());
    assert_eq!(state.unread, []);
    assert_eq!(state.now.clusters[1].clock.max_hz, Some(4_700_000_000));
    let counts: Vec<Option<u64>> = state.now.alarms.iter().map(|alarm| alarm.count).collect();
    assert_eq!(counts, [Some(5)]);
    // A charging battery does not show the machine's power.
    assert_eq!(state.now.watts(), None);
    // The counter wraps around.
    let counter = "/sys/class/powercap/intel-rapl:0/energy_uj";
    let before = probe.sample().joules.unwrap();
    machine.write(counter, "1671150");
    assert!(close(probe.sample().joules.unwrap() - before, 2.0));
    machine.write("/sys/class/power_supply/BAT0/status", "Discharging");
    assert!(close(probe.sample().watts().unwrap(), 18.15));
}

#[test]
fn empty_trees_are_no_error() {
    let empty = tempfile::tempdir().unwrap();
    let state = Probe::new(telemetry::Root::new(empty.path())).state();
    assert!(!state.orin && state.unread.is_empty() && state.memory.total.is_none());
}

#[test]
fn malformed_values_are_reported_and_skipped() {
    let machine = Machine::new("agx64-maxn");
    machine.write("/sys/kernel/debug/bpmp/debug/clk/emc/rate", "fast");
    machine.write("/var/lib/nvpmodel/status", "");
    machine.write("/etc/nv_tegra_release", "Jetson");
    machine.write("/sys/class/devfreq/17000000.gpu/max_freq", "-1");
    machine.remove("/etc/nvpmodel.conf");
    let state = machine.probe().state();
    assert_eq!((state.power_mode, state.release), (None, None));
    assert_eq!(state.now.gpu_clock.unwrap().max_hz, None);
    let unread: Vec<&str> = state.unread.iter().map(|unread| unread.what.as_str()).collect();
    assert_eq!(unread, ["release of Jetson Linux", "power mode", "memory clock now"]);
}

#[test]
fn the_state_survives_serialization() {
    for name in ["agx64-maxn", "agx64-throttling", "nano8-limit", "pc"] {
        let state = Machine::new(name).probe().state();
        let json = serde_json::to_string(&state).unwrap();
        assert_eq!(serde_json::from_str::<telemetry::State>(&json).unwrap(), state);
    }
}

#[test]
fn processes_that_use_the_gpu_are_found_by_open_files() {
    let machine = Machine::new("agx64-maxn");
    for (pid, name, file) in [
        (700, "gnome-shell", "/dev/nvgpu/igpu0/ctrl"),
        (701, "ollama", "/dev/nvhost-ctrl-gpu"),
        (702, "bash", "/dev/null"),
        (703, "orind", "/dev/nvgpu/igpu0/ctrl"),
        (704, "settings", "/dev/nvidia-modeset"),
    ] {
        machine.write(&format!("/proc/{pid}/comm"), name);
        let files = machine.path(&format!("/proc/{pid}/fd"));
        std::fs::create_dir(&files).unwrap();
        std::os::unix::fs::symlink(file, files.join("5")).unwrap();
    }
    machine.write("/proc/705/comm", "root's own");
    let users = machine.probe().gpu_users(&[703]);
    let names: Vec<&str> = users.processes.iter().map(|user| user.name.as_str()).collect();
    assert_eq!((names, users.hidden), (vec!["gnome-shell", "ollama"], 1));
}
