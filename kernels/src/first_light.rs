//! Self-test kernels for first light: their launches, and the words that each of them must write.
//!
//! No plan launches these kernels and nothing tunes them. All arithmetic is on integers, so a
//! result is exact or wrong. Expected words of [`Kernel::Probe`] are checked in; they result from
//! executing its sm_87 code instruction by instruction. Expected words of the other kernels are
//! computed here.

use crate::params::parameters;
use crate::source::Compiled;

/// A self-test kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Runs eight kinds of work on one value per thread; see [`PARTS`].
    Probe,
    /// Computes a word from the previous one; see [`next`].
    Order,
    /// The last of many blocks sums what all blocks wrote; see [`mark`].
    Atomics,
    /// Every block sums the CPU's words; see [`sums`]. All blocks together copy them; see
    /// [`copied`].
    Handover,
}

impl Kernel {
    /// All kernels.
    pub const ALL: [Self; 4] = [Self::Probe, Self::Order, Self::Atomics, Self::Handover];

    /// Symbol in the cubin.
    #[must_use]
    pub const fn symbol(self) -> &'static str {
        match self {
            Self::Probe => "first_light_probe",
            Self::Order => "first_light_order",
            Self::Atomics => "first_light_atomics",
            Self::Handover => "first_light_handover",
        }
    }

    /// Threads of a block, x, y, z.
    #[must_use]
    pub const fn block(self) -> [u32; 3] {
        match self {
            Self::Probe => [16, 4, 1],
            Self::Order => [32, 1, 1],
            Self::Atomics => [ATOMICS_THREADS, 1, 1],
            Self::Handover => [HANDOVER_THREADS, 1, 1],
        }
    }

    /// Bytes of dynamic shared memory of a block.
    #[must_use]
    pub const fn dynamic_shared(self) -> u32 {
        match self {
            Self::Probe => 4 * Self::Probe.threads(),
            _ => 0,
        }
    }

    const fn threads(self) -> u32 {
        let [x, y, z] = self.block();
        x * y * z
    }

    pub(crate) fn compiled(self) -> Compiled {
        let params_bytes = match self {
            Self::Probe => size_of::<ProbeParams>(),
            Self::Order => size_of::<OrderParams>(),
            Self::Atomics => size_of::<AtomicsParams>(),
            Self::Handover => size_of::<HandoverParams>(),
        };
        let symbol = self.symbol().to_owned();
        Compiled { symbol, threads: self.threads(), params_bytes, has_stack: self == Self::Probe }
    }
}

parameters! {
    /// [`Kernel::Probe`].
    struct ProbeParams {
        /// `u32 [parts][threads of the grid]`.
        out: u64,
        /// Included in every value.
        seed: u32,
        /// Iterations of the loops with a fixed count.
        turns: u32,
        /// Indexed by the thread's number.
        table: [u32; 4],
    }

    /// [`Kernel::Order`], on a grid of any number of blocks.
    struct OrderParams {
        /// `u32 [index + 1]` at least.
        out: u64,
        /// The word to write, from 1.
        index: u32,
        /// 0.
        reserved: u32,
    }

    /// [`Kernel::Atomics`].
    struct AtomicsParams {
        /// 0 before and after the launch.
        counter: u64,
        /// `u32 [blocks][threads]`: scratch that blocks exchange.
        parts: u64,
        /// `u32 [threads]`, written by the last block.
        marks: u64,
        /// Included in every part.
        round: u32,
        /// 0.
        reserved: u32,
    }

    /// [`Kernel::Handover`], on a grid of any number of blocks.
    struct HandoverParams {
        /// `u32 [count]`, 16-byte aligned.
        words: u64,
        /// Destination of the copy.
        copy: u64,
        /// `u32 [blocks][ways][threads]`: destination of the sums.
        sums: u64,
        /// Number of words, a multiple of 4.
        count: u32,
        /// Included in every result; the launch reads it from constant memory.
        key: u32,
    }
}

/// Grid of the probe's launch.
pub const PROBE_GRID: [u32; 3] = [2, 1, 1];
/// Work of a probe's thread, in order. Each part continues from the previous result, so the first
/// wrong word identifies what the GPU does wrong.
pub const PARTS: [&str; 8] = [
    "constants and multiply-add",
    "dot products",
    "exchange between lanes",
    "static shared memory and barrier",
    "dynamic shared memory and barrier",
    "the stack in local memory",
    "branches of a warp's lanes",
    "loops of different length for a warp's lanes",
];
const PROBE_WORDS: usize = 1024;

/// Parameters of the launch whose expected words are checked in.
#[must_use]
pub const fn probe(out: u64) -> ProbeParams {
    let table = [0x0bad_cafe, 0x7000_0001, 0x8000_0000, 0xffff_ffff];
    ProbeParams { out, seed: 0x0515_2026, turns: 24, table }
}

/// Words that the probe writes with [`probe`] on [`PROBE_GRID`]: one for each thread after the
/// first of [`PARTS`], then after the second, and so on.
#[must_use]
pub fn probe_words() -> [u32; PROBE_WORDS] {
    const WORDS: &[u8; 4 * PROBE_WORDS] = include_bytes!("../first_light/probe.bin");
    let (words, _) = WORDS.as_chunks::<4>();
    std::array::from_fn(|i| u32::from_le_bytes(words[i]))
}

/// Part of the probe that wrote a word.
#[must_use]
pub const fn part(word: usize) -> &'static str {
    PARTS[word * PARTS.len() / PROBE_WORDS % PARTS.len()]
}

/// Word at `index`, computed from the previous one.
#[must_use]
pub const fn next(before: u32, index: u32) -> u32 {
    before.wrapping_mul(5).wrapping_add(index)
}

/// Grid size of the atomics kernel.
pub const ATOMICS_BLOCKS: u32 = 64;
/// Threads of a block of the atomics kernel.
pub const ATOMICS_THREADS: u32 = 64;
const GOLDEN: u32 = 0x9e37_79b9;

/// Word that the last of [`ATOMICS_BLOCKS`] blocks writes for a thread.
#[must_use]
pub fn mark(round: u32, thread: u32) -> u32 {
    let part = |block: u32| {
        let index = block * ATOMICS_THREADS + thread;
        round.wrapping_add(1).wrapping_mul(GOLDEN).wrapping_add(index)
    };
    (0..ATOMICS_BLOCKS).map(part).fold(0, u32::wrapping_add)
}

/// Threads of a block of the handover kernel.
pub const HANDOVER_THREADS: u32 = 256;
/// Kinds of load instruction that the handover kernel uses.
pub const WAYS: [&str; 3] = ["generic loads", "global loads", "loads of the read-only path"];

/// Sum of each thread of a block, the same for every kind of load.
#[must_use]
pub fn sums(words: &[u32], key: u32) -> [u32; HANDOVER_THREADS as usize] {
    let mut sums = [key; HANDOVER_THREADS as usize];
    for ((i, word), weight) in words.iter().enumerate().zip((1_u32..).step_by(2)) {
        let sum = &mut sums[i / 4 % HANDOVER_THREADS as usize];
        *sum = sum.wrapping_add(word.wrapping_mul(weight));
    }
    sums
}

/// Value of a word in the copy.
#[must_use]
pub const fn copied(word: u32, key: u32) -> u32 {
    word.wrapping_mul(5).wrapping_add(key)
}
