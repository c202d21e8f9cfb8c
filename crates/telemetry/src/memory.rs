//! Memory of the machine and of this process, in bytes.

use std::fs;

/// Bytes that can be allocated without swapping or reaching the cgroup limit: the smaller of
/// `MemAvailable` and the cgroup's remaining memory. `None` if neither can be read.
#[must_use]
pub fn available() -> Option<u64> {
    let system =
        fs::read_to_string("/proc/meminfo").ok().and_then(|text| field_kib(&text, "MemAvailable:"));
    [system, cgroup_left()].into_iter().flatten().min()
}

/// Bytes of the largest cache of the first processor; `None` if unknown.
#[must_use]
pub fn last_level_cache() -> Option<u64> {
    let caches = fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    let size = |path: std::path::PathBuf| {
        let text = fs::read_to_string(path.join("size")).ok()?;
        text.trim().strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024)
    };
    caches.flatten().filter_map(|entry| size(entry.path())).max()
}

/// Largest resident set of this process so far (`VmHWM`).
#[must_use]
pub fn peak_resident() -> Option<u64> {
    status_field("VmHWM:")
}

/// Resident set of this process now (`VmRSS`).
#[must_use]
pub fn resident() -> Option<u64> {
    status_field("VmRSS:")
}

/// Anonymous part of the resident set: neither file-backed nor shared (`RssAnon`).
#[must_use]
pub fn anonymous() -> Option<u64> {
    status_field("RssAnon:")
}

fn status_field(name: &str) -> Option<u64> {
    field_kib(&fs::read_to_string("/proc/self/status").ok()?, name)
}

/// A `Name:   123 kB` line of a proc file, in bytes.
fn field_kib(text: &str, name: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name))?;
    line.split_whitespace().next()?.parse::<u64>().ok()?.checked_mul(1024)
}

/// Remaining memory of the cgroup (v2, then v1). Reclaimable page cache counts as free.
fn cgroup_left() -> Option<u64> {
    let read = |path: &str| fs::read_to_string(path).ok();
    let own = read("/proc/self/cgroup")?;
    let left = |group: &str, [limit, used, reclaimable]: [&str; 3]| {
        let base = format!("/sys/fs/cgroup{}", group.trim_end_matches('/'));
        let number = |file: &str| read(&format!("{base}/{file}"))?.trim().parse::<u64>().ok();
        let (limit, used) = (number(limit)?, number(used)?);
        let stat = read(&format!("{base}/memory.stat")).unwrap_or_default();
        let cache = stat.lines().find_map(|l| l.strip_prefix(reclaimable)?.trim().parse().ok());
        Some(limit.saturating_sub(used.saturating_sub(cache.unwrap_or(0))))
    };
    let v2 = own
        .lines()
        .find_map(|line| line.strip_prefix("0::"))
        .and_then(|group| left(group.trim(), ["memory.max", "memory.current", "inactive_file "]));
    v2.or_else(|| {
        let (_, group) = own.lines().find_map(|line| line.split_once(":memory:"))?;
        let files = ["memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "];
        left(&format!("/memory{}", group.trim()), files)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parses_proc_lines() {
        assert_eq!(
            field_kib("MemTotal:  10 kB\nMemAvailable:   20 kB\n", "MemAvailable:"),
            Some(20_480)
        );
        assert_eq!(field_kib("MemTotal: x kB", "MemTotal:"), None);
    }

    #[test]
    fn this_process_has_memory() {
        let (now, peak) = (resident().unwrap(), peak_resident().unwrap());
        assert!(now > 0 && peak >= now / 2, "{now} {peak}");
        assert!(available().unwrap() > 0);
    }
}
