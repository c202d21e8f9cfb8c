//! The table, by family.

mod control;
mod convert;
mod float;
mod integer;
mod memory;
mod packed;
mod uniform;
mod warp;

use super::field::Encoding;

const FAMILIES: [&[Encoding]; 8] = [
    integer::TABLE,
    float::TABLE,
    packed::TABLE,
    convert::TABLE,
    memory::TABLE,
    warp::TABLE,
    control::TABLE,
    uniform::TABLE,
];

/// The row of an operation.
pub(super) fn find(base: u16, form: u8, bits: u128) -> Option<&'static Encoding> {
    FAMILIES.iter().flat_map(|family| family.iter()).find(|row| {
        row.base == base
            && row.forms.contains(&form)
            && row.when.is_none_or(|(low, width, value)| {
                (bits >> low & ((1u128 << width) - 1)) as u64 == value
            })
    })
}

/// Words that several families use.
mod words {
    use crate::decode::field::{Choice, choice, flag, word};
    use crate::isa::Modifier::{self, *};

    pub(super) const ROUND: Choice = choice(78, 2, &[Unwritten, Rm, Rp, Rz]);
    pub(super) const FTZ: Choice = flag(80, &[Unwritten, Ftz]);
    pub(super) const SAT: Choice = flag(77, &[Unwritten, Sat]);
    pub(super) const COMBINE: &[Modifier] = &[And, Or, Xor];
    pub(super) const COMPARE: &[Modifier] =
        &[F, Lt, Eq, Le, Gt, Ne, Ge, Num, Nan, Ltu, Equ, Leu, Gtu, Neu, Geu, T];
    /// As above, but for what never and what always holds.
    pub(super) const COMPARE_DOUBLES: &[Modifier] =
        &[Min, Lt, Eq, Le, Gt, Ne, Ge, Num, Nan, Ltu, Equ, Leu, Gtu, Neu, Geu, Max];
    pub(super) const COMPARE_INTEGERS: &[Modifier] = &[F, Lt, Eq, Le, Gt, Ne, Ge, T];
    pub(super) const UNSIGNED: Choice = flag(73, &[U32, Unwritten]);
    pub(super) const LUT: Choice = word(&[Lut]);
    pub(super) const CARRY: Choice = flag(74, &[Unwritten, X]);
}

/// A row, with what else it says.
macro_rules! row {
    ($opcode:ident $base:literal $forms:expr, [$($modifier:expr),* $(,)?], [$($slot:expr),* $(,)?]
     $(, $field:ident = $value:expr)* $(,)?) => {
        Encoding::new(Opcode::$opcode, $base, $forms, &[$($modifier),*], &[$($slot),*])
            $(.$field($value))*
    };
}
use row;

/// Forms of an operation with three sources.
const THREE: &[u8] = &[1, 2, 3, 4, 5, 6, 7];
/// Forms of an operation with two sources, the second being flexible, or with one.
const TWO: &[u8] = &[1, 4, 5, 6];
/// Forms of an addition: the flexible source takes the third one's place.
const SUM: &[u8] = &[1, 2, 3, 7];
