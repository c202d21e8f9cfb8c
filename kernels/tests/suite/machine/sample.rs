//! Sampling, against the plain definition: sort, cut, draw.

use orind_kernels::catalogue::Kernel;
use orind_kernels::params::SampleParams;

use super::device::Device;
use orind_testing::random::Random;

/// How a row is sampled.
#[derive(Clone, Copy, Debug)]
struct Row {
    temperature: f32,
    top_k: i32,
    top_p: f32,
    seed: u64,
    position: i32,
}

/// Philox4x32-10, first word.
fn philox(position: u32, id: u32, seed: u64) -> u32 {
    let (mut c, mut k) = ([position, id, 0, 0], [seed as u32, (seed >> 32) as u32]);
    for _ in 0..10 {
        let a = 0xd251_1f53 * u64::from(c[0]);
        let b = 0xcd9e_8d57 * u64::from(c[2]);
        c = [(b >> 32) as u32 ^ c[1] ^ k[0], b as u32, (a >> 32) as u32 ^ c[3] ^ k[1], a as u32];
        k = [k[0].wrapping_add(0x9e37_79b9), k[1].wrapping_add(0xbb67_ae85)];
    }
    c[0]
}

fn noisy(row: Row, logit: f32, id: u32) -> f64 {
    let word = philox(row.position as u32, id, row.seed) >> 8;
    let uniform = ((word as f32 + 0.5) / 16_777_216.0).min(1.0 - f32::EPSILON / 2.0);
    f64::from(logit) / f64::from(row.temperature) - (-f64::from(uniform).ln()).ln()
}

/// What stands for a token where logits are not finite.
const NOT_FINITE: u32 = u32::MAX;

/// The token, and by how much it won.
fn choose(logits: &[f32], row: Row) -> (u32, f64) {
    let mut order: Vec<u32> = (0..logits.len() as u32).collect();
    let logit = |id: u32| logits[id as usize];
    order.sort_by(|&a, &b| logit(b).total_cmp(&logit(a)).then(a.cmp(&b)));
    let best = order[0];
    if logits.iter().any(|l| l.is_nan()) || logit(best).is_infinite() {
        return (NOT_FINITE, f64::INFINITY);
    }
    if row.temperature <= 0.0 || !(logit(best) * (1.0 / row.temperature)).is_finite() {
        return (best, f64::INFINITY);
    }
    if row.top_k > 0 {
        order.truncate(row.top_k as usize);
    }
    let weight =
        |id: &u32| (f64::from(logit(*id) - logit(best)) / f64::from(row.temperature)).exp();
    let mass = f64::from(row.top_p) * order.iter().map(weight).sum::<f64>();
    let mut sum = 0.0;
    let kept = order.iter().position(|id| {
        sum += weight(id);
        sum >= mass
    });
    if let Some(last) = kept.filter(|_| row.top_p < 1.0) {
        order.truncate(last + 1);
    }
    let mut scores: Vec<(f64, u32)> =
        order.into_iter().map(|id| (noisy(row, logit(id), id), id)).collect();
    scores.sort_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
    (scores[0].1, scores.get(1).map_or(f64::INFINITY, |second| scores[0].0 - second.0))
}

#[test]
fn tokens_are_those_of_the_definition() {
    let mut random = Random(11);
    let mut close = 0;
    for case in 0..60u64 {
        let rows: Vec<Row> = (0..1 + case % 3)
            .map(|_| Row {
                // With the last one no score is finite.
                temperature: random.pick(&[0.0, 0.3, 1.0, 2.0, 1e-40]),
                top_k: random.pick(&[0, 1, 5, 40, 100_000]),
                top_p: random.pick(&[1.0, 0.9, 0.5, 0.0]),
                seed: random.bits(),
                position: random.below(5000) as i32,
            })
            .collect();
        let vocabulary = 1 + random.below(1500);
        let scale = random.pick(&[8.0, 200.0]);
        let mut logits = random.reals(rows.len() * vocabulary, scale);
        match case % 10 {
            // Either sign: which one a NaN has depends on the processor.
            0 => {
                let nan = random.pick(&[f32::NAN, -f32::NAN]);
                logits[random.below(vocabulary)] = nan;
            }
            1 => logits[random.below(vocabulary)] = f32::NEG_INFINITY,
            2 => logits[random.below(vocabulary)] = f32::INFINITY,
            3 => logits.iter_mut().for_each(|l| *l = l.round()),
            5 => logits.iter_mut().for_each(|l| *l = -l.abs() - 1.0),
            4 if case < 20 => logits.fill(f32::NEG_INFINITY),
            4 => logits.fill(f32::NAN),
            _ => {}
        }
        let parts = 1 + random.below(6) as u32;
        let got = run(&logits, &rows, parts, case);
        for (i, (&row, token)) in rows.iter().zip(got).enumerate() {
            let (want, margin) = choose(&logits[i * vocabulary..][..vocabulary], row);
            // Where two are as good as equal, rounding decides.
            if margin < 1e-4 {
                close += 1;
            } else {
                assert_eq!(token, want, "case {case}, {row:?}");
            }
        }
    }
    assert!(close <= 3, "{close} cases decide nothing");
}

/// The tokens; checks every place they are written to.
fn run(logits: &[f32], rows: &[Row], parts: u32, seed: u64) -> Vec<u32> {
    let mut device = Device::new(seed);
    let n = rows.len();
    let vocabulary = logits.len() / n;
    let positions: Vec<i32> = rows.iter().map(|r| r.position).collect();
    let seeds: Vec<u8> = rows.iter().flat_map(|r| r.seed.to_le_bytes()).collect();
    let positions_at = device.integers(&positions);
    let params = SampleParams {
        logits: device.floats(logits),
        temperature: device.floats(&rows.iter().map(|r| r.temperature).collect::<Vec<_>>()),
        top_k: device.integers(&rows.iter().map(|r| r.top_k).collect::<Vec<_>>()),
        top_p: device.floats(&rows.iter().map(|r| r.top_p).collect::<Vec<_>>()),
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
        vocabulary: vocabulary as u32,
        rows: n as u32,
        ring_entries: 4,
        reserved: 0,
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
