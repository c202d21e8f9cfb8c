//! Parses the header of a file: metadata and tensor directory. Checks every number.

use std::collections::HashSet;
use std::fmt;

use super::error::{Defect, Error};
use super::format::{
    ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC, MAX_DEPTH, MAX_DIMS, MAX_HEADER, MAX_NAME,
};
use super::metadata::{Array, Metadata, Value, ValueType};
use super::source::Source;
use super::strings::Strings;
use super::types;
use plan::DType;

pub(super) struct Header {
    pub(super) metadata: Metadata,
    pub(super) tensors: Vec<Entry>,
}

/// One tensor of the directory, checked against the file.
pub(super) struct Entry {
    pub(super) name: String,
    /// Outermost dimension first.
    pub(super) shape: Vec<usize>,
    pub(super) dtype: DType,
    /// Offset of its data in the file.
    pub(super) offset: u64,
    pub(super) bytes: u64,
}

/// Field being parsed, for error messages.
#[derive(Clone, Copy)]
enum Field<'a> {
    Fixed(&'static str),
    Key(u64),
    Value(&'a str),
    TensorName(u64),
    Tensor(&'a str, &'static str),
}

impl fmt::Display for Field<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Fixed(name) => f.write_str(name),
            Self::Key(index) => write!(f, "metadata key {index}"),
            Self::Value(key) => write!(f, "metadata `{key}`"),
            Self::TensorName(index) => write!(f, "name of tensor {index}"),
            Self::Tensor(name, part) => write!(f, "{part} of tensor `{name}`"),
        }
    }
}

pub(super) fn parse(source: &Source) -> Result<Header, Error> {
    let mut cursor = Cursor::new(source);

    let field = Field::Fixed("magic");
    if cursor.take::<4>(field)? != MAGIC {
        return Err(source.malformed(0, field.to_string(), Defect::Magic));
    }
    let field = Field::Fixed("version");
    match cursor.u32(field)? {
        2 | 3 => {}
        found => {
            let big_endian = matches!(found.swap_bytes(), 1..=3);
            let defect = if big_endian { Defect::BigEndian } else { Defect::Version { found } };
            return Err(source.malformed(4, field.to_string(), defect));
        }
    }
    // Name length, dimension count, one dimension, type, offset.
    let tensor_count = cursor.count(Field::Fixed("tensor count"), 8 + 4 + 8 + 4 + 8)?;
    // Key length, type, value.
    let key_count = cursor.count(Field::Fixed("metadata count"), 8 + 4 + 1)?;

    let mut metadata = Metadata::default();
    let mut alignment = DEFAULT_ALIGNMENT;
    for index in 0..key_count {
        let at = cursor.at;
        let key = cursor.name(Field::Key(index))?;
        let field = Field::Value(&key);
        let kind = cursor.value_type(field)?;
        let value_at = cursor.at;
        let value = cursor.value(kind, field)?;
        if key == ALIGNMENT_KEY {
            alignment = checked_alignment(&value)
                .map_err(|defect| source.malformed(value_at, field.to_string(), defect))?;
        }
        if !metadata.insert(key.clone(), value) {
            return Err(source.malformed(at, field.to_string(), Defect::Duplicate));
        }
    }

    let mut directory = Vec::with_capacity(capacity(tensor_count));
    let mut names = HashSet::new();
    for index in 0..tensor_count {
        let at = cursor.at;
        let (entry, offset_at) = cursor.tensor(Field::TensorName(index), alignment)?;
        if !names.insert(entry.name.clone()) {
            let field = Field::Tensor(&entry.name, "name");
            return Err(source.malformed(at, field.to_string(), Defect::Duplicate));
        }
        directory.push((entry, offset_at));
    }

    let data = cursor.at.next_multiple_of(alignment.into());
    resolve_offsets(source, data, &mut directory)?;
    let tensors = directory.into_iter().map(|(entry, _)| entry).collect();
    Ok(Header { metadata, tensors })
}

fn checked_alignment(value: &Value) -> Result<u32, Defect> {
    match *value {
        Value::U32(n) if n.is_power_of_two() => Ok(n),
        Value::U32(n) => Err(Defect::Alignment { found: n.to_string() }),
        ref other => Err(Defect::Alignment { found: other.value_type().to_string() }),
    }
}

/// Converts offsets in the data section, which begins at `data`, to offsets in the file. Checks that tensors are
/// inside the file and do not overlap.
fn resolve_offsets(
    source: &Source,
    data: u64,
    directory: &mut [(Entry, u64)],
) -> Result<(), Error> {
    for (entry, offset_at) in &mut *directory {
        let start = entry.offset;
        let placed = data
            .checked_add(start)
            .filter(|at| at.checked_add(entry.bytes).is_some_and(|end| end <= source.len));
        let Some(at) = placed else {
            let field = Field::Tensor(&entry.name, "offset").to_string();
            let defect = Defect::OutOfRange { start, bytes: entry.bytes, file: source.len };
            return Err(source.malformed(*offset_at, field, defect));
        };
        entry.offset = at;
    }
    let mut order: Vec<&(Entry, u64)> = directory.iter().collect();
    order.sort_by_key(|(entry, _)| entry.offset);
    for pair in order.windows(2) {
        if let [(first, _), (second, offset_at)] = pair
            && first.offset + first.bytes > second.offset
        {
            let field = Field::Tensor(&second.name, "offset").to_string();
            let defect = Defect::Overlap { other: first.name.clone() };
            return Err(source.malformed(*offset_at, field, defect));
        }
    }
    Ok(())
}

/// Initial capacity for `count` entries, bounded so that a small file cannot allocate much.
fn capacity(count: u64) -> usize {
    count.min(1024) as usize
}

/// Position in the header, with a buffer of the bytes around it.
struct Cursor<'a> {
    source: &'a Source,
    at: u64,
    /// Bytes of the file from `window_at`.
    window: Vec<u8>,
    window_at: u64,
}

const WINDOW: u64 = 256 << 10;

impl<'a> Cursor<'a> {
    fn new(source: &'a Source) -> Self {
        Self { source, at: 0, window: Vec::new(), window_at: 0 }
    }

    fn fail(&self, field: Field<'_>, defect: Defect) -> Error {
        self.source.malformed(self.at, field.to_string(), defect)
    }

    /// Bytes left until the end of the file or the limit of the header.
    fn left(&self) -> u64 {
        self.source.len.min(MAX_HEADER).saturating_sub(self.at)
    }

    fn require(&self, need: u64, field: Field<'_>) -> Result<(), Error> {
        if need <= self.left() {
            return Ok(());
        }
        let have = self.source.len.saturating_sub(self.at);
        Err(self.fail(
            field,
            if need <= have {
                Defect::HeaderTooLong { limit: MAX_HEADER }
            } else {
                Defect::Ends { need, have }
            },
        ))
    }

    fn bytes(&mut self, need: u64, field: Field<'_>) -> Result<&[u8], Error> {
        self.require(need, field)?;
        let mut start = self.at - self.window_at;
        if start + need > self.window.len() as u64 {
            let size = WINDOW.max(need).min(self.left());
            self.window.resize(size as usize, 0);
            self.source.read(self.at, &mut self.window, || field.to_string())?;
            self.window_at = self.at;
            start = 0;
        }
        self.at += need;
        Ok(&self.window[start as usize..(start + need) as usize])
    }

    fn take<const N: usize>(&mut self, field: Field<'_>) -> Result<[u8; N], Error> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.bytes(N as u64, field)?);
        Ok(bytes)
    }

    fn u32(&mut self, field: Field<'_>) -> Result<u32, Error> {
        Ok(u32::from_le_bytes(self.take(field)?))
    }

    fn u64(&mut self, field: Field<'_>) -> Result<u64, Error> {
        Ok(u64::from_le_bytes(self.take(field)?))
    }

    /// A count of entries of at least `each` bytes, checked against the bytes left.
    fn count(&mut self, field: Field<'_>, each: u64) -> Result<u64, Error> {
        let at = self.at;
        let count = self.u64(field)?;
        let have = self.left();
        if count.checked_mul(each).is_some_and(|need| need <= have) {
            return Ok(count);
        }
        let defect = Defect::Count { count, each, have };
        Err(self.source.malformed(at, field.to_string(), defect))
    }

    fn str(&mut self, field: Field<'_>) -> Result<&str, Error> {
        let (at, source) = (self.at, self.source);
        let len = self.u64(field)?;
        std::str::from_utf8(self.bytes(len, field)?).map_err(|error| {
            let defect = Defect::Utf8 { valid: error.valid_up_to() };
            source.malformed(at, field.to_string(), defect)
        })
    }

    fn string(&mut self, field: Field<'_>) -> Result<String, Error> {
        self.str(field).map(str::to_owned)
    }

    /// `n` strings; `n` has passed [`Cursor::count`].
    fn strings(&mut self, n: u64, field: Field<'_>) -> Result<Strings, Error> {
        let mut strings = Strings::new();
        for _ in 0..n {
            strings.push(self.str(field)?);
        }
        strings.shrink();
        Ok(strings)
    }

    fn name(&mut self, field: Field<'_>) -> Result<String, Error> {
        let at = self.at;
        let name = self.string(field)?;
        let len = name.len() as u64;
        if len > MAX_NAME {
            let defect = Defect::NameTooLong { len, limit: MAX_NAME };
            return Err(self.source.malformed(at, field.to_string(), defect));
        }
        Ok(name)
    }

    fn value_type(&mut self, field: Field<'_>) -> Result<ValueType, Error> {
        let at = self.at;
        let found = self.u32(field)?;
        ValueType::from_number(found).ok_or_else(|| {
            self.source.malformed(at, field.to_string(), Defect::ValueType { found })
        })
    }

    fn bool(&mut self, field: Field<'_>) -> Result<bool, Error> {
        let at = self.at;
        match self.take::<1>(field)? {
            [0] => Ok(false),
            [1] => Ok(true),
            [found] => Err(self.source.malformed(at, field.to_string(), Defect::Bool { found })),
        }
    }

    fn value(&mut self, kind: ValueType, field: Field<'_>) -> Result<Value, Error> {
        Ok(match kind {
            ValueType::U8 => Value::U8(u8::from_le_bytes(self.take(field)?)),
            ValueType::I8 => Value::I8(i8::from_le_bytes(self.take(field)?)),
            ValueType::U16 => Value::U16(u16::from_le_bytes(self.take(field)?)),
            ValueType::I16 => Value::I16(i16::from_le_bytes(self.take(field)?)),
            ValueType::U32 => Value::U32(self.u32(field)?),
            ValueType::I32 => Value::I32(i32::from_le_bytes(self.take(field)?)),
            ValueType::F32 => Value::F32(f32::from_le_bytes(self.take(field)?)),
            ValueType::Bool => Value::Bool(self.bool(field)?),
            ValueType::Str => Value::Str(self.string(field)?),
            ValueType::Array => Value::Array(self.array(field, 1)?),
            ValueType::U64 => Value::U64(self.u64(field)?),
            ValueType::I64 => Value::I64(i64::from_le_bytes(self.take(field)?)),
            ValueType::F64 => Value::F64(f64::from_le_bytes(self.take(field)?)),
        })
    }

    fn array(&mut self, field: Field<'_>, depth: u32) -> Result<Array, Error> {
        if depth > MAX_DEPTH {
            return Err(self.fail(field, Defect::Depth { limit: MAX_DEPTH }));
        }
        let kind = self.value_type(field)?;
        let n = self.count(field, kind.min_bytes())?;
        Ok(match kind {
            ValueType::U8 => Array::U8(self.elements(n, field, |[b]| b)?),
            ValueType::I8 => Array::I8(self.elements(n, field, i8::from_le_bytes)?),
            ValueType::U16 => Array::U16(self.elements(n, field, u16::from_le_bytes)?),
            ValueType::I16 => Array::I16(self.elements(n, field, i16::from_le_bytes)?),
            ValueType::U32 => Array::U32(self.elements(n, field, u32::from_le_bytes)?),
            ValueType::I32 => Array::I32(self.elements(n, field, i32::from_le_bytes)?),
            ValueType::F32 => Array::F32(self.elements(n, field, f32::from_le_bytes)?),
            ValueType::Bool => Array::Bool(self.collect(n, |c| c.bool(field))?),
            ValueType::Str => Array::Str(self.strings(n, field)?),
            ValueType::Array => Array::Array(self.collect(n, |c| c.array(field, depth + 1))?),
            ValueType::U64 => Array::U64(self.elements(n, field, u64::from_le_bytes)?),
            ValueType::I64 => Array::I64(self.elements(n, field, i64::from_le_bytes)?),
            ValueType::F64 => Array::F64(self.elements(n, field, f64::from_le_bytes)?),
        })
    }

    /// `n` elements of fixed size `N`; `n` has passed [`Cursor::count`].
    fn elements<const N: usize, T>(
        &mut self,
        n: u64,
        field: Field<'_>,
        decode: fn([u8; N]) -> T,
    ) -> Result<Vec<T>, Error> {
        self.collect(n, |c| Ok(decode(c.take(field)?)))
    }

    fn collect<T>(
        &mut self,
        n: u64,
        mut next: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let mut values = Vec::with_capacity(capacity(n));
        for _ in 0..n {
            values.push(next(self)?);
        }
        Ok(values)
    }

    /// One directory entry, whose offset is relative to the data section, and the position of that offset field.
    fn tensor(&mut self, name: Field<'_>, alignment: u32) -> Result<(Entry, u64), Error> {
        let source = self.source;
        let name = self.name(name)?;
        let field = |part| Field::Tensor(&name, part);
        let fail = |at, part, defect| source.malformed(at, field(part).to_string(), defect);

        let at = self.at;
        let count = self.u32(field("dimension count"))?;
        if !(1..=MAX_DIMS).contains(&count) {
            let defect = Defect::Dims { found: count, limit: MAX_DIMS };
            return Err(fail(at, "dimension count", defect));
        }
        let dims_at = self.at;
        let mut dims = Vec::with_capacity(count as usize);
        for index in 0..count {
            let at = self.at;
            let dim = self.u64(field("dimensions"))?;
            if dim == 0 {
                return Err(fail(at, "dimensions", Defect::ZeroDim { index }));
            }
            dims.push(dim);
        }
        let at = self.at;
        let dtype = types::from_ggml(self.u32(field("type"))?)
            .map_err(|defect| fail(at, "type", defect))?;

        // Blocks never span rows, so a row (the first dimension) must be whole blocks.
        let (row, block) = (dims[0], dtype.block_len());
        if !row.is_multiple_of(block as u64) {
            return Err(fail(dims_at, "dimensions", Defect::Row { row, block }));
        }
        let bytes = dims
            .iter()
            .try_fold(1_u64, |product, dim| product.checked_mul(*dim))
            .and_then(|elements| dtype.size_of(elements));
        let shape: Result<Vec<usize>, _> =
            dims.iter().rev().map(|dim| usize::try_from(*dim)).collect();
        let (Some(bytes), Ok(shape)) = (bytes, shape) else {
            return Err(fail(dims_at, "dimensions", Defect::Overflow { dims }));
        };

        let offset_at = self.at;
        let offset = self.u64(field("offset"))?;
        if !offset.is_multiple_of(alignment.into()) {
            let defect = Defect::Misaligned { found: offset, alignment };
            return Err(fail(offset_at, "offset", defect));
        }
        Ok((Entry { name, shape, dtype, offset, bytes }, offset_at))
    }
}
