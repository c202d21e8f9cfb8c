//! `.nv.info` sections: attributes of a file and of each kernel.
//!
//! A record is a format byte, an attribute byte and a `u16`. Format 1 has no value, 2 a byte and 3
//! a `u16` in the record itself; for format 4 the `u16` is the length of the value that follows.

use std::collections::BTreeMap;

use super::{Error, malformed};

/// One parameter of a kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Index in the parameter list.
    pub ordinal: u16,
    /// Offset from the start of the parameters, in bytes.
    pub offset: u16,
    /// Size in bytes.
    pub size: u32,
}

/// One attribute.
#[derive(Clone, Copy)]
struct Attribute<'a> {
    id: u8,
    /// Value in the record.
    short: u16,
    /// Value after the record.
    long: &'a [u8],
}

impl Attribute<'_> {
    fn words<const N: usize>(&self) -> Option<[u32; N]> {
        let (words, rest) = self.long.as_chunks::<4>();
        let words: [[u8; 4]; N] = words.try_into().ok()?;
        rest.is_empty().then(|| words.map(u32::from_le_bytes))
    }
}

fn attributes<'a>(section: &str, mut bytes: &'a [u8]) -> Result<Vec<Attribute<'a>>, Error> {
    let mut all = Vec::new();
    while let Some((&[format, id, low, high], rest)) = bytes.split_first_chunk() {
        let short = u16::from_le_bytes([low, high]);
        let (long, rest) = match format {
            1..=3 => (&[][..], rest),
            4 => rest.split_at_checked(usize::from(short)).ok_or_else(|| {
                malformed(section, format!("attribute {id:#x} of {short} bytes is truncated"))
            })?,
            _ => return Err(malformed(section, format!("attribute {id:#x} has format {format}"))),
        };
        all.push(Attribute { id, short, long });
        bytes = rest;
    }
    if bytes.is_empty() { Ok(all) } else { Err(malformed(section, "a record is truncated")) }
}

/// File-level attributes: sizes by symbol.
#[derive(Default)]
pub(super) struct FileInfo {
    registers: BTreeMap<u32, u32>,
    frame: BTreeMap<u32, u32>,
    stack: BTreeMap<u32, u32>,
}

impl FileInfo {
    pub(super) fn parse(bytes: &[u8]) -> Result<Self, Error> {
        let section = ".nv.info";
        let mut info = Self::default();
        for attribute in attributes(section, bytes)? {
            let table = match attribute.id {
                0x2f => &mut info.registers,
                0x11 => &mut info.frame,
                0x12 => &mut info.stack,
                _ => continue,
            };
            let Some([symbol, value]) = attribute.words() else {
                return Err(malformed(
                    section,
                    format!("attribute {:#x} is not a pair", attribute.id),
                ));
            };
            table.insert(symbol, value);
        }
        Ok(info)
    }

    pub(super) fn registers(&self, symbol: u32) -> u32 {
        self.registers.get(&symbol).copied().unwrap_or(0)
    }

    pub(super) fn frame_bytes(&self, symbol: u32) -> u32 {
        self.frame.get(&symbol).copied().unwrap_or(0)
    }

    pub(super) fn stack_bytes(&self, symbol: u32) -> u32 {
        self.stack.get(&symbol).copied().unwrap_or(0)
    }
}

/// Attributes of one kernel.
#[derive(Default)]
pub(super) struct KernelInfo {
    pub(super) params: Vec<Parameter>,
    pub(super) params_offset: u32,
    pub(super) params_bytes: u32,
    pub(super) barriers: u32,
    pub(super) max_threads: Option<[u32; 3]>,
    pub(super) required_threads: Option<[u32; 3]>,
}

impl KernelInfo {
    pub(super) fn parse(kernel: &str, bytes: &[u8]) -> Result<Self, Error> {
        let section = format!(".nv.info.{kernel}");
        let mut info = Self::default();
        for attribute in attributes(&section, bytes)? {
            let bad =
                || malformed(&section, format!("attribute {:#x} has the wrong size", attribute.id));
            match attribute.id {
                0x05 => info.max_threads = Some(attribute.words().ok_or_else(bad)?),
                0x10 => info.required_threads = Some(attribute.words().ok_or_else(bad)?),
                0x0a => {
                    let [_symbol, packed] = attribute.words().ok_or_else(bad)?;
                    info.params_offset = packed & 0xffff;
                    info.params_bytes = packed >> 16;
                }
                0x17 => {
                    let [_index, place, packed] = attribute.words().ok_or_else(bad)?;
                    let [ordinal, offset] = [place & 0xffff, place >> 16]
                        .map(|half| u16::try_from(half).unwrap_or(u16::MAX));
                    info.params.push(Parameter { ordinal, offset, size: packed >> 18 });
                }
                0x4c => info.barriers = u32::from(attribute.short & 0xff),
                _ => {}
            }
        }
        info.params.sort_by_key(|parameter| parameter.ordinal);
        Ok(info)
    }

    /// Checks that the parameters are inside bank 0 and each parameter inside the block.
    pub(super) fn check(&self, kernel: &str, bank0: usize) -> Result<(), Error> {
        let section = format!(".nv.info.{kernel}");
        let end = u64::from(self.params_offset) + u64::from(self.params_bytes);
        if end > bank0 as u64 {
            let problem =
                format!("parameters end at {end:#x}, beyond the bank of {bank0:#x} bytes");
            return Err(malformed(&section, problem));
        }
        let outside =
            |p: &&Parameter| u64::from(p.offset) + u64::from(p.size) > u64::from(self.params_bytes);
        match self.params.iter().find(outside) {
            Some(p) => Err(malformed(
                &section,
                format!("parameter {} is outside the {} bytes", p.ordinal, self.params_bytes),
            )),
            None => Ok(()),
        }
    }
}
