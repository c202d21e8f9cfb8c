//! Values of tensors that lie in files beside the model: brought in as the model is read.
//!
//! A model names such a file relative to itself. Nothing outside of its folder is opened, and no more is read than the
//! files have.

use std::collections::HashMap;
use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};

use super::array::{self, Elem};
use super::error::{Error, Result};
use super::proto::{GraphProto, TensorProto};

/// Brings the values of a graph's tensors in, whose model lies in this folder; at most so many bytes of them. Gives the
/// files that they come from.
///
/// # Errors
/// A file is not there or lies elsewhere, or has not the bytes that a tensor wants of it; they are more than `most`.
pub(crate) fn bring(graph: &mut GraphProto, folder: &Path, most: u64) -> Result<Vec<PathBuf>> {
    let (mut files, mut brought) = (HashMap::new(), 0_u64);
    let external = graph.initializer.iter_mut().filter(|tensor| tensor.data_location != 0);
    for tensor in external {
        let want = |bytes: u64| {
            brought = brought.saturating_add(bytes);
            if brought <= most {
                return Ok(());
            }
            let what = format!(
                "its weights in files beside it have more than the {most} bytes that there is room for"
            );
            Err(Error::Model { what })
        };
        let values = values(tensor, folder, &mut files, want)?;
        tensor.raw_data = values;
        tensor.data_location = 0;
    }
    Ok(files.into_values().map(|beside| beside.path).collect())
}

/// A file that tensors are read from, its length, and how much of it no tensor has had yet.
struct Beside {
    path: PathBuf,
    file: File,
    length: u64,
    left: u64,
}

fn values(
    tensor: &TensorProto,
    folder: &Path,
    files: &mut HashMap<String, Beside>,
    mut may: impl FnMut(u64) -> Result<()>,
) -> Result<Vec<u8>> {
    let wrong = |what: String| Error::Tensor { name: tensor.name.clone(), what };
    let said = |key: &str| {
        tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| &*entry.value)
    };
    let Some(location) = said("location") else {
        return Err(wrong("its values are in another file, which is not named".into()));
    };
    let number = |key: &str| {
        said(key).map(|text| {
            text.parse::<u64>().map_err(|_| wrong(format!("{key} `{text}` is no number of bytes")))
        })
    };
    let Some(elem) = Elem::of(tensor.data_type) else {
        return Err(wrong(format!("element type {} is not supported", tensor.data_type)));
    };
    let shape = array::shape(&tensor.dims).map_err(&wrong)?;
    let want = (shape.iter().product::<usize>() * elem.bytes()) as u64;
    if let Some(length) = number("length").transpose()?.filter(|length| *length != want) {
        let elem = elem.name();
        return Err(wrong(format!(
            "{length} bytes in {location}, and {shape:?} of {elem} has {want}"
        )));
    }
    let offset = number("offset").transpose()?.unwrap_or(0);
    if !files.contains_key(location) {
        files.insert(
            location.to_owned(),
            open(folder, location).map_err(|e| match e {
                Error::Model { what } => wrong(what),
                other => other,
            })?,
        );
    }
    let Some(beside) = files.get_mut(location) else { unreachable!("put there before") };
    let length = beside.length;
    if offset.checked_add(want).is_none_or(|end| end > length) {
        return Err(wrong(format!(
            "{want} bytes from byte {offset} of {location}, which has {length}"
        )));
    }
    let Some(left) = beside.left.checked_sub(want) else {
        return Err(wrong(format!(
            "tensors together want more than the {length} bytes of {location}"
        )));
    };
    beside.left = left;
    may(want)?;
    let mut bytes = vec![0; want as usize];
    let read = beside.file.read_exact_at(&mut bytes, offset);
    read.map_err(|source| Error::Io { path: beside.path.clone(), source })?;
    Ok(bytes)
}

/// The file of that name in a folder.
fn open(folder: &Path, location: &str) -> Result<Beside> {
    let inside = Path::new(location).components().all(|part| matches!(part, Component::Normal(_)));
    if !inside || location.is_empty() {
        let what = format!(
            "its values are in `{location}`, and only files in the model's folder are read"
        );
        return Err(Error::Model { what });
    }
    let path = folder.join(location);
    let failed = |source| Error::Io { path: path.clone(), source };
    // A pipe would be waited for.
    let told = fs::metadata(&path).map_err(failed)?;
    if !told.is_file() {
        return Err(Error::Model {
            what: format!("its values are in `{location}`, which is no file"),
        });
    }
    let file = File::open(&path).map_err(failed)?;
    let length = told.len();
    Ok(Beside { path, file, length, left: length })
}
