//! Tests of the sampler: the same token as `plan::sample`, always.

use orind_kernels::catalogue::Kernel;
use orind_kernels::params::SampleParams;

use super::device::Device;
use orind_testing::random::Random;
use plan::sample::{self, Adjustment, Edit, Sampling, choose, gumbel};

/// Sampling parameters of a row, and its position.
type Row = (Sampling, u32);

fn rows(random: &mut Random, count: usize) -> Vec<Row> {
    let row = |_| {
        let sampling = Sampling {
            // The last temperature makes every score infinite.
            temperature: random.pick(&[0.0, 0.3, 0.7, 1.0, 2.0, 1e-40]),
            top_k: random.pick(&[0, 0, 1, 5, 40, 100_000]),
            top_p: random.pick(&[1.0, 0.95, 0.9, 0.5, 0.1, 0.0, f32::NAN]),
            min_p: random.pick(&[
                f32::NEG_INFINITY,
                f32::NEG_INFINITY,
                -0.1,
                -3.0,
                -9.0,
                0.0,
                1.0,
                f32::NAN,
            ]),
            seed: random.bits(),
        };
        (sampling, random.below(5000) as u32)
    };
    (0..count).map(row).collect()
}

#[test]
fn tokens_match_the_definition() {
    let mut random = Random(11);
    let (mut seen, mut changed) = (0, 0);
    for case in 0..400u64 {
        let rows = rows(&mut random, 1 + case as usize % 10);
        let vocabulary = 1 + random.below(if case % 8 == 0 { 1500 } else { 200 });
        let scale = random.pick(&[4.0, 20.0, 200.0]);
        let mut logits = random.reals(rows.len() * vocabulary, scale);
        match case % 16 {
            // Either sign, because a NaN's sign depends on the processor.
            0 => {
                let nan = random.pick(&[f32::NAN, -f32::NAN]);
                logits[random.below(vocabulary)] = nan;
            }
            1 => logits[random.below(vocabulary)] = f32::NEG_INFINITY,
            2 => logits[random.below(vocabulary)] = f32::INFINITY,
            // Many equal logits, including zeroes of both signs.
            3 => logits.iter_mut().for_each(|l| *l = (*l / 4.0).round()),
            4 => logits.iter_mut().for_each(|l| *l = (*l - 100.0).min(0.0) * 0.0),
            5 => logits.iter_mut().for_each(|l| *l = -l.abs() - 1.0),
            6 if case < 40 => logits.fill(f32::NEG_INFINITY),
            6 => logits.fill(f32::NAN),
            _ => {}
        }
        let parts = 1 + random.below(6) as u32;
        let made: Vec<_> = rows.iter().map(|_| adjustment(&mut random, vocabulary)).collect();
        // Some launches have no logit edits, like plans without them.
        let made = if case % 3 == 0 { Vec::new() } else { made };
        let adjustments: Vec<Adjustment<'_>> =
            made.iter().map(|(edits, mask)| Adjustment { edits, mask: mask.as_deref() }).collect();
        let got = run(&logits, &rows, &adjustments, parts, case);
        for (i, (&(sampling, position), token)) in rows.iter().zip(got).enumerate() {
            let logits = &logits[i * vocabulary..][..vocabulary];
            let mut adjusted = logits.to_vec();
            if let Some(adjustment) = adjustments.get(i) {
                adjustment.apply(&mut adjusted);
            }
            let want = choose(&adjusted, sampling, position, &mut Vec::new());
            assert_eq!(token, want, "case {case}, {sampling:?} at {position}");
            seen += 1;
            changed += usize::from(want != choose(logits, sampling, position, &mut Vec::new()));
        }
    }
    assert!(seen > 2000 && changed > 500, "{seen} rows, {changed} changed");
}

/// No edits for half the rows; some ids beyond the vocabulary.
fn adjustment(random: &mut Random, vocabulary: usize) -> (Vec<Edit>, Option<Vec<i32>>) {
    let step = random.pick(&[1, 3, 7]);
    let edits = (0..random.pick(&[0, 0, 1, 30, 300])).map(|i| {
        let (factor, subtract) = (random.pick(&[1.0, 1.0, 1.3, 0.5]), random.real(5.0));
        sample::edit(i * step, random.real(20.0), factor, subtract)
    });
    let edits = edits.collect();
    let masked = random.below(3) == 0;
    let words = vocabulary.div_ceil(32);
    let mask = (0..words).map(|_| random.bits() as i32 & random.bits() as i32).collect();
    (edits, masked.then_some(mask))
}

/// Scores within a rounding error of each other: the definition's token wins.
#[test]
fn adjacent_scores_are_ordered_as_in_the_definition() {
    let mut random = Random(12);
    let mut decided = [0; 2];
    for case in 0..8 {
        let rows: Vec<Row> = (0..64)
            .map(|_| {
                let s = Sampling { temperature: 1.0, seed: random.bits(), ..Sampling::GREEDY };
                (s, random.below(5000) as u32)
            })
            .collect();
        let logits: Vec<f32> = rows
            .iter()
            .flat_map(|&(s, position)| {
                let noise = gumbel(s.seed, position, 0) - gumbel(s.seed, position, 1);
                [
                    0.0,
                    f32::from_bits(noise.to_bits().wrapping_add_signed(random.below(3) as i32 - 1)),
                ]
            })
            .collect();
        let got = run(&logits, &rows, &[], 1, case);
        for ((&(s, position), token), logits) in rows.iter().zip(got).zip(logits.chunks(2)) {
            assert_eq!(token, choose(logits, s, position, &mut Vec::new()), "{s:?} at {position}");
            decided[token as usize] += 1;
        }
    }
    assert!(decided[0] > 20 && decided[1] > 20, "{decided:?}");
}

/// The tokens; checks every place they are written to.
fn run(
    logits: &[f32],
    rows: &[Row],
    adjustments: &[Adjustment<'_>],
    parts: u32,
    seed: u64,
) -> Vec<u32> {
    let mut device = Device::new(seed);
    let n = rows.len();
    let vocabulary = logits.len() / n;
    let positions: Vec<i32> = rows.iter().map(|(_, position)| *position as i32).collect();
    let seeds: Vec<u8> = rows.iter().flat_map(|(s, _)| s.seed.to_le_bytes()).collect();
    let positions_at = device.integers(&positions);
    let words = Adjustment::words(vocabulary);
    let mut asked = vec![0; words * adjustments.len()];
    for (row, adjustment) in asked.chunks_mut(words).zip(adjustments) {
        row[..2].copy_from_slice(&adjustment.header());
        for (at, part) in adjustment.parts(vocabulary) {
            row[at..at + part.len()].copy_from_slice(part);
        }
    }
    let params = SampleParams {
        logits: device.floats(logits),
        temperature: device.floats(&rows.iter().map(|(s, _)| s.temperature).collect::<Vec<_>>()),
        top_k: device.integers(&rows.iter().map(|(s, _)| s.top_k as i32).collect::<Vec<_>>()),
        top_p: device.floats(&rows.iter().map(|(s, _)| s.top_p).collect::<Vec<_>>()),
        min_p: device.floats(&rows.iter().map(|(s, _)| s.min_p).collect::<Vec<_>>()),
        seed: device.bytes(&seeds),
        positions: positions_at,
        ids: device.scratch(n),
        next_tokens: device.scratch(n),
        next_positions: positions_at,
        ring: device.integers(&vec![-1; 4 * n]),
        cursor: device.integers(&[6]),
        partial: device.scratch(4 * n * parts as usize),
        counters: device.integers(&vec![0; n + 1]),
        candidates: device.scratch(2 * n * vocabulary),
        adjustments: if asked.is_empty() { 0 } else { device.integers(&asked) },
        adjusted: device.scratch(n * vocabulary),
        vocabulary: vocabulary as u32,
        rows: n as u32,
        ring_entries: 4,
        adjustment_words: words as u32,
    };
    device.launch(Kernel::Sample, [parts, params.rows, 1], 0, &params);
    let tokens = device.words(params.ids);
    assert_eq!(device.words(params.next_tokens), tokens);
    let after: Vec<u32> = positions.iter().map(|&p| p as u32 + 1).collect();
    assert_eq!(device.words(positions_at), after);
    // Entry 6 % 4 of the ring, and no other.
    let mut ring = vec![u32::MAX; 4 * n];
    ring[2 * n..3 * n].copy_from_slice(&tokens);
    assert_eq!(device.words(params.ring), ring);
    assert_eq!(device.words(params.cursor), [7]);
    assert!(device.words(params.counters).iter().all(|&c| c == 0));
    tokens
}
