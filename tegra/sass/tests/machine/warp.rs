//! Operations across the lanes of a warp: matrix products in the layouts of the PTX manual, element
//! by element; transposed matrices; reductions by masks; barriers in registers.
//!
//! Every kernel runs with all checks on; the sources lie in `tests/data/kernels/warp.cu`.

use orind_testing::random::Random;

use crate::support::Arg::Pointer;
use crate::support::{Arena, Call, kernel, words};

/// Elements of a type: their bits, and what they are as numbers.
#[derive(Clone, Copy)]
struct Kind {
    bits: usize,
    signed: bool,
}

impl Kind {
    /// Element `index` of a lane that has so many registers.
    fn element(self, fragment: &[u32], registers: usize, lane: usize, index: usize) -> i64 {
        let (word, part) = (index * self.bits / 32, index * self.bits % 32);
        let raw = i64::from(fragment[lane * registers + word] >> part) & ((1 << self.bits) - 1);
        if self.signed && raw >> (self.bits - 1) == 1 { raw - (1 << self.bits) } else { raw }
    }
}

/// A product as the manual has it: element `i` of a lane's left fragment lies in row `lane / 4`, or
/// eight below, and so on.
struct Product {
    name: &'static str,
    rows: usize,
    depth: usize,
    left: Kind,
    right: Kind,
    /// Combination of two elements.
    term: fn(i64, i64) -> i64,
}

impl Product {
    fn check(&self, random: &mut Random) {
        let Self { name, rows, depth, left, right, term } = *self;
        // Registers of a lane, and elements of one.
        let column = depth * left.bits / 128;
        let (a_words, b_words, pack) = (column * rows / 8, column, 32 / left.bits);
        let (a, b) = (words(random, 32 * a_words), words(random, 32 * b_words));
        let c = words(random, 32 * rows / 4);
        let mut memory = Arena::default();
        let d = memory.words(&c);
        let args = [Pointer(d), Pointer(memory.words(&a)), Pointer(memory.words(&b))];
        Call::new(&kernel("warp", name), 1, 32).run(&memory, &args);
        let ours = memory.read(d);

        let mut x = vec![vec![0; depth]; rows];
        let mut y = vec![vec![0; depth]; 8];
        for lane in 0..32 {
            let (group, member) = (lane / 4, lane % 4);
            for index in 0..a_words * pack {
                let (word, part) = (index / pack, index % pack);
                // Every second word is eight rows below.
                let (lower, further) = if rows == 8 { (0, word) } else { (word % 2, word / 2) };
                let inner = member * pack + part + further * 4 * pack;
                x[group + 8 * lower][inner] = left.element(&a, a_words, lane, index);
            }
            for index in 0..b_words * pack {
                let inner = member * pack + index % pack + index / pack * 4 * pack;
                y[group][inner] = right.element(&b, b_words, lane, index);
            }
        }
        for lane in 0..32 {
            for index in 0..rows / 4 {
                let (row, column) = (lane / 4 + 8 * (index / 2), lane % 4 * 2 + index % 2);
                let sum: i64 = (0..depth).map(|k| term(x[row][k], y[column][k])).sum();
                let at = lane * rows / 4 + index;
                let expected = c[at].wrapping_add(sum as u32);
                assert_eq!(ours[at], expected, "{name}: row {row}, column {column}");
            }
        }
    }
}

#[test]
fn products_of_small_integers_and_of_bits() {
    let kind = |bits, signed| Kind { bits, signed };
    let times = |x, y| x * y;
    let (and, xor) = (|x, y| x & y, |x, y| x ^ y);
    let (bit, nibble) = (kind(1, false), kind(4, true));
    let mut random = Random(5);
    for (name, rows, depth, left, right, term) in [
        ("bytes_8", 8, 16, kind(8, true), kind(8, false), times as fn(i64, i64) -> i64),
        ("nibbles_8", 8, 32, kind(4, false), nibble, times),
        ("nibbles_16", 16, 32, nibble, nibble, times),
        ("bits_8", 8, 128, bit, bit, and),
        ("bits_16", 16, 128, bit, bit, xor),
        ("bits_256", 16, 256, bit, bit, xor),
    ] {
        Product { name, rows, depth, left, right, term }.check(&mut random);
    }
}

#[test]
fn products_of_doubles() {
    let mut random = Random(6);
    // Small integers and a quarter: the sums are exact in any order.
    let mut doubles = |count: usize| -> Vec<f64> {
        (0..count).map(|_| random.below(1000) as f64 - 500.25).collect()
    };
    let (a, b, c) = (doubles(32), doubles(32), doubles(64));
    let bits = |values: &[f64]| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    let mut memory = Arena::default();
    let d = memory.longs(&bits(&c));
    let args = [Pointer(d), Pointer(memory.longs(&bits(&a))), Pointer(memory.longs(&bits(&b)))];
    Call::new(&kernel("warp", "doubles"), 1, 32).run(&memory, &args);
    let ours = memory.read_longs(d);
    for row in 0..8 {
        for column in 0..8 {
            let sum: f64 = (0..4).map(|k| a[4 * row + k] * b[4 * column + k]).sum();
            let at = 2 * (4 * row + column / 2) + column % 2;
            assert_eq!(f64::from_bits(ours[at]), c[at] + sum, "row {row}, column {column}");
        }
    }
}

#[test]
fn a_matrix_is_transposed_across_the_lanes() {
    let a = words(&mut Random(7), 32);
    let mut memory = Arena::default();
    let d = memory.zeros(32);
    let args = [Pointer(d), Pointer(memory.words(&a))];
    Call::new(&kernel("warp", "transposed"), 1, 32).run(&memory, &args);
    let element = |words: &[u32], row: usize, column: usize| {
        (words[row * 4 + column / 2] >> (column % 2 * 16)) as u16
    };
    let ours = memory.read(d);
    for row in 0..8 {
        for column in 0..8 {
            assert_eq!(element(&ours, row, column), element(&a, column, row), "{row}, {column}");
        }
    }
}

#[test]
fn lanes_reduce_with_those_of_their_own_mask() {
    let a = words(&mut Random(8), 32);
    for masks in [vec![!0; 32], (0..32).map(|lane| 0x1111_1111 << (lane % 4)).collect::<Vec<_>>()] {
        let mut memory = Arena::default();
        let d = memory.zeros(32);
        let args = [Pointer(d), Pointer(memory.words(&a)), Pointer(memory.words(&masks))];
        Call::new(&kernel("warp", "sums_by_mask"), 1, 32).run(&memory, &args);
        for (lane, ours) in memory.read(d).into_iter().enumerate() {
            let mine = (0..32).filter(|other| masks[lane] >> other & 1 == 1);
            let expected = mine.fold(0u32, |sum, other| sum.wrapping_add(a[other]));
            assert_eq!(ours, expected, "lane {lane} of {:#x}", masks[lane]);
        }
    }
}

#[test]
fn barriers_take_their_number_and_count_from_registers() {
    let (id, count) = (5, 64);
    for seed in 0..5 {
        let mut memory = Arena::default();
        let d = memory.zeros(96);
        let args = [Pointer(d), Pointer(memory.words(&[id, count]))];
        let kernel = kernel("warp", "barrier_in_registers");
        let mut call = Call::new(&kernel, 1, 96);
        call.options.seed = seed;
        call.run(&memory, &args);
        let thirds = (0..count).filter(|thread| thread % 3 != 0).count() as u32;
        let all = thirds + 0x100 * (count / 2) + 0x1_0000 * (count / 4 * 3);
        let ours = memory.read(d);
        assert_eq!(ours[..count as usize], vec![all; count as usize]);
        assert_eq!(ours[count as usize..], [0; 32]);
    }
}
