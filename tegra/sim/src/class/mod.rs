//! What the hardware reads, as the simulator knows it: methods, their fields, QMD fields.
//!
//! `build.rs` makes them from NVIDIA's class headers `clc76f.h` (host), `clc7b5.h` (copy),
//! `clc7c0.h` (compute) and `clc7c0qmd.h` (QMDV03_00) of the open-gpu-doc repository, and on purpose
//! not from `tegra::class`, which is written by hand: a wrong offset must not agree with itself. A
//! test holds the two against each other. Bits that no field covers are reserved, as are fields of
//! that name.
//!
//! A method `NAME` is a constant, its address, and a module of its fields (`NAME::FIELD`) and their
//! values (`NAME::FIELD_VALUE`).

use std::fmt;

/// Host methods, class 0xc76f.
#[expect(non_snake_case, reason = "modules are named as the header names methods")]
pub mod host {
    use super::Method;

    include!(concat!(env!("OUT_DIR"), "/c76f.rs"));

    /// Engine methods begin here, and `SET_OBJECT` at 0 is one too. PBDMA manual of GA100.
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
    pub name: &'static str,
    /// The fields of its data.
    pub fields: &'static [Field],
}

/// A field of a data word, or of a QMD.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// NVIDIA's name, without that of the method.
    pub name: &'static str,
    /// Highest bit; of a QMD, below 2048.
    pub high: u32,
    pub low: u32,
    /// The values that are defined; none when every number is one.
    pub values: &'static [(u32, &'static str)],
}

/// Why a data word is not what the class takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadData {
    /// Bits are set that mean nothing.
    #[error("{method} = {data:#x} sets reserved bits {bits:#x}")]
    Reserved { method: &'static str, data: u32, bits: u32 },
    /// A field holds a number that stands for nothing.
    #[error("{method} = {data:#x}: {field} has no value {value:#x}")]
    Value { method: &'static str, data: u32, field: &'static str, value: u32 },
}

impl Field {
    /// The word of a QMD that the field lies in; 0 for the field of a data word.
    pub const fn word(&self) -> usize {
        (self.low / 32) as usize
    }

    /// Its bits in place in their word.
    pub const fn mask(&self) -> u32 {
        (u32::MAX >> (31 - (self.high - self.low))) << (self.low % 32)
    }

    /// The field's number in its word.
    pub const fn get(&self, word: u32) -> u32 {
        (word & self.mask()) >> (self.low % 32)
    }

    /// Whether any bit of the field is set in its word.
    pub const fn is_set(&self, word: u32) -> bool {
        self.get(word) != 0
    }

    /// The name of a number in this field.
    pub fn value(&self, number: u32) -> Option<&'static str> {
        self.values.iter().find(|(value, _)| *value == number).map(|(_, name)| *name)
    }

    fn is_reserved(&self) -> bool {
        self.name.starts_with("RESERVED")
    }
}

impl Method {
    /// Refuses data that the method does not take. The error is the first found.
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

    /// `data` with its fields named, for listings.
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
pub fn find(table: &'static [Method], address: u32) -> Option<&'static Method> {
    let upper = table.partition_point(|method| method.address <= address);
    // Arrays interleave, so a few tables back may hold the address.
    table[..upper].iter().rev().take(4).find(|method| method.holds(address))
}

/// The tables of a class number.
pub const fn methods(class: u32) -> Option<&'static [Method]> {
    match class {
        HOST => Some(host::METHODS),
        COMPUTE => Some(compute::METHODS),
        COPY => Some(copy::METHODS),
        _ => None,
    }
}

/// The name of the method at `address` when class `class` is bound, for listings.
pub fn name(class: u32, address: u32) -> Option<&'static str> {
    let table = if address != 0 && address < host::METHODS_END { HOST } else { class };
    find(methods(table)?, address).map(|method| method.name)
}
