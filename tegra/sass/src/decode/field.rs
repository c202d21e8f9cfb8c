//! Bit fields of an encoding, and their translation into modifiers and operands.

use std::cell::Cell;

use crate::isa::{
    Address, Immediate, Modifier, Modify, Opcode, Operand, PT, Part, RZ, SpecialRegister, URZ,
    Width,
};

/// Part of an instruction that cannot be decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Illegal {
    /// The operation.
    Operation,
    /// The field at this bit has a value without a meaning.
    Field(u8),
    /// These bits belong to no field and differ from the expected value.
    Rest(u128),
}

/// Bits of an instruction, and a record of the bits that were read.
pub(super) struct Bits {
    bits: u128,
    claimed: Cell<u128>,
}

impl Bits {
    pub(super) fn new(bits: u128) -> Self {
        Self { bits, claimed: Cell::new(0xf000) }
    }

    pub(super) fn claim(&self, low: u8, width: u8) {
        self.claimed.set(self.claimed.get() | ((1u128 << width) - 1) << low);
    }

    pub(super) fn get(&self, low: u8, width: u8) -> u64 {
        self.claim(low, width);
        (self.bits >> low & ((1u128 << width) - 1)) as u64
    }

    fn signed(&self, low: u8, width: u8) -> i64 {
        let value = self.get(low, width) as i64;
        value << (64 - width) >> (64 - width)
    }

    fn flag(&self, bit: u8) -> bool {
        self.get(bit, 1) != 0
    }

    /// Returns the set bits that no field has read.
    pub(super) fn unclaimed(&self) -> u128 {
        self.bits & !self.claimed.get()
    }
}

/// One row of the table.
pub(super) struct Encoding {
    pub(super) opcode: Opcode,
    /// The low nine bits.
    pub(super) base: u16,
    /// Accepted values of the three bits above them.
    pub(super) forms: &'static [u8],
    /// Additional bits that distinguish rows with the same base and form: low, width, value.
    pub(super) when: Option<(u8, u8, u64)>,
    /// Sources are uniform registers.
    pub(super) uniform: bool,
    pub(super) modifiers: &'static [Choice],
    pub(super) operands: &'static [Slot],
    /// Fields with a fixed value: low, width, value.
    pub(super) fixed: &'static [(u8, u8, u64)],
}

impl Encoding {
    pub(super) const fn new(
        opcode: Opcode,
        base: u16,
        forms: &'static [u8],
        modifiers: &'static [Choice],
        operands: &'static [Slot],
    ) -> Self {
        Self { opcode, base, forms, when: None, uniform: false, modifiers, operands, fixed: &[] }
    }

    pub(super) const fn when(mut self, when: Option<(u8, u8, u64)>) -> Self {
        self.when = when;
        self
    }

    pub(super) const fn uniform(mut self, uniform: bool) -> Self {
        self.uniform = uniform;
        self
    }

    pub(super) const fn fixed(mut self, fixed: &'static [(u8, u8, u64)]) -> Self {
        self.fixed = fixed;
        self
    }
}

/// A field, or two fields combined, that selects a modifier.
pub(super) struct Choice {
    pub(super) first: (u8, u8),
    second: (u8, u8),
    names: &'static [Modifier],
}

impl Choice {
    pub(super) fn read(&self, word: &Bits) -> Modifier {
        let low = word.get(self.first.0, self.first.1);
        let value = low | word.get(self.second.0, self.second.1) << self.first.1;
        self.names.get(value as usize).copied().unwrap_or(Modifier::Invalid)
    }
}

/// A modifier selected by one bit.
pub(super) const fn flag(bit: u8, name: &'static [Modifier; 2]) -> Choice {
    choice(bit, 1, name)
}

/// A modifier selected by the value of a field.
pub(super) const fn choice(low: u8, width: u8, names: &'static [Modifier]) -> Choice {
    Choice { first: (low, width), second: (0, 0), names }
}

/// A modifier selected by two fields, the first of which is the low bits.
pub(super) const fn split(first: (u8, u8), second: (u8, u8), names: &'static [Modifier]) -> Choice {
    Choice { first, second, names }
}

/// A modifier of every instruction in the row.
pub(super) const fn word(names: &'static [Modifier; 1]) -> Choice {
    Choice { first: (0, 0), second: (0, 0), names }
}

/// Condition under which the disassembly shows an operand.
#[derive(Clone, Copy)]
pub(super) enum Show {
    Always,
    Never,
    UnlessTrue,
    UnlessTrueWith(Modifier),
    UnlessZero,
    UnlessBits(u32),
    With(Modifier),
    Without(Modifier),
}

/// An operand of a row.
pub(super) struct Slot {
    pub(super) what: What,
    pub(super) show: Show,
}

/// Kind of a source: determines its modifications and how an immediate is read.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// No modification; immediates are bits.
    Bits,
    /// No modification; immediates are signed.
    Signed,
    /// Can be negated; immediates are signed.
    Integer,
    /// Like `Integer`, but inverted instead of negated with `.X`.
    Carried,
    /// Like `Carried`, but immediates are bits.
    CarriedBits,
    /// Can be inverted.
    Invertible,
    /// Can be negated and made absolute; single precision.
    Float,
    /// Can be negated and made absolute; double precision.
    Double,
    /// Two halves.
    Halves,
    /// Two halves; no half can be selected.
    PlainHalves,
    /// A 16-bit half can be selected.
    Half,
    /// A half can be selected, negated and made absolute.
    FloatHalf,
    /// A byte can be selected.
    Byte,
    /// Only the sign bit is used.
    Sign,
}

/// Kind and position of an operand.
#[derive(Clone, Copy)]
pub(super) enum What {
    /// The result, at bit 16.
    D,
    /// The result, in a uniform register.
    Ud,
    /// The first source, at bit 24.
    A(Kind),
    /// The first source at bit 24, and the byte of it that is used.
    ByteOf24,
    /// The source at bit 32: a register, an immediate, a constant or a uniform register, by form.
    W(Kind),
    /// The register at bit 64.
    R(Kind),
    /// The second source: `W` or `R`, depending on the form.
    B(Kind),
    /// The third source: whichever of `W` and `R` is not the second.
    C(Kind),
    /// An unmodified register at this bit.
    Reg(u8),
    /// A predicate at this bit.
    P(u8),
    /// A uniform predicate at this bit.
    Up(u8),
    /// The predicate of a load at bit 64, numbered from 7 downwards.
    Given,
    /// A predicate at the first bit, inverted by the second.
    Q(u8, u8),
    /// A uniform predicate at the first bit, inverted by the second.
    Uq(u8, u8),
    /// The predicate at bit 68; bit 67 selects whether it is uniform.
    Third,
    /// An unsigned number.
    Number(u8, u8),
    /// An unsigned number in two parts, low part first.
    Parts((u8, u8), (u8, u8)),
    /// A mask of lanes in a uniform register, inverted by bit 30.
    Mask,
    /// All predicates of the lane.
    Predicates,
    /// A code address relative to the next instruction.
    Target,
    /// A code offset that is added to a register.
    Offset,
    /// A convergence barrier.
    Barrier(u8),
    Scoreboard,
    /// A bit mask of scoreboards that must be zero.
    Scoreboards,
    Special,
    /// Global memory. The fields are the bit positions of the uniform register, of the 64-bit flag
    /// and of the descriptor flag.
    Global {
        uniform: u8,
        wide: u8,
        plain: u8,
    },
    /// A generic or global address in a register pair, without a descriptor.
    Flat,
    /// Like `Flat`, with a 32-bit offset at bit 32.
    FlatLong,
    /// Shared or local memory: bit position of the scale; the uniform register is present when bit
    /// 91 is set.
    Near {
        scale: u8,
        uniform: u8,
    },
    /// The shared side of an asynchronous copy.
    CopyTarget,
    /// The global side of an asynchronous copy.
    CopySource,
    /// A constant bank indexed by a register.
    Indexed,
    /// A constant bank with a fixed offset.
    Bank,
    /// A constant bank indexed by a uniform register.
    UniformIndexed,
    /// A fragment of a matrix.
    Matrix(u8, &'static str),
}

/// Returns whether an operand is `RZ`, `URZ`, the number zero or an empty list.
pub(super) fn is_zero(operand: &Operand) -> bool {
    *operand == Operand::Register { index: RZ, modify: NONE }
        || *operand == Operand::Uniform { index: URZ, modify: NONE }
        || *operand == Operand::Immediate(Immediate::Bits(0))
        || *operand == Operand::Scoreboards(0)
}

/// Returns whether an operand is the predicate `PT`.
pub(super) fn is_true(operand: &Operand) -> bool {
    matches!(
        operand,
        Operand::Predicate { index: PT, not: false }
            | Operand::UniformPredicate { index: PT, not: false }
    )
}

const NONE: Modify = Modify { negate: false, absolute: false, invert: false, part: Part::Whole };

/// Bit positions of a source's modifiers, for one of the three source positions.
struct Place {
    negate: u8,
    absolute: u8,
    part: u8,
}

const AT_24: Place = Place { negate: 72, absolute: 73, part: 74 };
const AT_32: Place = Place { negate: 63, absolute: 62, part: 60 };
const AT_64: Place = Place { negate: 75, absolute: 74, part: 81 };
const HALVES_AT_64: Place = Place { negate: 84, absolute: 83, part: 81 };

fn modify(word: &Bits, kind: Kind, place: &Place, carry: bool) -> Result<Modify, Illegal> {
    let mut modify = NONE;
    match kind {
        Kind::Bits | Kind::Signed => {}
        Kind::Integer => modify.negate = word.flag(place.negate),
        Kind::Carried | Kind::CarriedBits if carry => modify.invert = word.flag(place.negate),
        Kind::Carried | Kind::CarriedBits => modify.negate = word.flag(place.negate),
        Kind::Invertible => modify.invert = word.flag(place.negate),
        Kind::Float | Kind::Double | Kind::PlainHalves => {
            modify.negate = word.flag(place.negate);
            modify.absolute = word.flag(place.absolute);
        }
        Kind::Halves => {
            modify.negate = word.flag(place.negate);
            modify.absolute = word.flag(place.absolute);
            modify.part = match word.get(place.part, 2) {
                0 => Part::Whole,
                1 => Part::Float,
                2 => Part::LowHalf,
                _ => Part::HighHalf,
            };
        }
        Kind::Half | Kind::FloatHalf => {
            if kind == Kind::FloatHalf {
                modify.negate = word.flag(place.negate);
                modify.absolute = word.flag(place.absolute);
            }
            modify.part = match word.get(60, 2) {
                0 => Part::Whole,
                1 => Part::Half(1),
                _ => return Err(Illegal::Field(60)),
            };
        }
        Kind::Sign => modify.part = Part::Sign,
        Kind::Byte => {
            modify.part = match word.get(60, 2) {
                0 => Part::Whole,
                byte => Part::Byte(byte as u8),
            };
        }
    }
    Ok(modify)
}

fn immediate(word: &Bits, kind: Kind, modifiers: &[Modifier]) -> Immediate {
    let bits = word.get(32, 32) as u32;
    match kind {
        Kind::Signed | Kind::Integer | Kind::Carried => Immediate::Signed(i64::from(bits as i32)),
        Kind::Bits
        | Kind::CarriedBits
        | Kind::Invertible
        | Kind::Half
        | Kind::Sign
        | Kind::Byte => Immediate::Bits(bits),
        Kind::FloatHalf => Immediate::Half(bits),
        Kind::Float => Immediate::Float(bits),
        Kind::Double => Immediate::Double(bits),
        Kind::Halves | Kind::PlainHalves => {
            if modifiers.contains(&Modifier::Bf16V2) {
                Immediate::Bfloats(bits)
            } else {
                Immediate::Halves(bits)
            }
        }
    }
}

impl What {
    pub(super) fn read(
        self,
        word: &Bits,
        encoding: &Encoding,
        form: u8,
        offset: usize,
        modifiers: &[Modifier],
    ) -> Result<Operand, Illegal> {
        let carry = modifiers.contains(&Modifier::X);
        // In these forms the flexible source is the third.
        let swapped = matches!(form, 2 | 3 | 7);
        let register = |low, modify| {
            if encoding.uniform {
                Operand::Uniform { index: word.get(low, 6) as u8, modify }
            } else {
                Operand::Register { index: word.get(low, 8) as u8, modify }
            }
        };
        let predicate = |index, not, uniform| {
            let index = index as u8;
            match uniform {
                true => Operand::UniformPredicate { index, not },
                false => Operand::Predicate { index, not },
            }
        };
        Ok(match self {
            Self::D => Operand::Register { index: word.get(16, 8) as u8, modify: NONE },
            Self::Ud => Operand::Uniform { index: word.get(16, 6) as u8, modify: NONE },
            Self::A(kind) => register(24, modify(word, kind, &AT_24, carry)?),
            Self::ByteOf24 => {
                let part = match word.get(76, 2) {
                    0 => Part::Whole,
                    byte => Part::Byte(byte as u8),
                };
                register(24, Modify { part, ..NONE })
            }
            Self::R(kind) => {
                let place = if kind == Kind::Halves || kind == Kind::PlainHalves {
                    &HALVES_AT_64
                } else {
                    &AT_64
                };
                register(64, modify(word, kind, place, carry)?)
            }
            // LEA stores its shift where other instructions store the sign.
            Self::B(Kind::CarriedBits) if swapped => {
                Self::R(Kind::Bits).read(word, encoding, form, offset, modifiers)?
            }
            Self::B(kind) if swapped => {
                Self::R(kind).read(word, encoding, form, offset, modifiers)?
            }
            Self::C(kind) if !swapped => {
                Self::R(kind).read(word, encoding, form, offset, modifiers)?
            }
            Self::W(kind) | Self::B(kind) | Self::C(kind) => match form {
                2 | 4 => Operand::Immediate(immediate(word, kind, modifiers)),
                3 | 5 => Operand::Constant {
                    bank: word.get(54, 5) as u8,
                    offset: (word.get(40, 14) * 4) as i32,
                    register: RZ,
                    modify: modify(word, kind, &AT_32, carry)?,
                },
                6 | 7 => {
                    require(word, 91)?;
                    let modify = modify(word, kind, &AT_32, carry)?;
                    Operand::Uniform { index: word.get(32, 6) as u8, modify }
                }
                _ => register(32, modify(word, kind, &AT_32, carry)?),
            },
            Self::Reg(low) => Operand::Register { index: word.get(low, 8) as u8, modify: NONE },
            Self::P(low) => predicate(word.get(low, 3), false, false),
            Self::Given => predicate(7 - word.get(64, 3), word.flag(67), false),
            Self::Up(low) => predicate(word.get(low, 3), false, true),
            Self::Q(low, not) => predicate(word.get(low, 3), word.flag(not), false),
            Self::Uq(low, not) => predicate(word.get(low, 3), word.flag(not), true),
            Self::Third => predicate(word.get(68, 3), word.flag(71), word.flag(67)),
            Self::Number(low, width) => {
                Operand::Immediate(Immediate::Bits(word.get(low, width) as u32))
            }
            Self::Parts(low, high) => Operand::Immediate(Immediate::Bits(
                (word.get(low.0, low.1) | word.get(high.0, high.1) << low.1) as u32,
            )),
            Self::Mask => {
                let modify = Modify { invert: word.flag(30), ..NONE };
                Operand::Uniform { index: word.get(24, 6) as u8, modify }
            }
            Self::Predicates => Operand::Predicates,
            Self::Target => Operand::Target(offset as i64 + 16 + (word.signed(34, 48) << 2)),
            Self::Offset => Operand::Offset(word.signed(34, 48) << 2),
            Self::Barrier(low) => Operand::Barrier(word.get(low, 4) as u8),
            Self::Scoreboards => Operand::Scoreboards(word.get(32, 6) as u8),
            Self::Scoreboard => Operand::Scoreboard(word.get(44, 3) as u8),
            Self::Special => Operand::Special(
                SpecialRegister::from_number(word.get(72, 8) as u32).ok_or(Illegal::Field(72))?,
            ),
            Self::Matrix(low, layout) => Operand::Matrix(word.get(low, 8) as u8, layout),
            _ => self.memory(word, form)?,
        })
    }

    /// Reads an address or a constant with an index.
    fn memory(self, word: &Bits, form: u8) -> Result<Operand, Illegal> {
        let copies_to_uniform = form == 6;
        Ok(match self {
            Self::Global { uniform, wide, plain } => {
                Operand::Address(global(word, [uniform, wide, plain], 90, (40, 24))?)
            }
            Self::Flat => Operand::Address(address(word, 24, (40, 24))),
            Self::FlatLong => Operand::Address(address(word, 24, (32, 32))),
            Self::Near { scale, uniform } => Operand::Address(Address {
                scale: match if scale == 0 { 0 } else { word.get(scale, 2) } {
                    0 => 1,
                    1 => 4,
                    2 => 8,
                    _ => 16,
                },
                uniform: word.flag(91).then(|| word.get(uniform, 6) as u8),
                ..address(word, 24, (40, 24))
            }),
            Self::CopyTarget => Operand::Address(Address {
                uniform: copies_to_uniform.then(|| word.get(64, 6) as u8),
                ..address(word, 16, (44, 20))
            }),
            // The uniform register belongs to the target; the next one is the descriptor.
            Self::CopySource if copies_to_uniform => {
                require(word, 91)?;
                require(word, 70)?;
                let (known, described) = (word.flag(76), word.flag(101));
                let descriptor = (known && described).then(|| URZ.min(word.get(64, 6) as u8 + 1));
                let (width, source) = (Width::Pair, address(word, 24, (32, 12)));
                Operand::Address(Address { width, descriptor, ..source })
            }
            Self::CopySource => {
                let source = global(word, [64, 70, 76], 70, (32, 12))?;
                let uniform = source.uniform.filter(|&index| index != URZ);
                Operand::Address(Address { uniform, ..source })
            }
            Self::Indexed => Operand::Constant {
                bank: word.get(54, 5) as u8,
                offset: word.signed(38, 16) as i32,
                register: word.get(24, 8) as u8,
                modify: NONE,
            },
            Self::Bank => Operand::Constant {
                bank: word.get(54, 5) as u8,
                offset: word.get(38, 16) as i32,
                register: RZ,
                modify: NONE,
            },
            Self::UniformIndexed => Operand::UniformConstant {
                bank: word.get(54, 5) as u8,
                offset: word.signed(38, 16) as i32,
                uniform: word.get(24, 6) as u8,
            },
            _ => unreachable!("no operand in memory"),
        })
    }
}

/// An address made of the register and the offset at these bits.
fn address(word: &Bits, register: u8, (low, width): (u8, u8)) -> Address {
    Address {
        register: word.get(register, 8) as u8,
        width: Width::Plain,
        scale: 1,
        uniform: None,
        descriptor: None,
        offset: word.signed(low, width) as i32,
    }
}

/// An address in global memory; the bits locate the uniform register, its kind and the offset. A
/// plain address that is not wide is illegal at bit `narrow`.
fn global(
    word: &Bits,
    [index, wide, plain]: [u8; 3],
    narrow: u8,
    at: (u8, u8),
) -> Result<Address, Illegal> {
    require(word, 91)?;
    let (index, plain, described) = (word.get(index, 6) as u8, word.flag(plain), word.flag(101));
    if plain && !word.flag(wide) {
        return Err(Illegal::Field(narrow));
    }
    let (uniform, descriptor) = ((!plain).then_some(index), (plain && described).then_some(index));
    let width = if word.flag(wide) { Width::Pair } else { Width::Low };
    Ok(Address { width, uniform, descriptor, ..address(word, 24, at) })
}

fn require(word: &Bits, bit: u8) -> Result<(), Illegal> {
    if word.flag(bit) { Ok(()) } else { Err(Illegal::Field(bit)) }
}

/// An operand that is always printed.
pub(super) const fn show(what: What) -> Slot {
    Slot { what, show: Show::Always }
}

/// An operand that is never printed.
pub(super) const fn hide(what: What) -> Slot {
    Slot { what, show: Show::Never }
}

/// A predicate that is printed unless it is `PT`.
pub(super) const fn some(what: What) -> Slot {
    Slot { what, show: Show::UnlessTrue }
}

/// An operand that is printed only with a modifier.
pub(super) const fn with(modifier: Modifier, what: What) -> Slot {
    Slot { what, show: Show::With(modifier) }
}

/// An operand that is printed only without a modifier.
pub(super) const fn without(modifier: Modifier, what: What) -> Slot {
    Slot { what, show: Show::Without(modifier) }
}
