//! Decodes one A64 load or store, of the kinds that compilers and libc's copies use on device
//! registers: plain, pair, ordered (`stlr`, `ldar`), with every addressing form.
//!
//! The address comes from the fault, not from the instruction. Exclusives and atomics are not
//! decoded: device memory does not support them. Source of the encodings: Arm ARM (DDI 0487),
//! C4.1.94 "Loads and Stores".

/// A load or a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    pub(crate) load: bool,
    /// Vector registers instead of general ones.
    pub(crate) vector: bool,
    /// Bytes of one register.
    pub(crate) bytes: u8,
    /// Width of the sign extension; `None` for zero extension.
    pub(crate) sign_to: Option<u8>,
    pub(crate) first: u8,
    /// The second register of a pair.
    pub(crate) second: Option<u8>,
    /// Update of the base register.
    pub(crate) write_back: Option<WriteBack>,
}

/// The change of the base register by a pre- or post-indexed access.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WriteBack {
    /// 31 is the stack pointer.
    pub(crate) base: u8,
    pub(crate) step: i64,
}

/// Bits `high..=low` of `word`.
const fn bits(word: u32, high: u32, low: u32) -> u32 {
    (word >> low) & ((1 << (high - low + 1)) - 1)
}

fn register(word: u32, low: u32) -> u8 {
    bits(word, low + 4, low) as u8
}

/// Decodes the instruction `word`.
pub(crate) fn decode(word: u32) -> Option<Instruction> {
    if word & 0x3a00_0000 == 0x2800_0000 {
        return pair(word);
    }
    if word & 0x3fbf_7c00 == 0x089f_7c00 {
        return Some(plain(word, bits(word, 22, 22) == 1)); // stlr, stllr, ldar, ldlar
    }
    if word & 0x3fff_fc00 == 0x38bf_c000 {
        return Some(plain(word, true)); // ldapr
    }
    if word & 0x3f20_0c00 == 0x1900_0000 {
        return single(word, None); // stlur, ldapur
    }
    if word & 0x3b00_0000 == 0x3900_0000 {
        return single(word, None); // unsigned offset
    }
    if word & 0x3b20_0c00 == 0x3820_0800 {
        return single(word, None); // register offset
    }
    if word & 0x3b20_0000 == 0x3800_0000 {
        let write_back = match bits(word, 11, 10) {
            0 => None,
            1 | 3 => Some(WriteBack {
                base: register(word, 5),
                step: i64::from((bits(word, 20, 12) << 23) as i32 >> 23),
            }),
            _ => return None, // unprivileged
        };
        return single(word, write_back);
    }
    None
}

/// One general register of the size in bits 31:30.
fn plain(word: u32, load: bool) -> Instruction {
    Instruction {
        load,
        vector: false,
        bytes: 1 << bits(word, 31, 30),
        sign_to: None,
        first: register(word, 0),
        second: None,
        write_back: None,
    }
}

fn single(word: u32, write_back: Option<WriteBack>) -> Option<Instruction> {
    let (size, kind) = (bits(word, 31, 30), bits(word, 23, 22));
    let vector = bits(word, 26, 26) == 1;
    if vector {
        let bytes = match (size, kind & 2) {
            (0, 2) => 16,
            (_, 0) => 1 << size,
            _ => return None,
        };
        let load = kind & 1 == 1;
        return Some(Instruction { vector, bytes, write_back, ..plain(word, load) });
    }
    let sign_to = match (kind, size) {
        (0 | 1, _) => None,
        (2, 0..=2) => Some(8),
        (3, 0 | 1) => Some(4),
        _ => return None, // prefetch or not allocated
    };
    Some(Instruction { sign_to, write_back, ..plain(word, kind != 0) })
}

fn pair(word: u32) -> Option<Instruction> {
    let (size, load) = (bits(word, 31, 30), bits(word, 22, 22) == 1);
    let vector = bits(word, 26, 26) == 1;
    let index = bits(word, 24, 23);
    let (bytes, sign_to) = match (vector, size) {
        (true, 0..=2) => (4 << size, None),
        (false, 0) => (4, None),
        // ldpsw; the same number without it or without load stores allocation tags.
        (false, 1) if load && index != 0 => (4, Some(8)),
        (false, 2) => (8, None),
        _ => return None,
    };
    let step = i64::from((bits(word, 21, 15) << 25) as i32 >> 25) * i64::from(bytes);
    Some(Instruction {
        load,
        vector,
        bytes,
        sign_to,
        first: register(word, 0),
        second: Some(register(word, 10)),
        write_back: matches!(index, 1 | 3).then_some(WriteBack { base: register(word, 5), step }),
    })
}
