//! Reads one x86-64 instruction that touches memory, as far as compilers and libc's copies use
//! them on device registers: `mov` and its kin, `xchg`, compares, SSE, AVX and AVX-512 moves.
//!
//! The address is not worked out: the fault tells it. Anything else is not decoded, on purpose:
//! an instruction that is guessed wrong would ring a wrong doorbell.
//! Source of the encodings: Intel SDM volume 2, chapters 2 (formats) and 3-5 (instructions).

/// An instruction with one memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    /// Bytes of the encoding, at most 15.
    pub(crate) length: u8,
    /// What it does.
    pub(crate) operation: Operation,
}

/// What an instruction does with its memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Memory takes `bytes` bytes of `from`.
    Store { from: Source, bytes: u8 },
    /// A register takes `bytes` bytes of memory, widened to `to_bytes`.
    Load { to: Register, bytes: u8, to_bytes: u8, signed: bool },
    /// Memory and a register change places; compilers use it for a sequentially consistent store.
    Exchange { with: Register, bytes: u8 },
    /// An arithmetic operation that reads memory and sets the flags.
    Arithmetic { kind: Arithmetic, left: Side, with: Source, bytes: u8 },
    /// One step of `movs`: from where `rsi` points to where `rdi` points, `rcx` times if it repeats.
    MoveString { bytes: u8, repeats: bool },
    /// One step of `stos`: `rax` to where `rdi` points, `rcx` times if it repeats.
    StoreString { bytes: u8, repeats: bool },
    /// Memory takes `bytes` bytes of a vector register, from byte `at` of it.
    VectorStore { register: u8, at: u8, bytes: u8, mask: Option<Mask> },
    /// A vector register takes `bytes` bytes at its byte `at`; what follows up to `zero_to` is cleared.
    VectorLoad { register: u8, at: u8, bytes: u8, zero_to: u8, mask: Option<Mask> },
}

/// Which elements of a vector register take part: those with their bit set in a mask register.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mask {
    /// `k1` to `k7`.
    pub(crate) register: u8,
    /// Bytes of an element.
    pub(crate) element: u8,
    /// A load clears the other elements instead of leaving them.
    pub(crate) zeroes: bool,
}

/// Arithmetic that only reads memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Arithmetic {
    Add,
    Or,
    And,
    Sub,
    Xor,
    Compare,
    Test,
}

/// On which side of the operation memory stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Memory,
    Register,
}

/// A general register by its number in the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Register {
    pub(crate) number: u8,
    /// Bits 15:8 of the register: `ah`, `ch`, `dh`, `bh`.
    pub(crate) high_byte: bool,
}

/// Where a value comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Register(Register),
    Immediate(u64),
}

/// Longest encoding that the processor takes.
const LONGEST: u8 = 15;

/// Reads the instruction that `code` starts with. Takes no byte beyond the instruction.
pub(crate) fn decode(code: impl Iterator<Item = u8>) -> Option<Instruction> {
    let mut reader = Reader { code, taken: 0 };
    let operation = instruction(&mut reader)?;
    Some(Instruction { length: reader.taken, operation })
}

struct Reader<I> {
    code: I,
    taken: u8,
}

impl<I: Iterator<Item = u8>> Reader<I> {
    fn byte(&mut self) -> Option<u8> {
        if self.taken == LONGEST {
            return None;
        }
        self.taken += 1;
        self.code.next()
    }

    fn number(&mut self, bytes: u8) -> Option<u64> {
        (0..bytes).try_fold(0, |value, at| Some(value | u64::from(self.byte()?) << (8 * at)))
    }

    /// A ModRM byte whose operand is memory, with its SIB byte and displacement.
    fn memory_operand(&mut self) -> Option<ModRm> {
        let byte = self.byte()?;
        let (mode, base) = (byte >> 6, byte & 7);
        let mut displacement = match mode {
            0 => 0,
            1 => 1,
            2 => 4,
            _ => return None,
        };
        if base == 4 {
            if mode == 0 && self.byte()? & 7 == 5 {
                displacement = 4;
            } else if mode != 0 {
                self.byte()?;
            }
        } else if mode == 0 && base == 5 {
            displacement = 4;
        }
        self.number(displacement)?;
        Some(ModRm { field: (byte >> 3) & 7 })
    }
}

/// What of a ModRM byte matters once the address is known.
struct ModRm {
    /// A register or a part of the opcode.
    field: u8,
}

#[derive(Clone, Copy, Default)]
struct Prefixes {
    operand_size: bool,
    address_size: bool,
    repeat: Option<u8>,
    rex: Option<u8>,
}

impl Prefixes {
    fn wide(self) -> bool {
        self.rex.is_some_and(|rex| rex & 8 != 0)
    }

    fn operand_bytes(self) -> u8 {
        match (self.wide(), self.operand_size) {
            (true, _) => 8,
            (false, true) => 2,
            (false, false) => 4,
        }
    }

    fn extend(self, field: u8) -> u8 {
        field | (self.rex.unwrap_or(0) & 4) << 1
    }

    fn register(self, field: u8, bytes: u8) -> Register {
        if bytes == 1 && self.rex.is_none() && field >= 4 {
            return Register { number: field - 4, high_byte: true };
        }
        Register { number: self.extend(field), high_byte: false }
    }

    /// The prefix that selects among SSE instructions, numbered as in VEX: none, 66, F3, F2.
    fn mandatory(self) -> u8 {
        match self.repeat {
            Some(0xf3) => 2,
            Some(_) => 3,
            None => u8::from(self.operand_size),
        }
    }
}

fn instruction(reader: &mut Reader<impl Iterator<Item = u8>>) -> Option<Operation> {
    let mut prefixes = Prefixes::default();
    loop {
        match reader.byte()? {
            0x66 => prefixes.operand_size = true,
            0x67 => prefixes.address_size = true,
            0x26 | 0x2e | 0x36 | 0x3e | 0x64 | 0x65 => {}
            repeat @ (0xf2 | 0xf3) => prefixes.repeat = Some(repeat),
            rex @ 0x40..=0x4f => {
                prefixes.rex = Some(rex);
                let opcode = reader.byte()?;
                return opcode_map(reader, prefixes, opcode);
            }
            0xc5 => return vex2(reader),
            0xc4 => return vex3(reader),
            0x62 => return evex(reader),
            opcode => return opcode_map(reader, prefixes, opcode),
        }
    }
}

fn opcode_map(
    reader: &mut Reader<impl Iterator<Item = u8>>,
    prefixes: Prefixes,
    opcode: u8,
) -> Option<Operation> {
    if opcode == 0x0f {
        return two_byte(reader, prefixes);
    }
    let repeats = prefixes.repeat == Some(0xf3);
    // In most pairs of opcodes the even one is the form for bytes.
    let bytes = if opcode & 1 == 0 { 1 } else { prefixes.operand_bytes() };
    match opcode {
        0xa4 | 0xa5 if !prefixes.address_size => Some(Operation::MoveString { bytes, repeats }),
        0xaa | 0xab if !prefixes.address_size => Some(Operation::StoreString { bytes, repeats }),
        _ if prefixes.repeat.is_some() => None,
        _ => one_byte(reader, prefixes, opcode, bytes),
    }
}

fn one_byte(
    reader: &mut Reader<impl Iterator<Item = u8>>,
    prefixes: Prefixes,
    opcode: u8,
    bytes: u8,
) -> Option<Operation> {
    let accumulator = Register { number: 0, high_byte: false };
    match opcode {
        0x00..=0x3f if opcode & 7 < 4 => {
            let kind = arithmetic(opcode >> 3)?;
            let left = if opcode & 2 == 0 { Side::Memory } else { Side::Register };
            if left == Side::Memory && kind != Arithmetic::Compare {
                return None; // reads and writes memory
            }
            let with = Source::Register(prefixes.register(reader.memory_operand()?.field, bytes));
            Some(Operation::Arithmetic { kind, left, with, bytes })
        }
        0x63 => {
            let to = prefixes.register(reader.memory_operand()?.field, 4);
            Some(Operation::Load { to, bytes: 4, to_bytes: prefixes.operand_bytes(), signed: true })
        }
        0x80 | 0x81 | 0x83 => {
            let kind = arithmetic(reader.memory_operand()?.field)?;
            let size = if opcode == 0x83 { 1 } else { bytes };
            let with = Source::Immediate(immediate(reader, size)?);
            let compares = kind == Arithmetic::Compare;
            compares.then_some(Operation::Arithmetic { kind, left: Side::Memory, with, bytes })
        }
        0x84 | 0x85 => {
            let with = Source::Register(prefixes.register(reader.memory_operand()?.field, bytes));
            Some(Operation::Arithmetic { kind: Arithmetic::Test, left: Side::Memory, with, bytes })
        }
        0xf6 | 0xf7 => {
            if reader.memory_operand()?.field > 1 {
                return None;
            }
            let with = Source::Immediate(immediate(reader, bytes)?);
            Some(Operation::Arithmetic { kind: Arithmetic::Test, left: Side::Memory, with, bytes })
        }
        0x86 | 0x87 => {
            let with = prefixes.register(reader.memory_operand()?.field, bytes);
            Some(Operation::Exchange { with, bytes })
        }
        0x88 | 0x89 => {
            let from = Source::Register(prefixes.register(reader.memory_operand()?.field, bytes));
            Some(Operation::Store { from, bytes })
        }
        0x8a | 0x8b => {
            let to = prefixes.register(reader.memory_operand()?.field, bytes);
            Some(Operation::Load { to, bytes, to_bytes: bytes, signed: false })
        }
        0xa0..=0xa3 => {
            reader.number(if prefixes.address_size { 4 } else { 8 })?;
            Some(if opcode < 0xa2 {
                Operation::Load { to: accumulator, bytes, to_bytes: bytes, signed: false }
            } else {
                Operation::Store { from: Source::Register(accumulator), bytes }
            })
        }
        0xc6 | 0xc7 => {
            if reader.memory_operand()?.field != 0 {
                return None;
            }
            let from = Source::Immediate(immediate(reader, bytes)?);
            Some(Operation::Store { from, bytes })
        }
        _ => None,
    }
}

fn arithmetic(number: u8) -> Option<Arithmetic> {
    Some(match number {
        0 => Arithmetic::Add,
        1 => Arithmetic::Or,
        4 => Arithmetic::And,
        5 => Arithmetic::Sub,
        6 => Arithmetic::Xor,
        7 => Arithmetic::Compare,
        _ => return None, // with carry
    })
}

/// An immediate of an operand of `bytes` bytes: at most four are encoded, the sign is repeated.
fn immediate(reader: &mut Reader<impl Iterator<Item = u8>>, bytes: u8) -> Option<u64> {
    let encoded = bytes.min(4);
    Some(super::super::bus::sign_extend(reader.number(encoded)?, encoded))
}

fn two_byte(
    reader: &mut Reader<impl Iterator<Item = u8>>,
    prefixes: Prefixes,
) -> Option<Operation> {
    let opcode = reader.byte()?;
    match opcode {
        0xb6 | 0xb7 | 0xbe | 0xbf => {
            let bytes = 1 + (opcode & 1);
            let to = prefixes.register(reader.memory_operand()?.field, 8);
            let signed = opcode & 8 != 0;
            Some(Operation::Load { to, bytes, to_bytes: prefixes.operand_bytes(), signed })
        }
        0xc3 if prefixes.mandatory() == 0 => {
            let bytes = prefixes.operand_bytes();
            let from = Source::Register(prefixes.register(reader.memory_operand()?.field, bytes));
            Some(Operation::Store { from, bytes })
        }
        _ => {
            let register = prefixes.extend(reader.memory_operand()?.field);
            let form = Form::Legacy;
            vector_move(opcode, prefixes.mandatory(), 16, prefixes.wide(), form)
                .map(|shape| shape.with(register, form, None))
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Legacy,
    Vex,
    Evex,
}

/// A vector move without its register.
struct Shape {
    load: bool,
    at: u8,
    bytes: u8,
    /// A legacy load leaves the rest of the low 16 bytes as it was.
    merges: bool,
}

impl Shape {
    fn with(self, register: u8, form: Form, mask: Option<Mask>) -> Operation {
        let Self { load, at, bytes, merges } = self;
        if !load {
            return Operation::VectorStore { register, at, bytes, mask };
        }
        let zero_to = match (merges, form) {
            (true, _) => at + bytes,
            (false, Form::Legacy) => 16,
            (false, _) => 64,
        };
        Operation::VectorLoad { register, at, bytes, zero_to, mask }
    }
}

/// Moves of the map 0F. `mandatory` is numbered as in VEX, `bytes` is the register's length.
fn vector_move(opcode: u8, mandatory: u8, bytes: u8, wide: bool, form: Form) -> Option<Shape> {
    let whole = |load| Some(Shape { load, at: 0, bytes, merges: false });
    let part = |load, at, bytes, merges| Some(Shape { load, at, bytes, merges });
    let scalar = if wide { 8 } else { 4 };
    match (opcode, mandatory) {
        (0x10 | 0x28, 0 | 1) | (0x6f, 1 | 2) => whole(true),
        (0x11 | 0x29 | 0x2b, 0 | 1) | (0x7f, 1 | 2) | (0xe7, 1) => whole(false),
        (0x6f, 3) if form == Form::Evex => whole(true),
        (0x7f, 3) if form == Form::Evex => whole(false),
        (0x10, 2) => part(true, 0, 4, false),
        (0x10, 3) => part(true, 0, 8, false),
        (0x11, 2) => part(false, 0, 4, false),
        (0x11, 3) => part(false, 0, 8, false),
        // With VEX the other half comes from a third operand.
        (0x12, 0 | 1) if form == Form::Legacy => part(true, 0, 8, true),
        (0x16, 0 | 1) if form == Form::Legacy => part(true, 8, 8, true),
        (0x13, 0 | 1) => part(false, 0, 8, false),
        (0x17, 0 | 1) => part(false, 8, 8, false),
        (0x6e, 1) => part(true, 0, scalar, false),
        (0x7e, 1) => part(false, 0, scalar, false),
        (0x7e, 2) => part(true, 0, 8, false),
        (0xd6, 1) => part(false, 0, 8, false),
        _ => None,
    }
}

fn vex2(reader: &mut Reader<impl Iterator<Item = u8>>) -> Option<Operation> {
    let prefix = reader.byte()?;
    let high = (!prefix >> 4) & 8;
    vex(reader, prefix, high, false)
}

fn vex3(reader: &mut Reader<impl Iterator<Item = u8>>) -> Option<Operation> {
    let (map, prefix) = (reader.byte()?, reader.byte()?);
    if map & 0x1f != 1 {
        return None;
    }
    vex(reader, prefix, (!map >> 4) & 8, prefix & 0x80 != 0)
}

/// The part that both VEX forms share: `vvvv`, length and mandatory prefix in the last byte.
fn vex(
    reader: &mut Reader<impl Iterator<Item = u8>>,
    prefix: u8,
    high: u8,
    wide: bool,
) -> Option<Operation> {
    if prefix & 0x78 != 0x78 {
        return None;
    }
    let bytes = if prefix & 4 == 0 { 16 } else { 32 };
    let opcode = reader.byte()?;
    let register = reader.memory_operand()?.field | high;
    let shape = vector_move(opcode, prefix & 3, bytes, wide, Form::Vex)?;
    Some(shape.with(register, Form::Vex, None))
}

fn evex(reader: &mut Reader<impl Iterator<Item = u8>>) -> Option<Operation> {
    let (first, second, third) = (reader.byte()?, reader.byte()?, reader.byte()?);
    let plain_map = first & 0x0f == 1;
    let no_second_source = second & 0x7c == 0x7c && third & 8 != 0;
    let no_broadcast = third & 0x10 == 0;
    if !(plain_map && no_second_source && no_broadcast) {
        return None;
    }
    let bytes = match (third >> 5) & 3 {
        0 => 16,
        1 => 32,
        2 => 64,
        _ => return None,
    };
    let opcode = reader.byte()?;
    let high = (!first >> 4) & 8 | (!first & 0x10);
    let register = reader.memory_operand()?.field | high;
    let (mandatory, wide) = (second & 3, second & 0x80 != 0);
    let shape = vector_move(opcode, mandatory, bytes, wide, Form::Evex)?;
    let zeroes = third & 0x80 != 0;
    let mask = match third & 7 {
        0 if zeroes => return None,
        0 => None,
        // Elements of whole-register moves only; scalar ones know other masks.
        register if shape.bytes == bytes => {
            let element = element_bytes(opcode, mandatory, wide);
            Some(Mask { register, element, zeroes })
        }
        _ => return None,
    };
    Some(shape.with(register, Form::Evex, mask))
}

/// Bytes of an element of an EVEX move of whole registers.
fn element_bytes(opcode: u8, mandatory: u8, wide: bool) -> u8 {
    match (opcode, mandatory) {
        (0x6f | 0x7f, 3) => 1 + u8::from(wide),
        _ => 4 * (1 + u8::from(wide)),
    }
}
