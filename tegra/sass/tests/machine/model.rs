//! Model of instructions for one lane, written from their descriptions independently of the
//! machine, with the simplest formula for each.

use half::{bf16, f16};
use sass::isa::{Immediate, Instruction, Modifier as M, Modify, Opcode as O, Operand, Part};

use super::numbers::{
    directed, directed_brain, directed_half, double_bits, finish, float_bits, flushed,
    flushed_halves, integer_type, joined, limits, nudged, pack, related, rounded, source, summed,
    to_integer,
};

/// A lane's state.
pub(crate) struct Lane<'a> {
    pub(crate) registers: &'a dyn Fn(u8) -> u32,
    pub(crate) predicates: u32,
    pub(crate) constants: &'a [u8],
}

/// Result of an instruction: its words, and the predicates that it sets.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Result {
    pub(crate) words: Vec<u32>,
    pub(crate) predicates: Vec<(u8, bool)>,
}

#[derive(Clone, Copy, PartialEq)]
enum Kind {
    Integer,
    Float,
    Half,
}

impl Lane<'_> {
    fn predicate(&self, operand: &Operand) -> bool {
        match operand {
            Operand::Predicate { index: 7, not } => !not,
            Operand::Predicate { index, not } => (self.predicates >> index & 1 == 1) != *not,
            Operand::UniformPredicate { index: 7, not } => !not,
            // Uniform predicates are false at the start.
            Operand::UniformPredicate { not, .. } => *not,
            other => panic!("no predicate: {other}"),
        }
    }

    fn raw(&self, operand: &Operand, word: u8) -> (u32, Modify) {
        match operand {
            Operand::Register { index: 255, modify } => (0, *modify),
            Operand::Register { index, modify } => ((self.registers)(index + word), *modify),
            Operand::Matrix(255, _) => (0, Modify::default()),
            Operand::Matrix(index, _) => ((self.registers)(index + word), Modify::default()),
            Operand::Uniform { modify, .. } => (0, *modify),
            Operand::Constant { offset, modify, .. } => {
                let at = *offset as usize + 4 * usize::from(word);
                (u32::from_le_bytes(self.constants[at..at + 4].try_into().unwrap()), *modify)
            }
            Operand::Immediate(value) => {
                let bits = match *value {
                    Immediate::Bits(bits)
                    | Immediate::Float(bits)
                    | Immediate::Half(bits)
                    | Immediate::Halves(bits)
                    | Immediate::Bfloats(bits) => bits,
                    Immediate::Double(high) => [0, high][usize::from(word)],
                    Immediate::Signed(value) => (value >> (32 * word)) as u32,
                };
                (bits, Modify::default())
            }
            other => panic!("no source: {other}"),
        }
    }

    fn word(&self, operand: &Operand, kind: Kind) -> u32 {
        let (mut value, modify) = self.raw(operand, 0);
        value = match modify.part {
            Part::LowHalf => value & 0xffff | value << 16,
            Part::HighHalf => value >> 16 | value & 0xffff_0000,
            Part::Half(1) => value >> 16,
            Part::Byte(byte) => value >> (8 * byte),
            _ => value,
        };
        let sign = match kind {
            Kind::Integer => 0,
            Kind::Float => 1 << 31,
            Kind::Half => 0x8000_8000,
        };
        if modify.absolute {
            value &= !sign;
        }
        if modify.invert {
            value = !value;
        }
        if modify.negate {
            value = if kind == Kind::Integer { value.wrapping_neg() } else { value ^ sign };
        }
        value
    }

    fn integer(&self, operand: &Operand) -> u32 {
        self.word(operand, Kind::Integer)
    }

    fn float(&self, operand: &Operand) -> f32 {
        f32::from_bits(self.word(operand, Kind::Float))
    }

    fn long(&self, operand: &Operand) -> u64 {
        u64::from(self.raw(operand, 0).0) | u64::from(self.raw(operand, 1).0) << 32
    }

    fn double(&self, operand: &Operand) -> f64 {
        let (_, modify) = self.raw(operand, 1);
        let mut value = f64::from_bits(self.long(operand));
        if modify.absolute {
            value = value.abs();
        }
        if modify.negate { -value } else { value }
    }

    /// Both halves; denormal ones are zero if the instruction flushes.
    fn halves(&self, i: &Instruction, operand: &Operand, brain: bool) -> [f64; 2] {
        let word = self.word(operand, Kind::Half);
        let word = flushed_halves(i, word, brain);
        [word as u16, (word >> 16) as u16].map(|bits| {
            if brain { bf16::from_bits(bits).to_f64() } else { f16::from_bits(bits).to_f64() }
        })
    }
}

/// Value that an addend adds: a negated one is its complement plus one.
fn added((raw, modify): (u32, Modify)) -> u64 {
    match (modify.negate, modify.invert) {
        (true, _) => u64::from(!raw) + 1,
        (_, true) => u64::from(!raw),
        _ => u64::from(raw),
    }
}

fn index(operand: &Operand) -> u8 {
    match operand {
        Operand::Predicate { index, .. } => *index,
        other => panic!("no predicate: {other}"),
    }
}

fn word(value: u32) -> Option<Result> {
    Some(Result { words: vec![value], predicates: vec![] })
}

fn long(value: u64) -> Option<Result> {
    Some(Result { words: vec![value as u32, (value >> 32) as u32], predicates: vec![] })
}

/// Two predicates, which the first two operands name.
fn pair(i: &Instruction, first: bool, second: bool) -> Option<Result> {
    let predicates = vec![(index(&i.operands[0]), first), (index(&i.operands[1]), second)];
    Some(Result { words: vec![], predicates })
}

/// The result of an instruction; `None` for one that has no model here.
pub(crate) fn evaluate(i: &Instruction, lane: &Lane<'_>) -> Option<Result> {
    let o = &i.operands;
    let int = |at: usize| lane.integer(&o[at]);
    let unsigned = i.has(M::U32);
    let wide = |value: u32| if unsigned { i64::from(value) } else { i64::from(value as i32) };
    match i.opcode {
        O::Mov => word(int(1)),
        O::Iadd3 => {
            // Carries are those of the sum of the addends after negation.
            let mut sum: u64 = o[3..6].iter().map(|operand| added(lane.raw(operand, 0))).sum();
            if i.has(M::X) {
                sum += u64::from(lane.predicate(&o[6])) + u64::from(lane.predicate(&o[7]));
            }
            let carries = sum >> 32;
            let predicates = vec![(index(&o[1]), carries >= 1), (index(&o[2]), carries >= 2)];
            Some(Result { words: vec![sum as u32], predicates })
        }
        O::Imad if i.has(M::Wide) || i.has(M::Hi) => {
            let product = i128::from(wide(int(2))) * i128::from(wide(int(3)));
            let (_, modify) = lane.raw(&o[4], 0);
            let c = if let Operand::Immediate(Immediate::Signed(value)) = o[4] {
                if unsigned { u64::from(value as u32) } else { value as u64 }
            } else {
                lane.long(&o[4])
            };
            let c = if modify.negate { c.wrapping_neg() } else { c };
            let c = if modify.invert { !c } else { c };
            let carry = if i.has(M::X) { lane.predicate(&o[5]) } else { false };
            let sum = u128::from(product as u64) + u128::from(c) + u128::from(carry);
            let words = if i.has(M::Hi) {
                vec![(sum >> 32) as u32]
            } else {
                vec![sum as u32, (sum >> 32) as u32]
            };
            Some(Result { words, predicates: vec![(index(&o[1]), sum >> 64 != 0)] })
        }
        O::Imad => {
            let carry = i.has(M::X) && lane.predicate(&o[4]);
            word(int(1).wrapping_mul(int(2)).wrapping_add(int(3)).wrapping_add(u32::from(carry)))
        }
        O::Isetp => {
            let order = wide(int(2)).cmp(&wide(int(3)));
            let truth = if i.has(M::Ex) && order.is_eq() {
                lane.predicate(&o[5])
            } else {
                related(i, Some(order))
            };
            let p = lane.predicate(&o[4]);
            pair(i, joined(i, truth, p), joined(i, !truth, p))
        }
        O::Imnmx => {
            let (a, b) = (int(1), int(2));
            let smaller = lane.predicate(&o[3]);
            word(if (wide(a) < wide(b)) == smaller { a } else { b })
        }
        O::Iabs => word((int(1) as i32).wrapping_abs() as u32),
        O::Lea => {
            let Operand::Immediate(Immediate::Bits(shift)) = o[5] else { return None };
            let (a, b) = (int(2), added(lane.raw(&o[3], 0)));
            let upper = if i.has(M::Sx32) { (a as i32 >> 31) as u32 } else { lane.integer(&o[4]) };
            let shifted = (u64::from(a) | u64::from(upper) << 32) << shift;
            let part = if i.has(M::Hi) { shifted >> 32 } else { shifted & 0xffff_ffff };
            let sum = part + b + u64::from(i.has(M::X) && lane.predicate(&o[6]));
            Some(Result {
                words: vec![sum as u32],
                predicates: vec![(index(&o[1]), sum >> 32 != 0)],
            })
        }
        O::Lop3 => {
            let Operand::Immediate(Immediate::Bits(table)) = o[5] else { return None };
            let (a, b, c) = (int(2), int(3), int(4));
            let mut d = 0;
            for bit in 0..32 {
                let entry = (a >> bit & 1) << 2 | (b >> bit & 1) << 1 | (c >> bit & 1);
                d |= (table >> entry & 1) << bit;
            }
            let p = lane.predicate(&o[6]);
            let truth = if i.has(M::Pand) { d != 0 && p } else { d != 0 || p };
            Some(Result { words: vec![d], predicates: vec![(index(&o[0]), truth)] })
        }
        O::Shf => {
            let (low, amount, high) = (int(1), int(2), int(3));
            let wide = i.has(M::U64) || i.has(M::S64);
            let width = if wide { 64 } else { 32 };
            let amount = if i.has(M::W) { amount % width } else { amount.min(width) };
            let value = u128::from(low) | u128::from(high) << 32;
            let result = if i.has(M::L) {
                value << amount
            } else if i.has(M::S32) || i.has(M::S64) {
                (i128::from(value as u64 as i64) >> amount) as u128
            } else {
                value >> amount
            };
            word(if i.has(M::Hi) { (result >> 32) as u32 } else { result as u32 })
        }
        _ => bits(i, lane),
    }
}

/// Permutations, selections, bits and dot products.
fn bits(i: &Instruction, lane: &Lane<'_>) -> Option<Result> {
    let o = &i.operands;
    let int = |at: usize| lane.integer(&o[at]);
    let unsigned = i.has(M::U32);
    let wide = |value: u32| if unsigned { i64::from(value) } else { i64::from(value as i32) };
    match i.opcode {
        O::Sgxt => {
            let bits = if i.has(M::W) { int(2) % 32 } else { int(2).min(32) };
            let value = u64::from(int(1)) & ((1u64 << bits) - 1);
            let negative = !unsigned && bits > 0 && value >> (bits - 1) & 1 == 1;
            word(if negative { (value | !0u64 << bits) as u32 } else { value as u32 })
        }
        O::Bmsk => {
            let clamp = |v: u32| if i.has(M::W) { v % 32 } else { v.min(32) };
            let (first, count) = (clamp(int(1)), clamp(int(2)));
            word((0..count).map(|n| first + n).filter(|&n| n < 32).fold(0, |m, n| m | 1 << n))
        }
        O::Prmt => {
            let bytes: Vec<u8> =
                int(1).to_le_bytes().into_iter().chain(int(3).to_le_bytes()).collect();
            // The modes' bytes, the highest first, for each of the selector's four values.
            let modes = [
                (M::F4e, ["3210", "4321", "5432", "6543"]),
                (M::B4e, ["5670", "6701", "7012", "0123"]),
                (M::Rc8, ["0000", "1111", "2222", "3333"]),
                (M::Ecl, ["3210", "3211", "3222", "3333"]),
                (M::Ecr, ["0000", "1110", "2210", "3210"]),
                (M::Rc16, ["1010", "3232", "1010", "3232"]),
            ];
            let select = match modes.iter().find(|(mode, _)| i.has(*mode)) {
                None => int(2),
                Some((_, selectors)) => {
                    u32::from_str_radix(selectors[int(2) as usize % 4], 16).unwrap()
                }
            };
            let pick = |n: u32| {
                let nibble = select >> (4 * n) & 15;
                let byte = bytes[(nibble & 7) as usize];
                if nibble & 8 == 0 { byte } else { ((byte as i8) >> 7) as u8 }
            };
            word(u32::from_le_bytes([pick(0), pick(1), pick(2), pick(3)]))
        }
        O::Sel => word(if lane.predicate(&o[3]) { int(1) } else { int(2) }),
        O::Fsel => {
            let at = if lane.predicate(&o[3]) { 1 } else { 2 };
            word(lane.word(&o[at], Kind::Float))
        }
        O::Popc => word(int(1).count_ones()),
        O::Brev => word(int(1).reverse_bits()),
        O::Flo => {
            let value = int(2);
            let value = if !unsigned && (value as i32) < 0 { !value } else { value };
            let found = (0..32).rev().find(|n| value >> n & 1 == 1);
            let result = found.map_or(!0, |n| if i.has(M::Sh) { 31 - n } else { n });
            Some(Result { words: vec![result], predicates: vec![(index(&o[1]), found.is_some())] })
        }
        O::Idp => {
            let types: Vec<bool> = i
                .modifiers
                .iter()
                .filter(|m| matches!(m, M::S8 | M::U8 | M::S16 | M::U16))
                .map(|m| matches!(m, M::S8 | M::S16))
                .collect();
            let byte = |v: u32, n: u32, signed: bool| {
                let b = (v >> (8 * n)) as u8;
                if signed { i64::from(b as i8) } else { i64::from(b) }
            };
            let half = |v: u32, n: u32, signed: bool| {
                let h = (v >> (16 * n)) as u16;
                if signed { i64::from(h as i16) } else { i64::from(h) }
            };
            let (a, b) = (int(1), int(2));
            let sum: i64 = if i.has(M::A4) {
                (0..4).map(|n| byte(a, n, types[0]) * byte(b, n, types[1])).sum()
            } else {
                let base = if i.has(M::Hi) { 2 } else { 0 };
                (0..2).map(|n| half(a, n, types[0]) * byte(b, base + n, types[1])).sum()
            };
            word((sum + i64::from(int(3))) as u32)
        }
        O::Vabsdiff => {
            let difference = wide(int(2)) - wide(int(3));
            word((difference.unsigned_abs() as u32).wrapping_add(int(4)))
        }
        _ => single(i, lane),
    }
}

/// Single and double precision.
fn single(i: &Instruction, lane: &Lane<'_>) -> Option<Result> {
    let o = &i.operands;
    match i.opcode {
        O::Mufu if i.has(M::F16) => {
            let x = lane.halves(i, &o[1], false)[0];
            word(u32::from(directed_half(i, if i.has(M::Ex2) { x.exp2() } else { x.tanh() })))
        }
        O::Fadd => {
            let (a, b) = (source(i, lane.float(&o[1])), source(i, lane.float(&o[2])));
            word(finish(i, directed(i, summed(i, a, b))))
        }
        O::Fmul => {
            let (a, b) = (source(i, lane.float(&o[1])), source(i, lane.float(&o[2])));
            let factors = [
                (M::D8, 0.125),
                (M::D4, 0.25),
                (M::D2, 0.5),
                (M::M2, 2.0),
                (M::M4, 4.0),
                (M::M8, 8.0),
            ];
            let factor = factors.iter().find(|(m, _)| i.has(*m)).map_or(1.0, |(_, factor)| *factor);
            if i.has(M::Fmz) && (a == 0.0 || b == 0.0) {
                return word(0);
            }
            word(finish(i, directed(i, a * b * factor)))
        }
        O::Ffma => {
            let [a, b, c] = [1, 2, 3].map(|at| source(i, lane.float(&o[at])) as f32);
            if i.modifiers.iter().any(|m| matches!(m, M::Rm | M::Rp | M::Rz)) {
                let exact = summed(i, f64::from(a) * f64::from(b), f64::from(c));
                return word(finish(i, directed(i, exact)));
            }
            word(finish(i, a.mul_add(b, c)))
        }
        O::Fmnmx => {
            let (a, b) = (lane.float(&o[1]), lane.float(&o[2]));
            let smaller = lane.predicate(&o[3]);
            let (a, b) = (flushed(i, a), flushed(i, b));
            let raw = lane.raw(&o[1], 0).0 ^ lane.raw(&o[2], 0).0;
            let sign = if i.has(M::Xorsign) { raw & 0x8000_0000 } else { 0 };
            if i.has(M::Nan) && (a.is_nan() || b.is_nan()) || a.is_nan() && b.is_nan() {
                return word(0x7fff_ffff);
            }
            let first = b.is_nan() || !a.is_nan() && (a.total_cmp(&b).is_lt() == smaller);
            word(sign | if first { a.to_bits() } else { b.to_bits() })
        }
        O::Fset => {
            let (a, b) = (source(i, lane.float(&o[1])), source(i, lane.float(&o[2])));
            let truth = joined(i, related(i, a.partial_cmp(&b)), lane.predicate(&o[3]));
            word(if truth { 0x3f80_0000 } else { 0 })
        }
        O::Fsetp => {
            let (a, b) = (source(i, lane.float(&o[2])), source(i, lane.float(&o[3])));
            let (truth, p) = (related(i, a.partial_cmp(&b)), lane.predicate(&o[4]));
            pair(i, joined(i, truth, p), joined(i, !truth, p))
        }
        O::Dadd | O::Dmul | O::Dfma if i.modifiers.is_empty() => {
            let (a, b) = (lane.double(&o[1]), lane.double(&o[2]));
            let value = match i.opcode {
                O::Dadd => a + b,
                O::Dmul => a * b,
                _ => a.mul_add(b, lane.double(&o[3])),
            };
            long(double_bits(value))
        }
        O::Dsetp if !i.has(M::Min) && !i.has(M::Max) => {
            let (a, b) = (lane.double(&o[2]), lane.double(&o[3]));
            let (truth, p) = (related(i, a.partial_cmp(&b)), lane.predicate(&o[4]));
            pair(i, joined(i, truth, p), joined(i, !truth, p))
        }
        _ => halves(i, lane),
    }
}

/// Packed halves.
fn halves(i: &Instruction, lane: &Lane<'_>) -> Option<Result> {
    let o = &i.operands;
    let brain = i.has(M::Bf16V2);
    match i.opcode {
        O::Hadd2 if i.has(M::F32) => {
            let ([a, _], [b, _]) = (lane.halves(i, &o[1], false), lane.halves(i, &o[2], false));
            word(float_bits((a + b) as f32))
        }
        O::Hadd2 | O::Hmul2 | O::Hfma2 => {
            let (a, b) = (lane.halves(i, &o[1], brain), lane.halves(i, &o[2], brain));
            let c = if i.opcode == O::Hfma2 { lane.halves(i, &o[3], brain) } else { [0.0; 2] };
            let value = [0, 1].map(|n| match i.opcode {
                O::Hadd2 => nudged(a[n], b[n]),
                O::Hmul2 => a[n] * b[n],
                _ => nudged(a[n] * b[n], c[n]),
            });
            word(pack(brain, value, i))
        }
        O::Hmnmx2 => {
            let [a, b] = [1, 2].map(|at| flushed_halves(i, lane.word(&o[at], Kind::Half), brain));
            let (x, y) = (lane.halves(i, &o[1], brain), lane.halves(i, &o[2], brain));
            let smaller = lane.predicate(&o[3]);
            // The magnitudes are compared, but the signs are those that the halves had.
            let signs = [1, 2].map(|at| {
                let (raw, modify) = lane.raw(&o[at], 0);
                match modify.part {
                    Part::LowHalf => raw << 16 | raw & 0xffff,
                    Part::HighHalf => raw >> 16 | raw & 0xffff_0000,
                    _ => raw,
                }
            });
            let sign = if i.has(M::Xorsign) { (signs[0] ^ signs[1]) & 0x8000_8000 } else { 0 };
            let mut result = 0;
            for n in 0..2 {
                let bits = |v: u32| (v >> (16 * n)) & 0xffff;
                let (p, q) = (x[n as usize], y[n as usize]);
                let none = p.is_nan() && q.is_nan() || i.has(M::Nan) && (p.is_nan() || q.is_nan());
                let chosen = if none {
                    0x7fff
                } else if q.is_nan() || !p.is_nan() && p.total_cmp(&q).is_lt() == smaller {
                    bits(a) | bits(sign)
                } else {
                    bits(b) | bits(sign)
                };
                result |= chosen << (16 * n);
            }
            word(result)
        }
        O::Hset2 | O::Hsetp2 => {
            let first = if i.opcode == O::Hset2 { 1 } else { 2 };
            let (a, b) = (lane.halves(i, &o[first], false), lane.halves(i, &o[first + 1], false));
            let p = lane.predicate(&o[first + 2]);
            let truth = [0, 1].map(|n| related(i, a[n].partial_cmp(&b[n])));
            if i.opcode == O::Hset2 {
                let yes = if i.has(M::Bf) { 0x3c00 } else { 0xffff };
                let half = |t: bool| if joined(i, t, p) { yes } else { 0 };
                return word(half(truth[0]) | half(truth[1]) << 16);
            }
            let both = truth[0] && truth[1];
            let truth = if i.has(M::HAnd) { [both, !both] } else { truth };
            pair(i, joined(i, truth[0], p), joined(i, truth[1], p))
        }
        _ => conversions(i, lane),
    }
}

/// Conversions from and to integers, and packing.
fn conversions(i: &Instruction, lane: &Lane<'_>) -> Option<Result> {
    let o = &i.operands;
    let int = |at: usize| lane.integer(&o[at]);
    match i.opcode {
        O::I2i => {
            let (least, most) = limits(integer_type(i));
            word(i128::from(int(1) as i32).clamp(least, most) as u32)
        }
        O::I2ip => {
            let t = [(M::U16, 16, false), (M::S16, 16, true), (M::U8, 8, false), (M::S8, 8, true)];
            let t = t.into_iter().chain([(M::U4, 4, false), (M::S4, 4, true)]);
            let mut t = t.chain([(M::U2, 2, false), (M::S2, 2, true)]);
            let (_, bits, signed) = t.find(|(m, ..)| i.has(*m)).unwrap();
            let (least, most) = limits((bits, signed));
            let narrow = |at: usize| {
                (i128::from(int(at) as i32).clamp(least, most) & ((1 << bits) - 1)) as u64
            };
            let above = u64::from(int(3)) << (2 * bits);
            word((above | narrow(1) << bits | narrow(2)) as u32)
        }
        O::F2ip => {
            let narrow = |at: usize| (to_integer(i, f64::from(lane.float(&o[at]))) & 0xff) as u32;
            word(int(3) << 16 | narrow(1) << 8 | narrow(2))
        }
        O::F2fp => {
            let first = if i.has(M::MergeC) { 0.0 } else { f64::from(lane.float(&o[1])) };
            let value = [f64::from(lane.float(&o[2])), first];
            if !i.has(M::Rz) {
                return word(pack(i.has(M::Bf16), value, i));
            }
            let half = |value: f64| match i.has(M::Relu) && value < 0.0 {
                true => 0,
                false if i.has(M::Bf16) => u32::from(directed_brain(i, value)),
                false => u32::from(directed_half(i, value)),
            };
            word(half(value[0]) | half(value[1]) << 16)
        }
        O::F2i => {
            let value = if i.has(M::F64) {
                lane.double(&o[1])
            } else if i.has(M::F16) {
                f16::from_bits(lane.word(&o[1], Kind::Half) as u16).to_f64()
            } else {
                source(i, lane.float(&o[1]))
            };
            let value = to_integer(i, value);
            if integer_type(i).0 == 64 { long(value as u64) } else { word(value as u32) }
        }
        O::I2f | O::I2fp => {
            let (bits, signed) = integer_type(i);
            let raw = match o[1] {
                // As of a double, the upper word.
                Operand::Immediate(Immediate::Bits(upper)) if bits == 64 => u64::from(upper) << 32,
                _ if bits == 64 => lane.long(&o[1]),
                _ => u64::from(int(1)),
            };
            let value = raw & (u64::MAX >> (64 - bits));
            let negative = signed && value >> (bits - 1) == 1;
            let value = i128::from(value) - if negative { 1i128 << bits } else { 0 };
            if i.has(M::F64) {
                let mut near = value as f64;
                let (over, under) = (near as i128 > value, (near as i128) < value);
                if i.has(M::Rp) && under || i.has(M::Rz) && under && value < 0 {
                    near = near.next_up();
                } else if i.has(M::Rm) && over || i.has(M::Rz) && over && value > 0 {
                    near = near.next_down();
                }
                return long(near.to_bits());
            }
            if i.has(M::F16) {
                // Integers beyond double precision are beyond all halves anyway.
                return word(u32::from(directed_half(i, value as f64)));
            }
            let mut near = value as f32;
            // An f32 of this size is an integer: the comparison is exact.
            let over = near as i128 > value;
            let under = (near as i128) < value;
            if i.has(M::Rp) && under {
                near = near.next_up();
            } else if i.has(M::Rm) && over || i.has(M::Rz) && (over && value > 0) {
                near = near.next_down();
            } else if i.has(M::Rz) && under && value < 0 {
                near = near.next_up();
            }
            word(near.to_bits())
        }
        _ => rounding(i, lane),
    }
}

/// Conversions between formats, rounding to integers, and logic on predicates.
fn rounding(i: &Instruction, lane: &Lane<'_>) -> Option<Result> {
    let o = &i.operands;
    match i.opcode {
        O::F2f => {
            let formats: Vec<M> = (i.modifiers.iter().copied())
                .filter(|m| matches!(m, M::F16 | M::Bf16 | M::F32 | M::F64))
                .collect();
            let value = match formats[1] {
                M::F64 => lane.double(&o[1]),
                M::F32 => source(i, lane.float(&o[1])),
                _ => f16::from_bits(lane.word(&o[1], Kind::Half) as u16).to_f64(),
            };
            match formats[0] {
                M::Bf16 => word(u32::from(directed_brain(i, value))),
                M::F64 => long(double_bits(value)),
                M::F32 => word(float_bits(flushed(i, directed(i, value)))),
                _ => word(u32::from(directed_half(i, value))),
            }
        }
        O::Frnd if i.has(M::F64) => long(double_bits(rounded(i, lane.double(&o[1])))),
        O::Frnd if i.has(M::F16) => {
            let value = f16::from_bits(lane.word(&o[1], Kind::Half) as u16).to_f64();
            word(u32::from(directed_half(i, rounded(i, value))))
        }
        O::Frnd => word(float_bits(rounded(i, source(i, lane.float(&o[1]))) as f32)),
        O::Plop3 => {
            let numbers: Vec<u32> = o[5..7]
                .iter()
                .filter_map(|operand| match operand {
                    Operand::Immediate(Immediate::Bits(bits)) => Some(*bits),
                    _ => None,
                })
                .collect();
            let holds = |operand: &Operand| match operand {
                Operand::Predicate { .. } | Operand::UniformPredicate { .. } => {
                    lane.predicate(operand)
                }
                word => (lane.raw(word, 0).0 as i32) < 0,
            };
            let entry = o[2..5].iter().fold(0, |e, operand| e << 1 | u32::from(holds(operand)));
            let truth = |table: u32| table >> entry & 1 == 1;
            pair(i, truth(numbers[0]), truth(numbers[1]))
        }
        _ => None,
    }
}
