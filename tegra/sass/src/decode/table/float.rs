//! Rows of the decoding table: single and double precision.

use super::words::*;
use crate::decode::field::{Choice, Encoding, Kind, What, choice, flag, show, word};
use crate::isa::Modifier::*;
use crate::isa::Opcode;
use What::{A, B, C, D, P, Q, W};

const FMZ: Choice = choice(76, 1, &[Unwritten, Fmz]);
/// Power of two by which a product is divided or multiplied.
const SCALE: Choice = choice(84, 3, &[Invalid, D8, D4, D2, Unwritten, M2, M4, M8]);
const FUNCTION: Choice = choice(74, 4, &[Cos, Sin, Ex2, Lg2, Rcp, Rsq, Rcp64h, Rsq64h, Sqrt, Tanh]);

pub(super) const TABLE: &[Encoding] = &[
    row!(Fadd 0x021 SUM, [FTZ, ROUND, SAT], [show(D), show(A(Kind::Float)), show(W(Kind::Float))],
        fixed = &[(64, 8, 0)]),
    row!(Fmul 0x020 TWO, [FTZ, FMZ, SCALE, ROUND, SAT], [
        show(D), show(A(Kind::Float)), show(B(Kind::Float)),
    ]),
    row!(Ffma 0x023 THREE, [FTZ, FMZ, ROUND, SAT], [
        show(D), show(A(Kind::Float)), show(B(Kind::Float)), show(C(Kind::Float)),
    ]),
    row!(Fmnmx 0x009 TWO, [FTZ, flag(81, &[Unwritten, Nan]), flag(82, &[Unwritten, Xorsign])], [
        show(D), show(A(Kind::Float)), show(B(Kind::Float)), show(Q(87, 90)),
    ]),
    row!(Fsel 0x008 TWO, [FTZ], [
        show(D), show(A(Kind::Float)), show(B(Kind::Float)), show(Q(87, 90)),
    ]),
    row!(Fset 0x00a TWO, [word(&[Bf]), choice(76, 4, COMPARE), FTZ, choice(74, 2, COMBINE)], [
        show(D), show(A(Kind::Float)), show(B(Kind::Float)), show(Q(87, 90)),
    ]),
    row!(Fsetp 0x00b TWO, [choice(76, 4, COMPARE), FTZ, choice(74, 2, COMBINE)], [
        show(P(81)), show(P(84)), show(A(Kind::Float)), show(B(Kind::Float)), show(Q(87, 90)),
    ]),
    row!(Fchk 0x102 TWO, [], [show(P(81)), show(A(Kind::Float)), show(W(Kind::Float))]),
    row!(Mufu 0x108 TWO, [FUNCTION, word(&[F16])], [show(D), show(W(Kind::FloatHalf))],
        when = Some((73, 1, 1))),
    // Operands are the upper words of doubles.
    row!(Mufu 0x108 TWO, [FUNCTION], [show(D), show(W(Kind::Double))], when = Some((75, 3, 3))),
    row!(Mufu 0x108 TWO, [FUNCTION], [show(D), show(W(Kind::Float))]),
    row!(Dadd 0x029 SUM, [ROUND], [show(D), show(A(Kind::Double)), show(C(Kind::Double))]),
    row!(Dmul 0x028 TWO, [ROUND], [show(D), show(A(Kind::Double)), show(B(Kind::Double))]),
    row!(Dfma 0x02b THREE, [ROUND], [
        show(D), show(A(Kind::Double)), show(B(Kind::Double)), show(C(Kind::Double)),
    ]),
    row!(Dsetp 0x02a SUM, [choice(76, 4, COMPARE_DOUBLES), choice(74, 2, COMBINE)], [
        show(P(81)), show(P(84)), show(A(Kind::Double)), show(W(Kind::Double)), show(Q(87, 90)),
    ]),
];
