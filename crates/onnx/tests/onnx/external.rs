//! Weights in a file beside the model: read from its folder, and from nowhere else.

use std::fs;

use device::cpu::Cpu;
use onnx::{Array, Elem, Model, Network};
use tempfile::TempDir;

use crate::told;

/// A message's field: key, length, bytes.
fn field(number: u8, bytes: &[u8]) -> Vec<u8> {
    let mut all = vec![number << 3 | 2];
    // A length of up to two groups of seven bits.
    let length = bytes.len();
    if length < 128 {
        all.push(length as u8);
    } else {
        all.extend([length as u8 | 128, (length >> 7) as u8]);
    }
    all.extend(bytes);
    all
}

/// `y = x + w + v`, all `[2, 2]`, the last two in files: each with what the model says of where.
fn model(w: &[(&str, &str)], v: &[(&str, &str)]) -> Vec<u8> {
    let tensor = |name: &[u8], said: &[(&str, &str)]| {
        let said = said.iter().flat_map(|(key, value)| {
            field(13, &[field(1, key.as_bytes()), field(2, value.as_bytes())].concat())
        });
        let said: Vec<u8> = said.collect();
        [&[8, 2, 8, 2, 16, 1][..], &field(8, name), &said, &[112, 1]].concat()
    };
    let node = |a: &[u8], b: &[u8], out: &[u8]| {
        field(1, &[field(1, a), field(1, b), field(2, out), field(4, b"Add")].concat())
    };
    let shape = [&[8, 1][..], &field(2, &[0x0a, 2, 8, 2, 0x0a, 2, 8, 2])].concat();
    let info = |name: &[u8]| [field(1, name), field(2, &field(1, &shape))].concat();
    let graph = [
        node(b"x", b"w", b"s"),
        node(b"s", b"v", b"y"),
        field(5, &tensor(b"w", w)),
        field(5, &tensor(b"v", v)),
        field(11, &info(b"x")),
        field(12, &info(b"y")),
    ];
    [field(7, &graph.concat()), field(8, &[16, 17])].concat()
}

/// What the model answers to zeroes, or why it does not; `data` holds 1 to 8.
fn answer(w: &[(&str, &str)], v: &[(&str, &str)]) -> Result<Vec<f32>, String> {
    let dir = TempDir::new().unwrap();
    let folder = dir.path().join("models");
    fs::create_dir_all(folder.join("part")).unwrap();
    let data: Vec<u8> = (1..9).flat_map(|i| (i as f32).to_le_bytes()).collect();
    fs::write(folder.join("data"), &data).unwrap();
    fs::write(folder.join("part/data"), &data).unwrap();
    fs::write(dir.path().join("secret"), &data).unwrap();
    let path = folder.join("model.onnx");
    fs::write(&path, model(w, v)).unwrap();
    let model =
        Model::read(&path).map_err(|e| told(&e).replace(dir.path().to_str().unwrap(), ""))?;
    let x = Array { elem: Elem::F32, shape: vec![2, 2], values: vec![0.0; 4] };
    let inputs = [("x".to_owned(), x)].into();
    let mut network = Network::of(&model, &Cpu::detect(), &inputs).unwrap();
    Ok(network.run(&inputs).unwrap()["y"].values.clone())
}

#[test]
fn weights_in_files_beside_the_model_are_read() {
    let all = [("location", "data"), ("offset", "16"), ("length", "16")];
    let other = [("location", "part/data")];
    assert_eq!(answer(&all, &other), Ok(vec![6.0, 8.0, 10.0, 12.0]));
    assert_eq!(answer(&[("location", "data")], &all), Ok(vec![6.0, 8.0, 10.0, 12.0]));
}

#[test]
fn files_that_are_elsewhere_or_too_short_are_refused_by_name() {
    let good = [("location", "data")];
    for (said, expected) in [
        (vec![], "tensor `w`: its values are in another file, which is not named"),
        (
            vec![("location", "../secret")],
            "tensor `w`: its values are in `../secret`, and only files in the model's folder are read",
        ),
        (
            vec![("location", "/etc/passwd")],
            "tensor `w`: its values are in `/etc/passwd`, and only files in the model's folder are read",
        ),
        (vec![("location", "part")], "tensor `w`: its values are in `part`, which is no file"),
        (vec![("location", "none")], "/models/none: No such file or directory (os error 2)"),
        (
            vec![("location", "data"), ("offset", "20")],
            "tensor `w`: 16 bytes from byte 20 of data, which has 32",
        ),
        (
            vec![("location", "data"), ("offset", "18446744073709551615")],
            "tensor `w`: 16 bytes from byte 18446744073709551615 of data, which has 32",
        ),
        (
            vec![("location", "data"), ("offset", "-1")],
            "tensor `w`: offset `-1` is no number of bytes",
        ),
        (
            vec![("location", "data"), ("length", "12")],
            "tensor `w`: 12 bytes in data, and [2, 2] of float has 16",
        ),
    ] {
        assert_eq!(answer(&said, &good).unwrap_err(), expected, "{said:?}");
    }
}

/// A small file cannot make a model take more memory than it has.
#[test]
fn no_more_is_read_than_the_files_have() {
    // Two tensors of 16 bytes are all of 32, whichever they are.
    assert!(answer(&[("location", "data")], &[("location", "data")]).is_ok());
    let bytes = model(&[("location", "data")], &[("location", "data")]);
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("data"), [0; 20]).unwrap();
    let path = dir.path().join("model.onnx");
    fs::write(&path, &bytes).unwrap();
    let error = told(&Model::read(&path).unwrap_err());
    assert_eq!(error, "tensor `v`: tensors together want more than the 20 bytes of data");
    let error = Model::parse(&bytes).map(|model| {
        let x = Array { elem: Elem::F32, shape: vec![2, 2], values: vec![0.0; 4] };
        told(&Network::of(&model, &Cpu::detect(), &[("x".to_owned(), x)].into()).err().unwrap())
    });
    assert!(error.unwrap().starts_with("tensor `w`: its values are in data, and only"));
}
