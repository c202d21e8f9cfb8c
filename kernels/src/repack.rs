//! Weights as the kernels read them: from GGUF's bytes into each type's layout, and back.
//!
//! A layout takes as many bytes as the file (F16 rows are padded to 8 columns), and every load of
//! the kernels is aligned in it when the matrix begins at a multiple of 256 bytes. `n` rows of `k`
//! columns:
//!
//! | type | layout | as in the file |
//! |---|---|---|
//! | Q8_0 | quants `i8 [n][k]`, steps `f16 [n][k / 32]` | no: blocks of 34 bytes |
//! | Q6_K | quants `[n][k / 64][48]`, scales `i8 [n][k / 16]`, steps `f16 [n][k / 256]` | no: blocks of 210 bytes |
//! | Q4_K, Q5_K | GGUF's blocks of 144 and 176 bytes | yes |
//! | F16 | `f16 [n][k rounded up to 8]`, zeroes behind | where `k` is a multiple of 8 |
//!
//! The 48 bytes of 64 Q6_K weights are three runs A, B, C of four words. Word `i` of each belongs to
//! weights `16 i` to `16 i + 15`. Taking `v = 4 (q - 32)` as a signed byte: A has `v` of the first
//! four weights in the upper six bits of its bytes, B of the second, C of the third; the upper six
//! bits of the fourth four are spread over the lowest pairs: the top pair in A, the middle one in B,
//! the lower one in C.

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

/// The layout of one matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    weight: Weight,
    n: usize,
    k: usize,
}

/// Bytes of a block in the file.
const fn file_block(weight: Weight) -> usize {
    match weight {
        Weight::Q8_0 => 34,
        Weight::Q6_K => 210,
        Weight::Q4_K => 144,
        Weight::Q5_K => 176,
        Weight::F16 => 2,
    }
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
        let row = k.checked_next_multiple_of(8).and_then(|k| k.checked_mul(2));
        let bytes = row.filter(|&row| fits(row)).and_then(|row| row.checked_mul(n));
        match bytes {
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
        self.k / self.weight.block() * file_block(self.weight)
    }

    /// Bytes of the matrix in the layout.
    #[must_use]
    pub const fn bytes(&self) -> usize {
        match self.weight {
            Weight::F16 => self.n * self.padded() * 2,
            _ => self.n * self.file_row_bytes(),
        }
    }

    /// True when the layout is the file's: the bytes can be used where they are.
    #[must_use]
    pub const fn is_file(&self) -> bool {
        match self.weight {
            Weight::Q8_0 | Weight::Q6_K => false,
            Weight::Q4_K | Weight::Q5_K => true,
            Weight::F16 => self.k == self.padded(),
        }
    }

    /// Bytes of a row in each plane. Planes lie one after the other, rows of a plane likewise: rows
    /// that were packed by themselves can be copied to their place plane by plane.
    #[must_use]
    pub const fn planes(&self) -> [usize; 3] {
        let k = self.k;
        match self.weight {
            Weight::Q8_0 => [k, k / 16, 0],
            Weight::Q6_K => [k / 4 * 3, k / 16, k / 128],
            Weight::Q4_K | Weight::Q5_K => [self.file_row_bytes(), 0, 0],
            Weight::F16 => [self.padded() * 2, 0, 0],
        }
    }

    /// The layout of `n` rows of the same matrix by themselves.
    #[must_use]
    pub const fn of_rows(self, n: usize) -> Self {
        let n = if n < self.n { n } else { self.n };
        Self { n, ..self }
    }

    const fn padded(&self) -> usize {
        self.k.next_multiple_of(8)
    }

    /// Lays out the rows from `first` on, as many as `file` holds. The bytes of other rows in
    /// `packed`, which is the whole matrix, are not touched.
    ///
    /// # Errors
    ///
    /// Bytes that are not whole rows, rows beyond the matrix, `packed` of another size.
    pub fn pack(&self, first: usize, file: &[u8], packed: &mut [u8]) -> Result<(), Error> {
        let count = self.check(first, file.len(), packed.len())?;
        for (row, from) in (first..first + count).zip(file.chunks_exact(self.file_row_bytes())) {
            match self.weight {
                Weight::Q8_0 => self.pack_q8_0(row, from, packed),
                Weight::Q6_K => self.pack_q6_k(row, from, packed),
                Weight::Q4_K | Weight::Q5_K => put(packed, row * from.len(), from),
                Weight::F16 => {
                    let to = &mut packed[row * self.padded() * 2..][..self.padded() * 2];
                    to[..from.len()].copy_from_slice(from);
                    to[from.len()..].fill(0);
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
        let count = self.check(first, file.len(), packed.len())?;
        for (row, to) in (first..first + count).zip(file.chunks_exact_mut(self.file_row_bytes())) {
            match self.weight {
                Weight::Q8_0 => self.unpack_q8_0(row, packed, to),
                Weight::Q6_K => self.unpack_q6_k(row, packed, to),
                Weight::Q4_K | Weight::Q5_K => {
                    to.copy_from_slice(&packed[row * to.len()..][..to.len()]);
                }
                Weight::F16 => {
                    to.copy_from_slice(&packed[row * self.padded() * 2..][..to.len()]);
                }
            }
        }
        Ok(())
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

    /// Where quants and step of block `b` of a row are.
    const fn q8_0_at(&self, row: usize, b: usize) -> (usize, usize) {
        (row * self.k + 32 * b, self.n * self.k + 2 * (row * (self.k / 32) + b))
    }

    fn pack_q8_0(&self, row: usize, from: &[u8], packed: &mut [u8]) {
        for (b, block) in from.chunks_exact(34).enumerate() {
            let (quants, step) = self.q8_0_at(row, b);
            put(packed, quants, &block[2..]);
            put(packed, step, &block[..2]);
        }
    }

    fn unpack_q8_0(&self, row: usize, packed: &[u8], to: &mut [u8]) {
        for (b, block) in to.chunks_exact_mut(34).enumerate() {
            let (quants, step) = self.q8_0_at(row, b);
            put(block, 0, &packed[step..step + 2]);
            put(block, 2, &packed[quants..quants + 32]);
        }
    }

    /// Where quants, scales and step of block `b` of a row are.
    const fn q6_k_at(&self, row: usize, b: usize) -> (usize, usize, usize) {
        let block = row * (self.k / 256) + b;
        let scales = self.n * (self.k / 4 * 3);
        (192 * block, scales + 16 * block, scales + self.n * (self.k / 16) + 2 * block)
    }

    fn pack_q6_k(&self, row: usize, from: &[u8], packed: &mut [u8]) {
        for (b, block) in from.chunks_exact(210).enumerate() {
            let (quants, scales, step) = self.q6_k_at(row, b);
            for (chunk, to) in packed[quants..quants + 192].chunks_exact_mut(48).enumerate() {
                for sixteen in 0..4 {
                    for i in 0..4 {
                        // 4 (q - 32): two bits up, the top one flipped.
                        let v = |four: usize| {
                            q6(block, 64 * chunk + 16 * sixteen + 4 * four + i) << 2 ^ 0x80
                        };
                        let fourth = v(3);
                        let at = 4 * sixteen + i;
                        to[at] = v(0) | fourth >> 6;
                        to[16 + at] = v(1) | fourth >> 4 & 3;
                        to[32 + at] = v(2) | fourth >> 2 & 3;
                    }
                }
            }
            put(packed, scales, &block[192..208]);
            put(packed, step, &block[208..]);
        }
    }

    fn unpack_q6_k(&self, row: usize, packed: &[u8], to: &mut [u8]) {
        for (b, block) in to.chunks_exact_mut(210).enumerate() {
            let (quants, scales, step) = self.q6_k_at(row, b);
            block.fill(0);
            for (chunk, from) in packed[quants..quants + 192].chunks_exact(48).enumerate() {
                for at in 0..16 {
                    let three = [from[at], from[16 + at], from[32 + at]];
                    let low = three.map(|byte| byte & 3);
                    let fourth = low[0] << 6 | low[1] << 4 | low[2] << 2;
                    for (four, v) in three.into_iter().chain([fourth]).enumerate() {
                        let index = 64 * chunk + 16 * (at / 4) + 4 * four + at % 4;
                        set_q6(block, index, (v ^ 0x80) >> 2);
                    }
                }
            }
            put(block, 192, &packed[scales..scales + 16]);
            put(block, 208, &packed[step..step + 2]);
        }
    }
}

fn put(to: &mut [u8], at: usize, bytes: &[u8]) {
    to[at..at + bytes.len()].copy_from_slice(bytes);
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
        (0..5usize, 1..5usize, 1..4usize).prop_flat_map(|(weight, n, blocks)| {
            let weight = Weight::ALL[weight];
            let k = if weight == Weight::F16 { 7 * blocks } else { weight.block() * blocks };
            let bytes = n * k / weight.block() * file_block(weight);
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
            if layout.is_file() {
                prop_assert_eq!(&packed, &file);
            }
            // Rows packed by themselves are the same bytes, plane by plane.
            let part = layout.of_rows(n - middle);
            let mut alone = vec![0x55; part.bytes()];
            part.pack(0, back, &mut alone).unwrap();
            let (mut from, mut to) = (0, 0);
            for row in layout.planes() {
                let bytes = row * (n - middle);
                let here = &packed[to + row * middle..][..bytes];
                prop_assert_eq!(here, &alone[from..][..bytes]);
                (from, to) = (from + bytes, to + row * n);
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
        assert!(matches!(Layout::new(Weight::Q8_0, usize::MAX, 32), Err(Error::TooLarge { .. })));
        assert!(matches!(Layout::new(Weight::F16, 1, usize::MAX), Err(Error::TooLarge { .. })));
        let layout = Layout::new(Weight::Q8_0, 2, 32).unwrap();
        let mut packed = vec![0; layout.bytes()];
        assert!(matches!(layout.pack(0, &[0; 33], &mut packed), Err(Error::Length { .. })));
        assert!(matches!(layout.pack(1, &[0; 68], &mut packed), Err(Error::Rows { .. })));
        assert!(matches!(layout.pack(0, &[0; 34], &mut packed[1..]), Err(Error::Length { .. })));
        assert!(matches!(layout.pack(usize::MAX, &[0; 34], &mut packed), Err(Error::Rows { .. })));
    }
}
