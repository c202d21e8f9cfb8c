//! Under which clocks and power mode the machine runs, in a line for people.

use std::fs;
use std::path::Path;

/// `governor performance, cpu 2000 MHz, gpu at most 1300 MHz, power mode 0`, of that what the machine
/// tells; `unknown` when it tells nothing.
#[must_use]
pub fn summary() -> String {
    let text = |path: &str| Some(fs::read_to_string(path).ok()?.trim().to_owned());
    let mhz = |path: &str, unit: u64| Some(text(path)?.parse::<u64>().ok()? / unit);
    let cpu = "/sys/devices/system/cpu/cpu0/cpufreq";
    let said = [
        text(&format!("{cpu}/scaling_governor")).map(|name| format!("governor {name}")),
        mhz(&format!("{cpu}/scaling_max_freq"), 1000).map(|mhz| format!("cpu at most {mhz} MHz")),
        gpu_mhz().map(|mhz| format!("gpu at most {mhz} MHz")),
        // Written by nvpmodel of L4T r36: `pmode:0000`.
        text("/var/lib/nvpmodel/status")
            .and_then(|line| line.strip_prefix("pmode:")?.parse::<u32>().ok())
            .map(|mode| format!("power mode {mode}")),
    ];
    let said: Vec<String> = said.into_iter().flatten().collect();
    if said.is_empty() { "unknown".into() } else { said.join(", ") }
}

/// The highest clock that the Jetson's GPU may take now (devfreq, Hz).
fn gpu_mhz() -> Option<u64> {
    let devices = fs::read_dir("/sys/class/devfreq").ok()?;
    let gpu = devices.flatten().map(|entry| entry.path()).find(|path| is_gpu(path))?;
    let hz: u64 = fs::read_to_string(gpu.join("max_freq")).ok()?.trim().parse().ok()?;
    Some(hz / 1_000_000)
}

fn is_gpu(path: &Path) -> bool {
    path.file_name().is_some_and(|name| name.to_string_lossy().ends_with("gpu"))
}
