//! A context: the queues of one user of the GPU over a long-running process.
//!
//! A [`Context`] is a group of channels in one address space, each with a [`crate::queue::Queue`]
//! over mapped memory. It opens channels for the first work, waits for work, reports faults,
//! rebuilds channels after one, and closes idle channels on request, so that the GPU may power
//! down. Buffers, address space, rings and timelines outlive all of that.
//!
//! Owns channels and queues. The caller owns the submitted streams and their buffers, and keeps
//! both alive and unchanged until their [`Ticket`] is done.
//!
//! # Waiting
//!
//! A wait polls the timeline for a short while and then sleeps on the group's event, which stays
//! raised until a wait clears it: an interrupt between poll and sleep is not lost. Sleeps are
//! finite, since some hardware errors raise no interrupt: after each sleep the fault records are
//! checked.
//!
//! # Faults
//!
//! A fault kills all channels of the context for good. It is reported as [`Error::Fault`] by the
//! next wait, and by every later call until [`Context::rebuild`]. Work that had not completed is
//! [`Error::Lost`].

mod queue;
mod wait;

use std::sync::Arc;
use std::time::Duration;

use crate::address::GpuAddress;
use crate::channel::{Channel, Event, Interleave, Preemption, Subcontext, Tsg};
use crate::doorbell::Doorbell;
use crate::error::Error;
use crate::fault::Fault;
use crate::local_memory::LocalMemory;
use crate::pushbuffer::{Acquire, Condition, Engine, Entry, Payload};
use crate::queue::{Point, Wake};
use crate::space::AddressSpace;
use queue::ContextQueue;
pub use queue::Timing;

/// Scheduling options of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Time slice while others wait, 1 to 50 ms; the driver's default is 1.024 ms.
    pub timeslice: Option<Duration>,
    /// Frequency in the runlist.
    pub interleave: Interleave,
    /// Preemption granularity of its kernels.
    pub preemption: Preemption,
    /// Time that a wait polls memory before it sleeps.
    pub spin: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeslice: None,
            interleave: Interleave::default(),
            preemption: Preemption::default(),
            // Longer than the cost of a wake-up, short enough to go unnoticed on one CPU.
            spin: Duration::from_micros(100),
        }
    }
}

/// Index of a queue in its context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId(usize);

/// A submission to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    queue: QueueId,
    point: Point,
    /// Number of rebuilds before the submission.
    epoch: usize,
    wakes: bool,
    timed: bool,
}

impl Ticket {
    /// Returns the queue.
    #[must_use]
    pub const fn queue(self) -> QueueId {
        self.queue
    }

    /// Returns the point on the queue's timeline.
    #[must_use]
    pub const fn point(self) -> Point {
        self.point
    }
}

/// Resources of the open channels.
#[derive(Debug)]
struct Group {
    event: Event,
    subcontext: Subcontext,
}

/// A group of queues; see the module documentation.
#[derive(Debug)]
pub struct Context {
    // Channels close before their group.
    queues: Vec<ContextQueue>,
    group: Option<Group>,
    doorbell: Arc<Doorbell>,
    space: AddressSpace,
    options: Options,
    local_memory: Option<LocalMemory>,
    fault: Option<Box<Fault>>,
    epoch: usize,
    submissions: u64,
    sleeps: u64,
}

/// Counters of a context.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Number of submissions.
    pub submissions: u64,
    /// Sleeps of waits, each one system call.
    pub sleeps: u64,
    /// Number of rebuilds.
    pub rebuilds: u64,
}

impl Context {
    /// A context without queues. [`Error::Map`] when the doorbell page cannot be mapped.
    pub fn new(space: &AddressSpace, options: Options) -> Result<Self, Error> {
        Ok(Self {
            queues: Vec::new(),
            group: None,
            doorbell: space.orin().doorbell()?,
            space: space.clone(),
            options,
            local_memory: None,
            fault: None,
            epoch: 0,
            submissions: 0,
            sleeps: 0,
        })
    }

    /// The address space.
    #[must_use]
    pub const fn space(&self) -> &AddressSpace {
        &self.space
    }

    /// Adds a queue for `engine` with a ring of `entries`, a power of two from 4 to 2^20. Its
    /// channel is opened with the first submission.
    ///
    /// # Errors
    /// [`Error::Queue`] or [`Error::Submit`] for a bad number of entries, and the errors of
    /// creating buffers.
    pub fn add_queue(&mut self, engine: Engine, entries: u32) -> Result<QueueId, Error> {
        let mut queue = ContextQueue::new(&self.space, engine, entries)?;
        queue.catch_up(self.epoch);
        self.queues.push(queue);
        Ok(QueueId(self.queues.len() - 1))
    }

    /// Sets the memory of the threads' stacks. `memory` must be in a buffer of the caller's, which
    /// stays alive until another replaces it. [`Error::Busy`] unless all queues are idle.
    pub fn set_local_memory(&mut self, memory: LocalMemory) -> Result<(), Error> {
        self.idle()?;
        self.local_memory = Some(memory);
        if self.is_open() {
            for queue in self.queues.iter_mut().filter(|queue| queue.is_open()) {
                queue.configure(self.space.windows(), self.local_memory)?;
            }
        }
        Ok(())
    }

    /// Submits streams in order, without a system call if the channels are open; otherwise it opens
    /// them.
    ///
    /// # Errors
    /// [`Error::Submit`] when the ring is full; [`Error::Fault`] until the context is rebuilt; the
    /// errors of opening.
    #[inline(never)]
    pub fn submit(
        &mut self,
        queue: QueueId,
        bodies: &[Entry],
        wake: Wake,
    ) -> Result<Ticket, Error> {
        self.ready(queue)?;
        let point = self.queue_mut(queue)?.submit(bodies, wake)?;
        Ok(self.ticket(queue, point, wake, false))
    }

    /// Like [`Context::submit`], with start and end times recorded: two more ring entries.
    pub fn submit_timed(
        &mut self,
        queue: QueueId,
        bodies: &[Entry],
        wake: Wake,
    ) -> Result<Ticket, Error> {
        self.ready(queue)?;
        let point = self.queue_mut(queue)?.submit_timed(bodies, wake)?;
        Ok(self.ticket(queue, point, wake, true))
    }

    fn ticket(&mut self, queue: QueueId, point: Point, wake: Wake, timed: bool) -> Ticket {
        self.submissions += 1;
        Ticket { queue, point, epoch: self.epoch, wakes: wake == Wake::Interrupt, timed }
    }

    /// Start and end of a timed submission. `None` if it was not timed, is not done, or its record
    /// has been reused: after as many submissions as the ring has entries.
    pub fn timing(&self, ticket: Ticket) -> Result<Option<Timing>, Error> {
        if !ticket.timed || ticket.epoch != self.epoch {
            return Ok(None);
        }
        self.queue(ticket.queue)?.timing(ticket.point)
    }

    /// The acquire with which a stream of another queue waits for `ticket`.
    pub fn acquire(&self, ticket: Ticket) -> Result<Acquire, Error> {
        let payload = Payload::Long(ticket.point.value());
        Ok(Acquire::new(self.timeline(ticket.queue)?, payload, Condition::Reached)?)
    }

    /// Address of a queue's timeline: 16 bytes, payload and timestamp of the last point reached.
    pub fn timeline(&self, queue: QueueId) -> Result<GpuAddress, Error> {
        Ok(self.queue(queue)?.timeline())
    }

    /// A queue's channel, while it is open.
    pub fn channel(&self, queue: QueueId) -> Result<Option<&Channel>, Error> {
        Ok(self.queue(queue)?.channel())
    }

    /// Lower bound of the free ring entries.
    pub fn room(&self, queue: QueueId) -> Result<usize, Error> {
        Ok(self.queue(queue)?.room())
    }

    /// The counters so far.
    #[must_use]
    pub const fn statistics(&self) -> Statistics {
        let (submissions, sleeps) = (self.submissions, self.sleeps);
        Statistics { submissions, sleeps, rebuilds: self.epoch as u64 }
    }

    /// The GPU's timer, nanoseconds; `None` while the channels are closed.
    #[must_use]
    pub fn gpu_time(&self) -> Option<u64> {
        // An open channel keeps the GPU powered, which the page needs.
        self.is_open().then(|| self.doorbell.time())
    }

    /// Returns `true` while channels are open, which keeps the GPU powered.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.group.is_some()
    }

    /// Opens the channels now, so that the first submission need not wait for it.
    ///
    /// # Errors
    /// [`Error::Fault`] until the context is rebuilt; the driver's errors. After an error, channels
    /// that were closed before are closed again.
    pub fn open(&mut self) -> Result<(), Error> {
        if let Some(fault) = &self.fault {
            return Err(Error::Fault(fault.clone()));
        }
        let group = match self.group.take() {
            Some(group) => group,
            None => self.make_group()?,
        };
        let mut opened = Vec::new();
        let mut result = Ok(());
        for queue in self.queues.iter_mut().filter(|queue| !queue.is_open()) {
            result = queue.open(&group.subcontext, &self.doorbell, self.options.preemption);
            result = result.and_then(|()| queue.configure(self.space.windows(), self.local_memory));
            opened.push(queue);
            if result.is_err() {
                for queue in opened {
                    queue.cancel();
                }
                break;
            }
        }
        if self.queues.iter().any(ContextQueue::is_open) {
            self.group = Some(group);
        }
        result
    }

    fn make_group(&self) -> Result<Group, Error> {
        let tsg = Tsg::open(self.space.orin())?;
        if let Some(timeslice) = self.options.timeslice {
            tsg.set_timeslice(timeslice)?;
        }
        if self.options.interleave != Interleave::default() {
            tsg.set_interleave(self.options.interleave)?;
        }
        let subcontext = tsg.subcontext(&self.space)?;
        Ok(Group { event: tsg.event()?, subcontext })
    }

    /// Closes the channels, so that the GPU may power down. The next submission opens them again.
    /// [`Error::Busy`] unless all queues are idle.
    pub fn close(&mut self) -> Result<(), Error> {
        self.idle()?;
        self.shut();
        Ok(())
    }

    /// Recreates the channels, after a fault or for hung work. Incomplete work is [`Error::Lost`];
    /// the timeline continues after it. Buffers retain content and address.
    ///
    /// # Errors
    /// The errors of opening: the GPU may then need a reboot; retrying is allowed.
    pub fn rebuild(&mut self) -> Result<(), Error> {
        self.shut();
        self.epoch += 1;
        self.fault = None;
        for queue in &mut self.queues {
            queue.give_up();
        }
        self.open()
    }

    /// Closes every channel, even with work in flight.
    fn shut(&mut self) {
        for queue in &mut self.queues {
            queue.close();
        }
        self.group = None;
    }

    /// Returns an error unless every queue is idle.
    fn idle(&mut self) -> Result<(), Error> {
        for (index, queue) in self.queues.iter_mut().enumerate() {
            let (completed, submitted) = queue.progress()?;
            if completed != submitted {
                return Err(Error::Busy { queue: index, completed, submitted });
            }
        }
        Ok(())
    }

    /// Opens the channels for a submission if needed.
    fn ready(&mut self, queue: QueueId) -> Result<(), Error> {
        if self.fault.is_none() && self.queue(queue)?.is_open() {
            return Ok(());
        }
        self.open()
    }

    fn queue(&self, queue: QueueId) -> Result<&ContextQueue, Error> {
        let count = self.queues.len();
        self.queues.get(queue.0).ok_or(Error::NoSuchQueue { queue: queue.0, count })
    }

    fn queue_mut(&mut self, queue: QueueId) -> Result<&mut ContextQueue, Error> {
        let count = self.queues.len();
        self.queues.get_mut(queue.0).ok_or(Error::NoSuchQueue { queue: queue.0, count })
    }
}
