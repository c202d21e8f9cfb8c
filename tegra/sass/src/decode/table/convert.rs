//! Rows of the decoding table: conversions.

use super::words::*;
use crate::decode::field::{
    Choice, Encoding, Kind, What, choice, flag, show, split, with, without, word,
};
use crate::isa::Modifier::{self, *};
use crate::isa::Opcode;
use What::{A, B, C, D, Matrix, W};

/// Integer type that `F2I` produces: width, then sign.
const TO: Choice = split((75, 2), (72, 1), &[U8, U16, U32, U64, S8, S16, Unwritten, S64]);
/// Integer type that `I2F` reads: sign, then width.
const FROM: &[Modifier] = &[U8, S8, U16, S16, U32, Unwritten, U64, S64];
const INTEGRAL: Choice = choice(78, 2, &[Unwritten, Floor, Ceil, Trunc]);
const FLOAT: &[Modifier] = &[Invalid, F16, Unwritten, F64];
const FLOATS: &[Modifier] = &[Invalid, F16, F32, F64, Bf16];
/// Bits that select a half as the source.
const HALF: Option<(u8, u8, u64)> = Some((84, 2, 1));
/// Format that `FRND` reads and produces.
const SAME: Choice = split(
    (75, 2),
    (84, 2),
    &[
        Invalid, Invalid, Invalid, Invalid, Invalid, F16, Invalid, Invalid, Invalid, Invalid,
        Unwritten, Invalid, Invalid, Invalid, Invalid, F64,
    ],
);
const NTZ: Choice = flag(77, &[Unwritten, Ntz]);

pub(super) const TABLE: &[Encoding] = &[
    row!(F2i 0x105 TWO, [FTZ, TO, choice(84, 2, FLOAT), INTEGRAL, NTZ], [
        show(D), show(W(Kind::FloatHalf)),
    ], fixed = &[(86, 1, 0)], when = HALF),
    row!(F2i 0x105 TWO, [FTZ, TO, choice(84, 2, FLOAT), INTEGRAL, NTZ], [
        show(D), show(W(Kind::Float)),
    ], fixed = &[(86, 1, 0)]),
    row!(F2i 0x111 TWO, [FTZ, TO, choice(84, 2, FLOAT), INTEGRAL, NTZ], [
        show(D), show(W(Kind::FloatHalf)),
    ], fixed = &[(86, 1, 0)], when = HALF),
    row!(F2i 0x111 TWO, [FTZ, TO, choice(84, 2, FLOAT), INTEGRAL, NTZ], [
        show(D), show(W(Kind::Float)),
    ], fixed = &[(86, 1, 0)], when = Some((84, 2, 2))),
    row!(F2i 0x111 TWO, [FTZ, TO, choice(84, 2, FLOAT), INTEGRAL, NTZ], [
        show(D), show(W(Kind::Double)),
    ], fixed = &[(86, 1, 0)]),
    row!(I2f 0x106 TWO, [choice(75, 2, FLOAT), split((74, 1), (84, 2), FROM), ROUND], [
        show(D), show(W(Kind::Half)),
    ], fixed = &[(86, 1, 0)], when = Some((84, 2, 1))),
    row!(I2f 0x106 TWO, [choice(75, 2, FLOAT), split((74, 1), (84, 2), FROM), ROUND], [
        show(D), show(W(Kind::Signed)),
    ], fixed = &[(86, 1, 0)], when = Some((84, 2, 2))),
    row!(I2f 0x106 TWO, [choice(75, 2, FLOAT), split((74, 1), (84, 2), FROM), ROUND], [
        show(D), show(W(Kind::Byte)),
    ], fixed = &[(86, 1, 0)]),
    row!(I2f 0x112 TWO, [choice(75, 2, FLOAT), split((74, 1), (84, 2), FROM), ROUND], [
        show(D), show(W(Kind::Byte)),
    ], fixed = &[(86, 1, 0)], when = Some((84, 2, 0))),
    row!(I2f 0x112 TWO, [choice(75, 2, FLOAT), split((74, 1), (84, 2), FROM), ROUND], [
        show(D), show(W(Kind::Half)),
    ], fixed = &[(86, 1, 0)], when = Some((84, 2, 1))),
    row!(I2f 0x112 TWO, [choice(75, 2, FLOAT), split((74, 1), (84, 2), FROM), ROUND], [
        show(D), show(W(Kind::Bits)),
    ], fixed = &[(86, 1, 0)]),
    row!(I2fp 0x045 TWO,
        [word(&[F32]), flag(74, &[U32, S32]), choice(78, 2, &[Unwritten, Invalid, Invalid, Rz])],
        [show(D), show(W(Kind::Bits))],
        fixed = &[(75, 3, 2), (84, 2, 2)]),
    row!(F2f 0x104 TWO, [FTZ, choice(75, 3, FLOATS), choice(84, 2, FLOATS), ROUND], [
        show(D), show(W(Kind::FloatHalf)),
    ], fixed = &[(86, 1, 0)], when = HALF),
    row!(F2f 0x104 TWO, [FTZ, choice(75, 3, FLOATS), choice(84, 2, FLOATS), ROUND], [
        show(D), show(W(Kind::Float)),
    ], fixed = &[(86, 1, 0)]),
    row!(F2f 0x110 TWO,
        [FTZ, choice(75, 2, FLOATS), choice(84, 2, FLOATS), ROUND],
        [show(D), show(W(Kind::Double))],
        fixed = &[(77, 1, 0), (86, 1, 0)]),
    row!(Frnd 0x107 TWO, [FTZ, SAME, INTEGRAL], [show(D), show(W(Kind::FloatHalf))],
        fixed = &[(77, 1, 0), (86, 1, 0)], when = HALF),
    row!(Frnd 0x107 TWO, [FTZ, SAME, INTEGRAL], [show(D), show(W(Kind::Float))],
        fixed = &[(77, 1, 0), (86, 1, 0)]),
    row!(Frnd 0x113 TWO, [FTZ, SAME, INTEGRAL], [show(D), show(W(Kind::Double))],
        fixed = &[(77, 1, 0), (86, 1, 0)]),
    row!(F2fp 0x03e TWO,
        [
            flag(75, &[Unwritten, Relu]), flag(76, &[Unwritten, Bf16]), flag(78, &[PackAb, MergeC]),
            ROUND_PACK,
        ],
        [
            show(D), without(MergeC, A(Kind::Float)), show(B(Kind::Float)),
            with(MergeC, C(Kind::Bits)),
        ],
        fixed = &[(77, 1, 0)]),
    row!(F2ip 0x043 TWO, [flag(76, &[U8, S8]), word(&[F32]), INTEGRAL, word(&[Ntz])], [
        show(D), show(A(Kind::Float)), show(B(Kind::Float)), show(C(Kind::Bits)),
    ], fixed = &[(72, 4, 4), (77, 1, 0)]),
    row!(I2ip 0x039 TWO, [PACKED_TYPE, word(&[S32]), word(&[Sat])], [
        show(D), show(A(Kind::Bits)), show(B(Kind::Bits)), show(Matrix(64, "24")),
    ], when = Some((72, 2, 2)), fixed = &[(74, 2, 0)]),
    row!(I2ip 0x039 TWO, [PACKED_TYPE, word(&[S32]), word(&[Sat])], [
        show(D), show(A(Kind::Bits)), show(B(Kind::Bits)), show(Matrix(64, "28")),
    ], when = Some((72, 2, 3)), fixed = &[(74, 2, 0)]),
    row!(I2ip 0x039 TWO, [PACKED_TYPE, word(&[S32]), word(&[Sat])], [
        show(D), show(A(Kind::Bits)), show(B(Kind::Bits)), show(C(Kind::Bits)),
    ], fixed = &[(72, 4, 0)]),
];

/// Integer type that `I2IP` packs.
const PACKED_TYPE: Choice = choice(76, 3, &[U8, S8, U16, S16, U2, S2, U4, S4]);
const ROUND_PACK: Choice = choice(79, 2, &[Unwritten, Invalid, Invalid, Rz]);
