//! Steps that several kernel calls apply to a row: reading its index, normalising it, rotating its heads.

use super::operand::Operand;
use plan::{Norm, NormKind, RopeStyle};
use simd::{Isa, norm, rope};

/// A token id, slot or position from a mailbox, if it is in range.
pub(super) fn index(value: i32, extent: usize) -> Option<usize> {
    usize::try_from(value).ok().filter(|&i| i < extent)
}

/// Normalises a row of `n` values.
///
/// # Safety
///
/// As for [`norm::rms_norm`].
pub(super) unsafe fn normalise(
    isa: Isa,
    norm: &Norm<Operand>,
    mut x: *const f32,
    out: *mut f32,
    n: usize,
) {
    // SAFETY: the caller's contract.
    unsafe {
        if norm.kind == NormKind::Layer {
            norm::centre(isa, x, out, n);
            x = out;
        }
        norm::rms_norm(isa, x, norm.weight.f32(), out, n, norm.eps.get());
        if let Some(bias) = norm.bias {
            norm::add(isa, out, bias.f32(), out, n);
        }
    }
}

/// Rotates one head of a row in place.
///
/// # Safety
///
/// The table has the row, and the head as many values as it rotates.
pub(super) unsafe fn rotate(
    isa: Isa,
    table: &Operand,
    style: RopeStyle,
    row: usize,
    head: *mut f32,
) {
    let half = table.last;
    // SAFETY: the caller's contract.
    unsafe {
        let cos = table.f32().add(2 * row * half);
        rope::rope(isa, head, 2 * half, cos, cos.add(half), style);
    }
}
