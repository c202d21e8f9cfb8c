//! Operands of instructions: registers, predicates, constants, immediates, addresses.
//!
//! Values are as encoded; `execute` defines their meaning.

use std::fmt;

use super::special::SpecialRegister;

/// `RZ`, the register that reads as zero and ignores writes.
pub const RZ: u8 = 255;
/// `URZ`, the uniform register that reads as zero.
pub const URZ: u8 = 63;
/// `PT` and `UPT`, the predicates that are always true.
pub const PT: u8 = 7;

/// The part of a 32-bit source that is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// All of it; each half for packed halves.
    #[default]
    Whole,
    /// A single-precision number used as a half.
    Float,
    /// The low half, twice.
    LowHalf,
    /// The high half, twice.
    HighHalf,
    /// The low half and the negated high half.
    LowNegatedHigh,
    /// One 16-bit half of an integer, 1 being the high one.
    Half(u8),
    /// One byte.
    Byte(u8),
    /// The sign of an integer, as a predicate.
    Sign,
}

/// Modifications of a source.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Modify {
    /// Negated, after the absolute value is taken.
    pub negate: bool,
    /// Absolute value.
    pub absolute: bool,
    /// All bits inverted.
    pub invert: bool,
    /// The part used.
    pub part: Part,
}

/// An immediate, by its type.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Immediate {
    /// Bits.
    Bits(u32),
    /// A signed integer.
    Signed(i64),
    /// A single-precision number's bits.
    Float(u32),
    /// The upper 32 bits of a double-precision number; the lower are zero.
    Double(u32),
    /// A half-precision number.
    Half(u32),
    /// Two half-precision numbers, the low one in the low bits.
    Halves(u32),
    /// Two bfloat16 numbers.
    Bfloats(u32),
}

/// Width of a register in an address, as the text states it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Width {
    /// Not stated: the full address, or the width of the memory space.
    Plain,
    /// The low 32 bits, unsigned, added to a 64-bit base: `.U32`.
    Low,
    /// 64 bits in a register pair: `.64`.
    Pair,
}

/// An address in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Address {
    /// The register, `RZ` for none.
    pub register: u8,
    /// Width of the register.
    pub width: Width,
    /// Factor that the register is multiplied by.
    pub scale: u8,
    /// Uniform register that is added.
    pub uniform: Option<u8>,
    /// Uniform register of the memory descriptor, if the text names one.
    pub descriptor: Option<u8>,
    /// Signed byte offset.
    pub offset: i32,
}

/// One operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Operand {
    /// A register.
    Register {
        /// Its number.
        index: u8,
        /// Modification of the value.
        modify: Modify,
    },
    /// A uniform register.
    Uniform {
        /// Its number.
        index: u8,
        /// Modification of the value.
        modify: Modify,
    },
    /// A predicate.
    Predicate {
        /// Its number.
        index: u8,
        /// The predicate is negated.
        not: bool,
    },
    /// All predicates of a lane, as bits.
    Predicates,
    /// A uniform predicate.
    UniformPredicate {
        /// Its number.
        index: u8,
        /// The predicate is negated.
        not: bool,
    },
    /// A word of a constant bank.
    Constant {
        /// The bank.
        bank: u8,
        /// Byte offset.
        offset: i32,
        /// Register that is added to the offset, `RZ` for none.
        register: u8,
        /// Modification of the value.
        modify: Modify,
    },
    /// A word of a constant bank, indexed by a uniform register.
    UniformConstant {
        /// The bank.
        bank: u8,
        /// Byte offset.
        offset: i32,
        /// Uniform register that is added to the offset.
        uniform: u8,
    },
    /// An immediate.
    Immediate(Immediate),
    /// An address.
    Address(Address),
    /// A code address, relative to the program's start.
    Target(i64),
    /// A code offset that is added to a register and the address of the next instruction.
    Offset(i64),
    /// A special register.
    Special(SpecialRegister),
    /// A convergence barrier.
    Barrier(u8),
    /// A counter of outstanding operations.
    Scoreboard(u8),
    /// Bit mask of scoreboards that must be zero.
    Scoreboards(u8),
    /// A register with a suffix: the layout of a matrix fragment, or the used part.
    Matrix(u8, &'static str),
}

fn register(f: &mut fmt::Formatter<'_>, file: &str, index: u8, none: u8) -> fmt::Result {
    if index == none { write!(f, "{file}Z") } else { write!(f, "{file}{index}") }
}

/// Formats a source with its modifications. The part is printed after the bars of the absolute
/// value for registers, and inside them for other sources.
fn modified(
    f: &mut fmt::Formatter<'_>,
    modify: Modify,
    inside: bool,
    value: impl Fn(&mut fmt::Formatter<'_>) -> fmt::Result,
) -> fmt::Result {
    if modify.negate {
        f.write_str("-")?;
    }
    if modify.invert {
        f.write_str("~")?;
    }
    if modify.absolute {
        f.write_str("|")?;
    }
    value(f)?;
    if inside || matches!(modify.part, Part::Half(_)) {
        part(f, modify.part)?;
    }
    if modify.absolute {
        f.write_str("|")?;
    }
    if inside || matches!(modify.part, Part::Half(_)) { Ok(()) } else { part(f, modify.part) }
}

fn part(f: &mut fmt::Formatter<'_>, part: Part) -> fmt::Result {
    match part {
        Part::Whole => Ok(()),
        Part::Half(half) => write!(f, ".H{half}"),
        Part::Float => f.write_str(".F32"),
        Part::LowHalf => f.write_str(".H0_H0"),
        Part::HighHalf => f.write_str(".H1_H1"),
        Part::LowNegatedHigh => f.write_str(".H0_NH1"),
        Part::Byte(byte) => write!(f, ".B{byte}"),
        Part::Sign => f.write_str(".SIGN"),
    }
}

fn number(f: &mut fmt::Formatter<'_>, value: f64) -> fmt::Result {
    if value.is_nan() {
        f.write_str(if value.is_sign_negative() { "-QNAN" } else { "+QNAN" })
    } else if value.is_infinite() {
        f.write_str(if value < 0.0 { "-INF" } else { "+INF" })
    } else {
        write!(f, "{value:?}")
    }
}

/// A signed number in hexadecimal, with its sign before the prefix.
fn signed(f: &mut fmt::Formatter<'_>, value: i64) -> fmt::Result {
    let sign = if value < 0 { "-" } else { "" };
    write!(f, "{sign}{:#x}", value.unsigned_abs())
}

impl fmt::Display for Immediate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Bits(bits) => write!(f, "{bits:#x}"),
            Self::Signed(value) => signed(f, value),
            Self::Float(bits) => number(f, f64::from(f32::from_bits(bits))),
            Self::Double(high) => number(f, f64::from_bits(u64::from(high) << 32)),
            Self::Half(bits) => number(f, half::f16::from_bits(bits as u16).to_f64()),
            Self::Halves(bits) => {
                number(f, half::f16::from_bits((bits >> 16) as u16).to_f64())?;
                f.write_str(", ")?;
                number(f, half::f16::from_bits(bits as u16).to_f64())
            }
            Self::Bfloats(bits) => {
                number(f, half::bf16::from_bits((bits >> 16) as u16).to_f64())?;
                f.write_str(", ")?;
                number(f, half::bf16::from_bits(bits as u16).to_f64())
            }
        }
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(descriptor) = self.descriptor {
            f.write_str("desc[")?;
            register(f, "UR", descriptor, URZ)?;
            f.write_str("]")?;
        }
        f.write_str("[")?;
        // `RZ` is omitted if the address has another part.
        let mut plus = "";
        if self.register != RZ || self.uniform.is_none() && self.offset == 0 {
            register(f, "R", self.register, RZ)?;
            f.write_str(match self.width {
                Width::Plain => "",
                Width::Low => ".U32",
                Width::Pair => ".64",
            })?;
            if self.scale != 1 {
                write!(f, ".X{}", self.scale)?;
            }
            plus = "+";
        }
        if let Some(uniform) = self.uniform {
            f.write_str(plus)?;
            register(f, "UR", uniform, URZ)?;
            plus = "+";
        }
        if self.offset != 0 {
            f.write_str(plus)?;
            signed(f, i64::from(self.offset))?;
        }
        f.write_str("]")
    }
}

impl fmt::Display for Operand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let not = |not: bool| if not { "!" } else { "" };
        match *self {
            Self::Register { index, modify } => {
                modified(f, modify, false, |f| register(f, "R", index, RZ))
            }
            Self::Uniform { index, modify } => {
                modified(f, modify, true, |f| register(f, "UR", index, URZ))
            }
            Self::Predicate { index: PT, not: inverse } => write!(f, "{}PT", not(inverse)),
            Self::Predicate { index, not: inverse } => write!(f, "{}P{index}", not(inverse)),
            Self::Predicates => f.write_str("PR"),
            Self::UniformPredicate { index: PT, not: inverse } => write!(f, "{}UPT", not(inverse)),
            Self::UniformPredicate { index, not: inverse } => {
                write!(f, "{}UP{index}", not(inverse))
            }
            Self::Constant { bank, offset, register: base, modify } => {
                modified(f, modify, true, |f| {
                    write!(f, "c[{bank:#x}][")?;
                    if base != RZ {
                        write!(f, "R{base}")?;
                        if offset != 0 {
                            f.write_str("+")?;
                        }
                    }
                    if base == RZ || offset != 0 {
                        signed(f, i64::from(offset))?;
                    }
                    f.write_str("]")
                })
            }
            Self::UniformConstant { bank, offset, uniform } => {
                write!(f, "c[{bank:#x}][")?;
                register(f, "UR", uniform, URZ)?;
                if offset != 0 {
                    f.write_str("+")?;
                    signed(f, i64::from(offset))?;
                }
                f.write_str("]")
            }
            Self::Immediate(value) => value.fmt(f),
            Self::Address(address) => address.fmt(f),
            Self::Target(value) | Self::Offset(value) => signed(f, value),
            Self::Special(special) => special.fmt(f),
            Self::Barrier(index) => write!(f, "B{index}"),
            Self::Scoreboard(index) => write!(f, "SB{index}"),
            Self::Scoreboards(all) => {
                let mut separator = "{";
                for index in (0..8).rev().filter(|index| all >> index & 1 == 1) {
                    write!(f, "{separator}{index}")?;
                    separator = ",";
                }
                f.write_str("}")
            }
            Self::Matrix(index, layout) => {
                register(f, "R", index, RZ)?;
                write!(f, ".{layout}")
            }
        }
    }
}
