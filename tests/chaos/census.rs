//! Resources of a process: memory, file descriptors, threads, and live objects of its simulated Orin.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use crate::plan::Device;
use crate::subject::Subject;

/// Time for resources to be released: connections of disconnected clients, buffers of work in flight.
pub(crate) const SETTLING: Duration = Duration::from_secs(15);

/// Counts by kind of resource.
#[derive(Debug)]
pub(crate) struct Census(BTreeMap<String, u64>);

impl Census {
    /// Counts the resources of a daemon without clients and without a model.
    pub(crate) fn take(subject: &Subject, device: Device) -> Self {
        let mut counts = BTreeMap::new();
        let proc = format!("/proc/{}", subject.pid());
        for entry in fs::read_dir(format!("{proc}/fd")).unwrap() {
            // The descriptor may be closed already.
            let Ok(to) = fs::read_link(entry.unwrap().path()) else { continue };
            let kind: String =
                to.to_string_lossy().chars().filter(|c| !c.is_ascii_digit()).collect();
            *counts.entry(format!("descriptor of {kind}")).or_default() += 1;
        }
        for entry in fs::read_dir(format!("{proc}/task")).unwrap() {
            let Ok(name) = fs::read_to_string(entry.unwrap().path().join("comm")) else { continue };
            // Control threads end ten seconds after their last request. The simulator starts its file thread with the
            // first buffer.
            if !["control", "tegra-sim-files"].contains(&name.trim_end()) {
                *counts.entry(format!("thread {}", name.trim_end())).or_default() += 1;
            }
        }
        if device.is_simulated() {
            let live = subject.live();
            let fields = live.split(['{', '}', ',']).filter_map(|field| field.split_once(": "));
            for (name, count) in fields {
                counts.insert(format!("Orin's {}", name.trim()), count.trim().parse().unwrap());
            }
        }
        Self(counts)
    }

    /// Waits until no count exceeds this census.
    pub(crate) fn holds(&self, subject: &Subject, device: Device) {
        let start = Instant::now();
        loop {
            let now = Self::take(subject, device);
            let more: Vec<_> = now
                .0
                .iter()
                .map(|(what, count)| (what, self.0.get(what).copied().unwrap_or(0), *count))
                .filter(|(_, before, now)| now > before)
                .collect();
            if more.is_empty() {
                return;
            }
            assert!(start.elapsed() < SETTLING, "left behind (what, before, now): {more:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Value of a memory line in `/proc/PID/status`, in bytes.
    pub(crate) fn memory(pid: i32, name: &str) -> u64 {
        Self::memory_if_alive(pid, name).unwrap()
    }

    /// The same of a process that may have ended.
    pub(crate) fn memory_if_alive(pid: i32, name: &str) -> Option<u64> {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
        let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
        Some(line.trim().trim_end_matches(" kB").parse::<u64>().ok()? << 10)
    }
}
