//! Forms, modifier fields and the row macro that several families of the table use.

use crate::decode::field::{Choice, choice, flag, word};
use crate::isa::Modifier::{self, *};

pub(super) const ROUND: Choice = choice(78, 2, &[Unwritten, Rm, Rp, Rz]);
pub(super) const FTZ: Choice = flag(80, &[Unwritten, Ftz]);
pub(super) const SAT: Choice = flag(77, &[Unwritten, Sat]);
pub(super) const COMBINE: &[Modifier] = &[And, Or, Xor];
pub(super) const COMPARE: &[Modifier] =
    &[F, Lt, Eq, Le, Gt, Ne, Ge, Num, Nan, Ltu, Equ, Leu, Gtu, Neu, Geu, T];
/// Like `COMPARE`, but the first and last values mean minimum and maximum.
pub(super) const COMPARE_DOUBLES: &[Modifier] =
    &[Min, Lt, Eq, Le, Gt, Ne, Ge, Num, Nan, Ltu, Equ, Leu, Gtu, Neu, Geu, Max];
pub(super) const COMPARE_INTEGERS: &[Modifier] = &[F, Lt, Eq, Le, Gt, Ne, Ge, T];
pub(super) const UNSIGNED: Choice = flag(73, &[U32, Unwritten]);
pub(super) const LUT: Choice = word(&[Lut]);
pub(super) const CARRY: Choice = flag(74, &[Unwritten, X]);

/// Declares a row, with optional further fields.
macro_rules! row {
    ($opcode:ident $base:literal $forms:expr, [$($modifier:expr),* $(,)?], [$($slot:expr),* $(,)?]
     $(, $field:ident = $value:expr)* $(,)?) => {
        Encoding::new(Opcode::$opcode, $base, $forms, &[$($modifier),*], &[$($slot),*])
            $(.$field($value))*
    };
}
pub(super) use row;

/// Forms of an operation with three sources.
pub(super) const THREE: &[u8] = &[1, 2, 3, 4, 5, 6, 7];
/// Forms of an operation with two sources, the second of which is flexible, or with one.
pub(super) const TWO: &[u8] = &[1, 4, 5, 6];
/// Forms of an addition: the flexible source is the third.
pub(super) const SUM: &[u8] = &[1, 2, 3, 7];
