//! Comparison with files of llama.cpp's quantiser; invalid weights; temporary files after errors.

use std::fs;
use std::path::PathBuf;

use half::f16;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn tiny(name: &str) -> PathBuf {
    let data = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/models");
    PathBuf::from(format!("{data}/{name}.gguf"))
}

fn open(path: impl AsRef<Path>) -> Gguf {
    Gguf::open(path).unwrap()
}

fn running() -> AtomicBool {
    AtomicBool::new(false)
}

fn convert(from: Gguf, mix: Mix, dir: &TempDir, threads: usize) -> Result<PathBuf, Error> {
    let path = dir.path().join(format!("{mix}-{threads}.gguf"));
    Conversion::new(from, mix, false)?.write(&path, threads, &running(), &mut |_| {})?;
    Ok(path)
}

fn stored(gguf: &Gguf, name: &str) -> Vec<u8> {
    let tensor = gguf.tensor(name).unwrap();
    let mut bytes = vec![0; tensor.bytes as usize];
    gguf.read(tensor, 0, &mut bytes).unwrap();
    bytes
}

fn values(gguf: &Gguf, name: &str) -> Vec<f32> {
    let tensor = gguf.tensor(name).unwrap();
    let mut values = vec![0.0; tensor.elements() as usize];
    quant::dequantise(tensor.dtype, &stored(gguf, name), &mut values).unwrap();
    values
}

fn files(dir: &TempDir) -> Vec<String> {
    let names = fs::read_dir(dir.path()).unwrap();
    names.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn q8_0_files_equal_llama_cpps_byte_for_byte() {
    let dir = TempDir::new().unwrap();
    let made = open(convert(open(tiny("tiny-llama-f16")), Mix::Q8_0, &dir, 2).unwrap());
    let theirs = open(tiny("tiny-llama-Q8_0"));
    assert_eq!(made.tensors().len(), theirs.tensors().len());
    for tensor in theirs.tensors() {
        let found = made.tensor(&tensor.name).unwrap();
        assert_eq!((found.dtype, &found.shape), (tensor.dtype, &tensor.shape), "{}", tensor.name);
        assert!(stored(&made, &tensor.name) == stored(&theirs, &tensor.name), "{}", tensor.name);
    }
    for (key, value) in theirs.metadata().iter() {
        assert_eq!(made.metadata().get(key), Some(value), "{key}");
    }
}

#[test]
fn other_mixes_have_llama_cpps_types_and_errors() {
    let dir = TempDir::new().unwrap();
    let exact = open(tiny("tiny-llama-f16"));
    for (mix, name) in [(Mix::Q6_K, "tiny-llama-Q6_K"), (Mix::Q4_K_M, "tiny-llama-Q4_K_M")] {
        let made = open(convert(open(tiny("tiny-llama-f16")), mix, &dir, 2).unwrap());
        let theirs = open(tiny(name));
        assert_eq!(made.metadata().u32(FILE_TYPE_KEY).unwrap(), mix.file_type());
        for tensor in theirs.tensors() {
            assert_eq!(made.tensor(&tensor.name).unwrap().dtype, tensor.dtype, "{}", tensor.name);
            let exact = values(&exact, &tensor.name);
            let error = |gguf: &Gguf| {
                let stored = values(gguf, &tensor.name);
                let squares = exact.iter().zip(&stored).map(|(a, b)| f64::from(a - b).powi(2));
                squares.sum::<f64>().sqrt()
            };
            let (ours, theirs) = (error(&made), error(&theirs));
            assert!(ours <= 1.07 * theirs, "{mix} {}: {ours} for {theirs}", tensor.name);
        }
    }
}

#[test]
fn the_file_does_not_depend_on_threads_and_has_the_predicted_size() {
    let dir = TempDir::new().unwrap();
    for mix in Mix::ALL {
        let conversion = Conversion::new(open(tiny("tiny-llama-f16")), mix, false).unwrap();
        let path = dir.path().join("predicted.gguf");
        let bytes = conversion.file_bytes(&path).unwrap();
        let (mut last, total) = (0, conversion.tensors().map(|(t, _)| t.bytes).sum::<u64>());
        conversion.write(&path, 1, &running(), &mut |done| last = done).unwrap();
        assert_eq!((fs::metadata(&path).unwrap().len(), last), (bytes, total), "{mix}");
        let other = convert(open(tiny("tiny-llama-f16")), mix, &dir, 3).unwrap();
        assert!(fs::read(&path).unwrap() == fs::read(other).unwrap(), "{mix}");
    }
}

#[test]
fn quantised_tensors_are_quantised_again_only_on_request() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("twice.gguf");
    let again = |mix, again| Conversion::new(open(tiny("tiny-llama-Q8_0")), mix, again);
    let rejected = again(Mix::Q4_0, false).unwrap_err();
    assert!(matches!(rejected, Error::Quantised { from: DType::Q8_0, .. }), "{rejected}");
    assert!(again(Mix::F16, false).is_err(), "the error of Q8_0 stays in F16");
    again(Mix::Q4_0, true).unwrap().write(&path, 2, &running(), &mut |_| {}).unwrap();
    let made = open(&path);
    assert_eq!(made.tensor("blk.0.attn_q.weight").unwrap().dtype, DType::Q4_0);
    // The same type is a copy.
    again(Mix::Q8_0, false).unwrap().write(&path, 2, &running(), &mut |_| {}).unwrap();
    let (copy, original) = (open(&path), open(tiny("tiny-llama-Q8_0")));
    for tensor in original.tensors() {
        assert!(stored(&copy, &tensor.name) == stored(&original, &tensor.name), "{}", tensor.name);
    }
}

/// A model of one matrix and one vector.
fn small(dir: &TempDir, dtype: DType, matrix: &[f32], vector: &[f32]) -> PathBuf {
    let path = dir.path().join("small.gguf");
    let mut writer = Writer::new(&path);
    writer.metadata("general.architecture", "llama").unwrap();
    writer.metadata("llama.block_count", 1_u32).unwrap();
    writer.metadata("split.count", 1_u32).unwrap();
    let rows = matrix.len() / 256;
    let a = writer.tensor("blk.0.attn_q.weight", &[rows, 256], dtype).unwrap();
    let b = writer.tensor("output_norm.weight", &[vector.len()], DType::F32).unwrap();
    let data = writer.begin().unwrap();
    for (id, dtype, values) in [(a, dtype, matrix), (b, DType::F32, vector)] {
        let mut bytes = vec![0; dtype.size_of(values.len() as u64).unwrap() as usize];
        quant::quantise(dtype, values, &mut bytes).unwrap();
        data.write(id, 0, &bytes).unwrap();
    }
    data.finish().unwrap();
    path
}

#[test]
fn errors_name_invalid_weights_and_leave_no_file() {
    let dir = TempDir::new().unwrap();
    let mut matrix = vec![0.5; 512];
    let mut vector = vec![1.0; 8];
    vector[3] = f32::NAN;
    let path = small(&dir, DType::F32, &matrix, &vector);
    // Vectors are checked too, though they are only copied.
    let error = convert(open(&path), Mix::Q8_0, &dir, 1).unwrap_err().to_string();
    assert!(error.contains("`output_norm.weight`, element 3, is NaN"), "{error}");
    vector[3] = 1.0;
    matrix[300] = f32::NEG_INFINITY;
    let path = small(&dir, DType::F32, &matrix, &vector);
    let error = convert(open(&path), Mix::F32, &dir, 1).unwrap_err().to_string();
    assert!(error.contains("`blk.0.attn_q.weight`, element 300, is -inf"), "{error}");
    // Finite, but too large for F16 and for a scale of Q6_K.
    matrix[300] = 1e9;
    for mix in [Mix::F16, Mix::Q6_K] {
        let path = small(&dir, DType::F32, &matrix, &vector);
        let error = convert(open(&path), mix, &dir, 1).unwrap_err();
        assert!(matches!(error, Error::Range { at: 300, .. }), "{mix}: {error}");
    }
    assert_eq!(files(&dir), ["small.gguf"]);
}

#[test]
fn a_stopped_conversion_leaves_no_file() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("out.gguf");
    fs::write(&path, "before").unwrap();
    let conversion = Conversion::new(open(tiny("tiny-llama-f16")), Mix::Q8_0, false).unwrap();
    let stop = running();
    let mut calls = 0;
    let stopped = conversion.write(&path, 1, &stop, &mut |_| {
        calls += 1;
        stop.store(true, Ordering::Relaxed);
    });
    assert!(matches!(stopped, Err(Error::Stopped)) && calls > 0, "{stopped:?}");
    assert_eq!((files(&dir).len(), fs::read(&path).unwrap()), (1, b"before".to_vec()));
}

#[test]
fn a_split_model_becomes_one_file() {
    let dir = TempDir::new().unwrap();
    let path = small(&dir, DType::F32, &[0.5; 512], &[1.0; 8]);
    let made = open(convert(open(path), Mix::F16, &dir, 1).unwrap());
    assert!(made.metadata().get("split.count").is_none());
    assert_eq!(made.metadata().u32("llama.block_count").unwrap(), 1);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any F16 bit patterns result in a file of finite weights, or in an error that names the tensor and no file.
    #[test]
    fn any_weights_result_in_a_file_or_an_error(
        bits in proptest::collection::vec(any::<u16>(), 512),
        finite in any::<bool>(),
        mix in proptest::sample::select(Mix::ALL.to_vec()),
    ) {
        // Half of the cases have no infinities and NaN.
        let number = |bits: u16| f16::from_bits(if finite { bits & 0xbfff } else { bits }).to_f32();
        let matrix: Vec<f32> = bits.iter().map(|bits| number(*bits)).collect();
        let dir = TempDir::new().unwrap();
        let path = small(&dir, DType::F16, &matrix, &[1.0; 8]);
        match convert(open(path), mix, &dir, 2) {
            Ok(path) => {
                prop_assert!(matrix.iter().all(|v| v.is_finite()));
                let back = values(&open(path), "blk.0.attn_q.weight");
                prop_assert!(back.iter().all(|v| v.is_finite()));
            }
            Err(error) => {
                prop_assert!(error.to_string().contains("`blk.0.attn_q.weight`"), "{error}");
                prop_assert!(!finite, "{error}");
                prop_assert_eq!(files(&dir), ["small.gguf"]);
            }
        }
    }
}
