//! What the hardware reads, as the simulator knows it: methods, their fields, QMD fields.
//!
//! Made from NVIDIA's class headers `clc76f.h` (host), `clc7b5.h` (copy), `clc7c0.h` (compute) and
//! `clc7c0qmd.h` (QMDV03_00) of the open-gpu-doc repository, and on purpose not from
//! `tegra::class`: a wrong offset must not agree with itself. A test holds the two against each
//! other. Bits that no field covers are reserved, as are fields of that name.

use std::fmt;

/// Declares a table of methods: `address NAME { FIELD high:low (number VALUE, ..), .. };`, with
/// `address[count step bytes]` for arrays.
macro_rules! methods {
    ($($address:literal $([$count:literal step $step:literal])? $NAME:ident {
        $($FIELD:ident $high:literal : $low:literal
            $(($($number:literal $VALUE:tt),* $(,)?))?),* $(,)?
    };)*) => {
        /// Every method, by rising address.
        pub const METHODS: &[$crate::class::Method] = &[$(
            $crate::class::Method {
                address: $address,
                count: $crate::class::first_or(&[$($count)?], 1),
                step: $crate::class::first_or(&[$($step)?], 4),
                name: stringify!($NAME),
                fields: &[$(
                    $crate::class::Field {
                        name: stringify!($FIELD),
                        high: $high,
                        low: $low,
                        values: &[$($(($number, stringify!($VALUE)),)*)?],
                    },
                )*],
            },
        )*];

        $(
            #[doc = concat!("Address of `", stringify!($NAME), "`, the first if there are several.")]
            pub const $NAME: u32 = $address;
        )*
    };
}

/// The first number, or `default` of an empty list: what a macro's optional part gives.
const fn first_or(numbers: &[u32], default: u32) -> u32 {
    match numbers {
        [first, ..] => *first,
        [] => default,
    }
}

pub mod compute;
pub mod copy;
pub mod host;
pub mod qmd;

/// `AMPERE_CHANNEL_GPFIFO_B`.
pub const HOST: u32 = 0xc76f;
/// `AMPERE_COMPUTE_B`.
pub const COMPUTE: u32 = 0xc7c0;
/// `AMPERE_DMA_COPY_B`.
pub const COPY: u32 = 0xc7b5;
/// `AMPERE_B`, the graphics class.
pub const GRAPHICS: u32 = 0xc797;
/// `KEPLER_INLINE_TO_MEMORY_B` has no Ampere successor in the headers; this is the older one that
/// the driver still accepts.
pub const INLINE_TO_MEMORY: u32 = 0xa140;
/// `FERMI_TWOD_A`.
pub const TWOD: u32 = 0x902d;

/// A method, or an array of them.
#[derive(Debug)]
pub struct Method {
    /// Byte address of the first.
    pub address: u32,
    /// How many there are.
    pub count: u32,
    /// Bytes from one to the next.
    pub step: u32,
    /// NVIDIA's name.
    pub name: &'static str,
    /// The fields of its data.
    pub fields: &'static [Field],
}

/// A field of a data word, or of a QMD.
#[derive(Debug)]
pub struct Field {
    /// NVIDIA's name, without that of the method.
    pub name: &'static str,
    /// Highest bit.
    pub high: u32,
    /// Lowest bit.
    pub low: u32,
    /// The values that are defined; none when every number is one.
    pub values: &'static [(u32, &'static str)],
}

/// Where a field lies in a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bits {
    low: u32,
    mask: u32,
}

impl Bits {
    /// The field's number in `word`.
    #[must_use]
    pub const fn get(self, word: u32) -> u32 {
        word >> self.low & self.mask
    }

    /// Whether any bit of the field is set in `word`.
    #[must_use]
    pub const fn is_set(self, word: u32) -> bool {
        self.get(word) != 0
    }
}

/// The bits of a method's field, looked up while compiling.
///
/// # Panics
/// When the table has no such method or field; in a constant that is a compiler error.
#[must_use]
pub const fn bits(table: &[Method], address: u32, field: &str) -> Bits {
    let mut i = 0;
    while i < table.len() {
        let fields = table[i].fields;
        let mut k = 0;
        while table[i].address == address && k < fields.len() {
            if same(fields[k].name.as_bytes(), field.as_bytes()) {
                let Field { high, low, .. } = fields[k];
                return Bits { low, mask: u32::MAX >> (31 - (high - low)) };
            }
            k += 1;
        }
        i += 1;
    }
    panic!("no such field in the class's table")
}

const fn same(a: &[u8], b: &[u8]) -> bool {
    let mut i = 0;
    while i < a.len() && i < b.len() && a[i] == b[i] {
        i += 1;
    }
    i == a.len() && i == b.len()
}

/// Why a data word is not what the class takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadData {
    /// Bits are set that mean nothing.
    #[error("{method} = {data:#x} sets reserved bits {bits:#x}")]
    Reserved {
        /// The method.
        method: &'static str,
        /// The word.
        data: u32,
        /// Its reserved bits that are set.
        bits: u32,
    },
    /// A field holds a number that stands for nothing.
    #[error("{method} = {data:#x}: {field} has no value {value:#x}")]
    Value {
        /// The method.
        method: &'static str,
        /// The word.
        data: u32,
        /// The field.
        field: &'static str,
        /// Its number.
        value: u32,
    },
}

impl Field {
    /// Bits in place, of a field within 32 bits.
    #[must_use]
    pub const fn mask(&self) -> u32 {
        (u32::MAX >> (31 - (self.high % 32 - self.low % 32))) << (self.low % 32)
    }

    /// The field's number in `word`.
    #[must_use]
    pub const fn get(&self, word: u32) -> u32 {
        (word & self.mask()) >> (self.low % 32)
    }

    /// The name of a number in this field.
    #[must_use]
    pub fn value(&self, number: u32) -> Option<&'static str> {
        self.values.iter().find(|(value, _)| *value == number).map(|(_, name)| *name)
    }

    fn is_reserved(&self) -> bool {
        self.name.starts_with("RESERVED")
    }
}

impl Method {
    /// Refuses data that the method does not take.
    ///
    /// # Errors
    /// [`BadData`], the first found.
    pub fn check(&self, data: u32) -> Result<(), BadData> {
        let known = self.fields.iter().filter(|field| !field.is_reserved());
        let known = known.fold(0, |mask, field| mask | field.mask());
        if data & !known != 0 {
            return Err(BadData::Reserved { method: self.name, data, bits: data & !known });
        }
        for field in self.fields {
            let value = field.get(data);
            if !field.values.is_empty() && field.value(value).is_none() {
                return Err(BadData::Value { method: self.name, data, field: field.name, value });
            }
        }
        Ok(())
    }

    /// The field of a name.
    #[must_use]
    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// `data` with its fields named, for listings.
    #[must_use]
    pub fn decode(&'static self, data: u32) -> Decoded {
        Decoded { method: self, data }
    }

    fn holds(&self, address: u32) -> bool {
        address >= self.address
            && (address - self.address).is_multiple_of(self.step)
            && (address - self.address) / self.step < self.count
    }
}

/// A data word that prints its fields by name.
#[derive(Clone, Copy, Debug)]
pub struct Decoded {
    method: &'static Method,
    data: u32,
}

impl fmt::Display for Decoded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} = {:#x}", self.method.name, self.data)?;
        let named = self.method.fields.iter().filter(|field| !field.values.is_empty());
        let mut open = " (";
        for (index, field) in named.enumerate() {
            let number = field.get(self.data);
            // The first is what the word is about; of the others zero says nothing.
            if index > 0 && number == 0 {
                continue;
            }
            match field.value(number) {
                Some(name) => write!(f, "{open}{} {name}", field.name)?,
                None => write!(f, "{open}{} {number:#x}?", field.name)?,
            }
            open = ", ";
        }
        f.write_str(if open == ", " { ")" } else { "" })
    }
}

/// The method of `table` at `address`.
#[must_use]
pub fn find(table: &'static [Method], address: u32) -> Option<&'static Method> {
    let upper = table.partition_point(|method| method.address <= address);
    // Arrays interleave, so a few tables back may hold the address.
    table[..upper].iter().rev().take(4).find(|method| method.holds(address))
}

/// The tables of a class number.
#[must_use]
pub const fn methods(class: u32) -> Option<&'static [Method]> {
    match class {
        HOST => Some(host::METHODS),
        COMPUTE => Some(compute::METHODS),
        COPY => Some(copy::METHODS),
        _ => None,
    }
}

/// The name of the method at `address` when class `class` is bound, for listings.
#[must_use]
pub fn name(class: u32, address: u32) -> Option<&'static str> {
    let table = if address != 0 && address < host::METHODS_END { HOST } else { class };
    find(methods(table)?, address).map(|method| method.name)
}
