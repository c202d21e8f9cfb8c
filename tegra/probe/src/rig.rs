//! Common fixture of experiments: an open GPU, an address space, a queue for each engine.

use std::time::{Duration, Instant};

use tegra::address::GpuAddress;
use tegra::class;
use tegra::context::{Context, Options, QueueId, Ticket, Timing};
use tegra::copy::Copier;
use tegra::orin::Orin;
use tegra::pushbuffer::{Engine, Entry, PushBuffer};
use tegra::queue::Wake;
use tegra::space::{AddressSpace, L2};

use super::error::Error;

/// Timeout of GPU work; the time limit of the whole experiment is longer.
pub(super) const TIMEOUT: Duration = Duration::from_secs(20);
const ENTRIES: u32 = 256;

pub(super) struct Rig {
    // The caller's buffers must outlive the context's work: every submission is waited for.
    pub(super) context: Context,
    pub(super) copy: QueueId,
    pub(super) compute: QueueId,
    pub(super) copier: Copier,
    pub(super) space: AddressSpace,
}

impl Rig {
    pub(super) fn new() -> Result<Self, Error> {
        Self::with(L2::Volatile, Options::default())
    }

    pub(super) fn with(l2: L2, options: Options) -> Result<Self, Error> {
        Self::within(AddressSpace::new(&Orin::open()?, l2)?, options)
    }

    pub(super) fn within(space: AddressSpace, options: Options) -> Result<Self, Error> {
        let mut context = Context::new(&space, options)?;
        let copy = context.add_queue(Engine::Copy, ENTRIES)?;
        let compute = context.add_queue(Engine::Compute, ENTRIES)?;
        let copier = Copier::new(&space, copy)?;
        let mut rig = Self { context, copy, compute, copier, space };
        // The first submission opens and configures the channels, which must not be measured.
        for queue in [copy, compute] {
            rig.run(queue, &[])?;
        }
        Ok(rig)
    }

    /// Submits and waits; returns start and end by the GPU's timer.
    pub(super) fn run(&mut self, queue: QueueId, bodies: &[Entry]) -> Result<Timing, Error> {
        let ticket = self.context.submit_timed(queue, bodies, Wake::Quiet)?;
        self.finish(ticket)
    }

    /// Like [`Rig::run`], in nanoseconds.
    pub(super) fn duration(&mut self, queue: QueueId, bodies: &[Entry]) -> Result<f64, Error> {
        let Timing { started, finished } = self.run(queue, bodies)?;
        Ok(finished.saturating_sub(started) as f64)
    }

    pub(super) fn finish(&mut self, ticket: Ticket) -> Result<Timing, Error> {
        self.context.wait(ticket, TIMEOUT)?;
        self.context
            .timing(ticket)?
            .ok_or_else(|| Error::Implausible("a timed submission has no times".into()))
    }

    pub(super) fn copy(
        &mut self,
        from: GpuAddress,
        to: GpuAddress,
        bytes: u64,
    ) -> Result<(), Error> {
        let ticket = self.copier.copy(&mut self.context, from, to, bytes)?;
        Ok(self.context.wait(ticket, TIMEOUT)?)
    }

    pub(super) fn fill(&mut self, to: GpuAddress, value: u32, bytes: u64) -> Result<(), Error> {
        let ticket = self.copier.fill(&mut self.context, to, value, bytes / 4)?;
        Ok(self.context.wait(ticket, TIMEOUT)?)
    }

    /// Submits a stream of the copy engine and waits.
    pub(super) fn stream(&mut self, stream: &PushBuffer<class::Copy>) -> Result<(), Error> {
        let ticket = self.copier.submit(&mut self.context, stream)?;
        Ok(self.context.wait(ticket, TIMEOUT)?)
    }
}

/// Repeats until there are `most` results or, after at least `least`, a quarter of a second has
/// passed: hardware reaches the maximum, a simulated GPU may not.
pub(super) fn repeat<T>(
    least: usize,
    most: usize,
    mut once: impl FnMut(usize) -> Result<T, Error>,
) -> Result<Vec<T>, Error> {
    const TIME: Duration = Duration::from_millis(250);
    let started = Instant::now();
    let mut results = Vec::new();
    while results.len() < least || results.len() < most && started.elapsed() < TIME {
        results.push(once(results.len())?);
    }
    Ok(results)
}

/// Doubles a size from `first` to `last` as long as a run takes less than `TIME` of CPU time, at
/// least once: a rate needs two sizes. Returns each size with its result.
pub(super) fn growing<T>(
    first: u64,
    last: u64,
    mut once: impl FnMut(u64) -> Result<T, Error>,
) -> Result<Vec<(u64, T)>, Error> {
    const TIME: Duration = Duration::from_millis(60);
    let mut results = Vec::new();
    let mut size = first;
    while size <= last {
        let started = Instant::now();
        results.push((size, once(size)?));
        if started.elapsed() > TIME && results.len() > 1 {
            break;
        }
        size *= 2;
    }
    Ok(results)
}
