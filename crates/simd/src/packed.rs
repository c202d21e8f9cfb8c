//! Weight matrices repacked for the kernels, at their own bit width.
//!
//! Sixteen rows form a *row group*; a row group is a run of *superblocks* along the columns; all of
//! it lies in the order in which a matrix-vector product reads it, so a thread that owns a range of
//! row groups reads one contiguous stream, and a line is done with before the next one is read. Four bytes of a
//! row become one 32-bit lane, sixteen rows one 64-byte line.
//!
//! A superblock is its scales (`Scales`), then its blocks of 32 columns, of as many lines as its codes have bits
//! (`bits.rs`). Codes are those of `plan::quant`, except that every other block (or half of one) of some types
//! is stored as what is missing to the greatest code.
//!
//! Row groups may lie in pairs, a *panel* of 32 rows: then their lines alternate, superblock by
//! superblock. Of an odd number of row groups the last one lies alone.
//!
//! Against GGUF, before padding of rows to 16 and of columns to the superblock: `Q6_K` +1 %, `TQ2_0` +3 %, `Q3_K` +5 %,
//! `MXFP4` +6 %, the other types with a code for each weight +0 %. `TQ1_0` is stored as `TQ2_0`, +26 %. The types with an index
//! for several weights are stored with a code for each: 3 bits (`IQ1_*`, `IQ2_*`: 3.6 with scales instead of 1.6 to 2.6)
//! or 4 (`IQ3_*`: 4.6 instead of 3.1 and 3.4). To look an index up takes a gather for each 4 columns of a row, about 20
//! cycles for 8 rows, in which the processor could read 3 times these bits from memory. Padding is zero bytes,
//! which decode to weights that are multiplied by a zero scale.

use std::ops::Range;

use half::{bf16, f16};

use super::{bits, vector::LANES};
use plan::DType;
use plan::quant::{self, BLOCK, Format, Levels, Parts, blocks};

/// Bytes of one line: 16 rows by 4 bytes.
pub(crate) const LINE: usize = 64;

/// What lies in front of a superblock's codes. `f16` of 16 rows are half a line, bytes a quarter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scales {
    /// `f16` of the first block of 32 columns, and of the second.
    Half,
    /// The same as `bf16`.
    BHalf,
    /// For either block `f16`, and `f16` of what is added.
    HalfAndMinimum,
    /// `f32` of all 256 columns, which is their minimum too.
    One,
    /// `f16` of all; two bytes with the upper pairs of four blocks each; four with the lower nibbles of two each: 6
    /// bits, offset 32.
    SixBits,
    /// `f16` of the scales, `f16` of the minima; for each block a byte with the lower nibbles of scale (low) and minimum
    /// (high); for each two blocks the upper pairs: scale, minimum, scale, minimum.
    SixBitsAndMinima,
    /// `f16` of the scales, `f16` of the minima; for each 16 columns scale (low nibble) and minimum (high).
    NibblesAndMinima,
    /// `f32` of all; for each 16 columns a signed byte.
    Bytes,
}

impl Scales {
    /// Lines that they fill.
    pub(crate) const fn lines(self) -> usize {
        match self {
            Self::Half | Self::BHalf | Self::One => 1,
            Self::HalfAndMinimum | Self::SixBits => 2,
            Self::SixBitsAndMinima => 4,
            Self::NibblesAndMinima | Self::Bytes => 5,
        }
    }

    /// Whether 16 columns have a scale of their own, and not 32.
    pub(crate) const fn halves(self) -> bool {
        matches!(self, Self::NibblesAndMinima | Self::Bytes)
    }

    /// Whether something is subtracted from (or added to) what is scaled.
    pub(crate) const fn minimum(self) -> bool {
        matches!(
            self,
            Self::HalfAndMinimum | Self::One | Self::SixBitsAndMinima | Self::NibblesAndMinima
        )
    }
}

/// Offsets in bytes.
pub(crate) mod at {
    /// From the start of `d`: the second `f16`, a minimum's or of minima; of [`SixBits`](super::Scales::SixBits) the
    /// upper pairs.
    pub(in super::super) const SECOND: usize = 32;
    /// From the start of `d`: what there is for each block or each 16 columns.
    pub(in super::super) const EACH: usize = 64;
    /// [`SixBitsAndMinima`](super::Scales::SixBitsAndMinima): the upper pairs.
    pub(in super::super) const UPPER: usize = 64 + 8 * 16;
}

/// How the integers that kernels multiply stand for weights.
///
/// Where all scales of a superblock have one sign, every other integer sum is *negated* and starts from minus the bias:
/// else biases would grow to 8 or 16 times the size where the first's rounding counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Integers {
    /// Signed bytes, stored plus 128.
    Signed,
    /// Unsigned and too large by this.
    Less(u8),
    /// Unsigned and too large by this, with levels so small that a bias' rounding would count: sums have none, and
    /// are converted.
    Converted(u8),
    /// Codes themselves. Those that are negated are stored as what is missing to the greatest code.
    Alternating,
    /// Levels of a table and this, or, negated, this less levels.
    Mirrored(u8),
}

/// The packed form of a type.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Form {
    /// Columns of a superblock: 64 or 256.
    pub(crate) columns: usize,
    /// Bits of a code, and lines of a block.
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

    /// The line at which block `b` begins.
    pub(crate) const fn line(&self, b: usize) -> usize {
        self.scales.lines() + self.bits * b
    }

    /// Where block `b` begins.
    pub(crate) const fn block(&self, b: usize) -> usize {
        self.line(b) * LINE
    }

    /// Whether the sum of half `half` of block `b` (of the whole block, where that has one scale) is negated.
    pub(crate) const fn negated(&self, b: usize, half: usize) -> bool {
        let which = if self.scales.halves() { half } else { b };
        matches!(self.integers, Alternating | Mirrored(_)) && which % 2 == 1
    }

    /// What codes of half `half` of block `b` are stored with: bits that are the other way round.
    const fn flip(&self, b: usize, half: usize) -> u8 {
        let negated = self.negated(b, half) && matches!(self.integers, Alternating);
        if negated { self.greatest() } else { 0 }
    }

    /// What a byte is too large by, in that half of that block as kernels have it, to be the level: of a negated sum,
    /// minus the level.
    pub(crate) const fn excess(&self, b: usize, half: usize) -> u8 {
        match self.integers {
            Signed => 128,
            Less(excess) | Converted(excess) | Mirrored(excess) => excess,
            Alternating if self.negated(b, half) => self.greatest(),
            Alternating => 0,
        }
    }

    /// The greatest code that its bits hold.
    const fn greatest(&self) -> u8 {
        ((1_u16 << self.bits) - 1) as u8
    }
}

/// Declares the forms of quantised types, and what packs each.
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

            /// Of a quantised type that has one.
            pub(crate) const fn of(dtype: DType) -> Option<Self> {
                match dtype {
                    $(DType::$name => Some(Self::$name),)*
                    _ => None,
                }
            }
        }

        /// Packs a row's part of some superblocks, from the blocks of a quantised type.
        fn pack_quantised(dtype: DType, l: PanelRow, row: &[u8], to: &mut [u8]) {
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

/// A matrix that the kernels have no layout for.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LayoutError {
    #[error("weights of type {0} have no packed layout")]
    Type(DType),
    #[error("a row of {k} columns of {dtype} does not fill whole blocks of {block}")]
    Columns { dtype: DType, k: usize, block: usize },
    #[error("a {rows} x {k} matrix of {dtype} is too large for this machine's addresses")]
    TooLarge { dtype: DType, rows: usize, k: usize },
}

/// Where everything lies in the packed form of a `rows` x `k` matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PackedLayout {
    dtype: DType,
    rows: usize,
    k: usize,
    superblocks: usize,
    superblock_bytes: usize,
    /// Row groups of a panel, 1 or 2.
    panel_width: usize,
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
    /// The type is not one of weights, the columns do not fill blocks, or the size overflows.
    pub fn new(dtype: DType, rows: usize, k: usize) -> Result<Self, LayoutError> {
        let (columns, superblock_bytes) = superblock(dtype).ok_or(LayoutError::Type(dtype))?;
        let block = dtype.block_len();
        if k == 0 || !k.is_multiple_of(block) {
            return Err(LayoutError::Columns { dtype, k, block });
        }
        let superblocks = k.div_ceil(columns);
        let layout = Self { dtype, rows, k, superblocks, superblock_bytes, panel_width: 1 };
        superblocks
            .checked_mul(superblock_bytes)
            .and_then(|g| g.checked_mul(rows.div_ceil(LANES)))
            .filter(|&b| isize::try_from(b).is_ok())
            .map(|_| layout)
            .ok_or(LayoutError::TooLarge { dtype, rows, k })
    }

    /// The same matrix in panels of `packing` rows, 16 (as [`PackedLayout::new`] has it) or 32. Plain
    /// weights stay as they are.
    ///
    /// # Panics
    ///
    /// It is another number.
    #[must_use]
    pub fn packed_by(self, packing: usize) -> Self {
        assert!(matches!(packing, 16 | 32), "panels of {packing} rows");
        let panel_width = if self.quantised() { packing / LANES } else { 1 };
        Self { panel_width, ..self }
    }

    #[must_use]
    pub const fn panel_width(&self) -> usize {
        self.panel_width
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

    /// Row groups of 16, the last one padded.
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

    /// Blocks of activations that share a scale where they meet this type: the products of a long
    /// superblock are added up before the scale of activations is applied.
    #[must_use]
    pub const fn span(&self) -> usize {
        match Form::of(self.dtype) {
            Some(Form { columns: 256, .. }) => 8,
            _ => 1,
        }
    }

    /// The panel of a row: its bytes in the packed matrix, and where the row lies in it.
    fn panel(&self, row: usize) -> (Range<usize>, PanelRow) {
        let group = row / LANES;
        let first = group / self.panel_width * self.panel_width;
        let panel_width = self.panel_width.min(self.groups() - first);
        let start = first * self.group_bytes();
        let bytes = start..start + panel_width * self.group_bytes();
        (bytes, PanelRow { panel_width, group: group - first, lane: row % LANES })
    }

    /// Packs the rows of one panel from their GGUF bytes; what lies in parallel reach of others is not
    /// touched.
    ///
    /// # Panics
    ///
    /// `raw` is not whole rows or more than a panel's, or `panel` is not one or [`PackedLayout::panel_width`]
    /// times [`PackedLayout::group_bytes`] long.
    pub fn pack_panel(&self, raw: &[u8], panel: &mut [u8]) {
        let row_bytes = self.raw_row_bytes();
        let panel_width = panel.len() / self.group_bytes();
        assert!((1..=self.panel_width).contains(&panel_width));
        assert_eq!(panel.len(), panel_width * self.group_bytes(), "bytes of whole row groups");
        assert!(raw.len().is_multiple_of(row_bytes));
        assert!(raw.len() <= panel_width * LANES * row_bytes);
        // One superblock of all rows after the other: its lines stay in the first-level cache.
        let columns = superblock(self.dtype).map_or(self.k, |(columns, _)| columns);
        let raw_superblock = columns / self.dtype.block_len() * self.dtype.block_bytes();
        for (i, superblock) in
            panel.chunks_exact_mut(panel_width * self.superblock_bytes).enumerate()
        {
            for (r, row) in raw.chunks_exact(row_bytes).enumerate() {
                let end = ((i + 1) * raw_superblock).min(row_bytes);
                let at = PanelRow { panel_width, group: r / LANES, lane: r % LANES };
                self.pack_row(at, &row[i * raw_superblock..end], superblock);
            }
        }
    }

    fn pack_row(&self, l: PanelRow, row: &[u8], panel: &mut [u8]) {
        if self.quantised() {
            return pack_quantised(self.dtype, l, row, panel);
        }
        let width = self.dtype.block_bytes();
        for (i, value) in row.chunks_exact(width).enumerate() {
            l.put(panel, (i * LANES + l.lane) * width, value);
        }
    }

    /// Decodes one row out of the packed matrix: the numbers that the GGUF blocks stand for, bit
    /// for bit as `quant` decodes them.
    ///
    /// # Panics
    ///
    /// The row is not in the matrix, `packed` is not that matrix, or `out` is not `k` long.
    pub fn dequantise_row(&self, packed: &[u8], row: usize, out: &mut [f32]) {
        assert!(row < self.rows, "row {row} of {}", self.rows);
        assert_eq!(out.len(), self.k, "a row is {} values", self.k);
        let (panel, l) = self.panel(row);
        let panel = &packed[panel];
        if let Some(form) = Form::of(self.dtype) {
            let superblocks = panel.chunks_exact(l.panel_width * self.superblock_bytes);
            for (y, sb) in out.chunks_mut(form.columns).zip(superblocks) {
                unpack_superblock(&form, l, sb, y);
            }
            return;
        }
        let place = |i: usize, width: usize| l.place((i * LANES + l.lane) * width);
        for (i, y) in out.iter_mut().enumerate() {
            *y = match self.dtype {
                DType::F32 => f32::from_le_bytes(get(panel, place(i, 4))),
                DType::F16 => half_at(panel, place(i, 2)),
                _ => bf16::from_le_bytes(get(panel, place(i, 2))).to_f32(),
            };
        }
    }
}

#[derive(Clone, Copy)]
struct PanelRow {
    panel_width: usize,
    /// Which of them it is in.
    group: usize,
    /// Which row of that it is: the word of every line that is its own.
    lane: usize,
}

impl PanelRow {
    /// Where the byte at an offset of the row group's superblock lies in the panel's.
    const fn place(self, offset: usize) -> usize {
        (offset / LINE * self.panel_width + self.group) * LINE + offset % LINE
    }

    /// Copies a few bytes of one line to an offset.
    fn put(self, to: &mut [u8], offset: usize, bytes: &[u8]) {
        let at = self.place(offset);
        to[at..at + bytes.len()].copy_from_slice(bytes);
    }

    /// Sets a byte, or adds bits to it where it is not the `first` time.
    fn add_bits(self, to: &mut [u8], offset: usize, first: bool, bits: u8) {
        let place = &mut to[self.place(offset)];
        *place = if first { bits } else { *place | bits };
    }

    /// The row's word to each of the lines from an offset on.
    fn fill(self, to: &mut [u8], offset: usize, words: impl IntoIterator<Item = u32>) {
        let lines = to[self.place(offset)..].chunks_mut(self.panel_width * LINE);
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

/// Packs the blocks of a row of some superblocks.
fn pack_blocks<F: Format<N>, const N: usize>(
    form: &Form,
    l: PanelRow,
    row: &[u8],
    panel: &mut [u8],
) {
    let size = l.panel_width * form.bytes();
    for (i, block) in blocks::<F, N>(row).iter().enumerate() {
        let at = i * N;
        let sb = &mut panel[at / form.columns * size..][..size];
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

/// The scales of a block of a file, whose first 32 columns are block `b` of the superblock.
fn pack_scales<const N: usize>(
    scales: Scales,
    l: PanelRow,
    b: usize,
    parts: &Parts<N>,
    to: &mut [u8],
) {
    let r = l.lane;
    // Both were `f16` in the file.
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

/// Scale and minimum of half `half` of block `b` of a row, multiplied out.
fn scale(scales: Scales, sb: &[u8], l: PanelRow, b: usize, half: usize) -> (f32, f32) {
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

/// The numbers of a row in a superblock.
fn unpack_superblock(form: &Form, l: PanelRow, sb: &[u8], out: &mut [f32]) {
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
