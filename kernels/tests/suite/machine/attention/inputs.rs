//! Shapes and inputs of attention tests, and the cache layout as the kernels define it.

use half::f16;
use orind_kernels::catalogue::CacheType;
use orind_kernels::catalogue::launch::{CACHE_BLOCK, CACHE_TILE};
use plan::quant;
use plan::sample::logarithm;

use super::super::numbers;
use orind_testing::random::Random;

/// Heads of a model, and rows of a step.
#[derive(Clone, Copy)]
pub(super) struct Shape<'a> {
    pub(super) heads: usize,
    pub(super) kv_heads: usize,
    pub(super) dim: usize,
    /// Blocks that share a row's positions; they change no bit.
    pub(super) splits: usize,
    pub(super) interleaved: bool,
    /// Number of rotated values of a head, if not all.
    pub(super) rotated: Option<usize>,
    pub(super) norm: bool,
    /// Size of the window, and soft cap of the scores; 0 for none.
    pub(super) window: usize,
    pub(super) cap: f32,
    /// Slope and length of the attention temperature; a length of 0 for none.
    pub(super) temperature: (f32, u32),
    /// Sinks, repeated over the heads; empty for none.
    pub(super) sinks: &'a [f32],
    pub(super) capacity: usize,
    /// Positions wrap around at the capacity.
    pub(super) ring: bool,
    /// Slots have consecutive blocks instead of scattered ones.
    pub(super) in_order: bool,
    /// Number of each slot's last blocks that are unmapped.
    pub(super) lacking: usize,
    /// Type of the KV cache.
    pub(super) cache: CacheType,
    /// Slot and position of each row.
    pub(super) rows: &'a [(i32, i32)],
}

impl Shape<'_> {
    pub(super) fn rotated(&self) -> usize {
        self.rotated.unwrap_or(self.dim)
    }

    /// Sinks of all heads.
    pub(super) fn sinks(&self) -> Vec<f32> {
        self.sinks.iter().copied().cycle().take(self.heads).collect()
    }

    /// Factor on the scores of a row at `position`.
    pub(super) fn factor(&self, position: i32) -> f32 {
        let (scale, (slope, length)) = (self.scale(), self.temperature);
        if length == 0 {
            return scale;
        }
        let lengths = 1.0 + (position as u32 / length) as f32;
        scale * slope.mul_add(logarithm(lengths), 1.0)
    }

    pub(super) fn scale(&self) -> f32 {
        1.0 / (self.dim as f32).sqrt()
    }

    /// First visible position of a row at `position`.
    pub(super) fn first(&self, position: i32) -> usize {
        let count = position as usize + 1;
        if self.window == 0 { 0 } else { count.saturating_sub(self.window) }
    }
}

pub(super) const SLOTS: usize = 4;
pub(super) const EPS: f32 = 1e-6;

/// Kernels of a step.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum How {
    /// RoPE, KV write and attention in one kernel.
    Fused,
    /// RoPE and KV write, then a block per row.
    Rows,
    /// RoPE and KV write, then blocks that rows share.
    Prefill,
    /// The same in half precision.
    Half,
}

impl How {
    /// Kernels whose rows share blocks.
    pub(super) const SHARED: [Self; 2] = [Self::Prefill, Self::Half];
}

/// Inputs of a step.
pub(super) struct Inputs {
    pub(super) q: Vec<f32>,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    pub(super) table: Vec<f32>,
    pub(super) q_norm: Vec<f32>,
    pub(super) k_norm: Vec<f32>,
    pub(super) keys: Vec<u8>,
    pub(super) values: Vec<u8>,
}

impl Inputs {
    pub(super) fn random(s: &Shape<'_>, random: &mut Random) -> Self {
        let rows = s.rows.len();
        let mut cache = |which, most| {
            let mut cache = vec![0; SLOTS * s.kv_heads * positions(s) * row_bytes(s)];
            for place in all(s) {
                store(s, &mut cache, which, place, &random.reals(s.dim, most));
            }
            cache
        };
        let (keys, values) = (cache(Which::Keys, 2.0), cache(Which::Values, 1.0));
        let table = s.rows.iter().flat_map(|&(_, position)| {
            let dim = s.rotated() as f64;
            let angle =
                move |i: usize| f64::from(position) * 10_000_f64.powf(-2.0 * i as f64 / dim);
            let half = s.rotated() / 2;
            let cos = (0..half).map(move |i| angle(i).cos() as f32);
            cos.chain((0..half).map(move |i| angle(i).sin() as f32))
        });
        Self {
            table: table.collect(),
            q: random.reals(rows * s.heads * s.dim, 2.0),
            k: random.reals(rows * s.kv_heads * s.dim, 2.0),
            v: random.reals(rows * s.kv_heads * s.dim, 1.0),
            q_norm: random.reals(s.dim, 2.0),
            k_norm: random.reals(s.dim, 2.0),
            keys,
            values,
        }
    }

    /// Normalises and rotates one head.
    pub(super) fn rotate(&self, s: &Shape<'_>, row: usize, x: &[f32], norm: &[f32]) -> Vec<f32> {
        let mut x = x.to_vec();
        if s.norm {
            numbers::normalise(&mut x, norm, EPS);
        }
        let rotated = s.rotated();
        let table = &self.table[row * rotated..][..rotated];
        numbers::rotate(&mut x[..rotated], table, s.interleaved);
        x
    }
}

/// Keys or values.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Which {
    Keys,
    Values,
}

/// Slot, KV head and position.
pub(super) type CachePlace = (usize, usize, usize);

/// Every place that exists, including those behind the capacity in the last block or tile.
pub(super) fn all(s: &Shape<'_>) -> impl Iterator<Item = CachePlace> {
    let (heads, positions) = (s.kv_heads, positions(s));
    let of_slot =
        move |slot| (0..heads).flat_map(move |g| (0..positions).map(move |p| (slot, g, p)));
    (0..SLOTS).flat_map(of_slot)
}

/// Positions that a slot has memory for.
pub(super) fn positions(s: &Shape<'_>) -> usize {
    s.capacity.next_multiple_of(if s.ring { CACHE_TILE } else { CACHE_BLOCK } as usize)
}

/// Block table entries of a slot.
pub(super) fn entries(s: &Shape<'_>) -> usize {
    if s.ring { 0 } else { positions(s) / CACHE_BLOCK as usize }
}

/// Block of an entry of a slot.
pub(super) fn block(s: &Shape<'_>, slot: usize, entry: usize) -> usize {
    let (all, number) = (SLOTS * entries(s), slot * entries(s) + entry);
    if s.in_order {
        return number;
    }
    let factor = [5, 7, 11].into_iter().find(|factor| all % factor != 0).unwrap();
    (number * factor + 3) % all
}

/// Block table.
pub(super) fn table(s: &Shape<'_>) -> Vec<i32> {
    let has = entries(s) - s.lacking.min(entries(s));
    let entry = |at: usize| {
        let (slot, entry) = (at / entries(s), at % entries(s));
        if entry < has { block(s, slot, entry) as i32 } else { -1 }
    };
    (0..SLOTS * entries(s)).map(entry).collect()
}

pub(super) fn row_bytes(s: &Shape<'_>) -> usize {
    s.cache.row_bytes(s.dim as u32) as usize
}

/// Layout of a row: byte offset of each value, and of each block's scale.
pub(super) fn lies(
    s: &Shape<'_>,
    which: Which,
    (slot, g, position): CachePlace,
) -> [Vec<usize>; 2] {
    let of_block = CACHE_BLOCK as usize;
    let (piece, size, position) = if s.ring {
        (slot, s.capacity, position % s.capacity)
    } else {
        (block(s, slot, position / of_block), of_block, position % of_block)
    };
    let tile = ((piece * s.kv_heads + g) * size + position / 32 * 32) * row_bytes(s);
    let (place, bits) = (position % 32, s.cache.bits() as usize);
    let number = |i: usize| {
        let byte = match s.cache {
            CacheType::F16 | CacheType::Q8_0 => i * bits / 8,
            // Eight nibbles per word, low nibbles first.
            CacheType::Q4_0 => i / 8 * 4 + i % 4,
        };
        match which {
            Which::Keys => tile + (byte / 16 * 32 + place) * 16 + byte % 16,
            Which::Values => tile + place * s.dim * bits / 8 + byte,
        }
    };
    let scale = |block| {
        let at = if which == Which::Keys { block * 32 + place } else { place * s.dim / 32 + block };
        tile + 32 * s.dim * bits / 8 + 2 * at
    };
    let blocks = if s.cache == CacheType::F16 { 0 } else { s.dim / 32 };
    [(0..s.dim).map(number).collect(), (0..blocks).map(scale).collect()]
}

pub(super) fn half_at(cache: &[u8], at: usize) -> f16 {
    f16::from_le_bytes([cache[at], cache[at + 1]])
}

/// Values of a row of a cache.
pub(super) fn stored(s: &Shape<'_>, cache: &[u8], which: Which, place: CachePlace) -> Vec<f32> {
    let [numbers, scales] = lies(s, which, place);
    let value = |(i, &at): (usize, &usize)| {
        let scale = || half_at(cache, scales[i / 32]).to_f32();
        match s.cache {
            CacheType::F16 => half_at(cache, at).to_f32(),
            CacheType::Q8_0 => (f32::from(cache[at]) - 128.0) * scale(),
            CacheType::Q4_0 => (f32::from(cache[at] >> (i % 8 / 4 * 4) & 15) - 8.0) * scale(),
        }
    };
    numbers.iter().enumerate().map(value).collect()
}

/// Writes a row to a cache, quantised as in files.
pub(super) fn store(s: &Shape<'_>, cache: &mut [u8], which: Which, place: CachePlace, x: &[f32]) {
    let [numbers, scales] = lies(s, which, place);
    let mut made = vec![0; row_bytes(s)];
    if s.cache == CacheType::F16 {
        quant::quantise(s.cache.dtype(), x, &mut made).unwrap();
    } else {
        quant::store(s.cache.dtype(), x, &mut made);
    }
    let block = s.cache.dtype().block_bytes();
    for (i, &at) in numbers.iter().enumerate() {
        let codes = &made[i / 32 * block..];
        match s.cache {
            CacheType::F16 => cache[at..at + 2].copy_from_slice(&made[2 * i..2 * i + 2]),
            CacheType::Q8_0 => cache[at] = codes[2 + i % 32] ^ 128,
            CacheType::Q4_0 => {
                let (from, to) = (i % 32 / 16 * 4, i % 8 / 4 * 4);
                let code = codes[2 + i % 16] >> from & 15;
                cache[at] = cache[at] & !(15 << to) | code << to;
            }
        }
    }
    for (block, &at) in made.chunks(block).zip(&scales) {
        cache[at..at + 2].copy_from_slice(&block[..2]);
    }
}
