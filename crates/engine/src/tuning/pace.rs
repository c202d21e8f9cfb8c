//! Pace of a search: it measures in turns of one sample or one uploaded tensor each. [`Pace::hold`] waits for
//! the current turn and blocks further ones until [`Pace::release`], so that no turn runs during a request.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Error of a turn after [`Pace::stop`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped")]
pub struct Stopped;

#[derive(Debug, Default)]
struct State {
    held: bool,
    under_way: bool,
    stopped: bool,
    spent: Duration,
    /// Limit of `spent` for the current case.
    share: Option<Duration>,
    turns: u64,
}

/// Turns of a search, shared with the engine that it must not disturb.
#[derive(Default)]
pub struct Pace {
    state: Mutex<State>,
    changed: Condvar,
    /// Listener for starts and ends of turns.
    beat: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pace").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Pace {
    /// Sets a listener for the start and end of every turn, and for heartbeats within one ([`Pace::alive`]).
    /// Only the first listener counts.
    pub fn listen(&self, beat: impl Fn() + Send + Sync + 'static) {
        let _ = self.beat.set(Box::new(beat));
    }

    /// Beats within a long turn.
    pub fn alive(&self) {
        if let Some(beat) = self.beat.get() {
            beat();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Runs `work` as a turn as soon as no [`Pace::hold`] is active. [`Stopped`] if the search was stopped before.
    pub fn turn<T>(&self, work: impl FnOnce() -> T) -> Result<T, Stopped> {
        let mut state = self.free()?;
        state.under_way = true;
        state.turns += 1;
        drop(state);
        // Ends the turn even if the work panics.
        struct End<'a>(&'a Pace, Instant);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                let mut state = self.0.lock();
                state.under_way = false;
                state.spent += self.1.elapsed();
                drop(state);
                self.0.changed.notify_all();
                self.0.alive();
            }
        }
        self.alive();
        let end = End(self, Instant::now());
        let result = work();
        drop(end);
        Ok(result)
    }

    /// Runs `work`, which must not use the device. It starts as soon as no [`Pace::hold`] is active, but
    /// [`Pace::hold`] does not wait for its end. Its time counts as spent.
    pub fn aside<T>(&self, work: impl FnOnce() -> T) -> Result<T, Stopped> {
        drop(self.free()?);
        self.alive();
        let started = Instant::now();
        let result = work();
        self.lock().spent += started.elapsed();
        self.alive();
        Ok(result)
    }

    fn free(&self) -> Result<MutexGuard<'_, State>, Stopped> {
        let mut state = self.lock();
        while state.held && !state.stopped {
            self.changed.wait(&mut state);
        }
        if state.stopped { Err(Stopped) } else { Ok(state) }
    }

    /// Blocks further turns; returns when no turn runs.
    pub fn hold(&self) {
        let mut state = self.lock();
        state.held = true;
        while state.under_way {
            self.changed.wait(&mut state);
        }
    }

    /// True if it is held and no turn runs.
    pub fn is_held(&self) -> bool {
        let state = self.lock();
        state.held && !state.under_way
    }

    pub fn release(&self) {
        self.lock().held = false;
        self.changed.notify_all();
    }

    /// Ends all turns for good.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Time spent in turns so far: waiting does not count.
    pub fn spent(&self) -> Duration {
        self.lock().spent
    }

    pub fn turns(&self) -> u64 {
        self.lock().turns
    }

    /// Sets the time that the next case may spend. The caller checks [`Pace::is_share_spent`].
    pub fn allot(&self, share: Duration) {
        let mut state = self.lock();
        state.share = Some(state.spent.saturating_add(share));
    }

    pub fn is_share_spent(&self) -> bool {
        let state = self.lock();
        state.share.is_some_and(|share| state.spent >= share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    /// In every interleaving, no work runs while the pace is held, and some runs after the release.
    #[test]
    fn no_turn_runs_while_the_pace_is_held() {
        let pace = Arc::new(Pace::default());
        let (working, done) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU32::new(0)));
        let searcher = std::thread::spawn({
            let (pace, working, done) = (pace.clone(), working.clone(), done.clone());
            move || {
                let work = || {
                    working.store(true, Ordering::SeqCst);
                    std::thread::yield_now();
                    working.store(false, Ordering::SeqCst);
                    done.fetch_add(1, Ordering::SeqCst);
                };
                while pace.turn(work).is_ok() {}
            }
        });
        for _ in 0..200 {
            pace.hold();
            let before = done.load(Ordering::SeqCst);
            for _ in 0..20 {
                std::thread::yield_now();
                assert!(!working.load(Ordering::SeqCst));
            }
            assert_eq!(done.load(Ordering::SeqCst), before);
            pace.release();
            while done.load(Ordering::SeqCst) == before {
                std::thread::yield_now();
            }
        }
        pace.hold();
        pace.stop();
        searcher.join().unwrap();
        assert_eq!(pace.turns(), u64::from(done.load(Ordering::SeqCst)));
        assert_eq!(pace.turn(|| ()), Err(Stopped));
    }

    /// The listener sees each turn, and nothing during a turn that does not end.
    #[test]
    fn a_turn_beats_at_its_start_and_end() {
        let pace = Pace::default();
        let beats = Arc::new(AtomicU32::new(0));
        let count = Arc::clone(&beats);
        pace.listen(move || {
            count.fetch_add(1, Ordering::SeqCst);
        });
        let inside = pace.turn(|| beats.load(Ordering::SeqCst)).unwrap();
        assert_eq!((inside, beats.load(Ordering::SeqCst)), (1, 2));
        pace.turn(|| pace.alive()).unwrap();
        assert_eq!(beats.load(Ordering::SeqCst), 5);
        // Work aside blocks no holder, and does not start while the pace is held.
        pace.aside(|| pace.hold()).unwrap();
        assert_eq!(beats.load(Ordering::SeqCst), 7);
        pace.stop();
        assert_eq!(pace.aside(|| ()), Err(Stopped));
    }

    #[test]
    fn a_panic_ends_its_turn() {
        let pace = Pace::default();
        let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            pace.turn(|| std::panic::resume_unwind(Box::new(())))
        }));
        assert!(panicked.is_err());
        pace.hold();
        pace.release();
        pace.allot(Duration::ZERO);
        assert!(pace.is_share_spent() && pace.turn(|| 7) == Ok(7));
    }
}
