//! Share of the memory bandwidth that decode products reach for each weight type. Products with one row and plain reads
//! alternate every few milliseconds, on all cores at once.
//!
//! Other virtual machines on the same host change the bandwidth within seconds. Turns are therefore grouped by the rate
//! of the plain read, and a turn counts only if the turns before and after it are in the same group.
//!
//! `cargo bench --bench memory_rate`; `SECONDS` (20) in the environment.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a benchmark may panic, and prints")]

use std::hint::black_box;
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use device::cpu::mem::AlignedBuf;
use plan::DType;
use simd::Isa;
use simd::activations::{self, ActivationFormat, Q8Block};
use simd::matmul::{Activations, Loops, Product, Q8Activations, matmul};
use simd::packed::PackedLayout;
use simd::read::{Pattern, read};

const TYPES: [DType; 6] =
    [DType::Q8_0, DType::Q4_0, DType::MXFP4, DType::Q4_K, DType::Q5_K, DType::Q6_K];
const K: usize = 2048;
/// Bytes that each thread cycles through.
const BUFFER: usize = 512 << 20;
/// Bytes that a thread reads in its part of a turn.
const PIECE: usize = 48 << 20;
/// Width of a group of rates, in GB/s.
const GROUP: f64 = 8.0;
/// Fewest turns of a printed group.
const ENOUGH: usize = 10;
/// Value of every byte of the weights; as a scale it is a normal number.
const ORDINARY: u8 = 0x38;

/// A matrix of one weight type, and the activation row that it is multiplied with.
struct Matrix {
    layout: PackedLayout,
    row: Vec<Q8Block>,
    out: Vec<f32>,
}

impl Matrix {
    fn new(isa: Isa, dtype: DType) -> Self {
        let group = PackedLayout::new(dtype, 16, K).unwrap().bytes();
        let layout = PackedLayout::new(dtype, PIECE / group * 16, K).unwrap();
        let mut row = vec![Q8Block::default(); activations::blocks(K)];
        let x: Vec<f32> = (0..K).map(|i| (i * 7919 % 1000) as f32 / 500.0 - 1.0).collect();
        let place = activations::place(0, 1, row.len());
        let format = ActivationFormat { residual_planes: 1, span: layout.span() };
        // SAFETY: `row` has room for the blocks of one row.
        unsafe {
            let to = row.as_mut_ptr().add(place.first);
            activations::quantise(isa, x.as_ptr(), K, to, place.step, format);
        }
        let out = vec![0.0; layout.rows()];
        Self { layout, row, out }
    }

    /// Multiplies, and returns the bytes of weights that were read.
    fn multiply(&mut self, isa: Isa, weights: &[u8]) -> usize {
        let x = Q8Activations { blocks: self.row.as_ptr(), residual_planes: 1, used_planes: 1 };
        let product = Product {
            layout: &self.layout,
            weights: &weights[..self.layout.bytes()],
            groups: 0..self.layout.groups(),
            x: Activations::Q8(x),
            rows: 0..1,
            of: 1,
            out: self.out.as_mut_ptr(),
            stride: self.layout.rows(),
            residual: None,
            loops: Loops::heuristic(isa, &self.layout, 1),
        };
        // SAFETY: `x` has one row of the layout's columns, `out` room for its products.
        unsafe { matmul(isa, &product) };
        self.layout.bytes()
    }
}

/// Rates of a thread's turns, in bytes per second: of the plain read, then of each type.
fn turns(isa: Isa, count: usize, start: &Barrier) -> Vec<Vec<f64>> {
    let mut buffer = AlignedBuf::new(BUFFER).unwrap();
    buffer.as_mut_slice::<u8>().fill(ORDINARY);
    let bytes = buffer.as_slice::<u8>();
    let mut matrices: Vec<Matrix> = TYPES.iter().map(|dtype| Matrix::new(isa, *dtype)).collect();
    let mut at = 0;
    let mut timed = |work: &mut dyn FnMut(&[u8]) -> usize| {
        at = (at + PIECE) % (BUFFER - PIECE);
        start.wait();
        let begin = Instant::now();
        let read = work(&bytes[at..][..PIECE]);
        read as f64 / begin.elapsed().as_secs_f64()
    };
    (0..count)
        .map(|_| {
            let plain = timed(&mut |piece| {
                black_box(read(isa, piece, Pattern::Linear));
                piece.len()
            });
            let products = matrices.iter_mut().map(|m| timed(&mut |piece| m.multiply(isa, piece)));
            std::iter::once(plain).chain(products).collect()
        })
        .collect()
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn main() {
    let isa = Isa::detect();
    let threads = thread::available_parallelism().unwrap().get();
    let seconds = std::env::var("SECONDS").map_or(20.0, |seconds| seconds.parse::<f64>().unwrap());
    let start = Barrier::new(threads);
    let all = |count| -> Vec<Vec<f64>> {
        let of_threads: Vec<Vec<Vec<f64>>> = thread::scope(|scope| {
            let run = || turns(isa, count, &start);
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(run)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        let rate = |i: usize, what: usize| of_threads.iter().map(|rates| rates[i][what]).sum();
        (0..count).map(|i| (0..=TYPES.len()).map(|what| rate(i, what)).collect()).collect()
    };
    let one = all(8);
    let bytes = (threads * PIECE * (TYPES.len() + 1)) as f64;
    let each = bytes / median(one.iter().map(|turn| turn[0]).collect());
    let turns = all((seconds / each) as usize + 3);

    println!("{isa}, {threads} threads, GB/s; in parentheses the share of the plain read's rate\n");
    let group = |turn: &[f64]| (turn[0] / 1e9 / GROUP) as usize;
    for of in 0..100 {
        let steady = turns.windows(3).filter(|near| near.iter().all(|turn| group(turn) == of));
        let steady: Vec<&[f64]> = steady.map(|near| near[1].as_slice()).collect();
        if steady.len() < ENOUGH {
            continue;
        }
        let rate = |what: usize| median(steady.iter().map(|turn| turn[what]).collect()) / 1e9;
        let part = |what: usize| median(steady.iter().map(|turn| turn[what] / turn[0]).collect());
        print!("{:5} turns: read {:5.1}", steady.len(), rate(0));
        for (i, dtype) in TYPES.iter().enumerate() {
            print!("  {dtype} {:5.1} ({:3.0} %)", rate(i + 1), 100.0 * part(i + 1));
        }
        println!();
    }
}
