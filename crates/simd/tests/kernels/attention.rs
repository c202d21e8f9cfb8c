//! Attention over a KV cache compared with `f64` arithmetic, and rounding of the cache.

use half::f16;

use orind_testing::random::Random;
use plan::quant;
use simd::Isa;
use simd::attention::{self, Attend, Places};
use simd::cache::{CacheFormat, HeadCache, kv_write};

use super::{bits, close, everywhere};

/// One KV head's keys and values, as numbers and in a cache.
pub(crate) struct Cached {
    pub(crate) format: CacheFormat,
    pub(crate) dim: usize,
    pub(crate) k: Vec<f32>,
    pub(crate) v: Vec<f32>,
    pub(crate) keys: Vec<u8>,
    pub(crate) values: Vec<u8>,
    pub(crate) window: usize,
    pub(crate) cap: Option<f32>,
    /// One per head, or empty.
    pub(crate) sinks: Vec<f32>,
    /// Ring size.
    pub(crate) ring: usize,
}

pub(crate) const SCALE: f32 = 0.3;

impl Cached {
    pub(crate) fn new(random: &mut Random, dim: usize, positions: usize) -> Self {
        Self::of(CacheFormat::F16, random, dim, positions)
    }

    pub(crate) fn of(
        format: CacheFormat,
        random: &mut Random,
        dim: usize,
        positions: usize,
    ) -> Self {
        let (k, v) = (random.reals(positions * dim, 1.0), random.reals(positions * dim, 1.0));
        // Unwritten positions may have any content.
        let capacity = positions.next_multiple_of(attention::POSITION_STEP);
        let keys = vec![u8::MAX; capacity * format.row_bytes(dim)];
        let values = keys.clone();
        let mut cached = Self {
            format,
            dim,
            k,
            v,
            keys,
            values,
            window: usize::MAX,
            cap: None,
            sinks: Vec::new(),
            ring: usize::MAX,
        };
        for p in 0..positions {
            cached.write(p);
        }
        cached
    }

    /// Writes a position to the cache.
    pub(crate) fn write(&mut self, p: usize) {
        let row = p * self.dim..(p + 1) * self.dim;
        let (k, v) = (self.k[row.clone()].as_ptr(), self.v[row].as_ptr());
        let (keys, values) = (self.keys.as_mut_ptr(), self.values.as_mut_ptr());
        let cache = HeadCache { format: self.format, dim: self.dim, keys, values };
        // SAFETY: a row of each; both caches hold the position.
        unsafe { kv_write(Isa::detect(), cache, p, k, v) };
    }

    /// Replaces the key of a position.
    pub(crate) fn put(&mut self, p: usize, key: &[f32]) {
        self.k[p * self.dim..(p + 1) * self.dim].copy_from_slice(key);
        self.write(p);
    }

    /// Attention of tokens, the first over `positions` positions, with `heads` times `dim` queries each.
    pub(crate) fn attend(&self, isa: Isa, q: &[f32], heads: usize, positions: usize) -> Vec<f32> {
        let mut scratch = vec![f32::NAN; attention::scratch_len(self.dim)];
        let mut out = vec![f32::NAN; q.len()];
        let a = Attend {
            q: q.as_ptr(),
            rows: q.len() / (heads * self.dim),
            stride: heads * self.dim,
            heads,
            dim: self.dim,
            format: self.format,
            places: Places::Ring(self.ring),
            keys: self.keys.as_ptr(),
            values: self.values.as_ptr(),
            positions,
            window: self.window,
            scale: SCALE,
            cap: self.cap,
            sinks: (!self.sinks.is_empty()).then_some(self.sinks.as_ptr()),
            scratch: scratch.as_mut_ptr(),
            out: out.as_mut_ptr(),
        };
        // SAFETY: sizes as documented.
        unsafe { attention::attend(isa, &a) };
        out
    }

    /// Keys and values as the format stores them.
    pub(crate) fn stored(&self) -> [Vec<f32>; 2] {
        let dtype = self.format.dtype();
        [&self.k, &self.v].map(|x| {
            let mut bytes = vec![0; x.len() / self.dim * self.format.row_bytes(self.dim)];
            match self.format {
                CacheFormat::F16 => quant::quantise(dtype, x, &mut bytes).unwrap(),
                CacheFormat::Q8_0 | CacheFormat::Q4_0 => quant::store(dtype, x, &mut bytes),
            }
            let mut stored = vec![0.0; x.len()];
            quant::dequantise(dtype, &bytes, &mut stored).unwrap();
            stored
        })
    }

    /// Attention of one query over `positions` positions.
    pub(crate) fn exact(&self, q: &[f32], positions: usize) -> Vec<f64> {
        let [k, v] = self.stored();
        let scores: Vec<f64> = k
            .chunks_exact(self.dim)
            .take(positions)
            .enumerate()
            .map(|(p, k)| {
                if p + self.window.min(positions) < positions {
                    return f64::NEG_INFINITY;
                }
                let products = q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k));
                let score = products.sum::<f64>() * f64::from(SCALE);
                self.cap.map_or(score, |cap| f64::from(cap) * (score / f64::from(cap)).tanh())
            })
            .collect();
        let max = scores.iter().copied().fold(f64::MIN, f64::max);
        let total: f64 = scores.iter().map(|s| (s - max).exp()).sum();
        let mut out = vec![0.0; self.dim];
        for (s, v) in scores.iter().zip(v.chunks_exact(self.dim)) {
            for (out, &v) in out.iter_mut().zip(v) {
                *out += (s - max).exp() / total * f64::from(v);
            }
        }
        out
    }
}

#[test]
fn attention_equals_f64_and_ignores_unwritten_positions() {
    // Numbers of heads, tokens, and positions of the first token: within a span, across its end, with whole spans
    // before some tokens only, and with more lines than a span takes together.
    for (heads, dim, rows, first) in [
        (1, 16, 1, 1usize),
        (3, 64, 1, 31),
        (4, 128, 1, 33),
        (7, 80, 1, 512),
        (2, 256, 1, 513),
        (5, 32, 1, 1100),
        (1, 48, 11, 1),
        (4, 64, 16, 1),
        (2, 128, 16, 17),
        (3, 64, 11, 505),
        (2, 128, 16, 509),
        (5, 48, 11, 1020),
        (4, 64, 17, 500),
        (9, 128, 16, 1015),
    ] {
        for (window, cap) in
            [(usize::MAX, None), (1, None), (30, Some(5.0)), (33, None), (300, Some(2.0))]
        {
            let what = format!(
                "{heads} heads of {dim}, {rows} tokens from {first}, window {window}, cap {cap:?}"
            );
            let mut random = Random(first as u64);
            let cached = Cached { window, cap, ..Cached::new(&mut random, dim, first + rows - 1) };
            let q: Vec<f32> =
                random.reals(rows * heads * dim, 1.0).iter().map(|x| x * 3.0).collect();
            let got = everywhere(&what, |isa| cached.attend(isa, &q, heads, first));
            for (line, (q, got)) in q.chunks_exact(dim).zip(got.chunks_exact(dim)).enumerate() {
                let positions = first + line / heads;
                let what = format!("{what}, line {line}");
                close(&what, got, &cached.exact(q, positions), 4e-6);
                let alone = cached.attend(Isa::detect(), q, 1, positions);
                assert_eq!(bits(&alone), bits(got), "{what} alone");
            }
        }
    }
}

#[test]
fn the_f16_cache_rounds_to_nearest_even() {
    let mut x = Random(9).reals(64, 1.0);
    x.extend([0.0, -0.0, 65504.0, 65520.0, -1e9, 1e-8, 5.96e-8, 2049.0, 2051.0, 0.1]);
    x.resize(80, 1.0);
    for isa in Isa::available() {
        let mut keys = vec![0u16; 80 * 16];
        let mut values = vec![0; 80 * 16];
        let (k, v) = (keys.as_mut_ptr().cast(), values.as_mut_ptr().cast());
        let cache = HeadCache { format: CacheFormat::F16, dim: 80, keys: k, values: v };
        // SAFETY: room for 16 positions.
        unsafe { kv_write(isa, cache, 3, x.as_ptr(), x.as_ptr()) };
        for (d, &x) in x.iter().enumerate() {
            let want = f16::from_f32(x).to_bits();
            assert_eq!((keys[d * 16 + 3], values[3 * 80 + d]), (want, want), "{isa}: {x}");
        }
    }
}
