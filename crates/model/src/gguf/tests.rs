//! Tests through the public interface: corpus, damaged files, round trips, shards.

use std::fs::{self, OpenOptions};
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use tempfile::TempDir;

use super::*;
use plan::DType;

const CORPUS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/gguf");
const EXPECTED: &str = include_str!("../../../../tests/data/gguf/expected.tsv");

fn corpus(name: &str) -> Vec<u8> {
    fs::read(format!("{CORPUS}/{name}.gguf")).expect("the corpus is checked in")
}

fn contents(model: &Gguf, tensor: &TensorInfo) -> Vec<u8> {
    let mut bytes = vec![0; tensor.bytes as usize];
    model.read(tensor, 0, &mut bytes).expect("a checked tensor lies within the file");
    bytes
}

/// Reads every tensor of an accepted file to its last byte.
fn read_all(model: &Gguf) {
    model.tensors().iter().for_each(|tensor| drop(contents(model, tensor)));
}

#[test]
fn errors_of_the_corpus_have_the_expected_offset_field_and_message() {
    for line in EXPECTED.lines() {
        let columns: Vec<&str> = line.split('\t').collect();
        let result = Gguf::from_bytes(corpus(columns[0]));
        match (columns.as_slice(), result) {
            ([_, "ok"], Ok(model)) => read_all(&model),
            ([name, at, want, message], Err(error)) => {
                let text = error.to_string();
                let Error::Malformed { offset, field, .. } = error else {
                    panic!("{name}: {text}");
                };
                assert_eq!((offset.to_string().as_str(), field.as_str()), (*at, *want), "{name}");
                assert!(text.contains(message), "{name}: {text}");
            }
            (_, result) => panic!("{line}: {:?}", result.map(|_| "accepted")),
        }
    }
}

#[test]
fn no_file_of_the_corpus_panics() {
    let mut count = 0;
    for entry in fs::read_dir(CORPUS).expect("the corpus is checked in") {
        let path = entry.expect("readable").path();
        if let Ok(model) = Gguf::open(path) {
            read_all(&model);
        }
        count += 1;
    }
    assert!(count >= EXPECTED.lines().count());
}

#[test]
fn every_value_type_is_read() {
    for name in ["types-v2", "types-v3"] {
        let model = Gguf::from_bytes(corpus(name)).unwrap();
        let nested = Array::Array(vec![
            Array::U8(vec![1, 2]),
            Array::Str(["y"].into_iter().collect()),
            Array::Array(vec![Array::Bool(vec![false, true])]),
        ]);
        let expected = [
            ("a.bool", Value::Bool(true)),
            ("a.empty", Value::Array(Array::F64(vec![]))),
            ("a.f32", Value::F32(1.5)),
            ("a.f64", Value::F64(0.1)),
            ("a.i16", Value::I16(i16::MIN)),
            ("a.i32", Value::I32(i32::MIN)),
            ("a.i32s", vec![-1, 0, 1].into()),
            ("a.i64", Value::I64(i64::MIN)),
            ("a.i8", Value::I8(i8::MIN)),
            ("a.nested", Value::Array(nested)),
            ("a.str", "h\u{e9}llo \u{4e16}\u{754c}".into()),
            ("a.strs", vec![String::new(), "x".into(), "\u{120}the".into()].into()),
            ("a.u16", Value::U16(u16::MAX)),
            ("a.u32", Value::U32(u32::MAX)),
            ("a.u64", Value::U64(u64::MAX)),
            ("a.u8", Value::U8(u8::MAX)),
            ("general.architecture", "llama".into()),
        ];
        let found: Vec<(&str, Value)> =
            model.metadata().iter().map(|(k, v)| (k, v.clone())).collect();
        assert_eq!(found, expected);

        // The directory and the data have different orders. Dimensions are reversed to outermost first.
        let w = model.tensor("w").unwrap();
        assert_eq!((w.shape.as_slice(), w.dtype, w.bytes), ([3, 64].as_slice(), DType::Q8_0, 204));
        assert_eq!(w.elements(), 192);
        let mut bytes = [0; 4];
        model.read(w, 200, &mut bytes).unwrap();
        assert_eq!(bytes, [424, 425, 426, 427].map(|i: u32| (i * 37) as u8));
        let norm = model.tensor("norm.weight").unwrap();
        model.read(norm, 0, &mut bytes).unwrap();
        assert_eq!(bytes, [0, 37, 74, 111]);
        assert!(model.tensor("v").is_none());
    }
}

#[test]
fn getters_name_the_key_and_both_types() {
    let model = Gguf::from_bytes(corpus("types-v3")).unwrap();
    let m = model.metadata();
    assert_eq!(m.u32("a.u8").unwrap(), 255);
    assert_eq!(m.u64("a.u32").unwrap(), u64::from(u32::MAX));
    assert_eq!(m.f32("a.f64").unwrap(), 0.1);
    assert!(m.bool("a.bool").unwrap());
    assert_eq!(m.str("general.architecture").unwrap(), "llama");
    assert_eq!(m.str_array("a.strs").unwrap().len(), 3);
    assert_eq!(m.i32_array("a.i32s").unwrap(), [-1, 0, 1]);
    assert_eq!(m.f32_opt("absent").unwrap(), None);

    for (error, message) in [
        (m.u32("absent").unwrap_err(), "`absent` is missing (expected UINT32)"),
        (
            m.u32_opt("a.u64").unwrap_err(),
            "`a.u64`: expected UINT32, found UINT64 18446744073709551615",
        ),
        (m.u64("a.i8").unwrap_err(), "`a.i8`: expected UINT64, found INT8 -128"),
        (m.u64("a.i16").unwrap_err(), "`a.i16`: expected UINT64, found INT16 -32768"),
        (m.u64("a.i32").unwrap_err(), "`a.i32`: expected UINT64, found INT32 -2147483648"),
        (m.u64("a.i64").unwrap_err(), "`a.i64`: expected UINT64, found INT64 -9223372036854775808"),
        (
            m.f32_array("a.i32s").unwrap_err(),
            "`a.i32s`: expected ARRAY of FLOAT32, found ARRAY of INT32",
        ),
    ] {
        assert_eq!(error.to_string(), format!("metadata key {message}"));
    }
}

#[test]
fn nonnegative_integers_of_any_type_are_numbers() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("m.gguf");
    let sevens = [
        Value::U8(7),
        Value::U16(7),
        Value::U32(7),
        Value::U64(7),
        Value::I8(7),
        Value::I16(7),
        Value::I32(7),
        Value::I64(7),
    ];
    for seven in sevens {
        write_one(&path, &[("seven", seven.clone())], "t", 1);
        assert_eq!(Gguf::open(&path).unwrap().metadata().u64("seven").unwrap(), 7, "{seven:?}");
    }
}

#[test]
fn a_name_may_be_as_long_as_the_limit() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("m.gguf");
    let key = "k".repeat(65_535);
    write_one(&path, &[(&key, true.into())], "t", 1);
    assert!(Gguf::open(&path).unwrap().metadata().bool(&key).unwrap());

    // One more byte in the length and in the key.
    let mut bytes = fs::read(&path).unwrap();
    bytes[24..32].copy_from_slice(&65_536_u64.to_le_bytes());
    bytes.insert(32, b'k');
    let error = Gguf::from_bytes(bytes).unwrap_err().to_string();
    assert!(error.contains("65536") && error.contains("65535"), "{error}");
}

#[test]
fn a_file_that_shrinks_or_disappears_causes_an_error() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("model.gguf");
    fs::write(&path, corpus("types-v3")).unwrap();
    let model = Gguf::open(&path).unwrap();
    let full = model.file_bytes();
    OpenOptions::new().write(true).open(&path).unwrap().set_len(full - 10).unwrap();

    let w = model.tensor("w").unwrap();
    let mut bytes = vec![0; w.bytes as usize];
    let error = model.read(w, 0, &mut bytes).unwrap_err().to_string();
    assert!(error.contains("204 bytes needed, 194 left"), "{error}");
    assert!(error.contains("data of tensor `w`"), "{error}");
    model.read(w, 0, &mut bytes[..194]).unwrap();

    let error = model.read(w, 200, &mut bytes).unwrap_err().to_string();
    assert_eq!(error, "tensor `w`: bytes 200..200+204 requested, it has 204");
    assert!(model.read(w, u64::MAX, &mut bytes).is_err());

    fs::remove_file(&path).unwrap();
    let error = Gguf::open(&path).unwrap_err().to_string();
    assert!(error.contains("model.gguf"), "{error}");
    assert!(matches!(Gguf::open(dir.path()), Err(Error::Open { .. })));
}

/// A file with one f32 tensor of `n` elements.
fn write_one(path: &Path, metadata: &[(&str, Value)], tensor: &str, n: usize) {
    let mut writer = Writer::new(path);
    for (key, value) in metadata {
        writer.metadata(key, value.clone()).unwrap();
    }
    let id = writer.tensor(tensor, &[n], DType::F32).unwrap();
    let data = writer.begin().unwrap();
    data.write(id, 0, &vec![n as u8; 4 * n]).unwrap();
    data.finish().unwrap();
}

fn shard(dir: &TempDir, name: &str, no: u16, count: u16, total: i32, tensor: &str) {
    let metadata = [
        ("split.no", Value::U16(no)),
        ("split.count", Value::U16(count)),
        ("split.tensors.count", Value::I32(total)),
        ("general.name", format!("shard {no}").into()),
    ];
    write_one(&dir.path().join(name), &metadata, tensor, usize::from(no) + 1);
}

#[test]
fn opening_any_shard_opens_the_whole_model() {
    let dir = TempDir::new().unwrap();
    for no in 0..3 {
        shard(&dir, &format!("m-{:05}-of-00003.gguf", no + 1), no, 3, 3, &format!("t{no}"));
    }
    for no in 1..=3 {
        let model = Gguf::open(dir.path().join(format!("m-{no:05}-of-00003.gguf"))).unwrap();
        assert_eq!(model.metadata().str("general.name").unwrap(), "shard 0");
        assert_eq!(model.path(), dir.path().join("m-00001-of-00003.gguf"));
        let mut total = 0;
        for (i, name) in ["t0", "t1", "t2"].into_iter().enumerate() {
            let bytes = contents(&model, model.tensor(name).unwrap());
            assert!(bytes.iter().all(|b| usize::from(*b) == i + 1));
            total += fs::metadata(dir.path().join(format!("m-{:05}-of-00003.gguf", i + 1)))
                .unwrap()
                .len();
        }
        assert_eq!(model.file_bytes(), total);
    }
}

#[test]
fn inconsistent_shards_are_rejected() {
    let error = |shards: &[(&str, u16, u16, i32, &str)]| {
        let dir = TempDir::new().unwrap();
        for (name, no, count, total, tensor) in shards {
            shard(&dir, name, *no, *count, *total, tensor);
        }
        Gguf::open(dir.path().join(shards[0].0)).unwrap_err().to_string()
    };
    let (first, second) = ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf");
    for (message, shards) in [
        ("m-00002-of-00002.gguf: No such file", vec![(first, 0, 2, 2, "a")]),
        ("not of the form NAME-00001-of-00002.gguf", vec![("model.gguf", 0, 2, 2, "a")]),
        ("not of the form", vec![("m-abcde-of-00002.gguf", 0, 2, 2, "a")]),
        ("not of the form", vec![("m-1-of-00002.gguf", 0, 2, 2, "a")]),
        ("`split.no` is 0", vec![(first, 0, 2, 2, "a"), (second, 0, 2, 2, "b")]),
        ("`split.count` is 3", vec![(first, 0, 2, 2, "a"), (second, 1, 3, 2, "b")]),
        ("`split.tensors.count` says 3", vec![(first, 0, 2, 3, "a"), (second, 1, 2, 3, "b")]),
        ("`a` is also in an earlier", vec![(first, 0, 2, 2, "a"), (second, 1, 2, 2, "a")]),
    ] {
        let text = error(&shards);
        assert!(text.contains(message), "{text}");
    }
}

#[test]
fn a_shard_cannot_be_read_from_memory() {
    let dir = TempDir::new().unwrap();
    shard(&dir, "one.gguf", 0, 1, 1, "t");
    shard(&dir, "first.gguf", 0, 2, 2, "t");
    let read = |name| Gguf::from_bytes(fs::read(dir.path().join(name)).unwrap());
    assert!(read("one.gguf").unwrap().tensor("t").is_some());
    let error = read("first.gguf").unwrap_err().to_string();
    assert!(error.contains("not of the form NAME-00001-of-00002.gguf"), "{error}");
}

#[test]
fn the_writer_rejects_what_the_reader_would_reject() {
    let mut writer = Writer::new("unused.gguf");
    writer.metadata("a", 1_u32).unwrap();
    assert!(writer.metadata("a", 2_u32).is_err());
    assert!(writer.metadata("", 2_u32).is_err());
    assert!(writer.metadata(ALIGNMENT_KEY, 24_u32).is_err());
    assert!(writer.metadata(ALIGNMENT_KEY, 32_u64).is_err());
    writer.tensor("t", &[2, 32], DType::Q8_0).unwrap();
    for (name, shape, dtype) in [
        ("t", vec![1], DType::F32),
        ("no dimension", vec![], DType::F32),
        ("five", vec![1; 5], DType::F32),
        ("zero", vec![2, 0], DType::F32),
        ("half a block", vec![2, 16], DType::Q8_0),
        ("overflow", vec![usize::MAX, 2], DType::F32),
        (&"x".repeat(64), vec![1], DType::F32),
    ] {
        assert!(writer.tensor(name, &shape, dtype).is_err(), "{name}");
    }
}

#[test]
fn the_file_appears_only_when_complete() {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("m.gguf");
    let begin = || {
        let mut writer = Writer::new(&path);
        let id = writer.tensor("t", &[4], DType::F32).unwrap();
        (writer.begin().unwrap(), id)
    };
    let files = || fs::read_dir(dir.path()).unwrap().count();

    let (data, id) = begin();
    data.write(id, 0, &[1; 12]).unwrap();
    assert!(data.write(id, 12, &[1; 5]).is_err());
    assert!(!path.exists());
    let error = data.finish().unwrap_err().to_string();
    assert!(error.contains("12 bytes of 16 written"), "{error}");
    assert_eq!(files(), 0, "nothing is left behind");

    let (data, id) = begin();
    data.write(id, 8, &[2; 8]).unwrap();
    data.write(id, 0, &[1; 8]).unwrap();
    data.finish().unwrap();
    assert_eq!(files(), 1);
    let model = Gguf::open(&path).unwrap();
    let bytes = contents(&model, model.tensor("t").unwrap());
    assert_eq!(bytes, [[1; 8], [2; 8]].concat());
}

fn array() -> impl Strategy<Value = Array> {
    let leaf = prop_oneof![
        vec(any::<u8>(), 0..9).prop_map(Array::U8),
        vec(any::<i8>(), 0..9).prop_map(Array::I8),
        vec(any::<u16>(), 0..9).prop_map(Array::U16),
        vec(any::<i16>(), 0..9).prop_map(Array::I16),
        vec(any::<u32>(), 0..9).prop_map(Array::U32),
        vec(any::<i32>(), 0..9).prop_map(Array::I32),
        vec(-1e30_f32..1e30, 0..9).prop_map(Array::F32),
        vec(any::<bool>(), 0..9).prop_map(Array::Bool),
        vec(".{0,12}", 0..9).prop_map(|v| Array::Str(v.iter().collect())),
        vec(any::<u64>(), 0..9).prop_map(Array::U64),
        vec(any::<i64>(), 0..9).prop_map(Array::I64),
        vec(-1e300_f64..1e300, 0..9).prop_map(Array::F64),
    ];
    leaf.prop_recursive(4, 16, 4, |inner| vec(inner, 0..4).prop_map(Array::Array))
}

fn value() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<u8>().prop_map(Value::U8),
        any::<i8>().prop_map(Value::I8),
        any::<u16>().prop_map(Value::U16),
        any::<i16>().prop_map(Value::I16),
        any::<u32>().prop_map(Value::U32),
        any::<i32>().prop_map(Value::I32),
        (-1e30_f32..1e30).prop_map(Value::F32),
        any::<bool>().prop_map(Value::Bool),
        ".{0,40}".prop_map(Value::Str),
        any::<u64>().prop_map(Value::U64),
        any::<i64>().prop_map(Value::I64),
        (-1e300_f64..1e300).prop_map(Value::F64),
        array().prop_map(Value::Array),
    ]
}

fn tensor() -> impl Strategy<Value = (Vec<usize>, DType)> {
    let stored: Vec<_> = DType::ALL.into_iter().filter(|dtype| dtype.ggml().is_some()).collect();
    (vec(1_usize..4, 1..=4), prop::sample::select(stored)).prop_map(|(mut shape, dtype)| {
        *shape.last_mut().unwrap() *= dtype.block_len();
        (shape, dtype)
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn written_files_read_back_equal(
        metadata in prop::collection::btree_map("[a-z.]{1,20}", value(), 0..12),
        tensors in vec(tensor(), 0..6),
        alignment in prop::option::of(0_u32..9),
    ) {
        let dir = TempDir::new().unwrap();
        let path = dir.path().join("m.gguf");
        let mut writer = Writer::new(&path);
        let mut metadata = metadata;
        metadata.remove(ALIGNMENT_KEY);
        if let Some(shift) = alignment {
            metadata.insert(ALIGNMENT_KEY.to_owned(), Value::U32(1 << shift));
        }
        for (key, value) in &metadata {
            writer.metadata(key, value.clone()).unwrap();
        }
        let ids: Vec<TensorId> = tensors
            .iter()
            .enumerate()
            .map(|(i, (shape, dtype))| writer.tensor(&format!("t{i}"), shape, *dtype).unwrap())
            .collect();
        let data = writer.begin().unwrap();
        for (i, ((shape, dtype), id)) in tensors.iter().zip(&ids).enumerate() {
            let n = shape.iter().product::<usize>() as u64;
            let bytes = vec![i as u8 + 1; dtype.size_of(n).unwrap() as usize];
            data.write(*id, 0, &bytes).unwrap();
        }
        data.finish().unwrap();

        let model = Gguf::open(&path).unwrap();
        let found = model.metadata().iter().map(|(k, v)| (k.to_owned(), v.clone()));
        prop_assert_eq!(found.collect::<Vec<_>>(), metadata.into_iter().collect::<Vec<_>>());
        prop_assert_eq!(model.tensors().len(), tensors.len());
        for (i, (shape, dtype)) in tensors.iter().enumerate() {
            let tensor = model.tensor(&format!("t{i}")).unwrap();
            prop_assert_eq!((&tensor.shape, tensor.dtype), (shape, *dtype));
            prop_assert!(contents(&model, tensor).iter().all(|b| usize::from(*b) == i + 1));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4096, failure_persistence: None, ..ProptestConfig::default() })]

    /// Damaged files are rejected or accepted without a panic, and every tensor of an accepted file can be read.
    #[test]
    fn damaged_files_are_rejected_or_readable(
        name in prop::sample::select(vec!["types-v3", "alignment-256", "tensor-q4_k", "overlap"]),
        changes in vec((any::<prop::sample::Index>(), damage()), 1..6),
        keep in prop::option::weighted(0.2, any::<prop::sample::Index>()),
    ) {
        let mut bytes = corpus(name);
        for (index, change) in changes {
            let at = index.index(bytes.len());
            for (byte, new) in bytes[at..].iter_mut().zip(change) {
                *byte = new;
            }
        }
        if let Some(keep) = keep {
            bytes.truncate(keep.index(bytes.len()));
        }
        if let Ok(model) = Gguf::from_bytes(bytes) {
            read_all(&model);
        }
    }
}

/// Bytes that result in interesting numbers.
fn damage() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        vec(any::<u8>(), 1..9),
        any::<u64>().prop_map(|n| n.to_le_bytes().to_vec()),
        (0_u32..64).prop_map(|shift| (1_u64 << shift).to_le_bytes().to_vec()),
        (0_u64..16).prop_map(|n| (u64::MAX - n).to_le_bytes().to_vec()),
        (0_u32..16).prop_map(|n| n.to_le_bytes().to_vec()),
    ]
}

#[test]
fn pipes_and_folders_are_rejected_without_blocking() {
    let dir = TempDir::new().expect("a folder");
    let pipe = dir.path().join("pipe.gguf");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).expect("a pipe");
    for path in [pipe.as_path(), Path::new("/dev/zero"), dir.path()] {
        let (opened, path) = (std::sync::mpsc::channel(), path.to_owned());
        let name = path.display().to_string();
        std::thread::spawn(move || opened.0.send(Gguf::open(path).map(drop)));
        let result = opened.1.recv_timeout(std::time::Duration::from_secs(60));
        let error = result.expect("nobody waits").expect_err("no file").to_string();
        assert!(error.contains("not a regular file") && error.contains(&name), "{error}");
    }
}
