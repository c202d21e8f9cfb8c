//! KV cache: memory layout, writes, and reads of a span of positions.
//!
//! Each slot and KV head has its own keys and values. A position's row of `dim` values is `f16`, or blocks of 32 in
//! GGUF's format. Values are row-major (`[position][dim]`). Keys are in tiles of 16 positions, column-major
//! (`[position / 16][dim][16]`), so that a score needs no sum across lanes. The codes of quantised keys have the
//! same layout, with two columns per byte for 4-bit codes. The scales follow a tile's codes (`[dim / 32][16]`).

use super::isa::dispatch;
use super::vector::{LANES, Simd};
use half::f16;
use plan::{DType, quant};

/// Storage format of keys and values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheFormat {
    F16,
    /// Blocks of 32 signed bytes with a scale.
    Q8_0,
    /// Blocks of 32 nibbles with a scale.
    Q4_0,
}

/// Bytes of a block's scale, which precedes its codes.
const SCALE: usize = 2;

/// Bytes of the largest block.
const MOST: usize = SCALE + quant::BLOCK;

impl CacheFormat {
    pub const ALL: [Self; 3] = [Self::F16, Self::Q8_0, Self::Q4_0];

    #[must_use]
    pub const fn dtype(self) -> DType {
        match self {
            Self::F16 => DType::F16,
            Self::Q8_0 => DType::Q8_0,
            Self::Q4_0 => DType::Q4_0,
        }
    }

    /// The format of a type for heads of `dim` values; `None` if keys and values cannot be stored in it.
    #[must_use]
    pub fn of(dtype: DType, dim: usize) -> Option<Self> {
        let whole = dim > 0 && dim.is_multiple_of(LANES) && dim.is_multiple_of(dtype.block_len());
        Self::ALL.into_iter().find(|format| whole && format.dtype() == dtype)
    }

    /// Bytes of one position's keys, and of its values.
    #[must_use]
    pub const fn row_bytes(self, dim: usize) -> usize {
        dim / self.dtype().block_len() * self.dtype().block_bytes()
    }
}

/// The keys and values of one KV head in one slot.
#[derive(Clone, Copy, Debug)]
pub struct HeadCache {
    pub format: CacheFormat,
    /// Values of a head; the format supports this number.
    pub dim: usize,
    pub keys: *mut u8,
    pub values: *mut u8,
}

dispatch! {
    /// Writes a key and a value to a head's cache at a position, rounded to its format; see [`quant::store`].
    ///
    /// # Safety
    ///
    /// `k`, `v` are valid for the values of a head; the cache contains the position; no other thread accesses it.
    pub unsafe fn kv_write(cache: HeadCache, position: usize, k: *const f32, v: *const f32) = kv_write_in;
}

#[inline(always)]
unsafe fn kv_write_in<S: Simd>(cache: HeadCache, position: usize, k: *const f32, v: *const f32) {
    let HeadCache { format, dim, keys, values } = cache;
    // SAFETY: the caller's contract.
    unsafe {
        if format != CacheFormat::F16 {
            return blocks_write(cache, position, k, v);
        }
        let (keys, values) = (keys.cast::<u16>(), values.cast::<u16>().add(position * dim));
        let column = keys.add(position / LANES * LANES * dim + position % LANES);
        for d in (0..dim).step_by(LANES) {
            let mut bits = [0u16; LANES];
            S::store_f16(bits.as_mut_ptr(), S::load(k.add(d)));
            for (i, &b) in bits.iter().enumerate() {
                *column.add((d + i) * LANES) = b;
            }
            S::store_f16(values.add(d), S::load(v.add(d)));
        }
    }
}

/// [`kv_write`] for quantised formats.
///
/// # Safety
///
/// As for [`kv_write`].
unsafe fn blocks_write(cache: HeadCache, position: usize, k: *const f32, v: *const f32) {
    let HeadCache { format, dim, keys, values } = cache;
    let (dtype, blocks, row) = (format.dtype(), dim / quant::BLOCK, format.row_bytes(dim));
    let bytes = dtype.block_bytes();
    let codes = bytes - SCALE;
    // SAFETY: the caller's contract.
    unsafe {
        let (tile, lane) = (keys.add(position / LANES * LANES * row), position % LANES);
        let row = std::slice::from_raw_parts_mut(values.add(position * row), row);
        quant::store(dtype, std::slice::from_raw_parts(v, dim), row);
        let mut block = [0; MOST];
        for (i, k) in std::slice::from_raw_parts(k, dim).chunks_exact(quant::BLOCK).enumerate() {
            quant::store(dtype, k, &mut block[..bytes]);
            for (at, &code) in block[SCALE..bytes].iter().enumerate() {
                *tile.add((i * codes + at) * LANES + lane) = code;
            }
            let scale = tile.add(LANES * codes * blocks + (i * LANES + lane) * SCALE);
            scale.copy_from_nonoverlapping(block.as_ptr(), SCALE);
        }
    }
}

/// Widens whole tiles of keys from `keys` on: `positions` (a multiple of 16) of them, to `[tile][dim][16]`.
///
/// # Safety
///
/// As for [`Simd`]; the tiles are readable, and `to` has space for their values.
#[inline(always)]
pub(crate) unsafe fn read_keys<S: Simd>(
    format: CacheFormat,
    keys: *const u8,
    dim: usize,
    positions: usize,
    to: *mut f32,
) {
    let (bytes, blocks) = (format.row_bytes(dim), dim / quant::BLOCK);
    let codes = format.dtype().block_bytes() - SCALE;
    // SAFETY: the caller's contract.
    unsafe {
        if format == CacheFormat::F16 {
            return read_f16::<S>(keys.cast(), positions * dim, to);
        }
        for tile in 0..positions / LANES {
            let (keys, to) = (keys.add(tile * LANES * bytes), to.add(tile * LANES * dim));
            for block in 0..blocks {
                let scales = keys.add(LANES * (codes * blocks + SCALE * block));
                let scales = S::load_f16(scales.cast());
                let (keys, to) =
                    (keys.add(block * codes * LANES), to.add(block * quant::BLOCK * LANES));
                for at in 0..codes {
                    let (stored, to) = (keys.add(at * LANES), to.add(at * LANES));
                    if format == CacheFormat::Q8_0 {
                        S::store(to, S::mul(S::to_f(S::load_i8(stored.cast())), scales));
                        continue;
                    }
                    let [low, high] = nibbles::<S>(stored);
                    S::store(to, S::mul(S::to_f(low), scales));
                    S::store(to.add(codes * LANES), S::mul(S::to_f(high), scales));
                }
            }
        }
    }
}

/// Widens the values of `positions` positions from `values` on, to `[position][dim]`.
///
/// # Safety
///
/// As for [`read_keys`], for rows.
#[inline(always)]
pub(crate) unsafe fn read_values<S: Simd>(
    format: CacheFormat,
    values: *const u8,
    dim: usize,
    positions: usize,
    to: *mut f32,
) {
    let bytes = format.dtype().block_bytes();
    // SAFETY: the caller's contract.
    unsafe {
        if format == CacheFormat::F16 {
            return read_f16::<S>(values.cast(), positions * dim, to);
        }
        for block in 0..positions * dim / quant::BLOCK {
            let (stored, to) = (values.add(block * bytes), to.add(block * quant::BLOCK));
            let scale = S::splat(f16::from_le_bytes(*stored.cast()).to_f32());
            let codes = stored.add(SCALE);
            let levels = if format == CacheFormat::Q8_0 {
                [S::load_i8(codes.cast()), S::load_i8(codes.add(LANES).cast())]
            } else {
                nibbles::<S>(codes)
            };
            for (half, levels) in levels.into_iter().enumerate() {
                S::store(to.add(half * LANES), S::mul(S::to_f(levels), scale));
            }
        }
    }
}

/// Levels of 16 bytes of Q4_0 codes: those of the low nibbles, then of the high nibbles.
///
/// # Safety
///
/// As for [`Simd`]; 16 bytes are readable.
#[inline(always)]
unsafe fn nibbles<S: Simd>(codes: *const u8) -> [S::I; 2] {
    // SAFETY: the caller's contract.
    unsafe {
        let (both, zero) = (S::load_u8(codes), S::splat_i(-8));
        [S::add_i(S::and_i(both, S::splat_i(15)), zero), S::add_i(S::shr_i::<4>(both), zero)]
    }
}

/// # Safety
///
/// As for [`read_keys`], for `n` values, a multiple of 16.
#[inline(always)]
unsafe fn read_f16<S: Simd>(from: *const u16, n: usize, to: *mut f32) {
    for i in (0..n).step_by(LANES) {
        // SAFETY: the caller's contract.
        unsafe { S::store(to.add(i), S::load_f16(from.add(i))) };
    }
}
