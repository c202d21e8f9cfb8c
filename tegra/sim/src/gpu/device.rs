//! The GPU as the driver uses it: control calls, the doorbell, and the worker thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::thread::{self, JoinHandle, ThreadId};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::clock::{Clock, TICK};
use super::doorbell::{Doorbell, Waker};
use super::interface::{
    Blocked, ChannelError, ChannelSetup, ComputeEngine, Events, GpuConfig, TsgId,
};
use super::schedule::{Machine, Notice, Run};
use super::switch::Preemption;
use crate::finding::Rule;
use crate::mmu::Mmu;
use crate::quirks::{Freeze, never_return};

/// Steps that the thread executes before it admits control calls.
const STEPS: usize = 256;
/// Polling interval of memory that a channel waits for: initial and largest.
const POLL: (Duration, Duration) = (Duration::from_micros(20), Duration::from_millis(1));

struct Shared {
    machine: Mutex<Machine>,
    /// Number of callers that wait for the machine; they have priority.
    callers: AtomicU32,
    clock: Arc<Clock>,
    doorbell: Arc<Doorbell>,
    releases: Arc<AtomicU64>,
    waker: Waker,
    closing: AtomicBool,
    hurry: AtomicBool,
    /// Number of calls of [`Gpu::drain`].
    drains: AtomicU64,
    /// Last of these calls that has completed.
    drained: Mutex<u64>,
    drained_changed: Condvar,
    hold: Duration,
    deadlock_timeout: Duration,
    freeze: Option<Freeze>,
}

impl Shared {
    /// Locks the machine for a caller.
    fn machine(&self) -> MutexGuard<'_, Machine> {
        self.callers.fetch_add(1, Ordering::SeqCst);
        let machine = self.machine.lock();
        self.callers.fetch_sub(1, Ordering::SeqCst);
        machine
    }

    /// Locks the machine for the GPU's thread, once no caller waits.
    fn machine_for_work(&self) -> MutexGuard<'_, Machine> {
        while self.callers.load(Ordering::SeqCst) > 0 {
            thread::yield_now();
        }
        self.machine.lock()
    }
}

/// The simulated GPU. Dropping it ends its thread. Control calls wait until a running kernel has
/// ended.
pub struct Gpu {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    thread_id: ThreadId,
}

impl Gpu {
    /// Starts a GPU without channels. Fails if its thread cannot be started.
    pub fn new(config: GpuConfig, events: Arc<dyn Events>) -> io::Result<Arc<Self>> {
        let clock = Arc::new(Clock::new());
        let doorbell = Arc::new(Doorbell::new());
        let (hold, deadlock_timeout) = (config.hold, config.deadlock_timeout);
        let freeze = config.quirks.freeze;
        let machine = Machine::new(config, Arc::clone(&clock), Arc::clone(&doorbell));
        let shared = Arc::new(Shared {
            clock,
            doorbell,
            releases: machine.releases(),
            waker: Waker::default(),
            closing: AtomicBool::new(false),
            hurry: AtomicBool::new(false),
            drains: AtomicU64::new(0),
            drained: Mutex::new(0),
            drained_changed: Condvar::new(),
            hold,
            deadlock_timeout,
            freeze,
            machine: Mutex::new(machine),
            callers: AtomicU32::new(0),
        });
        let worker = Worker { shared: Arc::clone(&shared), events };
        let thread = crate::thread::spawn("tegra-sim-gpu", || worker.run())?;
        let thread_id = thread.thread().id();
        Ok(Arc::new(Self { shared, thread: Mutex::new(Some(thread)), thread_id }))
    }

    pub fn open_tsg(&self) -> TsgId {
        self.shared.machine().open_tsg()
    }

    /// Closes a TSG with its channels.
    pub fn close_tsg(&self, tsg: TsgId) {
        self.control(|machine| machine.close_tsg(tsg));
    }

    /// Opens a channel. The driver has checked the arguments.
    pub fn open_channel(&self, setup: ChannelSetup) -> Result<(), ChannelError> {
        self.shared.machine().open_channel(setup)
    }

    /// Closes a channel and drops its pending work.
    pub fn close_channel(&self, id: u16) {
        self.control(|machine| machine.close_channel(id));
    }

    /// Allows a channel to bind a class (`ALLOC_OBJ_CTX`).
    pub fn alloc_object(&self, id: u16, class: u32) {
        self.control(|machine| machine.alloc_object(id, class));
    }

    /// Sets the points at which a TSG can be switched out.
    pub fn set_preemption(&self, tsg: TsgId, preemption: Preemption) {
        self.control(|machine| machine.set_preemption(tsg, preemption));
    }

    /// Sets the timeslice of a TSG in microseconds.
    pub fn set_timeslice(&self, tsg: TsgId, us: u32) {
        self.control(|machine| machine.set_timeslice(tsg, us));
    }

    /// Sets the interleave level of a TSG, 0 to 2.
    pub fn set_interleave(&self, tsg: TsgId, level: u32) {
        self.control(|machine| machine.set_interleave(tsg, level));
    }

    /// Sets the milliseconds that compute engine switches may wait for a channel.
    pub fn set_switch_limit(&self, id: u16, ms: u32) {
        self.control(|machine| machine.set_switch_limit(id, ms));
    }

    /// Enables a disabled channel.
    pub fn enable(&self, id: u16) {
        self.control(|machine| machine.set_enabled(id, true));
    }

    /// Disables a channel after its current method.
    pub fn disable(&self, id: u16) {
        self.control(|machine| machine.set_enabled(id, false));
    }

    /// Preempts a TSG, which writes back USERD.
    pub fn preempt(&self, tsg: TsgId) {
        self.control(|machine| machine.preempt(tsg));
    }

    /// Tears down a TSG on request, with notifier 43.
    pub fn force_reset(&self, tsg: TsgId) {
        self.control(|machine| machine.force_reset(tsg));
    }

    /// Rings the doorbell. Unknown tokens are ignored. Takes no lock and allocates nothing, so it
    /// may be called from a signal handler.
    pub fn doorbell(&self, token: u32) {
        if self.shared.freeze == Some(Freeze::Doorbell) {
            never_return();
        }
        let shared = &self.shared;
        shared.doorbell.ring(token, shared.releases.load(Ordering::Acquire), shared.clock.now());
        self.shared.waker.wake();
        if self.shared.freeze == Some(Freeze::Launch) {
            // If a launch freezes the machine, it blocks the GPU's thread for ever, and this thread
            // with it.
            self.drain();
        }
    }

    /// Releases delayed doorbells, because the program is about to block. For waits, polls and
    /// closes.
    pub fn hurry(&self) {
        self.shared.hurry.store(true, Ordering::SeqCst);
        self.shared.waker.wake();
    }

    /// Reads the GPU time in nanoseconds, a multiple of 32. Takes no lock. Reading advances it, so
    /// that a program that waits for a time reaches it.
    pub fn time_ns(&self) -> u64 {
        self.shared.clock.read()
    }

    /// Returns the GPU time in nanoseconds without advancing it, for records.
    pub(crate) fn now_ns(&self) -> u64 {
        self.shared.clock.now()
    }

    /// Advances the time while the driver is busy.
    pub(crate) fn advance_ns(&self, ns: u64) {
        self.shared.clock.advance(ns / TICK);
    }

    /// Records an unmap: drops the range from L2, and remembers it for messages about late
    /// accesses.
    pub(crate) fn unmapped(&self, mmu: &Mmu, va: u64, bytes: u64) {
        self.control(|machine| machine.unmapped(mmu, va, bytes));
    }

    /// Reports a finding of the driver.
    pub(crate) fn find(&self, rule: Rule, channel: u16, message: String) {
        self.control(|machine| machine.find(rule, channel, message));
    }

    /// Invalidates L2 lines of system memory (`FLUSH_L2` with an invalidate).
    pub(crate) fn invalidate_l2(&self) {
        self.control(Machine::invalidate_l2);
    }

    /// Waits until nothing can run any more; returns the channels that wait for semaphores. Does
    /// not wait when called from [`Events`]. All events are delivered first, so the caller must not
    /// hold a lock that its [`Events`] take.
    pub fn drain(&self) -> Vec<Blocked> {
        if thread::current().id() != self.thread_id {
            let ticket = self.shared.drains.fetch_add(1, Ordering::SeqCst) + 1;
            self.shared.waker.wake();
            let mut drained = self.shared.drained.lock();
            self.shared.drained_changed.wait_while(&mut drained, |drained| *drained < ticket);
        }
        self.shared.machine().blocked()
    }

    /// Sets the engine for launches.
    pub fn set_compute_engine(&self, engine: Box<dyn ComputeEngine>) {
        self.shared.machine().set_compute_engine(engine);
    }

    /// Changes the machine and wakes the thread.
    fn control(&self, change: impl FnOnce(&mut Machine)) {
        change(&mut self.shared.machine());
        self.shared.waker.wake();
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        self.shared.closing.store(true, Ordering::SeqCst);
        self.shared.waker.wake();
        let thread = self.thread.get_mut().take();
        if thread::current().id() != self.thread_id {
            // The panic message of the thread has been printed already.
            let _ = thread.map(JoinHandle::join);
        }
    }
}

/// The GPU's thread.
struct Worker {
    shared: Arc<Shared>,
    events: Arc<dyn Events>,
}

impl Drop for Worker {
    /// Ends waiting calls of [`Gpu::drain`] when the thread ends.
    fn drop(&mut self) {
        self.drained(u64::MAX);
    }
}

impl Worker {
    fn run(self) {
        let shared = &self.shared;
        let mut poll = POLL.0;
        // Blocked channels, and the start of their wait.
        let (mut blocked, mut since) = (Vec::new(), Instant::now());
        let mut reported = false;
        let mut hold_over = false;
        loop {
            // Read before the work, so that a later change ends the sleep below.
            let count = shared.waker.count();
            if shared.closing.load(Ordering::SeqCst) {
                break;
            }
            let drains = shared.drains.load(Ordering::SeqCst);
            let pending = *shared.drained.lock() < drains;
            let over = pending || hold_over || shared.hurry.load(Ordering::SeqCst);
            let (run, now_blocked, notices) = {
                let mut machine = shared.machine_for_work();
                let run = machine.run(STEPS, over);
                (run, machine.blocked(), machine.take_notices())
            };
            if now_blocked != blocked {
                (blocked, since, reported) = (now_blocked, Instant::now(), false);
            }
            hold_over = false;
            self.deliver(notices);
            match run {
                Run::Busy => {
                    poll = POLL.0;
                    (since, reported) = (Instant::now(), false);
                }
                Run::Holding => {
                    shared.waker.sleep(count, Some(shared.hold));
                    // No doorbell arrived in time, so delayed ones are processed.
                    hold_over = shared.waker.count() == count;
                }
                Run::Quiet { waiting } => {
                    if shared.doorbell.is_empty() {
                        shared.hurry.store(false, Ordering::SeqCst);
                    }
                    if waiting && !reported && since.elapsed() >= shared.deadlock_timeout {
                        reported = true;
                        let notices = {
                            let mut machine = shared.machine_for_work();
                            machine.report_deadlock();
                            machine.take_notices()
                        };
                        self.deliver(notices);
                    }
                    self.drained(drains);
                    shared.waker.sleep(count, waiting.then_some(poll));
                    poll = (poll * 2).min(POLL.1);
                }
            }
        }
        let mut machine = shared.machine_for_work();
        machine.write_back();
        let notices = machine.take_notices();
        drop(machine);
        self.deliver(notices);
    }

    fn drained(&self, ticket: u64) {
        let mut drained = self.shared.drained.lock();
        *drained = ticket.max(*drained);
        self.shared.drained_changed.notify_all();
    }

    fn deliver(&self, notices: Vec<Notice>) {
        for notice in notices {
            match notice {
                Notice::Finding(finding, reporter) => reporter.report(&finding),
                Notice::Error(tsg, fault) => {
                    self.events.channel_error(tsg, fault.code, &fault);
                }
                Notice::Interrupt => self.events.non_stall_interrupt(),
            }
        }
    }
}
