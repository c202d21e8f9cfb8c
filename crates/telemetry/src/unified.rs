//! Memory of the machine, which CPU and GPU share on an Orin.

use super::root::Root;
use super::state::{Memory, Release, Swap, SwapDevice};

/// Page size in bytes; kernels of Jetson Linux and of PCs use 4 KiB.
const PAGE: u64 = 4096;

/// Memory of the machine. Source: `Documentation/filesystems/proc.rst` (`meminfo`, `buddyinfo`,
/// `swaps`). Jetson Linux adds `NvMapMemUsed` to `meminfo` (jetson_stats, `memory.py`).
///
/// The GPU driver allocates from available memory without the free part of CMA (nvmap,
/// `QUERY_HEAP_PARAMS` for system memory). On releases that limit allocations, a single buffer is
/// estimated as memory that is entirely free.
pub(super) fn memory(root: &Root, release: Option<Release>) -> Memory {
    let meminfo = root.text("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| -> Option<u64> {
        let line = meminfo.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))?;
        line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
    };
    let cma_free = field("CmaFree");
    let limited = release.is_some_and(Release::limits_allocations);
    let usable = if limited { field("MemFree") } else { field("MemAvailable") };
    let largest_contiguous = root.text("/proc/buddyinfo").and_then(|text| largest_run(&text));
    Memory {
        total: field("MemTotal"),
        free: field("MemFree"),
        available: field("MemAvailable"),
        cma_total: field("CmaTotal"),
        cma_free,
        nvmap: field("NvMapMemUsed"),
        largest_buffer: usable.map(|usable| usable.saturating_sub(cma_free.unwrap_or(0))),
        largest_contiguous,
        swaps: swaps(root),
    }
}

/// Largest free run in `Node 0, zone   Normal   9464   9009 ..`: free runs of 1, 2, 4 .. pages.
fn largest_run(buddyinfo: &str) -> Option<u64> {
    let order = |line: &str| {
        let (_, counts) = line.split_once("zone")?;
        let counts: Vec<u64> =
            counts.split_whitespace().skip(1).map_while(|n| n.parse().ok()).collect();
        counts.iter().rposition(|count| *count > 0)
    };
    let order = u32::try_from(buddyinfo.lines().filter_map(order).max()?).ok()?;
    PAGE.checked_shl(order)
}

fn swaps(root: &Root) -> Vec<Swap> {
    let text = root.text("/proc/swaps").unwrap_or_default();
    let swap = |line: &str| {
        let mut fields = line.split_whitespace();
        let (name, kind) = (fields.next()?, fields.next()?);
        let mut bytes = || fields.next()?.parse::<u64>().ok()?.checked_mul(1024);
        let (bytes, used) = (bytes()?, bytes()?);
        let device = if kind == "file" { device_of(root, name) } else { Some(name.to_owned()) };
        let device = device.map_or(SwapDevice::Other, |device| kind_of(root, &device));
        Some(Swap { device, bytes, used })
    };
    text.lines().skip(1).filter_map(swap).collect()
}

/// Device of the file system that contains a file: the longest matching mount point.
fn device_of(root: &Root, file: &str) -> Option<String> {
    let mounts = root.text("/proc/mounts")?;
    let above = |line: &str| {
        let mut fields = line.split_whitespace();
        let (device, point) = (fields.next()?, fields.next()?);
        let inside = file.strip_prefix(point)?;
        (point == "/" || inside.starts_with('/')).then(|| (point.len(), device.to_owned()))
    };
    mounts.lines().filter_map(above).max_by_key(|(length, _)| *length).map(|(_, device)| device)
}

/// Kind of a swap device. `mmcblk0` is eMMC or an SD card, by its `type`. Source:
/// Documentation/driver-api/mmc/mmc-dev-attrs.rst.
fn kind_of(root: &Root, device: &str) -> SwapDevice {
    let name = device.rsplit('/').next().unwrap_or(device);
    if name.starts_with("zram") {
        return SwapDevice::Zram;
    }
    let Some(rest) = name.strip_prefix("mmcblk") else { return SwapDevice::Other };
    let number = rest.split('p').next().unwrap_or_default();
    match root.text(&format!("/sys/block/mmcblk{number}/device/type")).as_deref() {
        Some("SD") => SwapDevice::SdCard,
        Some("MMC") => SwapDevice::Emmc,
        _ => SwapDevice::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_run_of_all_zones_is_found() {
        let text = "Node 0, zone      DMA      0      0      1      0\n\
                    Node 0, zone   Normal      7      1      0      0\n";
        assert_eq!(largest_run(text), Some(4 * PAGE));
        assert_eq!(largest_run("Node 0, zone DMA 0 0 0"), None);
        assert_eq!(largest_run(""), None);
    }
}
