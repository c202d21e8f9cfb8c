//! Trace of events as JSON lines with decoded names.
//!
//! The GPU and the driver write through clones of one [`Trace`]. Owns the format; the callers
//! decide what to record.

mod report;

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};

pub use report::{Kernel, Stats, TraceError, decode, stats};

/// An event. Addresses are GPU virtual addresses, lengths are bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// An ioctl: the node, such as `channel`; the request, such as `MAP_BUFFER_EX`; 0, a positive
    /// result, or the negated errno of a refusal.
    Ioctl { node: Cow<'static, str>, request: Cow<'static, str>, result: i32, detail: String },
    /// A doorbell was processed, with this GP_PUT.
    Doorbell { channel: u16, put: u32 },
    /// A ring entry was fetched; `sync` if it waits for the previous entry.
    Entry { channel: u16, index: u32, address: u64, words: u32, sync: bool },
    /// A method was executed or sent to its engine.
    Method { channel: u16, subchannel: u32, address: u32, data: u32, text: String },
    /// A unit wrote a semaphore.
    Release { channel: u16, address: u64, payload: u64, unit: Cow<'static, str> },
    /// A wait ended.
    Acquired { channel: u16, address: u64, payload: u64 },
    /// Memory was copied or, without a source, filled; `bytes` is the number written.
    Copy { channel: u16, source: Option<u64>, destination: u64, bytes: u64 },
    /// Words of a stream were written to memory.
    Upload { channel: u16, destination: u64, bytes: u64 },
    /// The program's mapping of a GPU address was removed.
    Unmap { va: u64, bytes: u64 },
    /// A kernel ran.
    Launch {
        channel: u16,
        qmd: u64,
        program: u64,
        grid: [u32; 3],
        block: [u32; 3],
        /// Work of the kernel; none if it failed or was not executed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        work: Option<Box<Work>>,
    },
    /// The graphics engine was switched to another TSG; one of its channels with work. Nanoseconds
    /// since its doorbell, if that was rung while another TSG had the engine.
    Turn { group: u32, channel: u16, waited: Option<u64> },
    /// Another client has waited 100 ms more for the compute engine, in the account of a channel.
    SwitchTimeout { channel: u16, waited_ms: u32, limit_ms: u32 },
    /// An interrupt that wakes waiters.
    Interrupt { channel: u16 },
    /// A rule was violated, on a channel if any.
    Finding { channel: Option<u16>, rule: Cow<'static, str>, message: String },
    /// A failure was injected.
    Injected { what: Cow<'static, str> },
}

/// Work of a kernel.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Instructions by class, such as `integer` or `global`.
    pub instructions: BTreeMap<Cow<'static, str>, Instructions>,
    /// Bytes that lanes loaded from global memory.
    pub bytes_loaded: u64,
    /// Bytes that lanes stored to global memory.
    pub bytes_stored: u64,
    /// Distinct bytes of global memory that were loaded or stored.
    pub bytes_touched: u64,
    /// Sectors of 32 bytes that those accesses touched, summed over warps.
    pub sectors: u64,
    /// Sectors that missed the modelled L2.
    pub l2_misses: u64,
    /// Bytes loaded from and stored to shared memory.
    pub shared_bytes: u64,
    /// Extra passes of shared memory caused by bank conflicts within a warp.
    pub bank_conflicts: u64,
    /// Atomic operations, one for each lane.
    pub atomics: u64,
}

impl Work {
    /// Bytes of global memory loaded and stored.
    pub fn bytes(&self) -> u64 {
        self.bytes_loaded.saturating_add(self.bytes_stored)
    }

    /// Warp instructions of all classes.
    pub fn warp_instructions(&self) -> u64 {
        self.instructions.values().fold(0, |sum, kind| sum.saturating_add(kind.warps))
    }

    /// Adds the work of another launch. Sums saturate, because a trace is not trusted.
    pub fn add(&mut self, other: &Self) {
        for (kind, more) in &other.instructions {
            let sum = self.instructions.entry(kind.clone()).or_default();
            sum.warps = sum.warps.saturating_add(more.warps);
            sum.lanes = sum.lanes.saturating_add(more.lanes);
        }
        for (sum, more) in [
            (&mut self.bytes_loaded, other.bytes_loaded),
            (&mut self.bytes_stored, other.bytes_stored),
            (&mut self.bytes_touched, other.bytes_touched),
            (&mut self.sectors, other.sectors),
            (&mut self.l2_misses, other.l2_misses),
            (&mut self.shared_bytes, other.shared_bytes),
            (&mut self.bank_conflicts, other.bank_conflicts),
            (&mut self.atomics, other.atomics),
        ] {
            *sum = sum.saturating_add(more);
        }
    }
}

/// Instructions of one class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instructions {
    /// Warp instructions.
    pub warps: u64,
    /// Thread instructions: one for each active lane.
    pub lanes: u64,
}

/// An event with its time.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// GPU time in nanoseconds.
    pub time: u64,
    #[serde(flatten)]
    pub event: Event,
}

#[derive(Debug)]
enum Target {
    File(File),
    Memory(Vec<Record>),
}

/// Target of records: none, a file, or a list. Clones share one target.
#[derive(Clone, Debug, Default)]
pub struct Trace(Option<Arc<Mutex<Target>>>);

impl Trace {
    /// Records nothing.
    pub fn off() -> Self {
        Self::default()
    }

    /// Records to a new file.
    pub fn to_file(path: &Path) -> io::Result<Self> {
        let file = File::create(path)?;
        Ok(Self(Some(Arc::new(Mutex::new(Target::File(file))))))
    }

    /// Records to a list, for tests.
    pub fn to_memory() -> Self {
        Self(Some(Arc::new(Mutex::new(Target::Memory(Vec::new())))))
    }

    /// Returns whether recording is enabled.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Records the event that `event` builds; it is not called if recording is disabled.
    pub fn record(&self, time: u64, event: impl FnOnce() -> Event) {
        let Some(target) = &self.0 else { return };
        let record = Record { time, event: event() };
        match &mut *target.lock() {
            Target::Memory(records) => records.push(record),
            // Writes whole lines, because the process may end at any time, for example at a
            // finding. A full disk must not affect the simulated GPU.
            Target::File(file) => {
                if let Ok(mut line) = serde_json::to_vec(&record) {
                    line.push(b'\n');
                    let _ = file.write_all(&line);
                }
            }
        }
    }

    /// Returns and clears the records of a list; empty for other targets.
    #[must_use]
    pub fn take(&self) -> Vec<Record> {
        let Some(target) = &self.0 else { return Vec::new() };
        match &mut *target.lock() {
            Target::Memory(records) => std::mem::take(records),
            Target::File(_) => Vec::new(),
        }
    }
}
