//! Scalar definitions of kernels: plain `f32` operations in the order of `docs/numerics.md`,
//! without lanes, warps or tiles.

/// Range reduction: the remainder, and n of `e^x = y * 2^n`.
fn reduced(x: f32) -> (i32, f32) {
    let n = (x * std::f32::consts::LOG2_E).round_ties_even();
    let r = n.mul_add(-355.0 / 512.0, x);
    let r = n.mul_add(2.121_944_4e-4, r);
    let y = [1.0 / 120.0, 1.0 / 24.0, 1.0 / 6.0, 0.5, 1.0, 1.0];
    (n as i32, y.into_iter().fold(1.0 / 720.0, |y: f32, k| y.mul_add(r, k)))
}

/// `2^n`; 0 below the normal range.
fn power_of_two(n: i32) -> f32 {
    if n < -126 { 0.0 } else { 2f64.powi(n) as f32 }
}

/// `e^x`.
pub(crate) fn exp(x: f32) -> f32 {
    match x {
        _ if x.is_nan() => f32::NAN,
        _ if x > 88.0 => f32::INFINITY,
        _ if x < -87.33 => 0.0,
        _ => {
            let (n, y) = reduced(x);
            // In two steps that stay in the normal range.
            y * power_of_two(n - n / 2) * power_of_two(n / 2)
        }
    }
}

/// `gate * sigmoid(gate) * up`
pub(crate) fn silu_product(gate: f32, up: f32) -> f32 {
    gate / (1.0 + exp(-gate)) * up
}

/// Pairwise sum of a power-of-two number of values: adds the halves until one value is left.
fn halved(mut values: Vec<f32>) -> f32 {
    while values.len() > 1 {
        let upper = values.split_off(values.len() / 2);
        values.iter_mut().zip(upper).for_each(|(a, b)| *a += b);
    }
    values[0]
}

/// RMSNorm with its weight.
pub(crate) fn normalise(x: &mut [f32], weight: &[f32], eps: f32) {
    let mut strides = [0.0f32; 256];
    for (column, &x) in x.iter().enumerate() {
        let stride = &mut strides[column % 256];
        *stride = x.mul_add(x, *stride);
    }
    let trees = strides.chunks(32).map(|tree| halved(tree.to_vec()));
    let squares = trees.reduce(|sum, tree| sum + tree).unwrap();
    let factor = 1.0 / (squares / x.len() as f32 + eps).sqrt();
    x.iter_mut().zip(weight).for_each(|(x, weight)| *x = *x * factor * weight);
}

/// Cosine and sine of a position times a frequency.
pub(crate) fn cos_sin(position: f32, frequency: f32) -> [f32; 2] {
    let high = position * frequency;
    let low = position.mul_add(frequency, -high);
    let turns = (high * std::f32::consts::FRAC_2_PI).round_ties_even();
    let r = turns.mul_add(-std::f32::consts::FRAC_PI_2, high);
    let r = turns.mul_add(4.371_139e-8, r) + low;
    let r2 = r * r;
    let s = r2.mul_add(-1.951_529_6e-4, 8.332_161e-3);
    let s = r2.mul_add(s, -1.666_665_5e-1);
    let s = (r2 * r).mul_add(s, r);
    let c = r2.mul_add(2.443_315_7e-5, -1.388_731_6e-3);
    let c = r2.mul_add(c, 4.166_664_6e-2);
    let c = (r2 * r2).mul_add(c, r2.mul_add(-0.5, 1.0));
    match (turns as i64).rem_euclid(4) {
        0 => [c, s],
        1 => [-s, c],
        2 => [-c, -s],
        _ => [s, -c],
    }
}

/// Rotates a head by its row of the table, cosines before sines.
pub(crate) fn rotate(x: &mut [f32], table: &[f32], interleaved: bool) {
    let half = x.len() / 2;
    for i in 0..half {
        let (first, second) = if interleaved { (2 * i, 2 * i + 1) } else { (i, i + half) };
        let (a, b, cosine, sine) = (x[first], x[second], table[i], table[half + i]);
        x[first] = a.mul_add(cosine, 0.0 - b * sine);
        x[second] = a.mul_add(sine, b * cosine);
    }
}

/// Partial softmax: the power of two of all values, the sum of exponentials, and the weighted sum
/// of values.
#[derive(Clone)]
struct PartialSoftmax {
    power: i32,
    sum: f32,
    values: Vec<f32>,
}

impl PartialSoftmax {
    /// A span of at most 32 positions with scores and values.
    fn span(scores: &[f32], seen: &[[Vec<f32>; 2]]) -> Self {
        let largest = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let exponent = largest * std::f32::consts::LOG2_E;
        // Out of range: the result is NaN.
        let lost = exponent.is_nan() || exponent.abs() > 4_194_304.0;
        let power = if lost { 0 } else { exponent.round_ties_even() as i32 };
        let weight = |&score: &f32| {
            if lost || score.is_nan() {
                return f32::NAN;
            }
            let (n, y) = reduced(score.max(largest - 87.5));
            if score < largest - 87.33 { 0.0 } else { y * power_of_two(n - power) }
        };
        let weights: Vec<f32> = scores.iter().map(weight).collect();
        let of = |position: usize| weights.get(position).copied().unwrap_or(0.0);
        let sum = halved((0..16).map(|i| of(i) + of(i + 16)).collect());
        let mut values = vec![0.0f32; seen[0][1].len()];
        for (&weight, [_, value]) in weights.iter().zip(seen) {
            values.iter_mut().zip(value).for_each(|(sum, &v)| *sum = weight.mul_add(v, *sum));
        }
        Self { power, sum, values }
    }

    fn fold(self, more: &Self) -> Self {
        let power = self.power.max(more.power);
        let (old, new) = (power_of_two(self.power - power), power_of_two(more.power - power));
        let add = |more: f32, so_far: f32| more.mul_add(new, so_far * old);
        let values = more.values.iter().zip(&self.values).map(|(&v, &sum)| add(v, sum)).collect();
        Self { power, sum: add(more.sum, self.sum), values }
    }
}

/// Attention of one query head to positions from `first` on; `score` converts a product to a score.
/// A sink is a score without value.
pub(crate) fn attention(
    q: &[f32],
    seen: &[[Vec<f32>; 2]],
    first: usize,
    sink: Option<f32>,
    score: impl Fn(f32) -> f32,
) -> Vec<f32> {
    let score = |(position, [key, _]): (usize, &[Vec<f32>; 2])| match position {
        _ if position < first => f32::NEG_INFINITY,
        _ => score(q.iter().zip(key).fold(0.0f32, |sum, (q, &k)| q.mul_add(k, sum))),
    };
    let scores: Vec<f32> = seen.iter().enumerate().map(score).collect();
    // Numbered spans, without those before the first position.
    let spans = scores.chunks(32).zip(seen.chunks(32)).enumerate().skip(first / 32);
    let spans =
        spans.map(|(number, (scores, seen))| (number / 8, PartialSoftmax::span(scores, seen)));
    let mut groups: Vec<(usize, PartialSoftmax)> = Vec::new();
    for (group, span) in spans {
        match groups.pop() {
            Some((last, so_far)) if last == group => groups.push((group, so_far.fold(&span))),
            before => groups.extend(before.into_iter().chain([(group, span)])),
        }
    }
    let sink =
        sink.map(|score| PartialSoftmax::span(&[score], &[[Vec::new(), vec![0.0; q.len()]]]));
    let parts = groups.into_iter().map(|(_, part)| part).chain(sink);
    let whole = parts.reduce(|so_far, more| so_far.fold(&more)).unwrap();
    whole.values.into_iter().map(|value| value / whole.sum).collect()
}
