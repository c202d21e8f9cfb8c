//! Reference of [`Op::Sample`](crate::Op::Sample): logit edits and the sampling of a token.
//!
//! An [`Adjustment`] may change a row first: single logits, then a mask over the vocabulary.
//!
//! Greedy sampling takes the largest logit, the lowest id among equals. Otherwise min-p, top-k and
//! top-p cut the candidates, in this order. The token is then the largest of `logit / temperature +
//! gumbel(seed, position, id)`, which is a draw from the softmax over the candidates (Gumbel-max
//! trick). The noise is that of a counter-based generator, Philox4x32-10 (Salmon et al., SC 2011),
//! with the seed as key and (position, id) as counter. A discarded or repeated step therefore
//! samples the same token, on any device and in any batch.
//!
//! All arithmetic is plain `f32` or integer, including logarithm and exponential, so results agree
//! to the last bit on all devices (`kernels/src/cuda/sample.cuh` on GPUs).
//!
//! Logits are *not finite* if they contain a NaN or plus infinity, or nothing above minus infinity.
//! The result is then [`NOT_FINITE`] instead of a token. A token whose logit is minus infinity is
//! never sampled.

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 (or less) is greedy.
    pub temperature: f32,
    /// Top-k: number of candidates; 0 disables the limit.
    pub top_k: u32,
    /// Top-p: probability mass of the candidates; 1 disables the limit.
    pub top_p: f32,
    /// Logarithm of the smallest probability to keep, relative to the largest, at temperature 1:
    /// see [`min_p`]. Minus infinity (or NaN) disables the limit.
    pub min_p: f32,
    /// Key of the random number generator.
    pub seed: u64,
}

impl Sampling {
    pub const GREEDY: Self =
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: f32::NEG_INFINITY, seed: 0 };

    /// Smallest logit that min-p allows.
    #[must_use]
    pub fn least(&self, largest: f32) -> f32 {
        if self.min_p > f32::NEG_INFINITY {
            largest + self.min_p.min(0.0)
        } else {
            f32::NEG_INFINITY
        }
    }
}

/// Converts a probability to [`Sampling::min_p`]; 0 disables the limit.
#[must_use]
pub fn min_p(probability: f32) -> f32 {
    if probability < f32::MIN_POSITIVE { f32::NEG_INFINITY } else { logarithm(probability) }
}

/// Logit edit of one token, 16 bytes as GPUs read them: the token id, then the bits of `add`,
/// `factor` and `subtract`.
///
/// The edited logit is `x = logit + add`, then `x / factor` if positive, else `x * factor`, minus
/// `subtract`; each operation rounds.
pub type Edit = [i32; 4];

/// Packs a logit edit.
#[must_use]
pub const fn edit(id: u32, add: f32, factor: f32, subtract: f32) -> Edit {
    let [add, factor, subtract] = [add.to_bits(), factor.to_bits(), subtract.to_bits()];
    [id.cast_signed(), add.cast_signed(), factor.cast_signed(), subtract.cast_signed()]
}

fn edited(logit: f32, [_, add, factor, subtract]: Edit) -> f32 {
    let number = |bits: i32| f32::from_bits(bits.cast_unsigned());
    let (sum, factor) = (logit + number(add), number(factor));
    (if sum > 0.0 { sum / factor } else { sum * factor }) - number(subtract)
}

/// Most edits of a row that a device accepts.
pub const EDITS: usize = 1024;

/// Logit edits and a token mask, applied to one row before sampling.
///
/// A mailbox row has [`Adjustment::words`] words: the number of edits; 1 if there is a mask; two
/// unused words; the mask, padded to 16 bytes; the edits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Adjustment<'a> {
    /// Edits, at most one per token id; ids outside the vocabulary have no effect.
    pub edits: &'a [Edit],
    /// Bit `id % 32` of word `id / 32` is set for every allowed token. Other tokens are not edited;
    /// their logit becomes minus infinity unless it is not finite.
    pub mask: Option<&'a [i32]>,
}

impl<'a> Adjustment<'a> {
    const HEADER: usize = 4;

    /// Words of a mailbox row.
    #[must_use]
    pub const fn words(vocabulary: usize) -> usize {
        Self::edits_at(vocabulary) + 4 * EDITS
    }

    const fn edits_at(vocabulary: usize) -> usize {
        Self::HEADER + vocabulary.div_ceil(32).next_multiple_of(4)
    }

    /// Decodes a mailbox row; `None` if it changes nothing.
    #[must_use]
    pub fn of(row: &'a [i32], vocabulary: usize) -> Option<Self> {
        let &[count, masked, ..] = row else { return None };
        let (edits, _) = row.get(Self::edits_at(vocabulary)..)?.as_chunks();
        let edits = &edits[..edits.len().min(count.cast_unsigned() as usize)];
        let mask = (masked != 0).then(|| &row[Self::HEADER..][..vocabulary.div_ceil(32)]);
        (mask.is_some() || !edits.is_empty()).then_some(Self { edits, mask })
    }

    /// Mask and edits, each with its offset in the row.
    #[must_use]
    pub fn parts(&self, vocabulary: usize) -> [(usize, &'a [i32]); 2] {
        let mask = self.mask.unwrap_or_default();
        [(Self::HEADER, mask), (Self::edits_at(vocabulary), self.edits.as_flattened())]
    }

    /// First words of the row.
    #[must_use]
    pub fn header(&self) -> [i32; 2] {
        [self.edits.len() as i32, i32::from(self.mask.is_some())]
    }

    /// Applies the edits, then the mask.
    pub fn apply(&self, logits: &mut [f32]) {
        let allows = |id: usize| match self.mask {
            Some(mask) => mask.get(id / 32).is_some_and(|word| word >> (id % 32) & 1 != 0),
            None => true,
        };
        for edit in self.edits {
            let id = edit[0].cast_unsigned() as usize;
            if let Some(logit) = logits.get_mut(id).filter(|_| allows(id)) {
                *logit = edited(*logit, *edit);
            }
        }
        if self.mask.is_some() {
            let finite = |logit: &f32| *logit < f32::INFINITY;
            let others =
                logits.iter_mut().enumerate().filter(|(id, logit)| !allows(*id) && finite(logit));
            others.for_each(|(_, logit)| *logit = f32::NEG_INFINITY);
        }
    }
}

/// Token id if the logits are not finite; -1 as the `I32` of mailboxes and rings. It is outside
/// every vocabulary, so a step with it as input gathers zeroes.
pub const NOT_FINITE: u32 = u32::MAX;

/// Upper bound of [`gumbel`]: `-ln(-ln(1 - 2^-24))`, rounded up.
const GUMBEL_MAX: f32 = 16.7;

#[derive(Clone, Copy, Debug)]
pub struct Candidate {
    id: u32,
    logit: f32,
    /// Relative to the largest logit's, in units of 2^-31; only computed for top-p.
    weight: u32,
}

/// Samples a token id; [`NOT_FINITE`] if the logits are not finite. `work` is scratch for top-k and
/// top-p: with a capacity of `logits.len()`, nothing is allocated.
pub fn choose(logits: &[f32], sampling: Sampling, position: u32, work: &mut Vec<Candidate>) -> u32 {
    argmax(logits).map_or(NOT_FINITE, |best| choose_beside(best, logits, sampling, position, work))
}

/// [`choose`] with a known [`argmax`].
pub fn choose_beside(
    best: u32,
    logits: &[f32],
    sampling: Sampling,
    position: u32,
    work: &mut Vec<Candidate>,
) -> u32 {
    let largest = logits.get(best as usize).copied().unwrap_or(f32::NEG_INFINITY);
    let scale = 1.0 / sampling.temperature;
    // A temperature so small that no score is finite counts as 0.
    if sampling.temperature.is_nan()
        || sampling.temperature <= 0.0
        || !(largest * scale).is_finite()
    {
        return best;
    }
    let noise = |id| gumbel(sampling.seed, position, id);
    let (ids, least) = (0u32.., sampling.least(largest));
    let all = || {
        let all = ids.clone().zip(logits).filter(|(_, logit)| **logit >= least);
        all.map(|(id, &logit)| Candidate { id, logit, weight: 0 })
    };
    let top_k = sampling.top_k as usize;
    // NaN counts as 0.
    let top_p = if sampling.top_p > 0.0 { sampling.top_p.min(1.0) } else { 0.0 };
    let cut_k = top_k > 0 && top_k < logits.len();
    if !cut_k && top_p >= 1.0 {
        return draw(all(), best, largest, scale, noise);
    }

    let weigh = |c: Candidate| Candidate { weight: weight((c.logit - largest) * scale), ..c };
    let total = |of: &[Candidate]| of.iter().map(|c| u64::from(c.weight)).sum::<u64>();
    work.clear();
    if cut_k {
        work.extend(all());
        if top_k < work.len() {
            work.select_nth_unstable_by(top_k - 1, by_logit);
            work.truncate(top_k);
        }
        work.sort_unstable_by(by_logit);
        if top_p < 1.0 {
            work.iter_mut().for_each(|c| *c = weigh(*c));
            let total = total(work);
            truncate_to_mass(work, part_of(total, top_p));
        }
    } else {
        work.extend(all().map(weigh).filter(|c| c.weight > 0));
        let total = total(work);
        let mass = part_of(total, top_p);
        // A token below this weight is never needed: all such tokens together weigh less than the
        // mass that is cut.
        work.retain(|c| u64::from(c.weight) * logits.len() as u64 >= total - mass);
        work.sort_unstable_by(by_logit);
        truncate_to_mass(work, mass);
    }
    draw(work.iter().copied(), best, largest, scale, noise)
}

/// Keeps the shortest prefix whose weights reach `mass`, at least one candidate.
fn truncate_to_mass(sorted: &mut Vec<Candidate>, mass: u64) {
    let mut sum = 0;
    let needed = sorted.iter().position(|c| {
        sum += u64::from(c.weight);
        sum >= mass
    });
    if let Some(last) = needed {
        sorted.truncate(last + 1);
    }
}

/// `p * total`, with `p` in steps of 2^-24.
fn part_of(total: u64, p: f32) -> u64 {
    let fraction = (p * 16_777_216.0) as u64;
    (total >> 24) * fraction + (((total & 0xff_ffff) * fraction) >> 24)
}

/// `e^x` for `x <= 0`, in units of 2^-31: the exponential of `kernels/src/cuda/base.cuh`, 0 where
/// the result vanishes.
fn weight(x: f32) -> u32 {
    const COEFFICIENTS: [f32; 6] = [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    if x < -22.0 {
        return 0;
    }
    let power = (x * std::f32::consts::LOG2_E).round_ties_even();
    let r = power.mul_add(-355.0 / 512.0, x);
    let r = power.mul_add(2.121_944_4e-4, r);
    let y = COEFFICIENTS.into_iter().fold(1.0 / 720.0, |y: f32, k| y.mul_add(r, k));
    // Biased by 31 on top of the exponent; normal for powers of -32 and above.
    let scale = f32::from_bits((127 + 31 + power as i32).cast_unsigned() << 23);
    (y * scale) as u32
}

/// Natural logarithm of a normal positive number, relative error 2e-7: the exponent's logarithm
/// plus a polynomial in `mantissa - 1`, with the mantissa in `[sqrt(1/2), sqrt(2))`.
#[must_use]
pub fn logarithm(x: f32) -> f32 {
    /// Coefficients of `(ln(1 + r) - r) / r^2`: minus a half, then a fit at the Chebyshev points.
    const COEFFICIENTS: [f32; 8] = [
        1.271_230_7e-1,
        -1.297_223_9e-1,
        1.420_217_5e-1,
        -1.664_224_7e-1,
        2.000_146_8e-1,
        -2.500_029_8e-1,
        3.333_332_8e-1,
        -0.5,
    ];
    let bits = x.to_bits().cast_signed();
    let power = (bits - std::f32::consts::FRAC_1_SQRT_2.to_bits().cast_signed()) >> 23;
    let r = f32::from_bits((bits - (power << 23)).cast_unsigned()) - 1.0;
    let y = COEFFICIENTS.into_iter().fold(-8.101_559e-2, |y: f32, k| y.mul_add(r, k));
    (power as f32).mul_add(std::f32::consts::LN_2, (r * r).mul_add(y, r))
}

fn by_logit(a: &Candidate, b: &Candidate) -> std::cmp::Ordering {
    // +0 and -0 are equal.
    (b.logit + 0.0).total_cmp(&(a.logit + 0.0)).then(a.id.cmp(&b.id))
}

/// Candidate with the largest `logit * scale + gumbel`. Computes noise only where it could still
/// win.
fn draw(
    candidates: impl Iterator<Item = Candidate>,
    best: u32,
    largest: f32,
    scale: f32,
    noise: impl Fn(u32) -> f32,
) -> u32 {
    let mut winner = (largest * scale + noise(best), best);
    for c in candidates {
        let score = c.logit * scale;
        if score + GUMBEL_MAX < winner.0 || score.is_nan() {
            continue;
        }
        let noisy = score + noise(c.id);
        if noisy > winner.0 || (noisy == winner.0 && c.id < winner.1) {
            winner = (noisy, c.id);
        }
    }
    winner.1
}

/// Index of the largest element, the lowest among equals; `None` if the logits are not finite.
#[must_use]
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best = (f32::NEG_INFINITY, 0);
    for (id, &logit) in (0u32..).zip(logits) {
        // A NaN counts as infinity.
        let logit = if logit < f32::INFINITY { logit } else { f32::INFINITY };
        if logit > best.0 {
            best = (logit, id);
        }
    }
    best.0.is_finite().then_some(best.1)
}

/// A standard Gumbel variate for one token at one position.
#[must_use]
pub fn gumbel(seed: u64, position: u32, id: u32) -> f32 {
    let word = philox([position, id, 0, 0], seed)[0];
    // 24 bits, centred: never 0. The largest would round to 1, whose variate is infinite.
    let uniform = ((word >> 8) as f32 + 0.5) * (1.0 / 16_777_216.0);
    -logarithm(-logarithm(uniform.min(1.0 - f32::EPSILON / 2.0)))
}

/// Philox4x32-10 with the constants of the paper.
#[must_use]
pub fn philox(mut counter: [u32; 4], key: u64) -> [u32; 4] {
    const M: [u64; 2] = [0xD251_1F53, 0xCD9E_8D57];
    const W: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];
    let mut key = [key as u32, (key >> 32) as u32];
    for _ in 0..10 {
        let a = M[0] * u64::from(counter[0]);
        let b = M[1] * u64::from(counter[2]);
        counter = [
            (b >> 32) as u32 ^ counter[1] ^ key[0],
            b as u32,
            (a >> 32) as u32 ^ counter[3] ^ key[1],
            a as u32,
        ];
        key = [key[0].wrapping_add(W[0]), key[1].wrapping_add(W[1])];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Known answers of the Random123 distribution (`kat_vectors`, philox4x32 10).
    #[test]
    fn philox_known_answers() {
        assert_eq!(philox([0; 4], 0), [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        assert_eq!(
            philox([u32::MAX; 4], u64::MAX),
            [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]
        );
        assert_eq!(
            philox([0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344], 0x299f_31d0_a409_3822),
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1]
        );
    }

    #[test]
    fn logarithm_and_weights_are_accurate() {
        let near_one = (0..4000).map(|i| 1.0 - f32::EPSILON / 2.0 * (1 + i * i) as f32);
        let all = (1..100_000).map(|i| i as f32 / 4096.0).chain((0..100).map(|i| 0.5f32.powi(i)));
        for x in near_one.chain(all) {
            let exact = f64::from(x).ln();
            let error = (f64::from(logarithm(x)) - exact).abs();
            assert!(error <= 2e-7 * exact.abs(), "{x:e}: {error:e} of {exact:e}");
        }
        for i in 0..30_000 {
            let x = -(i as f32) / 1000.0;
            let exact = f64::from(x).exp() * 2f64.powi(31);
            let error = (f64::from(weight(x)) - exact).abs();
            assert!(error <= 1.0 + 3e-7 * exact, "{x}: {error:e} of {exact:e}");
        }
        assert_eq!((weight(0.0), weight(f32::NEG_INFINITY)), (1 << 31, 0));
    }

    #[test]
    fn the_largest_draw_is_finite() {
        let (seed, position, id) = (1, 306, 90_498);
        assert_eq!(philox([position, id, 0, 0], seed)[0] >> 8, 0x00ff_ffff);
        let largest = gumbel(seed, position, id);
        assert!(largest > 16.0 && largest < GUMBEL_MAX, "{largest}");
    }

    fn naive(logits: &[f32], s: Sampling, position: u32) -> u32 {
        let mut order: Vec<u32> =
            (0..logits.len() as u32).filter(|&i| !logits[i as usize].is_nan()).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
        if s.temperature <= 0.0 {
            return order[0];
        }
        if s.top_k > 0 {
            order.truncate(s.top_k as usize);
        }
        if s.min_p > f32::NEG_INFINITY {
            let least = logits[order[0] as usize] + s.min_p;
            order.retain(|&i| logits[i as usize] >= least);
        }
        let weight = |&i: &u32| {
            f64::from((logits[i as usize] - logits[order[0] as usize]) / s.temperature).exp()
        };
        let total: f64 = order.iter().map(weight).sum();
        let mut sum = 0.0;
        let kept = order
            .iter()
            .take_while(|i| {
                let take = sum < f64::from(s.top_p) * total;
                sum += weight(i);
                take
            })
            .count()
            .max(1);
        let noisy =
            |&i: &u32| logits[i as usize] * (1.0 / s.temperature) + gumbel(s.seed, position, i);
        *order[..kept].iter().max_by(|a, b| noisy(a).total_cmp(&noisy(b)).then(b.cmp(a))).unwrap()
    }

    #[test]
    fn pruned_sampling_equals_naive_sampling() {
        let mut work = Vec::new();
        for case in 0..400u32 {
            let word = |i: u32| philox([i, case, 7, 0], 42);
            let logits: Vec<f32> =
                (0..300).map(|i| (word(i)[0] as f32 / 4e9 - 0.5) * 20.0).collect();
            let s = Sampling {
                temperature: [0.0, 0.3, 1.0, 2.0][case as usize % 4],
                top_k: [0, 1, 5, 40, 1000][case as usize % 5],
                top_p: [1.0, 0.9, 0.5, 0.0][case as usize / 4 % 4],
                min_p: min_p([0.0, 0.5, 1e-3][case as usize / 16 % 3]),
                seed: u64::from(case),
            };
            assert_eq!(
                choose(&logits, s, case, &mut work),
                naive(&logits, s, case),
                "case {case}: {s:?}"
            );
        }
    }

    #[test]
    fn draws_follow_the_softmax() {
        let logits = [0.0f32, 1.0, 2.0, f32::NEG_INFINITY];
        let s = Sampling { temperature: 1.0, seed: 9, ..Sampling::GREEDY };
        let mut counts = [0u32; 4];
        let draws = 20_000;
        for position in 0..draws {
            counts[choose(&logits, s, position, &mut Vec::new()) as usize] += 1;
        }
        let total: f64 = logits.iter().map(|&l| f64::from(l).exp()).sum();
        for (i, &count) in counts.iter().enumerate() {
            let p = f64::from(logits[i]).exp() / total;
            let sigma = (f64::from(draws) * p * (1.0 - p)).sqrt();
            assert!(
                (f64::from(count) - f64::from(draws) * p).abs() <= 4.0 * sigma + 0.5,
                "{i}: {count}"
            );
        }
    }

    /// Devices agree on equal scores only because all of them prefer the lower id.
    #[test]
    fn the_lower_id_wins_among_equal_scores() {
        let s = Sampling { temperature: 1.0, seed: 5, ..Sampling::GREEDY };
        let (mut best_first, mut best_last) = (0, 0);
        for position in 0..1000 {
            let (first, second) = (gumbel(s.seed, position, 0), gumbel(s.seed, position, 1));
            let logit = second - first;
            if logit + first == second {
                assert_eq!(choose(&[logit, 0.0], s, position, &mut Vec::new()), 0, "{position}");
                *if logit > 0.0 { &mut best_first } else { &mut best_last } += 1;
            }
        }
        assert!(best_first > 0 && best_last > 0);
    }

    /// Weights are relative to the largest logit, so large logits at a low temperature do not
    /// overflow.
    #[test]
    fn top_p_works_for_large_logits_at_a_low_temperature() {
        let s = Sampling { temperature: 0.05, top_p: 0.9, seed: 5, ..Sampling::GREEDY };
        for s in [s, Sampling { top_k: 2, ..s }] {
            let mut drawn = [0; 3];
            for position in 0..100 {
                drawn[choose(&[40.0, 40.0, 30.0], s, position, &mut Vec::new()) as usize] += 1;
            }
            assert!(drawn[0] > 20 && drawn[1] > 20 && drawn[2] == 0, "{s:?}: {drawn:?}");
        }
    }

    #[test]
    fn a_temperature_that_is_not_positive_is_greedy() {
        for temperature in [0.0, -0.0, -1.0, f32::NEG_INFINITY, f32::NAN] {
            let s = Sampling { temperature, seed: 5, ..Sampling::GREEDY };
            for position in 0..100 {
                assert_eq!(
                    choose(&[1.0, 2.0, 1.5], s, position, &mut Vec::new()),
                    1,
                    "{temperature}"
                );
            }
        }
    }

    #[test]
    fn logits_that_are_not_finite_yield_no_token() {
        let (nan, infinity) = (f32::NAN, f32::INFINITY);
        let drawn = Sampling { temperature: 1.0, seed: 1, ..Sampling::GREEDY };
        let ways = [
            Sampling::GREEDY,
            drawn,
            Sampling { top_k: 2, ..drawn },
            Sampling { top_p: 0.9, ..drawn },
            Sampling { top_k: 2, top_p: 0.9, ..drawn },
        ];
        for way in ways {
            let choose = |logits: &[f32]| choose(logits, way, 0, &mut Vec::new());
            for odd in [nan, -nan, infinity] {
                for logits in [[odd, 3.0, 1.0], [1.0, 3.0, odd], [3.0, odd, -infinity], [odd; 3]] {
                    assert_eq!(choose(&logits), NOT_FINITE, "{logits:?}, {way:?}");
                }
            }
            assert_eq!(choose(&[-infinity; 3]), NOT_FINITE);
            assert_eq!(choose(&[]), NOT_FINITE);
            assert_eq!(choose(&[-infinity, f32::MIN, -infinity]), 1, "{way:?}");
            assert_eq!(choose(&[-infinity, f32::MAX, -infinity]), 1, "{way:?}");
        }
        assert_eq!(NOT_FINITE.cast_signed(), -1);
        assert_eq!(argmax(&[1.0, 2.0, 2.0]), Some(1));
    }

    #[test]
    fn a_temperature_without_finite_scores_is_greedy() {
        for temperature in [1e-45, 1e-40, 1e-38] {
            let s = Sampling { temperature, seed: 3, ..Sampling::GREEDY };
            for logits in [[-4.0, -3.0, -5.0], [0.0, 1.0, 0.5], [-1.0, 0.0, -0.0]] {
                assert_eq!(choose(&logits, s, 0, &mut Vec::new()), 1, "{logits:?} / {temperature}");
            }
        }
    }
}
