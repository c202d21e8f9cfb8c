//! Random matrices: GGUF's bytes, the kernels' layout, and the numbers they stand for, decoded here
//! from the formats' definition.

use half::f16;
use orind_kernels::catalogue::Weight;
use orind_kernels::repack::Layout;

use orind_testing::random::Random;

#[derive(Clone)]
pub(crate) struct Matrix {
    pub(crate) file: Vec<u8>,
    pub(crate) packed: Vec<u8>,
    pub(crate) values: Vec<f32>,
    pub(crate) n: usize,
    pub(crate) k: usize,
}

impl Matrix {
    pub(crate) fn random(weight: Weight, n: usize, k: usize, random: &mut Random) -> Self {
        let layout = Layout::new(weight, n, k).unwrap();
        let mut file: Vec<u8> =
            (0..n * layout.file_row_bytes()).map(|_| random.bits() as u8).collect();
        // Steps that are ordinary numbers.
        let (block, places): (usize, &[usize]) = match weight {
            Weight::Q8_0 => (34, &[0]),
            Weight::Q6_K => (210, &[208]),
            Weight::Q4_K => (144, &[0, 2]),
            Weight::Q5_K => (176, &[0, 2]),
            Weight::F16 => (2, &[0]),
        };
        for bytes in file.chunks_exact_mut(block) {
            for &at in places {
                bytes[at..at + 2].copy_from_slice(&f16::from_f32(random.real(0.01)).to_le_bytes());
            }
        }
        let values = file.chunks_exact(block).flat_map(|b| decode(weight, b)).collect();
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

fn decode(weight: Weight, b: &[u8]) -> Vec<f32> {
    let half = |at: usize| f16::from_le_bytes([b[at], b[at + 1]]).to_f32();
    match weight {
        Weight::F16 => vec![half(0)],
        Weight::Q8_0 => b[2..].iter().map(|q| half(0) * f32::from(q.cast_signed())).collect(),
        Weight::Q6_K => (0..256)
            .map(|i| {
                let (h, quarter, l) = (i / 128, i / 32 % 4, i % 32);
                let low = b[64 * h + 32 * (quarter % 2) + l] >> (4 * (quarter / 2)) & 15;
                let high = b[128 + 32 * h + l] >> (2 * quarter) & 3;
                let scale = half(208) * f32::from(b[192 + i / 16].cast_signed());
                scale * (f32::from(low | high << 4) - 32.0)
            })
            .collect(),
        Weight::Q4_K | Weight::Q5_K => (0..256)
            .map(|i| {
                let (sub, l, s) = (i / 32, i % 32, &b[4..16]);
                let (scale, minimum) = match sub {
                    0..4 => (s[sub] & 63, s[sub + 4] & 63),
                    _ => {
                        (s[sub + 4] & 15 | s[sub - 4] >> 6 << 4, s[sub + 4] >> 4 | s[sub] >> 6 << 4)
                    }
                };
                let nibbles = if weight == Weight::Q4_K { 16 } else { 48 };
                let low = b[nibbles + sub / 2 * 32 + l] >> (4 * (sub % 2)) & 15;
                let fifth = if weight == Weight::Q5_K { b[16 + l] >> sub & 1 } else { 0 };
                half(0) * f32::from(scale) * f32::from(low | fifth << 4)
                    - half(2) * f32::from(minimum)
            })
            .collect(),
    }
}
