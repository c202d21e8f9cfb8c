//! Rows of the decoding table: packed halves.

use super::words::*;
use crate::decode::field::{Choice, Encoding, Kind, Show, Slot, What, choice, flag, show, word};
use crate::isa::Modifier::*;
use crate::isa::Opcode;
use What::{A, B, C, D, P, Q, W};

const FMZ: Choice = flag(76, &[Unwritten, Fmz]);
const RELU: Choice = flag(79, &[Unwritten, Relu]);
const WIDE: Choice = flag(78, &[Unwritten, F32]);
const BRAIN: Choice = flag(85, &[Unwritten, Bf16V2]);
/// Predicate behind `.RELU`; its effect is undocumented.
const RECTIFIED: Slot = Slot { what: Q(87, 90), show: Show::UnlessTrueWith(Relu) };
const H: Kind = Kind::Halves;

pub(super) const TABLE: &[Encoding] = &[
    row!(Hadd2 0x030 SUM, [WIDE, FTZ, SAT], [show(D), show(A(H)), show(W(H))],
        fixed = &[(64, 8, 0)]),
    row!(Hmul2 0x032 TWO, [BRAIN, WIDE, FTZ, FMZ, SAT], [show(D), show(A(H)), show(B(H))]),
    row!(Hfma2 0x031 THREE, [BRAIN, WIDE, FTZ, FMZ, SAT, RELU], [
        show(D), show(A(H)), show(B(H)), show(C(H)), RECTIFIED,
    ], fixed = &[(86, 1, 0)]),
    row!(Hfma2 0x035 THREE, [word(&[Mma]), FTZ, FMZ, SAT, RELU], [
        show(D), show(A(Kind::PlainHalves)), show(B(Kind::PlainHalves)), show(C(Kind::PlainHalves)),
        RECTIFIED,
    ], fixed = &[(78, 1, 0)]),
    row!(Hmnmx2 0x040 TWO,
        [BRAIN, WIDE, FTZ, flag(81, &[Unwritten, Nan]), flag(82, &[Unwritten, Xorsign])],
        [show(D), show(A(H)), show(B(H)), show(Q(87, 90))]),
    row!(Hset2 0x033 SUM,
        [flag(71, &[Unwritten, Bf]), choice(76, 4, COMPARE), FTZ, choice(69, 2, COMBINE)],
        [show(D), show(A(H)), show(W(H)), show(Q(87, 90))]),
    row!(Hsetp2 0x034 SUM,
        [choice(76, 4, COMPARE), FTZ, flag(71, &[Unwritten, HAnd]), choice(69, 2, COMBINE)],
        [show(P(81)), show(P(84)), show(A(H)), show(W(H)), show(Q(87, 90))]),
];
