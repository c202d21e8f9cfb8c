//! Dequantisers and quantisers against the numpy reference's vectors; round trips within error
//! bounds.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn real() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|t| !t.is_integer())
}

fn data(name: &str, dtype: DType) -> Vec<u8> {
    let root = env!("CARGO_MANIFEST_DIR");
    std::fs::read(format!("{root}/../../tests/data/quant/{name}.{dtype}.bin")).expect("checked in")
}

fn floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks().0.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

fn stored(dtype: DType, values: &[f32]) -> Vec<u8> {
    let mut bytes = vec![0; dtype.size_of(values.len() as u64).unwrap() as usize];
    quantise(dtype, values, &mut bytes).unwrap();
    bytes
}

fn round_trip(dtype: DType, values: &[f32]) -> Vec<f32> {
    let mut back = vec![0.0; values.len()];
    dequantise(dtype, &stored(dtype, values), &mut back).unwrap();
    back
}

#[test]
fn dequantise_agrees_with_the_reference_bit_for_bit() {
    for dtype in real().filter(|t| *t != DType::F32) {
        let expected = floats(&data("values", dtype));
        let mut out = vec![0.0; expected.len()];
        dequantise(dtype, &data("blocks", dtype), &mut out).unwrap();
        for (i, (got, want)) in out.iter().zip(&expected).enumerate() {
            let same = got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan();
            assert!(same, "{dtype} element {i}: {got:e}, the reference has {want:e}");
        }
    }
}

/// Types that the reference quantises too.
const REFERENCE: [DType; 10] = [
    DType::F16,
    DType::BF16,
    DType::Q8_0,
    DType::Q4_0,
    DType::Q4_1,
    DType::Q5_0,
    DType::Q5_1,
    DType::MXFP4,
    DType::TQ1_0,
    DType::TQ2_0,
];

#[test]
fn quantise_agrees_with_the_reference_where_it_has_one() {
    for dtype in REFERENCE {
        let values = floats(&data("input", dtype));
        assert_eq!(stored(dtype, &values), data("stored", dtype), "{dtype}");
    }
}

/// Uniform in -1..1 and reproducible: a hash of the index (the finaliser of `SplitMix64`).
fn noise(index: u64) -> f32 {
    let mut x = index.wrapping_add(1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    (x >> 40) as f32 / (1 << 23) as f32 - 1.0
}

/// Errors of ggml 0.9's own quantisers on the values of the test below: RMS of the error over RMS
/// of the values.
const GGML_ERROR: [(DType, f64); 17] = [
    (DType::F16, 0.00021),
    (DType::BF16, 0.00166),
    (DType::Q8_0, 0.00528),
    (DType::Q4_0, 0.08483),
    (DType::Q4_1, 0.07730),
    (DType::Q5_0, 0.04207),
    (DType::Q5_1, 0.03751),
    (DType::IQ4_NL, 0.07559),
    (DType::MXFP4, 0.11346),
    (DType::Q2_K, 0.29235),
    (DType::Q3_K, 0.14950),
    (DType::Q4_K, 0.07056),
    (DType::Q5_K, 0.03580),
    (DType::Q6_K, 0.01755),
    (DType::IQ4_XS, 0.07612),
    (DType::TQ1_0, 0.79879),
    (DType::TQ2_0, 0.79879),
];

/// Types with a quantiser here. ggml quantises the others by an importance matrix.
fn made() -> impl Iterator<Item = DType> {
    let mut block = [0_u8; 4096];
    real().filter(move |dtype| {
        let stored = &mut block[..dtype.size_of(256).unwrap() as usize];
        quantise(*dtype, &[0.0; 256], stored) != Err(Error::NoQuantiser { dtype: *dtype })
    })
}

#[test]
fn all_types_but_those_with_lookup_tables_can_be_quantised() {
    let read_only = real().filter(|dtype| made().all(|other| other != *dtype));
    let names: Vec<&str> = read_only.map(DType::name).collect();
    assert_eq!(names, ["IQ3_S", "IQ3_XXS", "IQ2_S", "IQ2_XS", "IQ2_XXS", "IQ1_M", "IQ1_S"]);
    let error = Error::NoQuantiser { dtype: DType::IQ1_S }.to_string();
    assert!(error.starts_with("IQ1_S can be read but not written"), "{error}");
}

#[test]
fn the_error_on_normal_values_is_within_6_percent_of_ggml() {
    let values: Vec<f32> =
        (0..1 << 16).map(|i| (0..12).map(|k| noise(i * 12 + k)).sum::<f32>() * 0.01).collect();
    for (dtype, ggml) in GGML_ERROR {
        let back = round_trip(dtype, &values);
        let square = |x: f64| x * x;
        let error: f64 = values.iter().zip(&back).map(|(a, b)| square(f64::from(a - b))).sum();
        let power: f64 = values.iter().map(|a| square(f64::from(*a))).sum();
        let relative = (error / power).sqrt();
        assert!(relative < 1.06 * ggml, "{dtype}: relative error {relative:.5}, ggml has {ggml}");
    }
}

#[test]
fn lengths_and_types_are_checked() {
    let mut out = [0.0; 32];
    let error = dequantise(DType::Q8_0, &[0; 33], &mut out).unwrap_err().to_string();
    assert_eq!(error, "32 elements of Q8_0 are not 33 bytes (32 elements take 34)");
    assert!(dequantise(DType::Q4_K, &[0; 18], &mut out).is_err());
    assert!(quantise(DType::Q8_0, &out[..31], &mut [0; 34]).is_err());
    let error = dequantise(DType::I32, &[0; 128], &mut out).unwrap_err();
    assert_eq!(error, Error::NotReal { dtype: DType::I32 });
    assert!(quantise(DType::I32, &out, &mut [0; 128]).is_err());
}

#[test]
fn values_that_no_scale_can_store_are_named() {
    for dtype in made().filter(|t| t.is_quantised()) {
        // The scales of MXFP4 cover the whole range of `f32`.
        let large: &[f32] = if dtype == DType::MXFP4 { &[] } else { &[f32::MAX, -1e30] };
        for &value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY].iter().chain(large) {
            let mut values = vec![1.0; 512];
            values[300] = value;
            let mut bytes = vec![0; dtype.size_of(512).unwrap() as usize];
            match quantise(dtype, &values, &mut bytes) {
                Err(Error::Range { at: 300, .. }) => {}
                other => panic!("{dtype} {value}: {other:?}"),
            }
        }
        // The first of two invalid elements is named.
        let mut values = vec![1.0; 512];
        (values[300], values[301]) = (f32::NAN, f32::INFINITY);
        let mut bytes = vec![0; dtype.size_of(512).unwrap() as usize];
        let error = quantise(dtype, &values, &mut bytes).unwrap_err();
        assert!(matches!(error, Error::Range { at: 300, .. }), "{error}");
    }
}

/// Upper bound of the quantisation error for a block of numbers: half a step of the format's grid,
/// with the step from the range of the whole block (a sub-block's range is at most that), plus the
/// rounding of the scales.
fn bound(dtype: DType, block: &[f32]) -> f32 {
    let low = block.iter().fold(0.0_f32, |a, b| a.min(*b));
    let high = block.iter().fold(0.0_f32, |a, b| a.max(*b));
    let (largest, range) = (high.max(-low), high - low);
    // For subnormal scales the rounding error is half of the smallest number, times the largest
    // scale and code.
    let tiny = |factor: f32| factor * 2_f32.powi(-25);
    match dtype {
        DType::F32 => 0.0,
        DType::F16 => largest * 2_f32.powi(-11) + tiny(1.0),
        DType::BF16 => largest * 2_f32.powi(-8),
        DType::Q8_0 => largest / 127.0 * 0.6 + tiny(128.0),
        // The grid is -8 to 7: the side opposite to the extreme is clipped by up to one step.
        DType::Q4_0 => largest / 8.0 * 1.05 + tiny(16.0),
        DType::Q5_0 => largest / 16.0 * 1.05 + tiny(32.0),
        DType::Q4_1 => range / 15.0 * 0.6 + largest * 2_f32.powi(-10) + tiny(32.0),
        DType::Q5_1 => range / 31.0 * 0.6 + largest * 2_f32.powi(-10) + tiny(64.0),
        // The widest gap between levels is 24 of 127; fitted scales clip the ends.
        DType::IQ4_NL => largest * 0.25 + tiny(127.0),
        DType::IQ4_XS => largest * 0.25 + tiny(127.0 * 32.0),
        // Values from 6 to 8 times a power of two are all stored as 6.
        DType::MXFP4 => largest * 0.26,
        DType::TQ1_0 | DType::TQ2_0 => largest * 0.51 + tiny(1.0),
        DType::Q2_K => range / 3.0 + range / 15.0 + tiny(15.0 * 4.0),
        DType::Q3_K => largest / 4.0 * 1.3 + tiny(32.0 * 4.0),
        DType::Q4_K => range / 15.0 + range / 63.0 + tiny(63.0 * 16.0),
        DType::Q5_K => range / 31.0 + range / 63.0 + tiny(63.0 * 32.0),
        DType::Q6_K => largest / 32.0 * 1.3 + tiny(128.0 * 32.0),
        other => unreachable!("{other} is not made"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn round_trip_errors_are_within_bounds(
        values in vec(-1.0_f32..1.0, 256),
        exponent in -12_i32..5,
        sparse in 0_usize..4,
    ) {
        let scale = 4_f32.powi(exponent);
        let values: Vec<f32> = values
            .iter()
            .enumerate()
            .map(|(i, v)| if sparse > 0 && i % (sparse * 7) != 0 { 0.0 } else { v * scale })
            .collect();
        for dtype in made() {
            let back = round_trip(dtype, &values);
            for (block, stored) in
                values.chunks(dtype.block_len()).zip(back.chunks(dtype.block_len()))
            {
                let bound = bound(dtype, block);
                for (a, b) in block.iter().zip(stored) {
                    prop_assert!((a - b).abs() <= bound, "{}: {} became {}, bound {}", dtype, a, b, bound);
                }
            }
        }
    }

    /// Arbitrary bits give a result or an error, and always the same one.
    #[test]
    fn quantisation_of_arbitrary_bits_is_deterministic(bits in vec(any::<u32>(), 256), shift in 0_u32..32) {
        let values: Vec<f32> = bits.iter().map(|b| f32::from_bits(b >> shift)).collect();
        for dtype in made() {
            let size = dtype.size_of(256).unwrap() as usize;
            let (mut one, mut two) = (vec![0; size], vec![255; size]);
            let first = quantise(dtype, &values, &mut one);
            let second = quantise(dtype, &values, &mut two);
            prop_assert_eq!(first.is_ok(), second.is_ok());
            if first.is_ok() {
                prop_assert_eq!(&one, &two);
                dequantise(dtype, &one, &mut vec![0.0; 256]).unwrap();
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// In blocks of arbitrary bits, many with a scale that is not finite, and in valid blocks.
    #[test]
    fn the_first_value_that_is_not_finite_is_found(
        noise in vec(any::<u8>(), 0..4000),
        sound in vec(-1.0_f32..1.0, 2048),
        from in 0_usize..8,
    ) {
        for dtype in real() {
            let (len, size) = (dtype.block_len(), dtype.block_bytes());
            let mut bytes = Vec::new();
            if made().any(|made| made == dtype) {
                bytes = stored(dtype, &sound[from * 256..]);
                prop_assert_eq!(not_finite(dtype, &bytes), None, "{}", dtype);
            }
            bytes.extend(&noise);
            let whole = bytes.len() / size;
            let mut values = vec![0.0; whole * len];
            dequantise(dtype, &bytes[..whole * size], &mut values).unwrap();
            let expected = values.iter().position(|value| !value.is_finite());
            let found = not_finite(dtype, &bytes);
            prop_assert_eq!(found.map(|(at, _)| at), expected, "{}", dtype);
            if let Some((at, value)) = found {
                prop_assert!(value.to_bits() == values[at].to_bits() || value.is_nan());
            }
        }
        prop_assert_eq!(not_finite(DType::I32, &noise), None);
    }
}
