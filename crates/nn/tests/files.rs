//! Array files written by NumPy and the safetensors package (tests/data/nn/files.py), round trips,
//! and rejected files.

use std::path::{Path, PathBuf};

use nn::files::{Array, Error, read_npy, read_safetensors, write_npy, write_safetensors};

fn data(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/data/nn").join(name)
}

/// Multiples of a half from -1 on; their integer parts for integer types.
fn array(of_ints: bool) -> Array {
    let halves = (0..6u8).map(|i| f32::from(i) * 0.5 - 1.0);
    let values = halves.map(|value| if of_ints { value.trunc() } else { value }).collect();
    Array { shape: vec![2, 3], values }
}

#[test]
fn files_of_other_programs_are_read() {
    for (name, ints) in [("f4", false), ("f2", false), ("f8", false), ("i4", true), ("i8", true)] {
        let read = read_npy(&data(&format!("array-{name}.npy"))).unwrap();
        assert_eq!(read, array(ints), "{name}");
    }
    let one = Array { shape: vec![], values: vec![2.5] };
    assert_eq!(read_npy(&data("array-one.npy")).unwrap(), one);
    // Fortran order, and 16-bit integers.
    assert_eq!(read_npy(&data("array-fortran.npy")).unwrap(), array(false));
    let words = vec![65535.0, 0.0, 0.0, 0.0, 1.0, 1.0];
    assert_eq!(read_npy(&data("array-u2.npy")).unwrap().values, words);
    let all = read_safetensors(&data("arrays.safetensors")).unwrap();
    assert_eq!(all.len(), 6);
    for (name, ints) in
        [("single", false), ("half", false), ("double", false), ("int", true), ("long", true)]
    {
        assert_eq!(all[name], array(ints), "{name}");
    }
    let bytes = read_safetensors(&data("bytes.safetensors")).unwrap();
    assert_eq!(bytes["signed"], array(true));
    assert_eq!(bytes["unsigned"].values, [0.0, 255.0]);
    assert_eq!(bytes["truth"].values, [0.0, 1.0]);
    assert_eq!(all["none"], Array { shape: vec![0, 3], values: vec![] });
}

/// Integers that `f32` represents are read, others are rejected by value.
#[test]
fn integers_are_read_exactly_or_rejected() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.npy");
    let mut bytes = std::fs::read(data("array-i8.npy")).unwrap();
    let first = bytes.len() - 48;
    for (value, exact) in [
        (16_777_216_i64, true),
        (16_777_217, false),
        (-16_777_219, false),
        (1 << 40, true),
        (1_700_000_000_123, false),
        (i64::MAX, false),
        (i64::MIN, true),
    ] {
        bytes[first..first + 8].copy_from_slice(&value.to_le_bytes());
        std::fs::write(&file, &bytes).unwrap();
        match read_npy(&file) {
            Ok(array) => assert!(exact && array.values[0] == value as f32, "{value}"),
            Err(error) => assert!(!exact && error.to_string().contains(&value.to_string())),
        }
    }
}

#[test]
fn written_files_are_read_back() {
    let dir = tempfile::tempdir().unwrap();
    let values = vec![f32::MIN_POSITIVE, -0.0, f32::INFINITY, 1.5];
    let odd = Array { shape: vec![1, 4], values };
    let one = Array { shape: vec![], values: vec![7.0] };
    let (npy, file) = (dir.path().join("a.npy"), dir.path().join("a.safetensors"));
    for array in [&odd, &one] {
        write_npy(&npy, array).unwrap();
        assert_eq!(&read_npy(&npy).unwrap(), array);
    }
    let all = [("first.weight".to_owned(), odd), ("second".to_owned(), one)].into();
    write_safetensors(&file, &all).unwrap();
    assert_eq!(read_safetensors(&file).unwrap(), all);
    let wrong = Array { shape: vec![3], values: vec![1.0] };
    let error = write_npy(&npy, &wrong).unwrap_err();
    assert!(matches!(error, Error::Shape { values: 1, .. }), "{error}");
    let deep = Array { shape: vec![1; 30_000], values: vec![1.0] };
    let error = write_npy(&npy, &deep).unwrap_err();
    assert!(matches!(error, Error::Npy { .. }), "{error}");
}

#[test]
fn unreadable_files_are_rejected_by_name() {
    let message = |error: Error| {
        let text = error.to_string();
        assert!(
            text.contains("array-") || text.contains("shorts") || text.contains("cut"),
            "{text}"
        );
        text
    };
    assert_eq!(read_npy(&data("array-u1.npy")).unwrap().values[0], 255.0);
    let text = message(read_safetensors(&data("shorts.safetensors")).unwrap_err());
    assert!(text.contains("`shorts` has type I16"), "{text}");
    message(read_npy(&data("array-absent.npy")).unwrap_err());

    // Truncated files.
    let dir = tempfile::tempdir().unwrap();
    let cut = dir.path().join("cut");
    let whole = std::fs::read(data("array-f4.npy")).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&cut, &whole[..length]).unwrap();
        message(read_npy(&cut).unwrap_err());
    }
    // Headers with one changed byte: rejected, or parsed as what they then say.
    for (at, other) in (0..128).flat_map(|at| [(at, 0x01), (at, 0x0f), (at, 0x80)]) {
        let mut odd = whole.clone();
        odd[at] ^= other;
        std::fs::write(&cut, &odd).unwrap();
        if let Ok(array) = read_npy(&cut) {
            assert_eq!(array.values.len(), array.shape.iter().product::<usize>());
        }
    }
    let whole = std::fs::read(data("arrays.safetensors")).unwrap();
    for length in 0..whole.len() {
        std::fs::write(&cut, &whole[..length]).unwrap();
        message(read_safetensors(&cut).unwrap_err());
    }
}
