//! Experiment that checks the output of kernels, one for each class of instructions that models
//! need.
//!
//! Output words are compared with values computed here without a GPU. The profile also has their
//! hash, so that two machines can be compared bit for bit where the manual leaves bits undefined.

use std::f32::consts::FRAC_2_PI;

use orind_kernels::catalogue::launch::{self, Grid};
use orind_kernels::catalogue::{Kernel, Weight};
use orind_kernels::params::{
    GatherParams, IntoBytes, ProjectParams, RopeTableParams, RowsParams, SampleParams, Segment,
};
use orind_kernels::repack;
use tegra::address::GpuAddress;
use tegra::buffer::{Mailbox, ProbeBuffer};
use tegra_first_light::launch::{Link, Recording, Shape, load};

use super::answer::Answer;
use super::error::Error;
use super::kernel::code;
use super::rig::Rig;

/// Maximum error of approximations.
const NEAR: f64 = 1e-5;

/// Words of a kernel, and the number of wrong ones.
pub(super) struct Found {
    pub(super) words: Vec<u32>,
    pub(super) wrong: usize,
}

impl Found {
    fn exact(words: Vec<u32>, expected: impl IntoIterator<Item = u32>) -> Self {
        let wrong = words.iter().zip(expected).filter(|(found, expected)| *found != expected);
        Self { wrong: wrong.count(), words }
    }

    fn near(words: Vec<u32>, expected: impl IntoIterator<Item = f64>) -> Self {
        let off = |(word, expected): &(&u32, f64)| {
            let difference = (f64::from(f32::from_bits(**word)) - expected).abs();
            difference.is_nan() || difference > NEAR * expected.abs()
        };
        Self { wrong: words.iter().zip(expected).filter(off).count(), words }
    }
}

type Case = fn(&mut Fixture<'_>) -> Result<Found, Error>;

/// Each case, named after its instruction class.
const CASES: [(&str, Case); 9] = [
    ("load", gather),
    ("float_add", add),
    ("float_fma", rope_table),
    ("exponential", swiglu),
    ("root", rms_norm),
    ("dot_signed", product_q8_0),
    ("dot_unsigned", product_q4_k),
    ("half", product_f16),
    ("compare_and_atomic", sample),
];

pub(super) fn classes() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let mut answer = Answer::new();
    let mut wrong = Vec::new();
    for (name, case) in CASES {
        let found = case(&mut Fixture::new(&mut rig, 0)?)?;
        if found.wrong > 0 {
            wrong.push(format!("{name} {} of {}", found.wrong, found.words.len()));
        }
        answer
            .fact(format!("{name}_wrong"), found.wrong)
            .fact(format!("{name}_hash"), format!("{:016x}", hash(&found.words)));
        let words = found.words.into_iter().map(f64::from).collect();
        answer.samples.insert(format!("{name}_words"), words);
    }
    let text = match wrong.is_empty() {
        true => format!("every word of {} kernels is right", CASES.len()),
        false => format!("wrong words: {}", wrong.join(", ")),
    };
    Ok(answer.judged(wrong.is_empty(), text))
}

/// FNV-1a over the words' bytes.
fn hash(words: &[u32]) -> u64 {
    words.iter().flat_map(|word| word.to_le_bytes()).fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

/// Inputs, outputs and launches of one case.
pub(super) struct Fixture<'a> {
    rig: &'a mut Rig,
    memory: Mailbox,
    used: u64,
    /// Flags of the mappings of code and matrices.
    map_flags: u32,
    matrices: Vec<ProbeBuffer>,
}

impl<'a> Fixture<'a> {
    pub(super) fn new(rig: &'a mut Rig, map_flags: u32) -> Result<Self, Error> {
        let memory = Mailbox::new(&rig.space, 64 << 10)?;
        Ok(Self { rig, memory, used: 0, map_flags, matrices: Vec::new() })
    }

    /// Allocates `bytes`, zeroed.
    fn place(&mut self, bytes: usize) -> u64 {
        let place = self.used;
        self.used = (place + bytes as u64).next_multiple_of(256);
        place
    }

    fn put<T: Copy>(&mut self, values: &[T], bytes: fn(T) -> [u8; 4]) -> Result<u64, Error> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| bytes(*value)).collect();
        let place = self.place(bytes.len());
        self.memory.write(place, &bytes)?;
        Ok(self.memory.at(place)?.get())
    }

    fn floats(&mut self, values: &[f32]) -> Result<u64, Error> {
        self.put(values, f32::to_le_bytes)
    }

    fn words(&mut self, values: &[u32]) -> Result<u64, Error> {
        self.put(values, u32::to_le_bytes)
    }

    fn matrix(&mut self, bytes: &[u8]) -> Result<GpuAddress, Error> {
        let matrix = load(&self.rig.space, bytes, self.map_flags)?;
        let address = matrix.address();
        self.matrices.push(matrix);
        Ok(address)
    }

    /// Allocates `count` words of a kernel's output; returns offset and address.
    fn out(&mut self, count: usize) -> Result<(u64, u64), Error> {
        let place = self.place(count * 4);
        Ok((place, self.memory.at(place)?.get()))
    }

    fn read(&self, place: u64, count: usize) -> Result<Vec<u32>, Error> {
        (0..count as u64).map(|i| Ok(self.memory.load_u32(place + 4 * i)?)).collect()
    }

    fn run(
        &mut self,
        kernel: Kernel,
        grid: Grid,
        dynamic_shared: u32,
        params: &[u8],
    ) -> Result<(), Error> {
        let space = &self.rig.space;
        let code = code(space, kernel, self.map_flags)?;
        let shape = Shape { grid, block: [kernel.threads(), 1, 1], dynamic_shared };
        let launch = code.launch(space, shape, params);
        let recording = Recording::new(space, &[launch], Link::Stream)?;
        self.rig.run(self.rig.compute, &[recording.body()]).map(drop)
    }
}

/// A pseudo-random word.
fn word(index: usize) -> u32 {
    let mixed = (index as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    ((mixed ^ mixed >> 29).wrapping_mul(0xbf58_476d_1ce4_e5b9) >> 32) as u32
}

/// A number from -`most` to `most` in steps of 2^-10.
fn number(index: usize, most: i32) -> f32 {
    let steps = (2 * most as u32) << 10;
    (word(index) % (steps + 1)) as f32 / 1024.0 - most as f32
}

/// A whole number from -`most` to `most`.
fn whole(index: usize, most: i32) -> i32 {
    (word(index) % (2 * most as u32 + 1)) as i32 - most
}

/// Gathers rows of words by index; one index is outside the table.
fn gather(fixture: &mut Fixture<'_>) -> Result<Found, Error> {
    const EXTENT: usize = 64;
    const WIDTH: usize = 40;
    const PICKED: usize = 24;
    let table: Vec<u32> = (0..EXTENT * WIDTH).map(word).collect();
    let ids: Vec<u32> =
        (0..PICKED).map(|row| word(row) % EXTENT as u32).chain([EXTENT as u32]).collect();
    let rows = ids.len();
    let (place, out) = fixture.out(rows * WIDTH)?;
    let params = GatherParams {
        table: fixture.words(&table)?,
        ids: fixture.words(&ids)?,
        out,
        extent: EXTENT as u32,
        width: WIDTH as u32,
        rows: rows as u32,
        reserved: 0,
    };
    let grid = launch::elements_grid(WIDTH as u32, rows as u32);
    fixture.run(Kernel::Gather, grid, 0, params.as_bytes())?;
    let expected = ids.iter().flat_map(|id| {
        let from = *id as usize * WIDTH;
        (from..from + WIDTH).map(|at| table.get(at).copied().unwrap_or(0))
    });
    Ok(Found::exact(fixture.read(place, rows * WIDTH)?, expected))
}

/// Two rows of numbers, and a kernel's result.
struct Rows {
    a: Vec<f32>,
    b: Vec<f32>,
    words: Vec<u32>,
}

fn rows(fixture: &mut Fixture<'_>, kernel: Kernel) -> Result<Rows, Error> {
    const VALUES: usize = 512;
    let a: Vec<f32> = (0..VALUES).map(|i| number(i, 8)).collect();
    let b: Vec<f32> = (0..VALUES).map(|i| number(VALUES + i, 4)).collect();
    let (place, out) = fixture.out(VALUES)?;
    let n = VALUES as u32;
    let params = RowsParams {
        a: fixture.floats(&a)?,
        b: fixture.floats(&b)?,
        out,
        n,
        rows: 1,
        eps: EPS,
        reserved: 0,
    };
    let grid = match kernel {
        Kernel::RmsNorm => launch::rows_grid(1),
        _ => launch::elements_grid(n, 1),
    };
    fixture.run(kernel, grid, 0, params.as_bytes())?;
    let words = fixture.read(place, VALUES)?;
    Ok(Rows { a, b, words })
}

const EPS: f32 = 1e-5;

fn add(fixture: &mut Fixture<'_>) -> Result<Found, Error> {
    let Rows { a, b, words } = rows(fixture, Kernel::Add)?;
    Ok(Found::exact(words, a.iter().zip(&b).map(|(a, b)| (a + b).to_bits())))
}

fn swiglu(fixture: &mut Fixture<'_>) -> Result<Found, Error> {
    let Rows { a, b, words } = rows(fixture, Kernel::SwiGlu)?;
    let silu = |a: f64| a / (1.0 + (-a).exp());
    Ok(Found::near(words, a.iter().zip(&b).map(|(a, b)| silu((*a).into()) * f64::from(*b))))
}

fn rms_norm(fixture: &mut Fixture<'_>) -> Result<Found, Error> {
    let Rows { a, b, words } = rows(fixture, Kernel::RmsNorm)?;
    let squares: f64 = a.iter().map(|a| f64::from(*a).powi(2)).sum();
    let factor = (squares / a.len() as f64 + f64::from(EPS)).sqrt().recip();
    Ok(Found::near(words, a.iter().zip(&b).map(|(a, b)| f64::from(*a) * factor * f64::from(*b))))
}

/// Cosines and sines by multiply-adds, each rounded once: all bits are defined.
fn rope_table(fixture: &mut Fixture<'_>) -> Result<Found, Error> {
    const HALF: usize = 64;
    let positions = [0u32, 1, 1000, 100_000];
    let mut frequencies = vec![1.0f32];
    for i in 1..HALF {
        frequencies.push(frequencies[i - 1] * 0.875);
    }
    let count = positions.len() * 2 * HALF;
    let (place, out) = fixture.out(count)?;
    let params = RopeTableParams {
        positions: fixture.words(&positions)?,
        frequencies: fixture.floats(&frequencies)?,
        out,
        half: HALF as u32,
        rows: positions.len() as u32,
        magnitude: 1.0,
        reserved: 0,
    };
    let grid = launch::rows_grid(positions.len() as u32);
    fixture.run(Kernel::RopeTable, grid, 0, params.as_bytes())?;
    let expected = positions.iter().flat_map(|position| {
        let both = frequencies.iter().map(|frequency| sin_cos(*position as f32, *frequency));
        let both: Vec<(f32, f32)> = both.collect();
        let cosines: Vec<u32> = both.iter().map(|(_, cosine)| cosine.to_bits()).collect();
        cosines.into_iter().chain(both.into_iter().map(|(sine, _)| sine.to_bits()))
    });
    Ok(Found::exact(fixture.read(place, count)?, expected))
}

/// The kernel's source, operation by operation.
#[expect(clippy::excessive_precision, reason = "constants as the source has them")]
fn sin_cos(position: f32, frequency: f32) -> (f32, f32) {
    let high = position * frequency;
    let low = position.mul_add(frequency, -high);
    let turns = (high * FRAC_2_PI).round_ties_even();
    let quarter = turns as i32;
    let r = turns.mul_add(-1.570_796_37, high);
    let r = turns.mul_add(4.371_138_83e-8, r) + low;
    let r2 = r * r;
    let s = r2.mul_add(-1.951_529_60e-4, 8.332_160_87e-3);
    let s = r2.mul_add(s, -1.666_665_46e-1);
    let s = (r2 * r).mul_add(s, r);
    let c = r2.mul_add(2.443_315_71e-5, -1.388_731_62e-3);
    let c = r2.mul_add(c, 4.166_664_56e-2);
    let c = (r2 * r2).mul_add(c, r2.mul_add(-0.5, 1.0));
    let (sine, cosine) = if quarter & 1 == 1 { (c, s) } else { (s, c) };
    let sine = if quarter & 2 == 2 { -sine } else { sine };
    let cosine = if (quarter + 1) & 2 == 2 { -cosine } else { cosine };
    (sine, cosine)
}

/// Rows and columns of the products.
const ROWS: usize = 64;
const COLUMNS: usize = 256;

/// The product of a matrix, with the values `weights` and the file format's bytes `file`, and a
/// vector of whole numbers: sums small enough to be exact in every order of additions.
fn product(
    fixture: &mut Fixture<'_>,
    weight: Weight,
    file: &[u8],
    weights: &[i32],
) -> Result<Found, Error> {
    let broken = || Error::Kernel(format!("project_{}: not in the catalogue", weight.name()));
    let kernel = Kernel::project(weight, 1, 1).ok_or_else(broken)?;
    let Kernel::Project { variant, .. } = kernel else { return Err(broken()) };
    let dynamic = launch::project_shared_bytes(weight, 1, 1, COLUMNS).ok_or_else(broken)?;
    let refused = |error: repack::Error| Error::Kernel(error.to_string());
    let layout = repack::Layout::new(weight.dtype(), ROWS, COLUMNS).map_err(refused)?;
    let mut matrix = vec![0; layout.bytes()];
    layout.pack(0, file, &mut matrix).map_err(refused)?;
    // A block with 127 as its maximum is quantised in steps of 1.
    let vector: Vec<i32> =
        (0..COLUMNS).map(|i| if i % 32 == 0 { 127 } else { whole(i, 127) }).collect();
    let floats: Vec<f32> = vector.iter().map(|value| *value as f32).collect();
    let (place, out) = fixture.out(ROWS)?;
    let mut params = ProjectParams {
        x: fixture.floats(&floats)?,
        k: COLUMNS as u32,
        rows: 1,
        inverse_k: 1.0 / COLUMNS as f32,
        ..ProjectParams::default()
    };
    let weights_at = fixture.matrix(&matrix)?.get();
    params.segments[0] =
        Segment { weights: weights_at, out, n: ROWS as u32, planes: 1, ..Segment::default() };
    let grid = [launch::project_tiles(variant, &[ROWS as u32], false), 1, 1];
    fixture.run(kernel, grid, dynamic, params.as_bytes())?;
    let sum =
        |row: &[i32]| row.iter().zip(&vector).map(|(weight, value)| weight * value).sum::<i32>();
    let expected = weights.chunks_exact(COLUMNS).map(|row| (sum(row) as f32).to_bits());
    Ok(Found::exact(fixture.read(place, ROWS)?, expected))
}

pub(super) fn product_q8_0(fixture: &mut Fixture<'_>) -> Result<Found, Error> {
    let weights: Vec<i32> = (0..ROWS * COLUMNS).map(|i| whole(7 * i, 127)).collect();
    let block = |quants: &[i32]| {
        let quants = quants.iter().map(|quant| *quant as i8 as u8);
        half(1).to_le_bytes().into_iter().chain(quants).collect::<Vec<u8>>()
    };
    let file: Vec<u8> = weights.chunks_exact(32).flat_map(block).collect();
    product(fixture, Weight::Q8_0, &file, &weights)
}

fn product_q4_k(fixture: &mut Fixture<'_>) -> Result<Found, Error> {
    let weights: Vec<i32> = (0..ROWS * COLUMNS).map(|i| (word(5 * i) % 16) as i32).collect();
    let mut file = Vec::new();
    for block in weights.chunks_exact(256) {
        file.extend(half(1).to_le_bytes());
        file.extend(half(0).to_le_bytes());
        // Eight scales of 1 and minima of 0: the first four scales, the minima, the other scales.
        file.extend([1, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1, 1]);
        for pair in block.chunks_exact(64) {
            let (low, high) = pair.split_at(32);
            file.extend(low.iter().zip(high).map(|(low, high)| (low | high << 4) as u8));
        }
    }
    product(fixture, Weight::Q4_K, &file, &weights)
}

fn product_f16(fixture: &mut Fixture<'_>) -> Result<Found, Error> {
    let weights: Vec<i32> = (0..ROWS * COLUMNS).map(|i| whole(3 * i, 200)).collect();
    let file: Vec<u8> = weights.iter().flat_map(|weight| half(*weight).to_le_bytes()).collect();
    product(fixture, Weight::F16, &file, &weights)
}

/// A whole number below 2048 in half precision.
fn half(value: i32) -> u16 {
    let magnitude = value.unsigned_abs();
    if magnitude == 0 {
        return 0;
    }
    let exponent = magnitude.ilog2();
    let fraction = (magnitude << (10 - exponent)) & 0x3ff;
    ((u32::from(value < 0) << 15) | ((exponent + 15) << 10) | fraction) as u16
}

/// The largest value of a row, by the blocks of a grid of which the last merges; three times, so
/// that the counters must return to 0.
fn sample(fixture: &mut Fixture<'_>) -> Result<Found, Error> {
    const VOCABULARY: usize = 5000;
    const PARTS: u32 = 8;
    const TIMES: usize = 3;
    let logits: Vec<f32> = (0..VOCABULARY).map(|i| number(i, 16)).collect();
    let counters = fixture.place(8);
    let partial = fixture.place(16 * PARTS as usize);
    let (ids, out) = fixture.out(1)?;
    let params = SampleParams {
        logits: fixture.floats(&logits)?,
        temperature: fixture.floats(&[0.0])?,
        top_k: fixture.words(&[0])?,
        top_p: fixture.floats(&[1.0])?,
        min_p: fixture.floats(&[f32::NEG_INFINITY])?,
        seed: fixture.words(&[1, 0])?,
        positions: fixture.words(&[0])?,
        ids: out,
        partial: fixture.memory.at(partial)?.get(),
        counters: fixture.memory.at(counters)?.get(),
        vocabulary: VOCABULARY as u32,
        rows: 1,
        ..SampleParams::default()
    };
    let mut words = Vec::new();
    for _ in 0..TIMES {
        fixture.memory.store_u32(ids, u32::MAX)?;
        fixture.run(Kernel::Sample, [PARTS, 1, 1], 0, params.as_bytes())?;
        words.extend(fixture.read(ids, 1)?);
        words.extend(fixture.read(counters, 2)?);
    }
    // The first of equal values.
    let better = |best: usize, i: usize| if logits[i] > logits[best] { i } else { best };
    let largest = (0..VOCABULARY).fold(0, better) as u32;
    Ok(Found::exact(words, [largest, 0, 0].into_iter().cycle()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_numbers_in_half_precision() {
        let known = [(0, 0), (1, 0x3c00), (-1, 0xbc00), (3, 0x4200), (200, 0x5a40), (2047, 0x67ff)];
        for (value, bits) in known {
            assert_eq!(half(value), bits, "{value}");
        }
    }

    #[test]
    fn sine_and_cosine_are_near_the_exact_values() {
        for x in [0.0f32, 0.5, 1.0, 2.5, 4.0, 1000.0] {
            let (sine, cosine) = sin_cos(x, 0.7);
            let angle = f64::from(x) * f64::from(0.7f32);
            let near = |found: f32, expected: f64| (f64::from(found) - expected).abs() < 1e-6;
            assert!(near(sine, angle.sin()) && near(cosine, angle.cos()), "{x}");
        }
    }

    #[test]
    fn wrong_words_are_counted() {
        assert_eq!(Found::exact(vec![1, 2, 3], [1, 0, 3]).wrong, 1);
        let words = [1.0f32, 2.0, f32::NAN].map(f32::to_bits).to_vec();
        assert_eq!(Found::near(words, [1.000_001, 2.1, 0.0]).wrong, 2);
        assert_ne!(hash(&[1, 2]), hash(&[2, 1]));
    }
}
