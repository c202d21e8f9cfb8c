//! The tuning parameters of projections: what they mean, their ranges, which combinations are valid,
//! which are prebuilt, and the first choice.

use super::Weight;

/// One parameter of a variant space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// As in kernel names, tuning stores and `--param`.
    pub name: &'static str,
    /// What it does.
    pub meaning: &'static str,
    /// The values it may take.
    pub values: &'static [u32],
    /// Whether it changes the order in which numbers are added: such a parameter must be the same for
    /// every batch size of a matrix, or answers would depend on who else is served.
    pub decides_order: bool,
}

/// The space of [`ProjectVariant`].
pub const PROJECT_SPACE: [Parameter; 4] = [
    Parameter {
        name: "threads_per_row",
        meaning: "lanes that share a row of the matrix",
        values: &[8, 16, 32],
        decides_order: true,
    },
    Parameter {
        name: "rows_per_thread",
        meaning: "matrix rows that one activation read from shared memory serves",
        values: &[2, 4],
        decides_order: false,
    },
    Parameter {
        name: "warps",
        meaning: "warps of a block",
        values: &[4, 8, 16],
        decides_order: false,
    },
    Parameter {
        name: "unroll",
        meaning: "chunks of a row that a lane has in flight",
        values: &[1, 2, 4],
        decides_order: false,
    },
];

/// How a projection is laid over threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProjectVariant {
    /// Lanes that share a matrix row.
    pub threads_per_row: u32,
    /// Matrix rows of each group of lanes.
    pub rows_per_thread: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Chunks of a row in flight.
    pub unroll: u32,
}

/// A variant outside its space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidVariant {
    /// A value that the parameter does not take.
    #[error("{name} = {value}; it takes {values:?}")]
    Value {
        /// The parameter.
        name: &'static str,
        /// As given.
        value: u32,
        /// What it takes.
        values: &'static [u32],
    },
    /// Registers would not suffice.
    #[error(
        "rows_per_thread {rows_per_thread} x unroll {unroll} over {warps} warps: at most {limit}, \
         or a thread's registers do not suffice"
    )]
    Registers {
        /// As given.
        rows_per_thread: u32,
        /// As given.
        unroll: u32,
        /// As given.
        warps: u32,
        /// Largest product of the first two.
        limit: u32,
    },
}

impl ProjectVariant {
    const fn new(threads_per_row: u32, rows_per_thread: u32, warps: u32, unroll: u32) -> Self {
        Self { threads_per_row, rows_per_thread, warps, unroll }
    }

    /// The values in the order of [`PROJECT_SPACE`].
    #[must_use]
    pub const fn values(self) -> [u32; 4] {
        [self.threads_per_row, self.rows_per_thread, self.warps, self.unroll]
    }

    /// Whether the combination can be compiled without spilling: the bytes of `rows_per_thread x
    /// unroll` chunks are held in registers, of which 16 warps leave half as many as 8.
    ///
    /// # Errors
    ///
    /// Names the value or the combination.
    pub fn check(self) -> Result<(), InvalidVariant> {
        for (parameter, value) in PROJECT_SPACE.iter().zip(self.values()) {
            if !parameter.values.contains(&value) {
                let (name, values) = (parameter.name, parameter.values);
                return Err(InvalidVariant::Value { name, value, values });
            }
        }
        let Self { rows_per_thread, unroll, warps, .. } = self;
        let limit = if warps > 8 { 4 } else { 8 };
        if rows_per_thread * unroll > limit {
            return Err(InvalidVariant::Registers { rows_per_thread, unroll, warps, limit });
        }
        Ok(())
    }

    /// The first choice: 32 threads per row, as measured on an Orin (8 gave 18.3 tokens a second, 32
    /// gave 29.9), two rows for each, eight warps, and two rows' worth of bytes in flight.
    #[must_use]
    pub const fn heuristic(weight: Weight) -> Self {
        let unroll = match weight {
            Weight::Q8_0 => 2,
            Weight::F16 => 4,
            Weight::Q6_K | Weight::Q4_K | Weight::Q5_K => 1,
        };
        Self::new(32, 2, 8, unroll)
    }

    /// What is prebuilt for `rows` rows of activations: the heuristic first, every `threads_per_row`
    /// for every `rows`, and more of the rest where one row makes the shape of the launch matter.
    #[must_use]
    pub fn prebuilt(weight: Weight, rows: u32) -> Vec<Self> {
        let first = Self::heuristic(weight);
        let mut variants = vec![first];
        // A type that no model of the bench uses as its main one gets no more.
        if weight == Weight::Q5_K {
            return variants;
        }
        for threads_per_row in [16, 8] {
            variants.push(Self { threads_per_row, ..first });
        }
        let mut more = Vec::new();
        if rows <= 2 {
            more.push(Self { rows_per_thread: 4, unroll: 1, ..first });
        }
        if rows == 1 {
            more.extend([4, 16].map(|warps| Self { warps, ..first }));
            more.extend([1, 2, 4].map(|unroll| Self { unroll, ..first }));
        }
        for variant in more {
            if variant.check().is_ok() && !variants.contains(&variant) {
                variants.push(variant);
            }
        }
        variants
    }
}
