//! The virtual clock and the source of chance. Both depend on the seed alone, never on the host.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds of one step of the GPU's timer. Source: nvgpu, PTIMER at 31.25 MHz.
pub const TICK: u64 = 32;
/// GPU time at the start: a second after power-on.
const START: u64 = 1_000_000_000 / TICK * TICK;
/// What a read of the timer costs the CPU; without it a program that waits for a time would wait
/// for ever.
const READ: u64 = 16 * TICK;

/// GPU time. It moves when the GPU works and when it is read.
#[derive(Debug)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(START))
    }

    /// The time, a multiple of [`TICK`].
    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Lets work take `ticks`; gives the time behind it.
    pub(crate) fn advance(&self, ticks: u64) -> u64 {
        let step = ticks.saturating_mul(TICK);
        self.0.fetch_add(step, Ordering::AcqRel).wrapping_add(step)
    }

    /// The time as the CPU reads it.
    pub(crate) fn read(&self) -> u64 {
        self.0.fetch_add(READ, Ordering::AcqRel).wrapping_add(READ)
    }
}

/// A small generator of chance (splitmix64): the same seed gives the same numbers everywhere.
#[derive(Clone, Debug, Default)]
pub struct Random(u64);

impl Random {
    /// The generator of a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// The next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `limit`; 0 when `limit` is.
    pub const fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }

    /// True once in `limit` times.
    pub const fn one_in(&mut self, limit: u64) -> bool {
        self.below(limit) == 0
    }
}
