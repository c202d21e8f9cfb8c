//! External data: read from the model's folder only.

use std::fs;
use std::os::unix::fs::symlink;

use device::cpu::Cpu;
use files::RegularFile;
use onnx::{Array, Elem, Links, Model, Network};
use orind_testing::external::model;
use tempfile::TempDir;

use crate::report;

/// Output for zero inputs, or the error; `data` contains 1 to 8.
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
        Model::read(&path).map_err(|e| report(&e).replace(dir.path().to_str().unwrap(), ""))?;
    let x = Array { elem: Elem::F32, shape: vec![2, 2], values: vec![0.0; 4] };
    let inputs = [("x".to_owned(), x)].into();
    let mut network = Network::of(&model, &Cpu::detect(), &inputs).unwrap();
    Ok(network.run(&inputs).unwrap()["y"].values.clone())
}

#[test]
fn external_data_is_limited() {
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("data"), [0; 32]).unwrap();
    let path = dir.path().join("model.onnx");
    fs::write(&path, model(&[("location", "data")], &[("location", "data"), ("offset", "16")]))
        .unwrap();
    let file = RegularFile::open(&path).unwrap();
    let read = |most| {
        let file = RegularFile::open(&path).unwrap();
        Model::read_from(&file, &path, Links::Inside, most)
    };
    let model = read(32).unwrap();
    assert_eq!(model.external()[0].path, dir.path().join("data"));
    assert!(file.is_unchanged());
    let refused = read(31).err().unwrap();
    assert!(report(&refused).contains("more than 31 bytes, the limit"), "{refused}");
}

/// A client that may use the daemon, but not read its files, must not read them through links of its own.
#[test]
fn links_of_clients_stay_in_the_folder() {
    let dir = TempDir::new().unwrap();
    let (folder, secret) = (dir.path().join("client"), dir.path().join("secret"));
    fs::create_dir_all(&folder).unwrap();
    fs::create_dir_all(&secret).unwrap();
    fs::write(secret.join("data"), [0; 32]).unwrap();
    symlink(secret.join("data"), folder.join("file")).unwrap();
    symlink("../secret", folder.join("folder")).unwrap();
    let path = folder.join("model.onnx");
    for location in ["file", "folder/data"] {
        let at = [("location", location)];
        fs::write(&path, model(&at, &at)).unwrap();
        let read =
            |links| Model::read_from(&RegularFile::open(&path).unwrap(), &path, links, u64::MAX);
        assert!(read(Links::Followed).is_ok(), "{location}");
        let error = report(&read(Links::Inside).unwrap_err());
        assert!(error.ends_with("and only files in the model's folder are read"), "{error}");
    }
}

#[test]
fn external_data_is_read() {
    let all = [("location", "data"), ("offset", "16"), ("length", "16")];
    let other = [("location", "part/data")];
    assert_eq!(answer(&all, &other), Ok(vec![6.0, 8.0, 10.0, 12.0]));
    assert_eq!(answer(&[("location", "data")], &all), Ok(vec![6.0, 8.0, 10.0, 12.0]));
}

#[test]
fn external_files_outside_the_folder_or_too_short_are_rejected() {
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
        (
            vec![("location", "part")],
            "tensor `w`: its values are in `part`, which is not a regular file",
        ),
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
            "tensor `w`: offset `-1` is not a number of bytes",
        ),
        (
            vec![("location", "data"), ("length", "12")],
            "tensor `w`: 12 bytes in data, and [2, 2] of float has 16",
        ),
    ] {
        assert_eq!(answer(&said, &good).unwrap_err(), expected, "{said:?}");
    }
}

/// A small file cannot make a model use more memory than it has bytes.
#[test]
fn tensors_cannot_share_bytes_of_external_files() {
    // Two tensors of 16 bytes exhaust a file of 32, even if they overlap.
    assert!(answer(&[("location", "data")], &[("location", "data")]).is_ok());
    let bytes = model(&[("location", "data")], &[("location", "data")]);
    let dir = TempDir::new().unwrap();
    fs::write(dir.path().join("data"), [0; 20]).unwrap();
    let path = dir.path().join("model.onnx");
    fs::write(&path, &bytes).unwrap();
    let error = report(&Model::read(&path).unwrap_err());
    assert_eq!(error, "tensor `v`: tensors together want more than the 20 bytes of data");
    let error = Model::parse(&bytes).map(|model| {
        let x = Array { elem: Elem::F32, shape: vec![2, 2], values: vec![0.0; 4] };
        report(&Network::of(&model, &Cpu::detect(), &[("x".to_owned(), x)].into()).err().unwrap())
    });
    assert!(error.unwrap().contains("tensor `w`: its values are in data, and only"));
}
