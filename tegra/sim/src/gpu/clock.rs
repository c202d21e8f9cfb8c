//! Virtual clock and random numbers. Both depend only on the seed, never on the host.

use std::sync::atomic::{AtomicU64, Ordering};

/// Nanoseconds of one step of the GPU's timer. Source: nvgpu, PTIMER at 31.25 MHz.
pub const TICK: u64 = 32;
/// GPU time at the start: a second after power-on.
const START: u64 = 1_000_000_000 / TICK * TICK;
/// Time that a read of the timer takes; without it, a program that waits for a time would wait for
/// ever.
const READ: u64 = 16 * TICK;

/// GPU time, which advances when the GPU works and when it is read.
#[derive(Debug)]
pub(crate) struct Clock(AtomicU64);

impl Clock {
    pub(crate) fn new() -> Self {
        Self(AtomicU64::new(START))
    }

    /// Returns the time, a multiple of [`TICK`].
    pub(crate) fn now(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    /// Advances by `ticks`; returns the new time.
    pub(crate) fn advance(&self, ticks: u64) -> u64 {
        let step = ticks.saturating_mul(TICK);
        self.0.fetch_add(step, Ordering::AcqRel).wrapping_add(step)
    }

    /// Reads the time for the CPU.
    pub(crate) fn read(&self) -> u64 {
        self.0.fetch_add(READ, Ordering::AcqRel).wrapping_add(READ)
    }
}

/// SplitMix64 generator: the same seed gives the same numbers everywhere.
#[derive(Clone, Debug, Default)]
pub struct Random(u64);

impl Random {
    /// Creates a generator with a seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns the next 64 bits.
    pub const fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `limit`, or 0 if `limit` is 0.
    pub const fn below(&mut self, limit: u64) -> u64 {
        if limit == 0 { 0 } else { self.next() % limit }
    }

    /// Returns true with probability 1/`limit`.
    pub const fn one_in(&mut self, limit: u64) -> bool {
        self.below(limit) == 0
    }
}
