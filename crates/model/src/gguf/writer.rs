//! Writes a file: the header first, then tensor data at any position, from any thread.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use nix::fcntl::{AT_FDCWD, AtFlags};
use nix::unistd::linkat;

use super::error::{Error, WriteDefect};
use super::format::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_DIMS};
use super::metadata::{Array, Value, ValueType};
use super::reader::Gguf;
use plan::DType;

/// Longest key written, bytes (the format's limit).
const MAX_KEY: usize = 65_535;

/// Longest tensor name written, bytes (ggml's limit is 64 with the terminating zero).
const MAX_TENSOR_NAME: usize = 63;

/// Collects metadata and tensor declarations; [`Writer::begin`] then writes the header.
///
/// Writes version 3. Keys and tensors are written in the order of their addition.
#[derive(Debug)]
pub struct Writer {
    path: PathBuf,
    metadata: Vec<(String, Value)>,
    tensors: Vec<Declared>,
    names: HashSet<String>,
    alignment: u32,
}

#[derive(Debug)]
struct Declared {
    name: String,
    shape: Vec<usize>,
    dtype: DType,
    /// ggml's number of the type.
    number: u32,
    bytes: u64,
}

/// A declared tensor: its index in the order of declaration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TensorId(usize);

impl Writer {
    /// A writer for `path`. [`Writer::begin`] creates the file.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self {
            path: path.into(),
            metadata: Vec::new(),
            tensors: Vec::new(),
            names: HashSet::new(),
            alignment: DEFAULT_ALIGNMENT,
        }
    }

    /// Adds a metadata key.
    ///
    /// # Errors
    /// [`Error::Content`] for a key that was added before, a name too long, or a
    /// `general.alignment` that is not a `u32` power of two.
    pub fn metadata(&mut self, key: &str, value: impl Into<Value>) -> Result<&mut Self, Error> {
        let value = value.into();
        if !(1..=MAX_KEY).contains(&key.len()) {
            let defect = WriteDefect::Name { len: key.len(), limit: MAX_KEY };
            return Err(self.fail(key, defect));
        }
        if self.metadata.iter().any(|(k, _)| k == key) {
            return Err(self.fail(key, WriteDefect::Duplicate));
        }
        if key == ALIGNMENT_KEY {
            match value {
                Value::U32(n) if n.is_power_of_two() => self.alignment = n,
                _ => {
                    let expected = "a UINT32 power of two";
                    let defect = WriteDefect::Value { expected, found: value.value_type().name() };
                    return Err(self.fail(key, defect));
                }
            }
        }
        self.metadata.push((key.to_owned(), value));
        Ok(self)
    }

    /// Declares a tensor; `shape` has the outermost dimension first.
    ///
    /// # Errors
    /// [`Error::Content`] for a name that was declared before or is too long for ggml, or a shape
    /// that the type cannot store.
    pub fn tensor(&mut self, name: &str, shape: &[usize], dtype: DType) -> Result<TensorId, Error> {
        if !(1..=MAX_TENSOR_NAME).contains(&name.len()) {
            let defect = WriteDefect::Name { len: name.len(), limit: MAX_TENSOR_NAME };
            return Err(self.fail(name, defect));
        }
        let (Some(bytes), Some(number)) = (stored_bytes(shape, dtype), dtype.ggml()) else {
            return Err(self.fail(name, WriteDefect::Shape { shape: shape.to_vec(), dtype }));
        };
        if !self.names.insert(name.to_owned()) {
            return Err(self.fail(name, WriteDefect::Duplicate));
        }
        let name = name.to_owned();
        self.tensors.push(Declared { name, shape: shape.to_vec(), dtype, number, bytes });
        Ok(TensorId(self.tensors.len() - 1))
    }

    /// Size of the complete file.
    ///
    /// # Errors
    /// [`Error::Content`] if the sizes overflow.
    pub fn file_bytes(&self) -> Result<u64, Error> {
        Ok(self.layout()?.1)
    }

    /// Writes the header to a temporary file in the target's folder and reserves space for the data.
    ///
    /// # Errors
    /// [`Error::Write`] from the system; [`Error::Content`] if the sizes overflow.
    pub fn begin(self) -> Result<DataWriter, Error> {
        let (header, end) = self.layout()?;
        let mut offset = (header.len() as u64).next_multiple_of(self.alignment.into());
        let mut slots = Vec::with_capacity(self.tensors.len());
        for tensor in &self.tensors {
            slots.push(Slot {
                name: tensor.name.clone(),
                offset,
                bytes: tensor.bytes,
                written: AtomicU64::new(0),
            });
            offset = self.padded_end(offset, tensor)?;
        }

        let temporary = Temporary::create(&self.path)?;
        let write = |cause| Error::Write { path: self.path.clone(), cause };
        temporary.file.write_all_at(&header, 0).map_err(write)?;
        temporary.file.set_len(end).map_err(write)?;
        Ok(DataWriter { path: self.path, temporary, slots })
    }

    /// The header, and the size of the file.
    fn layout(&self) -> Result<(Vec<u8>, u64), Error> {
        let header = self.header()?;
        let data = (header.len() as u64).next_multiple_of(self.alignment.into());
        let end = self.tensors.iter().try_fold(data, |at, tensor| self.padded_end(at, tensor))?;
        Ok((header, end))
    }

    fn header(&self) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        out.extend(MAGIC);
        out.extend(3_u32.to_le_bytes());
        out.extend((self.tensors.len() as u64).to_le_bytes());
        out.extend((self.metadata.len() as u64).to_le_bytes());
        for (key, value) in &self.metadata {
            put_str(&mut out, key);
            put_type(&mut out, value.value_type());
            put_value(&mut out, value);
        }
        let mut offset = 0;
        for tensor in &self.tensors {
            put_str(&mut out, &tensor.name);
            out.extend((tensor.shape.len() as u32).to_le_bytes());
            for dim in tensor.shape.iter().rev() {
                out.extend((*dim as u64).to_le_bytes());
            }
            out.extend(tensor.number.to_le_bytes());
            out.extend(u64::to_le_bytes(offset));
            offset = self.padded_end(offset, tensor)?;
        }
        Ok(out)
    }

    /// Offset of the data after `tensor`, if `tensor` begins at `start`.
    fn padded_end(&self, start: u64, tensor: &Declared) -> Result<u64, Error> {
        start
            .checked_add(tensor.bytes)
            .and_then(|end| end.checked_next_multiple_of(self.alignment.into()))
            .ok_or_else(|| {
                let (shape, dtype) = (tensor.shape.clone(), tensor.dtype);
                self.fail(&tensor.name, WriteDefect::Shape { shape, dtype })
            })
    }

    fn fail(&self, name: &str, defect: WriteDefect) -> Error {
        Error::Content { path: self.path.clone(), name: name.to_owned(), defect }
    }
}

/// Bytes of a tensor, or `None` if the shape cannot be stored.
fn stored_bytes(shape: &[usize], dtype: DType) -> Option<u64> {
    let row = *shape.last()?;
    let storable = shape.len() <= MAX_DIMS as usize
        && !shape.contains(&0)
        && row.is_multiple_of(dtype.block_len());
    let elements = shape.iter().try_fold(1_u64, |n, dim| n.checked_mul(*dim as u64))?;
    dtype.size_of(elements).filter(|_| storable)
}

/// A file with a header, whose tensor data is being written.
///
/// Dropping it before [`DataWriter::finish`] removes the file.
#[derive(Debug)]
pub struct DataWriter {
    path: PathBuf,
    temporary: Temporary,
    slots: Vec<Slot>,
}

#[derive(Debug)]
struct Slot {
    name: String,
    offset: u64,
    bytes: u64,
    written: AtomicU64,
}

impl DataWriter {
    /// Path that opens the file while this writer exists.
    #[must_use]
    pub fn unfinished(&self) -> &Path {
        &self.temporary.path
    }

    /// Writes `data` at byte `at` of a tensor. Threads may write concurrently; each byte must be written exactly
    /// once.
    ///
    /// # Errors
    /// [`Error::OutsideTensor`] for a range beyond the tensor, [`Error::Write`] from the system.
    pub fn write(&self, tensor: TensorId, at: u64, data: &[u8]) -> Result<(), Error> {
        let len = data.len();
        let outside = |tensor: &str, bytes| Error::OutsideTensor {
            tensor: tensor.to_owned(),
            at,
            len,
            bytes,
        };
        let Some(slot) = self.slots.get(tensor.0) else {
            return Err(outside("(of another file)", 0));
        };
        if at.checked_add(len as u64).is_none_or(|end| end > slot.bytes) {
            return Err(outside(&slot.name, slot.bytes));
        }
        self.temporary.file.write_all_at(data, slot.offset + at).map_err(|e| self.failed(e))?;
        slot.written.fetch_add(len as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Checks that every tensor is complete, syncs the file, and renames it to its final name, replacing any file
    /// there.
    ///
    /// # Errors
    /// [`Error::Content`] for a tensor that is not complete, [`Error::Write`] from the system.
    pub fn finish(mut self) -> Result<(), Error> {
        for slot in &mut self.slots {
            let written = *slot.written.get_mut();
            if written != slot.bytes {
                return Err(Error::Content {
                    path: self.path,
                    name: slot.name.clone(),
                    defect: WriteDefect::Bytes { written, bytes: slot.bytes },
                });
            }
        }
        self.temporary.file.sync_all().map_err(|e| self.failed(e))?;
        self.temporary.publish(&self.path).map_err(|e| self.failed(e))?;
        File::open(folder(&self.path)).and_then(|dir| dir.sync_all()).map_err(|e| self.failed(e))
    }

    /// Opens the unfinished file for reading, with zeroes in place of missing data, and removes its name.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn outline(self) -> Result<Gguf, Error> {
        Gguf::open(&self.temporary.path)
    }

    fn failed(&self, cause: io::Error) -> Error {
        Error::Write { path: self.path.clone(), cause }
    }
}

/// A temporary file without a name, so that the kernel frees it however the process ends. On file systems without
/// such files it has a name, which is removed on drop.
#[derive(Debug)]
struct Temporary {
    /// Path that opens the file.
    path: PathBuf,
    file: File,
    /// True if the name of `path` is to be removed.
    named: bool,
}

impl Temporary {
    /// Creates a file in the folder of `target`, because renames cannot cross file systems.
    fn create(target: &Path) -> Result<Self, Error> {
        let nameless =
            OpenOptions::new().write(true).custom_flags(libc::O_TMPFILE).open(folder(target));
        if let Ok(file) = nameless {
            let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
            if path.exists() {
                return Ok(Self { path, file, named: false });
            }
        }
        let path = name_beside(target);
        let file = OpenOptions::new()
            .write(true)
            .create_new(true)
            .open(&path)
            .map_err(|cause| Error::Write { path: path.clone(), cause })?;
        Ok(Self { path, file, named: true })
    }

    /// Gives the file its name, replacing any file there.
    fn publish(&mut self, target: &Path) -> io::Result<()> {
        if !self.named {
            // A link replaces no file.
            let name = name_beside(target);
            linkat(AT_FDCWD, &self.path, AT_FDCWD, &name, AtFlags::AT_SYMLINK_FOLLOW)?;
            self.path = name;
            self.named = true;
        }
        fs::rename(&self.path, target)?;
        self.named = false;
        Ok(())
    }
}

/// Unused name in the folder of `target`.
fn name_beside(target: &Path) -> PathBuf {
    static SERIAL: AtomicU64 = AtomicU64::new(0);
    let name = target.file_name().unwrap_or_default().to_string_lossy();
    let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
    folder(target).join(format!(".{name}.{}-{serial}.tmp", std::process::id()))
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if self.named {
            // Best effort: the original error is the one to report.
            drop(fs::remove_file(&self.path));
        }
    }
}

fn folder(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if folder != Path::new("") => folder,
        _ => Path::new("."),
    }
}

fn put_str(out: &mut Vec<u8>, text: &str) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text.as_bytes());
}

fn put_type(out: &mut Vec<u8>, kind: ValueType) {
    out.extend((kind as u32).to_le_bytes());
}

fn put_value(out: &mut Vec<u8>, value: &Value) {
    match value {
        Value::U8(v) => out.extend(v.to_le_bytes()),
        Value::I8(v) => out.extend(v.to_le_bytes()),
        Value::U16(v) => out.extend(v.to_le_bytes()),
        Value::I16(v) => out.extend(v.to_le_bytes()),
        Value::U32(v) => out.extend(v.to_le_bytes()),
        Value::I32(v) => out.extend(v.to_le_bytes()),
        Value::F32(v) => out.extend(v.to_le_bytes()),
        Value::Bool(v) => out.push((*v).into()),
        Value::Str(v) => put_str(out, v),
        Value::Array(v) => put_array(out, v),
        Value::U64(v) => out.extend(v.to_le_bytes()),
        Value::I64(v) => out.extend(v.to_le_bytes()),
        Value::F64(v) => out.extend(v.to_le_bytes()),
    }
}

fn put_array(out: &mut Vec<u8>, array: &Array) {
    put_type(out, array.element_type());
    out.extend((array.len() as u64).to_le_bytes());
    match array {
        Array::U8(v) => out.extend(v),
        Array::I8(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::U16(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I16(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::U32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::F32(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::Bool(v) => out.extend(v.iter().map(|x| u8::from(*x))),
        Array::Str(v) => v.iter().for_each(|x| put_str(out, x)),
        Array::Array(v) => v.iter().for_each(|x| put_array(out, x)),
        Array::U64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::I64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
        Array::F64(v) => out.extend(v.iter().flat_map(|x| x.to_le_bytes())),
    }
}
