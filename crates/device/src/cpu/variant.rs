//! Tunable parameters of the CPU kernels: matrix products with weights, which take most of a token's time.
//!
//! Four parameters, which do not change a result: the rows of a matrix that a thread claims at a time, the prefetch
//! distance of weights, the activation rows per weight block in registers, and the interleaving of matrix rows. The
//! last one is decided when weights are loaded, for all launches. The default values were measured on one machine.
//! Other cores have other second-level caches, memory latencies and neighbours.

use std::collections::BTreeMap;

use parking_lot::Mutex;

use crate::precision::residual_planes;
use crate::tune::{Candidates, Case, Choice, Choices, Parameter, Scope, Space, digest, of_matrix};
use plan::{DType, Plan, Product, Project};
use simd::Isa;
use simd::activations::TILE;
use simd::matmul::Loops;
use simd::packed::PackedLayout;
use simd::vector::LANES;

/// Rows of a matrix that a thread claims at a time; interleaved rows are not split.
pub const ROWS_PER_TASK: &str = "rows_per_task";
/// Prefetch distance of weights, in bytes.
pub const PREFETCH: &str = "prefetch_bytes";
pub const TILE_ROWS: &str = "tile_rows";

/// Rows of the matrix that are interleaved.
pub const PACKING: &str = "packing";

/// Most row groups that a thread claims at a time, and the width of the scratch tile of a gated linear unit.
const MOST_GROUPS: usize = 32;

/// Distance between the rows of the scratch tile (L2): one line more than its columns, so that rows do not share
/// sets of a cache.
pub(super) const TILE_STRIDE: usize = (MOST_GROUPS + 1) * LANES;

/// Row groups that a thread claims with many activation rows.
const WIDE_CLAIM: usize = 8;

/// Bytes of weights that a thread claims with few rows, up to the number of groups above: enough for a stream, and
/// small enough for load balance.
const BYTES_PER_TASK: usize = 192 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Variant {
    /// Row groups per claim: for at most one tile of activation rows, and for more.
    claim: [usize; 2],
    pub(super) loops: Loops,
}

impl Variant {
    /// Row groups that a thread claims in a product with `rows` rows.
    pub(super) const fn claim(&self, rows: usize) -> usize {
        self.claim[(rows > TILE) as usize]
    }

    /// Default parameters, for `rows` rows; `widest` is the layout with the largest row groups.
    fn heuristic(isa: Isa, widest: &PackedLayout, rows: usize) -> Self {
        let few = (BYTES_PER_TASK / widest.group_bytes().max(1)).clamp(1, WIDE_CLAIM);
        Self { claim: [few, WIDE_CLAIM], loops: Loops::heuristic(isa, widest, rows) }
    }

    /// The variant for a step: the tuned choice, if there is one and it is valid.
    pub(super) fn of(
        isa: Isa,
        choices: Option<&Choices>,
        case: Option<&Case>,
        widest: &PackedLayout,
        rows: usize,
    ) -> Self {
        let mut variant = Self::heuristic(isa, widest, rows);
        let (Some(choices), Some(case)) = (choices, case) else { return variant };
        let Some(choice) = choices.get(case) else { return variant };
        if space(isa, case).is_none_or(|space| space.check(choice).is_err()) {
            return variant;
        }
        let value = |name: &str| choice.get(name).map(|&value| value as usize);
        // Ignore measurements with another packing than the matrix has.
        let lies = packing(isa, Some(choices), case.dtype, case.cols as usize);
        if value(PACKING).is_some_and(|packing| packing != lies) {
            return variant;
        }
        if let Some(task) = value(ROWS_PER_TASK) {
            variant.claim[usize::from(rows > TILE)] = task / LANES;
        }
        variant.loops = Loops {
            prefetch_distance: value(PREFETCH).unwrap_or(variant.loops.prefetch_distance),
            tile: value(TILE_ROWS).unwrap_or(variant.loops.tile),
        };
        variant
    }
}

/// Interleaved rows of matrices with a type and a number of columns.
pub(super) fn packing(isa: Isa, choices: Option<&Choices>, dtype: DType, cols: usize) -> usize {
    let chosen = || of_matrix(choices?, PACKING, dtype, u32::try_from(cols).ok()?);
    let chosen = chosen().map_or(LANES, |rows| rows as usize);
    if isa.packings().contains(&chosen) { chosen } else { LANES }
}

/// The tuning case of a projection: all its matrices together, under the first one's type.
pub(super) fn case(plan: &Plan, project: &Project) -> Option<Case> {
    let weights = project.product.weights();
    let dtype = plan.buffer(weights.first()?.buffer).dtype;
    let fine = dtype.is_quantised() && residual_planes(plan, project) == 2;
    let cols = project.x.shape.last().copied().unwrap_or(1).max(1);
    let number = |n: usize| u32::try_from(n).ok().filter(|&n| n > 0);
    let family = match project.product {
        Product::Glu { .. } => "gate",
        Product::Each(_) | Product::Residual { .. } if fine => "project_fine",
        Product::Each(_) | Product::Residual { .. } => "project",
    };
    Some(Case {
        family: family.to_owned(),
        dtype,
        rows: number(weights.iter().map(|view| view.shape[0]).sum())?,
        cols: number(cols)?,
        batch: number(project.x.elements() / cols)?,
    })
}

pub(super) fn space(isa: Isa, case: &Case) -> Option<Space> {
    if !["project", "project_fine", "gate"].contains(&case.family.as_str()) {
        return None;
    }
    let (rows, cols) = (case.rows as usize, case.cols as usize);
    let layout = PackedLayout::new(case.dtype, rows, cols).ok()?;
    let batch = case.batch as usize;
    let heuristic = Variant::heuristic(isa, &layout, batch);
    let (claim, loops) = (heuristic.claim(batch), heuristic.loops);
    let many = batch > 1;
    // In a gated linear unit, each claim covers both matrices.
    let most = if case.family == "gate" { layout.groups() / 2 } else { layout.groups() };
    let parameter = |name, meaning, values: &[usize]| Parameter {
        name,
        meaning,
        values: values.iter().map(|&value| value as u32).collect(),
        scope: Scope::Launch,
    };
    let tasks: Vec<usize> = [1, 2, 4, 8, 16, MOST_GROUPS]
        .into_iter()
        .filter(|&groups| groups <= most.max(1))
        .map(|groups| groups * LANES)
        .collect();
    let mut parameters = vec![
        parameter(ROWS_PER_TASK, "rows of the matrix that a thread claims at a time", &tasks),
        parameter(
            PREFETCH,
            "prefetch distance of weights, in bytes",
            &[1024, 2048, 4096, 8192, 16384, 32768],
        ),
    ];
    let mut heuristic = Choice::from([
        (ROWS_PER_TASK.to_owned(), (claim * LANES) as u32),
        (PREFETCH.to_owned(), loops.prefetch_distance as u32),
    ]);
    if many && batch > TILE / 4 {
        let meaning = "activation rows per weight block in registers";
        parameters.push(parameter(TILE_ROWS, meaning, &[TILE / 4, TILE / 2, TILE]));
        heuristic.insert(TILE_ROWS.to_owned(), loops.tile as u32);
    }
    if case.dtype.is_quantised() && isa.packings().len() > 1 {
        let meaning = "interleaved rows of the matrix, which share activation reads";
        let packing = parameter(PACKING, meaning, isa.packings());
        parameters.push(Parameter { scope: Scope::Layout, ..packing });
        heuristic.insert(PACKING.to_owned(), LANES as u32);
    }
    let source = source(isa, case.dtype);
    Some(Space::new(parameters, heuristic, source, Candidates::BuiltIn, |_| Ok(())))
}

/// Hash of the source code of products with weights of a type; computed once.
fn source(isa: Isa, dtype: DType) -> String {
    static KNOWN: Mutex<BTreeMap<(&str, DType), String>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock();
    known.entry((isa.name(), dtype)).or_insert_with(|| hash(isa, dtype)).clone()
}

fn hash(isa: Isa, dtype: DType) -> String {
    let mut parts = isa.sources().to_vec();
    parts.push(dtype.name());
    digest(&parts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_case_with_fewest_rows_chooses_the_packing_if_kernels_support_it() {
        let choose =
            |case: Case, packing: u32| (case, Choice::from([(PACKING.to_owned(), packing)]));
        let choices: Choices = [
            choose(case("project", 3072, 1), 32),
            choose(case("project", 3072, 256), 16),
            choose(Case { cols: 2048, ..case("project", 3072, 1) }, 48),
        ]
        .into_iter()
        .collect();
        for isa in Isa::available() {
            let can = isa.packings().contains(&32);
            let of = |choices, dtype, cols| packing(isa, choices, dtype, cols);
            assert_eq!(of(Some(&choices), DType::Q8_0, 1024), if can { 32 } else { 16 });
            assert_eq!(of(Some(&choices), DType::Q6_K, 1024), 16, "another type");
            assert_eq!(of(Some(&choices), DType::Q8_0, 2048), 16, "48 is no packing");
            assert_eq!(of(None, DType::Q8_0, 1024), 16);
            let has = |case: &Case| space(isa, case).unwrap().parameter(PACKING).is_some();
            assert_eq!(has(&case("project", 3072, 1)), can);
            assert!(!has(&Case { dtype: DType::F16, ..case("project", 3072, 1) }));
        }
    }

    #[test]
    fn measurements_with_another_packing_are_ignored() {
        let (decides, other) = (case("project", 3072, 1), case("project", 3072, 4));
        for isa in Isa::available().filter(|isa| isa.packings().contains(&32)) {
            let choose = |case: &Case, packing: u32, task: u32| {
                let mut choice = space(isa, case).unwrap().heuristic;
                choice.insert(PACKING.to_owned(), packing);
                choice.insert(ROWS_PER_TASK.to_owned(), task);
                (case.clone(), choice)
            };
            for packing in [16, 32] {
                let choices: Choices =
                    [choose(&decides, 32, 64), choose(&other, packing, 512)].into_iter().collect();
                let variant = Variant::of(isa, Some(&choices), Some(&other), &layout(), 4);
                let heuristic = Variant::heuristic(isa, &layout(), 4);
                assert_eq!(variant == heuristic, packing == 16);
            }
        }
    }

    fn layout() -> PackedLayout {
        PackedLayout::new(DType::Q8_0, 3072, 1024).unwrap()
    }

    fn case(family: &str, rows: u32, batch: u32) -> Case {
        Case { family: family.into(), dtype: DType::Q8_0, rows, cols: 1024, batch }
    }

    #[test]
    fn every_space_contains_the_heuristic_and_unknown_families_have_none() {
        for isa in Isa::available() {
            for family in ["project", "project_fine", "gate"] {
                for (rows, batch) in [(16, 1), (48, 1), (3072, 1), (3072, 4), (3072, 256), (1, 256)]
                {
                    let space = space(isa, &case(family, rows, batch)).unwrap();
                    space.check(&space.heuristic).unwrap();
                    let ahead = if batch == 1 { isa.prefetch_distance() } else { 8192 };
                    assert_eq!(space.heuristic[PREFETCH], ahead as u32, "batch {batch}");
                    assert!(rows < 64 || !space.neighbours(&space.heuristic).is_empty());
                }
            }
            assert!(space(isa, &case("attention", 64, 1)).is_none());
            let other = Case { cols: 33, ..case("project", 64, 1) };
            assert!(space(isa, &other).is_none(), "33 columns do not fill blocks");
        }
    }

    #[test]
    fn an_invalid_choice_falls_back_to_the_heuristic() {
        let isa = Isa::detect();
        let case = case("project", 3072, 1);
        let heuristic = Variant::of(isa, None, Some(&case), &layout(), 1);
        let with = |name: &str, value: u32| {
            let mut choice = space(isa, &case).unwrap().heuristic;
            choice.insert(name.into(), value);
            let choices = [(case.clone(), choice)].into_iter().collect();
            Variant::of(isa, Some(&choices), Some(&case), &layout(), 1)
        };
        assert_eq!(with(ROWS_PER_TASK, 17), heuristic);
        assert_eq!(with(TILE_ROWS, 32), heuristic, "one row knows no tile");
        assert_eq!(with(ROWS_PER_TASK, 512).claim(1), 32);
        assert_eq!(with(PREFETCH, 1024).loops.prefetch_distance, 1024);
    }
}
