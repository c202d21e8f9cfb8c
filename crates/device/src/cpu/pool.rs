//! A thread pool for work that is distributed thousands of times per second.
//!
//! One call of [`Pool::run`] is a *region*: every thread, the caller included, executes the same function once. One
//! store, which spinning workers observe, opens a region. A worker that has waited for about 50 microseconds sleeps
//! and must be woken. Inside a region, [`Worker::barrier`] separates kernel calls, so that a whole decode step
//! needs one wake-up. A region allocates nothing.
//!
//! At start the workers are distributed over the processors that the process may use, away from the caller's.
//! Afterwards the scheduler may move them.

use std::any::Any;
use std::cell::UnsafeCell;
use std::io;
use std::num::NonZeroUsize;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};

use crossbeam::utils::CachePadded;
use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use parking_lot::Mutex;

/// Pauses before a waiting thread yields or sleeps: about 50 us on current x86-64.
const SPINS: u32 = 1500;

/// The same with more threads than processors, when spinning delays other threads.
const SPINS_CROWDED: u32 = 16;

type Job = *const (dyn Fn(&Worker<'_>) + Sync);

/// Payload of the unwinding in threads that wait for a panicked one; never leaves [`Pool::run`].
struct Aborted;

struct Shared {
    /// Number of regions opened so far.
    epoch: CachePadded<AtomicU32>,
    /// Workers that have not finished the region.
    active: CachePadded<AtomicUsize>,
    arrived: CachePadded<AtomicUsize>,
    generation: CachePadded<AtomicU32>,
    /// Number of claimed chunks of each thread's part of the kernel call.
    claimed: Box<[CachePadded<AtomicUsize>]>,
    failed: AtomicBool,
    payload: Mutex<Option<Box<dyn Any + Send>>>,
    stop: AtomicBool,
    asleep: Box<[CachePadded<AtomicBool>]>,
    job: UnsafeCell<Option<Job>>,
    threads: usize,
    spins: u32,
    /// A region of one thread inside a region of several.
    solo: Option<Box<Shared>>,
}

// SAFETY: `job` is written only by the caller of `run`, before the epoch's release store and after
// all workers have left the previous region; workers read it after the acquire load. The function
// behind it is `Sync`.
unsafe impl Send for Shared {}
// SAFETY: as above.
unsafe impl Sync for Shared {}

impl Shared {
    fn new(threads: usize) -> Self {
        Self {
            epoch: CachePadded::default(),
            active: CachePadded::default(),
            arrived: CachePadded::default(),
            generation: CachePadded::default(),
            claimed: (0..threads).map(|_| CachePadded::default()).collect(),
            failed: AtomicBool::new(false),
            payload: Mutex::new(None),
            stop: AtomicBool::new(false),
            asleep: (0..threads).map(|_| CachePadded::default()).collect(),
            job: UnsafeCell::new(None),
            threads,
            spins: if threads > default_threads().get() { SPINS_CROWDED } else { SPINS },
            solo: (threads > 1).then(|| Box::new(Self::new(1))),
        }
    }

    /// Resets the claims for the next kernel call.
    fn unclaim(&self) {
        for claimed in &self.claimed {
            claimed.store(0, Ordering::Relaxed);
        }
    }

    /// The contiguous part of `0..total` for thread `i`.
    const fn part(&self, total: usize, i: usize) -> Range<usize> {
        let n = self.threads;
        let (each, rest) = (total / n, total % n);
        let start = i * each + if i < rest { i } else { rest };
        start..start + each + (i < rest) as usize
    }

    /// One iteration of a waiting loop: pauses, and yields after many iterations.
    fn relax(&self, turns: &mut u32) {
        *turns += 1;
        if *turns < self.spins {
            std::hint::spin_loop();
        } else {
            thread::yield_now();
        }
    }

    /// Executes the job as thread `index`, and stores a panic for the caller.
    fn execute(&self, job: &(dyn Fn(&Worker<'_>) + Sync), index: usize) {
        let worker = Worker { shared: self, index };
        if let Err(payload) = catch_unwind(AssertUnwindSafe(|| job(&worker))) {
            if !payload.is::<Aborted>() {
                let mut first = self.payload.lock();
                first.get_or_insert(payload);
            }
            self.failed.store(true, Ordering::Release);
        }
    }

    fn work(&self, index: usize) {
        let mut seen = 0;
        loop {
            let mut turns = 0;
            while self.epoch.load(Ordering::Acquire) == seen {
                turns += 1;
                if turns < self.spins {
                    std::hint::spin_loop();
                    continue;
                }
                // This thread sets the flag before it reads the epoch again; `run` stores the epoch before it reads
                // the flag. At least one of the two sees the other's store.
                self.asleep[index].store(true, Ordering::SeqCst);
                if self.epoch.load(Ordering::SeqCst) == seen {
                    thread::park();
                }
                self.asleep[index].store(false, Ordering::SeqCst);
                turns = 0;
            }
            seen = self.epoch.load(Ordering::Acquire);
            if self.stop.load(Ordering::Acquire) {
                return;
            }
            // SAFETY: written before the epoch that we have just acquired; not written again until
            // `active` is zero.
            if let Some(job) = unsafe { *self.job.get() } {
                // SAFETY: `run` does not return while a worker is active.
                self.execute(unsafe { &*job }, index);
            }
            self.active.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Threads that execute regions together. See the module documentation.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

pub struct Worker<'a> {
    shared: &'a Shared,
    index: usize,
}

impl Worker<'_> {
    /// This thread's number; 0 is the caller of [`Pool::run`].
    #[must_use]
    pub const fn index(&self) -> usize {
        self.index
    }

    #[must_use]
    pub const fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Thread 0 as the only thread of a region of its own, while the others wait at a barrier;
    /// `None` on other threads.
    #[must_use]
    pub fn alone(&self) -> Option<Worker<'_>> {
        let shared = self.shared.solo.as_deref().unwrap_or(self.shared);
        (self.index == 0).then_some(Worker { shared, index: 0 })
    }

    /// This thread's contiguous part of `0..total`; the parts differ by at most one.
    #[must_use]
    pub const fn part(&self, total: usize) -> Range<usize> {
        self.shared.part(total, self.index)
    }

    /// Claims up to `chunk` items of `0..total`, from a multiple of `chunk` on. Takes the next chunk of this
    /// thread's part, so that its claims are contiguous, and then chunks of other threads' parts. `None` if all are
    /// claimed. Between two barriers, every thread may run one such loop, with the same arguments.
    #[must_use]
    pub fn claim(&self, total: usize, chunk: usize) -> Option<Range<usize>> {
        let s = self.shared;
        let chunks = total.div_ceil(chunk);
        (self.index..s.threads).chain(0..self.index).find_map(|owner| {
            let part = s.part(chunks, owner);
            // A load first avoids taking the cache line of a finished part exclusively.
            if s.claimed[owner].load(Ordering::Relaxed) >= part.len() {
                return None;
            }
            let taken = s.claimed[owner].fetch_add(1, Ordering::Relaxed);
            let start = (part.start + taken) * chunk;
            (taken < part.len()).then(|| start..total.min(start + chunk))
        })
    }

    /// Waits until every thread of the region has arrived; their earlier writes are then visible.
    pub fn barrier(&self) {
        let s = self.shared;
        if s.threads == 1 {
            s.unclaim();
            return;
        }
        let generation = s.generation.load(Ordering::Relaxed);
        if s.arrived.fetch_add(1, Ordering::AcqRel) + 1 == s.threads {
            s.arrived.store(0, Ordering::Relaxed);
            s.unclaim();
            s.generation.store(generation.wrapping_add(1), Ordering::Release);
            return;
        }
        let mut turns = 0;
        while s.generation.load(Ordering::Acquire) == generation {
            if s.failed.load(Ordering::Acquire) {
                resume_unwind(Box::new(Aborted));
            }
            s.relax(&mut turns);
        }
    }
}

impl Pool {
    /// Starts a pool of `threads`, including the calling thread, which should be the one that calls [`Pool::run`].
    ///
    /// # Errors
    ///
    /// The system cannot start a thread.
    pub fn new(threads: NonZeroUsize) -> io::Result<Self> {
        let threads = threads.get();
        let shared = Arc::new(Shared::new(threads));
        let mut pool = Self { shared, workers: Vec::with_capacity(threads - 1) };
        let processors = other_processors();
        for index in 1..threads {
            let shared = Arc::clone(&pool.shared);
            let processor = processors.get((index - 1) % processors.len().max(1)).copied();
            let body = move || {
                processor.map_or_else(|| (), start_on);
                shared.work(index);
            };
            pool.workers.push(thread::Builder::new().name(format!("cpu-{index}")).spawn(body)?);
        }
        Ok(pool)
    }

    /// Number of threads, including the caller.
    #[must_use]
    pub fn threads(&self) -> usize {
        self.shared.threads
    }

    /// Executes `job` once on every thread and returns when all have finished.
    ///
    /// # Panics
    ///
    /// With the first panic of a thread, after all threads have left the region.
    pub fn run(&mut self, job: &(dyn Fn(&Worker<'_>) + Sync)) {
        let s = &*self.shared;
        s.failed.store(false, Ordering::Relaxed);
        s.arrived.store(0, Ordering::Relaxed);
        s.unclaim();
        if s.threads > 1 {
            // SAFETY: only the lifetime changes. The pointer is used by workers that are active,
            // and this function waits for them below.
            let erased: Job = unsafe {
                std::mem::transmute::<
                    &(dyn Fn(&Worker<'_>) + Sync),
                    &'static (dyn Fn(&Worker<'_>) + Sync),
                >(job)
            };
            // SAFETY: no worker is active (`&mut self`, and the last call waited).
            unsafe { *s.job.get() = Some(erased) };
            s.active.store(s.threads - 1, Ordering::Relaxed);
            s.epoch.fetch_add(1, Ordering::SeqCst);
            for (worker, asleep) in self.workers.iter().zip(&s.asleep[1..]) {
                if asleep.load(Ordering::SeqCst) {
                    worker.thread().unpark();
                }
            }
        }
        s.execute(job, 0);
        let mut turns = 0;
        while s.active.load(Ordering::Acquire) > 0 {
            s.relax(&mut turns);
        }
        if s.failed.load(Ordering::Acquire) {
            let payload = s.payload.lock().take();
            resume_unwind(payload.unwrap_or_else(|| Box::new("a thread of the pool panicked")));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.epoch.fetch_add(1, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // `run` has already reported a worker's panics.
            let _ = worker.join();
        }
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("threads", &self.threads()).finish_non_exhaustive()
    }
}

/// One thread per processor that affinity and control groups let this process use.
#[must_use]
pub fn default_threads() -> NonZeroUsize {
    thread::available_parallelism().unwrap_or(NonZeroUsize::MIN)
}

/// Limits `wanted` threads to the processors that affinity allows for this process; 0, the default number, is
/// unchanged. All threads must reach each of a token's hundred barriers. With more threads than processors, under
/// load, every barrier would wait for several scheduler time slices, at a twentieth of the throughput.
#[must_use]
pub fn at_most_processors(wanted: usize) -> usize {
    let processors = other_processors().len();
    if processors == 0 || wanted <= processors {
        return wanted;
    }
    tracing::warn!(wanted, processors, "threads: one for each processor is as fast as more");
    processors
}

/// Processors that this thread may use, starting after the current one, which comes last. Empty if the system does
/// not report them.
fn other_processors() -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(Pid::from_raw(0)) else { return Vec::new() };
    let mut all: Vec<usize> =
        (0..CpuSet::count()).filter(|&c| allowed.is_set(c).unwrap_or(false)).collect();
    let here = sched_getcpu().ok();
    if let Some(own) = all.iter().position(|&c| Some(c) == here) {
        all.rotate_left(own + 1);
    }
    all
}

/// Moves this thread to a processor, and then lets the scheduler move it again. Without this, some systems (a
/// cpuset without load balancing) would leave it on its parent's processor forever. Errors are ignored.
fn start_on(processor: usize) {
    let this = Pid::from_raw(0);
    if let (Ok(allowed), mut one) = (sched_getaffinity(this), CpuSet::new())
        && one.set(processor).is_ok()
        && sched_setaffinity(this, &one).is_ok()
    {
        let _ = sched_setaffinity(this, &allowed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(threads: usize) -> Pool {
        Pool::new(NonZeroUsize::new(threads).unwrap()).unwrap()
    }

    #[test]
    fn thread_counts_are_limited_to_the_processors() {
        let all = other_processors().len();
        assert_eq!([0, 1, all, all + 7].map(at_most_processors), [0, 1, all, all]);
    }

    #[test]
    fn writes_before_a_barrier_are_visible_after_it_at_any_thread_count() {
        for threads in [1, 2, 3, 8] {
            let mut pool = pool(threads);
            let cells: Vec<AtomicUsize> = (0..101).map(|_| AtomicUsize::new(0)).collect();
            for round in 1..200 {
                pool.run(&|w| {
                    // Even rounds write with static parts, and odd rounds check with dynamic claims.
                    for round_part in 0..4 {
                        let mark = round * 10 + round_part;
                        for i in w.part(cells.len()) {
                            cells[i].store(mark, Ordering::Relaxed);
                        }
                        w.barrier();
                        while let Some(range) = w.claim(cells.len(), 7) {
                            for cell in &cells[range] {
                                assert_eq!(cell.fetch_add(1_000_000, Ordering::Relaxed), mark);
                            }
                        }
                        w.barrier();
                    }
                });
                assert!(cells.iter().all(|c| c.load(Ordering::Relaxed) == 1_000_003 + round * 10));
            }
        }
    }

    #[test]
    fn parts_cover_everything_once() {
        for (threads, total) in [(1, 5), (3, 10), (4, 3), (5, 0)] {
            let shared = pool(threads).shared.clone();
            let mut next = 0;
            for index in 0..threads {
                let part = Worker { shared: &shared, index }.part(total);
                assert_eq!(part.start, next);
                next = part.end;
            }
            assert_eq!(next, total);
        }
    }

    #[test]
    fn a_thread_claims_its_own_part_in_order_and_then_the_rest_of_others() {
        for (threads, index) in [(1, 0), (3, 0), (3, 1), (3, 2)] {
            let shared = pool(threads).shared.clone();
            let claims = |index| {
                let worker = Worker { shared: &shared, index };
                std::iter::from_fn(move || worker.claim(50, 4)).collect::<Vec<_>>()
            };
            let all = claims(index);
            // Parts are numbers of chunks, not items.
            let own = Worker { shared: &shared, index }.part(13);
            let firsts = all.iter().map(|range| range.start / 4);
            assert!(firsts.take(own.len()).eq(own), "{index} of {threads}: {all:?}");
            let mut items: Vec<usize> = all.into_iter().flatten().collect();
            items.sort_unstable();
            assert!(items.into_iter().eq(0..50), "{index} of {threads}");
            assert!((0..threads).all(|other| claims(other).is_empty()));
        }
    }

    #[test]
    fn sleeping_workers_are_woken() {
        let mut pool = pool(3);
        let count = AtomicUsize::new(0);
        for pause in [0, 1, 2, 5] {
            thread::sleep(std::time::Duration::from_millis(pause));
            pool.run(&|_| {
                count.fetch_add(1, Ordering::Relaxed);
            });
        }
        assert_eq!(count.into_inner(), 12);
    }

    #[test]
    fn a_panic_reaches_the_caller_and_the_pool_remains_usable() {
        let mut pool = pool(4);
        for culprit in 0..4 {
            let caught = catch_unwind(AssertUnwindSafe(|| {
                pool.run(&|w| {
                    if w.index() == culprit {
                        resume_unwind(Box::new(culprit));
                    }
                    w.barrier();
                });
            }));
            assert_eq!(*caught.unwrap_err().downcast::<usize>().unwrap(), culprit);
            let count = AtomicUsize::new(0);
            pool.run(&|w| {
                w.barrier();
                count.fetch_add(1, Ordering::Relaxed);
                w.barrier();
            });
            assert_eq!(count.into_inner(), 4);
        }
    }
}
