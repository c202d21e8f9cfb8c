//! Entry point of matrix products: checks, and the choice of a kernel by type, rows and instruction set.

use std::ops::Range;

use super::gemm::gemm_in;
use super::gemv::gemv_in;
use super::plain::plain_in;
use super::product::{Activations, Product, Q8Activations};
use super::tiled::{HALF_TILE, WHOLE_TILE, tiled_in};
use crate::activations::{F32Block, TILE};
use crate::format::{self, Plain, Quant};
use crate::isa::{Isa, dispatch};
use crate::vector::LANES;
use plan::DType;

/// Computes a range of output columns.
///
/// # Safety
///
/// `x` holds [`blocks`](crate::activations::blocks)`(k) * of` blocks in each residual plane, `rows` are some of
/// `of`; `out` (and `residual`) are valid for column range and rows as described, and no other thread accesses
/// those elements meanwhile.
///
/// # Panics
///
/// The weights do not have the layout's size. Groups or rows are out of range. The rows begin inside a tile. Groups
/// split interleaved ones. The instruction set has no kernels for the packing. The loops' tile does not divide
/// [`TILE`]. The activations are not of the kind that the weight type needs.
pub unsafe fn matmul(isa: Isa, p: &Product<'_>) {
    assert_eq!(p.weights.len(), p.layout.bytes(), "packed size of the weights");
    assert!(p.groups.end <= p.layout.groups(), "row groups of the weights");
    assert!(p.rows.end <= p.of && p.rows.start.is_multiple_of(TILE), "rows of the activations");
    assert!(p.loops.tile > 0 && TILE.is_multiple_of(p.loops.tile), "{:?}", p.loops);
    let (width, whole) = (p.layout.interleave(), p.layout.groups());
    assert!(isa.packings().contains(&(width * LANES)), "{width} interleaved row groups");
    assert!(
        p.groups.start.is_multiple_of(width),
        "{width} interleaved row groups from {:?}",
        p.groups
    );
    assert!(p.groups.end.is_multiple_of(width) || p.groups.end == whole, "{:?}", p.groups);
    if p.rows.is_empty() {
        return;
    }
    // SAFETY: the caller's contract, and the checks above.
    unsafe {
        use DType::{
            IQ1_M, IQ1_S, IQ2_S, IQ2_XS, IQ2_XXS, IQ3_S, IQ3_XXS, IQ4_NL, IQ4_XS, MXFP4, Q2_K,
            Q3_K, Q4_0, Q4_1, Q4_K, Q5_0, Q5_1, Q5_K, Q6_K, Q8_0, TQ1_0, TQ2_0,
        };
        match (p.layout.dtype(), p.x) {
            (Q8_0, Activations::Q8(x)) => quantised::<format::Q8_0>(isa, p, x),
            (Q4_0, Activations::Q8(x)) => quantised::<format::Q4_0>(isa, p, x),
            (Q4_1, Activations::Q8(x)) => quantised::<format::Q4_1>(isa, p, x),
            (Q5_0, Activations::Q8(x)) => quantised::<format::Q5_0>(isa, p, x),
            (Q5_1, Activations::Q8(x)) => quantised::<format::Q5_1>(isa, p, x),
            (IQ4_NL, Activations::Q8(x)) => quantised::<format::IQ4_NL>(isa, p, x),
            (MXFP4, Activations::Q8(x)) => quantised::<format::MXFP4>(isa, p, x),
            (Q2_K, Activations::Q8(x)) => quantised::<format::Q2_K>(isa, p, x),
            (Q3_K, Activations::Q8(x)) => quantised::<format::Q3_K>(isa, p, x),
            (Q4_K, Activations::Q8(x)) => quantised::<format::Q4_K>(isa, p, x),
            (Q5_K, Activations::Q8(x)) => quantised::<format::Q5_K>(isa, p, x),
            (Q6_K, Activations::Q8(x)) => quantised::<format::Q6_K>(isa, p, x),
            (IQ4_XS, Activations::Q8(x)) => quantised::<format::IQ4_XS>(isa, p, x),
            (IQ3_S, Activations::Q8(x)) => quantised::<format::IQ3_S>(isa, p, x),
            (IQ3_XXS, Activations::Q8(x)) => quantised::<format::IQ3_XXS>(isa, p, x),
            // Packed, these three types have the same format.
            (IQ2_S | IQ2_XS | IQ2_XXS, Activations::Q8(x)) => {
                quantised::<format::IQ2_S>(isa, p, x);
            }
            (IQ1_S | IQ1_M, Activations::Q8(x)) => quantised::<format::IQ1_S>(isa, p, x),
            (TQ1_0 | TQ2_0, Activations::Q8(x)) => quantised::<format::TQ2_0>(isa, p, x),
            (DType::F32, Activations::F32(x)) => plain::<format::F32>(isa, p, x),
            (DType::F16, Activations::F32(x)) => plain::<format::F16>(isa, p, x),
            (DType::BF16, Activations::F32(x)) => plain::<format::BF16>(isa, p, x),
            (dtype, x) => panic!("{x:?} for weights of {dtype}"),
        }
    }
}

// One function per loop shape: compile time grows with the square of a function's size.
dispatch! {
    /// One row times the `G` interleaved row groups from `first`, with `P` residual planes.
    ///
    /// # Safety
    ///
    /// As for [`matmul`]; row groups and row are the product's.
    unsafe fn gemv[Q: Quant, const G: usize, const P: usize](p: &Product<'_>, x: Q8Activations, first: usize, row: usize) = gemv_in<Q, G, P>;

    /// Up to [`TILE`] rows times the `G` interleaved row groups from `first`.
    ///
    /// # Safety
    ///
    /// As for [`matmul`]; row groups and rows are the product's.
    unsafe fn gemm[Q: Quant, const G: usize](p: &Product<'_>, x: Q8Activations, first: usize, rows: Range<usize>) = gemm_in<Q, G>;

    /// At least `R` rows, up to [`TILE`], times all row groups of the product, on a matrix unit.
    ///
    /// # Safety
    ///
    /// As for [`matmul`]; the rows are the product's.
    unsafe fn tiled[Q: Quant, const R: usize](p: &Product<'_>, x: Q8Activations, rows: Range<usize>) = tiled_in<Q, R>;

    /// A whole product with weights that are not quantised.
    ///
    /// # Safety
    ///
    /// As for [`matmul`].
    unsafe fn plain[P: Plain](p: &Product<'_>, x: *const F32Block) = plain_in<P>;
}

/// Most row groups that are interleaved.
const PAIRS: usize = 2;

/// A whole product with quantised weights.
///
/// # Safety
///
/// As for [`matmul`].
unsafe fn quantised<Q: Quant>(isa: Isa, p: &Product<'_>, x: Q8Activations) {
    for first in p.rows.clone().step_by(p.loops.tile) {
        let rows = first..p.rows.end.min(first + p.loops.tile);
        if isa.tiles && rows.len() >= HALF_TILE {
            // SAFETY: the caller's contract.
            unsafe {
                match rows.len() {
                    ..WHOLE_TILE => tiled::<Q, HALF_TILE>(isa, p, x, rows),
                    _ => tiled::<Q, WHOLE_TILE>(isa, p, x, rows),
                }
            }
            continue;
        }
        let mut group = p.groups.start;
        while group < p.groups.end {
            let pair = p.layout.interleave() == PAIRS && group + 1 < p.groups.end;
            // SAFETY: the caller's contract.
            unsafe {
                match (pair, rows.len(), x.used_planes) {
                    (false, 1, 1) => gemv::<Q, 1, 1>(isa, p, x, group, first),
                    (false, 1, _) => gemv::<Q, 1, 2>(isa, p, x, group, first),
                    (false, ..) => gemm::<Q, 1>(isa, p, x, group, rows.clone()),
                    (true, 1, 1) => gemv::<Q, PAIRS, 1>(isa, p, x, group, first),
                    (true, 1, _) => gemv::<Q, PAIRS, 2>(isa, p, x, group, first),
                    (true, ..) => gemm::<Q, PAIRS>(isa, p, x, group, rows.clone()),
                }
            }
            group += if pair { PAIRS } else { 1 };
        }
    }
}
