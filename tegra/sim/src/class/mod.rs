//! Constants of NVIDIA's hardware classes: addresses of methods, their bit fields, and the fields of
//! the QMD.
//!
//! The build script generates them from NVIDIA's class headers `clc76f.h` (host), `clc7b5.h`
//! (copy), `clc7c0.h` (compute) and `clc7c0qmd.h` (QMDV03_00) of the open-gpu-doc repository. They
//! are deliberately independent of the hand-written `tegra::class`, so that a wrong offset cannot
//! agree with itself; a test compares the two. Bits outside any field are reserved, as are fields
//! with that name.
//!
//! A method `NAME` is a constant (its address) and a module of its fields (`NAME::FIELD`) and their
//! values (`NAME::FIELD_VALUE`).

use std::fmt;

/// Host methods, class 0xc76f.
#[expect(non_snake_case, reason = "modules are named as the header names methods")]
pub mod host {
    use super::Method;

    include!(concat!(env!("OUT_DIR"), "/c76f.rs"));

    /// First engine method; `SET_OBJECT` at 0 is one too. Source: PBDMA manual of GA100.
    pub const METHODS_END: u32 = 0x100;
}

/// Copy methods, class 0xc7b5.
#[expect(non_snake_case, reason = "modules are named as the header names methods")]
pub mod copy {
    use super::Method;

    include!(concat!(env!("OUT_DIR"), "/c7b5.rs"));
}

/// Compute methods, class 0xc7c0.
#[expect(non_snake_case, reason = "modules are named as the header names methods")]
pub mod compute {
    use super::Method;

    include!(concat!(env!("OUT_DIR"), "/c7c0.rs"));
}

/// QMD 3.0: the fields of the 256 bytes that describe one launch. None crosses a word.
pub mod qmd {
    use super::Field;

    include!(concat!(env!("OUT_DIR"), "/qmd.rs"));

    pub const WORDS: usize = 64;
}

/// `AMPERE_CHANNEL_GPFIFO_B`.
pub const HOST: u32 = 0xc76f;
/// `AMPERE_COMPUTE_B`.
pub const COMPUTE: u32 = 0xc7c0;
/// `AMPERE_DMA_COPY_B`.
pub const COPY: u32 = 0xc7b5;
/// `AMPERE_B`, the graphics class.
pub const GRAPHICS: u32 = 0xc797;
/// `KEPLER_INLINE_TO_MEMORY_B`. The headers have no Ampere successor; the driver still accepts this
/// older class.
pub const INLINE_TO_MEMORY: u32 = 0xa140;
/// `FERMI_TWOD_A`.
pub const TWOD: u32 = 0x902d;

/// A method, or an array of methods.
#[derive(Debug)]
pub struct Method {
    /// Byte address of the first.
    pub address: u32,
    /// Number of elements.
    pub count: u32,
    /// Stride in bytes.
    pub step: u32,
    pub name: &'static str,
    /// Fields of the data word.
    pub fields: &'static [Field],
}

/// A field of a data word, or of a QMD.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// NVIDIA's name, without the prefix of the method.
    pub name: &'static str,
    /// Highest bit; below 2048 for a QMD.
    pub high: u32,
    pub low: u32,
    /// Defined values; empty if every number is valid.
    pub values: &'static [(u32, &'static str)],
}

/// Error of a data word that the class does not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadData {
    /// Reserved bits are set.
    #[error("{method} = {data:#x} sets reserved bits {bits:#x}")]
    Reserved { method: &'static str, data: u32, bits: u32 },
    /// A field has an undefined value.
    #[error("{method} = {data:#x}: {field} has no value {value:#x}")]
    Value { method: &'static str, data: u32, field: &'static str, value: u32 },
}

impl Field {
    /// Index of the QMD word that contains the field; 0 for the field of a data word.
    pub const fn word(&self) -> usize {
        (self.low / 32) as usize
    }

    /// Mask of the field within its word.
    pub const fn mask(&self) -> u32 {
        (u32::MAX >> (31 - (self.high - self.low))) << (self.low % 32)
    }

    /// Extracts the field from its word.
    pub const fn get(&self, word: u32) -> u32 {
        (word & self.mask()) >> (self.low % 32)
    }

    /// Returns whether any bit of the field is set.
    pub const fn is_set(&self, word: u32) -> bool {
        self.get(word) != 0
    }

    /// Returns the name of a value of this field.
    pub fn value(&self, number: u32) -> Option<&'static str> {
        self.values.iter().find(|(value, _)| *value == number).map(|(_, name)| *name)
    }

    fn is_reserved(&self) -> bool {
        self.name.starts_with("RESERVED")
    }
}

impl Method {
    /// Checks data against the method; returns the first error.
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

    pub fn field(&self, name: &str) -> Option<&'static Field> {
        self.fields.iter().find(|field| field.name == name)
    }

    /// Decodes `data` into named fields, for listings.
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
            // The first field is the main one; other fields are omitted if zero.
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

/// Returns the method at an address.
pub fn find(table: &'static [Method], address: u32) -> Option<&'static Method> {
    let upper = table.partition_point(|method| method.address <= address);
    // Arrays interleave, so an earlier entry may contain the address.
    table[..upper].iter().rev().take(4).find(|method| method.holds(address))
}

/// Returns the method table of a class.
pub const fn methods(class: u32) -> Option<&'static [Method]> {
    match class {
        HOST => Some(host::METHODS),
        COMPUTE => Some(compute::METHODS),
        COPY => Some(copy::METHODS),
        _ => None,
    }
}

/// Returns the name of a method of a class, for listings.
pub fn name(class: u32, address: u32) -> Option<&'static str> {
    let table = if address != 0 && address < host::METHODS_END { HOST } else { class };
    find(methods(table)?, address).map(|method| method.name)
}
