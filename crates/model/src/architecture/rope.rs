//! Rotary frequencies: base and scaling (linear, YaRN, LongRoPE) from metadata, divisors from tensors.

use std::f64::consts::PI;

use super::keys::Keys;
use crate::error::{Error, Result};
use crate::hyper::{Attention, Rope};

/// Pairs between which YaRN blends.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Ramp {
    /// The bounds of its definition rounded outwards to whole pairs, as most models were trained.
    Whole,
    /// The exact bounds (`truncate: false` in a configuration).
    Exact,
}

/// Name of the tensor of per-pair divisors that converters write for Llama 3.1 and later.
const FACTORS: &str = "rope_freqs.weight";
/// LongRoPE's divisors, for contexts up to the training length and for longer ones.
const SHORT: &str = "rope_factors_short.weight";
const LONG: &str = "rope_factors_long.weight";

/// Base if the file has none.
const BASE: f32 = 10_000.0;

/// No rotation.
pub(super) fn identity(rotated: usize) -> Rope {
    Rope { frequencies: vec![0.0; rotated / 2], long: None, magnitude: 1.0 }
}

/// Rotation without scaling.
pub(super) fn unscaled(base: f32, rotated: usize) -> Rope {
    let frequencies = plain(base.into(), rotated).map(|f| f as f32).collect();
    Rope { frequencies, ..identity(rotated) }
}

/// The file's rotation of these heads.
pub(super) fn read(keys: &Keys<'_>, attention: &Attention) -> Result<Rope> {
    read_with(keys, attention, Ramp::Whole)
}

/// The file's rotation of these heads, with this ramp if its scaling is YaRN.
pub(super) fn read_with(keys: &Keys<'_>, attention: &Attention, ramp: Ramp) -> Result<Rope> {
    let rotated = keys.rotated("", attention.head_size)?;
    let meta = keys.gguf.metadata();
    let base = f64::from(keys.positive("rope.freq_base")?.unwrap_or(BASE));
    let scaling = match meta.str_opt(&keys.key("rope.scaling.type"))? {
        Some(name) => name,
        // Older files have a factor without a type, for linear scaling.
        None if meta.get(&keys.key("rope.scaling.factor")).is_some() => "linear",
        None => "none",
    };
    let factor = f64::from(keys.set("rope.scaling.factor")?.unwrap_or(1.0));
    let mut magnitude = f64::from(keys.set("rope.scaling.attn_factor")?.unwrap_or(1.0));
    let original = keys
        .number_opt("rope.scaling.original_context_length", u32::MAX as usize)?
        .map_or_else(|| keys.context(), Ok)?;
    let mut frequencies: Vec<f64> = plain(base, rotated).collect();
    match scaling {
        "none" | "longrope" => {}
        "linear" => frequencies.iter_mut().for_each(|f| *f /= factor),
        "yarn" => {
            let turns = |name: &str, default: f32| {
                Ok::<_, Error>(f64::from(keys.positive(name)?.unwrap_or(default)))
            };
            let fast = turns("rope.scaling.yarn_beta_fast", 32.0)?;
            let slow = turns("rope.scaling.yarn_beta_slow", 1.0)?;
            frequencies = yarn(&frequencies, base, factor, original as f64, [fast, slow], ramp);
            let sharper = |by: f64| (0.1 * by * factor.ln() + 1.0).max(1.0);
            let log = f64::from(keys.set("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0));
            magnitude *= sharper(1.0) / if log > 0.0 { sharper(log) } else { 1.0 };
        }
        other => {
            return Err(Error::Hyperparameter {
                key: keys.key("rope.scaling.type"),
                value: format!("`{other}`"),
                expected: "none, linear, longrope or yarn are supported".into(),
            });
        }
    }
    let divided = |name: &str| match keys.vector(name, rotated / 2)? {
        Some(factors) => divide(&frequencies, &factors, name).map(Some),
        None => Ok(None),
    };
    let (short, long) = (divided(SHORT)?, divided(LONG)?);
    let all = divided(FACTORS)?.or(short);
    Ok(Rope {
        frequencies: all.unwrap_or_else(|| frequencies.iter().map(|&f| f as f32).collect()),
        long: long.map(|frequencies| (frequencies, original)),
        magnitude: magnitude as f32,
    })
}

fn plain(base: f64, rotated: usize) -> impl Iterator<Item = f64> {
    (0..rotated / 2).map(move |i| base.powf(-2.0 * i as f64 / rotated as f64))
}

/// Frequencies divided by the values of a tensor.
fn divide(frequencies: &[f64], factors: &[f32], tensor: &str) -> Result<Vec<f32>> {
    if factors.iter().any(|factor| !(factor.is_finite() && *factor > 0.0)) {
        let found = "a tensor with entries that are not positive numbers";
        return Err(Error::hyperparameter(tensor.into(), &found, "positive divisors"));
    }
    Ok(frequencies.iter().zip(factors).map(|(f, &factor)| (f / f64::from(factor)) as f32).collect())
}

/// YaRN (Peng et al., 2023, section 3.2). Pairs that turn more than `turns[0]` times within the original context keep
/// their frequency. Those that turn less than `turns[1]` times are interpolated; those between are blended.
fn yarn(
    plain: &[f64],
    base: f64,
    factor: f64,
    original_context: f64,
    turns: [f64; 2],
    ramp: Ramp,
) -> Vec<f64> {
    let dims = 2.0 * plain.len() as f64;
    let pair_turning =
        |turns: f64| dims * (original_context / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
    let [first, last] = turns.map(pair_turning);
    let (first, last) = match ramp {
        Ramp::Whole => (first.floor(), last.ceil()),
        Ramp::Exact => (first, last),
    };
    // With a small original context the bounds are outside of the pairs.
    let (first, last) = (first.max(0.0), last.min(dims - 1.0));
    let blend = |(i, f): (usize, &f64)| {
        let interpolated = ((i as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
        f / factor * interpolated + f * (1.0 - interpolated)
    };
    plain.iter().enumerate().map(blend).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of gpt-oss: 32 pairs, base 150,000, 4096 positions. Bounds are
    /// `d/2 ln(n / (2 pi turns)) / ln(base)`.
    #[test]
    fn an_exact_ramp_starts_and_ends_between_pairs() {
        let plain: Vec<f64> = plain(150_000.0, 64).collect();
        let scaled = yarn(&plain, 150_000.0, 32.0, 4096.0, [32.0, 1.0], Ramp::Exact);
        let (low, high) = (8.092779115512, 17.398024501589);
        for (i, (f, scaled)) in plain.iter().zip(scaled).enumerate() {
            let ramp = ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
            let want = f / 32.0 * ramp + f * (1.0 - ramp);
            assert!((scaled - want).abs() < 1e-9 * f, "pair {i}: {scaled}, {want}");
        }
    }

    /// With 16 positions the ramp would begin before the first pair, as with 4 pairs and any context. Values of
    /// transformers' `_compute_yarn_parameters` with `truncate: false`.
    #[test]
    fn an_exact_ramp_stays_within_the_pairs() {
        let plain: Vec<f64> = plain(10_000.0, 8).collect();
        let scaled = yarn(&plain, 10_000.0, 4.0, 16.0, [32.0, 1.0], Ramp::Exact);
        // The upper bound is 4 ln(16 / 2 pi) / ln(10000), 0.4059; pairs after it are interpolated.
        assert_eq!(scaled[0], plain[0]);
        for (scaled, plain) in scaled.iter().zip(&plain).skip(1) {
            assert!((scaled - plain / 4.0).abs() < 1e-12, "{scaled} {plain}");
        }
    }

    #[test]
    fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
        let plain: Vec<f64> = plain(1e6, 128).collect();
        let scaled = yarn(&plain, 1e6, 4.0, 32_768.0, [32.0, 1.0], Ramp::Whole);
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[63] - plain[63] / 4.0).abs() < 1e-15);
        assert!(scaled.windows(2).all(|w| w[0] > w[1]), "frequencies must fall");
    }
}
