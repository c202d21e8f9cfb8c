//! Tensor cores: matrix products whose fragments are spread over the registers of a warp.
//!
//! The layouts are those of `mma.m16n8k*` and `mma.m8n8k*` in the PTX manual. Integers are exact;
//! [`super::tensor`] models the rounding of floating-point sums.

use super::lanes::{LANES, Lanes};
use super::number::{binary16, bits, half_to_single};
use super::tensor::{COLUMNS, Factor, ROWS, Sums};
use super::wide::{double_bits, fused};
use super::{add_integers, add_products};
use crate::program::op::{Element, Integer, MatrixInteger, Round};

/// Row and column of an accumulator element.
fn place(lane: usize, index: usize) -> (usize, usize) {
    (lane / 4 + 8 * (index / 2), lane % 4 * 2 + index % 2)
}

/// Row of a fragment's word and its first inner position; `pack` elements share a word.
fn left_place(lane: usize, word: usize, pack: usize) -> (usize, usize) {
    (lane / 4 + 8 * (word % 2), lane % 4 * pack + 4 * pack * (word / 2))
}

fn right_place(lane: usize, word: usize, pack: usize) -> (usize, usize) {
    (lane % 4 * pack + 4 * pack * word, lane / 4)
}

struct Fragments<'a> {
    left: &'a [Lanes],
    right: &'a [Lanes],
    /// Number of elements in a word.
    pack: usize,
    depth: usize,
}

impl Fragments<'_> {
    /// Unpacks both matrices, row by row; a row of the right one is one inner position.
    fn unpack<T: Copy + Default>(
        &self,
        left: impl Fn(u32, usize) -> T,
        right: impl Fn(u32, usize) -> T,
    ) -> (Vec<T>, Vec<T>) {
        let mut a = vec![T::default(); ROWS * self.depth];
        let mut b = vec![T::default(); COLUMNS * self.depth];
        for (word, values) in self.left.iter().enumerate() {
            for (lane, &value) in values.iter().enumerate() {
                let (row, inner) = left_place(lane, word, self.pack);
                let elements = &mut a[row * self.depth + inner..][..self.pack];
                for (index, element) in elements.iter_mut().enumerate() {
                    *element = left(value, index);
                }
            }
        }
        for (word, values) in self.right.iter().enumerate() {
            for (lane, &value) in values.iter().enumerate() {
                let (inner, column) = right_place(lane, word, self.pack);
                let elements = b[inner * COLUMNS + column..].iter_mut().step_by(COLUMNS);
                for (index, element) in elements.take(self.pack).enumerate() {
                    *element = right(value, index);
                }
            }
        }
        (a, b)
    }
}

fn factor(element: Element, word: u32, index: usize) -> Factor {
    let half = (word >> (16 * index)) as u16;
    match element {
        Element::Half => Factor::half(half, half_to_single(half)),
        Element::Brain => Factor::single(f32::from_bits(u32::from(half) << 16)),
        // The low 13 bits are ignored.
        Element::Tensor => Factor::single(f32::from_bits(word & 0xffff_e000)),
    }
}

/// Floating-point matrix product plus accumulator, in blocks of eight products (four for tf32).
pub(crate) fn float(
    element: Element,
    depth: usize,
    half: bool,
    left: &[Lanes],
    right: &[Lanes],
    sum: &[Lanes],
) -> [Lanes; 4] {
    let (pack, block) = if element == Element::Tensor { (1, 4) } else { (2, 8) };
    let fragments = Fragments { left, right, pack, depth };
    let read = |word, index| factor(element, word, index);
    let (a, b) = fragments.unpack(read, read);
    let places = || (0..LANES).flat_map(|lane| (0..4).map(move |index| (lane, index)));
    let mut sums = [[0.0; COLUMNS]; ROWS];
    for (lane, index) in places() {
        let (row, column) = place(lane, index);
        sums[row][column] = if half {
            half_to_single((sum[index / 2][lane] >> (16 * (index % 2))) as u16)
        } else {
            f32::from_bits(sum[index][lane])
        };
    }
    add_products(Sums { depth, block, half }, &a, &b, &mut sums);
    let mut result = [[0; LANES]; 4];
    for (lane, index) in places() {
        let (row, column) = place(lane, index);
        let sum = sums[row][column];
        if half {
            result[index / 2][lane] |= u32::from(binary16(f64::from(sum))) << (16 * (index % 2));
        } else {
            result[index][lane] = bits(sum);
        }
    }
    result
}

/// Returns a function that extracts an element of an integer type from a word.
#[inline(always)]
fn unpack_integer(kind: Integer) -> impl Fn(u32, usize) -> i32 {
    let bits = u32::from(kind.bits);
    let mask = !0 >> (32 - bits);
    let sign = if kind.signed { 1 << (bits - 1) } else { 0 };
    move |word, index| {
        let value = word.wrapping_shr(bits.wrapping_mul(index as u32)) & mask;
        (value ^ sign).wrapping_sub(sign).cast_signed()
    }
}

/// Integer matrix product plus accumulator; with eight rows, only the first two result words are
/// used.
pub(crate) fn integer(
    product: &MatrixInteger,
    left: &[Lanes],
    right: &[Lanes],
    sum: &[Lanes],
) -> [Lanes; 4] {
    let MatrixInteger { kinds, saturate, differ, .. } = *product;
    let depth = usize::from(product.depth);
    let pack = 32 / usize::from(kinds[0].bits);
    let fragments = Fragments { left, right, pack, depth };
    let (a, b) = fragments.unpack(unpack_integer(kinds[0]), unpack_integer(kinds[1]));
    let mut products = [[0; COLUMNS]; ROWS];
    add_integers(depth, differ, &a, &b, &mut products);
    let mut result = [[0; LANES]; 4];
    for lane in 0..LANES {
        for index in 0..sum.len() {
            let (row, column) = place(lane, index);
            let total = i64::from(sum[index][lane] as i32) + i64::from(products[row][column]);
            result[index][lane] = if saturate {
                total.clamp(i64::from(i32::MIN), i64::from(i32::MAX)) as u32
            } else {
                total as u32
            };
        }
    }
    result
}

/// Product of an 8x4 and a 4x8 matrix of doubles plus accumulator, as a sequence of fused
/// multiply-adds. The order in which hardware adds is undocumented.
pub(crate) fn double(
    left: &[u64; LANES],
    right: &[u64; LANES],
    sum: [&[u64; LANES]; 2],
    round: Round,
) -> [[u64; LANES]; 2] {
    let mut result = [[0; LANES]; 2];
    for lane in 0..LANES {
        for index in 0..2 {
            let (row, column) = place(lane, index);
            let start = f64::from_bits(sum[index][lane]);
            let total = (0..4).fold(start, |total, inner| {
                let (x, y) = (left[4 * row + inner], right[4 * column + inner]);
                fused(f64::from_bits(x), f64::from_bits(y), total, round)
            });
            result[index][lane] = double_bits(total);
        }
    }
    result
}

/// Transposes an 8x8 matrix of 16-bit elements.
pub(crate) fn transpose(a: &Lanes) -> Lanes {
    let element =
        |row: usize, column: usize| a[4 * row + column / 2] >> (16 * (column % 2)) & 0xffff;
    std::array::from_fn(|lane| {
        let (row, column) = (lane / 4, lane % 4 * 2);
        element(column, row) | element(column + 1, row) << 16
    })
}
