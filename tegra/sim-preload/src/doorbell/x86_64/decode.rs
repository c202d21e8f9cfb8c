//! Decodes one x86-64 instruction that accesses memory, of the kinds that compilers and libc's
//! copies use on device registers: `mov` and its variants, `xchg`, compares, SSE, AVX and AVX-512
//! moves.
//!
//! The address comes from the fault, not from the instruction. Anything else is refused: a wrongly
//! decoded instruction would ring a wrong doorbell.
//!
//! `iced_x86` decodes. It builds its tables on the heap and under a lock at its first use, so
//! [`prepare`] uses it before there is a signal. Afterwards it only needs the stack.

use iced_x86::{Decoder, DecoderError, DecoderOptions, EncodingKind, Mnemonic as M, OpKind};

/// An instruction with one memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Instruction {
    /// Bytes of the encoding, at most 15.
    pub(crate) length: u8,
    pub(crate) operation: Operation,
}

/// Operation of an instruction on its memory operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    /// Stores `bytes` bytes of `from`.
    Store { from: Source, bytes: u8 },
    /// Loads `bytes` bytes into a register, extended to `to_bytes`.
    Load { to: Register, bytes: u8, to_bytes: u8, signed: bool },
    /// Exchanges memory and a register; compilers use it for a sequentially consistent store.
    Exchange { with: Register, bytes: u8 },
    /// An arithmetic operation that reads memory and sets the flags.
    Arithmetic { kind: Arithmetic, left: Side, with: Source, bytes: u8 },
    /// One step of `movs`: from the address in `rsi` to that in `rdi`, `rcx` times if it repeats.
    MoveString { bytes: u8, repeats: bool },
    /// One step of `stos`: `rax` to the address in `rdi`, `rcx` times if it repeats.
    StoreString { bytes: u8, repeats: bool },
    /// Stores `bytes` bytes of a vector register, starting at its byte `at`.
    VectorStore { register: u8, at: u8, bytes: u8, mask: Option<Mask> },
    /// Loads `bytes` bytes into a vector register at its byte `at`; clears the following bytes up
    /// to `zero_to`.
    VectorLoad { register: u8, at: u8, bytes: u8, zero_to: u8, mask: Option<Mask> },
}

/// Enabled elements of a vector register: those with their bit set in a mask register.
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

/// Side of the operation on which memory is.
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

/// Source of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Source {
    Register(Register),
    Immediate(u64),
}

/// Bytes of the longest valid encoding.
pub(crate) const LONGEST: usize = 15;

/// Reason for refusing an instruction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refused {
    /// The code ends inside the instruction.
    Cut,
    /// The instruction is not emulated.
    Unknown,
}

/// Builds the decoder's tables. Afterwards [`decode`] is async-signal-safe.
pub(crate) fn prepare() {
    let _ = Decoder::new(64, &[], DecoderOptions::NONE);
}

/// Decodes the first instruction of `code`.
pub(crate) fn decode(code: &[u8]) -> Result<Instruction, Refused> {
    let mut decoder = Decoder::new(64, code, DecoderOptions::NONE);
    let decoded = decoder.decode();
    if decoder.last_error() == DecoderError::NoMoreBytes {
        return Err(Refused::Cut);
    }
    let operation = operation(&decoded).ok_or(Refused::Unknown)?;
    Ok(Instruction { length: decoded.len() as u8, operation })
}

fn operation(code: &iced_x86::Instruction) -> Option<Operation> {
    if code.op_count() != 2
        || code.has_lock_prefix()
        || code.has_repne_prefix()
        || code.is_broadcast()
    {
        return None;
    }
    let bytes = u8::try_from(code.memory_size().size()).ok()?;
    let left = match (code.op0_kind(), code.op1_kind()) {
        (OpKind::MemoryESRDI, _) => return string(code, bytes),
        (OpKind::Memory, _) => Side::Memory,
        (OpKind::Register, OpKind::Memory) => Side::Register,
        _ => return None,
    };
    let load = |signed| {
        let to_bytes = code.op0_register().size() as u8;
        Some(Operation::Load { to: general(code.op0_register())?, bytes, to_bytes, signed })
    };
    let arithmetic = |kind| {
        let with = match left {
            Side::Memory => source(code)?,
            Side::Register => Source::Register(general(code.op0_register())?),
        };
        Some(Operation::Arithmetic { kind, left, with, bytes })
    };
    match (code.mnemonic(), left) {
        (M::Mov | M::Movnti, Side::Memory) => Some(Operation::Store { from: source(code)?, bytes }),
        (M::Mov | M::Movzx, Side::Register) => load(false),
        (M::Movsx | M::Movsxd, Side::Register) => load(true),
        (M::Xchg, Side::Memory) => {
            Some(Operation::Exchange { with: general(code.op1_register())?, bytes })
        }
        (M::Cmp, _) => arithmetic(Arithmetic::Compare),
        (M::Test, Side::Memory) => arithmetic(Arithmetic::Test),
        // Only with a register destination: with a memory destination these also write memory.
        (M::Add, Side::Register) => arithmetic(Arithmetic::Add),
        (M::Or, Side::Register) => arithmetic(Arithmetic::Or),
        (M::And, Side::Register) => arithmetic(Arithmetic::And),
        (M::Sub, Side::Register) => arithmetic(Arithmetic::Sub),
        (M::Xor, Side::Register) => arithmetic(Arithmetic::Xor),
        _ => vector_move(code, left, bytes),
    }
}

fn string(code: &iced_x86::Instruction, bytes: u8) -> Option<Operation> {
    let repeats = code.has_rep_prefix();
    match code.mnemonic() {
        M::Movsb | M::Movsw | M::Movsd | M::Movsq => Some(Operation::MoveString { bytes, repeats }),
        M::Stosb | M::Stosw | M::Stosd | M::Stosq => {
            Some(Operation::StoreString { bytes, repeats })
        }
        _ => None,
    }
}

/// A general register; none for segments and others.
fn general(register: iced_x86::Register) -> Option<Register> {
    use iced_x86::Register as Name;
    let high_byte = matches!(register, Name::AH | Name::CH | Name::DH | Name::BH);
    let number = register.full_register().number() as u8;
    register.is_gpr().then_some(Register { number, high_byte })
}

/// The second operand.
fn source(code: &iced_x86::Instruction) -> Option<Source> {
    match code.op1_kind() {
        OpKind::Register => general(code.op1_register()).map(Source::Register),
        _ => code.try_immediate(1).ok().map(Source::Immediate),
    }
}

/// The moved part of a vector register.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Part {
    Whole,
    /// The lowest element; a load clears the others.
    Scalar,
    /// A half of the low 16 bytes; a load leaves the rest unchanged.
    LowHalf,
    HighHalf,
}

/// A move between memory, which is on side `memory`, and a vector register.
fn vector_move(code: &iced_x86::Instruction, memory: Side, bytes: u8) -> Option<Operation> {
    let is_store = memory == Side::Memory;
    let register = if is_store { code.op1_register() } else { code.op0_register() };
    if !register.is_vector_register() {
        return None;
    }
    let part = match code.mnemonic() {
        M::Movups | M::Movupd | M::Movaps | M::Movapd | M::Movdqa | M::Movdqu => Part::Whole,
        M::Vmovups | M::Vmovupd | M::Vmovaps | M::Vmovapd => Part::Whole,
        M::Vmovdqa | M::Vmovdqa32 | M::Vmovdqa64 | M::Vmovdqu => Part::Whole,
        M::Vmovdqu8 | M::Vmovdqu16 | M::Vmovdqu32 | M::Vmovdqu64 => Part::Whole,
        M::Movntps | M::Movntpd | M::Movntdq => Part::Whole,
        M::Vmovntps | M::Vmovntpd | M::Vmovntdq => Part::Whole,
        M::Movss | M::Movsd | M::Movd | M::Movq => Part::Scalar,
        M::Vmovss | M::Vmovsd | M::Vmovd | M::Vmovq => Part::Scalar,
        M::Movlps | M::Movlpd | M::Vmovlps | M::Vmovlpd => Part::LowHalf,
        M::Movhps | M::Movhpd | M::Vmovhps | M::Vmovhpd => Part::HighHalf,
        _ => return None,
    };
    let mask = match code.op_mask() {
        iced_x86::Register::None => None,
        _ if part != Part::Whole => return None,
        mask => Some(Mask {
            register: mask.number() as u8,
            element: code.memory_size().element_size() as u8,
            zeroes: code.zeroing_masking(),
        }),
    };
    let register = register.number() as u8;
    let at = if part == Part::HighHalf { 8 } else { 0 };
    if is_store {
        return Some(Operation::VectorStore { register, at, bytes, mask });
    }
    let zero_to = match (part, code.encoding()) {
        (Part::LowHalf | Part::HighHalf, _) => at + bytes,
        (Part::Whole | Part::Scalar, EncodingKind::Legacy) => 16,
        (Part::Whole | Part::Scalar, _) => 64,
    };
    Some(Operation::VectorLoad { register, at, bytes, zero_to, mask })
}
