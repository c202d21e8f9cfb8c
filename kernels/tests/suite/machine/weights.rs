//! Random matrices: bytes in GGUF's format, in the kernels' layout, and their values.

use orind_kernels::catalogue::Weight;
use orind_kernels::repack::Layout;
use orind_testing::random::Random;
use orind_testing::weights::raw;
use plan::{DType, quant};

/// Every type of a file that kernels read.
pub(crate) fn types() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|&dtype| Weight::of(dtype).is_some())
}

#[derive(Clone)]
pub(crate) struct Matrix {
    pub(crate) file: Vec<u8>,
    pub(crate) packed: Vec<u8>,
    pub(crate) values: Vec<f32>,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl Matrix {
    pub(crate) fn random(dtype: DType, n: usize, k: usize, random: &mut Random) -> Self {
        let file = raw(random, dtype, n, k);
        let mut values = vec![0.0; n * k];
        quant::dequantise(dtype, &file, &mut values).unwrap();
        let layout = Layout::new(dtype, n, k).unwrap();
        let mut packed = vec![0; layout.bytes()];
        layout.pack(0, &file, &mut packed).unwrap();
        Self { file, packed, values, n, k }
    }

    /// A row as its file has it.
    pub(crate) fn file_row(&self, row: usize) -> &[u8] {
        let bytes = self.file.len() / self.n;
        &self.file[row * bytes..][..bytes]
    }

    /// A row as numbers.
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.values[row * self.k..][..self.k]
    }
}
