//! Arithmetic of operations: values only; no memory, control flow or warps.
//!
//! Each operation is written for one lane and mapped over `N` lanes: 32 for registers, 1 for
//! uniform registers. On x86-64 the loops are compiled a second time with AVX2 and FMA.

pub(crate) mod compare;
pub(crate) mod convert;
pub(crate) mod float;
mod integer;
mod lanes;
pub(crate) mod matrix;
pub(crate) mod number;
mod packed;
mod tensor;
pub(crate) mod unset;
pub(crate) mod wide;

pub(crate) use integer::logic_word;
pub(crate) use lanes::{LANES, Lanes};

use crate::program::op::{Lane, Relation};

/// Applies an operation to lanes; `p` is the condition as a lane mask.
#[inline(always)]
fn apply<const N: usize>(lane: &Lane, sources: [&[u32; N]; 3], p: u32) -> [u32; N] {
    match lane {
        Lane::FloatAdd(_)
        | Lane::FloatMultiply(_)
        | Lane::FloatFused(_)
        | Lane::FloatScaled { .. }
        | Lane::FloatCompare { .. }
        | Lane::FloatMinimum { .. }
        | Lane::Function(_)
        | Lane::HalfFunction(_) => float::apply(lane, sources, p),
        Lane::PackedAdd(_)
        | Lane::PackedMultiply(_)
        | Lane::PackedFused(_)
        | Lane::PackedMinimum { .. }
        | Lane::PackedAddWide { .. }
        | Lane::PackedCompare { .. }
        | Lane::Pack { .. } => packed::apply(lane, sources, p),
        Lane::ToInteger { .. } | Lane::FromInteger { .. } | Lane::RoundToInteger { .. } => {
            convert::apply(lane, sources[0])
        }
        _ => integer::apply(lane, sources, p),
    }
}

#[inline(always)]
fn repeated(words: &[u64; LANES]) -> [u32; 2] {
    let (mut near, mut far) = (0, 0);
    for lane in 1..LANES {
        near |= u32::from(words[lane] == words[lane - 1]) << lane;
    }
    for lane in 8..LANES {
        far |= u32::from(words[lane] == words[lane - 8]) << lane;
    }
    [near, far]
}

/// Applies an operation to registers and writes the result register directly.
#[inline(always)]
fn apply_there(registers: &mut [Lanes; 256], lane: &Lane, d: u8, sources: [u8; 3], p: u32) {
    let sources = sources.map(|index| &registers[usize::from(index)]);
    // Most instructions take the first branch. A common call would need a temporary in memory.
    registers[usize::from(d)] = match float::plainly_fused(lane, sources) {
        Some(values) => values,
        None => apply(lane, sources, p),
    };
}

/// Applies an operation to uniform registers.
pub(crate) fn apply_one(lane: &Lane, a: u32, b: u32, c: u32, p: bool) -> u32 {
    apply(lane, [&[a], &[b], &[c]], u32::from(p))[0]
}

/// Declares functions over the lanes of a warp, compiled twice: portably and, on x86-64, with AVX2
/// and FMA.
macro_rules! vectorised {
    ($($(#[$doc:meta])* $name:ident, $wide:ident = $body:path: ($($arg:ident: $kind:ty),*) -> $result:ty;)*) => {
        $(
            $(#[$doc])*
            #[inline]
            pub(crate) fn $name($($arg: $kind),*) -> $result {
                #[cfg(target_arch = "x86_64")]
                if std::is_x86_feature_detected!("avx2") && std::is_x86_feature_detected!("fma") {
                    // SAFETY: the function requires only the two CPU features, which were detected
                    // above.
                    return unsafe { $wide($($arg),*) };
                }
                $body($($arg),*)
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn $wide($($arg: $kind),*) -> $result {
                $body($($arg),*)
            }
        )*
    };
}

vectorised! {
    /// Applies an operation to the lanes of a warp.
    apply_all, apply_avx2 = apply: (lane: &Lane, sources: [&Lanes; 3], p: u32) -> Lanes;
    /// Applies an operation to the registers of a warp; `p` is the condition as a lane mask.
    apply_registers, apply_registers_avx2 = apply_there:
        (registers: &mut [Lanes; 256], lane: &Lane, d: u8, sources: [u8; 3], p: u32) -> ();
    /// Lanes whose word equals that of the previous lane, and of the lane eight before.
    repeats, repeats_avx2 = repeated: (words: &[u64; LANES]) -> [u32; 2];
    /// Lanes in which a relation holds between integers.
    compare_integers, compare_integers_avx2 = compare::integers:
        (a: &Lanes, b: &Lanes, relation: Relation, signed: bool) -> u32;
    /// Lanes in which a relation holds between floats.
    compare_floats, compare_floats_avx2 = compare::floats:
        (a: &Lanes, b: &Lanes, relation: Relation) -> u32;
    /// Sums of three words and carries: words, lanes with one carry, lanes with two.
    add_carries, add_carries_avx2 = integer::add_carries:
        (a: &Lanes, b: &Lanes, c: &Lanes, extra: u32, carries: [u32; 2]) -> (Lanes, u32, u32);
    /// Adds matrix products with the rounding of a tensor core.
    add_products, add_products_avx2 = tensor::add:
        (sums: tensor::Sums, rows: &[tensor::Factor], columns: &[tensor::Factor],
         results: &mut [[f32; tensor::COLUMNS]; tensor::ROWS]) -> ();
    /// Adds products of integer matrices.
    add_integers, add_integers_avx2 = tensor::integer_products:
        (depth: usize, differ: bool, rows: &[i32], columns: &[i32],
         results: &mut [[i32; tensor::COLUMNS]; tensor::ROWS]) -> ();
    /// A 64-bit product plus a 64-bit addend: both words of the sum.
    multiply_add, multiply_add_avx2 = wide::multiply_add:
        (a: &Lanes, b: &Lanes, c: [&Lanes; 2], signed: bool) -> [Lanes; 2];
}
