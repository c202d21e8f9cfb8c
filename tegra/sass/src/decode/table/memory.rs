//! Rows of the decoding table: loads, stores, atomics, fences.

use super::words::row;
use crate::decode::field::{
    Choice, Encoding, Show, Slot, What, choice, flag, hide, show, some, word,
};
use crate::isa::Modifier::{self, *};
use crate::isa::Opcode;
use What::{
    CopySource, CopyTarget, D, Flat, FlatLong, Given, Global, Indexed, Near, Number, P, Q, Reg,
    Scoreboard, Scoreboards,
};

const EXTENDED: Choice = flag(72, &[Invalid, E]);
const EVICT: Choice = choice(84, 3, &[Ef, Unwritten, El, Lu, Eu, Na]);
const SIZE: Choice = choice(73, 3, &[U8, S8, U16, S16, Unwritten, B64, B128]);
const SCOPE: Choice = choice(77, 4, SCOPES);
const SCOPES: &[Modifier] = &[
    Unwritten,
    ConstantPrivate,
    Invalid,
    Invalid,
    Constant,
    StrongSm,
    Invalid,
    StrongGpu,
    MmioGpu,
    Invalid,
    StrongSys,
    Invalid,
    MmioSys,
];
const PREFETCH: Choice = choice(68, 2, &[Unwritten, Ltc64b, Ltc128b, Ltc256b]);
const OPERATIONS: &[Modifier] = &[Add, Min, Max, Inc, Dec, And, Or, Xor, Exch];
const OPERATION: Choice = choice(87, 4, OPERATIONS);
const ATOMIC: Choice = choice(73, 3, &[Unwritten, S32, B64, F32FtzRn, F16x2, S64, F64Rn]);
const NARROW: Choice = choice(73, 2, &[Unwritten, S32, B64]);
const LOADED: What = Global { uniform: 32, wide: 90, plain: 76 };
const STORED: What = Global { uniform: 64, wide: 90, plain: 76 };
const CHANGED: What = Global { uniform: 64, wide: 70, plain: 71 };
const REDUCED: What = Global { uniform: 64, wide: 90, plain: 71 };
const SHARED: What = Near { scale: 78, uniform: 32 };
const SHARED_STORED: What = Near { scale: 78, uniform: 64 };
const LOCAL: What = Near { scale: 0, uniform: 32 };
const LOCAL_STORED: What = Near { scale: 0, uniform: 64 };
const COUNT: Slot = show(Number(38, 6));

pub(super) const TABLE: &[Encoding] = &[
    row!(Ldg 0x181 &[4], [EXTENDED, EVICT, PREFETCH, SIZE, SCOPE], [show(D), show(LOADED), some(Given)],
        fixed = &[(81, 3, 7)]),
    row!(Ldg 0x181 &[1], [EXTENDED, EVICT, PREFETCH, SIZE, SCOPE], [show(D), show(Flat), some(Given)],
        fixed = &[(81, 3, 7)]),
    row!(Ld 0x180 &[4], [EXTENDED, EVICT, PREFETCH, SIZE, SCOPE], [
        show(D), show(FlatLong), some(Given),
    ], when = Some((91, 1, 0)), fixed = &[(81, 3, 0)]),
    row!(Ld 0x180 &[4], [EXTENDED, EVICT, PREFETCH, SIZE, SCOPE], [show(D), show(LOADED), some(Given)],
        fixed = &[(81, 3, 0)]),
    row!(Stg 0x186 &[4], [EXTENDED, EVICT, SIZE, SCOPE], [show(STORED), show(Reg(32))]),
    row!(Stg 0x186 &[1], [EXTENDED, EVICT, SIZE, SCOPE], [show(Flat), show(Reg(32))]),
    row!(St 0x185 &[1], [EXTENDED, EVICT, SIZE, SCOPE], [show(FlatLong), show(Reg(64))]),
    row!(St 0x185 &[4], [EXTENDED, EVICT, SIZE, SCOPE], [show(STORED), show(Reg(32))]),
    row!(Lds 0x184 &[4], [SIZE], [show(D), show(SHARED)], fixed = &[(90, 1, 0)]),
    row!(Sts 0x188 &[1, 4], [SIZE], [show(SHARED_STORED), show(Reg(32))]),
    row!(Ldl 0x183 &[4], [EVICT, SIZE], [show(D), show(LOCAL)]),
    row!(Stl 0x187 &[1, 4], [EVICT, SIZE], [show(LOCAL_STORED), show(Reg(32))]),
    row!(Ldc 0x182 &[5], [choice(78, 2, &[Unwritten, Il, Is, Isl]), SIZE], [show(D), show(Indexed)]),
    row!(Ldsm 0x03b &[4],
        [word(&[B16]), choice(78, 2, &[M88, Mt88]), choice(72, 2, &[Unwritten, N2, N4])],
        [show(D), show(Near { scale: 0, uniform: 32 })]),
    row!(Ldgsts 0x1ae &[6, 7],
        [
            word(&[E]), EVICT, flag(81, &[Bypass, Unwritten]),
            choice(71, 2, &[Unwritten, Ltc64b, Ltc128b, Ltc256b]),
            choice(73, 3, &[Invalid, Invalid, Invalid, Invalid, Unwritten, B64, B128]), SCOPE,
            flag(82, &[Unwritten, Zfill]),
        ],
        [show(CopyTarget), show(CopySource), some(Q(87, 90))]),
    row!(Ldgdepbar 0x1af &[4], [], []),
    row!(Depbar 0x11a &[4], [flag(47, &[Invalid, Le])], [
        show(Scoreboard), COUNT, Slot { what: Scoreboards, show: Show::UnlessZero },
    ]),
    row!(Atomg 0x1a8 &[4], [EXTENDED, OPERATION, EVICT, ATOMIC, SCOPE], [
        show(P(81)), show(D), show(CHANGED), show(Reg(32)),
    ]),
    row!(Atom 0x18a &[4], [EXTENDED, OPERATION, EVICT, ATOMIC, SCOPE], [
        show(P(81)), show(D), show(CHANGED), show(Reg(32)),
    ]),
    row!(Atomg 0x1a9 &[1], [EXTENDED, word(&[Cas]), EVICT, NARROW, SCOPE], [
        show(P(81)), show(D), show(Flat), show(Reg(32)), show(Reg(64)),
    ]),
    row!(Atom 0x18b &[1], [EXTENDED, word(&[Cas]), EVICT, NARROW, SCOPE], [
        show(P(81)), show(D), show(Flat), show(Reg(32)), show(Reg(64)),
    ], fixed = &[(87, 1, 0)]),
    row!(Red 0x18e &[4], [EXTENDED, choice(87, 3, OPERATIONS), EVICT, ATOMIC, SCOPE], [
        show(REDUCED), show(Reg(32)),
    ]),
    row!(Atoms 0x18c &[1, 4], [OPERATION, NARROW], [show(D), show(SHARED_STORED), show(Reg(32))]),
    row!(Atoms 0x18c &[7], [word(&[Popc]), word(&[Inc]), word(&[B32])], [
        show(D), show(SHARED_STORED),
    ], fixed = &[(87, 4, 10)]),
    row!(Atoms 0x18d &[1], [choice(87, 2, &[Cas, Cast, Invalid, Cast]), SPIN, NARROW], [
        show(D), show(Near { scale: 78, uniform: 40 }), show(Reg(32)), show(Reg(64)),
    ], fixed = &[(91, 1, 0)]),
    row!(Qspc 0x1aa &[1], [EXTENDED, choice(73, 2, &[G, L, S])], [
        show(P(81)), show(D), show(Flat),
    ]),
    row!(Membar 0x192 &[4],
        [choice(79, 2, &[Sc, All, Unwritten]), choice(76, 3, &[Cta, Sm, Gpu, Sys])], []),
    row!(Errbar 0x1ab &[4], [], []),
    row!(Cctl 0x18f &[4], [choice(87, 4, &[Invalid, Invalid, Invalid, Invalid, Ivall])], [hide(Reg(24))],
        when = Some((87, 4, 4))),
    row!(Cctl 0x18f &[4], [EXTENDED, choice(87, 4, LINES)], [show(Flat)]),
];

/// Operations of `CCTL` on the cache line of an address.
const LINES: &[Modifier] =
    &[Pf1, Pf2, Invalid, Iv, Invalid, Invalid, Invalid, Invalid, Invalid, Pml2, Dml2, Rml2];
const SPIN: Choice = flag(88, &[Unwritten, Spin]);
