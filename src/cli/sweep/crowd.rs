//! What keeps a daemon from having the machine to itself: threads beside it that spin, and a quota of its time. The
//! threads are this process's own, so that they end when it does, however it ends.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How long a process that ends may still be in its group.
const LEAVING: Duration = Duration::from_secs(5);
/// Microseconds in which a quota is given out, the kernel's default.
const PERIOD: usize = 100_000;

/// Threads that do nothing but spin, until it is dropped.
pub(super) struct Crowd {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Crowd {
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

impl Drop for Crowd {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            // It cannot have panicked.
            let _ = thread.join();
        }
    }
}

/// Groups are named so, with the process that made them.
const GROUP: &str = "orinctl-sweep-";

/// A control group with a quota of processor time, gone when dropped.
#[derive(Debug)]
pub(super) struct Quota(PathBuf);

impl Quota {
    /// So many percent of the time of the cores that this process may use.
    pub(super) fn of(percent: u32) -> Result<Self, String> {
        let cores = thread::available_parallelism().map_or(1, usize::from);
        let share = cores * PERIOD * percent as usize / 100;
        // Control groups v2, and v1: https://docs.kernel.org/admin-guide/cgroup-v2.html#cpu-interface-files and
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
            "--quota {percent}%: no control group with a quota can be made here ({last}); it takes root and a cpu \
             controller; leave --quota out otherwise"
        ))
    }

    fn make(root: &Path, file: &str, value: &str) -> io::Result<Self> {
        tidy(root);
        let group = root.join(format!("{GROUP}{}", std::process::id()));
        fs::create_dir(&group)?;
        let quota = Self(group);
        // The kernel has made its files; where this one is missing there is no controller.
        fs::OpenOptions::new().write(true).open(quota.0.join(file))?;
        fs::write(quota.0.join(file), value)?;
        Ok(quota)
    }

    /// Puts a process into it.
    pub(super) fn take(&self, process: u32) -> Result<(), String> {
        fs::write(self.0.join("cgroup.procs"), process.to_string())
            .map_err(|error| format!("{}: the daemon cannot enter: {error}", self.0.display()))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        let asked = Instant::now();
        while fs::remove_dir(&self.0).is_err_and(|e| e.raw_os_error() == Some(libc::EBUSY))
            && asked.elapsed() < LEAVING
        {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// Takes away the groups of processes that were killed. They are empty: their daemons ended with them.
fn tidy(root: &Path) {
    for entry in fs::read_dir(root).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let maker = name.to_str().and_then(|name| name.strip_prefix(GROUP)?.parse::<u32>().ok());
        if maker.is_some_and(|maker| !Path::new("/proc").join(maker.to_string()).exists()) {
            // One that is not empty stays.
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
    fn a_crowd_spins_until_it_is_dropped() {
        let before = ticks();
        let crowd = Crowd::of(2);
        let begin = Instant::now();
        while ticks() < before + 5 {
            assert!(begin.elapsed() < Duration::from_secs(60), "nothing spins");
            thread::sleep(Duration::from_millis(10));
        }
        let stop = Arc::clone(&crowd.stop);
        drop(crowd);
        // Only this one is left: the threads have ended.
        assert_eq!(Arc::strong_count(&stop), 1);
    }

    #[test]
    fn a_quota_is_set_and_taken_away_or_said_to_be_impossible() {
        match Quota::of(50) {
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
                // What a killed process left goes with the next one's first.
                let left = group.with_file_name(format!("{GROUP}{}", child.id()));
                fs::create_dir(&left).unwrap();
                drop(Quota::of(50).unwrap());
                assert!(!left.exists());
            }
            Err(why) => assert!(why.contains("--quota 50%") && why.contains("root"), "{why}"),
        }
    }
}
