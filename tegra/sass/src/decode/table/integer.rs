//! Rows of the decoding table: integers, bits and moves.

use super::words::*;
use crate::decode::field::{
    Choice, Encoding, Kind, Show, Slot, What, choice, flag, hide, show, some, with, word,
};
use crate::isa::Modifier::{self, *};
use crate::isa::Opcode;
use What::{A, B, ByteOf24, C, D, Number, P, Parts, Predicates, Q, Third, W};

const D0: Slot = show(D);
const SIGNED: Choice = flag(73, &[U32, Unwritten]);
const EXTENDED: Choice = flag(72, &[Unwritten, Ex]);
const LEFT: Choice = flag(76, &[L, R]);
const HIGH: Choice = flag(80, &[Unwritten, Hi]);

pub(super) const TABLE: &[Encoding] = &[
    row!(Iadd3 0x010 THREE, [CARRY], [
        D0, some(P(81)), some(P(84)), show(A(Kind::Carried)), show(B(Kind::Carried)),
        show(C(Kind::Carried)), with(X, Q(87, 90)), with(X, Q(77, 80)),
    ]),
    row!(Imad 0x024 THREE, [UNSIGNED, CARRY], [
        D0, show(A(Kind::Signed)), show(B(Kind::Signed)), show(C(Kind::Carried)),
        with(X, Q(87, 90)), hide(P(81)),
    ], fixed = &[(84, 3, 0)]),
    row!(Imad 0x025 THREE, [word(&[Wide]), UNSIGNED, CARRY], [
        D0, some(P(81)), show(A(Kind::Signed)), show(B(Kind::Signed)), show(C(Kind::Carried)),
        with(X, Q(87, 90)),
    ]),
    row!(Imad 0x027 THREE, [word(&[Hi]), UNSIGNED, CARRY], [
        D0, some(P(81)), show(A(Kind::Signed)), show(B(Kind::Signed)), show(C(Kind::Carried)),
        with(X, Q(87, 90)),
    ]),
    row!(Isetp 0x00c TWO,
    [choice(76, 3, COMPARE_INTEGERS), SIGNED, choice(74, 2, COMBINE), EXTENDED],
    [
        show(P(81)), show(P(84)), show(A(Kind::Signed)), show(B(Kind::Signed)), show(Q(87, 90)),
        with(Ex, Q(68, 71)),
    ]),
    row!(Imnmx 0x017 TWO, [SIGNED], [
        D0, show(A(Kind::Signed)), show(B(Kind::Signed)), show(Q(87, 90)),
    ]),
    row!(Iabs 0x013 TWO, [], [D0, show(W(Kind::Signed))]),
    row!(Lea 0x011 THREE,
        [HIGH, CARRY, flag(73, &[Unwritten, Sx32])],
        [
            D0, some(P(81)), show(A(Kind::Carried)), show(B(Kind::CarriedBits)), hide(C(Kind::Bits)),
            show(Number(75, 5)), with(X, Q(87, 90)),
        ], when = Some((80, 1, 0))),
    row!(Lea 0x011 THREE,
        [HIGH, CARRY, flag(73, &[Unwritten, Sx32])],
        [
            D0, some(P(81)), show(A(Kind::Carried)), show(B(Kind::CarriedBits)), show(C(Kind::Bits)),
            show(Number(75, 5)), with(X, Q(87, 90)),
        ], when = Some((73, 1, 0))),
    row!(Lea 0x011 THREE,
    [HIGH, CARRY, flag(73, &[Unwritten, Sx32])],
    [
        D0, some(P(81)), show(A(Kind::Carried)), show(B(Kind::CarriedBits)), hide(C(Kind::Bits)),
        show(Number(75, 5)), with(X, Q(87, 90)),
    ]),
    row!(Lop3 0x012 THREE, [LUT, flag(80, &[Unwritten, Pand])], [
        some(P(81)), D0, show(A(Kind::Bits)), show(B(Kind::Bits)), show(C(Kind::Bits)),
        show(Number(72, 8)), show(Q(87, 90)),
    ]),
    row!(Shf 0x019 THREE,
        [LEFT, flag(75, &[Unwritten, Modifier::W]), choice(73, 2, &[S64, U64, S32, U32]), HIGH],
        [D0, show(A(Kind::Bits)), show(B(Kind::Bits)), show(C(Kind::Bits))]),
    row!(Sgxt 0x01a TWO, [flag(75, &[Unwritten, Modifier::W]), SIGNED], [
        D0, show(A(Kind::Bits)), show(B(Kind::Bits)),
    ]),
    row!(Bmsk 0x01b TWO, [flag(75, &[Unwritten, Modifier::W])], [
        D0, show(A(Kind::Bits)), show(B(Kind::Bits)),
    ]),
    row!(Prmt 0x016 THREE, [choice(72, 3, &[Unwritten, F4e, B4e, Rc8, Ecl, Ecr, Rc16])], [
        D0, show(A(Kind::Bits)), show(B(Kind::Bits)), show(C(Kind::Bits)),
    ]),
    row!(Sel 0x007 TWO, [], [D0, show(A(Kind::Bits)), show(B(Kind::Bits)), show(Q(87, 90))]),
    row!(Mov 0x002 TWO, [], [D0, show(W(Kind::Bits))], fixed = &[(72, 4, 15)]),
    row!(Popc 0x109 TWO, [], [D0, show(W(Kind::Invertible))]),
    row!(Flo 0x100 TWO, [SIGNED, flag(74, &[Unwritten, Sh])], [
        D0, some(P(81)), show(W(Kind::Invertible)),
    ]),
    row!(Brev 0x101 TWO, [], [D0, show(W(Kind::Bits))]),
    row!(Idp 0x026 &[1, 4, 5, 6],
        [
            word(&[A4]),
            flag(73, &[U8, S8]), flag(74, &[U8, S8]),
        ],
        [D0, show(A(Kind::Bits)), show(B(Kind::Bits)), show(C(Kind::Integer))],
        when = Some((76, 2, 0))),
    row!(Idp 0x026 &[1, 4, 5, 6],
        [
            word(&[A2]), flag(77, &[Lo, Hi]),
            flag(73, &[U16, S16]), flag(74, &[U8, S8]),
        ],
        [D0, show(A(Kind::Bits)), show(B(Kind::Bits)), show(C(Kind::Integer))],
        when = Some((76, 1, 1))),
    row!(Vabsdiff 0x014 THREE, [SIGNED], [
        D0, some(P(81)), show(A(Kind::Bits)), show(B(Kind::Bits)), show(C(Kind::Bits)),
    ]),
    row!(Vabsdiff4 0x015 THREE, [flag(73, &[U8, Unwritten]), flag(75, &[Unwritten, Acc])], [
        D0, some(P(81)), show(A(Kind::Bits)), show(B(Kind::Bits)), show(C(Kind::Bits)),
    ]),
    row!(I2i 0x038 TWO, [choice(76, 2, &[U8, S8, U16, S16]), word(&[S32]), word(&[Sat])], [
        D0, show(W(Kind::Bits)),
    ]),
    row!(P2r 0x003 &[4], [choice(76, 2, &[Unwritten, B1, B2, B3])], [
        show(D), show(Predicates), show(A(Kind::Bits)), show(B(Kind::Bits)),
    ]),
    row!(R2p 0x004 &[4], [], [
        show(Predicates), show(ByteOf24), Slot { what: B(Kind::Bits), show: Show::UnlessBits(0xff) },
    ]),
    row!(Plop3 0x01c &[4], [LUT], [
        show(P(81)), show(P(84)), show(Q(87, 90)), show(Q(77, 80)), show(Third),
        show(Parts((64, 3), (72, 5))), show(Number(16, 8)),
    ]),
    row!(Plop3 0x01f &[1, 5], [LUT], [
        show(P(81)), show(P(84)), show(A(Kind::Sign)), show(B(Kind::Sign)), show(C(Kind::Sign)),
        show(Number(72, 8)), show(Number(16, 8)),
    ]),
];
