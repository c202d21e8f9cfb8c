//! Instructions of the random programs: PTX, and a scalar model from the PTX manual (ISA 8.5,
//! chapter 9.7).

use half::f16;

use super::{LANES, Random};

/// Three operands of each lane.
type Operands = [[u32; 3]; LANES];

/// Result of three operands in one lane.
type Model = fn(u32, u32, u32) -> u32;

/// One instruction.
#[derive(Clone, Copy, Debug)]
pub(super) enum Op {
    /// The same operation in each lane.
    Lane(&'static str, Model),
    /// Any function of three bits, by its truth table.
    Lop3(u8),
    /// A shuffle of the first operand: mode, and lane or distance.
    Shuffle(&'static str, usize),
    /// Lanes whose first operand is less than the second.
    Ballot,
}

impl Op {
    pub(super) fn random(random: &mut Random) -> Self {
        match random.below(TABLE.len() + 8) {
            0..4 => Self::Lop3(random.next() as u8),
            4..7 => {
                let mode = ["bfly", "up", "down", "idx"][random.below(4)];
                Self::Shuffle(mode, random.below(LANES))
            }
            7 => Self::Ballot,
            at => {
                let (ptx, model) = TABLE[at - 8];
                Self::Lane(ptx, model)
            }
        }
    }

    /// PTX of the instruction: result `%0`, operands `%1`, `%2`, `%3`. Operands may be unused.
    pub(super) fn ptx(self) -> String {
        match self {
            Self::Lane(ptx, _) => match ptx.split_once('!') {
                // Floating-point values need their own registers.
                Some((_, ptx)) => format!(
                    ".reg .f32 x, y, z, w; mov.b32 x, %1; mov.b32 y, %2; mov.b32 z, %3; {ptx}; \
                     mov.b32 %0, w;"
                ),
                None => format!("{ptx};"),
            },
            Self::Lop3(table) => format!("lop3.b32 %0, %1, %2, %3, {table};"),
            Self::Shuffle(mode, by) => {
                // Without segments: the clamp is the last lane, or the first for `up`.
                let clamp = if mode == "up" { 0 } else { 31 };
                format!("shfl.sync.{mode}.b32 %0, %1, {by}, {clamp}, 0xffffffff;")
            }
            Self::Ballot => {
                ".reg .pred p; setp.lt.u32 p, %1, %2; vote.sync.ballot.b32 %0, p, 0xffffffff;"
                    .into()
            }
        }
    }

    pub(super) fn evaluate(self, lanes: &Operands) -> [u32; LANES] {
        match self {
            Self::Lane(_, model) => lanes.map(|[a, b, c]| model(a, b, c)),
            Self::Lop3(table) => lanes.map(|[a, b, c]| {
                (0..32).fold(0, |sum, bit| {
                    let of = |word: u32| word >> bit & 1;
                    let index = of(a) << 2 | of(b) << 1 | of(c);
                    sum | u32::from(table >> index & 1) << bit
                })
            }),
            Self::Shuffle(mode, by) => std::array::from_fn(|lane| {
                let from = match mode {
                    "bfly" => lane ^ by,
                    "up" => lane.checked_sub(by).unwrap_or(lane),
                    "down" if lane + by < LANES => lane + by,
                    "down" => lane,
                    _ => by,
                };
                lanes[from][0]
            }),
            Self::Ballot => {
                let below = |(lane, [a, b, _]): (usize, &[u32; 3])| u32::from(a < b) << lane;
                [lanes.iter().enumerate().map(below).sum(); LANES]
            }
        }
    }
}

/// Per-lane instructions; behind `!` those on floating-point registers x, y, z.
const TABLE: &[(&str, Model)] = &[
    ("add.u32 %0, %1, %2", |a, b, _| a.wrapping_add(b)),
    ("sub.u32 %0, %1, %2", |a, b, _| a.wrapping_sub(b)),
    ("mul.lo.u32 %0, %1, %2", |a, b, _| a.wrapping_mul(b)),
    ("mul.hi.u32 %0, %1, %2", |a, b, _| ((u64::from(a) * u64::from(b)) >> 32) as u32),
    ("mul.hi.s32 %0, %1, %2", |a, b, _| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32),
    ("mad.lo.u32 %0, %1, %2, %3", |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
    ("mad.hi.u32 %0, %1, %2, %3", |a, b, c| {
        (((u64::from(a) * u64::from(b)) >> 32) as u32).wrapping_add(c)
    }),
    ("sad.u32 %0, %1, %2, %3", |a, b, c| a.abs_diff(b).wrapping_add(c)),
    ("min.s32 %0, %1, %2", |a, b, _| (a as i32).min(b as i32) as u32),
    ("max.s32 %0, %1, %2", |a, b, _| (a as i32).max(b as i32) as u32),
    ("min.u32 %0, %1, %2", |a, b, _| a.min(b)),
    ("max.u32 %0, %1, %2", |a, b, _| a.max(b)),
    ("abs.s32 %0, %1", |a, _, _| (a as i32).wrapping_abs() as u32),
    ("neg.s32 %0, %1", |a, _, _| a.wrapping_neg()),
    ("shl.b32 %0, %1, %2", |a, b, _| a.checked_shl(b).unwrap_or(0)),
    ("shr.u32 %0, %1, %2", |a, b, _| a.checked_shr(b).unwrap_or(0)),
    ("shr.s32 %0, %1, %2", |a, b, _| ((a as i32) >> b.min(31)) as u32),
    ("shf.l.wrap.b32 %0, %1, %2, %3", |a, b, c| (funnel(a, b) << (c & 31) >> 32) as u32),
    ("shf.r.wrap.b32 %0, %1, %2, %3", |a, b, c| (funnel(a, b) >> (c & 31)) as u32),
    ("shf.r.clamp.b32 %0, %1, %2, %3", |a, b, c| (funnel(a, b) >> c.min(32)) as u32),
    ("prmt.b32 %0, %1, %2, %3", permute),
    ("popc.b32 %0, %1", |a, _, _| a.count_ones()),
    ("clz.b32 %0, %1", |a, _, _| a.leading_zeros()),
    ("brev.b32 %0, %1", |a, _, _| a.reverse_bits()),
    ("dp4a.u32.u32 %0, %1, %2, %3", |a, b, c| {
        let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
        products.fold(c, |sum, (a, b)| sum.wrapping_add(u32::from(a) * u32::from(b)))
    }),
    ("dp4a.s32.s32 %0, %1, %2, %3", |a, b, c| {
        let products = a.to_le_bytes().into_iter().zip(b.to_le_bytes());
        products.fold(c, |sum, (a, b)| {
            sum.wrapping_add((i32::from(a as i8) * i32::from(b as i8)) as u32)
        })
    }),
    (".reg .pred p; setp.lt.s32 p, %1, %2; selp.b32 %0, %2, %3, p", |a, b, c| {
        if (a as i32) < b as i32 { b } else { c }
    }),
    (
        ".reg .pred p; setp.ge.u32 p, %1, %2; selp.b32 %0, %1, %3, p",
        |a, b, c| {
            if a >= b { a } else { c }
        },
    ),
    ("!add.rn.f32 w, x, y", |a, b, _| number(real(a) + real(b))),
    ("!sub.rn.f32 w, x, y", |a, b, _| number(real(a) - real(b))),
    ("!mul.rn.f32 w, x, y", |a, b, _| number(real(a) * real(b))),
    ("!fma.rn.f32 w, x, y, z", |a, b, c| number(real(a).mul_add(real(b), real(c)))),
    ("!min.f32 w, x, y", |a, b, _| extreme(a, b, true)),
    ("!max.f32 w, x, y", |a, b, _| extreme(a, b, false)),
    ("!.reg .pred p; setp.lt.f32 p, x, y; selp.f32 w, x, z, p", |a, b, c| {
        if real(a) < real(b) { a } else { c }
    }),
    ("!.reg .pred p; setp.neu.f32 p, x, y; selp.f32 w, y, z, p", |a, b, c| {
        if real(a) == real(b) { c } else { b }
    }),
    ("!cvt.rni.s32.f32 %0, x; mov.b32 w, %0", |a, _, _| real(a).round_ties_even() as i32 as u32),
    ("!cvt.rzi.s32.f32 %0, x; mov.b32 w, %0", |a, _, _| real(a) as i32 as u32),
    ("!cvt.rzi.u32.f32 %0, x; mov.b32 w, %0", |a, _, _| real(a) as u32),
    ("!cvt.rn.f32.s32 w, %1", |a, _, _| (a as i32 as f32).to_bits()),
    ("!cvt.rn.f32.u32 w, %1", |a, _, _| (a as f32).to_bits()),
    ("!.reg .b16 h; cvt.rn.f16.f32 h, x; cvt.f32.f16 w, h", |a, _, _| {
        number(half(f16::from_f32(real(a))).to_f32())
    }),
    ("add.rn.f16x2 %0, %1, %2", |a, b, _| halves(a, b, 0, |a, b, _| f16::from_f32(a + b))),
    ("mul.rn.f16x2 %0, %1, %2", |a, b, _| halves(a, b, 0, |a, b, _| f16::from_f32(a * b))),
    ("fma.rn.f16x2 %0, %1, %2, %3", |a, b, c| halves(a, b, c, fused)),
];

/// `high:low` of a funnel shift.
fn funnel(low: u32, high: u32) -> u64 {
    u64::from(high) << 32 | u64::from(low)
}

/// Byte permutation by the nibbles of `selector`; bit 3 of a nibble replicates the byte's sign.
fn permute(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = funnel(a, b).to_le_bytes();
    u32::from_le_bytes(std::array::from_fn(|i| {
        let nibble = selector >> (4 * i) & 0xf;
        let byte = bytes[nibble as usize & 7];
        if nibble & 8 == 0 { byte } else { (byte as i8 >> 7) as u8 }
    }))
}

fn real(word: u32) -> f32 {
    f32::from_bits(word)
}

/// Bits of a result; every NaN becomes the hardware's NaN.
fn number(value: f32) -> u32 {
    if value.is_nan() { 0x7fff_ffff } else { value.to_bits() }
}

/// Minimum or maximum; ignores a NaN, and -0 is less than 0.
fn extreme(a: u32, b: u32, smaller: bool) -> u32 {
    match (real(a).is_nan(), real(b).is_nan()) {
        (true, true) => 0x7fff_ffff,
        (true, false) => b,
        (false, true) => a,
        (false, false) => {
            let a_first = real(a).total_cmp(&real(b)).is_lt();
            if a_first == smaller { a } else { b }
        }
    }
}

fn half(value: f16) -> f16 {
    if value.is_nan() { f16::from_bits(0x7fff) } else { value }
}

/// Applies `model` to both halves of the words.
fn halves(a: u32, b: u32, c: u32, model: fn(f32, f32, f32) -> f16) -> u32 {
    let one = |shift: u32| {
        let of = |word: u32| f16::from_bits((word >> shift) as u16).to_f32();
        u32::from(half(model(of(a), of(b), of(c))).to_bits()) << shift
    };
    one(0) | one(16)
}

/// Fused `a * b + c` of halves, rounded once. The sum in `f64` may be inexact; rounding it to odd
/// makes the second rounding exact (Boldo and Melquiond, 2008).
fn fused(a: f32, b: f32, c: f32) -> f16 {
    // Exact: 22 bits.
    let product = f64::from(a) * f64::from(b);
    let c = f64::from(c);
    let sum = product + c;
    if !sum.is_finite() {
        return f16::from_f64(sum);
    }
    // Rounding error of the sum (Knuth's two-sum).
    let back = sum - product;
    let error = (product - (sum - back)) + (c - back);
    let odd = if error == 0.0 || sum.to_bits() & 1 == 1 {
        sum
    } else {
        let away = (error > 0.0) == (sum > 0.0);
        f64::from_bits(if away { sum.to_bits() + 1 } else { sum.to_bits() - 1 })
    };
    f16::from_f64(odd)
}
