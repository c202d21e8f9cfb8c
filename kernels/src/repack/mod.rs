//! How weights lie in GPU memory, and the way there from GGUF's bytes.
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
//! What is in which piece of a type: `arrange.rs`.

mod arrange;

use plan::DType;

use crate::catalogue::{Form, Weight};

/// A matrix that has no layout, or bytes that are not its rows.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not a type of weights.
    #[error("no kernel reads weights of {0}")]
    Type(DType),
    /// Rows must be whole blocks.
    #[error("a row of {k} columns of {dtype} does not fill whole blocks of {}", dtype.block_len())]
    Columns {
        /// The type.
        dtype: DType,
        /// Columns given.
        k: usize,
    },
    /// Kernels count rows and columns in 32 bits, and bytes must be addressable.
    #[error(
        "a {n} x {k} matrix of {dtype} is too large: rows, columns and bytes of a row stay below 2^32"
    )]
    TooLarge {
        /// The type.
        dtype: DType,
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
pub(crate) const PIECE: usize = 16;

/// The layout of one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    dtype: DType,
    weight: Weight,
    n: usize,
    k: usize,
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
    /// A type that is not one of weights, rows that are not whole blocks, or a size beyond what kernels count.
    pub fn new(dtype: DType, n: usize, k: usize) -> Result<Self, Error> {
        let weight = Weight::of(dtype).ok_or(Error::Type(dtype))?;
        if k == 0 || !k.is_multiple_of(dtype.block_len()) {
            return Err(Error::Columns { dtype, k });
        }
        let layout = Self { dtype, weight, n, k };
        let fits = |value: usize| u32::try_from(value).is_ok();
        let rows = n.checked_next_multiple_of(PANEL);
        // No type has more than four bytes for a column, and those of a panel are counted.
        let row = k.checked_next_multiple_of(SUPERBLOCK).and_then(|k| k.checked_mul(4));
        let panel = row.and_then(|row| row.checked_mul(PANEL)).filter(|&panel| fits(panel));
        match panel.and_then(|_| rows?.checked_mul(row?)) {
            Some(bytes) if fits(n) && isize::try_from(bytes).is_ok() => Ok(layout),
            _ => Err(Error::TooLarge { dtype, n, k }),
        }
    }

    /// What kernels read it as.
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
        let tails = self.k.div_ceil(SUPERBLOCK) * self.weight.form().tail;
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
        let Form { head, quants, .. } = self.weight.form();
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
        let tail = self.weight.form().tail;
        let columns = self.k - s * SUPERBLOCK;
        Place {
            pieces: panel * pieces + PIECE * (PANEL * s * self.pieces(SUPERBLOCK) + in_panel),
            count: self.pieces(if columns < SUPERBLOCK { columns } else { SUPERBLOCK }),
            tail: self.panels() * pieces + panel * tails + (PANEL * s + in_panel) * tail,
        }
    }

    /// Bytes in the file of a whole superblock.
    const fn file_superblock(&self) -> usize {
        SUPERBLOCK / self.dtype.block_len() * self.dtype.block_bytes()
    }

    /// Lays out the rows from `first` on, as many as `file` holds, and with the last row what pads its panel. The
    /// bytes of other rows in `packed`, which is the whole matrix, are not touched.
    ///
    /// # Errors
    ///
    /// Bytes that are not whole rows, rows beyond the matrix, `packed` of another size.
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

    /// Makes `unit` a superblock of zeroes.
    fn clear(&self, unit: &mut Vec<u8>, row: usize, s: usize) {
        unit.clear();
        unit.resize(PIECE * self.place(row, s).count + self.weight.form().tail, 0);
    }

    fn store(&self, row: usize, s: usize, unit: &[u8], packed: &mut [u8]) {
        let Place { pieces, count, tail } = self.place(row, s);
        let (whole, rest) = unit.split_at(PIECE * count);
        for (i, piece) in whole.chunks_exact(PIECE).enumerate() {
            packed[pieces + PANEL * PIECE * i..][..PIECE].copy_from_slice(piece);
        }
        packed[tail..][..rest.len()].copy_from_slice(rest);
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
        fn rows_are_packed_in_any_parts(case in matrix(), cut in any::<prop::sample::Index>()) {
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
            prop_assert_eq!(packed, whole);
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
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
