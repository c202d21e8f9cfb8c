//! Rows of the decoding table: uniform registers.

use super::words::*;
use crate::decode::field::{
    Choice, Encoding, Kind, What, choice, flag, hide, show, some, with, word,
};
use crate::isa::Modifier::{self, *};
use crate::isa::Opcode;
use What::{A, B, Bank, C, Number, Parts, Ud, UniformIndexed, Up, Uq, W};

const UNIFORM: &[(u8, u8, u64)] = &[(91, 1, 1)];
const SIGNED: Choice = flag(73, &[U32, Unwritten]);
const FORMS: &[u8] = &[1, 4];
const EITHER: &[u8] = &[1, 2, 4];

pub(super) const TABLE: &[Encoding] = &[
    row!(Umov 0x082 &[4, 6], [], [show(Ud), show(W(Kind::Bits))], uniform = true),
    row!(Uldc 0x0b9 &[5],
        [choice(73, 3, &[U8, S8, U16, S16, Unwritten, B64])],
        [show(Ud), show(Bank)], uniform = true),
    row!(Uldc 0x0bb &[5],
        [choice(73, 3, &[U8, S8, U16, S16, Unwritten, B64])],
        [show(Ud), show(UniformIndexed)], uniform = true, fixed = UNIFORM),
    row!(Uiadd3 0x090 EITHER, [CARRY], [
        show(Ud), some(Up(81)), some(Up(84)), show(A(Kind::Carried)), show(B(Kind::Carried)),
        show(C(Kind::Carried)), with(X, Uq(87, 90)), with(X, Uq(77, 80)),
    ], uniform = true, fixed = UNIFORM),
    row!(Uimad 0x0a4 EITHER, [SIGNED, CARRY], [
        show(Ud), show(A(Kind::Signed)), show(B(Kind::Signed)), show(C(Kind::Carried)),
        with(X, Uq(87, 90)), hide(Up(81)),
    ], uniform = true, fixed = UNIFORM),
    row!(Uimad 0x0a5 EITHER, [word(&[Wide]), SIGNED, CARRY], [
        show(Ud), some(Up(81)), show(A(Kind::Signed)), show(B(Kind::Signed)), show(C(Kind::Carried)),
        with(X, Uq(87, 90)),
    ], uniform = true, fixed = UNIFORM),
    row!(Uimad 0x0a7 EITHER, [word(&[Hi]), SIGNED, CARRY], [
        show(Ud), some(Up(81)), show(A(Kind::Signed)), show(B(Kind::Signed)), show(C(Kind::Carried)),
        with(X, Uq(87, 90)),
    ], uniform = true, fixed = UNIFORM),
    row!(Uisetp 0x08c FORMS,
        [
            choice(76, 3, COMPARE_INTEGERS), SIGNED, choice(74, 2, COMBINE),
            flag(72, &[Unwritten, Ex]),
        ],
        [
            show(Up(81)), show(Up(84)), show(A(Kind::Signed)), show(B(Kind::Signed)),
            show(Uq(87, 90)), with(Ex, Uq(68, 71)),
        ], uniform = true, fixed = UNIFORM),
    row!(Ulea 0x091 EITHER, [flag(80, &[Unwritten, Hi]), CARRY, flag(73, &[Unwritten, Sx32])], [
        show(Ud), some(Up(81)), show(A(Kind::Carried)), show(B(Kind::CarriedBits)),
        hide(C(Kind::Bits)), show(Number(75, 5)), with(X, Uq(87, 90)),
    ], when = Some((80, 1, 0)), uniform = true, fixed = UNIFORM),
    row!(Ulea 0x091 EITHER, [flag(80, &[Unwritten, Hi]), CARRY, flag(73, &[Unwritten, Sx32])], [
        show(Ud), some(Up(81)), show(A(Kind::Carried)), show(B(Kind::CarriedBits)),
        show(C(Kind::Bits)), show(Number(75, 5)), with(X, Uq(87, 90)),
    ], when = Some((73, 1, 0)), uniform = true, fixed = UNIFORM),
    row!(Ulea 0x091 EITHER, [flag(80, &[Unwritten, Hi]), CARRY, flag(73, &[Unwritten, Sx32])], [
        show(Ud), some(Up(81)), show(A(Kind::Carried)), show(B(Kind::CarriedBits)),
        hide(C(Kind::Bits)), show(Number(75, 5)), with(X, Uq(87, 90)),
    ], uniform = true, fixed = UNIFORM),
    row!(Ulop3 0x092 EITHER, [LUT, flag(80, &[Unwritten, Pand])], [
        some(Up(81)), show(Ud), show(A(Kind::Bits)), show(B(Kind::Bits)), show(C(Kind::Bits)),
        show(Number(72, 8)), show(Uq(87, 90)),
    ], uniform = true, fixed = UNIFORM),
    row!(Ushf 0x099 EITHER,
        [
            flag(76, &[L, R]), flag(75, &[Unwritten, Modifier::W]), choice(73, 2, &[S64, U64, S32, U32]),
            flag(80, &[Unwritten, Hi]),
        ],
        [show(Ud), show(A(Kind::Bits)), show(B(Kind::Bits)), show(C(Kind::Bits))],
        uniform = true, fixed = UNIFORM),
    row!(Usgxt 0x09a FORMS, [flag(75, &[Unwritten, Modifier::W]), SIGNED], [
        show(Ud), show(A(Kind::Bits)), show(B(Kind::Bits)),
    ], uniform = true, fixed = UNIFORM),
    row!(Ubmsk 0x09b FORMS, [flag(75, &[Unwritten, Modifier::W])], [
        show(Ud), show(A(Kind::Bits)), show(B(Kind::Bits)),
    ], uniform = true, fixed = UNIFORM),
    row!(Uprmt 0x096 EITHER, [], [
        show(Ud), show(A(Kind::Bits)), show(B(Kind::Bits)), show(C(Kind::Bits)),
    ], uniform = true, fixed = &[(72, 3, 0), (91, 1, 1)]),
    row!(Usel 0x087 FORMS, [], [
        show(Ud), show(A(Kind::Bits)), show(B(Kind::Bits)), show(Uq(87, 90)),
    ], uniform = true, fixed = UNIFORM),
    row!(Upopc 0x0bf FORMS, [], [show(Ud), show(W(Kind::Invertible))],
        uniform = true, fixed = UNIFORM),
    row!(Uflo 0x0bd FORMS, [SIGNED, flag(74, &[Unwritten, Sh])], [
        show(Ud), some(Up(81)), show(W(Kind::Invertible)),
    ], uniform = true, fixed = UNIFORM),
    row!(Ubrev 0x0be FORMS, [], [show(Ud), show(W(Kind::Bits))], uniform = true, fixed = UNIFORM),
    row!(Uplop3 0x09c &[4], [LUT], [
        show(Up(81)), show(Up(84)), show(Uq(87, 90)), show(Uq(77, 80)), show(Uq(68, 71)),
        show(Parts((64, 3), (72, 5))), show(Number(16, 8)),
    ], uniform = true),
];
