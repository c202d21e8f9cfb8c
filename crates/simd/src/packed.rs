//! Weight matrices repacked for the kernels, at their own bit width.
//!
//! Sixteen rows form a *row group*; a row group is a run of *superblocks* along the columns; all of
//! it lies in the order in which a matrix-vector product reads it, so a thread that owns a range of
//! row groups reads one contiguous stream, and a line is done with before the next one is read. Four bytes of a
//! row become one 32-bit lane, sixteen rows one 64-byte line. Scales and integers keep their bits, in other places
//! (except: `Q8_0` quants are stored plus 128, odd blocks of `Q4_K` and `Q5_K` as what is missing to the greatest
//! value, and `Q6_K`'s block scale as `f32`). Integers of 5 and 6 bits share bytes so that most are a byte's lower
//! bits (`bits.rs`).
//!
//! Row groups may lie in pairs, a *panel* of 32 rows: then their lines alternate, superblock by
//! superblock. Of an odd number of row groups the last one lies alone.
//!
//! | type | columns | bytes | content (16 rows each) |
//! |---|---|---|---|
//! | `Q8_0` | 64 | 1088 | 2 x f16 scales; 2 x 8 lines of quants |
//! | `Q4_0` | 64 | 576 | 2 x f16 scales; 2 x 4 lines, low nibbles columns 0-15 |
//! | `Q4_K` | 256 | 2304 | f16 d, dmin; 6-bit scales; 4 x 8 lines, low nibbles first 32 of 64 |
//! | `Q5_K` | 256 | 2816 | the same scales; 8 x 5 lines, one block of 32 each |
//! | `Q6_K` | 256 | 3392 | f32 d; i8 scales; 16 x 3 lines of 16 columns |
//! | `F16`, `BF16` | 16 | 512 | 16 columns of 16 rows |
//! | `F32` | 16 | 1024 | 16 columns of 16 rows |
//!
//! Against GGUF: `Q6_K` +1 %, the others +0 %, before padding of rows to 16 and of columns to the
//! superblock. Padding is zero bytes, which decode to weights that are multiplied by a zero scale.

use std::ops::Range;

use half::{bf16, f16};

use super::{bits, vector::LANES};
use plan::DType;
use plan::quant::scale_and_min;

/// Bytes of one line: 16 rows by 4 bytes.
pub(crate) const LINE: usize = 64;

/// Offsets within a superblock, in bytes. Everything lies in the order in which it is first read, the
/// scales in front.
pub(crate) mod at {
    use super::LINE;

    /// `Q8_0`: the quants; in front of them the scales of block `b` at `32 * b`.
    pub(in super::super) const Q8_0_QUANTS: usize = LINE;
    /// `Q4_0`: the same.
    pub(in super::super) const Q4_0_QUANTS: usize = LINE;
    /// `Q4_K`: the nibbles; in front of them `d`, then `dmin`, then the 6-bit scales and minima.
    pub(in super::super) const Q4_K_QUANTS: usize = 4 * LINE;
    /// `Q5_K`: blocks of 5 lines, after the same.
    pub(in super::super) const Q5_K_QUANTS: usize = 4 * LINE;
    /// From the start of `d`: `dmin`.
    pub(in super::super) const K_MINIMUM: usize = 32;
    /// From the start of `d`: low nibbles of scale (low) and minimum (high) of each block of 32.
    pub(in super::super) const K_LOW: usize = 64;
    /// From the start of `d`: the upper pairs, two blocks a byte: scale, minimum, scale, minimum.
    pub(in super::super) const K_HIGH: usize = 64 + 8 * 16;
    /// `Q6_K`: the 8-bit scales, 16 rows for each of 16 sub-blocks; in front of them `d` as `f32`.
    pub(in super::super) const Q6_K_SCALES: usize = LINE;
    /// `Q6_K`: halves of blocks, of 3 lines.
    pub(in super::super) const Q6_K_QUANTS: usize = 5 * LINE;
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
        DType::Q8_0 => (64, 17 * LINE),
        DType::Q4_0 => (64, 9 * LINE),
        DType::Q4_K => (256, 36 * LINE),
        DType::Q5_K => (256, 44 * LINE),
        DType::Q6_K => (256, 53 * LINE),
        _ => return None,
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

    /// Blocks of activations that share a scale where they meet this type: the products of a long
    /// superblock are added up before the scale of activations is applied.
    #[must_use]
    pub const fn span(&self) -> usize {
        match self.dtype {
            DType::Q4_K | DType::Q5_K | DType::Q6_K => 8,
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
        let (r, size) = (l.lane, l.panel_width * self.superblock_bytes);
        match self.dtype {
            DType::Q8_0 => {
                for (b, block) in row.chunks_exact(34).enumerate() {
                    let (sb, h) = (&mut panel[b / 2 * size..][..size], b % 2);
                    l.put(sb, 32 * h + 2 * r, &block[..2]);
                    let quants = words(&block[2..]).map(|w| w ^ 0x8080_8080);
                    l.fill(sb, at::Q8_0_QUANTS + 8 * h * LINE, quants);
                }
            }
            DType::Q4_0 => {
                for (b, block) in row.chunks_exact(18).enumerate() {
                    let (sb, h) = (&mut panel[b / 2 * size..][..size], b % 2);
                    l.put(sb, 32 * h + 2 * r, &block[..2]);
                    l.fill(sb, at::Q4_0_QUANTS + 4 * h * LINE, words(&block[2..]));
                }
            }
            DType::Q4_K => {
                for (block, sb) in row.chunks_exact(144).zip(panel.chunks_exact_mut(size)) {
                    pack_k_scales(&block[..16], l, sb);
                    // A byte's upper nibble is of an odd block.
                    let quants = words(&block[16..]).map(|w| w ^ 0xf0f0_f0f0);
                    l.fill(sb, at::Q4_K_QUANTS, quants);
                }
            }
            DType::Q5_K => {
                for (block, sb) in row.chunks_exact(176).zip(panel.chunks_exact_mut(size)) {
                    pack_k_scales(&block[..16], l, sb);
                    for b in 0..8 {
                        let quants = bits::pack_five(q5_k_block(block, b));
                        l.fill(sb, at::Q5_K_QUANTS + 5 * b * LINE, quants);
                    }
                }
            }
            DType::Q6_K => {
                for (block, sb) in row.chunks_exact(210).zip(panel.chunks_exact_mut(size)) {
                    for j in 0..16 {
                        let quants = bits::pack_six(q6_k_half(block, j));
                        l.fill(sb, at::Q6_K_QUANTS + 3 * j * LINE, quants);
                    }
                    for (j, &s) in block[192..208].iter().enumerate() {
                        sb[l.place(at::Q6_K_SCALES + LANES * j + r)] = s;
                    }
                    l.put(sb, 4 * r, &half_at(block, 208).to_le_bytes());
                }
            }
            DType::F32 | DType::F16 | DType::BF16 => {
                let width = self.dtype.block_bytes();
                for (i, value) in row.chunks_exact(width).enumerate() {
                    l.put(panel, (i * LANES + r) * width, value);
                }
            }
            other => unreachable!("`PackedLayout::new` refuses {other}"),
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
        let (r, size) = (l.lane, l.panel_width * self.superblock_bytes);
        match self.dtype {
            DType::F32 => {
                for (i, y) in out.iter_mut().enumerate() {
                    *y = f32::from_le_bytes(get(panel, l.place((i * LANES + r) * 4)));
                }
            }
            DType::F16 => {
                for (i, y) in out.iter_mut().enumerate() {
                    *y = half_at(panel, l.place((i * LANES + r) * 2));
                }
            }
            DType::BF16 => {
                for (i, y) in out.iter_mut().enumerate() {
                    *y = bf16::from_le_bytes(get(panel, l.place((i * LANES + r) * 2))).to_f32();
                }
            }
            DType::Q8_0 => {
                for (b, y) in out.chunks_exact_mut(32).enumerate() {
                    let (sb, h) = (&panel[b / 2 * size..][..size], b % 2);
                    let d = half_at(sb, l.place(32 * h + 2 * r));
                    for (i, y) in y.iter_mut().enumerate() {
                        *y = d * (f32::from(l.byte(sb, at::Q8_0_QUANTS + 8 * h * LINE, i)) - 128.0);
                    }
                }
            }
            DType::Q4_0 => {
                for (b, y) in out.chunks_exact_mut(32).enumerate() {
                    let (sb, h) = (&panel[b / 2 * size..][..size], b % 2);
                    let d = half_at(sb, l.place(32 * h + 2 * r));
                    for (i, y) in y.iter_mut().enumerate() {
                        let q = nibble(l.byte(sb, at::Q4_0_QUANTS + 4 * h * LINE, i % 16), i / 16);
                        *y = d * (f32::from(q) - 8.0);
                    }
                }
            }
            DType::Q4_K | DType::Q5_K => {
                for (y, sb) in out.chunks_exact_mut(256).zip(panel.chunks_exact(size)) {
                    for (b, y) in y.chunks_exact_mut(32).enumerate() {
                        let (scale, minimum) = k_scale(sb, l, b);
                        let (most, stored) = if self.dtype == DType::Q4_K {
                            let both = l.words(sb, at::Q4_K_QUANTS + b / 2 * 8 * LINE);
                            (15, both.map(|word: u32| word >> (b % 2 * 4) & 0x0f0f_0f0f))
                        } else {
                            (31, bits::unpack_five(l.words(sb, at::Q5_K_QUANTS + 5 * b * LINE)))
                        };
                        for (y, q) in y.iter_mut().zip(stored.map(u32::to_le_bytes).as_flattened())
                        {
                            let q = if b % 2 == 1 { most - q } else { *q };
                            *y = scale * f32::from(q) - minimum;
                        }
                    }
                }
            }
            DType::Q6_K => {
                for (y, sb) in out.chunks_exact_mut(256).zip(panel.chunks_exact(size)) {
                    let d = f32::from_le_bytes(get(sb, l.place(4 * r)));
                    for (j, y) in y.chunks_exact_mut(16).enumerate() {
                        let s = sb[l.place(at::Q6_K_SCALES + LANES * j + r)].cast_signed();
                        let stored = bits::unpack_six(l.words(sb, at::Q6_K_QUANTS + 3 * j * LINE));
                        for (y, q) in y.iter_mut().zip(stored.map(u32::to_le_bytes).as_flattened())
                        {
                            *y = d * f32::from(s) * (f32::from(*q) - 32.0);
                        }
                    }
                }
            }
            other => unreachable!("`PackedLayout::new` refuses {other}"),
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

    /// The row's byte `i` in the lines from an offset on.
    fn byte(self, sb: &[u8], offset: usize, i: usize) -> u8 {
        sb[self.place(offset + i / 4 * LINE + 4 * self.lane + i % 4)]
    }
}

/// The low (0) or high (1) nibble.
fn nibble(byte: u8, which: usize) -> u8 {
    byte >> (4 * which) & 15
}

fn get<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes(get(bytes, at)).to_f32()
}

fn words(bytes: &[u8]) -> impl Iterator<Item = u32> {
    bytes.as_chunks().0.iter().map(|&word| u32::from_le_bytes(word))
}

/// Block `b` (of 32 columns) of a GGUF block of `Q5_K`, an odd one as what is missing to 31.
fn q5_k_block(block: &[u8], b: usize) -> [u32; 8] {
    let (fifth, nibbles) = (&block[16..48], &block[48 + b / 2 * 32..][..32]);
    let (shift, flip) = if b % 2 == 1 { (4, 0x1f1f_1f1f) } else { (0, 0) };
    let mut columns = [0; 8];
    for (to, (fifth, nibbles)) in columns.iter_mut().zip(words(fifth).zip(words(nibbles))) {
        *to = (nibbles >> shift & 0x0f0f_0f0f | (fifth >> b & 0x0101_0101) << 4) ^ flip;
    }
    columns
}

/// Columns `16 * j..16 * j + 16` of a GGUF block of `Q6_K`, in which a byte holds nibbles 64 columns apart, and
/// pairs of bits 32 apart.
fn q6_k_half(block: &[u8], j: usize) -> [u32; 4] {
    let (half, j) = (j / 8, j % 8);
    let nibbles = &block[64 * half + j % 4 * 16..][..16];
    let pairs = &block[128 + 32 * half + j % 2 * 16..][..16];
    let (low, high) = (j / 4 * 4, j / 2 * 2);
    let mut columns = [0; 4];
    for (to, (nibbles, pairs)) in columns.iter_mut().zip(words(nibbles).zip(words(pairs))) {
        *to = nibbles >> low & 0x0f0f_0f0f | (pairs >> high & 0x0303_0303) << 4;
    }
    columns
}

/// `d`, `dmin` and the 12 bytes of 6-bit scales and minima, as ggml packs them, to the layout of [`at::K_LOW`] and [`at::K_HIGH`].
fn pack_k_scales(head: &[u8], l: PanelRow, to: &mut [u8]) {
    let r = l.lane;
    l.put(to, 2 * r, &head[..2]);
    l.put(to, at::K_MINIMUM + 2 * r, &head[2..4]);
    let packed = get(head, 4);
    for b in 0..8 {
        let (scale, minimum) = scale_and_min(&packed, b);
        to[l.place(at::K_LOW + LANES * b + r)] = scale & 15 | minimum << 4;
        let high = (scale >> 4 | minimum >> 4 << 2) << (4 * (b % 2));
        let place = &mut to[l.place(at::K_HIGH + LANES * (b / 2) + r)];
        *place = if b % 2 == 0 { high } else { *place | high };
    }
}

/// Scale and minimum of block `b` of a row, multiplied out; both products are exact.
fn k_scale(sb: &[u8], l: PanelRow, b: usize) -> (f32, f32) {
    let r = l.lane;
    let low = sb[l.place(at::K_LOW + LANES * b + r)];
    let high = sb[l.place(at::K_HIGH + LANES * (b / 2) + r)] >> (4 * (b % 2));
    let (scale, minimum) = (low & 15 | (high & 3) << 4, low >> 4 | (high >> 2 & 3) << 4);
    let half = |offset| half_at(sb, l.place(offset));
    (half(2 * r) * f32::from(scale), half(at::K_MINIMUM + 2 * r) * f32::from(minimum))
}
