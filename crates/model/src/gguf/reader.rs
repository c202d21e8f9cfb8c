//! An open GGUF model: one file, or all shards of a split model.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use super::error::{Error, SplitDefect};
use super::header::{self, Header};
use super::metadata::Metadata;
use super::source::Source;
use files::RegularFile;
use plan::DType;

/// An open GGUF model with a checked header. Threads may share it, since reads are positional.
#[derive(Debug)]
pub struct Gguf {
    shards: Vec<Source>,
    metadata: Metadata,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TensorInfo {
    /// Name, unique in the model.
    pub name: String,
    /// Shape, outermost dimension first. Files have the row first: `[in, out]` there is `[out, in]` here. Never
    /// empty, no dimension is zero.
    pub shape: Vec<usize>,
    pub dtype: DType,
    pub bytes: u64,
    shard: usize,
    offset: u64,
}

impl TensorInfo {
    #[must_use]
    pub fn elements(&self) -> u64 {
        self.shape.iter().map(|dim| *dim as u64).product()
    }
}

impl Gguf {
    /// Opens a model. `path` may be any shard of a split model: all are opened and checked, and the first provides
    /// the metadata.
    ///
    /// # Errors
    /// [`Error::Open`] and [`Error::Read`] from the system; [`Error::Malformed`] and [`Error::Split`] for files that
    /// are invalid or not supported.
    pub fn open(path: impl AsRef<Path>) -> Result<Self, Error> {
        let path = path.as_ref();
        let source = Source::open(path)?;
        let header = header::parse(&source)?;
        let split = Split::from_metadata(&header.metadata)?;
        if split.count <= 1 {
            return Self::join(vec![(source, header)]);
        }
        let naming = Naming::parse(path, split.count).ok_or_else(|| Error::Split {
            path: path.to_owned(),
            defect: SplitDefect::Name { count: split.count },
        })?;
        let mut shards = Vec::new();
        for number in 0..split.count {
            let source = Source::open(&naming.path(number))?;
            let header = header::parse(&source)?;
            let found = Split::from_metadata(&header.metadata)?;
            let fail = |defect| Error::Split { path: source.path.clone(), defect };
            if found.count != split.count {
                let defect = SplitDefect::ShardCount { found: found.count, expected: split.count };
                return Err(fail(defect));
            }
            if found.number != number {
                return Err(fail(SplitDefect::Number { found: found.number, expected: number }));
            }
            shards.push((source, header));
        }
        Self::join(shards)
    }

    /// Reads a file in memory, which cannot be a shard of a split model.
    ///
    /// # Errors
    /// As [`Gguf::open`].
    pub fn from_bytes(bytes: Vec<u8>) -> Result<Self, Error> {
        let source = Source::memory(bytes);
        let header = header::parse(&source)?;
        let count = Split::from_metadata(&header.metadata)?.count;
        if count > 1 {
            let defect = SplitDefect::Name { count };
            return Err(Error::Split { path: source.path, defect });
        }
        Self::join(vec![(source, header)])
    }

    fn join(parts: Vec<(Source, Header)>) -> Result<Self, Error> {
        let mut model = Self {
            shards: Vec::with_capacity(parts.len()),
            metadata: Metadata::default(),
            tensors: Vec::new(),
            by_name: HashMap::new(),
        };
        for (shard, (source, header)) in parts.into_iter().enumerate() {
            for entry in header.tensors {
                let index = model.tensors.len();
                if model.by_name.insert(entry.name.clone(), index).is_some() {
                    let defect = SplitDefect::Duplicate { tensor: entry.name };
                    return Err(Error::Split { path: source.path, defect });
                }
                model.tensors.push(TensorInfo {
                    name: entry.name,
                    shape: entry.shape,
                    dtype: entry.dtype,
                    bytes: entry.bytes,
                    shard,
                    offset: entry.offset,
                });
            }
            if shard == 0 {
                model.metadata = header.metadata;
            }
            model.shards.push(source);
        }
        let found = model.tensors.len() as u64;
        match model.metadata.u64_opt("split.tensors.count")? {
            Some(expected) if expected != found => Err(Error::Split {
                path: model.path().to_owned(),
                defect: SplitDefect::TensorCount { found, expected },
            }),
            _ => Ok(model),
        }
    }

    /// The metadata; that of the first shard of a split model.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors, in the order of the files.
    #[must_use]
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&TensorInfo> {
        self.by_name.get(name).and_then(|index| self.tensors.get(*index))
    }

    /// Fills `buf` with the tensor's bytes from byte `at_byte`.
    ///
    /// # Errors
    /// [`Error::OutsideTensor`] for a range beyond the tensor, [`Error::Read`] from the system,
    /// [`Error::Malformed`] if the file was truncated since it was opened.
    pub fn read(&self, tensor: &TensorInfo, at_byte: u64, buf: &mut [u8]) -> Result<(), Error> {
        let inside = at_byte.checked_add(buf.len() as u64).is_some_and(|end| end <= tensor.bytes);
        match self.shards.get(tensor.shard) {
            Some(source) if inside => source
                .read(tensor.offset + at_byte, buf, || format!("data of tensor `{}`", tensor.name)),
            _ => Err(Error::OutsideTensor {
                tensor: tensor.name.clone(),
                at: at_byte,
                len: buf.len(),
                bytes: tensor.bytes,
            }),
        }
    }

    /// Drops the files from the page cache. Needed for models whose file and weights do not fit in memory together.
    pub fn forget(&self) {
        self.shards.iter().for_each(Source::forget);
    }

    #[must_use]
    pub fn file_bytes(&self) -> u64 {
        self.shards.iter().map(|source| source.len).sum()
    }

    /// All files of the model, as they were opened.
    pub fn files(&self) -> impl Iterator<Item = &RegularFile> {
        self.shards.iter().filter_map(Source::file)
    }

    /// Paths of all files of the model.
    pub fn paths(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.shards.iter().map(|source| &*source.path)
    }

    /// Path of the file, or of the first shard.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.shards.first().map_or(Path::new(""), |source| &source.path)
    }
}

struct Split {
    /// Counted from 0.
    number: u64,
    count: u64,
}

impl Split {
    fn from_metadata(metadata: &Metadata) -> Result<Self, Error> {
        let number = |key| Ok(metadata.u64_opt(key)?.unwrap_or(0));
        Ok(Self { number: number("split.no")?, count: number("split.count")? })
    }
}

/// The pattern of shard names: `NAME-00001-of-00003.gguf`.
struct Naming {
    prefix: PathBuf,
    count: u64,
}

impl Naming {
    /// The pattern of `path`, if it is the name of one of `count` shards.
    fn parse(path: &Path, count: u64) -> Option<Self> {
        let name = path.file_name()?.to_str()?;
        let rest = name.strip_suffix(&format!("-of-{count:05}.gguf"))?;
        let (prefix, number) = rest.rsplit_once('-')?;
        let digits = number.len() == 5 && number.bytes().all(|b| b.is_ascii_digit());
        digits.then(|| Self { prefix: path.with_file_name(prefix), count })
    }

    /// The path of shard `number`, counted from 0.
    fn path(&self, number: u64) -> PathBuf {
        let mut path = self.prefix.clone().into_os_string();
        path.push(format!("-{:05}-of-{:05}.gguf", number + 1, self.count));
        path.into()
    }
}
