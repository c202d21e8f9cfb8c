//! Random numbers from a key and an index. Without state, any thread can generate any part of a tensor.

/// Seed of all synthetic models.
pub const SEED: u64 = 0x06f7_2a3d_5eed_0001;

/// A key for everything that belongs to `name`.
pub(super) fn key(name: &str) -> u64 {
    // FNV-1a, then mixed, so that names that differ in one letter have unrelated keys.
    let hash = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    mix(hash ^ SEED)
}

/// 64 random bits (`SplitMix64`, Steele, Lea and Flood 2014).
pub(super) fn bits(key: u64, index: u64) -> u64 {
    mix(key.wrapping_add(index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// A number below `limit`, which must be above zero and far below 2^32.
pub(super) fn below(key: u64, index: u64, limit: usize) -> usize {
    (((bits(key, index) >> 32) * limit as u64) >> 32) as usize
}

/// Uniform in -1..1.
pub(super) fn unit(key: u64, index: u64) -> f64 {
    (bits(key, index) >> 11) as f64 / (1_u64 << 52) as f64 - 1.0
}

/// Uniform in `low..high`.
pub(super) fn between(key: u64, index: u64, low: f64, high: f64) -> f64 {
    low + (unit(key, index) + 1.0) / 2.0 * (high - low)
}

/// `0..n` in random order (Fisher and Yates).
pub(super) fn permutation(key: u64, n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..n).collect();
    for i in (1..n).rev() {
        order.swap(i, below(key, i as u64, i + 1));
    }
    order
}

/// Fills `out` with elements `first..` of an endless tensor of uniform numbers with mean 0 and standard deviation
/// `deviation`. `first` must be a multiple of 4, because each hash provides four numbers.
pub(super) fn fill(key: u64, first: u64, deviation: f32, out: &mut [f32]) {
    // The 65,536 equally likely levels have the variance (65536^2 - 1) / 12.
    let scale = deviation / 18_918.613;
    for (i, four) in out.chunks_mut(4).enumerate() {
        let bits = bits(key, first / 4 + i as u64);
        for (k, value) in four.iter_mut().enumerate() {
            *value = (f32::from((bits >> (16 * k)) as u16) - 32_767.5) * scale;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_part_equals_that_part_of_the_whole() {
        let mut whole = vec![0.0; 4096];
        fill(7, 0, 0.5, &mut whole);
        let mut part = vec![0.0; 100];
        fill(7, 1000, 0.5, &mut part);
        assert_eq!(part, whole[1000..1100]);

        let mean = whole.iter().sum::<f32>() / 4096.0;
        let deviation = (whole.iter().map(|v| v * v).sum::<f32>() / 4096.0).sqrt();
        assert!(mean.abs() < 0.03 && (deviation - 0.5).abs() < 0.02, "{mean} {deviation}");
    }

    #[test]
    fn permutations_contain_every_number_once() {
        let mut order = permutation(key("test"), 1000);
        assert_ne!(order[..10], [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]);
        order.sort_unstable();
        assert!(order.into_iter().eq(0..1000));
    }
}
