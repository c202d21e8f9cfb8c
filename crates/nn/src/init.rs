//! Initial values of parameters. Random numbers are a function of seed and index (`philox`), the
//! same on every machine.

use std::f32::consts::TAU;

use plan::sample::philox;

/// Distribution of a parameter's initial values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Init {
    Constant(f32),
    /// Between `-bound` and `bound`.
    Uniform(f32),
    /// Mean 0, with this standard deviation.
    Normal(f32),
    /// Uniform within `sqrt(6 / fan in)` (He), for layers followed by ReLU.
    KaimingUniform,
    KaimingNormal,
    /// Uniform within `sqrt(6 / (fan in + fan out))` (Glorot).
    XavierUniform,
    XavierNormal,
    /// Uniform within `1 / sqrt(fan in)`, the default of PyTorch's linear and convolutional layers.
    Fan,
}

/// Fan in and fan out of weights `[O, I, spatial..]`.
fn fans(shape: &[usize]) -> [f32; 2] {
    let taps: usize = shape.iter().skip(2).product();
    let of = |axis: usize| (shape.get(axis).copied().unwrap_or(1) * taps) as f32;
    [of(1), of(0)]
}

impl Init {
    /// Initial values of a parameter of this shape.
    #[must_use]
    pub fn values(self, seed: u64, shape: &[usize]) -> Vec<f32> {
        let n = shape.iter().product();
        let [into, out] = fans(shape);
        match self {
            Self::Constant(value) => vec![value; n],
            Self::Uniform(bound) => uniform(seed, n, bound),
            Self::Normal(deviation) => normal(seed, n, deviation),
            Self::KaimingUniform => uniform(seed, n, (6.0 / into).sqrt()),
            Self::KaimingNormal => normal(seed, n, (2.0 / into).sqrt()),
            Self::XavierUniform => uniform(seed, n, (6.0 / (into + out)).sqrt()),
            Self::XavierNormal => normal(seed, n, (2.0 / (into + out)).sqrt()),
            Self::Fan => uniform(seed, n, 1.0 / into.sqrt()),
        }
    }
}

/// Random numbers from 0 up to, but not including, 1.
#[must_use]
pub fn unit(seed: u64, n: usize) -> Vec<f32> {
    let word = |i: usize| philox([(i / 4) as u32, 1, 0, 0], seed)[i % 4];
    (0..n).map(|i| (word(i) >> 8) as f32 / 16_777_216.0).collect()
}

fn uniform(seed: u64, n: usize, bound: f32) -> Vec<f32> {
    unit(seed, n).into_iter().map(|u| (2.0 * u - 1.0) * bound).collect()
}

/// Box-Muller transform: two normal numbers from two uniform ones.
fn normal(seed: u64, n: usize, deviation: f32) -> Vec<f32> {
    let numbers = unit(seed, n.next_multiple_of(2));
    let pair = |pair: &[f32]| {
        let size = (-2.0 * (1.0 - pair[0]).ln()).sqrt() * deviation;
        let (sin, cos) = (TAU * pair[1]).sin_cos();
        [size * cos, size * sin]
    };
    let mut values: Vec<f32> = numbers.chunks(2).flat_map(pair).collect();
    values.truncate(n);
    values
}
