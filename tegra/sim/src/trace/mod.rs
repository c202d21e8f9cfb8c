//! What happened, as JSON lines with decoded names: written while running, read back for listings
//! and counts.
//!
//! The GPU writes its part and the driver its ioctls through clones of one [`Trace`]. Owns the
//! format; what is worth a record is decided where it happens.

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

/// One thing that happened. Addresses are GPU virtual addresses, lengths bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "kebab-case")]
pub enum Event {
    /// The program called a driver: the node, as `channel`, the request, as `MAP_BUFFER_EX`, and 0 or a
    /// positive result or the negated errno of a refusal.
    Ioctl { node: Cow<'static, str>, request: Cow<'static, str>, result: i32, detail: String },
    /// A doorbell was taken, when GP_PUT was this.
    Doorbell { channel: u16, put: u32 },
    /// The ring entry of an index was fetched; `sync` when it waits for the entry before.
    Entry { channel: u16, index: u32, address: u64, words: u32, sync: bool },
    /// A method was executed or given to its engine.
    Method { channel: u16, subchannel: u32, address: u32, data: u32, text: String },
    /// A unit wrote a semaphore.
    Release { channel: u16, address: u64, payload: u64, unit: Cow<'static, str> },
    /// A wait was over.
    Acquired { channel: u16, address: u64, payload: u64 },
    /// Memory was copied or, without a source, filled; `bytes` were written.
    Copy { channel: u16, source: Option<u64>, destination: u64, bytes: u64 },
    /// Words of a stream were written to memory.
    Upload { channel: u16, destination: u64, bytes: u64 },
    /// The program's mapping of so many bytes at a GPU address is gone.
    Unmap { va: u64, bytes: u64 },
    /// A kernel ran.
    Launch {
        channel: u16,
        qmd: u64,
        program: u64,
        grid: [u32; 3],
        block: [u32; 3],
        /// What it did; none when it failed, or nothing executed it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        work: Option<Box<Work>>,
    },
    /// The graphics engine went to another group of channels; one of them that has something to do. How many
    /// nanoseconds ago its doorbell was rung, where that was while others had the engine.
    Turn { group: u32, channel: u16, waited: Option<u64> },
    /// Others have waited 100 ms more for the compute engine, as it counts for the channel.
    SwitchTimeout { channel: u16, waited_ms: u32, limit_ms: u32 },
    /// An interrupt that wakes waiters.
    Interrupt { channel: u16 },
    /// A rule was broken, on a channel where one is concerned.
    Finding { channel: Option<u16>, rule: Cow<'static, str>, message: String },
    /// Something was made to fail on request.
    Injected { what: Cow<'static, str> },
}

/// What a kernel did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Work {
    /// Instructions by their kind, as `integer` or `global`.
    pub instructions: BTreeMap<Cow<'static, str>, Instructions>,
    /// Bytes that lanes asked of global memory.
    pub bytes_loaded: u64,
    /// Bytes that lanes wrote to global memory.
    pub bytes_stored: u64,
    /// Bytes of global memory that were loaded or stored, each counted once.
    pub bytes_touched: u64,
    /// Sectors of 32 bytes that those accesses, warp by warp, touched.
    pub sectors: u64,
    /// Sectors that were not in the modelled L2.
    pub l2_misses: u64,
    /// Bytes loaded from and stored to shared memory.
    pub shared_bytes: u64,
    /// Extra passes that shared memory needed because lanes of a warp met in a bank.
    pub bank_conflicts: u64,
    /// Atomic operations, counted by lane.
    pub atomics: u64,
}

impl Work {
    /// Bytes of global memory that were asked for and written.
    pub fn bytes(&self) -> u64 {
        self.bytes_loaded.saturating_add(self.bytes_stored)
    }

    /// Instructions of all kinds, each counted once for a warp.
    pub fn warp_instructions(&self) -> u64 {
        self.instructions.values().fold(0, |sum, kind| sum.saturating_add(kind.warps))
    }

    /// Adds what another launch did. Sums stop at the largest number: a trace is not trusted.
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

/// Instructions of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Instructions {
    /// Counted once for a warp.
    pub warps: u64,
    /// Counted for every lane that they acted for.
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

/// Where records go: nowhere, a file, or a list. Clones share one target.
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

    /// Whether anything is recorded.
    pub fn is_on(&self) -> bool {
        self.0.is_some()
    }

    /// Records what `event` makes; it is not called when nothing is recorded.
    pub fn record(&self, time: u64, event: impl FnOnce() -> Event) {
        let Some(target) = &self.0 else { return };
        let record = Record { time, event: event() };
        match &mut *target.lock() {
            Target::Memory(records) => records.push(record),
            // Whole lines at once: the process may end at any time, by a finding for one. A full
            // disk must not change what the simulated GPU does.
            Target::File(file) => {
                if let Ok(mut line) = serde_json::to_vec(&record) {
                    line.push(b'\n');
                    let _ = file.write_all(&line);
                }
            }
        }
    }

    /// The records of a list, taken out; empty for other targets.
    #[must_use]
    pub fn take(&self) -> Vec<Record> {
        let Some(target) = &self.0 else { return Vec::new() };
        match &mut *target.lock() {
            Target::Memory(records) => std::mem::take(records),
            Target::File(_) => Vec::new(),
        }
    }
}
