//! Clocks of GPU, memory and processor, and the number of active GPU clusters.

use super::root::Root;
use super::state::{Clock, Cluster, Gpu, Unread};

/// The GPU's devfreq entry: its device tree node is named `gpu` (R36, `17000000.gpu`) or `ga10b`
/// (R35, `17000000.ga10b`). Source: jetson_stats, `gpu.py`.
pub(super) fn find_gpu(root: &Root) -> Option<String> {
    root.entries("/sys/class/devfreq").into_iter().find(|entry| {
        let node = root.text(&format!("{entry}/device/of_node/name"));
        node.is_some_and(|name| ["gpu", "ga10b"].contains(&name.as_str()))
    })
}

/// Hertz. Source: Documentation/ABI/testing/sysfs-class-devfreq.
pub(super) fn gpu(root: &Root, entry: &str) -> Clock {
    let table = root.text(&format!("{entry}/available_frequencies"));
    let highest = table
        .and_then(|table| table.split_whitespace().filter_map(|hz| hz.parse::<u64>().ok()).max());
    Clock {
        now_hz: root.number(&format!("{entry}/cur_freq")),
        min_hz: root.number(&format!("{entry}/min_freq")),
        max_hz: root.number(&format!("{entry}/max_freq")),
        hardware_max_hz: highest,
        governor: root.text(&format!("{entry}/governor")),
    }
}

/// Busy fraction of the GPU, which sysfs reports in thousandths; reading it does not wake the GPU.
/// Source: nvgpu, `os/linux/sysfs.c`, `gk20a_load_show`.
pub(super) fn gpu_load(root: &Root, entry: &str) -> Option<f64> {
    let thousandths: f64 = root.number(&format!("{entry}/device/load"))?;
    Some((thousandths / 1000.0).clamp(0.0, 1.0))
}

/// Number of TPCs. Source: nvgpu, `os/linux/sysfs.c`: `tpc_pg_mask` (decimal, one bit per
/// power-gated TPC), `tpc_fs_mask` (`0xff`, one bit per TPC in use). Reading `tpc_fs_mask` wakes
/// the GPU, so it is read only if `gpu_powered_on` is `on`.
pub(super) fn size(
    root: &Root,
    entry: &str,
    board: &str,
    memory: Option<u64>,
    notes: &mut Vec<Unread>,
) -> Gpu {
    let device = format!("{entry}/device");
    let elsewhere = ["/sys/devices/platform/gpu.0", "/sys/devices/gpu.0"];
    let gated_mask = elsewhere
        .iter()
        .find_map(|place| root.number::<u32>(&format!("{place}/tpc_pg_mask")))
        .or_else(|| {
            let path = format!("{device}/tpc_pg_mask");
            root.wanted_number("switched-off parts of the GPU", &path, notes)
        });
    let powered = root.text(&format!("{device}/gpu_powered_on"));
    let in_use = powered.filter(|state| state == "on").and_then(|_| {
        let mask = root.text(&format!("{device}/tpc_fs_mask"))?;
        u32::from_str_radix(mask.trim_start_matches("0x"), 16).ok()
    });
    let of_tpcs = module_tpcs(board, memory);
    let left = of_tpcs.zip(gated_mask).map(|(all, gated)| all.saturating_sub(gated.count_ones()));
    Gpu { gated_mask, tpcs: in_use.map(u32::count_ones).or(left), of_tpcs }
}

/// TPCs of the module, each with two multiprocessors of 128 CUDA cores: 2048 cores on AGX Orin 64
/// GB, 1792 on AGX Orin 32 GB, 1024 on Orin NX and Nano 8 GB, 512 on Nano 4 GB. Source: NVIDIA's
/// table of the modules.
fn module_tpcs(board: &str, memory: Option<u64>) -> Option<u32> {
    const GIB: u64 = 1 << 30;
    let memory = memory?;
    if board.contains("AGX Orin") {
        Some(if memory > 40 * GIB { 8 } else { 7 })
    } else if board.contains("Orin Nano") && memory < 5 * GIB {
        Some(2)
    } else if board.contains("Orin") {
        Some(4)
    } else {
        None
    }
}

/// Clock of the memory controller. The clock itself is in debugfs, readable by root only
/// (`bpmp/debug/clk/emc`). The power mode's cap is readable by everyone: `nvpmodel_clk_cap/emc`
/// since R36, `nvpmodel_emc_cap` before. Sources: jetson_stats, `memory.py`;
/// `nvpmodel_p3701_0000.conf`.
pub(super) fn memory(root: &Root, notes: &mut Vec<Unread>) -> Option<Clock> {
    const DEBUG: &str = "/sys/kernel/debug/bpmp/debug/clk/emc";
    let caps = ["/sys/kernel/nvpmodel_clk_cap/emc", "/sys/kernel/nvpmodel_emc_cap/emc_iso_cap"];
    let cap = caps.iter().find_map(|path| root.number::<u64>(path)).filter(|hz| *hz > 0);
    let now_hz = root.wanted_number("memory clock now", &format!("{DEBUG}/rate"), notes);
    let hardware_max_hz = root.number(&format!("{DEBUG}/max_rate"));
    let min_hz = root.number(&format!("{DEBUG}/min_rate"));
    let max_hz = match (cap, hardware_max_hz) {
        (Some(cap), Some(hardware)) => Some(u64::min(cap, hardware)),
        (cap, hardware) => cap.or(hardware),
    };
    now_hz.or(max_hz)?;
    Some(Clock { now_hz, min_hz, max_hz, hardware_max_hz, governor: None })
}

/// cpufreq directories, one per cluster of cores with a common clock.
pub(super) fn find_clusters(root: &Root) -> Vec<String> {
    let mut entries = root.entries("/sys/devices/system/cpu/cpufreq");
    entries.retain(|entry| entry.rsplit('/').next().is_some_and(|n| n.starts_with("policy")));
    entries
}

/// Clock of a cluster; sysfs reports kilohertz. Source: Documentation/admin-guide/pm/cpufreq.rst.
/// `None` if its cores are offline.
pub(super) fn cluster(root: &Root, entry: &str) -> Option<Cluster> {
    let hz = |name: &str| root.number::<u64>(&format!("{entry}/{name}"))?.checked_mul(1000);
    let cpus = root.text(&format!("{entry}/affected_cpus")).filter(|cpus| !cpus.is_empty())?;
    let clock = Clock {
        now_hz: hz("scaling_cur_freq"),
        min_hz: hz("scaling_min_freq"),
        max_hz: hz("scaling_max_freq"),
        hardware_max_hz: hz("cpuinfo_max_freq"),
        governor: root.text(&format!("{entry}/scaling_governor")),
    };
    Some(Cluster { cpus, clock })
}
