//! Truncation samplers: minimum probability, typical sampling, Mirostat 2 and XTC.
//!
//! A removed token gets a logit of minus infinity.

use plan::sample::{self, Sampling};

use crate::ranking::{Ranking, ascending, descending};
use crate::softmax::Softmax;
use crate::{LogitsProcessors, Mirostat, Xtc};

/// Counter word of the draw of XTC, which no token id reaches.
const XTC_DRAW: u32 = u32::MAX - 1;

/// Truncation of one sequence: Mirostat's state, and buffers that are reused.
#[derive(Debug)]
pub(crate) struct Truncation {
    /// Mirostat's limit of surprise, in bits.
    mu: f32,
    ranking: Ranking,
}

impl Truncation {
    pub(crate) fn new(mirostat: Option<Mirostat>) -> Self {
        Self {
            mu: mirostat.map_or(0.0, |mirostat| 2.0 * mirostat.tau),
            ranking: Ranking::default(),
        }
    }

    /// Removes tokens from the logits of the token at `position`: step 6.
    pub(crate) fn apply(
        &mut self,
        processors: &LogitsProcessors,
        sampling: &Sampling,
        position: u32,
        logits: &mut [f32],
    ) {
        let LogitsProcessors { typical_p, mirostat, xtc, .. } = processors;
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let least = sampling.least(largest);
        logits.iter_mut().filter(|l| **l < least).for_each(|l| *l = f32::NEG_INFINITY);
        if *typical_p < 1.0 {
            self.typical(f64::from(*typical_p), logits);
        }
        if mirostat.is_some() {
            self.limit_surprise(largest, logits);
        }
        if let Some(xtc) = xtc
            && uniform(sampling.seed, position) < xtc.probability
        {
            self.exclude_top(xtc, logits);
        }
    }

    /// Keeps the tokens whose surprise is nearest to the entropy, up to a probability mass, and at least one.
    fn typical(&mut self, enough: f64, logits: &mut [f32]) {
        let softmax = Softmax::new(logits);
        let entropy = softmax.entropy(logits);
        let key = |logit: f32| ascending((-softmax.ln(logit) - entropy).abs());
        self.ranking.fill(remaining(logits).map(|(logit, id)| (key(logit), id)));
        let (mut mass, mut kept) = (0.0, 0);
        while let Some(id) = self.ranking.get(kept) {
            kept += 1;
            mass += softmax.probability(logits[id as usize]);
            if mass >= enough {
                break;
            }
        }
        for id in self.ranking.rest(kept) {
            logits[id as usize] = f32::NEG_INFINITY;
        }
    }

    /// Removes tokens whose surprise exceeds Mirostat's limit, but never the most likely one.
    fn limit_surprise(&self, largest: f32, logits: &mut [f32]) {
        let softmax = Softmax::new(logits);
        let most = f64::from(self.mu) * std::f64::consts::LN_2;
        for logit in logits {
            if *logit < largest && -softmax.ln(*logit) > most {
                *logit = f32::NEG_INFINITY;
            }
        }
    }

    fn exclude_top(&mut self, xtc: &Xtc, logits: &mut [f32]) {
        let softmax = Softmax::new(logits);
        let threshold = f64::from(xtc.threshold);
        self.ranking.fill(remaining(logits).map(|(logit, id)| (descending(logit), id)));
        let mut rank = 0;
        // The last token above the threshold stays: each one found excludes the one before it.
        let mut previous = None;
        while let Some(id) = self.ranking.get(rank)
            && softmax.probability(logits[id as usize]) >= threshold
        {
            if let Some(previous) = previous.replace(id as usize) {
                logits[previous] = f32::NEG_INFINITY;
            }
            rank += 1;
        }
    }

    /// Updates Mirostat's limit with the surprise of the sampled token.
    pub(crate) fn sampled(&mut self, mirostat: Option<Mirostat>, id: u32, logits: &[f32]) {
        if let Some(Mirostat { tau, eta }) = mirostat {
            let ln = Softmax::new(logits).ln(logits[id as usize]);
            let surprise = (-ln / std::f64::consts::LN_2) as f32;
            self.mu -= eta * (surprise - tau);
        }
    }
}

/// Logits and ids of the tokens that have not been removed.
fn remaining(logits: &[f32]) -> impl Iterator<Item = (f32, u32)> {
    logits.iter().copied().zip(0..).filter(|(logit, _)| *logit > f32::NEG_INFINITY)
}

/// Number from 0 to 1, independent of the noise of tokens.
fn uniform(seed: u64, position: u32) -> f32 {
    (sample::philox([position, XTC_DRAW, 0, 0], seed)[0] >> 8) as f32 / 16_777_216.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const NONE: LogitsProcessors = LogitsProcessors::NONE;

    fn truncated(processors: &LogitsProcessors, logits: &[f32]) -> Vec<f32> {
        let mut logits = logits.to_vec();
        let sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY };
        Truncation::new(processors.mirostat).apply(processors, &sampling, 3, &mut logits);
        logits
    }

    #[test]
    fn truncation_follows_the_definitions() {
        // Probabilities 1/2, 1/4, 1/8, 1/8.
        let logits = [8f32.ln(), 4f32.ln(), 2f32.ln(), 2f32.ln()];
        let left = |processors: LogitsProcessors| {
            let truncated = truncated(&processors, &logits);
            truncated.iter().map(|logit| *logit > f32::NEG_INFINITY).collect::<Vec<_>>()
        };
        // The entropy is 1.75 bits: nearest is the second token's surprise of 2, then the first's of 1.
        let typical = |typical_p| left(LogitsProcessors { typical_p, ..NONE });
        assert_eq!(typical(0.2), [false, true, false, false]);
        assert_eq!(typical(0.6), [true, true, false, false]);
        let xtc = |threshold| {
            left(LogitsProcessors { xtc: Some(Xtc { probability: 1.0, threshold }), ..NONE })
        };
        assert_eq!(xtc(0.2), [false, true, true, true]);
        assert_eq!(xtc(0.1), [false, false, false, true]);
        assert_eq!(xtc(0.6), [true; 4]);
        let mirostat = Some(Mirostat { tau: 1.1, eta: 0.1 });
        assert_eq!(left(LogitsProcessors { mirostat, ..NONE }), [true, true, false, false]);
    }

    #[test]
    fn mirostat_raises_its_limit_after_a_token_without_surprise() {
        let mirostat = Some(Mirostat { tau: 2.0, eta: 0.5 });
        let mut truncation = Truncation::new(mirostat);
        let before = truncation.mu;
        // One token has all the probability: a surprise of 0, 2 bits below `tau`.
        truncation.sampled(mirostat, 0, &[50.0, 0.0]);
        assert!((truncation.mu - (before + 1.0)).abs() < 1e-4);
    }

    /// Typical sampling and XTC as they are defined: by a full sort with the distance in the comparator.
    fn by_sorting(processors: &LogitsProcessors, logits: &[f32]) -> Vec<f32> {
        let mut logits = logits.to_vec();
        let order = |logits: &[f32], compare: &dyn Fn(f32, f32) -> std::cmp::Ordering| {
            let left = |id: &u32| logits[*id as usize] > f32::NEG_INFINITY;
            let mut order: Vec<u32> = (0..logits.len() as u32).filter(left).collect();
            let of = |id: &u32| logits[*id as usize];
            order.sort_unstable_by(|a, b| compare(of(a), of(b)).then(a.cmp(b)));
            order
        };
        if processors.typical_p < 1.0 {
            let softmax = Softmax::new(&logits);
            let expected = softmax.entropy(&logits);
            let distance = |logit: f32| (-softmax.ln(logit) - expected).abs();
            let order = order(&logits, &|a, b| distance(a).total_cmp(&distance(b)));
            let mut mass = 0.0;
            let enough = order.iter().position(|id| {
                mass += softmax.probability(logits[*id as usize]);
                mass >= f64::from(processors.typical_p)
            });
            let count = enough.map_or(usize::MAX, |last| last + 1);
            for id in order.iter().skip(count.max(1)) {
                logits[*id as usize] = f32::NEG_INFINITY;
            }
        }
        if let Some(xtc) = processors.xtc {
            let softmax = Softmax::new(&logits);
            let above = |logit: f32| softmax.probability(logit) >= f64::from(xtc.threshold);
            let order = order(&logits, &|a, b| b.total_cmp(&a));
            let likely = order.iter().take_while(|id| above(logits[**id as usize])).count();
            for id in &order[..likely.saturating_sub(1)] {
                logits[*id as usize] = f32::NEG_INFINITY;
            }
        }
        logits
    }

    /// Logits with many ties and, at times, values that are not finite.
    fn logits() -> impl Strategy<Value = Vec<f32>> {
        let value = prop_oneof![
            12 => (-40..40i32).prop_map(|step| step as f32 / 4.0),
            12 => -20f32..20.0,
            2 => Just(f32::NEG_INFINITY),
            1 => prop::sample::select(vec![0.0, -0.0, 1e30, -1e30]),
        ];
        let finite = prop::collection::vec(value, 0..1500);
        let odd = prop::sample::select(vec![f32::NAN, f32::INFINITY, -f32::NAN]);
        (finite, prop::option::weighted(0.1, odd)).prop_map(|(mut logits, odd)| {
            logits.extend(odd);
            logits
        })
    }

    proptest! {
        #[test]
        fn a_sorted_prefix_removes_the_same_tokens_as_a_full_sort(
            logits in logits(),
            typical_p in prop_oneof![Just(0.0f32), Just(1.0), 0f32..1.0, 0.99f32..1.0],
            threshold in prop::option::of(prop_oneof![Just(0.0f32), 0f32..0.01, 0f32..1.0]),
        ) {
            let xtc = threshold.map(|threshold| Xtc { probability: 1.0, threshold });
            let processors = LogitsProcessors { typical_p, xtc, ..NONE };
            let bits = |logits: &[f32]| logits.iter().map(|l| l.to_bits()).collect::<Vec<_>>();
            let expected = by_sorting(&processors, &logits);
            prop_assert_eq!(bits(&truncated(&processors, &logits)), bits(&expected));
        }
    }
}
