//! Gather, scatter, scatter-add and top-k.

use super::group::{BLOCK, Source};
use super::pool::Worker;
use super::width::Width;
use simd::{Isa, tensor};

/// One index tensor `[M]` for a leading axis of a table.
#[derive(Clone, Copy)]
pub(super) struct Index {
    pub(super) at: *const i32,
    /// Distance between the indices of neighbouring rows.
    pub(super) step: usize,
    /// Extent of the axis, and distance between its elements.
    pub(super) extent: usize,
    pub(super) stride: usize,
}

/// Offset of row `row` in the table; `None` for an index out of range.
///
/// # Safety
///
/// Each index tensor has this row.
unsafe fn place(indices: &[Index], row: usize) -> Option<usize> {
    indices.iter().try_fold(0, |at, index| {
        // SAFETY: the caller's contract.
        let value = unsafe { *index.at.add(row * index.step) };
        let value = usize::try_from(value).ok().filter(|value| *value < index.extent)?;
        Some(at + value * index.stride)
    })
}

/// Rows of `width` values from a table; zeroes for an index out of range.
pub(super) struct Gather {
    /// The table's first row.
    pub(super) table: Source,
    pub(super) indices: Vec<Index>,
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) out: *mut f32,
}

impl Gather {
    /// # Safety
    ///
    /// The addresses are valid, all threads are here, and no other code accesses what it writes.
    pub(super) unsafe fn run(&self, isa: Isa, w: &Worker<'_>) {
        if self.width == 0 {
            return;
        }
        for row in w.part(self.rows) {
            // SAFETY: the caller's contract; rows are divided among the threads.
            unsafe {
                let out = self.out.add(row * self.width);
                match place(&self.indices, row) {
                    Some(at) => self.table.fill(isa, at, 0, self.width, out),
                    None => out.write_bytes(0, self.width),
                }
            }
        }
    }
}

/// Rows written to a table, or added to a table of zeroes. Threads divide the columns, because several rows may
/// have the same index.
pub(super) struct Scatter {
    pub(super) indices: Vec<Index>,
    pub(super) values: Source,
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) table: *mut u8,
    pub(super) stored: Width,
    /// For scatter-add, the number of table rows to clear first.
    pub(super) adds: Option<usize>,
}

impl Scatter {
    /// # Safety
    ///
    /// As for [`Gather::run`]; `scratch` is valid for [`BLOCK`] values.
    pub(super) unsafe fn run(&self, isa: Isa, w: &Worker<'_>, scratch: *mut f32) {
        let columns = w.part(self.width);
        // SAFETY: the caller's contract; columns are divided among the threads.
        unsafe {
            for row in 0..self.adds.unwrap_or(0) {
                let at = row * self.width + columns.start;
                self.table.cast::<f32>().add(at).write_bytes(0, columns.len());
            }
            for row in 0..self.rows {
                let Some(at) = place(&self.indices, row) else { continue };
                for first in columns.clone().step_by(BLOCK) {
                    let n = BLOCK.min(columns.end - first);
                    self.values.fill(isa, 0, row * self.width + first, n, scratch);
                    self.put(isa, at + first, n, scratch);
                }
            }
        }
    }

    /// # Safety
    ///
    /// As for [`Scatter::run`].
    unsafe fn put(&self, isa: Isa, at: usize, n: usize, values: *const f32) {
        let words = self.table.cast::<f32>();
        // SAFETY: the caller's contract.
        unsafe {
            match self.stored {
                Width::Word if self.adds.is_some() => {
                    let to = words.add(at);
                    tensor::binary(isa, plan::Binary::Add, to, values, to, n);
                }
                Width::Word => words.add(at).copy_from_nonoverlapping(values, n),
                Width::Less(narrow) => {
                    tensor::narrow(isa, narrow, values, self.table.add(narrow.bytes() * at), n);
                }
            }
        }
    }
}

/// Indices of the greatest values of each row, best first.
pub(super) struct TopK {
    pub(super) x: Source,
    pub(super) rows: usize,
    pub(super) width: usize,
    pub(super) count: usize,
    pub(super) out: *mut u32,
}

impl TopK {
    /// # Safety
    ///
    /// As for [`Gather::run`]; `scratch` is valid for a row.
    pub(super) unsafe fn run(&self, isa: Isa, w: &Worker<'_>, scratch: *mut f32) {
        for row in w.part(self.rows) {
            // SAFETY: the caller's contract; rows are divided among the threads.
            unsafe {
                self.x.fill(isa, 0, row * self.width, self.width, scratch);
                let values = std::slice::from_raw_parts(scratch, self.width);
                let best = self.out.add(row * self.count);
                plan::top_k(values, std::slice::from_raw_parts_mut(best, self.count));
            }
        }
    }
}
