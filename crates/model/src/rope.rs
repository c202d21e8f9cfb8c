//! Rotary frequencies: base, scaling from metadata, factors from the file.

use std::f64::consts::PI;

use super::decoder::check;
use super::{Architecture, Error, Hyperparameters};
use crate::gguf::Gguf;
use plan::DType;

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Rope {
    /// Radians per position, one per pair.
    pub(super) frequencies: Vec<f32>,
    pub(super) magnitude: f32,
}

/// Name of the tensor of per-pair divisors that converters write for Llama 3.1 and later.
const FACTORS: &str = "rope_freqs.weight";

impl Rope {
    pub(super) fn read(
        gguf: &Gguf,
        architecture: Architecture,
        hyper: &Hyperparameters,
    ) -> Result<Self, Error> {
        let factors = factors(gguf, hyper)?;
        let meta = gguf.metadata();
        let key = |name: &str| format!("{}.rope.{name}", architecture.name());
        let positive = |name: &str, value: f32| {
            if value.is_finite() && value > 0.0 {
                return Ok(f64::from(value));
            }
            Err(Error::hyperparameter(key(name), &value, "a positive number"))
        };
        let base = positive("freq_base", meta.f32_opt(&key("freq_base"))?.unwrap_or(10_000.0))?;
        let scaling = match meta.str_opt(&key("scaling.type"))? {
            Some(name) => name,
            // Older files: a factor alone means linear scaling.
            None if meta.get(&key("scaling.factor")).is_some() => "linear",
            None => "none",
        };
        let factor = match meta.f32_opt(&key("scaling.factor"))? {
            // 0 stands for "not set" in files of some converters.
            None | Some(0.0) => 1.0,
            Some(factor) => positive("scaling.factor", factor)?,
        };
        let pairs = hyper.head_size / 2;
        let plain: Vec<f64> =
            (0..pairs).map(|i| base.powf(-2.0 * i as f64 / hyper.head_size as f64)).collect();
        let (frequencies, magnitude): (Vec<f64>, f64) = match scaling {
            "none" => (plain, 1.0),
            "linear" => (plain.iter().map(|f| f / factor).collect(), 1.0),
            "yarn" => {
                let original = meta
                    .u32_opt(&key("scaling.original_context_length"))?
                    .map_or(hyper.context as f64, f64::from);
                let attention = match meta.f32_opt(&key("scaling.attn_factor"))? {
                    Some(value) => positive("scaling.attn_factor", value)?,
                    None => 1.0,
                };
                (
                    yarn(&plain, base, factor, original),
                    attention * (0.1 * factor.ln() + 1.0).max(1.0),
                )
            }
            other => {
                return Err(Error::Hyperparameter {
                    key: key("scaling.type"),
                    value: format!("`{other}`"),
                    expected: "none, linear or yarn are supported".into(),
                });
            }
        };
        let divisor =
            |i: usize| factors.as_ref().and_then(|f| f.get(i)).map_or(1.0, |&f| f64::from(f));
        let frequencies: Vec<f32> =
            frequencies.iter().enumerate().map(|(i, f)| (f / divisor(i)) as f32).collect();
        if frequencies.iter().any(|f| !f.is_finite()) {
            let found = "a tensor with zero or not finite entries";
            return Err(Error::hyperparameter(FACTORS.into(), &found, "positive divisors"));
        }
        Ok(Self { frequencies, magnitude: magnitude as f32 })
    }
}

/// The values of [`FACTORS`], when the file has them.
fn factors(gguf: &Gguf, hyper: &Hyperparameters) -> Result<Option<Vec<f32>>, Error> {
    let Some(tensor) = gguf.tensor(FACTORS) else { return Ok(None) };
    let pairs = hyper.head_size / 2;
    check(tensor, &[pairs], "F32", |dtype| dtype == DType::F32)?;
    let mut bytes = vec![0; 4 * pairs];
    gguf.read(tensor, 0, &mut bytes)?;
    Ok(Some(bytes.as_chunks::<4>().0.iter().map(|quad| f32::from_le_bytes(*quad)).collect()))
}

/// YaRN (Peng et al., 2023, section 3.2), with its defaults alpha = 1, beta = 32: pairs that turn
/// often within the original context keep their frequency, slow ones are interpolated, those between
/// are blended.
fn yarn(plain: &[f64], base: f64, factor: f64, original_context: f64) -> Vec<f64> {
    let dims = 2.0 * plain.len() as f64;
    let pair_turning =
        |turns: f64| dims * (original_context / (turns * 2.0 * PI)).ln() / (2.0 * base.ln());
    let first = pair_turning(32.0).floor().max(0.0);
    let last = pair_turning(1.0).ceil().min(dims - 1.0);
    let blend = |(i, f): (usize, &f64)| {
        let interpolated = ((i as f64 - first) / (last - first).max(0.001)).clamp(0.0, 1.0);
        f / factor * interpolated + f * (1.0 - interpolated)
    };
    plain.iter().enumerate().map(blend).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn yarn_keeps_fast_pairs_and_interpolates_slow_ones() {
        let plain: Vec<f64> = (0..64).map(|i| 1e6f64.powf(-(i as f64) / 64.0)).collect();
        let scaled = yarn(&plain, 1e6, 4.0, 32_768.0);
        assert_eq!(scaled[0], plain[0]);
        assert!((scaled[63] - plain[63] / 4.0).abs() < 1e-15);
        assert!(scaled.windows(2).all(|w| w[0] > w[1]), "frequencies must fall");
    }
}
