//! Lanes of a warp: values, masks, and macros that map a function over them.

/// Number of lanes in a warp.
pub(crate) const LANES: usize = 32;
/// A register: one word for each lane.
pub(crate) type Lanes = [u32; LANES];

/// Maps a function over lanes. These are macros because a closure that is not inlined is compiled
/// without the target features of the enclosing function.
macro_rules! map {
    ($x:expr, |$a:ident| $body:expr) => {{
        let mut d = [0u32; N];
        for lane in 0..N {
            let $a = $x[lane];
            d[lane] = $body;
        }
        d
    }};
}
macro_rules! map2 {
    ($x:expr, $y:expr, |$a:ident, $b:ident| $body:expr) => {{
        let (mut d, x, y) = ([0u32; N], $x, $y);
        for lane in 0..N {
            let ($a, $b) = (x[lane], y[lane]);
            d[lane] = $body;
        }
        d
    }};
}
macro_rules! map3 {
    ($x:expr, $y:expr, $z:expr, |$a:ident, $b:ident, $c:ident| $body:expr) => {{
        let (mut d, x, y, z) = ([0u32; N], $x, $y, $z);
        for lane in 0..N {
            let ($a, $b, $c) = (x[lane], y[lane], z[lane]);
            d[lane] = $body;
        }
        d
    }};
}
pub(super) use {map, map2, map3};

/// Returns the lanes whose word is all ones; every word is all ones or all zeros.
#[inline(always)]
pub(super) fn gather(truths: &Lanes) -> u32 {
    let mut mask = 0;
    for (lane, truth) in truths.iter().enumerate() {
        mask |= truth & (1 << lane);
    }
    mask
}

/// Expands a lane mask to all ones or all zeros for each lane.
#[inline(always)]
pub(super) fn mask<const N: usize>(p: u32) -> [u32; N] {
    let mut d = [0; N];
    for (lane, word) in d.iter_mut().enumerate() {
        *word = (p >> lane & 1).wrapping_neg();
    }
    d
}
