//! Sums of tensor cores, compared bit for bit with measurements on silicon and with an independent
//! model of one element.
//!
//! `tests/data/ga107.txt` has part of the measurements. With the folder `model_validation/A2` of
//! their source in `SASS_GA107`, all of them are tested.

use std::fs;
use std::path::Path;

use half::{bf16, f16};
use orind_testing::random::Random;
use sass::machine::Cache;

use crate::semantics::on_lanes;

#[derive(Clone, Copy, Debug, PartialEq)]
enum Format {
    Half,
    Brain,
    Tensor,
    Single,
}

use Format::{Brain, Half, Single, Tensor};

impl Format {
    /// The least exponent.
    fn least(self) -> i32 {
        if self == Half { -14 } else { -126 }
    }

    /// Its bits, in the low ones of a word.
    fn encode(self, value: f32) -> u32 {
        match self {
            Half => u32::from(f16::from_f32(value).to_bits()),
            Brain => u32::from(bf16::from_f32(value).to_bits()),
            Tensor => value.to_bits() & 0xffff_e000,
            Single => value.to_bits(),
        }
    }

    fn decode(self, bits: u32) -> f32 {
        match self {
            Half => f16::from_bits(bits as u16).to_f32(),
            Brain => bf16::from_bits(bits as u16).to_f32(),
            Tensor | Single => f32::from_bits(bits),
        }
    }
}

/// An instruction as the vendor's assembler writes it, with its registers.
struct Product {
    word: u128,
    element: Format,
    result: Format,
    depth: usize,
    /// Registers of destination, left and right matrix, and accumulator.
    registers: [u8; 4],
}

/// All that `tests/data/sm_87/ptx.txt` has, sparse ones left out.
const PRODUCTS: [Product; 8] = [
    product(0x0000_0006, 0x0000, 0x0404, [4, 4, 0, 6], Half, Half, 8),
    product(0x0000_1008, 0x0000, 0x0408, [8, 4, 0, 8], Half, Single, 8),
    product(0x0000_080a, 0x0008, 0x0404, [4, 4, 8, 10], Half, Half, 16),
    product(0x0000_180c, 0x0008, 0x0404, [4, 4, 8, 12], Half, Single, 16),
    product(0x0004_1008, 0x0000, 0x0408, [8, 4, 0, 8], Brain, Single, 8),
    product(0x0004_180c, 0x0008, 0x0404, [4, 4, 8, 12], Brain, Single, 16),
    product(0x0008_5008, 0x0000, 0x0408, [8, 4, 0, 8], Tensor, Single, 4),
    product(0x0008_100c, 0x0008, 0x0404, [4, 4, 8, 12], Tensor, Single, 8),
];

const fn product(
    high: u32,
    right: u16,
    left: u16,
    registers: [u8; 4],
    element: Format,
    result: Format,
    depth: usize,
) -> Product {
    let low = (right as u64) << 32 | (left as u64) << 16 | 0x723c;
    let word = (0x004f_de00_0000_0000 | high as u128) << 64 | low as u128;
    Product { word, element, result, depth, registers }
}

/// Matrices by rows: 16 of the left one, 8 of the right one, which are its columns, 16 of the accumulator.
struct Matrices {
    a: Vec<Vec<f32>>,
    b: Vec<Vec<f32>>,
    c: Vec<Vec<f32>>,
}

impl Product {
    /// The bits of the result, 16 rows of 8, with fragments as the PTX manual has them.
    #[expect(clippy::needless_range_loop, reason = "a lane is a place in many registers")]
    fn run(&self, m: &Matrices, cache: &Cache) -> Vec<Vec<u32>> {
        let pack = if self.element == Tensor { 1 } else { 2 };
        let [d, left, right, start] = self.registers;
        let mut rows = vec![[0; 32]; 256];
        let words = self.depth / 4 / pack;
        let narrow = usize::from(self.result == Half);
        let count = 4 >> narrow;
        for lane in 0..32 {
            let (group, member) = (lane / 4, lane % 4);
            let word = |row: &[f32], step: usize| {
                let inner = (member + 4 * step) * pack;
                let elements =
                    (0..pack).map(|at| self.element.encode(row[inner + at]) << (16 * at));
                elements.fold(0, |word, element| word | element)
            };
            for step in 0..words {
                for lower in 0..2 {
                    rows[usize::from(left) + 2 * step + lower][lane] =
                        word(&m.a[group + 8 * lower], step);
                }
                rows[usize::from(right) + step][lane] = word(&m.b[group], step);
            }
            for index in 0..4 {
                let bits = self.result.encode(m.c[group + index / 2 * 8][member * 2 + index % 2]);
                rows[usize::from(start) + (index >> narrow)][lane] |=
                    bits << (16 * (index % 2) * narrow);
            }
        }
        let loaded: Vec<u8> = (0..16).collect();
        let stored: Vec<u8> = (d..d + count).collect();
        let words = on_lanes(&[self.word], &rows, &loaded, &stored, &[0; 4], cache);
        let mut result = vec![vec![0; 8]; 16];
        for lane in 0..32 {
            for index in 0..4 {
                let word = words[32 * (index >> narrow) + lane];
                let bits = if narrow == 1 { word >> (16 * (index % 2)) & 0xffff } else { word };
                result[lane / 4 + index / 2 * 8][lane % 4 * 2 + index % 2] = bits;
            }
        }
        result
    }

    /// One element in exact double arithmetic: the kept part of each term is a whole number of
    /// units.
    fn model(&self, a: &[f32], b: &[f32], c: f32) -> f32 {
        let block = if self.element == Tensor { 4 } else { 8 };
        let floor = if self.result == Half { -20 } else { -132 };
        let least = self.element.least();
        let mut sum = c;
        for at in (0..self.depth).step_by(block) {
            let pairs = || a[at..at + block].iter().zip(&b[at..at + block]);
            let products = pairs().filter(|(x, y)| **x != 0.0 && **y != 0.0);
            let exponents =
                products.map(|(x, y)| exponent(*x).max(least) + exponent(*y).max(least));
            let start = if sum == 0.0 { floor } else { exponent(sum).max(-126) };
            let unit = 2f64.powi(exponents.fold(start.max(floor), i32::max) - 24);
            let mut units = (f64::from(sum) / unit).trunc();
            for (x, y) in pairs() {
                units += (f64::from(*x) * f64::from(*y) / unit).trunc();
            }
            sum = self.round(units * unit);
        }
        sum
    }

    /// Rounds halves to nearest even; truncates single precision.
    fn round(&self, value: f64) -> f32 {
        if value == 0.0 {
            return 0.0;
        }
        let exponent = (value.abs().to_bits() >> 52) as i32 - 1023;
        let (last, limit) = if self.result == Half { (10, 16) } else { (23, 128) };
        let step = 2f64.powi(exponent.max(self.result.least()) - last);
        let steps = value / step;
        let kept = step * if self.result == Half { steps.round_ties_even() } else { steps.trunc() };
        if kept.abs() >= 2f64.powi(limit) {
            f32::INFINITY.copysign(value as f32)
        } else {
            kept as f32
        }
    }
}

/// That of the first bit.
fn exponent(value: f32) -> i32 {
    (f64::from(value.abs()).to_bits() >> 52) as i32 - 1023
}

/// Numbers near each other, far from each other, denormals, zeros.
fn number(random: &mut Random, spread: usize, format: Format) -> f32 {
    let fraction = 1.0 + random.below(1 << 23) as f32 / (1 << 23) as f32;
    let sign = if random.below(2) == 0 { 1.0 } else { -1.0 };
    let value = match random.below(16) {
        0 => 0.0,
        1 => 2f32.powi(format.least() - random.below(6) as i32) * fraction,
        _ => 2f32.powi(random.below(2 * spread + 1) as i32 - spread as i32) * fraction,
    };
    format.decode(format.encode(sign * value))
}

#[test]
fn every_element_is_that_of_the_published_model() {
    let cache = Cache::default();
    let mut random = Random(71);
    for product in &PRODUCTS {
        let mut once = 0;
        for turn in 0..60 {
            // With the range of single precision, sums overflow and lose whole terms; with a small
            // range they lose bits.
            let widest = if product.element == Half { 7 } else { 63 };
            let spread = [0, 2, 5, widest][turn % 4];
            let of = |random: &mut Random, format| number(random, spread, format);
            let matrix = |random: &mut Random, rows, columns, format| -> Vec<Vec<f32>> {
                (0..rows).map(|_| (0..columns).map(|_| of(random, format)).collect()).collect()
            };
            let m = Matrices {
                a: matrix(&mut random, 16, product.depth, product.element),
                b: matrix(&mut random, 8, product.depth, product.element),
                c: matrix(&mut random, 16, 8, product.result),
            };
            let ours = product.run(&m, &cache);
            for (row, (a, c)) in m.a.iter().zip(&m.c).enumerate() {
                for (column, (b, c)) in m.b.iter().zip(c).enumerate() {
                    let expected = product.model(a, b, *c);
                    let ours = product.result.decode(ours[row][column]);
                    let exact: f64 =
                        a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum();
                    once += usize::from(
                        product.result.encode((exact + f64::from(*c)) as f32)
                            != product.result.encode(ours),
                    );
                    let what = || {
                        format!(
                            "{:?}, depth {}, turn {turn}: {a:?} {b:?} {c:e}",
                            product.element, product.depth
                        )
                    };
                    assert_eq!(
                        ours.to_bits(),
                        expected.to_bits(),
                        "{ours:e} {expected:e}, {}",
                        what()
                    );
                }
            }
        }
        let told = (product.element, product.depth);
        // A half rounds a sum to nearest that has lost bits far below.
        assert!(
            once > 20 || product.result == Half,
            "{told:?}: all but {once} are sums rounded once"
        );
    }
}

/// A row, a column, an accumulator and the result.
struct Measured {
    element: Format,
    result: Format,
    a: Vec<f32>,
    b: Vec<f32>,
    c: f32,
    d: f32,
}

fn words(text: &str, radix: u32) -> Vec<f32> {
    text.split_whitespace()
        .map(|word| f32::from_bits(u32::from_str_radix(word, radix).unwrap()))
        .collect()
}

fn format(name: &str) -> Format {
    match name {
        "fp16" => Half,
        "bf16" => Brain,
        "tf32" => Tensor,
        "fp32" => Single,
        _ => panic!("no format {name}"),
    }
}

fn excerpt() -> Vec<Measured> {
    let text = include_str!("../data/ga107.txt").lines().filter(|line| !line.starts_with('#'));
    let parse = |line: &str| {
        let (names, numbers) = line.split_at(10);
        let (element, result) = names.trim().split_once(' ').unwrap();
        let mut numbers = words(numbers, 16);
        let (d, c) = (numbers.pop().unwrap(), numbers.pop().unwrap());
        let b = numbers.split_off(numbers.len() / 2);
        Measured { element: format(element), result: format(result), a: numbers, b, c, d }
    };
    text.map(parse).collect()
}

fn all(folder: &Path) -> Vec<Measured> {
    let mut found = Vec::new();
    for (element, result, block) in
        [("fp16", "fp32", 8), ("fp16", "fp16", 8), ("bf16", "fp32", 8), ("tf32", "fp32", 4)]
    {
        let read = |matrix: &str, format: &str, radix| {
            let path = folder.join(element).join(format!("{matrix}_A2_{format}.txt"));
            words(&fs::read_to_string(&path).unwrap_or_else(|e| panic!("{path:?}: {e}")), radix)
        };
        let (a, b) = (read("a", element, 16), read("b", element, 16));
        let (c, d) = (read("c", "fp32", 2), read("d", result, 2));
        let rows = a.chunks(block).zip(b.chunks(block)).zip(c.iter().zip(&d));
        found.extend(rows.map(|((a, b), (c, d))| Measured {
            element: format(element),
            result: format(result),
            a: a.to_vec(),
            b: b.to_vec(),
            c: *c,
            d: *d,
        }));
    }
    found
}

#[test]
fn sums_are_those_that_silicon_gave() {
    let measured = match std::env::var_os("SASS_GA107") {
        Some(folder) => all(Path::new(&folder)),
        None => excerpt(),
    };
    assert!(measured.len() >= 32);
    let cache = Cache::default();
    let zeros = || Matrices {
        a: vec![vec![0.0; 16]; 16],
        b: vec![vec![0.0; 16]; 8],
        c: vec![vec![0.0; 8]; 16],
    };
    for product in &PRODUCTS {
        let of_it: Vec<&Measured> = measured
            .iter()
            .filter(|m| m.element == product.element && m.result == product.result)
            .collect();
        assert!(!of_it.is_empty());
        // Eight at a time, each a row and a column of its own; in the first block, then in the last.
        for first in (0..product.depth).step_by(of_it[0].a.len()) {
            for some in of_it.chunks(8) {
                let mut m = zeros();
                for (at, one) in some.iter().enumerate() {
                    m.a[at][first..][..one.a.len()].copy_from_slice(&one.a);
                    m.b[at][first..][..one.b.len()].copy_from_slice(&one.b);
                    m.c[at][at] = one.c;
                }
                let ours = product.run(&m, &cache);
                for (at, one) in some.iter().enumerate() {
                    let ours = product.result.decode(ours[at][at]);
                    assert_eq!(ours, one.d, "{:?} {:?} {:e}", one.a, one.b, one.c);
                }
            }
        }
    }
}

#[test]
fn non_finite_values_follow_ieee_754() {
    let cache = Cache::default();
    let (infinity, nan) = (f32::INFINITY, f32::NAN);
    for product in &PRODUCTS {
        for (x, y, z, expected) in [
            (infinity, 1.0, 1.0, infinity),
            (infinity, -2.0, 1.0, -infinity),
            (infinity, 0.0, 1.0, nan),
            (infinity, 1.0, -infinity, nan),
            (1.0, nan, 1.0, nan),
            (1.0, 1.0, infinity, infinity),
            (0.0, 0.0, nan, nan),
            (-0.0, 0.0, -0.0, 0.0),
        ] {
            let mut m = Matrices {
                a: vec![vec![0.0; 16]; 16],
                b: vec![vec![0.0; 16]; 8],
                c: vec![vec![0.0; 8]; 16],
            };
            (m.a[3][2], m.b[5][2], m.c[3][5]) = (x, y, z);
            let ours = product.run(&m, &cache)[3][5];
            let expected = match (product.result, expected.is_nan()) {
                (Half, true) => 0x7fff,
                (_, true) => 0x7fff_ffff,
                (format, false) => format.encode(expected),
            };
            assert_eq!(ours, expected, "{:?}: {x} {y} {z}", product.element);
        }
    }
}
