//! When a search may measure: in turns, each one sample or one tensor moved. [`Pace::hold`] waits for a turn
//! under way and lets none begin until [`Pace::release`]: a request never runs beside one.

use std::fmt;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Why there are no more turns.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("stopped")]
pub struct Stopped;

#[derive(Debug, Default)]
struct State {
    held: bool,
    under_way: bool,
    stopped: bool,
    spent: Duration,
    /// Up to where what is being done may spend.
    share: Option<Duration>,
    turns: u64,
}

/// Turns, shared between a search and those whom it must not disturb.
#[derive(Default)]
pub struct Pace {
    state: Mutex<State>,
    changed: Condvar,
    /// Told when a turn begins and when it ends.
    beat: OnceLock<Box<dyn Fn() + Send + Sync>>,
}

impl fmt::Debug for Pace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pace").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Pace {
    /// From now on tells of every turn's beginning and end, and of every heartbeat within one
    /// ([`Pace::alive`]). The first listener stays.
    pub fn listen(&self, beat: impl Fn() + Send + Sync + 'static) {
        let _ = self.beat.set(Box::new(beat));
    }

    /// A heartbeat from within a long turn.
    pub fn alive(&self) {
        if let Some(beat) = self.beat.get() {
            beat();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Does some work when nobody holds the pace; [`Stopped`] before it.
    pub fn turn<T>(&self, work: impl FnOnce() -> T) -> Result<T, Stopped> {
        let mut state = self.free()?;
        state.under_way = true;
        state.turns += 1;
        drop(state);
        // Ends the turn also when the work panics.
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

    /// Does some work that keeps nobody waiting, and does not touch the device: it begins when nobody holds the
    /// pace, whoever holds it then does not wait for its end, and its time counts as spent.
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

    /// Lets no turn begin; returns when none is under way.
    pub fn hold(&self) {
        let mut state = self.lock();
        state.held = true;
        while state.under_way {
            self.changed.wait(&mut state);
        }
    }

    /// Whether it is held, and no turn is under way.
    pub fn is_held(&self) -> bool {
        let state = self.lock();
        state.held && !state.under_way
    }

    pub fn release(&self) {
        self.lock().held = false;
        self.changed.notify_all();
    }

    /// No further turns, ever.
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

    /// What is begun now may spend so much; nothing enforces it, see [`Pace::is_share_spent`].
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

    /// However the two interleave: while it is held no work runs, and after the release some does.
    #[test]
    fn nothing_runs_while_it_is_held() {
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

    /// Whoever watches sees each turn, and nothing while one does not end.
    #[test]
    fn a_turn_is_a_sign_of_life_at_either_end() {
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
        // What is done aside keeps nobody waiting, and does not begin while the pace is held.
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
