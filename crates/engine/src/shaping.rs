//! What a request does to logits before a token is chosen from them, beyond its parameters of every choice
//! ([`Sampling`]).
//!
//! In this order, each step on what the one before it leaves:
//!
//! 1. `bias`, added.
//! 2. `repetition` on tokens of prompt and answer: positive logits divided by it, others multiplied.
//! 3. `frequency` times the token's number in the answer, and `presence` once, subtracted.
//! 4. DRY: tokens that would prolong a repetition of what came before.
//! 5. The mask of a constraint ([`super::Constraint`]).
//! 6. `min_p`, `typical_p`, Mirostat's cut, XTC: tokens left out.
//! 7. Temperature, made dynamic by the entropy of what is left; then top-k, top-p and the draw
//!    ([`plan::sample`]).
//!
//! Steps 1 to 5 are an [`Adjustment`]: single logits and a mask, made here from the tokens before. The device carries it
//! out and chooses. What takes probabilities of the whole vocabulary in `f64` does not run there: who asks for `typical_p`,
//! Mirostat, XTC or a dynamic temperature has tokens chosen here, from the logits of the step, and so has who changes more
//! logits than a device takes.
//!
//! Log-probabilities that are reported are those before all of this.

use std::collections::HashMap;

use plan::sample::{self, Adjustment, Candidate, EDITS, Edit, NOT_FINITE, Sampling};

use super::constraint::Constraint;

/// Parameters; [`Shaping::NONE`] changes nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct Shaping {
    /// What is added to the logits of tokens.
    pub bias: Vec<(u32, f32)>,
    /// 1 changes nothing.
    pub repetition: f32,
    pub frequency: f32,
    pub presence: f32,
    /// Tokens at the end of prompt and answer that `repetition` and DRY look at; 0 is none, `None` all.
    pub window: Option<u32>,
    pub dry: Option<Dry>,
    /// Mass of the tokens whose surprise is nearest to the expected one; 1 is all.
    pub typical_p: f32,
    pub mirostat: Option<Mirostat>,
    pub xtc: Option<Xtc>,
    pub dynamic: Option<DynamicTemperature>,
}

/// Don't Repeat Yourself (Weidmann, 2024).
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    pub multiplier: f32,
    pub base: f32,
    /// Length of a repetition that costs nothing.
    pub allowed: u32,
    /// Tokens that end a repetition, ascending.
    pub breakers: Vec<u32>,
}

/// Exclude Top Choices (Weidmann, 2024): with `probability`, all tokens of at least `threshold` but the least
/// likely of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    pub probability: f32,
    pub threshold: f32,
}

/// Mirostat 2 (Basu et al., ICLR 2021): keeps the surprise of tokens near `tau` bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    pub tau: f32,
    pub eta: f32,
}

/// A temperature between `least` and `most`: it grows with the entropy, as its part of the largest possible one
/// to the power of `exponent`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicTemperature {
    pub least: f32,
    pub most: f32,
    pub exponent: f32,
}

impl Shaping {
    pub const NONE: Self = Self {
        bias: Vec::new(),
        repetition: 1.0,
        frequency: 0.0,
        presence: 0.0,
        window: None,
        dry: None,
        typical_p: 1.0,
        mirostat: None,
        xtc: None,
        dynamic: None,
    };
}

impl Default for Shaping {
    fn default() -> Self {
        Self::NONE
    }
}

/// Longest repetition that DRY measures: beyond it the penalty is huge anyway.
const LONGEST: usize = 256;

/// Counter words of draws that are no token's: the upper half of ids is never used.
const XTC_DRAW: u32 = u32::MAX - 1;

/// The choice of one sequence's tokens: shaping, constraint, and what they remember.
#[derive(Debug)]
pub(super) struct Chooser {
    shaping: Shaping,
    constraint: Option<Constraint>,
    sampling: Sampling,
    /// Steps 1 to 5 for the step under way, and whether the device carries them out and chooses.
    edits: Vec<Edit>,
    mask: Vec<i32>,
    by_device: bool,
    /// What is added to logits, what they are divided by, and what is subtracted.
    parts: HashMap<u32, [f32; 3]>,
    /// How often each token occurs in the answer.
    answered: HashMap<u32, u32>,
    /// Mirostat's largest surprise, in bits.
    mu: f32,
    shaped: Vec<f32>,
    order: Vec<u32>,
    work: Vec<Candidate>,
}

impl Chooser {
    /// `None` where there is nothing to do.
    pub(super) fn new(
        shaping: &Shaping,
        constraint: Option<Constraint>,
        sampling: Sampling,
    ) -> Option<Self> {
        if constraint.is_none() && *shaping == Shaping::NONE {
            return None;
        }
        let mu = shaping.mirostat.map_or(0.0, |mirostat| 2.0 * mirostat.tau);
        Some(Self {
            shaping: shaping.clone(),
            constraint,
            sampling,
            edits: Vec::new(),
            mask: Vec::new(),
            by_device: false,
            parts: HashMap::new(),
            answered: HashMap::new(),
            mu,
            shaped: Vec::new(),
            order: Vec::new(),
            work: Vec::new(),
        })
    }

    /// Makes ready for the token behind `tokens`, which the device chooses if it is `offered`.
    pub(super) fn prepare(&mut self, tokens: &[u32], vocabulary: usize, offered: bool) {
        let Shaping { typical_p, mirostat, xtc, dynamic, .. } = &self.shaping;
        let here = *typical_p < 1.0 || mirostat.is_some() || xtc.is_some() || dynamic.is_some();
        // What is wrong with a constraint is told where the token is chosen.
        self.by_device = offered
            && !here
            && self.adjust(tokens, vocabulary).is_ok()
            && self.edits.len() <= EDITS;
    }

    /// What the device is to do to the logits, if it chooses.
    pub(super) fn adjustment(&self) -> Option<Adjustment<'_>> {
        self.by_device.then(|| self.adjusted())
    }

    fn adjusted(&self) -> Adjustment<'_> {
        Adjustment { edits: &self.edits, mask: self.constraint.is_some().then_some(&self.mask) }
    }

    /// Whether a mask has to be found for every token.
    pub(super) const fn masks(&self) -> bool {
        self.constraint.is_some()
    }

    /// Whether the same is done to the logits of every step.
    pub(super) fn is_constant(&self) -> bool {
        let Shaping { repetition, frequency, presence, dry, .. } = &self.shaping;
        let penalises = *repetition != 1.0 || *frequency != 0.0 || *presence != 0.0;
        self.constraint.is_none() && !penalises && dry.is_none()
    }

    /// Why a device has found no token in these logits, if they are finite.
    pub(super) fn dead_end(&self, logits: &[f32]) -> Option<String> {
        let masked = self.constraint.is_some() && sample::argmax(logits).is_some();
        masked.then(|| "it allows no token that the model can give".into())
    }

    /// Chooses a token behind `tokens`, of which the last `position + 1 - prompt` ones are the answer's.
    ///
    /// # Errors
    /// Why the constraint allows no token.
    pub(super) fn choose(
        &mut self,
        logits: &[f32],
        tokens: &[u32],
        position: u32,
    ) -> Result<u32, String> {
        self.adjust(tokens, logits.len())?;
        let mut shaped = std::mem::take(&mut self.shaped);
        shaped.clear();
        shaped.extend_from_slice(logits);
        self.adjusted().apply(&mut shaped);
        self.shaped = shaped;
        if sample::argmax(&self.shaped).is_none()
            && let Some(why) = self.dead_end(logits)
        {
            return Err(why);
        }
        self.cut(position);
        let temperature = self.temperature();
        let sampling = Sampling { temperature, ..self.sampling };
        let id = sample::choose(&self.shaped, sampling, position, &mut self.work);
        if id != NOT_FINITE {
            self.chosen(id);
        }
        Ok(id)
    }

    /// Finds out what the constraint allows next, if there is one and the device does not know it already.
    pub(super) fn look_ahead(&mut self) {
        if let Some(constraint) = self.constraint.as_mut().filter(|_| !self.by_device) {
            constraint.look_ahead();
        }
    }

    /// Takes note of the token that is part of the answer now. True if the constraint allows nothing behind it.
    ///
    /// # Errors
    /// When the constraint does not take it.
    pub(super) fn taken(&mut self, id: u32) -> Result<bool, String> {
        *self.answered.entry(id).or_default() += 1;
        self.constraint.as_mut().map_or(Ok(false), |constraint| constraint.take(id))
    }

    /// Steps 1 to 5.
    fn adjust(&mut self, tokens: &[u32], vocabulary: usize) -> Result<(), String> {
        const NOTHING: [f32; 3] = [0.0, 1.0, 0.0];
        let Shaping { bias, repetition, frequency, presence, window, dry, .. } = &self.shaping;
        let parts = &mut self.parts;
        parts.clear();
        for (id, bias) in bias {
            parts.entry(*id).or_insert(NOTHING)[0] += bias;
        }
        let window = window.map_or(tokens.len(), |window| tokens.len().min(window as usize));
        let recent = &tokens[tokens.len() - window..];
        if *repetition != 1.0 {
            for id in recent {
                parts.entry(*id).or_insert(NOTHING)[1] = *repetition;
            }
        }
        if *frequency != 0.0 || *presence != 0.0 {
            for (id, count) in &self.answered {
                parts.entry(*id).or_insert(NOTHING)[2] += *frequency * *count as f32 + presence;
            }
        }
        if let Some(dry) = dry {
            for (id, length) in repetitions(recent, &dry.breakers) {
                if let Some(beyond) = length.checked_sub(dry.allowed as usize) {
                    let penalty = dry.multiplier * dry.base.powi(beyond as i32).min(f32::MAX);
                    parts.entry(id).or_insert(NOTHING)[2] += penalty;
                }
            }
        }
        let edit = |(id, [add, factor, subtract]): (&u32, &[f32; 3])| {
            sample::edit(*id, *add, *factor, *subtract)
        };
        self.edits.clear();
        self.edits.extend(parts.iter().map(edit));
        match &mut self.constraint {
            Some(constraint) => constraint.mask(vocabulary, &mut self.mask),
            None => Ok(()),
        }
    }

    /// Step 6.
    fn cut(&mut self, position: u32) {
        let Shaping { typical_p, mirostat, xtc, .. } = self.shaping;
        let largest = self.shaped.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let least = self.sampling.least(largest);
        self.shaped.iter_mut().filter(|l| **l < least).for_each(|l| *l = f32::NEG_INFINITY);
        if typical_p < 1.0 {
            let probabilities = Softmax::of(&self.shaped);
            let expected = probabilities.entropy(&self.shaped);
            let distance = |logit: f32| (-probabilities.ln(logit) - expected).abs();
            self.by(|a, b| distance(a).total_cmp(&distance(b)));
            let (mut mass, shaped) = (0.0, &self.shaped);
            let enough = self.order.iter().position(|id| {
                mass += probabilities.of_logit(shaped[*id as usize]);
                mass >= f64::from(typical_p)
            });
            self.keep(enough.map_or(usize::MAX, |last| last + 1));
        }
        if mirostat.is_some() {
            let probabilities = Softmax::of(&self.shaped);
            let most = f64::from(self.mu) * std::f64::consts::LN_2;
            for logit in &mut self.shaped {
                if *logit < largest && -probabilities.ln(*logit) > most {
                    *logit = f32::NEG_INFINITY;
                }
            }
        }
        if let Some(xtc) = xtc
            && uniform(self.sampling.seed, position) < xtc.probability
        {
            let probabilities = Softmax::of(&self.shaped);
            let above = |logit: f32| probabilities.of_logit(logit) >= f64::from(xtc.threshold);
            self.by(|a, b| b.total_cmp(&a));
            let likely =
                self.order.iter().take_while(|id| above(self.shaped[**id as usize])).count();
            for id in &self.order[..likely.saturating_sub(1)] {
                self.shaped[*id as usize] = f32::NEG_INFINITY;
            }
        }
    }

    /// Puts the tokens that are left in an order, the lower id first among equals.
    fn by(&mut self, compare: impl Fn(f32, f32) -> std::cmp::Ordering) {
        let logits = &self.shaped;
        self.order.clear();
        let left = |id: &u32| logits[*id as usize] > f32::NEG_INFINITY;
        self.order.extend((0..logits.len() as u32).filter(left));
        let of = |id: &u32| logits[*id as usize];
        self.order.sort_unstable_by(|a, b| compare(of(a), of(b)).then(a.cmp(b)));
    }

    /// Leaves out all but the first `count` of that order.
    fn keep(&mut self, count: usize) {
        for id in self.order.iter().skip(count.max(1)) {
            self.shaped[*id as usize] = f32::NEG_INFINITY;
        }
    }

    fn temperature(&self) -> f32 {
        let Some(DynamicTemperature { least, most, exponent }) = self.shaping.dynamic else {
            return self.sampling.temperature;
        };
        let left = self.shaped.iter().filter(|l| **l > f32::NEG_INFINITY).count();
        if left < 2 {
            return least;
        }
        let entropy = Softmax::of(&self.shaped).entropy(&self.shaped) / (left as f64).ln();
        least + (most - least) * (entropy as f32).powf(exponent)
    }

    /// What Mirostat learns of a token.
    fn chosen(&mut self, id: u32) {
        if let Some(Mirostat { tau, eta }) = self.shaping.mirostat {
            let ln = Softmax::of(&self.shaped).ln(self.shaped[id as usize]);
            let surprise = (-ln / std::f64::consts::LN_2) as f32;
            self.mu -= eta * (surprise - tau);
        }
    }
}

/// Probabilities at temperature 1.
struct Softmax {
    largest: f64,
    ln_sum: f64,
}

impl Softmax {
    fn of(logits: &[f32]) -> Self {
        let largest = f64::from(logits.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
        Self { largest, ln_sum: sum.ln() }
    }

    fn ln(&self, logit: f32) -> f64 {
        f64::from(logit) - self.largest - self.ln_sum
    }

    fn of_logit(&self, logit: f32) -> f64 {
        self.ln(logit).exp()
    }

    /// In nats.
    fn entropy(&self, logits: &[f32]) -> f64 {
        let part = |logit: &f32| {
            let ln = self.ln(*logit);
            if ln.is_finite() { -ln * ln.exp() } else { 0.0 }
        };
        logits.iter().map(part).sum()
    }
}

/// A number from 0 to 1 that is no token's noise.
fn uniform(seed: u64, position: u32) -> f32 {
    (sample::philox([position, XTC_DRAW, 0, 0], seed)[0] >> 8) as f32 / 16_777_216.0
}

/// For each token that would prolong a repetition: the length of the longest one that it would.
fn repetitions(tokens: &[u32], breakers: &[u32]) -> HashMap<u32, usize> {
    let mut longest = HashMap::new();
    let breaks = |id: &u32| breakers.binary_search(id).is_ok();
    let Some((last, before)) = tokens.split_last() else { return longest };
    if breaks(last) {
        return longest;
    }
    for (at, id) in before.iter().enumerate() {
        if id != last {
            continue;
        }
        // How far what ends here equals what ends at the end.
        let pairs = before[..at].iter().rev().zip(before.iter().rev());
        let same = pairs.take(LONGEST - 1).take_while(|(a, b)| a == b && !breaks(a)).count();
        let entry = longest.entry(tokens[at + 1]).or_insert(0);
        *entry = (*entry).max(same + 1);
    }
    longest
}

#[cfg(test)]
mod tests {
    use super::*;
    use orind_testing::random::Random;

    const INFINITY: f32 = f32::INFINITY;

    fn chooser(shaping: &Shaping) -> Chooser {
        let sampling = Sampling { temperature: 1.0, seed: 7, ..Sampling::GREEDY };
        Chooser::new(shaping, None, sampling).unwrap()
    }

    /// Logits after the steps 1 to 6.
    #[expect(clippy::needless_pass_by_value, reason = "it is made where it is passed")]
    fn shaped(shaping: Shaping, logits: &[f32], prompt: &[u32], answer: &[u32]) -> Vec<f32> {
        let mut chooser = chooser(&shaping);
        answer.iter().for_each(|id| assert!(!chooser.taken(*id).unwrap()));
        chooser.choose(logits, &[prompt, answer].concat(), 3).unwrap();
        chooser.shaped
    }

    #[test]
    fn nothing_to_do_leaves_the_choice_to_the_device() {
        assert!(Chooser::new(&Shaping::NONE, None, Sampling::GREEDY).is_none());
        assert!(Shaping::default() == Shaping::NONE);
    }

    #[test]
    fn penalties_follow_their_formulas() {
        let logits = [1.0, -1.0, 2.0, 4.0];
        let bias = vec![(1, 5.0), (9, 1.0), (3, -100.0)];
        let biased = shaped(Shaping { bias, ..Shaping::NONE }, &logits, &[], &[]);
        assert_eq!(biased, [1.0, 4.0, 2.0, -96.0]);
        let repetition = Shaping { repetition: 2.0, ..Shaping::NONE };
        let all = shaped(repetition.clone(), &logits, &[0, 1, 1], &[2]);
        assert_eq!(all, [0.5, -2.0, 1.0, 4.0]);
        let last = shaped(Shaping { window: Some(1), ..repetition }, &logits, &[0, 1, 1], &[2]);
        assert_eq!(last, [1.0, -1.0, 1.0, 4.0]);
        let counted = Shaping { frequency: 0.5, presence: 0.25, ..Shaping::NONE };
        assert_eq!(shaped(counted, &logits, &[3], &[2, 2, 0]), [0.25, -1.0, 0.75, 4.0]);
    }

    #[test]
    fn cuts_follow_their_definitions() {
        // Probabilities 1/2, 1/4, 1/8, 1/8.
        let logits = [8f32.ln(), 4f32.ln(), 2f32.ln(), 2f32.ln()];
        let left = |shaping: Shaping| {
            let shaped = shaped(shaping, &logits, &[], &[]);
            shaped.iter().map(|logit| *logit > -INFINITY).collect::<Vec<_>>()
        };
        // Entropy is 1.75 bits: the second token's surprise of 2 is nearest, then the first's of 1.
        let typical = |typical_p| left(Shaping { typical_p, ..Shaping::NONE });
        assert_eq!(typical(0.2), [false, true, false, false]);
        assert_eq!(typical(0.6), [true, true, false, false]);
        let xtc = |threshold| {
            left(Shaping { xtc: Some(Xtc { probability: 1.0, threshold }), ..Shaping::NONE })
        };
        assert_eq!(xtc(0.2), [false, true, true, true]);
        assert_eq!(xtc(0.1), [false, false, false, true]);
        assert_eq!(xtc(0.6), [true; 4]);
        let mirostat = Some(Mirostat { tau: 1.1, eta: 0.1 });
        assert_eq!(left(Shaping { mirostat, ..Shaping::NONE }), [true, true, false, false]);
    }

    /// Whatever is asked, the device, which does to the logits what it is told and chooses, and the host give one token.
    #[test]
    fn the_device_chooses_as_the_host_does() {
        const VOCABULARY: usize = 70;
        let mut random = Random(26);
        let (mut by_device, mut changed) = (0, 0);
        for case in 0..400 {
            let some = |random: &mut Random, of: &[f32]| random.pick(of);
            let breakers = vec![random.below(9) as u32];
            let dry = Dry { multiplier: 0.8, base: 1.75, allowed: 1, breakers };
            let shaping = Shaping {
                bias: (0..random.below(5))
                    .map(|_| (random.below(80) as u32, some(&mut random, &[-100.0, 1.5, 7.0])))
                    .collect(),
                repetition: some(&mut random, &[1.0, 1.0, 1.3]),
                frequency: some(&mut random, &[0.0, 0.0, 0.7]),
                presence: some(&mut random, &[0.0, 0.0, -0.4]),
                window: random.pick(&[None, Some(0), Some(6)]),
                dry: (random.below(2) == 1).then_some(dry),
                typical_p: some(&mut random, &[1.0, 1.0, 1.0, 0.9]),
                ..Shaping::NONE
            };
            let sampling = Sampling {
                temperature: some(&mut random, &[0.0, 0.8, 1.5]),
                top_k: random.pick(&[0, 20]),
                top_p: some(&mut random, &[1.0, 0.9]),
                min_p: sample::min_p(some(&mut random, &[0.0, 0.1])),
                seed: random.bits(),
            };
            let Some(mut chooser) = Chooser::new(&shaping, None, sampling) else { continue };
            let mut tokens: Vec<u32> = (0..8).map(|_| random.below(9) as u32).collect();
            for position in 0..6 {
                let logits = random.reals(VOCABULARY, 6.0);
                let choose =
                    |logits: &[f32]| sample::choose(logits, sampling, position, &mut Vec::new());
                chooser.prepare(&tokens, VOCABULARY, true);
                let device = chooser.adjustment().map(|adjustment| {
                    let mut adjusted = logits.clone();
                    adjustment.apply(&mut adjusted);
                    choose(&adjusted)
                });
                assert_eq!(device.is_some(), shaping.typical_p == 1.0);
                let host = chooser.choose(&logits, &tokens, position).unwrap();
                if let Some(device) = device {
                    assert_eq!(device, host, "case {case}: {shaping:?}, {sampling:?}");
                    (by_device, changed) =
                        (by_device + 1, changed + usize::from(host != choose(&logits)));
                }
                assert!(!chooser.taken(host).unwrap());
                tokens.push(host);
            }
        }
        assert!(by_device > 1000 && changed > 200, "{by_device}, {changed} changed");
    }

    #[test]
    fn more_changes_than_a_device_takes_are_made_here() {
        let repetition = Shaping { repetition: 1.5, ..Shaping::NONE };
        let mut chooser = chooser(&repetition);
        for (tokens, offered, by_device) in [
            (EDITS as u32, true, true),
            (EDITS as u32 + 1, true, false),
            (3, true, true),
            (3, false, false),
        ] {
            let tokens: Vec<u32> = (0..tokens).collect();
            chooser.prepare(&tokens, 2 * EDITS, offered);
            assert_eq!(chooser.adjustment().is_some(), by_device, "{} tokens", tokens.len());
        }
    }

    #[test]
    fn mirostat_steers_the_surprise() {
        let mut chooser =
            chooser(&Shaping { mirostat: Some(Mirostat { tau: 2.0, eta: 0.5 }), ..Shaping::NONE });
        let before = chooser.mu;
        // One token has all: a surprise of 0, 2 bits below.
        chooser.choose(&[50.0, 0.0], &[], 0).unwrap();
        assert!((chooser.mu - (before + 1.0)).abs() < 1e-4);
    }

    #[test]
    fn a_dynamic_temperature_follows_the_entropy() {
        let dynamic = Some(DynamicTemperature { least: 0.2, most: 1.0, exponent: 1.0 });
        let temperature = |logits: &[f32]| {
            let mut chooser = chooser(&Shaping { dynamic, ..Shaping::NONE });
            chooser.choose(logits, &[], 0).unwrap();
            chooser.temperature()
        };
        assert!((temperature(&[1.0, 1.0, 1.0]) - 1.0).abs() < 1e-6);
        assert!((temperature(&[90.0, 0.0]) - 0.2).abs() < 1e-6);
    }

    #[test]
    fn dry_knows_what_would_prolong_a_repetition() {
        let found = |tokens: &[u32], breakers: &[u32]| {
            let mut found: Vec<_> = repetitions(tokens, breakers).into_iter().collect();
            found.sort_unstable();
            found
        };
        // "1 2 3 ... 1 2": 3 would make it three; "4 2" went on with 5.
        assert_eq!(found(&[1, 2, 3, 4, 2, 5, 1, 2], &[]), [(3, 2), (5, 1)]);
        assert_eq!(found(&[1, 2, 3, 1, 2], &[1]), [(3, 1)]);
        assert_eq!(found(&[1, 2, 3, 1, 2], &[2]), []);
        assert_eq!(found(&[], &[]), []);
        let dry = Some(Dry { multiplier: 0.5, base: 2.0, allowed: 1, breakers: vec![] });
        let shaping = Shaping { dry, ..Shaping::NONE };
        assert_eq!(shaped(shaping, &[0.0; 4], &[1, 2, 3, 1, 2], &[]), [0.0, 0.0, 0.0, -1.0]);
    }

    #[test]
    fn what_is_neutral_chooses_as_the_device_does() {
        let logits: Vec<f32> = (0..50).map(|i| ((i * 37) % 50) as f32 / 9.0).collect();
        let sampling =
            Sampling { temperature: 0.8, top_k: 20, top_p: 0.9, seed: 3, ..Sampling::GREEDY };
        let shaping = Shaping { bias: vec![(0, 0.0)], ..Shaping::NONE };
        let mut chooser = Chooser::new(&shaping, None, sampling).unwrap();
        for position in 0..200 {
            let expected = sample::choose(&logits, sampling, position, &mut Vec::new());
            assert_eq!(chooser.choose(&logits, &[], position), Ok(expected));
        }
    }
}
