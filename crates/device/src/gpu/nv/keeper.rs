//! Writes fault bundles in a background thread: recovery never waits for the disk.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use jiff::{Timestamp, Unit};
use tegra_bundle::{Bundle, Directory, MAX_BUNDLES};

/// Most bundles waiting for the disk: those of a failing step and of its repetition.
const WAITING: usize = 2;

/// Destination of an instance's bundles.
#[derive(Debug)]
pub(super) struct Keeper {
    directory: Directory,
    /// Number of the next bundle.
    number: u64,
    faults: u64,
    writing: Arc<Writing>,
}

/// State shared with the writer thread.
#[derive(Debug, Default)]
struct Writing {
    under_way: AtomicUsize,
    /// A write failure has been logged.
    has_failed: AtomicBool,
}

impl Keeper {
    /// Creates a writer for a state directory, which is scanned now rather than during a fault.
    pub(super) fn new(state: &Path) -> Self {
        let directory = Directory::of_state(state);
        let number = directory.next_number();
        Self { directory, number, faults: 0, writing: Arc::default() }
    }

    /// Returns whether this fault should leave a bundle. Beyond the retained number only powers of
    /// two do, so that a GPU that fails for days does not wear out the disk.
    pub(super) fn is_due(&mut self) -> bool {
        self.faults += 1;
        let counts = self.faults <= MAX_BUNDLES as u64 || self.faults.is_power_of_two();
        counts && self.writing.under_way.load(Ordering::Acquire) < WAITING
    }

    /// Starts writing a bundle and returns its path.
    pub(super) fn keep(&mut self, mut bundle: Bundle) -> PathBuf {
        let now = Timestamp::now();
        let now = now.round(Unit::Second).unwrap_or(now).to_string();
        let place = self.directory.place(self.number, &now.replace(['-', ':'], ""));
        self.number = self.number.saturating_add(1);
        bundle.header.at = Some(now);
        let (directory, writing) = (self.directory.clone(), Arc::clone(&self.writing));
        writing.under_way.fetch_add(1, Ordering::AcqRel);
        let to = place.clone();
        let write = move || {
            if let Err(error) = directory.keep(&to, &bundle) {
                writing.tell(&error.to_string());
            }
            writing.under_way.fetch_sub(1, Ordering::AcqRel);
        };
        if let Err(error) = thread::Builder::new().name("fault-bundle".into()).spawn(write) {
            self.writing.tell(&error.to_string());
            self.writing.under_way.fetch_sub(1, Ordering::AcqRel);
        }
        place
    }
}

impl Writing {
    fn tell(&self, error: &str) {
        if !self.has_failed.swap(true, Ordering::Relaxed) {
            tracing::warn!(error, "cannot write a GPU fault bundle; later ones may fail too");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn repeated_faults_write_ever_fewer_bundles() {
        let state = tempfile::tempdir().unwrap();
        let mut keeper = Keeper::new(state.path());
        let due: Vec<u64> = (1..=1000).filter(|_| keeper.is_due()).collect();
        assert_eq!(due, [1, 2, 3, 4, 5, 6, 7, 8, 16, 32, 64, 128, 256, 512]);
    }

    #[test]
    fn two_bundles_may_be_queued_and_numbers_continue() {
        let state = tempfile::tempdir().unwrap();
        let directory = Directory::of_state(state.path());
        let finish = |keeper: &Keeper| {
            while keeper.writing.under_way.load(Ordering::Acquire) > 0 {
                thread::yield_now();
            }
        };
        for expected in 1..=2 {
            let mut keeper = Keeper::new(state.path());
            assert!(keeper.is_due());
            let place = keeper.keep(Bundle::default());
            finish(&keeper);
            assert_eq!(directory.list().unwrap().last(), Some(&place));
            assert_eq!(directory.list().unwrap().len(), expected);
            keeper.writing.under_way.store(1, Ordering::Release);
            assert!(keeper.is_due());
            keeper.writing.under_way.store(2, Ordering::Release);
            assert!(!keeper.is_due());
        }
    }
}
