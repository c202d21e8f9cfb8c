//! Layout of weights in GPU memory, and conversion from GGUF.
//!
//! A *superblock* is 256 columns of one row; a row's last one may be shorter for types with short
//! blocks. A *piece* is 16 bytes. A *panel* is 8 neighbouring rows; the last one is padded with
//! zero rows. `n` rows of `k` columns are stored as two planes, the second directly behind the
//! first:
//!
//! | plane | bytes |
//! |---|---|
//! | pieces | `[panel][superblock][piece][row of 8][16]` |
//! | tails | `[panel][superblock][row of 8][tail]`, the rest of a superblock behind whole pieces |
//!
//! A superblock of a panel is contiguous, and a piece of its 8 rows is 128 neighbouring bytes: one
//! read of 8 lanes, and an `ldmatrix` operand. Nothing is stored twice; only rows of the last
//! panel, and columns up to a multiple of 32 in unquantised types, are padded. If the matrix starts
//! at a multiple of 256 bytes, every access of the kernels is aligned.
//!
//! `arrange.rs` defines the contents of pieces for each type.

mod arrange;

use plan::DType;

use crate::catalogue::{FormatSizes, Weight};

/// Reason why a matrix has no layout, or bytes are not its rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a weight type.
    #[error("no kernel reads weights of {0}")]
    Type(DType),
    /// Rows must consist of whole blocks.
    #[error("a row of {k} columns of {dtype} does not fill whole blocks of {}", dtype.block_len())]
    Columns {
        /// The type.
        dtype: DType,
        /// Number of columns.
        k: usize,
    },
    /// Kernels use 32-bit row and column counts, and the size must be addressable.
    #[error(
        "a {n} x {k} matrix of {dtype} is too large: rows, columns and bytes of a row stay below 2^32"
    )]
    TooLarge {
        /// The type.
        dtype: DType,
        /// Number of rows.
        n: usize,
        /// Number of columns.
        k: usize,
    },
    /// Source or destination of the wrong size.
    #[error("{what}: {found} bytes, expected {expected}")]
    Length {
        /// Source or destination.
        what: &'static str,
        /// Value given by the caller.
        found: usize,
        /// Required value.
        expected: usize,
    },
    /// Rows out of range.
    #[error("rows {first} to {end} of a matrix of {n}")]
    Rows {
        /// First row.
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
/// Number of columns that a superblock's length is a multiple of.
pub const BLOCK: usize = 32;
pub(crate) const PIECE: usize = 16;

/// Layout of one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    dtype: DType,
    weight: Weight,
    n: usize,
    k: usize,
}

/// Location of a superblock of one row.
struct SuperblockPlace {
    /// First piece of the superblock; further ones follow at the distance of a panel's pieces.
    pieces: usize,
    count: usize,
    tail: usize,
}

impl Layout {
    /// Layout of `n` rows of `k` columns.
    ///
    /// # Errors
    ///
    /// Not a weight type, rows that are not whole blocks, or a size that kernels do not support.
    pub fn new(dtype: DType, n: usize, k: usize) -> Result<Self, Error> {
        let weight = Weight::of(dtype).ok_or(Error::Type(dtype))?;
        if k == 0 || !k.is_multiple_of(dtype.block_len()) {
            return Err(Error::Columns { dtype, k });
        }
        let layout = Self { dtype, weight, n, k };
        let fits = |value: usize| u32::try_from(value).is_ok();
        let rows = n.checked_next_multiple_of(PANEL);
        // No type has more than four bytes per column; a panel must be countable.
        let row = k.checked_next_multiple_of(SUPERBLOCK).and_then(|k| k.checked_mul(4));
        let panel = row.and_then(|row| row.checked_mul(PANEL)).filter(|&panel| fits(panel));
        match panel.and_then(|_| rows?.checked_mul(row?)) {
            Some(bytes) if fits(n) && isize::try_from(bytes).is_ok() => Ok(layout),
            _ => Err(Error::TooLarge { dtype, n, k }),
        }
    }

    /// Kernel type of the weights.
    #[must_use]
    pub const fn weight(&self) -> Weight {
        self.weight
    }

    /// Rows of the matrix.
    #[must_use]
    pub const fn rows(&self) -> usize {
        self.n
    }

    /// Bytes of a row in the file.
    #[must_use]
    pub const fn file_row_bytes(&self) -> usize {
        self.k / self.dtype.block_len() * self.dtype.block_bytes()
    }

    /// Size of the packed matrix in bytes.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        let [pieces, tails] = self.planes();
        self.panels() * (pieces + tails)
    }

    /// Bytes of a panel in each plane. Panels packed separately ([`Layout::of_rows`]) can be copied
    /// plane by plane.
    #[must_use]
    pub const fn planes(&self) -> [usize; 2] {
        let whole = self.k / SUPERBLOCK;
        let pieces = whole * self.pieces(SUPERBLOCK) + self.pieces(self.k % SUPERBLOCK);
        let tails = self.k.div_ceil(SUPERBLOCK) * self.weight.form().tail;
        [PANEL * PIECE * pieces, PANEL * tails]
    }

    /// Layout of `n` rows of the same matrix.
    #[must_use]
    pub const fn of_rows(self, n: usize) -> Self {
        let n = if n < self.n { n } else { self.n };
        Self { n, ..self }
    }

    const fn panels(&self) -> usize {
        self.n.div_ceil(PANEL)
    }

    /// Number of pieces of a superblock with `columns` columns.
    const fn pieces(&self, columns: usize) -> usize {
        let FormatSizes { head, quants, .. } = self.weight.form();
        if columns == 0 {
            0
        } else {
            head + columns.div_ceil(BLOCK) * quants / (SUPERBLOCK / BLOCK)
        }
    }

    /// Location of superblock `s` of a row.
    const fn place(&self, row: usize, s: usize) -> SuperblockPlace {
        let (panel, in_panel) = (row / PANEL, row % PANEL);
        let [pieces, tails] = self.planes();
        let tail = self.weight.form().tail;
        let columns = self.k - s * SUPERBLOCK;
        SuperblockPlace {
            pieces: panel * pieces + PIECE * (PANEL * s * self.pieces(SUPERBLOCK) + in_panel),
            count: self.pieces(if columns < SUPERBLOCK { columns } else { SUPERBLOCK }),
            tail: self.panels() * pieces + panel * tails + (PANEL * s + in_panel) * tail,
        }
    }

    /// Bytes of a whole superblock in the file.
    const fn file_superblock(&self) -> usize {
        SUPERBLOCK / self.dtype.block_len() * self.dtype.block_bytes()
    }

    /// Packs the rows in `file`, starting with row `first`, and the padding of the last panel.
    /// Other bytes of `packed`, the whole matrix, are unchanged.
    ///
    /// # Errors
    ///
    /// Bytes that are not whole rows, rows beyond the matrix, or `packed` of the wrong size.
    pub fn pack(&self, first: usize, file: &[u8], packed: &mut [u8]) -> Result<(), Error> {
        let count = self.check(first, file.len(), packed.len())?;
        let arrange = arrange::of(self.dtype);
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

    /// Resizes `unit` to a zero superblock.
    fn clear(&self, unit: &mut Vec<u8>, row: usize, s: usize) {
        unit.clear();
        unit.resize(PIECE * self.place(row, s).count + self.weight.form().tail, 0);
    }

    fn store(&self, row: usize, s: usize, unit: &[u8], packed: &mut [u8]) {
        let SuperblockPlace { pieces, count, tail } = self.place(row, s);
        let (whole, rest) = unit.split_at(PIECE * count);
        for (i, piece) in whole.chunks_exact(PIECE).enumerate() {
            packed[pieces + PANEL * PIECE * i..][..PIECE].copy_from_slice(piece);
        }
        packed[tail..][..rest.len()].copy_from_slice(rest);
    }

    /// Number of rows in `file` bytes.
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn matrix() -> impl Strategy<Value = (DType, usize, usize, Vec<u8>)> {
        let dtypes: Vec<DType> =
            DType::ALL.into_iter().filter(|&dtype| Weight::of(dtype).is_some()).collect();
        (prop::sample::select(dtypes), 1..20usize, 1..4usize).prop_flat_map(|(dtype, n, blocks)| {
            let k = match dtype.block_len() {
                1 => 111 * blocks,
                BLOCK => 160 * blocks,
                _ => 256 * blocks,
            };
            let bytes = n * k / dtype.block_len() * dtype.block_bytes();
            (Just(dtype), Just(n), Just(k), proptest::collection::vec(any::<u8>(), bytes))
        })
    }

    proptest! {
        #[test]
        fn rows_may_be_packed_in_parts(case in matrix(), cut in any::<prop::sample::Index>()) {
            let (dtype, n, k, file) = case;
            let layout = Layout::new(dtype, n, k).unwrap();
            let mut whole = vec![0x33; layout.bytes()];
            layout.pack(0, &file, &mut whole).unwrap();
            let mut packed = vec![0xaa; layout.bytes()];
            // In two parts, the second first.
            let middle = cut.index(n + 1);
            let (front, back) = file.split_at(middle * layout.file_row_bytes());
            layout.pack(middle, back, &mut packed).unwrap();
            layout.pack(0, front, &mut packed).unwrap();
            // Panels packed separately are the same bytes, plane by plane.
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
            prop_assert_eq!(packed, whole);
        }
    }

    #[test]
    fn invalid_shapes_are_rejected() {
        assert!(matches!(Layout::new(DType::Q6_K, 2, 128), Err(Error::Columns { .. })));
        assert!(matches!(Layout::new(DType::F16, 2, 0), Err(Error::Columns { .. })));
        assert_eq!(Layout::new(DType::I32, 2, 2), Err(Error::Type(DType::I32)));
        assert!(matches!(
            Layout::new(DType::Q8_0, usize::MAX - 7, 32),
            Err(Error::TooLarge { .. })
        ));
        assert!(matches!(Layout::new(DType::F16, 1, usize::MAX), Err(Error::TooLarge { .. })));
        let layout = Layout::new(DType::Q8_0, 2, 32).unwrap();
        let mut packed = vec![0; layout.bytes()];
        assert!(matches!(layout.pack(0, &[0; 33], &mut packed), Err(Error::Length { .. })));
        assert!(matches!(layout.pack(1, &[0; 68], &mut packed), Err(Error::Rows { .. })));
        assert!(matches!(layout.pack(0, &[0; 34], &mut packed[1..]), Err(Error::Length { .. })));
        assert!(matches!(layout.pack(usize::MAX, &[0; 34], &mut packed), Err(Error::Rows { .. })));
    }
}
