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

/// Scale and minimum of a sub-block from the three words after `d` and `dmin`, as
/// `scale_and_minimum` takes them apart.
fn scale_and_minimum(head: &[u8], index: usize) -> (f32, f32) {
    let word = |i: usize| u32::from_le_bytes([0, 1, 2, 3].map(|b| head[4 * i + b]));
    let [low, mid, high] = [1, 2, 3].map(|i| word(i) >> (8 * (index & 3)));
    let (scale, minimum) = if index < 4 {
        (low & 63, mid & 63)
    } else {
        (high & 15 | low >> 2 & 48, high >> 4 & 15 | mid >> 2 & 48)
    };
    (half_at(head, 0) * scale as f32, half_at(head, 2) * minimum as f32)
}

/// Weight (row, column) of an `n` x `k` matrix.
fn decode(weight: Weight, packed: &[u8], (n, k): (usize, usize), row: usize, column: usize) -> f32 {
    match weight {
        Weight::Q8_0 => {
            let step = n * k + 2 * (row * (k / 32) + column / 32);
            half_at(packed, step) * f32::from(packed[row * k + column].cast_signed())
        }
        Weight::Q6_K => {
            let scales = n * (k / 4 * 3);
            let steps = scales + n * (k / 16);
            let chunk = &packed[row * (k / 4 * 3) + column / 64 * 48..][..48];
            let (word, four, byte) = (column % 64 / 16, column % 16 / 4, column % 4);
            let run = |run: usize| chunk[16 * run + 4 * word + byte];
            let bits = match four {
                3 => run(0) << 6 & 0xc0 | run(1) << 4 & 0x30 | run(2) << 2 & 0x0c,
                _ => run(four) & 0xfc,
            };
            let scale = packed[scales + row * (k / 16) + column / 16].cast_signed();
            let step = half_at(packed, steps + 2 * (row * (k / 256) + column / 256)) * 0.25;
            step * f32::from(scale) * f32::from(bits.cast_signed())
        }
        Weight::Q4_K | Weight::Q5_K => {
            let (bytes, nibbles) = if weight == Weight::Q4_K { (144, 16) } else { (176, 48) };
            let block = &packed[(row * (k / 256) + column / 256) * bytes..][..bytes];
            let (sub, l) = (column % 256 / 32, column % 32);
            let (scale, minimum) = scale_and_minimum(block, sub);
            let low = block[nibbles + sub / 2 * 32 + l] >> (4 * (sub % 2)) & 15;
            let fifth = if weight == Weight::Q5_K { block[16 + l] >> sub & 1 } else { 0 };
            scale * f32::from(low | fifth << 4) - minimum
        }
        Weight::F16 => half_at(packed, 2 * (row * k.next_multiple_of(8) + column)),
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
