//! CPU contention for a daemon under measurement: spinning threads and a quota of processor time.
//! The threads belong to this process, so they end with it.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// Time that an ending process may stay in its control group.
const LEAVING: Duration = Duration::from_secs(5);
/// Period of the CPU quota in microseconds, the kernel's default.
const PERIOD: usize = 100_000;

/// Spinning threads that stop on drop.
pub(super) struct SpinningThreads {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl SpinningThreads {
    pub(super) fn of(count: u32) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let spin = |_| {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            })
        };
        Self { threads: (0..count).map(spin).collect(), stop }
    }
}

impl Drop for SpinningThreads {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // The thread cannot have panicked.
            let _ = thread.join();
        }
    }
}

/// Prefix of the group names; the process id follows.
const GROUP: &str = "orinctl-sweep-";

/// Control group with a CPU quota, removed on drop.
#[derive(Debug)]
pub(super) struct CpuQuota(PathBuf);

impl CpuQuota {
    /// Creates a quota of this percentage of the cores that this process may use.
    pub(super) fn of(percent: u32) -> Result<Self, String> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let share = cores * PERIOD * percent as usize / 100;
        // Control groups v2, then v1:
        // https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files and
        // https://docs.kernel.org/scheduler/sched-bwc.html
        let kinds = [
            ("/sys/fs/cgroup", "cpu.max", format!("{share} {PERIOD}")),
            ("/sys/fs/cgroup/cpu", "cpu.cfs_quota_us", share.to_string()),
        ];
        let mut last = String::new();
        for (root, file, value) in kinds {
            match Self::make(Path::new(root), file, &value) {
                Ok(quota) => return Ok(quota),
                Err(error) => last = format!("{root}: {error}"),
            }
        }
        Err(format!(
            "--quota {percent}%: cannot create a control group with a quota ({last}); it needs root and a cpu \
             controller; omit --quota otherwise"
        ))
    }

    fn make(root: &Path, file: &str, value: &str) -> io::Result<Self> {
        remove_stale_groups(root);
        let group = root.join(format!("{GROUP}{}", std::process::id()));
        fs::create_dir(&group)?;
        let quota = Self(group);
        // The kernel creates the file with the group; if it is missing, there is no controller.
        fs::OpenOptions::new().write(true).open(quota.0.join(file))?;
        fs::write(quota.0.join(file), value)?;
        Ok(quota)
    }

    /// Moves a process into the group.
    pub(super) fn take(&self, process: u32) -> Result<(), String> {
        fs::write(self.0.join("cgroup.procs"), process.to_string())
            .map_err(|error| format!("{}: the daemon cannot enter: {error}", self.0.display()))
    }
}

impl Drop for CpuQuota {
    fn drop(&mut self) {
        let asked = Instant::now();
        while fs::remove_dir(&self.0).is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY))
            && asked.elapsed() < LEAVING
        {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Removes groups of killed processes. They are empty because their daemons ended too.
fn remove_stale_groups(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(GROUP)?.parse::<u32>().ok());
        if maker.is_some_and(|maker| !Path::new("/proc").join(maker.to_string()).exists()) {
            // Removing a group that is not empty fails.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ticks() -> u64 {
        let stat = fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<&str> = stat.rsplit_once(')').unwrap().1.split_whitespace().collect();
        fields[11].parse().unwrap()
    }

    #[test]
    fn threads_spin_until_dropped() {
        let before = ticks();
        let spinning = SpinningThreads::of(2);
        let begin = Instant::now();
        while ticks() < before + 5 {
            assert!(begin.elapsed() < Duration::from_secs(60), "no thread spins");
            thread::sleep(Duration::from_millis(10));
        }
        let stop = Arc::clone(&spinning.stop);
        drop(spinning);
        // Only this reference is left: the threads have ended.
        assert_eq!(Arc::strong_count(&stop), 1);
    }

    #[test]
    fn quotas_are_set_and_removed_or_reported_as_impossible() {
        match CpuQuota::of(50) {
            Ok(quota) => {
                let group = quota.0.clone();
                let mut child = std::process::Command::new("sleep").arg("100").spawn().unwrap();
                quota.take(child.id()).unwrap();
                let procs = fs::read_to_string(group.join("cgroup.procs")).unwrap();
                assert_eq!(procs.trim(), child.id().to_string());
                child.kill().unwrap();
                child.wait().unwrap();
                drop(quota);
                assert!(!group.exists());
                // The next quota removes the groups of killed processes.
                let left = group.with_file_name(format!("{GROUP}{}", child.id()));
                fs::create_dir(&left).unwrap();
                drop(CpuQuota::of(50).unwrap());
                assert!(!left.exists());
            }
            Err(why) => assert!(why.contains("--quota 50%") && why.contains("root"), "{why}"),
        }
    }
}
