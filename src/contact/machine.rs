//! What the machine says about itself, for the head of a profile: release, board, clocks. Nothing
//! that tells one board from another.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tegra_profile::{Clock, Machine};

/// The simulator's library, by which a simulated Orin is known: a profile must not pass for a real
/// one.
const SIMULATOR: &str = "tegra_sim_preload";

/// Looks at the machine below `root`.
pub(super) fn look(root: &Path) -> Machine {
    let read = |path: &str| {
        let text = std::fs::read_to_string(root.join(path)).ok()?;
        let text: String = text.chars().filter(|c| !c.is_control() || *c == '\n').collect();
        Some(text.trim().to_owned()).filter(|text| !text.is_empty())
    };
    let preloaded = std::env::var_os("LD_PRELOAD").unwrap_or_default();
    Machine {
        simulated: preloaded.to_string_lossy().contains(SIMULATOR),
        model: read("proc/device-tree/model"),
        l4t: read("etc/nv_tegra_release").and_then(|text| release(&text)),
        kernel: read("proc/sys/kernel/osrelease"),
        cpus: std::thread::available_parallelism().ok().and_then(|n| u32::try_from(n.get()).ok()),
        memory_bytes: read("proc/meminfo").and_then(|text| {
            let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
            line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
        }),
        clocks: clocks(root),
        ..Machine::default()
    }
}

/// The clocks now, by name.
pub(super) fn clocks(root: &Path) -> BTreeMap<String, Clock> {
    // Files are in Hz below devfreq, in kHz below cpufreq.
    let read = |directory: &PathBuf, file: &str, unit: u64| {
        let text = std::fs::read_to_string(directory.join(file)).ok()?;
        text.trim().parse::<u64>().ok()?.checked_mul(unit)
    };
    let gpu = root.join("sys/class/devfreq/17000000.gpu");
    let cpu = root.join("sys/devices/system/cpu/cpu0/cpufreq");
    let found = [
        ("gpu", gpu, ["cur_freq", "min_freq", "max_freq"], 1),
        ("cpu", cpu, ["scaling_cur_freq", "scaling_min_freq", "scaling_max_freq"], 1000),
    ];
    found
        .into_iter()
        .filter(|(_, directory, ..)| directory.exists())
        .map(|(name, directory, [now, min, max], unit)| {
            let read = |file| read(&directory, file, unit);
            let clock = Clock { now_hz: read(now), min_hz: read(min), max_hz: read(max) };
            (name.to_owned(), clock)
        })
        .collect()
}

/// `# R36 (release), REVISION: 4.4, GCID: ...` is `36.4.4`.
fn release(text: &str) -> Option<String> {
    let (_, rest) = text.split_once("# R")?;
    let (major, rest) = rest.split_once(' ')?;
    let (_, rest) = rest.split_once("REVISION: ")?;
    let minor = rest.split(',').next()?;
    let number = |text: &str| text.chars().all(|c| c.is_ascii_digit() || c == '.');
    (number(major) && number(minor)).then(|| format!("{major}.{minor}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_release_of_l4t() {
        let text = "# R36 (release), REVISION: 4.4, GCID: 41062509, BOARD: generic, EABI: aarch64";
        assert_eq!(release(text).as_deref(), Some("36.4.4"));
        assert_eq!(release("R36"), None);
        assert_eq!(release("# R36 (release), REVISION: x"), None);
    }

    #[test]
    fn a_machine_from_its_files() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("proc/device-tree/model", "NVIDIA Jetson AGX Orin Developer Kit\0");
        put("etc/nv_tegra_release", "# R36 (release), REVISION: 4.4, GCID: 1\n");
        put("proc/meminfo", "MemTotal:       64307200 kB\nMemFree: 1 kB\n");
        put("sys/class/devfreq/17000000.gpu/cur_freq", "612000000\n");
        put("sys/class/devfreq/17000000.gpu/max_freq", "612000000\n");
        let machine = look(root.path());
        assert_eq!(machine.model.as_deref(), Some("NVIDIA Jetson AGX Orin Developer Kit"));
        assert_eq!(machine.l4t.as_deref(), Some("36.4.4"));
        assert_eq!(machine.memory_bytes, Some(64_307_200 * 1024));
        assert_eq!(machine.kernel, None);
        let gpu = machine.clocks["gpu"];
        assert_eq!((gpu.now_hz, gpu.min_hz), (Some(612_000_000), None));
        assert!(!machine.clocks.contains_key("cpu"));
    }
}
