//! Counters of a launch: instructions, bytes, sectors, bank conflicts, atomics.

macro_rules! classes {
    ($($name:ident $doc:literal,)*) => {
        /// Class of an instruction.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum Class {
            $(#[doc = $doc] $name,)*
        }

        impl Class {
            /// Every class.
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

/// Number of classes.
pub const CLASSES: usize = Class::ALL.len();

/// Counters of a launch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Warp instructions by [`Class`].
    pub warp_instructions: [u64; CLASSES],
    /// Thread instructions by [`Class`]: one for each active lane.
    pub lane_instructions: [u64; CLASSES],
    /// Bytes that lanes loaded from global memory.
    pub bytes_loaded: u64,
    /// Bytes that lanes stored to global memory.
    pub bytes_stored: u64,
    /// Sectors of 32 bytes that those accesses touched, summed over warps.
    pub sectors: u64,
    /// Sectors that missed the modelled L2 cache. With several host threads this number varies
    /// slightly, because the order in which blocks share the cache does.
    pub sectors_missed: u64,
    /// Bytes loaded from and stored to shared memory.
    pub shared_bytes: u64,
    /// Extra passes of shared memory caused by bank conflicts within a warp.
    pub bank_conflicts: u64,
    /// Atomic operations, one for each lane.
    pub atomics: u64,
    /// Number of blocks executed.
    pub blocks: u64,
}

impl Counters {
    /// Thread instructions of a class.
    pub fn lanes(&self, class: Class) -> u64 {
        self.lane_instructions[class as usize]
    }

    /// Warp instructions of a class.
    pub fn warps(&self, class: Class) -> u64 {
        self.warp_instructions[class as usize]
    }

    /// Thread instructions of all classes.
    pub fn lane_total(&self) -> u64 {
        self.lane_instructions.iter().sum()
    }

    /// Adds the counters of another part of the launch.
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
