//! Tests of attention with and without fused RoPE and KV cache write, and of both separately.

mod inputs;

use orind_kernels::catalogue::launch::{
    CACHE_BLOCK, attention_counters, attention_grid, attention_partial_bytes,
    prefill_attention_grid, prefill_attention_shared_bytes, rope_kv_grid,
};
use orind_kernels::catalogue::{CacheType, Kernel};
use orind_kernels::params::AttentionParams;

use super::device::Device;
use super::numbers;
pub(crate) use inputs::How;
use inputs::{EPS, Inputs, SLOTS, Shape, Which, all, entries, store, stored, table};
use orind_testing::random::Random;
use sass::count::Counters;

/// Runs a step. Returns output, keys and values, and attention's counters.
fn run(
    s: &Shape<'_>,
    inputs: &Inputs,
    how: How,
    seed: u64,
) -> (Vec<f32>, Vec<u8>, Vec<u8>, Counters) {
    let mut device = Device::new(seed);
    let rows = s.rows.len();
    let [heads, kv_heads, splits, count] =
        [s.heads, s.kv_heads, s.splits, rows].map(|n| u32::try_from(n).unwrap());
    let (dim, group) = (s.dim as u32, heads / kv_heads);
    let kernel = match how {
        How::Prefill => Kernel::prefill_attention(dim, group, s.cache),
        How::Half => Kernel::prefill_attention_half(dim, group, s.cache),
        How::Fused | How::Rows => Kernel::attention(dim, group, s.cache),
    };
    let kernel = kernel.unwrap();
    let grid = match how {
        How::Prefill | How::Half => prefill_attention_grid(kernel, heads, kv_heads, count),
        How::Fused | How::Rows => attention_grid(kernel, heads, kv_heads, splits, count),
    };
    let (grid, shared) = (grid.unwrap(), prefill_attention_shared_bytes(kernel));
    let [rows_, heads_, dim_, capacity_] = [rows, s.heads, s.dim, s.capacity].map(|n| n as u64);
    let partial = attention_partial_bytes(rows_, heads_, dim_, capacity_, s.ring);
    let (slots, positions): (Vec<i32>, Vec<i32>) = s.rows.iter().copied().unzip();
    let mut params = AttentionParams {
        q: device.floats(&inputs.q),
        k: device.floats(&inputs.k),
        v: device.floats(&inputs.v),
        table: device.floats(&inputs.table),
        slots: device.integers(&slots),
        positions: device.integers(&positions),
        q_norm: if s.norm { device.floats(&inputs.q_norm) } else { 0 },
        k_norm: if s.norm { device.floats(&inputs.k_norm) } else { 0 },
        keys: device.bytes(&inputs.keys),
        values: device.bytes(&inputs.values),
        blocks: if s.ring { 0 } else { device.integers(&table(s)) },
        q_out: device.scratch(rows * s.heads * s.dim),
        out: device.scratch(rows * s.heads * s.dim),
        partial: device.scratch(partial as usize / 4),
        counters: device.integers(&vec![0; attention_counters(grid) as usize]),
        sinks: if s.sinks.is_empty() { 0 } else { device.floats(&s.sinks()) },
        rows: count,
        heads,
        kv_heads,
        dim: s.dim as u32,
        slot_count: SLOTS as u32,
        capacity: s.capacity as u32,
        entries: entries(s) as u32,
        interleaved: u32::from(s.interleaved),
        rotated: s.rotated() as u32,
        window: if s.window == 0 { u32::MAX } else { s.window as u32 },
        eps: EPS,
        scale: s.scale(),
        cap: s.cap,
        slope: s.temperature.0,
        length: s.temperature.1,
        ..AttentionParams::default()
    };
    if how != How::Fused {
        device.launch(Kernel::RopeKv(s.cache), rope_kv_grid(heads, kv_heads, count), 0, &params);
        (params.q, params.table) = (params.q_out, 0);
    }
    let counters = device.launch(kernel, grid, shared, &params);
    assert!(device.words(params.counters).iter().all(|&c| c == 0), "counters are left at 0");
    let bytes = |word: u32| word.to_le_bytes();
    let cache = |address| device.words(address).into_iter().flat_map(bytes).collect();
    (device.read(params.out), cache(params.keys), cache(params.values), counters)
}

/// Equal bits; all NaNs are equal.
fn same(a: f32, b: f32) -> bool {
    a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan())
}

fn check(s: &Shape<'_>, how: How, seed: u64) {
    check_with(s, how, seed, |_| {});
}

/// Runs a step with changed inputs and compares it with the definition: bit-exact, except in half
/// precision. The definition is compared with exact values if all are finite.
fn check_with(s: &Shape<'_>, how: How, seed: u64, change: impl Fn(&mut Inputs)) {
    let mut inputs = Inputs::random(s, &mut Random(seed));
    change(&mut inputs);
    let (out, keys, values, _) = run(s, &inputs, how, seed);
    let (mut want_keys, mut want_values) = (inputs.keys.clone(), inputs.values.clone());
    let inside = |slot: i32, position: i32| {
        let has = (entries(s) - s.lacking.min(entries(s))) * CACHE_BLOCK as usize;
        let most = if s.ring { i32::MAX } else { s.capacity.min(has) as i32 };
        (0..SLOTS as i32).contains(&slot) && (0..most).contains(&position)
    };
    for (row, &(slot, position)) in s.rows.iter().enumerate().filter(|(_, r)| inside(r.0, r.1)) {
        for g in 0..s.kv_heads {
            let from = (row * s.kv_heads + g) * s.dim;
            let key = inputs.rotate(s, row, &inputs.k[from..from + s.dim], &inputs.k_norm);
            let place = (slot as usize, g, position as usize);
            store(s, &mut want_keys, Which::Keys, place, &key);
            store(s, &mut want_values, Which::Values, place, &inputs.v[from..from + s.dim]);
        }
    }
    for (which, got, want) in
        [(Which::Keys, &keys, &want_keys), (Which::Values, &values, &want_values)]
    {
        // The codes of a block without finite values are arbitrary.
        let equal = |place| {
            let [got, want] = [got, want].map(|cache| stored(s, cache, which, place));
            got.into_iter().zip(want).all(|(got, want)| same(got, want))
        };
        let other = all(s).find(|&place| !equal(place));
        assert_eq!(other, None, "new keys and values, and nothing else, seed {seed}");
    }
    for (row, &(slot, position)) in s.rows.iter().enumerate() {
        for head in 0..s.heads {
            let at = (row * s.heads + head) * s.dim;
            let got = &out[at..at + s.dim];
            if !inside(slot, position) {
                assert!(got.iter().all(|x| *x == 0.0), "row {row} has no place");
                continue;
            }
            let q = inputs.rotate(s, row, &inputs.q[at..at + s.dim], &inputs.q_norm);
            let g = head / (s.heads / s.kv_heads);
            let seen: Vec<[Vec<f32>; 2]> = (0..=position as usize)
                .map(|p| {
                    let place = (slot as usize, g, p);
                    [(Which::Keys, &keys), (Which::Values, &values)]
                        .map(|(which, cache)| stored(s, cache, which, place))
                })
                .collect();
            let (factor, first) = (s.factor(position), s.first(position));
            let score = |product| {
                let cap = (s.cap > 0.0).then_some(s.cap);
                orind_testing::numerics::capped(factor * product, cap)
            };
            let sink = s.sinks().get(head).copied();
            let want = numbers::attention(&q, &seen, first, sink, score);
            let what = format!("row {row} head {head}, seed {seed}");
            let half = how == How::Half;
            for (i, (&got, want)) in got.iter().zip(&want).enumerate() {
                let alike =
                    if half { got.is_finite() == want.is_finite() } else { same(got, *want) };
                assert!(alike, "{what}, value {i}: {got:e}, not {want:e}");
            }
            if got.iter().all(|got| got.is_finite()) {
                let most = if half { 4e-3 } else { 1e-5 };
                near(s, position, &q, &seen[first..], (got, most), sink, &what);
            }
        }
    }
}

/// Compares attention with exact arithmetic.
fn near(
    s: &Shape<'_>,
    position: i32,
    q: &[f32],
    seen: &[[Vec<f32>; 2]],
    (got, allowed): (&[f32], f64),
    sink: Option<f32>,
    what: &str,
) {
    let (slope, length) = s.temperature;
    let lengths = 1 + (position as u32).checked_div(length).unwrap_or(0);
    let factor = (1.0 + f64::from(slope) * f64::from(lengths).ln()) / (s.dim as f64).sqrt();
    let dot = |key: &[f32]| -> f64 {
        q.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k)).sum()
    };
    let cap = f64::from(s.cap);
    let capped = |score: f64| if cap > 0.0 { cap * (score / cap).tanh() } else { score };
    let scores: Vec<f64> = seen.iter().map(|[key, _]| capped(dot(key) * factor)).collect();
    let sink = sink.map_or(f64::NEG_INFINITY, f64::from);
    let largest = scores.iter().copied().fold(sink, f64::max);
    let weights: Vec<f64> = scores.iter().map(|score| (score - largest).exp()).collect();
    let sum = weights.iter().sum::<f64>() + (sink - largest).exp();
    for (i, &got) in got.iter().enumerate() {
        let mixed = weights.iter().zip(seen).map(|(w, [_, value])| w * f64::from(value[i]));
        let error = (mixed.sum::<f64>() / sum - f64::from(got)).abs();
        let most = seen.iter().map(|[_, value]| f64::from(value[i]).abs()).fold(1.0, f64::max);
        assert!(error <= allowed * most, "{what}, value {i}: {error:e}");
    }
}

/// Counters of attention over a prompt from its first token, for one KV head.
pub(crate) fn of_prompt(dim: usize, group: usize, rows: i32, how: How) -> Counters {
    let rows: Vec<(i32, i32)> = (0..rows).map(|position| (0, position)).collect();
    let shape = Shape {
        heads: group,
        kv_heads: 1,
        dim,
        capacity: rows.len(),
        norm: false,
        rows: &rows,
        ..LLAMA
    };
    run(&shape, &Inputs::random(&shape, &mut Random(1)), how, 1).3
}

const LLAMA: Shape<'_> = Shape {
    heads: 8,
    kv_heads: 2,
    dim: 64,
    splits: 4,
    interleaved: true,
    rotated: None,
    norm: false,
    window: 0,
    cap: 0.0,
    temperature: (0.0, 0),
    sinks: &[],
    capacity: 320,
    ring: false,
    in_order: false,
    lacking: 0,
    cache: CacheType::F16,
    rows: &[(0, 0), (2, 63), (1, 64), (-1, 5), (3, 319)],
};

#[test]
fn decode_matches_the_definition_at_every_length() {
    for seed in 1..4 {
        check(&LLAMA, How::Fused, seed);
        // Qwen3 (split pairs, QK-norm); and sizes that are not powers of two.
        let rows = &[(3, 300), (0, 17)];
        let qwen =
            Shape { heads: 4, dim: 128, splits: 8, interleaved: false, norm: true, rows, ..LLAMA };
        check(&qwen, How::Fused, seed);
        let odd = Shape { heads: 3, kv_heads: 1, dim: 40, splits: 5, norm: true, rows, ..LLAMA };
        check(&odd, How::Fused, seed);
    }
}

/// Rows of one prompt share a slot: RoPE and KV write first, then attention.
#[test]
fn prompt_chunks_match_the_definition() {
    let rows = &[(1, 126), (1, 127), (1, 128), (1, 129), (4, 0), (0, 320)];
    for how in [How::Rows, How::Prefill, How::Half] {
        check(&Shape { rows, ..LLAMA }, how, 5);
        check(&Shape { rows, heads: 8, kv_heads: 1, dim: 96, norm: true, ..LLAMA }, how, 6);
    }
}

/// Rows that share a block and see spans partly, fully or not at all, in one run or several; groups
/// of every size, including those that leave queries of a block unused; several tiles; rows outside
/// the cache and of other slots.
#[test]
fn rows_of_a_prompt_may_share_a_block() {
    let chunk = |first: i32, rows: i32| (first..first + rows).map(|p| (1, p)).collect::<Vec<_>>();
    let odd = [(1, 70), (1, 71), (-1, 0), (1, 72), (2, 300), (2, 31), (1, 900), (1, 73), (0, 0)];
    for (seed, (dim, group, rows)) in (50..).zip([
        (64, 4, chunk(0, 40)),
        (64, 4, chunk(250, 18)),
        (64, 3, chunk(90, 22)),
        (64, 1, chunk(2, 70)),
        (128, 2, chunk(0, 40)),
        (128, 2, chunk(505, 17)),
        (128, 7, chunk(125, 5)),
        (80, 1, chunk(240, 33)),
        (64, 32, odd.to_vec()),
        (128, 2, odd.to_vec()),
        (256, 2, chunk(0, 12)),
        (256, 1, chunk(250, 20)),
        (256, 8, chunk(507, 7)),
        (256, 3, chunk(140, 6)),
        (192, 2, chunk(125, 9)),
        (144, 16, chunk(30, 3)),
        (256, 2, odd.to_vec()),
    ]) {
        let heads = 2 * group;
        let shape = Shape { heads, dim, capacity: 700, norm: seed % 2 == 0, rows: &rows, ..LLAMA };
        How::SHARED.into_iter().for_each(|how| check(&shape, how, seed));
    }
    // An infinity affects the rows from its own on, but none before, in a span that all share.
    for dim in [64, 256] {
        let shape = Shape { dim, rows: &chunk(250, 18), ..LLAMA };
        for odd in [f32::INFINITY, f32::NEG_INFINITY] {
            check_with(&shape, How::Prefill, 70, |inputs| inputs.v[9 * 2 * dim + 5] = odd);
            check_with(&shape, How::Prefill, 71, |inputs| inputs.k[9 * 2 * dim + 5] = odd);
        }
    }
}

#[test]
fn results_do_not_depend_on_other_rows_or_scheduling() {
    let mut random = Random(9);
    let inputs = Inputs::random(&LLAMA, &mut random);
    let (out, ..) = run(&LLAMA, &inputs, How::Fused, 1);
    let (again, ..) = run(&LLAMA, &inputs, How::Fused, 2);
    assert_eq!(out, again, "whatever the order of blocks and warps");
    let width = LLAMA.heads * LLAMA.dim;
    let alone = Shape { rows: &LLAMA.rows[..1], ..LLAMA };
    let (first, ..) = run(&alone, &inputs, How::Fused, 3);
    assert_eq!(first, out[..width], "whatever the batch");
}

/// Lengths around spans and groups, heads of every width, groups of every size, rows with one block
/// and with several.
#[test]
fn every_length_width_and_group_matches_the_definition() {
    let rows =
        |lengths: &[i32]| (0..).zip(lengths).map(|(slot, n)| (slot, n - 1)).collect::<Vec<_>>();
    let cases =
        [(64, 1, 1), (80, 2, 3), (128, 4, 1), (64, 8, 2), (128, 2, 2), (80, 1, 1), (64, 4, 3)];
    for (seed, (dim, group, splits)) in (20..).zip(cases) {
        let norm = group % 4 != 0;
        let shape = Shape { heads: group, kv_heads: 1, dim, splits, norm, capacity: 700, ..LLAMA };
        let lengths: [&[i32]; 2] = [&[1, 31, 32, 33], &[255, 256, 257]];
        for rows in lengths.map(rows) {
            let how = [How::Rows, How::Fused, How::Prefill][seed as usize % 3];
            check(&Shape { rows: &rows, ..shape }, how, seed);
            check(&Shape { rows: &rows, ..shape }, How::Half, seed);
        }
    }
    check(
        &Shape { heads: 2, kv_heads: 1, splits: 2, capacity: 700, rows: &[(1, 699)], ..LLAMA },
        How::Fused,
        30,
    );
    check(
        &Shape { heads: 1, kv_heads: 1, splits: 1, capacity: 701, rows: &[(3, 699)], ..LLAMA },
        How::Fused,
        31,
    );
}

/// Heads of 256 and 512 values, partly rotated; windows that end inside and between spans, over one
/// group and several; soft caps.
#[test]
fn wide_heads_partial_rotation_windows_and_caps_match_the_definition() {
    let rows = &[(0, 299), (1, 31), (3, 600), (2, 0)];
    let wide = Shape { heads: 4, kv_heads: 2, capacity: 700, rows, splits: 2, ..LLAMA };
    for (seed, dim, rotated, interleaved) in
        [(80, 256, Some(64), false), (81, 512, None, false), (82, 80, Some(32), true)]
    {
        let shape = Shape { dim, rotated, interleaved, norm: seed % 2 == 0, ..wide };
        check(&shape, How::Fused, seed);
        check(&Shape { rows: &[(1, 0), (1, 1), (1, 2)], ..shape }, How::Rows, seed);
    }
    for (seed, window, splits) in [(90, 1, 1), (91, 7, 3), (92, 64, 1), (93, 100, 2), (94, 512, 4)]
    {
        let shape = Shape { window, splits, cap: if seed % 2 == 0 { 1.5 } else { 0.0 }, ..wide };
        check(&shape, How::Fused, seed);
        check(&shape, How::Rows, seed);
    }
    for how in How::SHARED {
        check(&Shape { cap: 2.0, rows: &[(1, 70), (1, 71), (1, 72)], ..wide }, how, 95);
    }
}

/// Rows that share a block with windows that begin in one span or several, one group or several;
/// steps that no row sees, spans that some see; other slots and rows outside the cache.
#[test]
fn windows_apply_to_rows_that_share_a_block() {
    let chunk = |first: i32, rows: i32| (first..first + rows).map(|p| (1, p)).collect::<Vec<_>>();
    let odd = [(1, 400), (1, 401), (-1, 0), (1, 402), (2, 600), (2, 31), (1, 900), (0, 0)];
    let sinks = &[1.5, -200.0, 300.0];
    for (seed, (dim, group, window, rows)) in (100..).zip([
        (64, 4, 1, chunk(60, 10)),
        (64, 1, 7, chunk(300, 70)),
        (64, 2, 32, chunk(0, 40)),
        (64, 4, 40, chunk(250, 18)),
        (64, 1, 64, chunk(420, 66)),
        (64, 8, 300, chunk(600, 20)),
        (128, 2, 1, chunk(505, 17)),
        (128, 1, 33, chunk(350, 34)),
        (128, 2, 100, chunk(0, 40)),
        (96, 1, 129, chunk(370, 33)),
        (128, 7, 512, chunk(620, 5)),
        (64, 4, 50, odd.to_vec()),
        (128, 2, 290, odd.to_vec()),
        (256, 2, 1, chunk(505, 17)),
        (256, 1, 20, chunk(248, 20)),
        (256, 4, 40, chunk(300, 9)),
        (256, 2, 300, chunk(570, 12)),
        (208, 1, 64, chunk(40, 33)),
        (256, 8, 50, odd.to_vec()),
    ]) {
        let heads = 2 * group;
        let sinks: &[f32] = if seed % 3 == 0 { sinks } else { &[] };
        let cap = if seed % 2 == 0 { 1.5 } else { 0.0 };
        let shape = Shape { heads, dim, window, cap, sinks, capacity: 700, rows: &rows, ..LLAMA };
        How::SHARED.into_iter().for_each(|how| check(&shape, how, seed));
    }
    // An infinity affects only rows that see its span.
    let shape = Shape { window: 20, rows: &chunk(250, 66), heads: 2, ..LLAMA };
    let shape = Shape { capacity: 320, ..shape };
    for odd in [f32::INFINITY, f32::NEG_INFINITY] {
        check_with(&shape, How::Prefill, 116, |inputs| inputs.v[9 * 2 * 64 + 5] = odd);
        check_with(&shape, How::Prefill, 117, |inputs| inputs.k[9 * 2 * 64 + 5] = odd);
    }
}

/// Sinks of every size, with one block and several, with and without window, in decode and prefill;
/// a NaN sink makes its head NaN.
#[test]
fn sinks_take_weight_and_have_no_value() {
    let decode = &[(0, 299), (1, 31), (3, 600), (2, 0)];
    let prompt: Vec<(i32, i32)> = (250..268).map(|position| (1, position)).collect();
    let sinks = &[1.5, -200.0, 300.0, 0.0, f32::NAN, f32::NEG_INFINITY];
    let shape = Shape { capacity: 700, sinks, rows: decode, ..LLAMA };
    for (seed, splits, window) in [(110, 1, 0), (111, 3, 0), (112, 2, 100)] {
        check(&Shape { splits, window, ..shape }, How::Fused, seed);
        check(&Shape { splits, window, rows: &prompt, ..shape }, How::Rows, seed);
    }
    for how in How::SHARED {
        check(&Shape { rows: &prompt, ..shape }, how, 113);
        check(&Shape { heads: 2, kv_heads: 1, dim: 128, rows: &prompt, ..shape }, how, 114);
    }
}

/// Temperature that sharpens scores with the position, in decode and in a prompt that crosses
/// multiples of the length.
#[test]
fn temperatures_grow_with_the_position() {
    let prompt: Vec<(i32, i32)> = (250..268).map(|position| (1, position)).collect();
    let decode = &[(0, 299), (1, 31), (3, 600), (2, 0)];
    let shape = Shape { capacity: 700, temperature: (0.4, 32), rows: decode, ..LLAMA };
    for (seed, dim, cap, temperature) in
        [(130, 64, 0.0, (0.4, 32)), (131, 128, 1.5, (0.1, 260)), (132, 256, 0.0, (-0.2, 255))]
    {
        let shape = Shape { dim, cap, temperature, ..shape };
        check(&Shape { splits: 2, ..shape }, How::Fused, seed);
        for how in How::SHARED {
            check(&Shape { rows: &prompt, ..shape }, how, seed);
        }
    }
}

/// Rings slightly larger than the window: positions far beyond, windows across the end, rows with
/// one block and several.
#[test]
fn rings_contain_the_window() {
    let prompt: Vec<(i32, i32)> = (1000..1010).map(|position| (1, position)).collect();
    for (seed, window, capacity, splits) in
        [(120, 64, 96, 1), (121, 40, 96, 2), (122, 300, 352, 3), (123, 1, 64, 1)]
    {
        let rows = &[(0, 100), (1, 3), (3, 1_000), (2, 95)];
        let shape = Shape { window, capacity, splits, ring: true, rows, ..LLAMA };
        check(&shape, How::Fused, seed);
        check(&Shape { rows: &prompt, ..shape }, How::Rows, seed);
        for how in How::SHARED {
            check(&Shape { rows: &prompt, ..shape }, how, seed);
            for dim in [128, 256] {
                check(&Shape { rows: &prompt, dim, norm: true, ..shape }, how, seed);
            }
        }
    }
}

/// Results do not depend on the blocks of a slot; a row at an unmapped position reads zeroes and
/// writes nothing.
#[test]
fn block_placement_changes_no_bit() {
    let decode = &[(0, 299), (1, 128), (3, 600), (2, 127)];
    let prompt: Vec<(i32, i32)> = (370..390).map(|position| (1, position)).collect();
    let heads = [(64, 4), (128, 2), (256, 1)];
    for (seed, (cache, (dim, group))) in (140..).zip(CacheType::ALL.into_iter().zip(heads)) {
        let shape = Shape { heads: 2 * group, dim, cache, splits: 2, capacity: 700, ..LLAMA };
        for how in [How::Fused, How::Rows, How::Prefill, How::Half] {
            let rows: &[_] = if how == How::Fused { decode } else { &prompt };
            let [there, here] = [true, false].map(|in_order| {
                let shape = Shape { rows, in_order, ..shape };
                let inputs = Inputs::random(&shape, &mut Random(seed));
                let (out, keys, values, _) = run(&shape, &inputs, how, seed);
                let held = [(Which::Keys, keys), (Which::Values, values)].map(|(of, cache)| {
                    all(&shape).map(|at| stored(&shape, &cache, of, at)).collect::<Vec<_>>()
                });
                (out, held)
            });
            assert!(there == here, "{cache:?}, heads of {dim}, seed {seed}");
            // Three of six blocks, so rows from 384 on are unmapped; or none.
            for lacking in [3, 6] {
                check(&Shape { rows, lacking, ..shape }, how, seed);
            }
        }
    }
}

/// Scores far apart, infinities and NaN, in one span and in several.
#[test]
fn extreme_scores_are_bit_exact() {
    let rows = &[(0, 40), (1, 299)];
    for (seed, splits, how) in [(40, 1, How::Fused), (41, 2, How::Fused), (42, 1, How::Prefill)] {
        let shape = Shape { heads: 2, kv_heads: 1, rows, splits, capacity: 320, ..LLAMA };
        // From one span to the next the largest score changes by hundreds.
        check_with(&shape, how, seed, |inputs| {
            for position in 0..300 {
                let factor = [1.0, 30.0, 0.01, 100.0, 7.0][position / 16 % 5];
                for slot in 0..2 {
                    let place = (slot, 0, position);
                    let key = stored(&shape, &inputs.keys, Which::Keys, place);
                    let key: Vec<f32> = key.into_iter().map(|k| k * factor).collect();
                    store(&shape, &mut inputs.keys, Which::Keys, place, &key);
                }
            }
        });
        for odd in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            for (position, whole_span) in [(3, false), (33, false), (32, true), (290, false)] {
                check_with(&shape, how, seed, |inputs| {
                    let length = if whole_span { 32 } else { 1 };
                    // A single column: the score is infinite unless the query is zero there.
                    for (slot, p) in (0..2)
                        .flat_map(|slot| (position..position + length).map(move |p| (slot, p)))
                    {
                        let mut key = stored(&shape, &inputs.keys, Which::Keys, (slot, 0, p));
                        key[5] = odd;
                        store(&shape, &mut inputs.keys, Which::Keys, (slot, 0, p), &key);
                    }
                });
            }
        }
        // Scores whose exponentials are out of range.
        check_with(&shape, how, seed, |inputs| inputs.q.iter_mut().for_each(|q| *q *= 1e6));
    }
}

/// NaN in keys or values: rows that see it get NaN, other rows are unchanged.
#[test]
fn nan_affects_only_rows_that_see_it() {
    // Each group of lanes has at most one of nine positions.
    reaches(&Shape { rows: &[(0, 8), (2, 63), (3, 319)], ..LLAMA }, How::Fused);
    // Rows of a prompt share the positions that a block reads.
    for dim in [64, 256] {
        reaches(&Shape { dim, rows: &[(0, 8), (2, 63), (3, 319)], ..LLAMA }, How::Prefill);
    }
}

/// The test for one shape and kernel.
fn reaches(shape: &Shape<'_>, how: How) {
    let inputs = || Inputs::random(shape, &mut Random(12));
    let (out, ..) = run(shape, &inputs(), how, 1);
    let width = shape.heads * shape.dim;
    for (row, position) in [(0, 0), (0, 5), (1, 62), (2, 0), (2, 100), (2, 318)] {
        for (odd, in_keys) in [(f32::NAN, true), (f32::INFINITY, true), (f32::NAN, false)] {
            let mut inputs = inputs();
            // The whole key or value of a position, of the second head.
            let mut fill = |which, slot: i32, position| {
                let cache =
                    if which == Which::Keys { &mut inputs.keys } else { &mut inputs.values };
                let place = (slot as usize, 1, position);
                store(shape, cache, which, place, &vec![odd; shape.dim]);
            };
            // Positions behind all rows are included.
            for &(slot, last) in shape.rows.iter().filter(|(_, last)| *last + 1 < 320) {
                fill(Which::Keys, slot, last as usize + 1);
                fill(Which::Values, slot, last as usize + 1);
            }
            fill(if in_keys { Which::Keys } else { Which::Values }, shape.rows[row].0, position);
            let (got, ..) = run(shape, &inputs, how, 1);
            let seen = row * width + width / shape.kv_heads..(row + 1) * width;
            let what = format!("{odd} at {position} of row {row}, in keys: {in_keys}");
            for (i, (got, was)) in got.iter().zip(&out).enumerate() {
                if seen.contains(&i) {
                    assert!(!got.is_finite(), "{what}: {i} is {got}");
                } else {
                    assert_eq!(got, was, "{what}: {i}");
                }
            }
        }
    }
}

/// Quantised caches in decode and prefill: heads of every width, groups of every size, one span and
/// several groups, windows, rings, sinks and caps; values of every size, and values that cannot be
/// quantised.
#[test]
fn quantised_caches_match_the_definition() {
    let prompt = |first: i32, rows: i32| (first..first + rows).map(|p| (1, p)).collect::<Vec<_>>();
    let decode = &[(0, 299), (1, 31), (3, 600), (2, 0)];
    for (seed, cache) in (200..).step_by(100).zip([CacheType::Q8_0, CacheType::Q4_0]) {
        let blocks = Shape { cache, capacity: 700, rows: decode, ..LLAMA };
        for (seed, (dim, group, splits)) in (seed..).zip([
            (64, 4, 3),
            (64, 2, 1),
            (32, 3, 2),
            (128, 4, 1),
            (128, 2, 3),
            (96, 1, 2),
            (256, 2, 1),
            (256, 1, 2),
            (512, 1, 2),
        ]) {
            let norm = seed % 2 == 0;
            let shape = Shape { heads: 2 * group, dim, splits, norm, ..blocks };
            check(&shape, How::Fused, seed);
            check(&Shape { rows: &prompt(70, 3), ..shape }, How::Rows, seed);
        }
        for (seed, (dim, group, window, rows)) in (seed + 20..).zip([
            (64, 4, 0, prompt(250, 18)),
            (64, 1, 7, prompt(300, 70)),
            (32, 2, 0, prompt(0, 40)),
            (128, 2, 100, prompt(505, 17)),
            (96, 1, 0, prompt(240, 34)),
            (256, 2, 0, prompt(250, 9)),
            (256, 1, 40, prompt(505, 17)),
            (160, 2, 0, prompt(40, 9)),
        ]) {
            let sinks: &[f32] = if seed % 2 == 0 { &[1.5, -200.0] } else { &[] };
            let shape = Shape { heads: 2 * group, dim, window, sinks, rows: &rows, ..blocks };
            for how in How::SHARED {
                check(&Shape { cap: 1.5, ..shape }, how, seed);
            }
        }
        let ring = Shape { window: 40, capacity: 96, ring: true, ..blocks };
        check(&Shape { rows: &[(0, 100), (1, 3), (3, 1_000), (2, 95)], ..ring }, How::Fused, seed);
        for how in [How::Rows, How::Prefill, How::Half] {
            check(&Shape { rows: &prompt(1000, 10), ..ring }, how, seed);
        }
        // Sizes that vary between values and between blocks.
        let sizes = [0.0, -0.0, 1.0, -1.0, 1e-3, 3e-8, 1e-30, 1e-41, 30.0, 60_000.0];
        for (seed, odd) in (seed + 40..).zip([
            Some(f32::NAN),
            Some(f32::INFINITY),
            Some(f32::NEG_INFINITY),
            // Beyond the range of a scale.
            Some(1e9),
            None,
            None,
        ]) {
            check_with(&Shape { dim: 128, ..blocks }, How::Fused, seed, |inputs| {
                let mut random = Random(seed);
                for (i, v) in inputs.v.iter_mut().enumerate() {
                    *v *= sizes[i / 32 % sizes.len()];
                    *v = if random.real(1.0) > 0.5 { *v * sizes[i % sizes.len()] } else { *v };
                }
                // The first of two equal magnitudes decides.
                (inputs.v[3], inputs.v[9]) = (-7.0, 7.0);
                (inputs.v[35], inputs.v[41]) = (7.0, -7.0);
                if let Some(odd) = odd {
                    (inputs.v[40], inputs.v[70], inputs.k[5]) = (odd, odd, odd);
                }
            });
        }
    }
}
