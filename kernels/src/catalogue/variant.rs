//! Tuning parameters of projections: ranges, valid combinations, prebuilt variants and the default.

use super::Weight;
use crate::repack::{BLOCK, PANEL};

/// A parameter of a variant space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name in kernel symbols, tuning stores and `--param`.
    pub name: &'static str,
    /// Description.
    pub meaning: &'static str,
    /// Allowed values.
    pub values: &'static [u32],
}

/// Parameters of [`ProjectVariant`]. None changes a bit: `docs/numerics.md` fixes the order of
/// additions.
pub const PROJECT_SPACE: [Parameter; 4] = [
    Parameter {
        name: "threads_per_row",
        meaning: "lanes that share a row of the matrix, 256 columns each: four of a warp, and several warps",
        values: &[4, 8, 16, 32],
    },
    Parameter {
        name: "rows_per_thread",
        meaning: "matrix rows that one activation read from shared memory serves",
        values: &[2, 4],
    },
    Parameter { name: "warps", meaning: "warps of a block", values: &[4, 8, 16] },
    Parameter {
        name: "unroll",
        meaning: "chunks (64 columns of K types, else 32) whose weights a lane asks for at a time",
        values: &[1, 2, 4],
    },
];

/// Distribution of a projection over threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ProjectVariant {
    /// Lanes that share a matrix row.
    pub threads_per_row: u32,
    /// Matrix rows of each lane.
    pub rows_per_thread: u32,
    /// Warps of a block.
    pub warps: u32,
    /// Chunks of a row that a lane loads at a time.
    pub unroll: u32,
}

/// A variant outside its space: the invalid value or combination, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidVariant(String);

impl ProjectVariant {
    /// Values in the order of [`PROJECT_SPACE`].
    #[must_use]
    pub const fn values(self) -> [u32; PROJECT_SPACE.len()] {
        [self.threads_per_row, self.rows_per_thread, self.warps, self.unroll]
    }

    /// Variant with these values, in the order of [`PROJECT_SPACE`].
    #[must_use]
    pub const fn of(values: [u32; PROJECT_SPACE.len()]) -> Self {
        let [threads_per_row, rows_per_thread, warps, unroll] = values;
        Self { threads_per_row, rows_per_thread, warps, unroll }
    }

    /// Every combination that [`check`](Self::check) accepts.
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

    /// Checks the combination for `columns` columns of activations (rows times planes). Weights and
    /// sums of a lane must fit its registers, of which 16 warps have half as many as 8.
    ///
    /// # Errors
    ///
    /// The invalid value or combination.
    pub fn check(self, weight: Weight, columns: u32) -> Result<(), InvalidVariant> {
        for (parameter, value) in PROJECT_SPACE.iter().zip(self.values()) {
            if !parameter.values.contains(&value) {
                let Parameter { name, values, .. } = parameter;
                return Err(InvalidVariant(format!("{name} = {value}; it takes {values:?}")));
            }
        }
        let Self { threads_per_row, rows_per_thread, warps, unroll } = self;
        if threads_per_row > WARP_LANES * warps {
            return Err(InvalidVariant(format!(
                "threads_per_row {threads_per_row} over {warps} warps, of which each has {WARP_LANES} of them"
            )));
        }
        let chains = if weight.is_quantised() { 1 } else { 4 };
        let held = rows_per_thread * (unroll * weight.form().registers as u32 + chains * columns);
        let limit = if warps > 8 { 64 } else { 160 };
        if held > limit {
            return Err(InvalidVariant(format!(
                "rows_per_thread {rows_per_thread} x unroll {unroll} over {warps} warps, with {columns} columns of \
                 activations: {held} registers of weights and sums, at most {limit} or a thread's do not suffice"
            )));
        }
        Ok(())
    }

    /// Default variant: two warps for 8 rows of two panels, so that matrices of a thousand rows
    /// fill 16 SMs, and 128 columns loaded at a time (128 bytes of plain weights).
    #[must_use]
    pub const fn heuristic(weight: Weight) -> Self {
        let unroll = match weight.form().span {
            0 => 32 / weight.form().registers as u32,
            BLOCK => 4,
            _ => 2,
        };
        Self { threads_per_row: 8, rows_per_thread: 2, warps: 8, unroll }
    }

    /// Variant of MoE matmuls: an expert's matrices have few columns, so four lanes share a row.
    #[must_use]
    pub const fn of_experts(weight: Weight) -> Self {
        Self { threads_per_row: 4, warps: 4, ..Self::heuristic(weight) }
    }

    /// Prebuilt variants for `rows` rows of activations: the default first, and more for one row,
    /// which decode uses.
    #[must_use]
    pub fn prebuilt(weight: Weight, rows: u32) -> Vec<Self> {
        let first = Self::heuristic(weight);
        let mut variants = vec![first];
        // Types that are rarely a model's main type have the default only.
        let main = matches!(weight, Weight::Q8_0 | Weight::Q6_K | Weight::Q4_K | Weight::F16);
        if rows > 1 || !main {
            return variants;
        }
        variants.extend([4, 16, 32].map(|threads_per_row| Self { threads_per_row, ..first }));
        variants.push(Self { rows_per_thread: 4, unroll: 1, ..first });
        variants.extend([4, 16].map(|warps| Self { warps, ..first }));
        variants.push(Self { threads_per_row: 4, warps: 4, ..first });
        let unrolls = [1, 2, 4].into_iter().filter(|unroll| *unroll != first.unroll);
        variants.extend(unrolls.map(|unroll| Self { unroll, ..first }));
        variants.retain(|v| v.check(weight, 2).is_ok());
        variants
    }
}

/// Lanes of a warp that share a row.
const WARP_LANES: u32 = 32 / PANEL as u32;
