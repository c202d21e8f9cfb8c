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

/// A parameter that decides no order.
const fn free(name: &'static str, meaning: &'static str, values: &'static [u32]) -> Parameter {
    Parameter { name, meaning, values, decides_order: false }
}

/// The space of [`ProjectVariant`].
pub const PROJECT_SPACE: [Parameter; 7] = [
    Parameter {
        name: "threads_per_row",
        meaning: "lanes that share a row of the matrix; 64 are two warps, which add up through shared memory",
        values: &[8, 16, 32, 64],
        decides_order: true,
    },
    free(
        "rows_per_thread",
        "matrix rows that one activation read from shared memory serves",
        &[2, 4],
    ),
    free("warps", "warps of a block", &[4, 8, 16]),
    free("unroll", "chunks of a row that a lane takes at a turn", &[1, 2, 4]),
    free(
        "stages",
        "turns whose weights are in registers: all but one of them on their way during products",
        &[1, 2, 3, 4],
    ),
    free("vector_bytes", "bytes of weights that a lane loads at a time", &[4, 8, 16]),
    free(
        "accumulators",
        "integer sums of the products of weights with one scale, which need not wait for each other",
        &[1, 2, 4],
    ),
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
    /// Chunks of a row at a turn.
    pub unroll: u32,
    /// Turns in registers.
    pub stages: u32,
    /// Bytes of a load of weights.
    pub vector_bytes: u32,
    /// Integer sums of a run of weights with one scale.
    pub accumulators: u32,
}

/// A variant outside its space: the value or the combination that does not exist, and why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidVariant(String);

impl ProjectVariant {
    /// The values in the order of [`PROJECT_SPACE`].
    #[must_use]
    pub const fn values(self) -> [u32; PROJECT_SPACE.len()] {
        [
            self.threads_per_row,
            self.rows_per_thread,
            self.warps,
            self.unroll,
            self.stages,
            self.vector_bytes,
            self.accumulators,
        ]
    }

    /// The variant with these values, in the order of [`PROJECT_SPACE`].
    #[must_use]
    pub const fn of(values: [u32; PROJECT_SPACE.len()]) -> Self {
        let [threads_per_row, rows_per_thread, warps, unroll, stages, vector_bytes, accumulators] =
            values;
        Self { threads_per_row, rows_per_thread, warps, unroll, stages, vector_bytes, accumulators }
    }

    /// Every combination that [`check`](Self::check) admits.
    #[must_use]
    pub fn all(weight: Weight, columns: u32) -> Vec<Self> {
        let mut all = vec![[0; PROJECT_SPACE.len()]];
        for (i, parameter) in PROJECT_SPACE.iter().enumerate() {
            let with = |values: &[u32; PROJECT_SPACE.len()]| {
                let values = *values;
                parameter.values.iter().map(move |&value| {
                    let mut values = values;
                    values[i] = value;
                    values
                })
            };
            all = all.iter().flat_map(with).collect();
        }
        all.into_iter().map(Self::of).filter(|v| v.check(weight, columns).is_ok()).collect()
    }

    /// Chunks of weights that a lane holds in registers.
    const fn chunks(self) -> u32 {
        self.rows_per_thread * self.unroll * self.stages
    }

    /// Whether the combination exists for `columns` columns of activations (rows times planes). What a
    /// lane holds of weights, and what each of them meets, is bounded by its registers, of which 16
    /// warps leave half as many as 8: most of what is beyond these bounds spills, and some of what is within.
    ///
    /// # Errors
    ///
    /// Names the value or the combination.
    pub fn check(self, weight: Weight, columns: u32) -> Result<(), InvalidVariant> {
        for (parameter, value) in PROJECT_SPACE.iter().zip(self.values()) {
            if !parameter.values.contains(&value) {
                let Parameter { name, values, .. } = parameter;
                return Err(InvalidVariant(format!("{name} = {value}; it takes {values:?}")));
            }
        }
        let Self { rows_per_thread, unroll, stages, warps, vector_bytes, accumulators, .. } = self;
        let (chunks, products) = if warps > 8 { (4, 1024) } else { (8, 4096) };
        let limit = chunks.min(products / (weight.chunk() as u32 * columns).max(1));
        Err(InvalidVariant(if self.chunks() > limit {
            format!(
                "rows_per_thread {rows_per_thread} x unroll {unroll} x stages {stages} over {warps} warps, with \
                 {columns} columns of activations: at most {limit}, or a thread's registers do not suffice"
            )
        } else if unroll > 1 && stages > 1 {
            format!(
                "unroll {unroll} with stages {stages}: one of them is 1, or the compiler moves a turn's loads \
                 behind the products that they should go on during"
            )
        } else if vector_bytes < 16 && rows_per_thread > 2 {
            format!(
                "vector_bytes {vector_bytes} with rows_per_thread {rows_per_thread}: 16, or addresses take too \
                 many of a thread's registers"
            )
        } else if accumulators > 1 && !weight.is_quantised() {
            format!(
                "accumulators {accumulators} of {}: its sums are no integers, and would be others with \
                 more than 1",
                weight.name()
            )
        } else {
            return Ok(());
        }))
    }

    /// Whether rows of `k` columns have work for every warp that shares them.
    #[must_use]
    pub const fn has_work(self, weight: Weight, k: u32) -> bool {
        self.threads_per_row <= 32 || k as usize > 32 * weight.chunk()
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
        Self {
            threads_per_row: 32,
            rows_per_thread: 2,
            warps: 8,
            unroll,
            stages: 1,
            vector_bytes: 16,
            accumulators: 1,
        }
    }

    /// What is prebuilt for `rows` rows of activations: the heuristic first, every `threads_per_row`
    /// for every `rows`, and more of the rest for one row, which is what a token is decoded with. What
    /// takes most of a thread's registers is left to the machine's compiler.
    #[must_use]
    pub fn prebuilt(weight: Weight, rows: u32) -> Vec<Self> {
        let first = Self::heuristic(weight);
        let mut variants = vec![first];
        // A type that no model of the bench uses as its main one gets no more.
        if weight == Weight::Q5_K {
            return variants;
        }
        for threads_per_row in [16, 8, 64] {
            variants.push(Self { threads_per_row, ..first });
        }
        if rows > 1 {
            return variants;
        }
        let mut more = vec![Self { rows_per_thread: 4, unroll: 1, ..first }];
        more.extend([4, 16].map(|warps| Self { warps, ..first }));
        more.extend([1, 2, 4].map(|unroll| Self { unroll, ..first }));
        more.push(Self { unroll: 1, stages: 2, ..first });
        match weight {
            Weight::Q8_0 => {
                more.push(Self { vector_bytes: 8, ..first });
                more.push(Self { accumulators: 2, ..first });
            }
            Weight::F16 => more.push(Self { vector_bytes: 8, ..first }),
            // Of 16 weights with one scale Q6_K has two sums in each block anyway.
            Weight::Q6_K => more.retain(|v| v.rows_per_thread == first.rows_per_thread),
            Weight::Q4_K | Weight::Q5_K => more.push(Self { accumulators: 2, ..first }),
        }
        let few = |v: &Self| v.chunks() as usize * weight.chunk() <= 256;
        for variant in more {
            let exists = variant.check(weight, 1).is_ok();
            if exists && few(&variant) && !variants.contains(&variant) {
                variants.push(variant);
            }
        }
        variants
    }
}
