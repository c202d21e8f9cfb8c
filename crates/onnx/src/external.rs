//! External data: values of tensors that are stored in files next to the model, read together with
//! it.
//!
//! A model names such a file relative to itself. Only regular files in the model's folder are opened,
//! and reads are limited to the files' sizes.

use std::collections::HashMap;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use files::{Identity, RegularFile};

use crate::array::{self, Elem};
use crate::error::{Error, Result};
use crate::proto::{GraphProto, TensorProto};

/// Treatment of links in the names of external data files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Links {
    /// Followed wherever they lead: the model is the user's own. Download caches consist of links.
    Followed,
    /// Not followed out of the model's folder: the model comes from a client.
    Inside,
}

/// All tensors of a graph: initializers, and attributes of nodes, in the graphs inside it too.
fn tensors(graph: &mut GraphProto) -> Vec<&mut TensorProto> {
    let mut all: Vec<_> = graph.initializer.iter_mut().collect();
    for attribute in graph.node.iter_mut().flat_map(|node| &mut node.attribute) {
        all.extend(&mut attribute.t);
        all.extend(attribute.g.as_mut().into_iter().flat_map(tensors));
    }
    all
}

/// A file of external data, as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct External {
    pub path: PathBuf,
    pub identity: Identity,
    /// Number of bytes that were read.
    pub bytes: u64,
}

/// Reads the external values of a graph's tensors from `folder`, at most `most` bytes. Returns the
/// files that were read.
///
/// # Errors
/// A file is missing, is outside the folder, or is shorter than a tensor needs; the values exceed
/// `most`.
pub(crate) fn read_external(
    graph: &mut GraphProto,
    folder: &Path,
    links: Links,
    most: u64,
) -> Result<Vec<External>> {
    let (mut files, mut brought) = (HashMap::new(), 0_u64);
    for tensor in tensors(graph).into_iter().filter(|tensor| tensor.data_location != 0) {
        let want = |bytes: u64| {
            brought = brought.saturating_add(bytes);
            if brought <= most {
                return Ok(());
            }
            let what = format!("its external data has more than {most} bytes, the limit");
            Err(Error::Model { what })
        };
        let values = values(tensor, folder, links, &mut files, want)?;
        tensor.raw_data = values;
        tensor.data_location = 0;
    }
    let of = |file: ExternalFile| {
        let (identity, bytes) = (file.file.identity(), file.file.len() - file.left);
        External { path: file.path, identity, bytes }
    };
    Ok(files.into_values().map(of).collect())
}

/// An external data file, and the bytes that no tensor has claimed yet.
struct ExternalFile {
    path: PathBuf,
    file: RegularFile,
    left: u64,
}

fn values(
    tensor: &TensorProto,
    folder: &Path,
    links: Links,
    files: &mut HashMap<String, ExternalFile>,
    mut may: impl FnMut(u64) -> Result<()>,
) -> Result<Vec<u8>> {
    let wrong = |what: String| Error::Tensor { name: tensor.name.clone(), what };
    let entry = |key: &str| {
        tensor.external_data.iter().find(|entry| entry.key == key).map(|entry| &*entry.value)
    };
    let Some(location) = entry("location") else {
        return Err(wrong("its values are in another file, which is not named".into()));
    };
    let number = |key: &str| {
        entry(key).map(|text| {
            text.parse::<u64>()
                .map_err(|_| wrong(format!("{key} `{text}` is not a number of bytes")))
        })
    };
    let elem = Elem::named(tensor.data_type).map_err(&wrong)?;
    let shape = array::shape(&tensor.dims).map_err(&wrong)?;
    let want = elem.bytes(shape.iter().product()) as u64;
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
            open(folder, location, links).map_err(|e| match e {
                Error::Model { what } => wrong(what),
                other => other,
            })?,
        );
    }
    let Some(file) = files.get_mut(location) else { unreachable!("put there before") };
    let length = file.file.len();
    if offset.checked_add(want).is_none_or(|end| end > length) {
        return Err(wrong(format!(
            "{want} bytes from byte {offset} of {location}, which has {length}"
        )));
    }
    let Some(left) = file.left.checked_sub(want) else {
        return Err(wrong(format!(
            "tensors together want more than the {length} bytes of {location}"
        )));
    };
    file.left = left;
    may(want)?;
    let mut bytes = vec![0; want as usize];
    let read = file.file.file().read_exact_at(&mut bytes, offset);
    read.map_err(|source| Error::Io { path: file.path.clone(), source })?;
    Ok(bytes)
}

/// Opens the file of that name in a folder.
fn open(folder: &Path, location: &str, links: Links) -> Result<ExternalFile> {
    let refused =
        |why: &str| Error::Model { what: format!("its values are in `{location}`, {why}") };
    let outside = "and only files in the model's folder are read";
    if !files::has_only_names(Path::new(location)) {
        return Err(refused(outside));
    }
    let path = folder.join(location);
    let opened = match links {
        Links::Followed => RegularFile::open(&path),
        Links::Inside => RegularFile::open_beneath(folder, Path::new(location)),
    };
    let file = opened.map_err(|source| match source.kind() {
        io::ErrorKind::InvalidInput => refused("which is not a regular file"),
        io::ErrorKind::CrossesDevices => refused(outside),
        _ => Error::Io { path: path.clone(), source },
    })?;
    let left = file.len();
    Ok(ExternalFile { path, file, left })
}
