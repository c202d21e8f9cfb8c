//! A list of launches recorded once as a CUDA graph, and launched as a whole for every step.
//!
//! What changes from step to step is in memory, so a graph's parameters are never updated. Launches
//! follow each other in the stream's order; the last node brings the ring of tokens to the CPU.

use std::sync::Arc;

use orind_kernels::catalogue::Kernel;

use super::super::launch::Launch;
use super::code::Code;
use super::driver::{Call, Driver, Event, Function, Graph, Stream};
use super::fault::Fault;
use super::gpu::{Gpu, Memory, Owned};
use crate::{Error, Timing};

/// A recorded step.
pub(super) struct Recording {
    gpu: Arc<Gpu>,
    launches: Vec<(Launch, Function)>,
    graph: Owned<Graph>,
    /// The ring of tokens on the GPU, and its copy that the CPU reads.
    ring: u64,
    seen: Memory,
}

impl Recording {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        code: &mut Code,
        stream: Stream,
        launches: Vec<Launch>,
        (ring, seen): (u64, Memory),
    ) -> Result<Self, Error> {
        let function = |launch: Launch| {
            let expected = launch.kernel.params_bytes();
            if launch.params.as_bytes().len() != expected {
                let what = format!("{}: parameters of {expected} bytes", launch.kernel.symbol());
                return Err(Error::Invalid(what));
            }
            let function = code.function(launch.kernel, launch.shared_bytes)?;
            Ok((launch, function))
        };
        let launches = launches.into_iter().map(function).collect::<Result<Vec<_>, Error>>()?;
        let graph = Owned::new(gpu, |driver| {
            driver.begin_capture(stream)?;
            let recorded =
                queue(driver, stream, &launches).and_then(|()| bring(driver, stream, ring, &seen));
            // Also after a failure: the stream must not go on recording.
            let graph = driver.end_capture(stream)?;
            recorded.map(|()| graph).or_else(|fault| {
                driver.destroy_graph(graph)?;
                Err(fault)
            })
        })
        .map_err(Fault::at_the_seam)?;
        Ok(Self { gpu: Arc::clone(gpu), launches, graph, ring, seen })
    }

    /// Launches of a step.
    pub(super) fn launches(&self) -> u64 {
        self.launches.len() as u64
    }

    /// Queues a step.
    pub(super) fn launch(&self, stream: Stream) -> Result<(), Fault> {
        self.gpu.enter()?.launch_graph(self.graph.get(), stream)
    }

    /// The word at `offset` of the ring, as the latest finished step left it.
    pub(super) fn ring(&self, offset: u64) -> i32 {
        debug_assert!(offset + 4 <= self.seen.bytes(), "{offset}");
        let at = self.seen.host().wrapping_add(offset as usize).cast::<i32>();
        // SAFETY: a word of the pinned copy. A later step may be copying over it, but what that
        // writes to a finished step's entry is what is there.
        unsafe { at.read_volatile() }
    }

    /// Runs a step launch by launch, each between two events.
    pub(super) fn profile(&self, stream: Stream) -> Result<Vec<Timing>, Fault> {
        let event = || Owned::new(&self.gpu, |driver| driver.create_event(true));
        let mut events = vec![event()?];
        let driver = self.gpu.enter()?;
        driver.record(events[0].get(), stream)?;
        for one in &self.launches {
            queue(driver, stream, std::slice::from_ref(one))?;
            let after: Owned<Event> = event()?;
            driver.record(after.get(), stream)?;
            events.push(after);
        }
        bring(driver, stream, self.ring, &self.seen)?;
        driver.synchronize(stream)?;
        let timing = |((launch, _), pair): (&(Launch, Function), &[Owned<Event>])| {
            let milliseconds = driver.elapsed(pair[0].get(), pair[1].get())?;
            let Launch { label, kernel, .. } = launch;
            let kernel: Kernel = *kernel;
            let nanoseconds = (f64::from(milliseconds) * 1e6) as u64;
            Ok(Timing { label: label.clone(), kernel: kernel.symbol(), nanoseconds })
        };
        self.launches.iter().zip(events.windows(2)).map(timing).collect()
    }
}

fn queue(
    driver: &dyn Driver,
    stream: Stream,
    launches: &[(Launch, Function)],
) -> Result<(), Fault> {
    for (launch, function) in launches {
        let call = Call {
            function: *function,
            grid: launch.grid,
            threads: launch.kernel.threads(),
            shared_bytes: launch.shared_bytes,
            params: launch.params.as_bytes(),
        };
        // SAFETY: the parameters are of the size that the kernel takes; the addresses in them lie in
        // the instance's memory, which outlives its recordings.
        unsafe { driver.launch(&call, stream)? };
    }
    Ok(())
}

/// Queues the copy of the ring.
fn bring(driver: &dyn Driver, stream: Stream, ring: u64, seen: &Memory) -> Result<(), Fault> {
    // SAFETY: the copy is as long as its pinned destination, which lives as long as the recording.
    unsafe { driver.copy_out(seen.host(), ring, seen.bytes() as usize, stream) }
}
