//! Waiting for work, and finding out why it does not come.

use std::hint::spin_loop;
use std::time::{Duration, Instant};

use super::{Context, Group, Lane, Ticket};
use crate::abi::channel::ErrorCode;
use crate::error::Error;
use crate::fault::Fault;

/// Longest sleep: some errors of the hardware raise nothing.
const SLEEP: Duration = Duration::from_millis(100);
/// Longest sleep for work that raises no interrupt.
const QUIET_SLEEP: Duration = Duration::from_millis(1);
/// Looks at memory between two looks at the clock.
const LOOKS: u32 = 64;

impl Context {
    /// Whether a submission is done. No system call.
    ///
    /// # Errors
    /// [`Error::Lost`] when a fault came first, [`Error::Queue`] for a corrupt timeline.
    pub fn is_done(&mut self, ticket: Ticket) -> Result<bool, Error> {
        let queue = ticket.queue.0;
        let current = ticket.epoch == self.epoch;
        let lane = self.lane_mut(ticket.queue)?;
        if current {
            return lane.is_done(ticket.point);
        }
        if lane.was_done(ticket.point, ticket.epoch) {
            Ok(true)
        } else {
            Err(Error::Lost { queue, value: ticket.point.value() })
        }
    }

    /// Waits until a submission is done. No system call when it is, or soon; one for each sleep.
    ///
    /// # Errors
    /// [`Error::Fault`] when the GPU faulted, [`Error::Lost`] for work of before a rebuild,
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
                let (completed, _) = self.lane_mut(ticket.queue)?.progress()?;
                let (queue, value) = (ticket.queue.0, ticket.point.value());
                return Err(Error::Stalled { queue, value, completed, waited });
            }
        }
    }

    /// Sleeps until an interrupt of the GPU, whoever raised it, or `timeout`; whether one came. It may have
    /// come since the last sleep. One system call; none, and no sleep, while the channels are closed.
    pub fn sleep(&mut self, timeout: Duration) -> Result<bool, Error> {
        let Some(Group { event, .. }) = &self.group else { return Ok(false) };
        self.sleeps += 1;
        event.wait(timeout)
    }

    /// Waits until every queue is idle; see [`Context::wait`].
    pub fn drain(&mut self, timeout: Duration) -> Result<(), Error> {
        let started = Instant::now();
        for queue in 0..self.lanes.len() {
            let Some(point) = self.lanes[queue].last() else { continue };
            let ticket = Ticket {
                queue: super::QueueId(queue),
                point,
                epoch: self.epoch,
                wakes: false,
                timed: false,
            };
            self.wait(ticket, timeout.saturating_sub(started.elapsed()))?;
        }
        Ok(())
    }

    /// Looks at the fault records. No system call.
    pub fn check_records(&mut self) -> Result<(), Error> {
        if self.fault.is_none() && self.lanes.iter().all(|lane| lane.notice().is_none()) {
            return Ok(());
        }
        Err(self.report())
    }

    /// Asks the driver whether the channels live.
    fn check_channels(&mut self) -> Result<(), Error> {
        self.check_records()?;
        let dead = self.lanes.iter().map(Lane::is_dead).collect::<Result<Vec<_>, _>>()?;
        if dead.contains(&true) { Err(self.report()) } else { Ok(()) }
    }

    /// What is known of the channels now: of a fault, or of work that hangs.
    pub fn describe(&mut self) -> Fault {
        match &self.fault {
            Some(fault) => (**fault).clone(),
            None => self.gather(),
        }
    }

    /// Gathers what is known of a fault, once.
    fn report(&mut self) -> Error {
        let fault = match self.fault.take() {
            Some(fault) => fault,
            None => Box::new(self.gather()),
        };
        self.fault = Some(fault.clone());
        Error::Fault(fault)
    }

    fn gather(&mut self) -> Fault {
        // What the driver recorded first is the cause.
        let notice = self.lanes.iter().filter_map(Lane::notice).min_by_key(|notice| notice.time);
        let code = notice.map(|notice| notice.code);
        let queues = self.lanes.iter_mut().enumerate();
        let queues = queues.filter_map(|(queue, lane)| lane.describe(queue)).collect();
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
