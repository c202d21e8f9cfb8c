//! Limits of preparing a network: processor time, memory, cancellation.
//!
//! A file of a few bytes may describe a loop of a million steps. Every node of the graph, and every
//! value that the host computes, is charged to a [`Meter`].

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};
use plan::graph::MAX_NODES;

use crate::error::{Error, Result};

/// Memory of a node in the graph, the plan and the device's program, in bytes.
const NODE: u64 = 4096;

/// Memory of a value that the host knows, in bytes.
const VALUE: u64 = size_of::<f64>() as u64;

/// Memory that values may take for each byte of the file: numbers of 4 bits become `f64`.
const PER_BYTE: u64 = 2 * VALUE;

/// Bytes of a file that may take another second.
const BYTES_PER_SECOND: u64 = 32 << 20;

/// Limits of preparing a network. Reading large files adds to both.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Processor time.
    pub time: Duration,
    /// Memory in bytes, of the graph and of values that the host computes.
    pub memory: u64,
    /// True once the caller has no use for the network.
    pub cancelled: Arc<AtomicBool>,
}

/// Remaining limits. The time is that of the thread that made the meter.
#[derive(Debug, Default)]
pub(crate) struct Meter(Option<State>);

#[derive(Debug)]
struct State {
    limits: Limits,
    bytes: u64,
    deadline: Cell<Duration>,
}

/// Processor time of this thread: other work of the machine does not count.
fn processor_time() -> Duration {
    // The clock always exists.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

impl Meter {
    /// Starts the clock for a network whose files have `bytes` bytes.
    pub(crate) fn start(limits: Limits, bytes: u64) -> Self {
        let more = Duration::from_secs_f64(bytes as f64 / BYTES_PER_SECOND as f64);
        let deadline = processor_time().saturating_add(limits.time).saturating_add(more);
        Self(Some(State { limits, bytes, deadline: Cell::new(deadline) }))
    }

    /// Most nodes of the graph.
    pub(crate) fn most_nodes(&self) -> usize {
        let of = |state: &State| usize::try_from(state.limits.memory / NODE).unwrap_or(MAX_NODES);
        self.0.as_ref().map_or(MAX_NODES, of)
    }

    /// The error for a graph of this many nodes, if they are too many.
    pub(crate) fn too_many(&self, nodes: usize) -> Option<Error> {
        let state = self.0.as_ref()?;
        let (most, mib) = (self.most_nodes(), state.limits.memory >> 20);
        let what = format!("more than {most} operations, which are {mib} MiB");
        (nodes > most).then_some(Error::Limit { what })
    }

    /// Fails if the network is cancelled or its time is over, or if `values` known values are too
    /// many.
    pub(crate) fn check(&self, values: usize) -> Result<()> {
        let Some(state) = &self.0 else { return Ok(()) };
        let Limits { time, memory, cancelled } = &state.limits;
        if cancelled.load(Ordering::Relaxed) {
            return Err(Error::Cancelled);
        }
        if processor_time() >= state.deadline.get() {
            let what = format!("more than {} s of processor time", time.as_secs_f64());
            return Err(Error::Limit { what });
        }
        let most = memory.saturating_add(state.bytes.saturating_mul(PER_BYTE));
        if (values as u64).saturating_mul(VALUE) > most {
            let what = format!("more than {} MiB for values that the host computes", memory >> 20);
            return Err(Error::Limit { what });
        }
        Ok(())
    }

    /// Calls `run`, whose time does not count: a step of the network ends when it is cancelled.
    pub(crate) fn exempt<T>(&self, run: impl FnOnce() -> T) -> T {
        let before = processor_time();
        let result = run();
        if let Some(state) = &self.0 {
            let took = processor_time().saturating_sub(before);
            state.deadline.set(state.deadline.get().saturating_add(took));
        }
        result
    }
}
