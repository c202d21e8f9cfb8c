//! Metadata values and typed access to them.

use std::collections::BTreeMap;
use std::fmt;

use super::{Error, Strings};

/// The type of a metadata value; the numbers are those of the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ValueType {
    /// Unsigned, 8 bits.
    U8 = 0,
    /// Signed, 8 bits.
    I8 = 1,
    /// Unsigned, 16 bits.
    U16 = 2,
    /// Signed, 16 bits.
    I16 = 3,
    /// Unsigned, 32 bits.
    U32 = 4,
    /// Signed, 32 bits.
    I32 = 5,
    /// IEEE 754 single precision.
    F32 = 6,
    /// One byte, 0 or 1.
    Bool = 7,
    /// UTF-8 with its length.
    Str = 8,
    Array = 9,
    /// Unsigned, 64 bits.
    U64 = 10,
    /// Signed, 64 bits.
    I64 = 11,
    /// IEEE 754 double precision.
    F64 = 12,
}

impl ValueType {
    const ALL: [Self; 13] = [
        Self::U8,
        Self::I8,
        Self::U16,
        Self::I16,
        Self::U32,
        Self::I32,
        Self::F32,
        Self::Bool,
        Self::Str,
        Self::Array,
        Self::U64,
        Self::I64,
        Self::F64,
    ];

    /// The type with this number in the format.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|t| *t as u32 == number)
    }

    /// Bytes of the smallest value of the type in a file.
    pub(super) const fn min_bytes(self) -> u64 {
        match self {
            Self::U8 | Self::I8 | Self::Bool => 1,
            Self::U16 | Self::I16 => 2,
            Self::U32 | Self::I32 | Self::F32 => 4,
            Self::U64 | Self::I64 | Self::F64 | Self::Str => 8,
            Self::Array => 12,
        }
    }

    /// The format's name: `UINT32`, `STRING`, ...
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::U8 => "UINT8",
            Self::I8 => "INT8",
            Self::U16 => "UINT16",
            Self::I16 => "INT16",
            Self::U32 => "UINT32",
            Self::I32 => "INT32",
            Self::F32 => "FLOAT32",
            Self::Bool => "BOOL",
            Self::Str => "STRING",
            Self::Array => "ARRAY",
            Self::U64 => "UINT64",
            Self::I64 => "INT64",
            Self::F64 => "FLOAT64",
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// One metadata value.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(String),
    Array(Array),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array: elements of one type, or arrays (whose types may differ).
#[derive(Clone, Debug, PartialEq)]
pub enum Array {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Str(Strings),
    Array(Vec<Array>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

impl Value {
    #[must_use]
    pub const fn value_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::Str(_) => ValueType::Str,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// The value of any integer type that is not negative.
    #[must_use]
    pub fn as_u64(&self) -> Option<u64> {
        match *self {
            Self::U8(v) => Some(v.into()),
            Self::U16(v) => Some(v.into()),
            Self::U32(v) => Some(v.into()),
            Self::U64(v) => Some(v),
            Self::I8(v) => v.try_into().ok(),
            Self::I16(v) => v.try_into().ok(),
            Self::I32(v) => v.try_into().ok(),
            Self::I64(v) => v.try_into().ok(),
            Self::F32(_) | Self::Bool(_) | Self::Str(_) | Self::Array(_) | Self::F64(_) => None,
        }
    }

    /// For messages: the type, with element type or value where that helps.
    fn describe(&self) -> String {
        match self {
            Self::Array(array) => format!("ARRAY of {}", array.element_type()),
            Self::U64(v) => format!("UINT64 {v}"),
            Self::I8(v) => format!("INT8 {v}"),
            Self::I16(v) => format!("INT16 {v}"),
            Self::I32(v) => format!("INT32 {v}"),
            Self::I64(v) => format!("INT64 {v}"),
            Self::U8(_)
            | Self::U16(_)
            | Self::U32(_)
            | Self::F32(_)
            | Self::Bool(_)
            | Self::Str(_)
            | Self::F64(_) => self.value_type().name().to_owned(),
        }
    }
}

impl Array {
    #[must_use]
    pub const fn element_type(&self) -> ValueType {
        match self {
            Self::U8(_) => ValueType::U8,
            Self::I8(_) => ValueType::I8,
            Self::U16(_) => ValueType::U16,
            Self::I16(_) => ValueType::I16,
            Self::U32(_) => ValueType::U32,
            Self::I32(_) => ValueType::I32,
            Self::F32(_) => ValueType::F32,
            Self::Bool(_) => ValueType::Bool,
            Self::Str(_) => ValueType::Str,
            Self::Array(_) => ValueType::Array,
            Self::U64(_) => ValueType::U64,
            Self::I64(_) => ValueType::I64,
            Self::F64(_) => ValueType::F64,
        }
    }

    /// Number of elements.
    #[must_use]
    pub const fn len(&self) -> usize {
        match self {
            Self::U8(v) => v.len(),
            Self::I8(v) => v.len(),
            Self::U16(v) => v.len(),
            Self::I16(v) => v.len(),
            Self::U32(v) => v.len(),
            Self::I32(v) => v.len(),
            Self::F32(v) => v.len(),
            Self::Bool(v) => v.len(),
            Self::Str(v) => v.len(),
            Self::Array(v) => v.len(),
            Self::U64(v) => v.len(),
            Self::I64(v) => v.len(),
            Self::F64(v) => v.len(),
        }
    }

    /// True without elements.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

macro_rules! from {
    ($($from:ty => $variant:ident),* $(,)?) => {$(
        impl From<$from> for Value {
            fn from(value: $from) -> Self {
                Self::$variant(value.into())
            }
        }
    )*};
}
from!(u32 => U32, i32 => I32, u64 => U64, u16 => U16, f32 => F32, bool => Bool, &str => Str, String => Str,
    Array => Array);

impl From<Vec<String>> for Value {
    fn from(values: Vec<String>) -> Self {
        Self::Array(Array::Str(values.iter().collect()))
    }
}

macro_rules! from_vec {
    ($($element:ty => $variant:ident),* $(,)?) => {$(
        impl From<Vec<$element>> for Value {
            fn from(values: Vec<$element>) -> Self {
                Self::Array(Array::$variant(values))
            }
        }
    )*};
}
from_vec!(i32 => I32, u32 => U32, f32 => F32);

/// All metadata of a model, by key.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
}

/// The getters of one type: the optional form and the required one.
macro_rules! getters {
    ($(#[$doc:meta] $name:ident, $opt:ident, $result:ty, $expected:literal, $pick:expr;)*) => {$(
        #[$doc]
        ///
        /// # Errors
        /// [`Error::KeyType`] if the key has another type.
        pub fn $opt(&self, key: &str) -> Result<Option<$result>, Error> {
            let pick: fn(&Value) -> Option<$result> = $pick;
            self.typed(key, $expected, pick)
        }

        #[$doc]
        ///
        /// # Errors
        /// [`Error::MissingKey`] without the key, [`Error::KeyType`] if it has another type.
        pub fn $name(&self, key: &str) -> Result<$result, Error> {
            self.$opt(key)?
                .ok_or_else(|| Error::MissingKey { key: key.to_owned(), expected: $expected })
        }
    )*};
}

impl Metadata {
    /// The value of a key, whatever its type.
    #[must_use]
    pub fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key)
    }

    /// All keys and values, ordered by key.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = (&str, &Value)> {
        self.values.iter().map(|(k, v)| (k.as_str(), v))
    }

    /// Adds a key; false, and no change, if it is there already.
    pub(super) fn insert(&mut self, key: String, value: Value) -> bool {
        use std::collections::btree_map::Entry;
        match self.values.entry(key) {
            Entry::Vacant(entry) => {
                entry.insert(value);
                true
            }
            Entry::Occupied(_) => false,
        }
    }

    getters! {
        /// A number of any integer type that fits.
        u32, u32_opt, u32, "UINT32", |v| v.as_u64()?.try_into().ok();
        /// A number of any integer type that fits.
        u64, u64_opt, u64, "UINT64", Value::as_u64;
        /// A floating-point number; double precision is rounded.
        f32, f32_opt, f32, "FLOAT32", |v| match *v {
            Value::F32(v) => Some(v),
            Value::F64(v) => Some(v as f32),
            _ => None,
        };
        /// A truth value.
        bool, bool_opt, bool, "BOOL", |v| match *v {
            Value::Bool(v) => Some(v),
            _ => None,
        };
    }

    /// The getter that all others are made of.
    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &'static str,
        pick: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.values.get(key) else { return Ok(None) };
        match pick(value) {
            Some(picked) => Ok(Some(picked)),
            None => Err(Error::KeyType { key: key.to_owned(), expected, found: value.describe() }),
        }
    }
}

macro_rules! borrowing_getters {
    ($(#[$doc:meta] $name:ident, $opt:ident, $result:ty, $expected:literal, $pattern:pat => $picked:expr;)*) => {
        impl Metadata {$(
            #[$doc]
            ///
            /// # Errors
            /// [`Error::KeyType`] if the key has another type.
            pub fn $opt(&self, key: &str) -> Result<Option<&$result>, Error> {
                self.typed(key, $expected, |value| match value {
                    $pattern => Some($picked),
                    _ => None,
                })
            }

            #[$doc]
            ///
            /// # Errors
            /// [`Error::MissingKey`] without the key, [`Error::KeyType`] if it has another type.
            pub fn $name(&self, key: &str) -> Result<&$result, Error> {
                self.$opt(key)?
                    .ok_or_else(|| Error::MissingKey { key: key.to_owned(), expected: $expected })
            }
        )*}
    };
}
borrowing_getters! {
    /// A string.
    str, str_opt, str, "STRING", Value::Str(v) => v.as_str();
    /// An array of strings.
    str_array, str_array_opt, Strings, "ARRAY of STRING", Value::Array(Array::Str(v)) => v;
    /// An array of 32-bit signed integers.
    i32_array, i32_array_opt, [i32], "ARRAY of INT32", Value::Array(Array::I32(v)) => v.as_slice();
    /// An array of single-precision numbers.
    f32_array, f32_array_opt, [f32], "ARRAY of FLOAT32", Value::Array(Array::F32(v)) => v.as_slice();
}
