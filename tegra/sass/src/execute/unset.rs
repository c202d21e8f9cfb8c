//! Propagation of undefined bits from sources to results.
//!
//! Exact for moves, shifts, permutations and, where a defined bit decides, logic. Sums and products
//! are undefined from the lowest undefined bit upwards, packed halves independently of each other.
//! The results of other operations are undefined if any source bit is.

use super::apply_one;
use super::integer::logic_word;
use crate::program::op::{Combine, Format, Integer, Lane, carried};

/// A word and its undefined bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Partial {
    pub(crate) value: u32,
    pub(crate) unset: u32,
}

impl Partial {
    /// A fully defined word.
    pub(crate) const fn known(value: u32) -> Self {
        Self { value, unset: 0 }
    }

    fn is(self, value: u32) -> bool {
        self.unset == 0 && self.value == value
    }

    /// Shift amount of a multiplication by this word, if it is a power of two.
    fn shift(self) -> Option<u32> {
        (self.unset == 0 && self.value.is_power_of_two()).then(|| self.value.trailing_zeros())
    }

    fn plus(self, other: Self) -> Self {
        let unset = if self.is(0) {
            other.unset
        } else if other.is(0) {
            self.unset
        } else {
            carried(self.unset | other.unset)
        };
        Self { value: self.value.wrapping_add(other.value), unset }
    }

    fn times(self, other: Self) -> Self {
        let unset = match (self.shift(), other.shift()) {
            _ if self.is(0) || other.is(0) => 0,
            (_, Some(shift)) => self.unset << shift,
            (Some(shift), _) => other.unset << shift,
            _ => carried(self.unset | other.unset),
        };
        Self { value: self.value.wrapping_mul(other.value), unset }
    }
}

/// Returns all ones if any bit is undefined.
pub(crate) const fn any(unset: u32) -> u32 {
    if unset == 0 { 0 } else { !0 }
}

fn halves(unset: u32) -> u32 {
    let half = |mask: u32| if unset & mask == 0 { 0 } else { mask };
    half(0xffff) | half(0xffff_0000)
}

/// Undefined bits of a bitwise operation: those that can be either.
pub(crate) fn logic(table: u8, sources: [Partial; 3]) -> u32 {
    let (mut always, mut ever) = (!0, 0);
    for choice in 0..8u32 {
        let pick = |bit: u32| {
            let Partial { value, unset } = sources[2 - bit as usize];
            if choice >> bit & 1 == 1 { value | unset } else { value & !unset }
        };
        let result = logic_word(table, pick(2), pick(1), pick(0));
        always &= result;
        ever |= result;
    }
    ever & !always
}

/// Undefined bits of two lane masks combined.
pub(crate) fn combine(how: Combine, a: Partial, b: Partial) -> u32 {
    let table = match how {
        Combine::And => 0xc0,
        Combine::Or => 0xfc,
        Combine::Xor => 0x3c,
    };
    logic(table, [a, b, Partial::known(0)])
}

/// Undefined bits of an operation's result; `p` is none when the condition is undefined.
pub(crate) fn lane(lane: &Lane, [a, b, c]: [Partial; 3], p: Option<bool>) -> u32 {
    let all = a.unset | b.unset | c.unset;
    // The operation moves bits independently of their values, so it can move the undefined mask
    // too.
    let moved = |amount: u32| {
        if b.unset & amount == 0 { apply_one(lane, a.unset, b.value, c.unset, false) } else { !0 }
    };
    match *lane {
        Lane::Move => a.unset,
        Lane::Select => match p {
            Some(true) => a.unset,
            Some(false) => b.unset,
            None => a.unset | b.unset | (a.value ^ b.value),
        },
        Lane::Logic { table } => logic(table, [a, b, c]),
        Lane::Permute => moved(0xffff),
        Lane::PermuteBy(_) => moved(3),
        Lane::Shift(shift) => moved(match (shift.wrap, shift.wide) {
            (true, true) => 63,
            (true, false) => 31,
            (false, _) => !0,
        }),
        Lane::Extend { wrap, .. } => moved(if wrap { 31 } else { !0 }),
        Lane::Reverse => moved(0),
        Lane::Add3 => a.plus(b).plus(c).unset,
        Lane::MultiplyAdd => a.times(b).plus(c).unset,
        Lane::ShiftAdd { shift } => a.times(Partial::known(1 << (shift & 31))).plus(b).unset,
        Lane::PackedAdd(_) | Lane::PackedMultiply(_) | Lane::PackedFused(_) => halves(all),
        Lane::PackedMinimum { .. } | Lane::PackedCompare { .. } if p.is_some() => halves(all),
        Lane::PackedAddWide { .. } => any(all & 0xffff),
        Lane::Pack { .. } => (any(a.unset) & 0xffff_0000) | (any(b.unset) & 0xffff),
        Lane::HalfFunction(_)
        | Lane::ToInteger { from: Format::Half, .. }
        | Lane::RoundToInteger { format: Format::Half, .. } => any(a.unset & 0xffff),
        Lane::FromInteger { from: Integer { bits: bits @ (8 | 16), .. }, .. } => {
            any(a.unset & ((1 << bits) - 1))
        }
        _ if p.is_none() => !0,
        _ => any(all),
    }
}
