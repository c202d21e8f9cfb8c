//! What most experiments stand on: an open GPU, an address space, a queue of each engine.

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

/// How long work of the GPU may take; the limit of the whole experiment is longer.
pub(super) const PATIENCE: Duration = Duration::from_secs(20);
const ENTRIES: u32 = 256;

pub(super) struct Rig {
    // Buffers of the caller's must outlive the context's work: every submission is waited for.
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
        // The first submission opens and configures the channels: not a part of what is measured.
        for queue in [copy, compute] {
            rig.run(queue, &[])?;
        }
        Ok(rig)
    }

    /// Submits and waits, with the times of begin and end by the GPU's timer.
    pub(super) fn run(&mut self, queue: QueueId, bodies: &[Entry]) -> Result<Timing, Error> {
        let ticket = self.context.submit_timed(queue, bodies, Wake::Quiet)?;
        self.finish(ticket)
    }

    /// As [`Rig::run`], in nanoseconds.
    pub(super) fn duration(&mut self, queue: QueueId, bodies: &[Entry]) -> Result<f64, Error> {
        let Timing { started, finished } = self.run(queue, bodies)?;
        Ok(finished.saturating_sub(started) as f64)
    }

    pub(super) fn finish(&mut self, ticket: Ticket) -> Result<Timing, Error> {
        self.context.wait(ticket, PATIENCE)?;
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
        Ok(self.context.wait(ticket, PATIENCE)?)
    }

    pub(super) fn fill(&mut self, to: GpuAddress, value: u32, bytes: u64) -> Result<(), Error> {
        let ticket = self.copier.fill(&mut self.context, to, value, bytes / 4)?;
        Ok(self.context.wait(ticket, PATIENCE)?)
    }

    /// Submits a stream of the copy engine and waits.
    pub(super) fn stream(&mut self, stream: &PushBuffer<class::Copy>) -> Result<(), Error> {
        let ticket = self.copier.submit(&mut self.context, stream)?;
        Ok(self.context.wait(ticket, PATIENCE)?)
    }
}

/// Repeats until there are `most` results or, after at least `least`, a quarter of a second is over:
/// hardware gives all, a simulated GPU some.
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

/// Doubles a size from `first` to `last` as long as a try takes less than `TIME` of the CPU's clock, once at
/// least: a rate needs two sizes. Gives each size with what it gave.
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
