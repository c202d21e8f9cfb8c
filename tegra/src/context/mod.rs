//! A context: the queues of one user of the GPU, and what happens to them over months.
//!
//! A [`Context`] is a group of channels in one address space, each with a [`crate::queue::Queue`]
//! over mapped memory. It brings channels up when work comes, waits for work, tells what a fault
//! was, rebuilds channels after one and closes them when there is nothing to do, so that the GPU may
//! power down. Buffers and address space outlive all that; so do rings and timelines.
//!
//! Owns channels and queues. Which streams are submitted, and the buffers that they use, belong to
//! the caller, which keeps both alive and unchanged until their [`Ticket`] is done.
//!
//! # Waiting
//!
//! A wait looks at the timeline for a short while and then sleeps on the group's event, which
//! stays raised until taken: an interrupt between look and sleep is not lost. Sleeps are finite,
//! since some errors of the hardware raise nothing: after each the fault records are looked at.
//!
//! # Faults
//!
//! A fault kills all channels of the context for ever. It is reported as [`Error::Fault`] by the
//! next wait, and by everything after it until [`Context::rebuild`]. Work that had not completed is
//! [`Error::Lost`].

mod lane;
mod wait;

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::address::GpuAddress;
use crate::channel::{Channel, Event, Interleave, Preemption, Subcontext, Tsg};
use crate::doorbell::Doorbell;
use crate::error::Error;
use crate::fault::Fault;
use crate::local_memory::LocalMemory;
use crate::pushbuffer::{Acquire, Condition, Engine, Entry, Payload};
use crate::queue::{Point, Wake};
use crate::space::AddressSpace;
use lane::Lane;

/// How a context runs beside others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How long it runs while others wait, 1 to 50 ms; the driver's default is 1.024 ms.
    pub timeslice: Option<Duration>,
    /// How often it gets its turn.
    pub interleave: Interleave,
    /// Where its kernels may be interrupted.
    pub preemption: Preemption,
    /// How long a wait looks at memory before it sleeps.
    pub spin: Duration,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            timeslice: None,
            interleave: Interleave::default(),
            preemption: Preemption::default(),
            // Longer than a wake-up costs, shorter than anybody notices on one CPU.
            spin: Duration::from_micros(100),
        }
    }
}

/// One queue of a context.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct QueueId(usize);

/// A submission: what to wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Ticket {
    queue: QueueId,
    point: Point,
    /// How often the context had been rebuilt.
    epoch: usize,
    wakes: bool,
    timed: bool,
}

impl Ticket {
    /// The queue.
    #[must_use]
    pub const fn queue(self) -> QueueId {
        self.queue
    }

    /// The point of the queue's timeline.
    #[must_use]
    pub const fn point(self) -> Point {
        self.point
    }
}

/// When the GPU worked on a submission, nanoseconds of its timer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// When the host unit came to it; earlier work of the engine may still have run.
    pub started: u64,
    /// When the engine was idle after it.
    pub finished: u64,
}

/// What exists while channels are open.
#[derive(Debug)]
struct Group {
    event: Event,
    subcontext: Subcontext,
}

/// A group of queues. See the module.
#[derive(Debug)]
pub struct Context {
    // Channels close before their group.
    lanes: Vec<Lane>,
    group: Option<Group>,
    doorbell: Arc<Doorbell>,
    space: AddressSpace,
    options: Options,
    local_memory: Option<LocalMemory>,
    fault: Option<Box<Fault>>,
    epoch: usize,
    /// Submissions so far, and when their number was last seen to change.
    submissions: u64,
    quiet_since: Option<(u64, Instant)>,
    sleeps: u64,
}

/// What a context has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Statistics {
    /// Submissions.
    pub submissions: u64,
    /// Times that a wait slept, each one system call.
    pub sleeps: u64,
    /// Rebuilds.
    pub rebuilds: u64,
}

impl Context {
    /// A context without queues. [`Error::Map`] when the doorbell page cannot be mapped.
    pub fn new(space: &AddressSpace, options: Options) -> Result<Self, Error> {
        Ok(Self {
            lanes: Vec::new(),
            group: None,
            doorbell: space.orin().doorbell()?,
            space: space.clone(),
            options,
            local_memory: None,
            fault: None,
            epoch: 0,
            submissions: 0,
            quiet_since: None,
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
    /// [`Error::Queue`] or [`Error::Submit`] for a bad number of entries, and those of making
    /// buffers.
    pub fn add_queue(&mut self, engine: Engine, entries: u32) -> Result<QueueId, Error> {
        let mut lane = Lane::new(&self.space, engine, entries)?;
        lane.catch_up(self.epoch);
        self.lanes.push(lane);
        Ok(QueueId(self.lanes.len() - 1))
    }

    /// Backs the threads' stacks. `memory` must lie in a buffer of the caller's, which stays until
    /// another replaces it. [`Error::Busy`] unless all queues are idle.
    pub fn set_local_memory(&mut self, memory: LocalMemory) -> Result<(), Error> {
        self.idle()?;
        self.local_memory = Some(memory);
        if self.is_open() {
            for lane in self.lanes.iter_mut().filter(|lane| lane.is_open()) {
                lane.configure(self.space.windows(), self.local_memory)?;
            }
        }
        Ok(())
    }

    /// Hands streams to the GPU, in order. Opens the channels when they are closed. Otherwise no
    /// system call.
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
        let point = self.lane_mut(queue)?.submit(bodies, wake)?;
        Ok(self.ticket(queue, point, wake, false))
    }

    /// As [`Context::submit`], with the times of begin and end recorded: two more ring entries.
    pub fn submit_timed(
        &mut self,
        queue: QueueId,
        bodies: &[Entry],
        wake: Wake,
    ) -> Result<Ticket, Error> {
        self.ready(queue)?;
        let point = self.lane_mut(queue)?.submit_timed(bodies, wake)?;
        Ok(self.ticket(queue, point, wake, true))
    }

    fn ticket(&mut self, queue: QueueId, point: Point, wake: Wake, timed: bool) -> Ticket {
        self.submissions += 1;
        Ticket { queue, point, epoch: self.epoch, wakes: wake == Wake::Interrupt, timed }
    }

    /// When the GPU worked on a timed submission. `None` unless it was timed and is done, and once
    /// its record has been used again: after as many submissions as the ring has entries.
    pub fn timing(&self, ticket: Ticket) -> Result<Option<Timing>, Error> {
        if !ticket.timed || ticket.epoch != self.epoch {
            return Ok(None);
        }
        self.lane(ticket.queue)?.timing(ticket.point)
    }

    /// The wait by which a stream of another queue orders itself after `ticket`.
    pub fn acquire(&self, ticket: Ticket) -> Result<Acquire, Error> {
        let payload = Payload::Long(ticket.point.value());
        Ok(Acquire::new(self.timeline(ticket.queue)?, payload, Condition::Reached)?)
    }

    /// Where a queue's timeline lies: 16 bytes, payload and timestamp of the last point reached.
    pub fn timeline(&self, queue: QueueId) -> Result<GpuAddress, Error> {
        Ok(self.lane(queue)?.timeline())
    }

    /// A queue's channel, while it is open: what the driver says of it.
    pub fn channel(&self, queue: QueueId) -> Result<Option<&Channel>, Error> {
        Ok(self.lane(queue)?.channel())
    }

    /// Ring entries that are free, at least.
    pub fn room(&self, queue: QueueId) -> Result<usize, Error> {
        Ok(self.lane(queue)?.room())
    }

    /// What has been done so far.
    #[must_use]
    pub const fn statistics(&self) -> Statistics {
        let (submissions, sleeps) = (self.submissions, self.sleeps);
        Statistics { submissions, sleeps, rebuilds: self.epoch as u64 }
    }

    /// The time of the GPU's timer, nanoseconds; `None` while the channels are closed.
    #[must_use]
    pub fn gpu_time(&self) -> Option<u64> {
        // An open channel keeps the GPU powered, which the page needs.
        self.is_open().then(|| self.doorbell.time())
    }

    /// Whether channels are open, which keeps the GPU powered.
    #[must_use]
    pub fn is_open(&self) -> bool {
        self.group.is_some()
    }

    /// Opens the channels now, so that the first submission need not wait for it.
    ///
    /// # Errors
    /// [`Error::Fault`] until the context is rebuilt; those of the driver. What was closed before
    /// is closed then.
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
        for lane in self.lanes.iter_mut().filter(|lane| !lane.is_open()) {
            result = lane.open(&group.subcontext, &self.doorbell, self.options.preemption);
            result = result.and_then(|()| lane.configure(self.space.windows(), self.local_memory));
            opened.push(lane);
            if result.is_err() {
                for lane in opened {
                    lane.cancel();
                }
                break;
            }
        }
        if self.lanes.iter().any(Lane::is_open) {
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

    /// Closes the channels when nothing has been submitted for `after` and all work is done. To be
    /// called now and then; says whether the channels are closed now.
    pub fn close_if_idle(&mut self, after: Duration) -> Result<bool, Error> {
        if !self.is_open() {
            return Ok(true);
        }
        let now = Instant::now();
        match self.quiet_since {
            Some((submissions, since)) if submissions == self.submissions => {
                if now.duration_since(since) < after {
                    return Ok(false);
                }
            }
            _ => {
                self.quiet_since = Some((self.submissions, now));
                if !after.is_zero() {
                    return Ok(false);
                }
            }
        }
        match self.close() {
            Ok(()) => Ok(true),
            Err(Error::Busy { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Makes the channels anew, after a fault or for work that hangs. What had not completed is
    /// [`Error::Lost`]; its timeline goes on behind it. Buffers keep content and address.
    ///
    /// # Errors
    /// Those of opening: then the GPU may be beyond recovery without a reboot, and another try is
    /// allowed.
    pub fn rebuild(&mut self) -> Result<(), Error> {
        self.shut();
        self.epoch += 1;
        self.fault = None;
        for lane in &mut self.lanes {
            lane.give_up();
        }
        self.open()
    }

    /// Closes every channel, whatever it is doing.
    fn shut(&mut self) {
        for lane in &mut self.lanes {
            lane.close();
        }
        self.group = None;
        self.quiet_since = None;
    }

    /// Refuses unless every queue is idle.
    fn idle(&mut self) -> Result<(), Error> {
        for (queue, lane) in self.lanes.iter_mut().enumerate() {
            let (completed, submitted) = lane.progress()?;
            if completed != submitted {
                return Err(Error::Busy { queue, completed, submitted });
            }
        }
        Ok(())
    }

    /// Makes a queue ready for a submission.
    fn ready(&mut self, queue: QueueId) -> Result<(), Error> {
        if self.fault.is_none() && self.lane(queue)?.is_open() {
            return Ok(());
        }
        self.open()
    }

    fn lane(&self, queue: QueueId) -> Result<&Lane, Error> {
        let count = self.lanes.len();
        self.lanes.get(queue.0).ok_or(Error::NoSuchQueue { queue: queue.0, count })
    }

    fn lane_mut(&mut self, queue: QueueId) -> Result<&mut Lane, Error> {
        let count = self.lanes.len();
        self.lanes.get_mut(queue.0).ok_or(Error::NoSuchQueue { queue: queue.0, count })
    }
}
