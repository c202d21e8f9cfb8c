//! The sampler of one sequence: applies its logits processors and its grammar, and chooses its tokens.

use plan::sample::{self, Adjustment, Candidate, EDITS, NOT_FINITE, Sampling};

use grammar::Constraint;

use crate::edits::Edits;
use crate::softmax::Softmax;
use crate::truncation::Truncation;
use crate::{DynamicTemperature, LogitsProcessors};

/// Sampler of one sequence, for requests that need more than the device's sampling.
#[derive(Debug)]
pub struct Sampler {
    processors: LogitsProcessors,
    constraint: Option<Constraint>,
    sampling: Sampling,
    /// Edits and mask of the current step.
    edits: Edits,
    mask: Vec<i32>,
    /// True if the device applies edits and mask, and chooses the token.
    on_device: bool,
    truncation: Truncation,
    logits: Vec<f32>,
    work: Vec<Candidate>,
}

impl Sampler {
    /// Returns `None` if the device's sampling is sufficient.
    #[must_use]
    pub fn new(
        processors: &LogitsProcessors,
        constraint: Option<Constraint>,
        sampling: Sampling,
    ) -> Option<Self> {
        if constraint.is_none() && *processors == LogitsProcessors::NONE {
            return None;
        }
        Some(Self {
            processors: processors.clone(),
            constraint,
            sampling,
            edits: Edits::default(),
            mask: Vec::new(),
            on_device: false,
            truncation: Truncation::new(processors.mirostat),
            logits: Vec::new(),
            work: Vec::new(),
        })
    }

    /// Computes the edits and mask of the token behind `tokens`. The device chooses it if `allow_device` is set
    /// and it can apply all of them.
    pub fn prepare(&mut self, tokens: &[u32], vocabulary: usize, allow_device: bool) {
        // [`Self::choose`] reports the errors of a constraint.
        self.on_device = allow_device
            && !self.processors.needs_host()
            && self.adjust(tokens, vocabulary).is_ok()
            && self.edits.list.len() <= EDITS;
    }

    /// Edits and mask that the device applies before it chooses; `None` if the host chooses.
    #[must_use]
    pub fn adjustment(&self) -> Option<Adjustment<'_>> {
        self.on_device.then(|| self.adjusted())
    }

    fn adjusted(&self) -> Adjustment<'_> {
        Adjustment {
            edits: &self.edits.list,
            mask: self.constraint.is_some().then_some(&self.mask),
        }
    }

    /// True if each token needs a grammar mask.
    #[must_use]
    pub const fn masks(&self) -> bool {
        self.constraint.is_some()
    }

    /// True if a step of several sequences should not wait for the mask of this one.
    pub fn is_late(&mut self) -> bool {
        self.constraint.as_mut().is_some_and(Constraint::is_late)
    }

    /// True if edits and mask are the same for every token.
    #[must_use]
    pub fn is_constant(&self) -> bool {
        self.constraint.is_none() && !self.processors.depends_on_tokens()
    }

    /// Returns why the device found no token although these logits are finite.
    #[must_use]
    pub fn dead_end(&self, logits: &[f32]) -> Option<String> {
        let masked = self.constraint.is_some() && sample::argmax(logits).is_some();
        masked.then(|| "it allows no token that the model can give".into())
    }

    /// Chooses the token behind `tokens` on the host.
    ///
    /// # Errors
    /// The constraint allows no token.
    pub fn choose(&mut self, logits: &[f32], tokens: &[u32], position: u32) -> Result<u32, String> {
        self.adjust(tokens, logits.len())?;
        let mut processed = std::mem::take(&mut self.logits);
        processed.clear();
        processed.extend_from_slice(logits);
        self.adjusted().apply(&mut processed);
        self.logits = processed;
        if sample::argmax(&self.logits).is_none()
            && let Some(why) = self.dead_end(logits)
        {
            return Err(why);
        }
        self.truncation.apply(&self.processors, &self.sampling, position, &mut self.logits);
        let temperature = self.temperature();
        let sampling = Sampling { temperature, ..self.sampling };
        let id = sample::choose(&self.logits, sampling, position, &mut self.work);
        if id != NOT_FINITE {
            self.truncation.sampled(self.processors.mirostat, id, &self.logits);
        }
        Ok(id)
    }

    /// Appends a token to the answer. True if the constraint allows nothing behind it.
    ///
    /// # Errors
    /// The constraint rejects the token.
    pub fn accept(&mut self, id: u32) -> Result<bool, String> {
        self.edits.count(id);
        self.constraint.as_mut().map_or(Ok(false), |constraint| constraint.accept(id))
    }

    /// Steps 1 to 5.
    fn adjust(&mut self, tokens: &[u32], vocabulary: usize) -> Result<(), String> {
        self.edits.compute(&self.processors, tokens);
        match &mut self.constraint {
            Some(constraint) => constraint.mask(vocabulary, &mut self.mask),
            None => Ok(()),
        }
    }

    fn temperature(&self) -> f32 {
        let Some(DynamicTemperature { least, most, exponent }) = self.processors.dynamic else {
            return self.sampling.temperature;
        };
        let left = self.logits.iter().filter(|l| **l > f32::NEG_INFINITY).count();
        if left < 2 {
            return least;
        }
        let entropy = Softmax::new(&self.logits).entropy(&self.logits) / (left as f64).ln();
        least + (most - least) * (entropy as f32).powf(exponent)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Dry;
    use orind_testing::random::Random;

    fn sampler(processors: &LogitsProcessors) -> Sampler {
        let sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY };
        Sampler::new(processors, None, sampling).unwrap()
    }

    /// Logits after steps 1 to 6.
    #[expect(clippy::needless_pass_by_value, reason = "callers construct it in place")]
    fn processed(
        processors: LogitsProcessors,
        logits: &[f32],
        prompt: &[u32],
        answer: &[u32],
    ) -> Vec<f32> {
        let mut sampler = sampler(&processors);
        answer.iter().for_each(|id| assert!(!sampler.accept(*id).unwrap()));
        sampler.choose(logits, &[prompt, answer].concat(), 3).unwrap();
        sampler.logits
    }

    #[test]
    fn neutral_settings_need_no_host_sampler() {
        assert!(Sampler::new(&LogitsProcessors::NONE, None, Sampling::GREEDY).is_none());
        assert!(LogitsProcessors::default() == LogitsProcessors::NONE);
    }

    #[test]
    fn penalties_follow_their_formulas() {
        let logits = [1.0, -1.0, 2.0, 4.0];
        let bias = vec![(1, 5.0), (9, 1.0), (3, -100.0)];
        let biased =
            processed(LogitsProcessors { bias, ..LogitsProcessors::NONE }, &logits, &[], &[]);
        assert_eq!(biased, [1.0, 4.0, 2.0, -96.0]);
        let repetition = LogitsProcessors { repetition: 2.0, ..LogitsProcessors::NONE };
        let all = processed(repetition.clone(), &logits, &[0, 1, 1], &[2]);
        assert_eq!(all, [0.5, -2.0, 1.0, 4.0]);
        let last = processed(
            LogitsProcessors { window: Some(1), ..repetition },
            &logits,
            &[0, 1, 1],
            &[2],
        );
        assert_eq!(last, [1.0, -1.0, 1.0, 4.0]);
        let counted = LogitsProcessors { frequency: 0.5, presence: 0.25, ..LogitsProcessors::NONE };
        assert_eq!(processed(counted, &logits, &[3], &[2, 2, 0]), [0.25, -1.0, 0.75, 4.0]);
    }

    #[test]
    fn device_and_host_choose_the_same_token() {
        const VOCABULARY: usize = 70;
        let mut random = Random(26);
        let (mut on_device, mut changed) = (0, 0);
        for case in 0..400 {
            let some = |random: &mut Random, of: &[f32]| random.pick(of);
            let breakers = vec![random.below(9) as u32];
            let dry = Dry { multiplier: 0.8, base: 1.75, allowed: 1, breakers };
            let processors = LogitsProcessors {
                bias: (0..random.below(5))
                    .map(|_| (random.below(80) as u32, some(&mut random, &[-100.0, 1.5, 7.0])))
                    .collect(),
                repetition: some(&mut random, &[1.0, 1.0, 1.3]),
                frequency: some(&mut random, &[0.0, 0.0, 0.7]),
                presence: some(&mut random, &[0.0, 0.0, -0.4]),
                window: random.pick(&[None, Some(0), Some(6)]),
                dry: (random.below(2) == 1).then_some(dry),
                typical_p: some(&mut random, &[1.0, 1.0, 1.0, 0.9]),
                ..LogitsProcessors::NONE
            };
            let sampling = Sampling {
                temperature: some(&mut random, &[0.0, 0.8, 1.5]),
                top_k: random.pick(&[0, 20]),
                top_p: some(&mut random, &[1.0, 0.9]),
                min_p: sample::min_p(some(&mut random, &[0.0, 0.1])),
                seed: random.bits(),
            };
            let Some(mut sampler) = Sampler::new(&processors, None, sampling) else { continue };
            let mut tokens: Vec<u32> = (0..8).map(|_| random.below(9) as u32).collect();
            for position in 0..6 {
                let logits = random.reals(VOCABULARY, 6.0);
                let choose =
                    |logits: &[f32]| sample::choose(logits, sampling, position, &mut Vec::new());
                sampler.prepare(&tokens, VOCABULARY, true);
                let device = sampler.adjustment().map(|adjustment| {
                    let mut adjusted = logits.clone();
                    adjustment.apply(&mut adjusted);
                    choose(&adjusted)
                });
                assert_eq!(device.is_some(), processors.typical_p == 1.0);
                let host = sampler.choose(&logits, &tokens, position).unwrap();
                if let Some(device) = device {
                    assert_eq!(device, host, "case {case}: {processors:?}, {sampling:?}");
                    (on_device, changed) =
                        (on_device + 1, changed + usize::from(host != choose(&logits)));
                }
                assert!(!sampler.accept(host).unwrap());
                tokens.push(host);
            }
        }
        assert!(on_device > 1000 && changed > 200, "{on_device}, {changed} changed");
    }

    #[test]
    fn the_host_samples_if_the_device_rejects_the_number_of_edits() {
        let repetition = LogitsProcessors { repetition: 1.5, ..LogitsProcessors::NONE };
        let mut sampler = sampler(&repetition);
        for (tokens, offered, on_device) in [
            (EDITS as u32, true, true),
            (EDITS as u32 + 1, true, false),
            (3, true, true),
            (3, false, false),
        ] {
            let tokens: Vec<u32> = (0..tokens).collect();
            sampler.prepare(&tokens, 2 * EDITS, offered);
            assert_eq!(sampler.adjustment().is_some(), on_device, "{} tokens", tokens.len());
        }
    }

    #[test]
    fn dynamic_temperature_follows_the_entropy() {
        let dynamic = Some(DynamicTemperature { least: 0.2, most: 1.0, exponent: 1.0 });
        let temperature = |logits: &[f32]| {
            let mut sampler = sampler(&LogitsProcessors { dynamic, ..LogitsProcessors::NONE });
            sampler.choose(logits, &[], 0).unwrap();
            sampler.temperature()
        };
        assert!((temperature(&[1.0, 1.0, 1.0]) - 1.0).abs() < 1e-6);
        assert!((temperature(&[90.0, 0.0]) - 0.2).abs() < 1e-6);
    }

    #[test]
    fn dry_penalises_a_token_that_extends_a_repetition() {
        let dry = Some(Dry { multiplier: 0.5, base: 2.0, allowed: 1, breakers: vec![] });
        let processors = LogitsProcessors { dry, ..LogitsProcessors::NONE };
        assert_eq!(processed(processors, &[0.0; 4], &[1, 2, 3, 1, 2], &[]), [0.0, 0.0, 0.0, -1.0]);
    }

    #[test]
    fn a_neutral_bias_chooses_the_token_of_the_device() {
        let logits: Vec<f32> = (0..50).map(|i| ((i * 37) % 50) as f32 / 9.0).collect();
        let sampling =
            Sampling { temperature: 0.8, top_k: 20, top_p: 0.9, seed: 3, ..Sampling::GREEDY };
        let processors = LogitsProcessors { bias: vec![(0, 0.0)], ..LogitsProcessors::NONE };
        let mut sampler = Sampler::new(&processors, None, sampling).unwrap();
        for position in 0..200 {
            let expected = sample::choose(&logits, sampling, position, &mut Vec::new());
            assert_eq!(sampler.choose(&logits, &[], position), Ok(expected));
        }
    }
}
