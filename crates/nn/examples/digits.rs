//! Handwritten digit recognition: trains a two-layer perceptron or a convolutional network from
//! scratch on digits drawn from strokes, and tests it on held-out digits. `digits [mlp|conv]
//! [DEVICE] [STEPS]`.

#![expect(clippy::print_stdout, reason = "what an example is for")]

use std::env;
use std::error::Error;

use device::{Data, Device};
use nn::conv::{Windows, max_pool};
use nn::functions::relu;
use nn::init::unit;
use nn::layers::{BatchNorm, Conv, Linear, Net};
use nn::loss::cross_entropy;
use nn::optimiser::{Moments, Optimiser};
use nn::shape::flatten;
use nn::{Failure, Trainer};
use plan::DType;

pub(crate) const BATCH: usize = 32;
/// Pixels per side.
const SIDE: usize = 16;
/// Number of the first held-out sample.
const HELD_OUT: usize = 1 << 30;

/// Pen strokes of each digit, x to the right and y down, in tenths of the picture.
const STROKES: [&[[f32; 2]]; 10] = [
    &[[5., 1.], [3., 3.], [3., 7.], [5., 9.], [7., 7.], [7., 3.], [5., 1.]],
    &[[3.5, 3.], [5., 1.], [5., 9.]],
    &[[3., 3.], [4., 1.], [6., 1.], [7., 3.], [3., 9.], [7., 9.]],
    &[[3., 1.], [6., 1.], [7., 3.], [4.5, 4.5], [7., 6.5], [6., 9.], [3., 8.5]],
    &[[6., 9.], [6., 1.], [2.5, 6.], [7.5, 6.]],
    &[[7., 1.], [3.5, 1.], [3., 4.5], [6., 4.], [7., 6.5], [6., 9.], [3., 8.5]],
    &[[6.5, 1.], [4., 3.], [3., 7.], [5., 9.], [7., 7.], [5.5, 5.], [3., 6.5]],
    &[[2.5, 1.], [7.5, 1.], [4.5, 9.]],
    &[[5., 5.], [3., 3.], [5., 1.], [7., 3.], [3., 7.], [5., 9.], [7., 7.], [5., 5.]],
    &[[7., 3.], [5., 5.], [3., 3.], [5., 1.], [7., 3.], [6.5, 6.], [5.5, 9.]],
];

/// Distance of a point from a line segment.
fn distance([x, y]: [f32; 2], a: [f32; 2], b: [f32; 2]) -> f32 {
    let (along, up) = (b[0] - a[0], b[1] - a[1]);
    let share = ((x - a[0]) * along + (y - a[1]) * up) / (along * along + up * up).max(1e-6);
    let share = share.clamp(0.0, 1.0);
    (x - a[0] - share * along).hypot(y - a[1] - share * up)
}

/// Sample `number`: a digit with random jitter, shift, slant, thickness and noise.
fn sample(number: usize) -> (Vec<f32>, i32) {
    let random = unit(number as u64, 32 + SIDE * SIDE);
    let between = |i: usize, low: f32, high: f32| low + random[i] * (high - low);
    let digit = (random[0] * 10.0) as usize;
    let (slant, size) = (between(1, -0.4, 0.4), between(2, 0.7, 1.1));
    let (shift, thickness) = ([between(3, -1.2, 1.2), between(4, -1.2, 1.2)], between(5, 0.3, 0.9));
    let pen = |(i, &[x, y]): (usize, &[f32; 2])| {
        let x = x + between(6 + 2 * i, -0.5, 0.5) - 5.0;
        let y = y + between(7 + 2 * i, -0.5, 0.5) - 5.0;
        [(x - slant * y) * size + 5.0 + shift[0], y * size + 5.0 + shift[1]]
    };
    let line: Vec<[f32; 2]> = STROKES[digit].iter().enumerate().map(pen).collect();
    let pixel = |i: usize| {
        let [x, y] = [i % SIDE, i / SIDE].map(|at| (at as f32 + 0.5) * 10.0 / SIDE as f32);
        let near = line.windows(2).map(|ends| distance([x, y], ends[0], ends[1]));
        let ink = (1.5 - near.fold(f32::INFINITY, f32::min) / thickness).clamp(0.0, 1.0);
        ink + between(32 + i, -0.3, 0.3)
    };
    ((0..SIDE * SIDE).map(pixel).collect(), digit as i32)
}

fn batch(first: usize) -> (Vec<f32>, Vec<i32>) {
    let (pixels, digits): (Vec<_>, _) = (first..first + BATCH).map(sample).unzip();
    (pixels.concat(), digits)
}

pub(crate) fn mlp(net: &mut Net) -> nn::Result {
    let x = net.input("pixels", DType::F32, &[BATCH, SIDE * SIDE])?;
    let first = Linear::new(net, "first", SIDE * SIDE, 64)?;
    let second = Linear::new(net, "second", 64, 10)?;
    let x = first.forward(net, x)?;
    let x = relu(&mut net.g, x)?;
    second.forward(net, x)
}

pub(crate) fn convolutional(net: &mut Net) -> nn::Result {
    let mut x = net.input("pixels", DType::F32, &[BATCH, 1, SIDE, SIDE])?;
    for (name, channels) in [("first", [1, 8]), ("second", [8, 16])] {
        let conv = Conv::new(net, name, channels, &[3, 3], Windows::default().padded(1))?;
        let norm = BatchNorm::new(net, &format!("{name}.norm"), channels[1])?;
        x = conv.forward(net, x)?;
        x = norm.forward(net, x)?;
        x = relu(&mut net.g, x)?;
        x = max_pool(&mut net.g, x, &[2, 2], &Windows::stride(2))?;
    }
    let out = Linear::new(net, "out", SIDE * SIDE, 10)?;
    let x = flatten(&mut net.g, x, 1)?;
    out.forward(net, x)
}

pub(crate) fn trainer(
    device: &dyn Device,
    network: fn(&mut Net) -> nn::Result,
) -> Result<Trainer, Failure> {
    let loss = |net: &mut Net| {
        let answer = network(net)?;
        let digits = net.input("digits", DType::I32, &[BATCH])?;
        cross_entropy(&mut net.g, answer, digits, 0.0)
    };
    Trainer::new(device, Optimiser::Adam(Moments::new(0.003)), 1, loss, network)
}

/// Trains on samples that no other step uses; returns the loss.
pub(crate) fn step(trainer: &mut Trainer, number: usize) -> Result<f32, Failure> {
    let (pixels, digits) = batch(number * BATCH);
    trainer.train(&[("pixels", Data::F32(&pixels)), ("digits", Data::I32(&digits))])
}

/// Fraction of correctly recognised digits in `batches` of held-out samples.
pub(crate) fn accuracy(trainer: &mut Trainer, batches: usize) -> Result<f32, Failure> {
    let mut right = 0;
    for i in 0..batches {
        let (pixels, digits) = batch(HELD_OUT + i * BATCH);
        let answer = trainer.answer(&[("pixels", Data::F32(&pixels))])?;
        let best = |row: &[f32]| (0..10).max_by(|&a, &b| row[a].total_cmp(&row[b]));
        right +=
            answer.chunks(10).zip(digits).filter(|(r, d)| best(r) == Some(*d as usize)).count();
    }
    Ok(right as f32 / (batches * BATCH) as f32)
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let word = |i: usize, default| words.get(i).map_or(default, String::as_str);
    let network = match word(0, "mlp") {
        "mlp" => mlp,
        "conv" => convolutional,
        other => return Err(format!("no network `{other}`; there are mlp and conv").into()),
    };
    let device = device::named(word(1, "cpu"), "auto", 0)?;
    let steps: usize = word(2, "2000").parse()?;
    let mut trainer = trainer(&*device, network)?;
    for number in 0..steps {
        let loss = step(&mut trainer, number)?;
        if number % 100 == 0 {
            println!("step {number}: loss {loss:.3}");
        }
    }
    let right = accuracy(&mut trainer, 64)?;
    println!("{:.1}% of {} held-out digits are read right", right * 100.0, 64 * BATCH);
    Ok(())
}
