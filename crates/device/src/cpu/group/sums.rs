//! Accumulators of reductions, for rows and for columns.

use super::instruction::Reduction;
use plan::{Binary, Reduce};
use simd::{Isa, tensor};

/// Accumulator of one row.
pub(super) struct Sums {
    sum: f64,
    largest: f32,
    ints: i32,
}

impl Sums {
    pub(super) const fn new(r: &Reduction) -> Self {
        Self { sum: 0.0, largest: f32::NEG_INFINITY, ints: no_ints(r.op) }
    }

    /// # Safety
    ///
    /// `x` is valid for `n` values.
    pub(super) unsafe fn take(&mut self, r: &Reduction, isa: Isa, x: *const f32, n: usize) {
        // SAFETY: the caller's contract.
        unsafe {
            match (r.of_ints, r.op) {
                (true, op) => {
                    for i in 0..n {
                        self.ints = of_ints(op, self.ints, (*x.add(i)).to_bits() as i32);
                    }
                }
                (_, Reduce::Sum) => self.sum += tensor::sum(isa, x, n),
                (_, Reduce::Max) => {
                    self.largest = plan::maximum(self.largest, tensor::largest(isa, x, n));
                }
            }
        }
    }

    /// Returns the row's value, and resets the accumulator.
    pub(super) fn end(&mut self, r: &Reduction) -> f32 {
        let value = match (r.of_ints, r.op) {
            (true, _) => f32::from_bits(self.ints as u32),
            (_, Reduce::Sum) => self.sum as f32,
            (_, Reduce::Max) => self.largest,
        };
        *self = Self::new(r);
        value
    }
}

/// Accumulators of a block of columns, with 8 or 4 bytes each.
pub(super) struct ColumnSums {
    at: *mut f32,
    columns: usize,
}

impl ColumnSums {
    pub(super) fn new(r: &Reduction, at: *mut f32, columns: usize) -> Self {
        let sums = Self { at, columns };
        for i in 0..columns {
            // SAFETY: the scratch has space for a block of either size.
            unsafe {
                match (r.of_ints, r.op) {
                    (true, op) => *at.add(i) = f32::from_bits(no_ints(op) as u32),
                    (_, Reduce::Sum) => *at.cast::<f64>().add(i) = 0.0,
                    (_, Reduce::Max) => *at.add(i) = f32::NEG_INFINITY,
                }
            }
        }
        sums
    }

    /// # Safety
    ///
    /// `x` is valid for one value per column.
    pub(super) unsafe fn take(&mut self, r: &Reduction, isa: Isa, x: *const f32) {
        let (at, n) = (self.at, self.columns);
        // SAFETY: the caller's contract.
        unsafe {
            match (r.of_ints, r.op) {
                (true, op) => {
                    for i in 0..n {
                        let [sum, value] =
                            [*at.add(i), *x.add(i)].map(|value| value.to_bits() as i32);
                        *at.add(i) = f32::from_bits(of_ints(op, sum, value) as u32);
                    }
                }
                (_, Reduce::Sum) => tensor::add_to(isa, x, at.cast(), n),
                (_, Reduce::Max) => tensor::binary(isa, Binary::Max, at, x, at, n),
            }
        }
    }

    /// # Safety
    ///
    /// `out` is valid for one value per column.
    pub(super) unsafe fn end(&self, r: &Reduction, out: *mut f32) {
        let sums = !r.of_ints && r.op == Reduce::Sum;
        for i in 0..self.columns {
            // SAFETY: the caller's contract.
            unsafe {
                *out.add(i) =
                    if sums { *self.at.cast::<f64>().add(i) as f32 } else { *self.at.add(i) };
            }
        }
    }
}

const fn no_ints(op: Reduce) -> i32 {
    match op {
        Reduce::Sum => 0,
        Reduce::Max => i32::MIN,
    }
}

const fn of_ints(op: Reduce, a: i32, b: i32) -> i32 {
    match op {
        Reduce::Sum => Binary::Add.of_ints(a, b),
        Reduce::Max => Binary::Max.of_ints(a, b),
    }
}
