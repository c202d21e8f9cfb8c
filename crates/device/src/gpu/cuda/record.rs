//! Recordings: launches captured once as a CUDA graph and launched as a whole for every step.
//!
//! Inputs that change per step are in memory, so graph parameters are never updated. Launches run
//! in stream order; the last node copies the ring of tokens to the CPU.

use std::sync::Arc;
use std::time::Duration;

use super::super::launch::Launch;
use super::code::Code;
use super::driver::{Call, Driver, Event, Function, Graph, Stream};
use super::fault::Fault;
use super::gpu::{Gpu, Memory, Owned};
use crate::{Error, Profile, Result, Timing};

pub(super) struct Recording {
    gpu: Arc<Gpu>,
    launches: Vec<(Launch, Function)>,
    graph: Owned<Graph>,
    /// Ring of tokens on the GPU, and the CPU's copy.
    ring: u64,
    seen: Memory,
}

impl Recording {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        code: &mut Code,
        stream: Stream,
        launches: Vec<Launch>,
        ring: u64,
        seen: Memory,
    ) -> Result<Self> {
        let function = |launch: Launch| {
            let expected = launch.kernel.params_bytes();
            if launch.params.as_bytes().len() != expected {
                let what = format!("{}: parameters of {expected} bytes", launch.kernel.symbol());
                return Err(Error::Invalid(what));
            }
            let function = code.function(launch.kernel, launch.shared_bytes)?;
            Ok((launch, function))
        };
        let launches = launches.into_iter().map(function).collect::<Result<Vec<_>>>()?;
        let graph = Owned::new(gpu, |driver| {
            driver.begin_capture(stream)?;
            let recorded = queue(driver, stream, &launches, gpu.programmatic())
                .and_then(|()| bring(driver, stream, ring, &seen));
            // Also after a failure: the stream must not stay in capture mode.
            let graph = driver.end_capture(stream)?;
            recorded.map(|()| graph).or_else(|fault| {
                driver.destroy_graph(graph)?;
                Err(fault)
            })
        })
        .map_err(Fault::at_the_seam)?;
        Ok(Self { gpu: Arc::clone(gpu), launches, graph, ring, seen })
    }

    pub(super) fn launches(&self) -> u64 {
        self.launches.len() as u64
    }

    pub(super) fn launch(&self, stream: Stream) -> Result<(), Fault> {
        self.gpu.enter()?.launch_graph(self.graph.get(), stream)
    }

    /// Word at `offset` of the ring after the latest finished step.
    pub(super) fn ring(&self, offset: u64) -> i32 {
        debug_assert!(offset + 4 <= self.seen.bytes(), "{offset}");
        let at = self.seen.host().wrapping_add(offset as usize).cast::<i32>();
        // SAFETY: a word of the pinned copy. A later step may be copying over it, but writes the
        // same value to a finished step's entry.
        unsafe { at.read_volatile() }
    }

    /// Runs a normal step, then one launch by launch, between events.
    pub(super) fn profile(&self, stream: Stream) -> Result<Profile, Fault> {
        let event = || Owned::new(&self.gpu, |driver| driver.create_event(true));
        let (begin, mut events) = (event()?, vec![event()?]);
        let driver = self.gpu.enter()?;
        driver.record(begin.get(), stream)?;
        self.launch(stream)?;
        driver.record(events[0].get(), stream)?;
        for one in &self.launches {
            queue(driver, stream, std::slice::from_ref(one), false)?;
            let after: Owned<Event> = event()?;
            driver.record(after.get(), stream)?;
            events.push(after);
        }
        bring(driver, stream, self.ring, &self.seen)?;
        driver.synchronize(stream)?;
        let between = |from: &Owned<Event>, to: &Owned<Event>| {
            let milliseconds = driver.elapsed(from.get(), to.get())?;
            Ok((f64::from(milliseconds) * 1e6) as u64)
        };
        let timing = |((launch, _), pair): (&(Launch, Function), &[Owned<Event>])| {
            let nanoseconds = between(&pair[0], &pair[1])?;
            let (step, label) = (launch.step, launch.label.clone());
            Ok(Timing { step, label, kernel: launch.kernel.symbol(), nanoseconds })
        };
        let timings = self.launches.iter().zip(events.windows(2)).map(timing);
        let whole = Duration::from_nanos(between(&begin, &events[0])?);
        Ok(Profile { timings: timings.collect::<Result<_, _>>()?, serialised: true, whole })
    }
}

/// Queues launches in order; all but the first may begin early if `programmatic`.
fn queue(
    driver: &dyn Driver,
    stream: Stream,
    launches: &[(Launch, Function)],
    programmatic: bool,
) -> Result<(), Fault> {
    for (i, (launch, function)) in launches.iter().enumerate() {
        let call = Call {
            function: *function,
            grid: launch.grid,
            block: [launch.kernel.threads(), 1, 1],
            shared_bytes: launch.shared_bytes,
            params: launch.params.as_bytes(),
            programmatic: programmatic && i > 0,
        };
        // SAFETY: the parameters have the size that the kernel expects; the addresses in them are
        // in the instance's memory, which outlives its recordings.
        unsafe { driver.launch(&call, stream)? };
    }
    Ok(())
}

fn bring(driver: &dyn Driver, stream: Stream, ring: u64, seen: &Memory) -> Result<(), Fault> {
    // SAFETY: the copy has the length of its pinned destination, which outlives the recording.
    unsafe { driver.copy_out(seen.host(), ring, seen.bytes() as usize, stream) }
}
