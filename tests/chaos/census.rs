//! What a process has: memory, descriptors, threads, and what is alive on its simulated Orin.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use crate::plan::Device;
use crate::subject::Subject;

/// Time for what is on its way to an end: connections whose clients have gone, buffers that work still holds.
pub(crate) const SETTLING: Duration = Duration::from_secs(15);

/// Counts, by what is counted.
#[derive(Debug)]
pub(crate) struct Census(BTreeMap<String, u64>);

impl Census {
    /// Of a daemon that serves nobody and has no model.
    pub(crate) fn take(subject: &Subject, device: Device) -> Self {
        let mut counts = BTreeMap::new();
        let proc = format!("/proc/{}", subject.pid());
        for entry in fs::read_dir(format!("{proc}/fd")).unwrap() {
            // It may be closed by now.
            let Ok(to) = fs::read_link(entry.unwrap().path()) else { continue };
            let kind: String =
                to.to_string_lossy().chars().filter(|c| !c.is_ascii_digit()).collect();
            *counts.entry(format!("descriptor of {kind}")).or_default() += 1;
        }
        for entry in fs::read_dir(format!("{proc}/task")).unwrap() {
            let Ok(name) = fs::read_to_string(entry.unwrap().path().join("comm")) else { continue };
            // Those that look at files come and go, ten seconds after their last work. The simulator has one from
            // the first buffer on.
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

    /// Soon there is not more of anything than there was.
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

    /// A line of the kernel's about a process's memory, in bytes.
    pub(crate) fn memory(pid: i32, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':')).unwrap();
        line.trim().trim_end_matches(" kB").parse::<u64>().unwrap() << 10
    }
}
