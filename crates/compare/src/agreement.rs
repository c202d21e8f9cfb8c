//! Checks that an engine computes the model: compares its greedy tokens and token distributions
//! with those of the reference device.
//!
//! The prompts are the same token ids. Distributions are compared while both sides have seen the
//! same tokens, up to and including the first token that differs. An engine reports only its most
//! likely tokens. Therefore the Kullback-Leibler divergence is computed over the reference's tokens
//! that the engine reported, with all others merged into one. By the data processing inequality it
//! never exceeds the true divergence.

use serde::{Deserialize, Serialize};

use super::outcome::Answer;

/// Largest mean divergence, in nats, of the same model: 8-bit activations cost up to 0.01, a weight
/// type one step smaller 0.05 or more.
pub const MEAN: f64 = 0.02;
/// A token may differ if the reference's best leads by less than this, in nats.
pub const LEAD: f64 = 0.25;

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agreement {
    /// Number of steps at which the distributions could be compared.
    pub steps: usize,
    /// Fraction of these with the reference's most likely token.
    pub top1: f64,
    pub mean_divergence: f64,
    pub max_divergence: f64,
    /// First token that differs although the reference was certain: prompt, step, lead of its best
    /// token.
    pub differs: Option<(usize, usize, f64)>,
    pub agrees: bool,
}

impl Agreement {
    /// `None` if nothing can be compared.
    pub fn of(answers: &[Answer], reference: &[Answer]) -> Option<Self> {
        let mut found = Self::default();
        let (mut same, mut sum) = (0usize, 0.0);
        for (prompt, (got, want)) in answers.iter().zip(reference).enumerate() {
            for step in 0..want.tokens.len().min(got.tokens.len()) {
                if let (Some(got), Some(want)) = (got.top.get(step), want.top.get(step)) {
                    let divergence = divergence(want, got);
                    sum += divergence;
                    found.max_divergence = found.max_divergence.max(divergence);
                    found.steps += 1;
                    same += usize::from(got.first().map(|t| t.0) == want.first().map(|t| t.0));
                }
                if got.tokens[step] != want.tokens[step] {
                    let lead = lead(want.top.get(step).map_or(&[][..], Vec::as_slice));
                    if lead > LEAD && found.differs.is_none() {
                        found.differs = Some((prompt, step, lead));
                    }
                    break;
                }
            }
        }
        if found.steps == 0 {
            return None;
        }
        found.top1 = same as f64 / found.steps as f64;
        found.mean_divergence = sum / found.steps as f64;
        found.agrees = found.differs.is_none() && found.mean_divergence <= MEAN;
        Some(found)
    }
}

fn lead(top: &[(u32, f64)]) -> f64 {
    match top {
        [best, next, ..] => best.1 - next.1,
        _ => f64::INFINITY,
    }
}

/// Divergence of `got` from `want` over the tokens that both list, with all others merged into one.
fn divergence(want: &[(u32, f64)], got: &[(u32, f64)]) -> f64 {
    let (mut sum, mut p_rest, mut q_rest) = (0.0, 1.0, 1.0);
    for &(token, p) in want {
        let Some(&(_, q)) = got.iter().find(|other| other.0 == token) else { continue };
        sum += p.exp() * (p - q);
        p_rest -= p.exp();
        q_rest -= q.exp();
    }
    // Rounding may make either remainder slightly negative.
    let (p_rest, q_rest) = (p_rest.max(0.0), q_rest.max(1e-12));
    if p_rest > 1e-12 {
        sum += p_rest * (p_rest / q_rest).ln();
    }
    sum.max(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(tokens: &[u32], top: &[&[(u32, f64)]]) -> Answer {
        let logs = |step: &&[(u32, f64)]| step.iter().map(|&(t, p)| (t, p.ln())).collect();
        Answer { tokens: tokens.to_vec(), top: top.iter().map(logs).collect() }
    }

    #[test]
    fn the_same_model_agrees_and_another_does_not() {
        let want = answer(&[1, 2], &[&[(1, 0.9), (2, 0.1)], &[(2, 0.6), (3, 0.3)]]);
        let same = Agreement::of(std::slice::from_ref(&want), std::slice::from_ref(&want)).unwrap();
        assert!(same.agrees && same.mean_divergence < 1e-12 && same.top1 == 1.0, "{same:?}");
        let other = answer(&[2, 2], &[&[(2, 0.8), (1, 0.1)], &[(2, 0.6), (3, 0.3)]]);
        let other = Agreement::of(&[other], &[want]).unwrap();
        assert_eq!((other.agrees, other.steps), (false, 1));
        assert!(matches!(other.differs, Some((0, 0, lead)) if (lead - 9f64.ln()).abs() < 1e-9));
    }

    #[test]
    fn near_ties_may_resolve_either_way() {
        let want = answer(&[1], &[&[(1, 0.41), (2, 0.40), (3, 0.19)]]);
        let got = answer(&[2], &[&[(2, 0.41), (1, 0.40), (3, 0.19)]]);
        let found = Agreement::of(&[got], &[want]).unwrap();
        assert!(found.agrees && found.differs.is_none() && found.top1 == 0.0, "{found:?}");
    }

    #[test]
    fn unlisted_tokens_count_as_one() {
        // One half each, against nine to one with only the first listed.
        let kl = divergence(&[(7, 0.5f64.ln())], &[(7, 0.9f64.ln())]);
        let want = 0.5 * (0.5f64 / 0.9).ln() + 0.5 * (0.5f64 / 0.1).ln();
        assert!((kl - want).abs() < 1e-9, "{kl} for {want}");
        assert_eq!(Agreement::of(&[], &[]), None);
    }
}
