//! Layouts mean what the kernels take them for: decoded out of the packed bytes the way
//! `format.cuh` does it, weights are bit for bit those of the field's reference decoder.

use half::f16;
use orind_kernels::catalogue::Weight;
use orind_kernels::repack::Layout;

fn data(name: &str, weight: Weight) -> Vec<u8> {
    let file = orind_testing::data(&format!("quant/{name}.{}.bin", weight.name()));
    std::fs::read(file).expect("checked in")
}

fn half_at(bytes: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([bytes[at], bytes[at + 1]]).to_f32()
}

/// Scales and minima as the three words after `d` and `dmin` have them, a byte each: of the even blocks, then
/// of the odd ones.
fn scales_and_minima(head: &[u8]) -> [[u8; 4]; 4] {
    let word = |i: usize| [0, 1, 2, 3].map(|b| head[4 * i + b]);
    let [first, second, third] = [1, 2, 3].map(word);
    let odd = |upper: [u8; 4], shift: u8| {
        [0, 1, 2, 3].map(|i| third[i] >> shift & 15 | upper[i] >> 2 & 48)
    };
    [first.map(|b| b & 63), second.map(|b| b & 63), odd(first, 0), odd(second, 4)]
}

/// Weight (row, column) of an `n` x `k` matrix.
fn decode(weight: Weight, packed: &[u8], (n, k): (usize, usize), row: usize, column: usize) -> f32 {
    // Pieces before the quants, of 32 columns of them (times two), and bytes behind the pieces.
    let (head, quants, tail) = match weight {
        Weight::Q8_0 => (1, 4, 0),
        Weight::Q4_K => (1, 2, 0),
        Weight::Q5_K => (3, 2, 0),
        Weight::Q6_K => (1, 3, 2),
        Weight::F16 => (0, 8, 0),
    };
    let pieces = |columns: usize| match columns {
        0 => 0,
        _ => head + columns.div_ceil(32) * quants / 2,
    };
    let panel = 128 * (k / 256 * pieces(256) + pieces(k % 256));
    let (s, column) = (column / 256, column % 256);
    let at = |i: usize| row / 8 * panel + 128 * (s * pieces(256) + i) + 16 * (row % 8);
    let piece = |i: usize| &packed[at(i)..][..16];
    match weight {
        Weight::Q8_0 => {
            let q = piece(1 + column / 16)[column % 16].cast_signed();
            half_at(piece(0), column / 32 * 2) * f32::from(q)
        }
        Weight::Q6_K => {
            let chunk = 1 + column / 64 * 3;
            let [a, b, c] = [0, 1, 2].map(|i| piece(chunk + i)[column % 16]);
            let bits = match column % 64 / 16 {
                3 => a << 6 & 0xc0 | b << 4 & 0x30 | c << 2 & 0x0c,
                i => [a, b, c][i] & 0xfc,
            };
            let steps = n.div_ceil(8) * panel;
            let step = steps + ((row / 8 * (k / 256) + s) * 8 + row % 8) * tail;
            let scale = piece(0)[column / 16].cast_signed();
            half_at(packed, step) * 0.25 * f32::from(scale) * f32::from(bits.cast_signed())
        }
        Weight::Q4_K | Weight::Q5_K => {
            let (block, l) = (column / 32, column % 32);
            let nibbles = piece(head + block / 2 * 2 + l / 16)[l % 16];
            let fifth = match weight {
                Weight::Q4_K => 0,
                _ => {
                    let word = &piece(1 + block / 4)[block % 4 * 4..][..4];
                    word[l % 4] >> (l / 4) & 1
                }
            };
            let quant = nibbles >> (4 * (block % 2)) & 15 | fifth << 4;
            let all = scales_and_minima(piece(0));
            let [scale, minimum] = [0, 1].map(|i| all[2 * (block % 2) + i][block / 2]);
            half_at(piece(0), 0) * f32::from(scale) * f32::from(quant)
                - half_at(piece(0), 2) * f32::from(minimum)
        }
        Weight::F16 => half_at(piece(column / 8), column % 8 * 2),
    }
}

#[test]
fn packed_weights_are_the_reference_decoders_numbers() {
    for weight in Weight::ALL {
        let (blocks, values) = (data("blocks", weight), data("values", weight));
        let values: Vec<f32> =
            values.as_chunks().0.iter().map(|v| f32::from_le_bytes(*v)).collect();
        // As one row, as a column of blocks, and as what lies between.
        let count = values.len() / weight.block();
        let shapes = (1..=count).filter(|n| count.is_multiple_of(*n));
        for n in shapes {
            let k = values.len() / n;
            let layout = Layout::new(weight, n, k).expect("whole blocks");
            let mut packed = vec![0; layout.bytes()];
            layout.pack(0, &blocks, &mut packed).expect("fits");
            for (i, want) in values.iter().enumerate() {
                let got = decode(weight, &packed, (n, k), i / k, i % k);
                let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
                assert!(same, "{} {n} x {k}, element {i}: {got:e}, not {want:e}", weight.name());
            }
        }
    }
}
