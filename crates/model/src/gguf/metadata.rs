//! Metadata values and typed access to them.

use std::collections::BTreeMap;
use std::fmt;

use super::error::Error;
use super::strings::Strings;

/// Types of metadata values, each with its number and name in the format, the fewest bytes of a value in a file, and
/// the Rust types of a value and of an array.
macro_rules! types {
    ($($variant:ident = $number:literal, $name:literal, $bytes:literal, $one:ty, $many:ty;)*) => {
        /// The type of a metadata value; the numbers are those of the format.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum ValueType {
            $($variant = $number,)*
        }

        impl ValueType {
            #[must_use]
            pub const fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$variant),)*
                    _ => None,
                }
            }

            /// Bytes of the smallest value of the type in a file.
            pub(super) const fn min_bytes(self) -> u64 {
                match self {
                    $(Self::$variant => $bytes,)*
                }
            }

            /// The format's name: `UINT32`, `STRING`, ...
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        #[derive(Clone, Debug, PartialEq)]
        pub enum Value {
            $($variant($one),)*
        }

        impl Value {
            #[must_use]
            pub const fn value_type(&self) -> ValueType {
                match self {
                    $(Self::$variant(_) => ValueType::$variant,)*
                }
            }
        }

        /// An array: elements of one type, or arrays (whose types may differ).
        #[derive(Clone, Debug, PartialEq)]
        pub enum Array {
            $($variant($many),)*
        }

        impl Array {
            #[must_use]
            pub const fn element_type(&self) -> ValueType {
                match self {
                    $(Self::$variant(_) => ValueType::$variant,)*
                }
            }

            #[must_use]
            pub const fn len(&self) -> usize {
                match self {
                    $(Self::$variant(v) => v.len(),)*
                }
            }

            #[must_use]
            pub const fn is_empty(&self) -> bool {
                self.len() == 0
            }
        }
    };
}
types! {
    U8 = 0, "UINT8", 1, u8, Vec<u8>;
    I8 = 1, "INT8", 1, i8, Vec<i8>;
    U16 = 2, "UINT16", 2, u16, Vec<u16>;
    I16 = 3, "INT16", 2, i16, Vec<i16>;
    U32 = 4, "UINT32", 4, u32, Vec<u32>;
    I32 = 5, "INT32", 4, i32, Vec<i32>;
    F32 = 6, "FLOAT32", 4, f32, Vec<f32>;
    // One byte, 0 or 1.
    Bool = 7, "BOOL", 1, bool, Vec<bool>;
    // Length, then UTF-8.
    Str = 8, "STRING", 8, String, Strings;
    // Type and number of elements, then the elements.
    Array = 9, "ARRAY", 12, Array, Vec<Array>;
    U64 = 10, "UINT64", 8, u64, Vec<u64>;
    I64 = 11, "INT64", 8, i64, Vec<i64>;
    F64 = 12, "FLOAT64", 8, f64, Vec<f64>;
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl Value {
    /// The value of an integer of any type, if it is not negative.
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
            _ => None,
        }
    }

    /// Description for messages: the type, with the element type of arrays and the value of some integers.
    fn describe(&self) -> String {
        match self {
            Self::Array(array) => format!("ARRAY of {}", array.element_type()),
            Self::U64(v) => format!("UINT64 {v}"),
            Self::I8(v) => format!("INT8 {v}"),
            Self::I16(v) => format!("INT16 {v}"),
            Self::I32(v) => format!("INT32 {v}"),
            Self::I64(v) => format!("INT64 {v}"),
            _ => self.value_type().name().to_owned(),
        }
    }
}

macro_rules! from {
    ($($from:ty, $value:ident => $result:expr;)*) => {$(
        impl From<$from> for Value {
            fn from($value: $from) -> Self {
                $result
            }
        }
    )*};
}
from! {
    u32, n => Self::U32(n);
    i32, n => Self::I32(n);
    u64, n => Self::U64(n);
    u16, n => Self::U16(n);
    f32, n => Self::F32(n);
    bool, on => Self::Bool(on);
    &str, text => Self::Str(text.into());
    String, text => Self::Str(text);
    Array, array => Self::Array(array);
    Vec<String>, all => Self::Array(Array::Str(all.iter().collect()));
    Vec<i32>, all => Self::Array(Array::I32(all));
    Vec<u32>, all => Self::Array(Array::U32(all));
    Vec<f32>, all => Self::Array(Array::F32(all));
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct Metadata {
    values: BTreeMap<String, Value>,
}

/// Getters of one type: `..._opt` fails with [`Error::KeyType`] if the key has another type; the required one also
/// fails with [`Error::MissingKey`].
macro_rules! getters {
    ($(#[$doc:meta] $name:ident, $opt:ident, $result:ty, $expected:literal, $pick:expr;)*) => {$(
        #[$doc]
        pub fn $opt(&self, key: &str) -> Result<Option<$result>, Error> {
            self.typed(key, $expected, $pick)
        }

        #[$doc]
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

    /// Adds a key. Returns false and changes nothing if it exists.
    pub(super) fn insert(&mut self, key: String, value: Value) -> bool {
        let new = !self.values.contains_key(&key);
        if new {
            self.values.insert(key, value);
        }
        new
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
        /// A string.
        str, str_opt, &str, "STRING", |v| match v {
            Value::Str(v) => Some(v.as_str()),
            _ => None,
        };
        /// An array of strings.
        str_array, str_array_opt, &Strings, "ARRAY of STRING", |v| match v {
            Value::Array(Array::Str(v)) => Some(v),
            _ => None,
        };
        /// An array of 32-bit signed integers.
        i32_array, i32_array_opt, &[i32], "ARRAY of INT32", |v| match v {
            Value::Array(Array::I32(v)) => Some(v.as_slice()),
            _ => None,
        };
        /// An array of single-precision numbers.
        f32_array, f32_array_opt, &[f32], "ARRAY of FLOAT32", |v| match v {
            Value::Array(Array::F32(v)) => Some(v.as_slice()),
            _ => None,
        };
    }

    /// The getter behind all others.
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
