//! Upload of weights to GPU memory.
//!
//! CPU-visible memory is filled in place. GPU memory is filled through two page-locked halves:
//! while one is copied, the other is filled.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use orind_kernels::repack::PANEL;

use super::super::layout::Layout;
use super::super::storage::{ALIGN, WeightLayout};
use super::super::weights::{WHOLE, fill};
use super::driver::{Event, MemoryKind, Stream};
use super::fault::Fault;
use super::gpu::{Gpu, Memory, Owned};
use crate::ledger::invalid;
use crate::{Error, Result, WeightSource};

/// Size of a half, large enough that copying dominates the overhead.
pub(super) const HALF: usize = 4 << 20;

pub(super) struct Weights {
    gpu: Arc<Gpu>,
    memory: Memory,
    places: HashMap<String, (u64, WeightLayout)>,
    uploaded: HashSet<String>,
    /// Present during uploads to memory that the CPU does not see.
    staging: Option<Staging>,
    open: bool,
}

impl Weights {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        layout: &Layout,
        kind: MemoryKind,
        half: usize,
    ) -> Result<Self> {
        let memory = Memory::new(gpu, kind, layout.weight_bytes)?;
        let mut at = memory.address();
        let mut places = HashMap::new();
        let mut names: Vec<&String> = layout.weights.keys().collect();
        names.sort_unstable();
        for name in names {
            let weight = layout.weights[name];
            places.insert(name.clone(), (at, weight));
            at += weight.bytes().next_multiple_of(ALIGN);
        }
        let staging = match kind {
            MemoryKind::Device => Some(Staging::new(gpu, layout, half)?),
            MemoryKind::Pinned | MemoryKind::Managed => None,
        };
        let gpu = Arc::clone(gpu);
        Ok(Self { gpu, memory, places, uploaded: HashSet::new(), staging, open: true })
    }

    pub(super) const fn places(&self) -> &HashMap<String, (u64, WeightLayout)> {
        &self.places
    }

    pub(super) fn upload(
        &mut self,
        weight: &str,
        source: &dyn WeightSource,
        progress: &(dyn Fn(u64) + Sync),
        stream: Stream,
    ) -> Result<()> {
        let Some(&(address, layout)) = self.places.get(weight) else {
            return invalid(format!("weight `{weight}` is not part of the request"));
        };
        if !self.open {
            return invalid("weights cannot change once plans have been prepared");
        }
        if self.uploaded.contains(weight) {
            return invalid(format!("weight `{weight}` has been uploaded already"));
        }
        match &mut self.staging {
            Some(staging) => {
                let to = Destination { gpu: &self.gpu, address, stream };
                staging.fill(weight, &layout, source, &to, progress)?;
            }
            None => {
                let at = (address - self.memory.address()) as usize;
                let base = self.memory.host().wrapping_add(at);
                // SAFETY: the places divide the allocation, which the CPU sees from `host` on; no
                // launch has been submitted yet, so the GPU accesses none of it.
                let place =
                    unsafe { std::slice::from_raw_parts_mut(base, layout.bytes() as usize) };
                fill(weight, &layout, source, place, progress)?;
            }
        }
        self.uploaded.insert(weight.to_owned());
        Ok(())
    }

    /// Ends the upload.
    pub(super) fn seal(&mut self, stream: Stream) -> Result<()> {
        if let Some(name) = self.places.keys().find(|name| !self.uploaded.contains(*name)) {
            return invalid(format!("weight `{name}` has not been uploaded"));
        }
        if self.open {
            let driver = self.gpu.enter().map_err(Fault::at_the_seam)?;
            driver.synchronize(stream).map_err(Fault::at_the_seam)?;
            self.staging = None;
            self.open = false;
        }
        Ok(())
    }
}

struct Destination<'a> {
    gpu: &'a Gpu,
    address: u64,
    stream: Stream,
}

/// Bytes of a half that are contiguous in the weight.
#[derive(Clone, Copy)]
struct Piece {
    from: usize,
    at: usize,
    len: usize,
}

/// A page-locked buffer, and the event after which it is free.
struct Half {
    memory: Memory,
    copied: Owned<Event>,
    busy: bool,
}

struct Staging {
    halves: [Half; 2],
    next: usize,
    /// Rows in file format, for types that are repacked.
    file: Vec<u8>,
    /// Size of a half in bytes.
    bytes: usize,
}

impl Staging {
    fn new(gpu: &Arc<Gpu>, layout: &Layout, half: usize) -> Result<Self> {
        let row = |weight: &WeightLayout| {
            weight.matrices().map_or(0, |(matrix, _)| matrix.of_rows(PANEL).bytes())
        };
        let bytes = layout.weights.values().map(row).max().unwrap_or(0).max(half);
        let bytes = bytes.next_multiple_of(WHOLE);
        let one = || {
            let memory = Memory::new(gpu, MemoryKind::Pinned, bytes as u64)?;
            let copied =
                Owned::new(gpu, |driver| driver.create_event(false)).map_err(Fault::at_the_seam)?;
            Ok(Half { memory, copied, busy: false })
        };
        Ok(Self { halves: [one()?, one()?], next: 0, file: Vec::new(), bytes })
    }

    fn fill(
        &mut self,
        weight: &str,
        layout: &WeightLayout,
        source: &dyn WeightSource,
        to: &Destination<'_>,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<()> {
        let failed = |source| Error::Weight { weight: weight.to_owned(), source };
        if let Some(numbers) = layout.numbers() {
            let total = numbers.bytes as usize;
            for at in (0..total).step_by(self.bytes) {
                let bytes = self.bytes.min(total - at);
                let piece = Piece { from: 0, at: numbers.at as usize + at, len: bytes };
                let mut read = 0;
                self.halves[self.next].send(bytes, &[piece], to, |half| {
                    read = numbers.read(source, at, half).map_err(failed)?;
                    Ok(())
                })?;
                self.next = 1 - self.next;
                // A weight that is read twice is reported once.
                if layout.matrices().is_none() {
                    progress(read);
                }
            }
        }
        let Some((matrix, count)) = layout.matrices() else { return Ok(()) };
        let (row, total) = (matrix.file_row_bytes(), matrix.rows());
        // Whole panels, which are contiguous.
        let rows = PANEL * (self.bytes / matrix.of_rows(PANEL).bytes()).max(1);
        for number in 0..count {
            let base = number * layout.stride() as usize;
            for first in (0..total).step_by(rows) {
                let rows = rows.min(total - first);
                self.file.resize(rows * row, 0);
                let at = (number * total + first) * row;
                source.read_at(at as u64, &mut self.file).map_err(failed)?;
                let part = matrix.of_rows(rows);
                let (first, panels) = (first / PANEL, rows.div_ceil(PANEL));
                let (mut from, mut plane_at) = (0, base);
                let pieces = matrix.planes().map(|panel| {
                    let (at, len) = (plane_at + panel * first, panel * panels);
                    let piece = Piece { from, at, len };
                    (from, plane_at) = (from + len, plane_at + panel * total.div_ceil(PANEL));
                    piece
                });
                let Self { halves, file, next, .. } = self;
                halves[*next].send(part.bytes(), &pieces, to, |half| {
                    part.pack(0, file, half).map_err(|e| failed(Box::new(e)))
                })?;
                *next = 1 - *next;
                progress((rows * row) as u64);
            }
        }
        Ok(())
    }
}

impl Half {
    /// Fills the first `bytes` bytes with `write`, then copies `pieces` of them.
    fn send(
        &mut self,
        bytes: usize,
        pieces: &[Piece],
        to: &Destination<'_>,
        write: impl FnOnce(&mut [u8]) -> Result<()>,
    ) -> Result<()> {
        let failed = Fault::at_the_seam;
        let driver = to.gpu.enter().map_err(failed)?;
        if std::mem::take(&mut self.busy) {
            driver.wait(self.copied.get()).map_err(failed)?;
        }
        if bytes as u64 > self.memory.bytes() {
            return invalid(format!("{bytes} bytes staged in {}", self.memory.bytes()));
        }
        // SAFETY: pinned memory of at least `bytes` bytes, and no copy from it is in flight.
        write(unsafe { std::slice::from_raw_parts_mut(self.memory.host(), bytes) })?;
        self.busy = true;
        for &Piece { from, at, len } in pieces.iter().filter(|piece| piece.len > 0) {
            let from = self.memory.host().wrapping_add(from);
            // SAFETY: the pieces are inside the `bytes` bytes, which are not written again before
            // the event below has been waited for.
            unsafe { driver.copy_in(to.address + at as u64, from, len, to.stream) }
                .map_err(failed)?;
        }
        driver.record(self.copied.get(), to.stream).map_err(failed)
    }
}
