//! Softmax of rows after their maximum is known: two groups in one pass, each row while it is in the first-level
//! cache. Results have the same bits as the groups'.

use std::ops::Range;

use super::instruction::{Action, BLOCK, Instruction, Kernel, Location};
use plan::{Binary, Reduce, Unary};
use simd::{Isa, norm, tensor};

/// `exp(x - max) / sum` of rows.
pub(in crate::cpu) struct Softmax {
    x: *const f32,
    /// Per row, the value to subtract, and the destination of the sum's reciprocal.
    max: *const f32,
    share: *mut f32,
    out: *mut f32,
}

/// Place of an operand, and the address of one value per row of `length` elements, if the instruction reads both.
fn with_row(load: &Instruction, op: &Instruction, length: usize) -> Option<(*mut f32, *const f32)> {
    let Action::Load(source) = &load.action else { return None };
    let [Location::At(x), row] = op.reads[..] else { return None };
    Some((x, source.by_row(length).filter(|_| row == load.out)?))
}

impl Softmax {
    /// Combines two kernels, if the first one sums up exponentials and the second one divides them by the sum.
    pub(in crate::cpu) fn of([sum, share]: [&Kernel; 2]) -> Option<Self> {
        let reduction = sum.reduction.as_ref()?;
        let ([load, sub, exp], [recip]) = (&sum.body[..], &sum.tail[..]) else { return None };
        let ([by, mul], None) = (&share.body[..], &share.reduction) else { return None };
        let (x, max) = with_row(load, sub, reduction.length)?;
        let (result, shares) = with_row(by, mul, reduction.length)?;
        let exponentials = matches!(sub.action, Action::Binary(Binary::Sub))
            && matches!(exp.action, Action::Unary(Unary::Exp))
            && exp.reads == [sub.out]
            && exp.out == Location::At(result);
        let sums = reduction.op == Reduce::Sum
            && !reduction.of_ints
            && reduction.inner == 1
            && reduction.x == exp.out
            && matches!(recip.action, Action::Unary(Unary::Recip))
            && recip.reads == [reduction.out]
            && recip.out == Location::At(shares.cast_mut());
        let divides = matches!(mul.action, Action::Binary(Binary::Mul)) && mul.out == exp.out;
        (exponentials && sums && divides).then_some(Self {
            x,
            max,
            share: shares.cast_mut(),
            out: result,
        })
    }

    /// Computes some rows of `length` elements.
    ///
    /// # Safety
    ///
    /// As for [`Kernel::rows`].
    pub(in crate::cpu) unsafe fn rows(&self, isa: Isa, rows: Range<usize>, length: usize) {
        for row in rows {
            // SAFETY: the caller's contract.
            unsafe {
                let (x, out) = (self.x.add(row * length), self.out.add(row * length));
                let max = *self.max.add(row);
                let mut sum = 0.0;
                for at in (0..length).step_by(BLOCK) {
                    let n = BLOCK.min(length - at);
                    sum += tensor::exponentials(isa, x.add(at), max, out.add(at), n);
                }
                let share = 1.0 / (sum as f32);
                *self.share.add(row) = share;
                norm::scale(isa, share, out, out, length);
            }
        }
    }
}
