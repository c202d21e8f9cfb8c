//! What a kernel did, in numbers.

macro_rules! classes {
    ($($name:ident $doc:literal,)*) => {
        /// A kind of instruction.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Class {
            $(#[doc = $doc] $name,)*
        }

        impl Class {
            /// All of them.
            pub const ALL: &[Self] = &[$(Self::$name,)*];
        }
    };
}

classes! {
    Integer "Integers, bits, moves, predicates.",
    Dot "Dot products of packed integers.",
    Float "Single precision.",
    Packed "Pairs of halves.",
    Double "Double precision.",
    Conversion "Conversions.",
    Function "Special functions.",
    Matrix "Tensor cores.",
    Exchange "Between lanes.",
    Constant "Loads from constant banks.",
    Global "Global and generic memory.",
    Shared "Shared memory.",
    Local "Local memory.",
    Uniform "The warp's own registers.",
    Control "Branches, barriers and the rest.",
}

/// Kinds of instructions.
pub const CLASSES: usize = Class::ALL.len();

/// What a launch did.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Instructions by [`Class`], each counted once for a warp.
    pub warp_instructions: [u64; CLASSES],
    /// Instructions by [`Class`], counted for every lane that they acted for.
    pub lane_instructions: [u64; CLASSES],
    /// Bytes that lanes asked of global memory.
    pub bytes_loaded: u64,
    /// Bytes that lanes wrote to global memory.
    pub bytes_stored: u64,
    /// Sectors of 32 bytes that those accesses, warp by warp, touched.
    pub sectors: u64,
    /// Sectors that were not in the modelled level-two cache. With several threads the order in
    /// which blocks share the cache differs from run to run, and this number a little with it.
    pub sectors_missed: u64,
    /// Bytes loaded from and stored to shared memory.
    pub shared_bytes: u64,
    /// Extra passes that shared memory needed because lanes of a warp met in a bank.
    pub bank_conflicts: u64,
    /// Atomic operations, counted by lane.
    pub atomics: u64,
    /// Blocks that ran.
    pub blocks: u64,
}

impl Counters {
    /// Instructions of a kind, counted for every lane.
    pub fn lanes(&self, class: Class) -> u64 {
        self.lane_instructions[class as usize]
    }

    /// Instructions of a kind, counted for every warp.
    pub fn warps(&self, class: Class) -> u64 {
        self.warp_instructions[class as usize]
    }

    /// Instructions of all kinds, counted for every lane.
    pub fn lane_total(&self) -> u64 {
        self.lane_instructions.iter().sum()
    }

    /// Adds what another part of the launch did.
    pub fn add(&mut self, other: &Self) {
        for class in 0..CLASSES {
            self.warp_instructions[class] += other.warp_instructions[class];
            self.lane_instructions[class] += other.lane_instructions[class];
        }
        self.bytes_loaded += other.bytes_loaded;
        self.bytes_stored += other.bytes_stored;
        self.sectors += other.sectors;
        self.sectors_missed += other.sectors_missed;
        self.shared_bytes += other.shared_bytes;
        self.bank_conflicts += other.bank_conflicts;
        self.atomics += other.atomics;
        self.blocks += other.blocks;
    }
}
