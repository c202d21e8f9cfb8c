//! Rows of the decoding table: branches, barriers, traps.

use super::words::row;
use crate::decode::field::{
    Choice, Encoding, Kind, Show, Slot, What, choice, flag, show, some, word,
};
use crate::isa::Modifier::*;
use crate::isa::Opcode;
use What::{A, Barrier, D, Mask, Number, Offset, P, Q, Reg, Target, W};

const IF: Slot = some(Q(87, 90));
const REDUCTION: Choice = choice(74, 2, &[Popc, And, Or]);
const BLOCKING: Choice = flag(80, &[Unwritten, DeferBlocking]);
const REDUCE: (u8, u8, u64) = (77, 2, 2);
const NUMBER: Slot = show(Number(54, 4));
const COUNT: Slot = Slot { what: Number(42, 12), show: Show::UnlessZero };

pub(super) const TABLE: &[Encoding] = &[
    row!(Bra 0x147 &[4], [choice(32, 2, &[Unwritten, U, Invalid, Invalid])], [IF, show(Target)], when = Some((91, 1, 0)), fixed = &[(85, 2, 0)]),
    row!(Bra 0x147 &[4], [choice(32, 2, &[Invalid, Invalid, Div, Conv])], [
        IF, show(Mask), show(Target),
    ], when = Some((91, 1, 1)), fixed = &[(85, 2, 0)]),
    row!(Brx 0x149 &[4], [], [IF, show(A(Kind::Bits)), show(Offset)], fixed = &[(85, 2, 0)]),
    row!(Jmp 0x14a &[4], [], [IF, show(Number(32, 32))], fixed = &[(64, 18, 0)]),
    row!(Jmx 0x14c &[4], [], [IF, show(A(Kind::Bits)), show(Offset)], fixed = &[(85, 2, 0)]),
    row!(Call 0x144 &[4], [word(&[Rel]), flag(86, &[Unwritten, Noinc])], [IF, show(Target)]),
    row!(Call 0x144 &[1], [word(&[Rel]), flag(86, &[Unwritten, Noinc])], [
        IF, show(A(Kind::Bits)), show(Target),
    ]),
    row!(Ret 0x150 &[4], [flag(85, &[Rel, Invalid]), flag(86, &[Unwritten, Nodec])], [
        IF, show(A(Kind::Bits)), show(Target),
    ], when = Some((85, 1, 0))),
    row!(Ret 0x150 &[4], [flag(85, &[Invalid, Abs]), flag(86, &[Unwritten, Nodec])], [
        IF, show(A(Kind::Bits)), show(Offset),
    ]),
    row!(Exit 0x14d &[4], [], [IF], fixed = &[(84, 3, 0)]),
    row!(Bssy 0x145 &[4], [], [IF, show(Barrier(16)), show(Target)]),
    row!(Bsync 0x141 &[4], [], [IF, show(Barrier(16))]),
    row!(Break 0x142 &[4], [], [IF, show(Barrier(16))]),
    row!(Bmov 0x155 &[1], [word(&[B32]), flag(84, &[Unwritten, Clear])], [
        show(D), show(Barrier(24)),
    ]),
    row!(Bmov 0x155 &[7], [word(&[B32]), flag(84, &[Invalid, Clear])], [
        show(Barrier(16)), show(Barrier(24)),
    ]),
    row!(Bmov 0x156 &[1, 4], [word(&[B32])], [show(Barrier(24)), show(W(Kind::Bits))],
        fixed = &[(84, 1, 0)]),
    row!(Warpsync 0x148 &[1, 4], [flag(86, &[Unwritten, Exclusive])], [IF, show(W(Kind::Bits))]),
    row!(Yield 0x146 &[4], [], [IF]),
    row!(Nanosleep 0x15d &[1, 4, 5, 6], [], [IF, show(W(Kind::Bits))], fixed = &[(83, 4, 0)]),
    row!(Bpt 0x15c &[4], [choice(84, 3, &[Invalid, Invalid, Invalid, Trap])], [
        show(Number(34, 20)),
    ]),
    row!(Pmtrig 0x001 &[4], [], [IF, show(Number(32, 16))]),
    row!(Nop 0x118 &[4], [], []),
    row!(Bar 0x11d &[5], [choice(77, 2, &[Sync, Arv]), BLOCKING], [NUMBER, COUNT],
        when = Some((78, 1, 0)), fixed = &[(79, 1, 0)]),
    row!(Bar 0x11d &[2], [choice(77, 2, &[Sync, Arv]), BLOCKING], [show(Reg(32)), COUNT],
        when = Some((78, 1, 0)), fixed = &[(79, 1, 0)]),
    row!(Bar 0x11d &[4], [choice(77, 2, &[Sync, Arv]), BLOCKING], [NUMBER, show(Reg(32))],
        when = Some((78, 1, 0)), fixed = &[(79, 1, 0)]),
    // One register contains the barrier number and, in its upper bits, the count.
    row!(Bar 0x11d &[1], [choice(77, 2, &[Sync, Arv]), BLOCKING], [show(Reg(32)), show(Reg(32))],
        when = Some((78, 1, 0)), fixed = &[(79, 1, 0)]),
    row!(Bar 0x11d &[5], [word(&[Red]), REDUCTION, BLOCKING], [NUMBER, COUNT, show(Q(87, 90))],
        when = Some(REDUCE), fixed = &[(79, 1, 0)]),
    row!(Bar 0x11d &[2], [word(&[Red]), REDUCTION, BLOCKING], [
        show(Reg(32)), COUNT, show(Q(87, 90)),
    ], when = Some(REDUCE), fixed = &[(79, 1, 0)]),
    row!(Bar 0x11d &[4], [word(&[Red]), REDUCTION, BLOCKING], [
        NUMBER, show(Reg(32)), show(Q(87, 90)),
    ], when = Some(REDUCE), fixed = &[(79, 1, 0)]),
    row!(Bar 0x11d &[1], [word(&[Red]), REDUCTION, BLOCKING], [
        show(Reg(32)), show(Reg(32)), show(Q(87, 90)),
    ], when = Some(REDUCE), fixed = &[(79, 1, 0)]),
    row!(B2r 0x11c &[1], [choice(78, 2, &[Invalid, Result])], [show(D), some(P(81))]),
];
