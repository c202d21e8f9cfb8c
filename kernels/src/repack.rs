//! How weights lie in GPU memory, and the way there from GGUF's bytes and back.
//!
//! A *superblock* is 256 columns of one row; a row's last one may be shorter for types of short blocks. A
//! *piece* is 16 bytes, a *panel* 8 neighbouring rows, of which the last may have rows of zeroes. `n` rows of
//! `k` columns are two planes, the second right behind the first:
//!
//! | plane | bytes |
//! |---|---|
//! | pieces | `[panel][superblock][piece][row of 8][16]` |
//! | tails | `[panel][superblock][row of 8][tail]`, what is left of a superblock beyond whole pieces |
//!
//! So a superblock of a panel is one run of bytes, and a piece of its 8 rows are 128 neighbouring ones: what 8
//! lanes read at a time, and a matrix as `ldmatrix` takes it. Nothing is stored twice and nothing but rows of the
//! last panel and, in types of single numbers, columns up to 32 is padded. When the matrix begins at a multiple of
//! 256 bytes every access of the kernels is aligned.
//!
//! | type | pieces | tail |
//! |---|---|---|
//! | Q8_0 | 8 steps `f16`; then 16 of quants, columns in order | |
//! | Q4_K | head; then 8 of nibbles, as in the file | |
//! | Q5_K | head; 2 of fifth bits; then 8 of nibbles, as in the file | |
//! | Q6_K | 16 scales; then for each 64 columns A, B, C | `f16` |
//! | F16 | 32 of 8 columns | |
//!
//! The head of Q4_K and Q5_K is that of the file with blocks of 32 columns in the order 0 2 4 6 1 3 5 7, so that
//! a byte of a word is a pair of blocks. Of the fifth bits word `b` is block `b`'s: bit `8 j + i` is of its column
//! `4 i + j`.
//!
//! A byte of Q6_K is `v = 4 (q - 32)`, signed. The upper six bits of A, B and C are `v` of the first three 16
//! columns; of the last 16 the top pair of bits is in the lowest bits of A, the middle one in those of B, the lower
//! one in those of C.

use crate::catalogue::Weight;

/// A matrix that has no layout, or bytes that are not its rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Rows must be whole blocks.
    #[error("a row of {k} columns of {} does not fill whole blocks of {}", weight.name(), weight.block())]
    Columns {
        /// The type.
        weight: Weight,
        /// Columns given.
        k: usize,
    },
    /// Kernels count rows and columns in 32 bits, and bytes must be addressable.
    #[error("a {n} x {k} matrix of {} is too large: rows, columns and bytes of a row stay below 2^32", weight.name())]
    TooLarge {
        /// The type.
        weight: Weight,
        /// Rows given.
        n: usize,
        /// Columns given.
        k: usize,
    },
    /// Source or destination of another size.
    #[error("{what}: {found} bytes, expected {expected}")]
    Length {
        /// Which of them.
        what: &'static str,
        /// As given.
        found: usize,
        /// As needed.
        expected: usize,
    },
    /// Rows that the matrix does not have.
    #[error("rows {first} to {end} of a matrix of {n}")]
    Rows {
        /// First row given.
        first: usize,
        /// One past the last.
        end: usize,
        /// Rows of the matrix.
        n: usize,
    },
}

/// Rows of a panel.
pub const PANEL: usize = 8;
/// Columns of a whole superblock.
pub const SUPERBLOCK: usize = 256;
/// Columns that a superblock has a multiple of.
pub const BLOCK: usize = 32;
/// Bytes of a piece.
pub(crate) const PIECE: usize = 16;

/// The layout of one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    weight: Weight,
    n: usize,
    k: usize,
}

/// A superblock of a type.
struct Format {
    /// Bytes of a block in the file.
    file: usize,
    /// Pieces before the quants.
    head: usize,
    /// Pieces of the quants of 256 columns.
    quants: usize,
    /// Bytes beyond whole pieces.
    tail: usize,
    /// From the file's bytes to pieces and tail, which are zeroes.
    arrange: fn(&[u8], &mut [u8]),
    /// The inverse; the file's bytes are zeroes.
    restore: fn(&[u8], &mut [u8]),
}

const fn format(weight: Weight) -> Format {
    match weight {
        Weight::Q8_0 => Format {
            file: 34,
            head: 1,
            quants: 16,
            tail: 0,
            arrange: |file, unit| {
                for (b, block) in file.chunks_exact(34).enumerate() {
                    put(unit, 2 * b, &block[..2]);
                    put(unit, 16 + 32 * b, &block[2..]);
                }
            },
            restore: |unit, file| {
                for (b, block) in file.chunks_exact_mut(34).enumerate() {
                    put(block, 0, &unit[2 * b..][..2]);
                    put(block, 2, &unit[16 + 32 * b..][..32]);
                }
            },
        },
        Weight::Q4_K => Format {
            file: 144,
            head: 1,
            quants: 8,
            tail: 0,
            arrange: |file, unit| {
                head(file, unit, &EVEN_FIRST);
                put(unit, 16, &file[16..]);
            },
            restore: |unit, file| {
                head(unit, file, &IN_ORDER);
                put(file, 16, &unit[16..]);
            },
        },
        Weight::Q5_K => Format {
            file: 176,
            head: 3,
            quants: 8,
            tail: 0,
            arrange: |file, unit| {
                head(file, unit, &EVEN_FIRST);
                fifths(
                    |b, l| 8 * (16 + l) + b,
                    |b, l| 8 * (16 + 4 * b + l % 4) + l / 4,
                    file,
                    unit,
                );
                put(unit, 48, &file[48..]);
            },
            restore: |unit, file| {
                head(unit, file, &IN_ORDER);
                fifths(
                    |b, l| 8 * (16 + 4 * b + l % 4) + l / 4,
                    |b, l| 8 * (16 + l) + b,
                    unit,
                    file,
                );
                put(file, 48, &unit[48..]);
            },
        },
        Weight::Q6_K => Format {
            file: 210,
            head: 1,
            quants: 12,
            tail: 2,
            arrange: arrange_q6_k,
            restore: restore_q6_k,
        },
        Weight::F16 => Format {
            file: 2,
            head: 0,
            quants: 32,
            tail: 0,
            arrange: |file, unit| put(unit, 0, file),
            restore: |unit, file| file.copy_from_slice(&unit[..file.len()]),
        },
    }
}

/// Pieces of 256 columns of a row.
pub(crate) const fn pieces(weight: Weight) -> usize {
    let Format { head, quants, .. } = format(weight);
    head + quants
}

/// A superblock of one row of a matrix: where its bytes are.
struct Place {
    /// Its first piece; the next one is a panel's worth of pieces further.
    pieces: usize,
    count: usize,
    tail: usize,
}

impl Layout {
    /// The layout of `n` rows of `k` columns.
    ///
    /// # Errors
    ///
    /// Rows that are not whole blocks, or a size beyond what kernels count.
    pub fn new(weight: Weight, n: usize, k: usize) -> Result<Self, Error> {
        if k == 0 || !k.is_multiple_of(weight.block()) {
            return Err(Error::Columns { weight, k });
        }
        let layout = Self { weight, n, k };
        let fits = |value: usize| u32::try_from(value).is_ok();
        let rows = n.checked_next_multiple_of(PANEL);
        // No type has more than two bytes for a column, and those of a panel are counted.
        let row = k.checked_next_multiple_of(SUPERBLOCK).and_then(|k| k.checked_mul(2));
        let panel = row.and_then(|row| row.checked_mul(PANEL)).filter(|&panel| fits(panel));
        match panel.and_then(|_| rows?.checked_mul(row?)) {
            Some(bytes) if fits(n) && isize::try_from(bytes).is_ok() => Ok(layout),
            _ => Err(Error::TooLarge { weight, n, k }),
        }
    }

    /// Rows of the matrix.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.n
    }

    /// Bytes of a row in the file.
    #[must_use]
    pub const fn file_row_bytes(&self) -> usize {
        self.k / self.weight.block() * format(self.weight).file
    }

    /// Bytes of the matrix in the layout.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        let [pieces, tails] = self.planes();
        self.panels() * (pieces + tails)
    }

    /// Bytes of a panel in each plane. Panels that were packed by themselves ([`Layout::of_rows`]) can be
    /// copied to their place plane by plane.
    #[must_use]
    pub const fn planes(&self) -> [usize; 2] {
        let whole = self.k / SUPERBLOCK;
        let pieces = whole * self.pieces(SUPERBLOCK) + self.pieces(self.k % SUPERBLOCK);
        let tails = self.k.div_ceil(SUPERBLOCK) * format(self.weight).tail;
        [PANEL * PIECE * pieces, PANEL * tails]
    }

    /// The layout of `n` rows of the same matrix by themselves.
    #[must_use]
    pub const fn of_rows(self, n: usize) -> Self {
        let n = if n < self.n { n } else { self.n };
        Self { n, ..self }
    }

    const fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// Pieces of a superblock of that many columns.
    const fn pieces(&self, columns: usize) -> usize {
        let Format { head, quants, .. } = format(self.weight);
        if columns == 0 {
            0
        } else {
            head + columns.div_ceil(BLOCK) * quants / (SUPERBLOCK / BLOCK)
        }
    }

    /// Where superblock `s` of a row is.
    const fn place(&self, row: usize, s: usize) -> Place {
        let (panel, in_panel) = (row / PANEL, row % PANEL);
        let [pieces, tails] = self.planes();
        let tail = format(self.weight).tail;
        let columns = self.k - s * SUPERBLOCK;
        Place {
            pieces: panel * pieces + PIECE * (PANEL * s * self.pieces(SUPERBLOCK) + in_panel),
            count: self.pieces(if columns < SUPERBLOCK { columns } else { SUPERBLOCK }),
            tail: self.panels() * pieces + panel * tails + (PANEL * s + in_panel) * tail,
        }
    }

    /// Bytes in the file of a whole superblock.
    const fn file_superblock(&self) -> usize {
        SUPERBLOCK / self.weight.block() * format(self.weight).file
    }

    /// Lays out the rows from `first` on, as many as `file` holds, and with the last row what pads its panel. The
    /// bytes of other rows in `packed`, which is the whole matrix, are not touched.
    ///
    /// # Errors
    ///
    /// Bytes that are not whole rows, rows beyond the matrix, `packed` of another size.
    pub fn pack(&self, first: usize, file: &[u8], packed: &mut [u8]) -> Result<(), Error> {
        let count = self.check(first, file.len(), packed.len())?;
        let Format { arrange, .. } = format(self.weight);
        let mut unit = Vec::new();
        for (row, from) in (first..).zip(file.chunks_exact(self.file_row_bytes())) {
            for (s, from) in from.chunks(self.file_superblock()).enumerate() {
                self.clear(&mut unit, row, s);
                arrange(from, &mut unit);
                self.store(row, s, &unit, packed);
            }
        }
        if first + count == self.n && count > 0 {
            for row in self.n..self.panels() * PANEL {
                for s in 0..self.k.div_ceil(SUPERBLOCK) {
                    self.clear(&mut unit, row, s);
                    self.store(row, s, &unit, packed);
                }
            }
        }
        Ok(())
    }

    /// The inverse of [`Layout::pack`].
    ///
    /// # Errors
    ///
    /// As for [`Layout::pack`].
    pub fn unpack(&self, first: usize, packed: &[u8], file: &mut [u8]) -> Result<(), Error> {
        self.check(first, file.len(), packed.len())?;
        let Format { restore, .. } = format(self.weight);
        let mut unit = Vec::new();
        file.fill(0);
        for (row, to) in (first..).zip(file.chunks_exact_mut(self.file_row_bytes())) {
            for (s, to) in to.chunks_mut(self.file_superblock()).enumerate() {
                self.clear(&mut unit, row, s);
                let Place { pieces, count, tail } = self.place(row, s);
                let (whole, rest) = unit.split_at_mut(PIECE * count);
                for (i, piece) in whole.chunks_exact_mut(PIECE).enumerate() {
                    piece.copy_from_slice(&packed[pieces + PANEL * PIECE * i..][..PIECE]);
                }
                rest.copy_from_slice(&packed[tail..][..rest.len()]);
                restore(&unit, to);
            }
        }
        Ok(())
    }

    /// Makes `unit` a superblock of zeroes.
    fn clear(&self, unit: &mut Vec<u8>, row: usize, s: usize) {
        unit.clear();
        unit.resize(PIECE * self.place(row, s).count + format(self.weight).tail, 0);
    }

    fn store(&self, row: usize, s: usize, unit: &[u8], packed: &mut [u8]) {
        let Place { pieces, count, tail } = self.place(row, s);
        let (whole, rest) = unit.split_at(PIECE * count);
        for (i, piece) in whole.chunks_exact(PIECE).enumerate() {
            put(packed, pieces + PANEL * PIECE * i, piece);
        }
        put(packed, tail, rest);
    }

    /// How many rows `file` bytes are.
    fn check(&self, first: usize, file: usize, packed: usize) -> Result<usize, Error> {
        let row = self.file_row_bytes();
        if !file.is_multiple_of(row) {
            let expected = file.next_multiple_of(row);
            return Err(Error::Length { what: "rows of the file", found: file, expected });
        }
        if packed != self.bytes() {
            let expected = self.bytes();
            return Err(Error::Length { what: "packed matrix", found: packed, expected });
        }
        let count = file / row;
        match first.checked_add(count) {
            Some(end) if end <= self.n => Ok(count),
            end => Err(Error::Rows { first, end: end.unwrap_or(usize::MAX), n: self.n }),
        }
    }
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    to[at..at + bytes.len()].copy_from_slice(bytes);
}

/// The block at each place of a head in the kernels' order, and in the file's the place of each block.
const EVEN_FIRST: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];
const IN_ORDER: [usize; 8] = [0, 4, 1, 5, 2, 6, 3, 7];

/// The head of a K block: the steps, and its scales and minima with the one at `order[i]` at place `i`.
fn head(from: &[u8], to: &mut [u8], order: &[usize; 8]) {
    put(to, 0, &from[..4]);
    for (i, &block) in order.iter().enumerate() {
        // Scales are the first four bytes and minima the next; the last have the lower bits of places from 4 on.
        for (byte, shift) in [(4, 0), (8, 4)] {
            let value = match block {
                0..4 => from[byte + block] & 63,
                _ => from[8 + block] >> shift & 15 | from[byte + block - 4] >> 6 << 4,
            };
            if i < 4 {
                to[byte + i] |= value;
            } else {
                to[8 + i] |= (value & 15) << shift;
                to[byte + i - 4] |= value >> 4 << 6;
            }
        }
    }
}

/// The fifth bits: of column `l` of block `b` from bit `from_at(b, l)` to bit `to_at(b, l)`, which is 0.
fn fifths(
    from_at: impl Fn(usize, usize) -> usize,
    to_at: impl Fn(usize, usize) -> usize,
    from: &[u8],
    to: &mut [u8],
) {
    for (b, l) in (0..8).flat_map(|b| (0..32).map(move |l| (b, l))) {
        let (at, to_at) = (from_at(b, l), to_at(b, l));
        to[to_at / 8] |= (from[at / 8] >> (at % 8) & 1) << (to_at % 8);
    }
}

fn arrange_q6_k(file: &[u8], unit: &mut [u8]) {
    put(unit, 0, &file[192..208]);
    for (chunk, to) in unit[16..208].chunks_exact_mut(48).enumerate() {
        for l in 0..16 {
            // 4 (q - 32): two bits up, the top one flipped.
            let v = [0, 1, 2, 3].map(|i| q6(file, 64 * chunk + 16 * i + l) << 2 ^ 0x80);
            for (i, low) in [v[3] >> 6, v[3] >> 4 & 3, v[3] >> 2 & 3].into_iter().enumerate() {
                to[16 * i + l] = v[i] | low;
            }
        }
    }
    put(unit, 208, &file[208..]);
}

fn restore_q6_k(unit: &[u8], file: &mut [u8]) {
    put(file, 192, &unit[..16]);
    for (chunk, from) in unit[16..208].chunks_exact(48).enumerate() {
        for l in 0..16 {
            let three = [from[l], from[16 + l], from[32 + l]];
            let low = three.map(|byte| byte & 3);
            let fourth = low[0] << 6 | low[1] << 4 | low[2] << 2;
            for (i, v) in three.into_iter().chain([fourth]).enumerate() {
                set_q6(file, 64 * chunk + 16 * i + l, (v ^ 0x80) >> 2);
            }
        }
    }
    put(file, 208, &unit[208..]);
}

/// Where the bits of weight `i` are in a GGUF Q6_K block: byte and shift of the lower four, byte and
/// shift of the upper two.
const fn q6_at(i: usize) -> (usize, usize, usize, usize) {
    let (half, quarter, l) = (i / 128, i / 32 % 4, i % 32);
    (64 * half + quarter % 2 * 32 + l, quarter / 2 * 4, 128 + 32 * half + l, 2 * quarter)
}

/// Weight `i`, 0 to 63.
fn q6(block: &[u8], i: usize) -> u8 {
    let (low, low_shift, high, high_shift) = q6_at(i);
    block[low] >> low_shift & 15 | (block[high] >> high_shift & 3) << 4
}

/// Sets weight `i` in a block whose bits for it are 0.
fn set_q6(block: &mut [u8], i: usize, q: u8) {
    let (low, low_shift, high, high_shift) = q6_at(i);
    block[low] |= (q & 15) << low_shift;
    block[high] |= q >> 4 << high_shift;
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matrix() -> impl Strategy<Value = (Weight, usize, usize, Vec<u8>)> {
        (0..5usize, 1..20usize, 1..4usize).prop_flat_map(|(weight, n, blocks)| {
            let weight = Weight::ALL[weight];
            let k = match weight {
                Weight::F16 => 111 * blocks,
                Weight::Q8_0 => 160 * blocks,
                _ => 256 * blocks,
            };
            let bytes = n * k / weight.block() * format(weight).file;
            (Just(weight), Just(n), Just(k), proptest::collection::vec(any::<u8>(), bytes))
        })
    }

    proptest! {
        #[test]
        fn packed_rows_come_back(case in matrix(), cut in any::<prop::sample::Index>()) {
            let (weight, n, k, file) = case;
            let layout = Layout::new(weight, n, k).unwrap();
            let mut packed = vec![0xaa; layout.bytes()];
            // In two parts, the second first.
            let middle = cut.index(n + 1);
            let (front, back) = file.split_at(middle * layout.file_row_bytes());
            layout.pack(middle, back, &mut packed).unwrap();
            layout.pack(0, front, &mut packed).unwrap();
            // Panels packed by themselves are the same bytes, plane by plane.
            let first = middle / PANEL;
            let part = layout.of_rows(n - first * PANEL);
            let mut alone = vec![0x55; part.bytes()];
            part.pack(0, &file[first * PANEL * layout.file_row_bytes()..], &mut alone).unwrap();
            let (mut from, mut to) = (0, 0);
            for panel in layout.planes() {
                let bytes = panel * part.panels();
                let here = &packed[to + panel * first..][..bytes];
                prop_assert_eq!(here, &alone[from..][..bytes]);
                (from, to) = (from + bytes, to + panel * layout.panels());
            }
            prop_assert_eq!(to, layout.bytes());
            let mut again = vec![0; file.len()];
            layout.unpack(0, &packed, &mut again).unwrap();
            prop_assert_eq!(again, file);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        assert!(matches!(Layout::new(Weight::Q6_K, 2, 128), Err(Error::Columns { .. })));
        assert!(matches!(Layout::new(Weight::F16, 2, 0), Err(Error::Columns { .. })));
        assert!(matches!(
            Layout::new(Weight::Q8_0, usize::MAX - 7, 32),
            Err(Error::TooLarge { .. })
        ));
        assert!(matches!(Layout::new(Weight::F16, 1, usize::MAX), Err(Error::TooLarge { .. })));
        let layout = Layout::new(Weight::Q8_0, 2, 32).unwrap();
        let mut packed = vec![0; layout.bytes()];
        assert!(matches!(layout.pack(0, &[0; 33], &mut packed), Err(Error::Length { .. })));
        assert!(matches!(layout.pack(1, &[0; 68], &mut packed), Err(Error::Rows { .. })));
        assert!(matches!(layout.pack(0, &[0; 34], &mut packed[1..]), Err(Error::Length { .. })));
        assert!(matches!(layout.pack(usize::MAX, &[0; 34], &mut packed), Err(Error::Rows { .. })));
    }
}
