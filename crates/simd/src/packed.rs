//! Weight matrices repacked for the kernels, at their own bit width.
//!
//! Sixteen rows form a *row group*. A row group is a run of *superblocks* along the columns, in the order in which
//! a matrix-vector product reads it. A thread that owns a range of row groups therefore reads one contiguous
//! stream, and reads each line once. Four bytes of a row form one 32-bit lane, sixteen rows one 64-byte line.
//!
//! A superblock is its scales (`Scales`), then its blocks of 32 columns. A block has as many lines as its codes
//! have bits (`bits.rs`). Codes are those of `plan::quant`. Some types store every other block (or half block) as
//! the difference to the greatest code.
//!
//! Two row groups may be interleaved: their lines alternate, superblock by superblock. With an odd number of row
//! groups, the last one is not interleaved.
//!
//! Size compared with GGUF, before padding of rows to 16 and of columns to the superblock: `Q6_K` +1 %, `TQ2_0` +3
//! %, `Q3_K` +5 %, `MXFP4` +6 %, other types with one code per weight +0 %. `TQ1_0` is stored as `TQ2_0`, +26 %.
//! Types with one index for several weights are stored with one code per weight: 3 bits (`IQ1_*`, `IQ2_*`: 3.6 with
//! scales instead of 1.6 to 2.6) or 4 (`IQ3_*`: 4.6 instead of 3.1 and 3.4). An index lookup would need a gather
//! for each 4 columns of a row, about 20 cycles for 8 rows. In that time the processor can read 3 times these bits
//! from memory. Padding is zero bytes, which decode to weights with a scale of zero.

use std::ops::Range;

use half::{bf16, f16};

use super::{bits, vector::LANES};
use plan::DType;
use plan::quant::{self, BLOCK, Format, Levels, Parts, blocks};

/// Bytes of one line: 16 rows by 4 bytes.
pub(crate) const LINE: usize = 64;

/// Scales of a superblock, which precede its codes. The `f16` of 16 rows fill half a line, bytes a quarter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// One `f16` per block of 32 columns, for two blocks.
    Half,
    /// The same as `bf16`.
    BHalf,
    /// Per block, an `f16` scale and an `f16` minimum, which is added.
    HalfAndMinimum,
    /// One `f32` for all 256 columns; the minimum has the same value.
    One,
    /// An `f16` for all; two bytes with the upper bit pairs of four blocks each; four bytes with the lower nibbles
    /// of two blocks each. The 6-bit scales have an offset of 32.
    SixBits,
    /// `f16` of the scales, `f16` of the minima. Per block, a byte with the lower nibbles of scale (low) and
    /// minimum (high). Per two blocks, the upper bit pairs: scale, minimum, scale, minimum.
    SixBitsAndMinima,
    /// `f16` of the scales, `f16` of the minima. Per 16 columns, scale (low nibble) and minimum (high nibble).
    NibblesAndMinima,
    /// An `f32` for all. Per 16 columns, a signed byte.
    Bytes,
}

impl Scales {
    /// Number of lines.
    pub(crate) const fn lines(self) -> usize {
        match self {
            Self::Half | Self::BHalf | Self::One => 1,
            Self::HalfAndMinimum | Self::SixBits => 2,
            Self::SixBitsAndMinima => 4,
            Self::NibblesAndMinima | Self::Bytes => 5,
        }
    }

    /// True if each 16 columns have a scale, not each 32.
    pub(crate) const fn halves(self) -> bool {
        matches!(self, Self::NibblesAndMinima | Self::Bytes)
    }

    /// True if scaled values have an addend or subtrahend.
    pub(crate) const fn minimum(self) -> bool {
        matches!(
            self,
            Self::HalfAndMinimum | Self::One | Self::SixBitsAndMinima | Self::NibblesAndMinima
        )
    }
}

/// Offsets in bytes.
pub(crate) mod at {
    /// From the start of `d`: the second `f16` (a minimum, or the scale of minima). For
    /// [`SixBits`](super::Scales::SixBits), the upper bit pairs.
    pub(in super::super) const SECOND: usize = 32;
    /// From the start of `d`: the values of each block or of each 16 columns.
    pub(in super::super) const EACH: usize = 64;
    /// [`SixBitsAndMinima`](super::Scales::SixBitsAndMinima): the upper bit pairs.
    pub(in super::super) const UPPER: usize = 64 + 8 * 16;
}

/// Relation between weights and the integers that kernels multiply.
///
/// If all scales of a superblock have one sign, every other integer sum is *negated* and starts from minus the
/// bias. Otherwise the accumulated bias would grow to 8 or 16 times its size, and its rounding error with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Integers {
    /// Signed bytes, stored plus 128.
    Signed,
    /// Unsigned, with this offset.
    Less(u8),
    /// Unsigned, with this offset. The levels are so small that a bias' rounding would matter: sums have no bias
    /// and are converted.
    Converted(u8),
    /// The codes themselves. Codes of negated sums are stored as the difference to the greatest code.
    Alternating,
    /// Levels of a table plus this offset; in negated sums, the offset minus the levels.
    Mirrored(u8),
}

/// The packed form of a type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// Columns of a superblock: 64 or 256.
    pub(crate) columns: usize,
    /// Bits of a code, which is the number of lines of a block.
    pub(crate) bits: usize,
    pub(crate) scales: Scales,
    pub(crate) integers: Integers,
    pub(crate) levels: Levels,
}

impl Form {
    /// Bytes of a superblock of 16 rows.
    pub(crate) const fn bytes(&self) -> usize {
        self.block(self.columns / BLOCK)
    }

    /// First line of block `b`.
    pub(crate) const fn line(&self, b: usize) -> usize {
        self.scales.lines() + self.bits * b
    }

    /// Byte offset of block `b`.
    pub(crate) const fn block(&self, b: usize) -> usize {
        self.line(b) * LINE
    }

    /// True if the sum of half `half` of block `b` (of the whole block, if it has one scale) is negated.
    pub(crate) const fn negated(&self, b: usize, half: usize) -> bool {
        let which = if self.scales.halves() { half } else { b };
        matches!(self.integers, Alternating | Mirrored(_)) && which % 2 == 1
    }

    /// Bits that are inverted in the stored codes of half `half` of block `b`.
    const fn flip(&self, b: usize, half: usize) -> u8 {
        let negated = self.negated(b, half) && matches!(self.integers, Alternating);
        if negated { self.greatest() } else { 0 }
    }

    /// Difference between a stored byte and its level, in that half of that block. In a negated sum, the level is
    /// negated.
    pub(crate) const fn excess(&self, b: usize, half: usize) -> u8 {
        match self.integers {
            Signed => 128,
            Less(excess) | Converted(excess) | Mirrored(excess) => excess,
            Alternating if self.negated(b, half) => self.greatest(),
            Alternating => 0,
        }
    }

    /// The greatest byte of an operand of unsigned products.
    pub(crate) const fn greatest_operand(&self) -> u8 {
        let (Levels::Table(levels), Less(offset) | Converted(offset) | Mirrored(offset)) =
            (self.levels, self.integers)
        else {
            return self.greatest();
        };
        let (mut greatest, mut code) = (0, 0);
        while code < levels.len() {
            let level = levels[code].unsigned_abs();
            greatest = if level > greatest { level } else { greatest };
            code += 1;
        }
        greatest + offset
    }

    /// The greatest code of the form's bits.
    const fn greatest(&self) -> u8 {
        ((1_u16 << self.bits) - 1) as u8
    }
}

/// Declares the forms of quantised types, and their packing functions.
macro_rules! forms {
    ($($name:ident<$n:literal>: $columns:literal, $bits:literal, $scales:ident, $integers:expr;)*) => {
        impl Form {
            $(pub(crate) const $name: Self = Self {
                columns: $columns,
                bits: $bits,
                scales: Scales::$scales,
                integers: $integers,
                levels: <quant::$name as Format<$n>>::LEVELS,
            };)*

            /// The form of a quantised type; `None` without one.
            pub(crate) const fn of(dtype: DType) -> Option<Self> {
                match dtype {
                    $(DType::$name => Some(Self::$name),)*
                    _ => None,
                }
            }
        }

        /// Packs one row's part of some superblocks, from the blocks of a quantised type.
        fn pack_quantised(dtype: DType, l: InterleavedRow, row: &[u8], to: &mut [u8]) {
            match dtype {
                $(DType::$name => pack_blocks::<quant::$name, $n>(&Form::$name, l, row, to),)*
                other => unreachable!("`PackedLayout::new` refuses {other}"),
            }
        }
    };
}

use Integers::{Alternating, Converted, Less, Mirrored, Signed};

forms! {
    Q8_0<32>: 64, 8, Half, Signed;
    Q4_0<32>: 64, 4, Half, Less(8);
    Q4_1<32>: 64, 4, HalfAndMinimum, Less(0);
    Q5_0<32>: 64, 5, Half, Less(16);
    Q5_1<32>: 64, 5, HalfAndMinimum, Less(0);
    IQ4_NL<32>: 64, 4, Half, Signed;
    MXFP4<32>: 64, 4, BHalf, Less(12);
    Q2_K<256>: 256, 2, NibblesAndMinima, Alternating;
    Q3_K<256>: 256, 3, Bytes, Converted(4);
    Q4_K<256>: 256, 4, SixBitsAndMinima, Alternating;
    Q5_K<256>: 256, 5, SixBitsAndMinima, Alternating;
    Q6_K<256>: 256, 6, Bytes, Less(32);
    IQ4_XS<256>: 256, 4, SixBits, Signed;
    IQ3_S<256>: 256, 4, Bytes, Mirrored(15);
    IQ3_XXS<256>: 256, 4, Bytes, Mirrored(62);
    IQ2_S<256>: 256, 3, Bytes, Mirrored(43);
    IQ2_XS<256>: 256, 3, Bytes, Mirrored(43);
    IQ2_XXS<256>: 256, 3, Bytes, Mirrored(43);
    IQ1_M<256>: 256, 3, Bytes, Converted(9);
    IQ1_S<256>: 256, 3, Bytes, Converted(9);
    TQ1_0<256>: 256, 2, One, Alternating;
    TQ2_0<256>: 256, 2, One, Alternating;
}

/// Error: no packed layout for a matrix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("weights of type {0} have no packed layout")]
    Type(DType),
    #[error("a row of {k} columns of {dtype} does not fill whole blocks of {block}")]
    Columns { dtype: DType, k: usize, block: usize },
    #[error("a {rows} x {k} matrix of {dtype} is too large for this machine's addresses")]
    TooLarge { dtype: DType, rows: usize, k: usize },
}

/// Layout of a packed `rows` x `k` matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedLayout {
    dtype: DType,
    rows: usize,
    k: usize,
    superblocks: usize,
    superblock_bytes: usize,
    /// Row groups that are interleaved, 1 or 2.
    interleave: usize,
}

/// Columns and bytes (for 16 rows) of a superblock.
const fn superblock(dtype: DType) -> Option<(usize, usize)> {
    Some(match dtype {
        DType::F32 => (16, 1024),
        DType::F16 | DType::BF16 => (16, 512),
        _ => match Form::of(dtype) {
            Some(form) => (form.columns, form.bytes()),
            None => return None,
        },
    })
}

impl PackedLayout {
    /// The layout of a `rows` x `k` matrix (each row of `k` columns a run of blocks).
    ///
    /// # Errors
    ///
    /// The type is not a weight type, the columns do not fill blocks, or the size overflows.
    pub fn new(dtype: DType, rows: usize, k: usize) -> Result<Self, LayoutError> {
        let (columns, superblock_bytes) = superblock(dtype).ok_or(LayoutError::Type(dtype))?;
        let block = dtype.block_len();
        if k == 0 || !k.is_multiple_of(block) {
            return Err(LayoutError::Columns { dtype, k, block });
        }
        let superblocks = k.div_ceil(columns);
        let layout = Self { dtype, rows, k, superblocks, superblock_bytes, interleave: 1 };
        superblocks
            .checked_mul(superblock_bytes)
            .and_then(|g| g.checked_mul(rows.div_ceil(LANES)))
            .filter(|&b| isize::try_from(b).is_ok())
            .map(|_| layout)
            .ok_or(LayoutError::TooLarge { dtype, rows, k })
    }

    /// The same matrix with `packing` rows interleaved, 16 (the default) or 32. Plain weights are never
    /// interleaved.
    ///
    /// # Panics
    ///
    /// `packing` is another number.
    #[must_use]
    pub fn packed_by(self, packing: usize) -> Self {
        assert!(matches!(packing, 16 | 32), "{packing} interleaved rows");
        let interleave = if self.quantised() { packing / LANES } else { 1 };
        Self { interleave, ..self }
    }

    #[must_use]
    pub const fn interleave(&self) -> usize {
        self.interleave
    }

    #[must_use]
    pub const fn dtype(&self) -> DType {
        self.dtype
    }

    /// Rows, without padding.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.rows
    }

    /// Columns, without padding.
    #[must_use]
    pub const fn k(&self) -> usize {
        self.k
    }

    #[must_use]
    pub const fn superblocks(&self) -> usize {
        self.superblocks
    }

    /// Row groups of 16 rows; the last one is padded.
    #[must_use]
    pub const fn groups(&self) -> usize {
        self.rows.div_ceil(LANES)
    }

    #[must_use]
    pub const fn group_bytes(&self) -> usize {
        self.superblocks * self.superblock_bytes
    }

    #[must_use]
    pub const fn bytes(&self) -> usize {
        self.groups() * self.group_bytes()
    }

    /// Bytes of one row in the GGUF file.
    #[must_use]
    pub const fn raw_row_bytes(&self) -> usize {
        self.k / self.dtype.block_len() * self.dtype.block_bytes()
    }

    /// True when activations are quantised for this type, false when they stay `f32`.
    #[must_use]
    pub const fn quantised(&self) -> bool {
        self.dtype.is_quantised()
    }

    /// Bits of a code, or of a plain weight.
    pub(crate) const fn bits(&self) -> usize {
        match Form::of(self.dtype) {
            Some(form) => form.bits,
            None => 8 * self.dtype.block_bytes(),
        }
    }

    /// Number of activation blocks that share a scale for this type. In long superblocks, the products are added up
    /// before the activations' scale is applied.
    #[must_use]
    pub const fn span(&self) -> usize {
        match Form::of(self.dtype) {
            Some(Form { columns: 256, .. }) => 8,
            _ => 1,
        }
    }

    /// The interleaved row groups that contain a row: their bytes in the packed matrix, and the row's place in
    /// them.
    fn interleaved_with(&self, row: usize) -> (Range<usize>, InterleavedRow) {
        let group = row / LANES;
        let first = group / self.interleave * self.interleave;
        let interleave = self.interleave.min(self.groups() - first);
        let start = first * self.group_bytes();
        let bytes = start..start + interleave * self.group_bytes();
        (bytes, InterleavedRow { interleave, group: group - first, lane: row % LANES })
    }

    /// Packs the rows of interleaved row groups from their GGUF bytes. Several threads may pack different groups at
    /// once.
    ///
    /// # Panics
    ///
    /// `raw` is not whole rows or too many; or `bytes` is neither one row group nor [`PackedLayout::interleave`]
    /// times [`PackedLayout::group_bytes`] long.
    pub fn pack_groups(&self, raw: &[u8], bytes: &mut [u8]) {
        let row_bytes = self.raw_row_bytes();
        let interleave = bytes.len() / self.group_bytes();
        assert!((1..=self.interleave).contains(&interleave));
        assert_eq!(bytes.len(), interleave * self.group_bytes(), "bytes of whole row groups");
        assert!(raw.len().is_multiple_of(row_bytes));
        assert!(raw.len() <= interleave * LANES * row_bytes);
        // All rows are packed superblock by superblock, so that its lines stay in the first-level cache.
        let columns = superblock(self.dtype).map_or(self.k, |(columns, _)| columns);
        let raw_superblock = columns / self.dtype.block_len() * self.dtype.block_bytes();
        for (i, superblock) in
            bytes.chunks_exact_mut(interleave * self.superblock_bytes).enumerate()
        {
            for (r, row) in raw.chunks_exact(row_bytes).enumerate() {
                let end = ((i + 1) * raw_superblock).min(row_bytes);
                let at = InterleavedRow { interleave, group: r / LANES, lane: r % LANES };
                self.pack_row(at, &row[i * raw_superblock..end], superblock);
            }
        }
    }

    fn pack_row(&self, l: InterleavedRow, row: &[u8], bytes: &mut [u8]) {
        if self.quantised() {
            return pack_quantised(self.dtype, l, row, bytes);
        }
        let width = self.dtype.block_bytes();
        for (i, value) in row.chunks_exact(width).enumerate() {
            l.put(bytes, (i * LANES + l.lane) * width, value);
        }
    }

    /// Decodes one row of the packed matrix: the same bits that `quant` decodes from the GGUF blocks.
    ///
    /// # Panics
    ///
    /// The row is not in the matrix, `packed` is not that matrix, or `out` is not `k` long.
    pub fn dequantise_row(&self, packed: &[u8], row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.k, "a row is {} values", self.k);
        let (bytes, l) = self.interleaved_with(row);
        let bytes = &packed[bytes];
        if let Some(form) = Form::of(self.dtype) {
            let superblocks = bytes.chunks_exact(l.interleave * self.superblock_bytes);
            for (y, sb) in out.chunks_mut(form.columns).zip(superblocks) {
                unpack_superblock(&form, l, sb, y);
            }
            return;
        }
        let place = |i: usize, width: usize| l.place((i * LANES + l.lane) * width);
        for (i, y) in out.iter_mut().enumerate() {
            *y = match self.dtype {
                DType::F32 => f32::from_le_bytes(get(bytes, place(i, 4))),
                DType::F16 => half_at(bytes, place(i, 2)),
                _ => bf16::from_le_bytes(get(bytes, place(i, 2))).to_f32(),
            };
        }
    }
}

#[derive(Clone, Copy)]
struct InterleavedRow {
    interleave: usize,
    /// Index among the interleaved row groups.
    group: usize,
    /// Row within its group: the word of every line that belongs to the row.
    lane: usize,
}

impl InterleavedRow {
    /// Byte offset in the interleaved groups of an offset in the row group's superblock.
    const fn place(self, offset: usize) -> usize {
        (offset / LINE * self.interleave + self.group) * LINE + offset % LINE
    }

    /// Copies a few bytes of one line to an offset.
    fn put(self, to: &mut [u8], offset: usize, bytes: &[u8]) {
        let at = self.place(offset);
        to[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Sets a byte the `first` time, adds bits to it otherwise.
    fn add_bits(self, to: &mut [u8], offset: usize, first: bool, bits: u8) {
        let place = &mut to[self.place(offset)];
        *place = if first { bits } else { *place | bits };
    }

    /// Writes the row's word to each of the lines from an offset on.
    fn fill(self, to: &mut [u8], offset: usize, words: impl IntoIterator<Item = u32>) {
        let lines = to[self.place(offset)..].chunks_mut(self.interleave * LINE);
        for (line, word) in lines.zip(words) {
            line[4 * self.lane..4 * self.lane + 4].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// The row's words in the lines from an offset on.
    fn words<const N: usize>(self, sb: &[u8], offset: usize) -> [u32; N] {
        let at = |i| self.place(offset + i * LINE + 4 * self.lane);
        std::array::from_fn(|i| u32::from_le_bytes(get(sb, at(i))))
    }
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes(get(bytes, at)).to_f32()
}

/// Packs the blocks of one row of some superblocks.
fn pack_blocks<F: Format<N>, const N: usize>(
    form: &Form,
    l: InterleavedRow,
    row: &[u8],
    bytes: &mut [u8],
) {
    let size = l.interleave * form.bytes();
    for (i, block) in blocks::<F, N>(row).iter().enumerate() {
        let at = i * N;
        let sb = &mut bytes[at / form.columns * size..][..size];
        let first = at % form.columns / BLOCK;
        let parts = block.parts();
        pack_scales(form.scales, l, first, &parts, sb);
        for (b, codes) in (first..).zip(parts.codes.as_chunks::<BLOCK>().0) {
            let mut words = [0; 8];
            for (i, (word, codes)) in words.iter_mut().zip(codes.as_chunks().0).enumerate() {
                *word = u32::from_le_bytes(codes.map(|code| code ^ form.flip(b, i / 4)));
            }
            let at = form.block(b);
            match form.bits {
                2 => l.fill(sb, at, bits::pack_two(words)),
                3 => l.fill(sb, at, bits::pack_three(words)),
                4 => l.fill(sb, at, bits::pack_four(words)),
                5 => l.fill(sb, at, bits::pack_five(words)),
                6 => l.fill(sb, at, bits::pack_six(words)),
                _ => l.fill(sb, at, words),
            }
        }
    }
}

/// Packs the scales of a GGUF block, whose first 32 columns are block `b` of the superblock.
fn pack_scales<const N: usize>(
    scales: Scales,
    l: InterleavedRow,
    b: usize,
    parts: &Parts<N>,
    to: &mut [u8],
) {
    let r = l.lane;
    // Both were `f16` in the GGUF file.
    let half = |x: f32| f16::from_f32(x).to_le_bytes();
    let unsigned =
        |sub: usize| (parts.scales[sub].cast_unsigned(), parts.minima[sub].cast_unsigned());
    match scales {
        Scales::Half => l.put(to, 32 * b + 2 * r, &half(parts.d)),
        Scales::BHalf => l.put(to, 32 * b + 2 * r, &bf16::from_f32(parts.d).to_le_bytes()),
        Scales::HalfAndMinimum => {
            l.put(to, LINE * b + 2 * r, &half(parts.d));
            l.put(to, LINE * b + at::SECOND + 2 * r, &half(-parts.dmin));
        }
        Scales::One => l.put(to, 4 * r, &parts.d.to_le_bytes()),
        Scales::SixBits => {
            l.put(to, 2 * r, &half(parts.d));
            for b in 0..8 {
                let scale = (parts.scales[2 * b] + 32).cast_unsigned();
                let (upper, lower) = (scale >> 4 << (b % 4 * 2), (scale & 15) << (b % 2 * 4));
                l.add_bits(to, at::SECOND + LANES * (b / 4) + r, b % 4 == 0, upper);
                l.add_bits(to, at::EACH + LANES * (b / 2) + r, b % 2 == 0, lower);
            }
        }
        Scales::SixBitsAndMinima => {
            l.put(to, 2 * r, &half(parts.d));
            l.put(to, at::SECOND + 2 * r, &half(parts.dmin));
            for b in 0..8 {
                let (scale, minimum) = unsigned(2 * b);
                l.put(to, at::EACH + LANES * b + r, &[scale & 15 | minimum << 4]);
                let upper = (scale >> 4 | minimum >> 4 << 2) << (4 * (b % 2));
                l.add_bits(to, at::UPPER + LANES * (b / 2) + r, b % 2 == 0, upper);
            }
        }
        Scales::NibblesAndMinima => {
            l.put(to, 2 * r, &half(parts.d));
            l.put(to, at::SECOND + 2 * r, &half(parts.dmin));
            for sub in 0..16 {
                let (scale, minimum) = unsigned(sub);
                l.put(to, at::EACH + LANES * sub + r, &[scale | minimum << 4]);
            }
        }
        Scales::Bytes => {
            l.put(to, 4 * r, &parts.d.to_le_bytes());
            for (sub, scale) in parts.scales.into_iter().enumerate() {
                l.put(to, at::EACH + LANES * sub + r, &scale.to_le_bytes());
            }
        }
    }
}

/// Scale and minimum of half `half` of block `b` of a row, as `f32`.
fn scale(scales: Scales, sb: &[u8], l: InterleavedRow, b: usize, half: usize) -> (f32, f32) {
    let r = l.lane;
    let f16_at = |offset: usize| half_at(sb, l.place(offset + 2 * r));
    let f32_at = |offset: usize| f32::from_le_bytes(get(sb, l.place(offset + 4 * r)));
    let byte = |offset: usize| sb[l.place(offset + r)];
    let sub = 2 * b + half;
    match scales {
        Scales::Half => (f16_at(32 * b), 0.0),
        Scales::BHalf => (bf16::from_le_bytes(get(sb, l.place(32 * b + 2 * r))).to_f32(), 0.0),
        Scales::HalfAndMinimum => (f16_at(LINE * b), -f16_at(LINE * b + at::SECOND)),
        Scales::One => (f32_at(0), 0.0),
        Scales::SixBits => {
            let upper = byte(at::SECOND + LANES * (b / 4)) >> (b % 4 * 2) & 3;
            let lower = byte(at::EACH + LANES * (b / 2)) >> (b % 2 * 4) & 15;
            (f16_at(0) * (f32::from(lower | upper << 4) - 32.0), 0.0)
        }
        Scales::SixBitsAndMinima => {
            let lower = byte(at::EACH + LANES * b);
            let upper = byte(at::UPPER + LANES * (b / 2)) >> (4 * (b % 2));
            let (scale, minimum) =
                (lower & 15 | (upper & 3) << 4, lower >> 4 | (upper >> 2 & 3) << 4);
            (f16_at(0) * f32::from(scale), f16_at(at::SECOND) * f32::from(minimum))
        }
        Scales::NibblesAndMinima => {
            let both = byte(at::EACH + LANES * sub);
            (f16_at(0) * f32::from(both & 15), f16_at(at::SECOND) * f32::from(both >> 4))
        }
        Scales::Bytes => (f32_at(0) * f32::from(byte(at::EACH + LANES * sub).cast_signed()), 0.0),
    }
}

/// Decodes a row's values of one superblock.
fn unpack_superblock(form: &Form, l: InterleavedRow, sb: &[u8], out: &mut [f32]) {
    for (b, y) in out.chunks_exact_mut(BLOCK).enumerate() {
        let at = form.block(b);
        let words: [u32; 8] = match form.bits {
            2 => bits::unpack_two(l.words(sb, at)),
            3 => bits::unpack_three(l.words(sb, at)),
            4 => bits::unpack_four(l.words(sb, at)),
            5 => bits::unpack_five(l.words(sb, at)),
            6 => bits::unpack_six(l.words(sb, at)),
            _ => l.words(sb, at),
        };
        let codes = words.map(u32::to_le_bytes);
        for (half, (y, codes)) in y
            .chunks_exact_mut(BLOCK / 2)
            .zip(codes.as_flattened().chunks_exact(BLOCK / 2))
            .enumerate()
        {
            let flip = form.flip(b, half);
            let (scale, minimum) = scale(form.scales, sb, l, b, half);
            for (y, code) in y.iter_mut().zip(codes) {
                *y = scale * f32::from(form.levels.of(code ^ flip)) - minimum;
            }
        }
    }
}
