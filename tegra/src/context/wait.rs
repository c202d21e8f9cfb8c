//! Waiting for work, and diagnosing work that does not complete.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use super::queue::ContextQueue;
use super::{Context, Group, Ticket};
use crate::abi::channel::ErrorCode;
use crate::error::Error;
use crate::fault::Fault;

/// Longest sleep: some hardware errors raise no interrupt.
const SLEEP: Duration = Duration::from_millis(100);
/// Longest sleep for work that raises no interrupt.
const QUIET_SLEEP: Duration = Duration::from_millis(1);
/// Polls of memory between two reads of the clock.
const LOOKS: u32 = 64;

impl Context {
    /// Returns `true` if a submission is done. No system call.
    ///
    /// # Errors
    /// [`Error::Lost`] when a fault came first, [`Error::Queue`] for a corrupt timeline.
    pub fn is_done(&mut self, ticket: Ticket) -> Result<bool, Error> {
        let current = ticket.epoch == self.epoch;
        let queue = self.queue_mut(ticket.queue)?;
        if current {
            return queue.is_done(ticket.point);
        }
        if queue.was_done(ticket.point, ticket.epoch) {
            Ok(true)
        } else {
            Err(Error::Lost { queue: ticket.queue.0, value: ticket.point.value() })
        }
    }

    /// Waits until a submission is done. No system call if it is done or finishes within
    /// [`Options::spin`](super::Options::spin); otherwise one for each sleep.
    ///
    /// # Errors
    /// [`Error::Fault`] when the GPU faulted, [`Error::Lost`] for work from before a rebuild,
    /// [`Error::Stalled`] after `timeout`, [`Error::Queue`] for a corrupt timeline.
    pub fn wait(&mut self, ticket: Ticket, timeout: Duration) -> Result<(), Error> {
        if self.is_done(ticket)? {
            return Ok(());
        }
        let started = Instant::now();
        let spin = self.options.spin.min(timeout);
        loop {
            for _ in 0..LOOKS {
                if self.is_done(ticket)? {
                    return Ok(());
                }
                spin_loop();
            }
            if started.elapsed() >= spin {
                break;
            }
        }
        let longest = if ticket.wakes { SLEEP } else { QUIET_SLEEP };
        loop {
            self.check_records()?;
            let left = timeout.saturating_sub(started.elapsed());
            let woken = !left.is_zero() && self.sleep(left.min(longest))?;
            if self.is_done(ticket)? {
                return Ok(());
            }
            if !woken {
                self.check_channels()?;
            }
            let waited = started.elapsed();
            if waited >= timeout {
                let (completed, _) = self.queue_mut(ticket.queue)?.progress()?;
                let (queue, value) = (ticket.queue.0, ticket.point.value());
                return Err(Error::Stalled { queue, value, completed, waited });
            }
        }
    }

    /// Sleeps until an interrupt from any channel of the GPU, or `timeout`; returns `true` for an
    /// interrupt, which may have arrived since the last sleep. One system call; none, and no sleep,
    /// while the channels are closed.
    pub fn sleep(&mut self, timeout: Duration) -> Result<bool, Error> {
        let Some(Group { event, .. }) = &self.group else { return Ok(false) };
        self.sleeps += 1;
        event.wait(timeout)
    }

    /// Waits until every queue is idle; see [`Context::wait`].
    pub fn drain(&mut self, timeout: Duration) -> Result<(), Error> {
        let started = Instant::now();
        for index in 0..self.queues.len() {
            let Some(point) = self.queues[index].last() else { continue };
            let ticket = Ticket {
                queue: super::QueueId(index),
                point,
                epoch: self.epoch,
                wakes: false,
                timed: false,
            };
            self.wait(ticket, timeout.saturating_sub(started.elapsed()))?;
        }
        Ok(())
    }

    /// Checks the fault records. No system call.
    pub fn check_records(&mut self) -> Result<(), Error> {
        if self.fault.is_none() && self.queues.iter().all(|queue| queue.notice().is_none()) {
            return Ok(());
        }
        Err(self.report())
    }

    /// Checks with the driver that the channels are alive.
    fn check_channels(&mut self) -> Result<(), Error> {
        self.check_records()?;
        let dead = self.queues.iter().map(ContextQueue::is_dead).collect::<Result<Vec<_>, _>>()?;
        if dead.contains(&true) { Err(self.report()) } else { Ok(()) }
    }

    /// State of the channels now, for a fault or for hung work.
    pub fn describe(&mut self) -> Fault {
        match &self.fault {
            Some(fault) => (**fault).clone(),
            None => self.gather(),
        }
    }

    /// Collects the details of a fault, once.
    fn report(&mut self) -> Error {
        let fault = match self.fault.take() {
            Some(fault) => fault,
            None => Box::new(self.gather()),
        };
        self.fault = Some(fault.clone());
        Error::Fault(fault)
    }

    fn gather(&mut self) -> Fault {
        // The earliest record of the driver is the cause.
        let notice =
            self.queues.iter().filter_map(ContextQueue::notice).min_by_key(|notice| notice.time);
        let code = notice.map(|notice| notice.code);
        let queues = self.queues.iter_mut().enumerate();
        let queues = queues.filter_map(|(index, queue)| queue.describe(index)).collect();
        let sms = match (&self.group, code) {
            (Some(group), Some(ErrorCode::GrException | ErrorCode::MmuFault)) => {
                let tsg = group.subcontext.group();
                let sms = 0..self.space.orin().sms();
                sms.filter_map(|sm| tsg.sm_error(sm).ok().flatten()).collect()
            }
            _ => Vec::new(),
        };
        Fault { code, time: notice.map(|notice| notice.time), queues, sms }
    }
}
