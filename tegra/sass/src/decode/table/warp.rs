//! Rows of the decoding table: shuffles, votes, matrices, special registers.

use super::words::ROUND;
use super::words::row;
use crate::decode::field::{
    Choice, Encoding, Kind, Show, Slot, What, choice, flag, show, some, split, without, word,
};
use crate::isa::Modifier::*;
use crate::isa::Opcode;
use What::{A, D, Matrix, Number, P, Q, R, Reg, Special, Ud, W};

const MODE: Choice = choice(58, 2, &[Idx, Up, Down, Bfly]);
const VOTES: Choice = choice(72, 2, &[All, Any, Eq]);
const GIVEN: Slot = show(A(Kind::Bits));

pub(super) const TABLE: &[Encoding] = &[
    row!(Shfl 0x189 &[1], [MODE], [show(P(81)), show(D), GIVEN, show(Reg(32)), show(Reg(64))]),
    row!(Shfl 0x189 &[2], [MODE], [show(P(81)), show(D), GIVEN, show(Reg(32)), show(Number(40, 13))]),
    row!(Shfl 0x189 &[4], [MODE], [show(P(81)), show(D), GIVEN, show(Number(53, 5)), show(Reg(64))]),
    row!(Shfl 0x189 &[7], [MODE], [
        show(P(81)), show(D), GIVEN, show(Number(53, 5)), show(Number(40, 13)),
    ]),
    row!(Match 0x1a1 &[1], [flag(79, &[All, Any]), flag(73, &[Unwritten, U64])], [
        without(Any, P(81)), show(D), GIVEN,
    ]),
    row!(Redux 0x1c4 &[1],
        [choice(78, 3, &[Unwritten, Or, Xor, Sum, Min, Max]), flag(73, &[Unwritten, S32])],
        [show(Ud), GIVEN]),
    row!(Vote 0x006 &[4], [VOTES], [
        Slot { what: D, show: Show::UnlessZero }, show(P(81)), show(Q(87, 90)),
    ]),
    row!(Voteu 0x086 &[4], [VOTES], [
        Slot { what: Ud, show: Show::UnlessZero }, show(What::Up(81)), show(Q(87, 90)),
    ]),
    row!(S2r 0x119 &[4], [], [show(D), show(Special)]),
    row!(S2ur 0x1c3 &[4], [], [show(Ud), show(Special)]),
    row!(Cs2r 0x005 &[4], [flag(80, &[B32, Unwritten])], [show(D), show(Special)]),
    row!(R2ur 0x1c2 &[1], [], [some(P(81)), show(Ud), GIVEN]),
    row!(Movm 0x03a &[1], [word(&[B16]), word(&[Mt88])], [show(D), GIVEN], fixed = &[(78, 2, 0)]),
    row!(Hmma 0x03c &[1],
        [
            split((75, 1), (78, 1), &[M1688, M16816, M1684]), flag(76, &[F16, F32]),
            choice(82, 2, &[Unwritten, Bf16, Tf32]),
        ],
        [show(D), GIVEN, show(Reg(32)), show(Reg(64))], when = Some((73, 1, 0))),
    row!(Hmma 0x03c &[1],
        [
            word(&[Sp]), split((75, 1), (78, 1), &[M1688, M16816, Invalid, M16832]),
            flag(76, &[F16, F32]), choice(82, 2, &[Unwritten, Bf16, Tf32]),
        ],
        [show(D), GIVEN, show(Reg(32)), show(Reg(64)), show(Reg(40)), show(Number(48, 2))]),
    row!(Dmma 0x03f &[1], [word(&[M884]), ROUND], [
        show(D), show(A(Kind::Double)), show(W(Kind::Double)), show(R(Kind::Double)),
    ]),
    row!(Bmma 0x03d &[1],
        [choice(75, 2, &[M88128, M168128, M168256]), flag(78, &[Xor, And]), word(&[Popc])],
        [show(D), show(Matrix(24, "ROW")), show(Matrix(32, "COL")), show(Reg(64))],
        fixed = &[(74, 1, 1), (80, 1, 1)]),
    row!(Imma 0x037 &[1],
        [
            word(&[Sp]),
            split((75, 1), (85, 2), &[
                Invalid, Invalid, Invalid, Invalid, Invalid, M16832, M16864, M168128,
            ]),
            split((76, 1), (83, 1), &[U8, S8, U4, S4]),
            split((78, 1), (84, 1), &[U8, S8, U4, S4]),
            flag(82, &[Unwritten, Sat]),
        ],
        [
            show(D), show(Matrix(24, "ROW")), show(Matrix(32, "COL")), show(Reg(64)), show(Reg(40)),
            show(Number(48, 2)),
        ],
        when = Some((72, 1, 1)), fixed = &[(74, 1, 1)]),
    row!(Imma 0x037 &[1],
        [
            split((75, 1), (85, 2), &[
                M8816, Invalid, M8832, Invalid, M16816, M16832, M16864,
            ]),
            split((76, 1), (83, 1), &[U8, S8, U4, S4]),
            split((78, 1), (84, 1), &[U8, S8, U4, S4]),
            flag(82, &[Unwritten, Sat]),
        ],
        [show(D), show(Matrix(24, "ROW")), show(Matrix(32, "COL")), show(Reg(64))],
        fixed = &[(74, 1, 1)]),
];
