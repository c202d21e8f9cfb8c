//! Log-probabilities from logits.

use super::{Logprob, TokenLogprobs};
use model::tokenizer::Tokenizer;

/// Log-probability of `id`, and the `top` most likely alternatives.
pub(super) fn of(logits: &[f32], id: u32, top: u8, tokenizer: &Tokenizer) -> TokenLogprobs {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|&l| f64::from(l - largest).exp()).sum();
    let normaliser = f64::from(largest) + sum.ln();
    let entry = |id: u32| {
        let logit = logits.get(id as usize).copied().unwrap_or(f32::NEG_INFINITY);
        entry(id, (f64::from(logit) - normaliser) as f32, tokenizer)
    };
    TokenLogprobs {
        token: entry(id),
        top: most_likely(logits, top as usize).into_iter().map(entry).collect(),
    }
}

/// Entry of a token without a prediction.
pub(super) fn unpredicted(id: u32, tokenizer: &Tokenizer) -> TokenLogprobs {
    TokenLogprobs { token: entry(id, f32::NAN, tokenizer), top: Vec::new() }
}

fn entry(id: u32, logprob: f32, tokenizer: &Tokenizer) -> Logprob {
    Logprob { id, bytes: tokenizer.token_bytes(id).unwrap_or_default().to_vec(), logprob }
}

/// Ids of the `count` largest logits, largest first, lower ids first among equals.
fn most_likely(logits: &[f32], count: usize) -> Vec<u32> {
    let mut best: Vec<u32> = Vec::with_capacity(count + 1);
    for id in 0..logits.len() as u32 {
        let logit = logits[id as usize];
        let beaten = |other: &u32| logits[*other as usize] >= logit;
        if logit.is_nan() || (best.len() == count && best.last().is_none_or(beaten)) {
            continue;
        }
        best.insert(best.partition_point(beaten), id);
        best.truncate(count);
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_most_likely_come_first_and_ties_keep_their_order() {
        assert_eq!(most_likely(&[1.0, 3.0, 2.0, 3.0, f32::NAN], 3), [1, 3, 2]);
        assert_eq!(most_likely(&[1.0, 3.0], 5), [1, 0]);
        assert_eq!(most_likely(&[1.0, 3.0], 0), [0; 0]);
    }
}
