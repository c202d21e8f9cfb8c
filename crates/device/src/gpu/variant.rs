//! Tuning of projections and matmuls, which take most of a token's time.
//!
//! Some variants are prebuilt ([`ProjectVariant::prebuilt`]); NVRTC compiles the others if it is
//! installed. [`PROJECT_SPACE`] declares the kernel parameters. Two more belong to the launch:
//! warps of a projection per SM, and the row count from which a product uses matmul kernels. No
//! choice changes a bit of the result.

use orind_kernels::catalogue::launch::{matmul_takes, matmul_tile};
use orind_kernels::catalogue::{Kernel, PROJECT_SPACE, ProjectVariant, Unit, Weight};
use orind_kernels::jit;
use orind_kernels::params::Segment;
use orind_kernels::source::{self, Target};

use super::launch::{Launch, Params};
use crate::tune::{Candidates, Case, Choice, Choices, Parameter, Scope, Space, digest};

/// Warps of a projection per SM.
pub const RESIDENT: &str = "warps_per_sm";

/// Rows of activations of a matmul block; 0 for projection kernels, a few rows at a time.
pub const TILE: &str = "tile";

/// Most rows for which the tile is tuned; more rows use the largest tile.
const MOST_TILED: usize = 64;

/// An SM has 48 warps (SM 8.7); shared memory allows at least 32 warps of a projection.
const WARPS: [u32; 5] = [8, 16, 24, 32, 48];
const HEURISTIC_WARPS: u32 = 32;

/// Tuning input of a lowering: target and choices.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tuning<'a> {
    pub(super) target: Target,
    pub(super) choices: Option<&'a Choices>,
    pub(super) compiles: bool,
}

pub(super) fn compiles() -> bool {
    jit::compiler().is_ok()
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Shape {
    pub(super) variant: ProjectVariant,
    /// Blocks per SM.
    pub(super) blocks: u32,
}

impl Tuning<'_> {
    /// Variant and launch parameters of a projection.
    pub(super) fn shape(&self, weight: Weight, case: &Case) -> Shape {
        let built = |v: &ProjectVariant| {
            variants(self.target, weight, case.batch).contains(v)
                || self.compiles && can_compile(weight, case, *v)
        };
        let chosen = self.choices.and_then(|choices| choices.get(case)).and_then(variant);
        let (variant, warps) = chosen
            .filter(|(variant, _)| built(variant))
            .unwrap_or((ProjectVariant::heuristic(weight), HEURISTIC_WARPS));
        Shape { variant, blocks: (warps / variant.warps).max(1) }
    }

    /// Tile for a product of `rows` rows whose tuning case is `case`; `None` for projection
    /// kernels.
    pub(super) fn tile(
        &self,
        weight: Weight,
        rows: usize,
        case: impl FnOnce(u32) -> Case,
    ) -> Option<u32> {
        let heuristic = matmul_tile(weight, rows);
        let (2..=MOST_TILED, Some(choices)) = (rows, self.choices) else { return heuristic };
        let chosen = choices.get(&case(batch(rows))).and_then(|choice| choice.get(TILE).copied());
        match chosen {
            Some(0) => None,
            Some(tile) if weight.tiles().contains(&tile) => Some(tile),
            _ => heuristic,
        }
    }
}

/// Variants with prebuilt machine code.
fn variants(target: Target, weight: Weight, rows: u32) -> Vec<ProjectVariant> {
    if target == Target::Compute80 {
        return vec![ProjectVariant::heuristic(weight)];
    }
    ProjectVariant::prebuilt(weight, rows)
}

/// Returns whether a variant can be compiled.
fn can_compile(weight: Weight, case: &Case, variant: ProjectVariant) -> bool {
    variant.check(weight, columns(case)).is_ok()
}

/// Kernel of a choice, if it has to be compiled.
fn compiled(target: Target, case: &Case, choice: &Choice) -> Option<Kernel> {
    let weight = Weight::of(case.dtype)?;
    let (variant, _) = variant(choice)?;
    let missing = !variants(target, weight, case.batch).contains(&variant);
    missing.then_some(Kernel::Project { weight, rows: case.batch, planes: planes(case), variant })
}

fn planes(case: &Case) -> u32 {
    if case.family == "project_fine" { 2 } else { 1 }
}

fn columns(case: &Case) -> u32 {
    case.batch * planes(case)
}

/// Compiles the kernel of a choice, unless it is prebuilt or `wanted` cancels.
pub(super) fn compile(
    target: Target,
    case: &Case,
    choice: &Choice,
    wanted: &dyn Fn() -> bool,
) -> Result<(), jit::Error> {
    let Some(kernel) = compiled(target, case, choice) else { return Ok(()) };
    jit::code(kernel, target, wanted).map(|_| ())
}

fn choice(variant: ProjectVariant, warps: u32) -> Choice {
    let values = PROJECT_SPACE.iter().zip(variant.values());
    let own = values.map(|(parameter, value)| (parameter.name.to_owned(), value));
    own.chain([(RESIDENT.to_owned(), warps)]).collect()
}

fn variant(choice: &Choice) -> Option<(ProjectVariant, u32)> {
    let mut values = [0; PROJECT_SPACE.len()];
    for (value, parameter) in values.iter_mut().zip(&PROJECT_SPACE) {
        *value = *choice.get(parameter.name)?;
    }
    Some((ProjectVariant::of(values), *choice.get(RESIDENT)?))
}

/// Case of a product of `batch` rows, with all matrices of the launch.
pub(super) fn case(
    weight: Weight,
    planes: u32,
    batch: u32,
    segments: &[Segment; 3],
    swiglu: bool,
    cols: u32,
) -> Case {
    let (family, rows) = match (swiglu, planes) {
        (true, _) => ("gate", 2 * segments[0].n),
        (_, 2) => ("project_fine", segments.iter().map(|s| s.n).sum()),
        _ => ("project", segments.iter().map(|s| s.n).sum()),
    };
    Case { family: family.into(), dtype: weight.dtype(), rows, cols, batch }
}

/// Cases use powers of two.
const fn batch(rows: usize) -> u32 {
    rows.next_power_of_two() as u32
}

pub(super) fn cases(launches: &[Launch]) -> Vec<Case> {
    let of = |launch: &Launch| match (launch.kernel, &launch.params) {
        (Kernel::Project { weight, rows, planes, .. }, Params::Project(p)) => {
            Some(case(weight, planes, rows, &p.segments, p.swiglu != 0, p.k))
        }
        (Kernel::Matmul { weight, .. }, Params::Matmul(p)) if p.rows as usize <= MOST_TILED => {
            let batch = batch(p.rows as usize);
            Some(case(weight, p.planes, batch, &p.segments, p.swiglu != 0, p.k))
        }
        _ => None,
    };
    launches.iter().filter_map(of).collect()
}

/// Allowed values of a case for a target.
pub(super) fn space(target: Target, case: &Case) -> Option<Space> {
    let compiler = jit::compiler();
    let version = compiler.as_ref().ok().map(|compiler| compiler.version());
    let mut space = space_with(target, case, version)?;
    space.origin = match compiler {
        Ok(_) => format!("prebuilt, and compiled here by {}", space.candidates),
        Err(why) => format!("prebuilt alone ({why})"),
    };
    Some(space)
}

/// Likewise with the compiler version, or `None` without a compiler.
fn space_with(target: Target, case: &Case, compiler: Option<(i32, i32)>) -> Option<Space> {
    let weight = Weight::of(case.dtype)?;
    let known = ["project", "project_fine", "gate"].contains(&case.family.as_str());
    let tiled = case.batch.is_power_of_two() && (2..=MOST_TILED).contains(&(case.batch as usize));
    let projected = weight.rows().contains(&case.batch);
    if !known || !(tiled || projected) || planes(case) > 1 && !weight.is_quantised() {
        return None;
    }
    let mut tiles = vec![0];
    if tiled && matmul_takes(weight, case.cols as usize) {
        tiles.extend(weight.tiles());
    }
    let tile = Parameter {
        name: TILE,
        meaning: "rows of activations of a block of the kernels for many rows; 0: projections take a few at a time",
        values: tiles,
        scope: Scope::Launch,
    };
    let first_tile = (TILE.to_owned(), matmul_tile(weight, case.batch as usize).unwrap_or(0));
    if !projected {
        let source = source::unit_hash(Unit::Matmul(weight), target);
        let heuristic = [first_tile].into_iter().collect();
        let rule = |_: &Choice| Ok(());
        return Some(Space::new(vec![tile], heuristic, source, Candidates::Prebuilt, rule));
    }
    let built = variants(target, weight, case.batch);
    let candidates = match compiler {
        Some((major, minor)) => Candidates::Nvrtc(major.unsigned_abs(), minor.unsigned_abs()),
        None => Candidates::Prebuilt,
    };
    let of = case.clone();
    let exists = move |v: ProjectVariant| {
        v.check(weight, columns(&of)).map_err(|invalid| invalid.to_string())?;
        if built.contains(&v) || compiler.is_some() && can_compile(weight, &of, v) {
            return Ok(());
        }
        Err("this combination is not prebuilt, and cannot be compiled here".to_owned())
    };
    let all = ProjectVariant::all(weight, columns(case)).into_iter();
    let all = all.filter(|v| exists(*v).is_ok());
    let all: Vec<Choice> = all.map(|v| choice(v, 0)).collect();
    let mut parameters: Vec<Parameter> = PROJECT_SPACE
        .iter()
        .map(|p| Parameter {
            name: p.name,
            meaning: p.meaning,
            values: p
                .values
                .iter()
                .copied()
                .filter(|v| all.iter().any(|c| c[p.name] == *v))
                .collect(),
            scope: Scope::Launch,
        })
        .collect();
    parameters.push(Parameter {
        name: RESIDENT,
        meaning: "warps of a projection that an SM gets at a time",
        values: WARPS.to_vec(),
        scope: Scope::Launch,
    });
    let mut heuristic = choice(ProjectVariant::heuristic(weight), HEURISTIC_WARPS);
    let mut sources = vec![source::unit_hash(Unit::Project(weight), target)];
    if tiled {
        parameters.push(tile);
        heuristic.extend([first_tile]);
        sources.push(source::unit_hash(Unit::Matmul(weight), target));
    }
    let first = variant(&heuristic);
    let rule = move |choice: &Choice| match variant(choice) {
        Some(other) if choice.get(TILE).is_some_and(|tile| *tile > 0) && Some(other) != first => {
            Err("no projection is launched beside a tile".to_owned())
        }
        Some((v, warps)) if !warps.is_multiple_of(v.warps) => {
            Err(format!("{warps} warps are no whole blocks of {}", v.warps))
        }
        Some((v, _)) => exists(v),
        None => Ok(()),
    };
    let sources: Vec<&str> = sources.iter().map(String::as_str).collect();
    let source = if let [source] = sources[..] { source.to_owned() } else { digest(&sources) };
    let space = Space::new(parameters, heuristic, source, candidates, rule);
    let case = case.clone();
    Some(space.compiling(move |choice| compiled(target, &case, choice).is_some()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use plan::DType;

    fn case_of(dtype: DType, rows: u32, batch: u32) -> Case {
        Case { family: "project".into(), dtype, rows, cols: 2048, batch }
    }

    #[test]
    fn the_heuristic_is_in_every_space() {
        for dtype in [DType::Q8_0, DType::Q6_K, DType::Q4_K, DType::Q5_K, DType::F16] {
            for &batch in Weight::of(dtype).unwrap().rows() {
                for target in Target::ALL {
                    let space = space_with(target, &case_of(dtype, 512, batch), None).unwrap();
                    space.check(&space.heuristic).unwrap();
                }
            }
        }
        let space = |target, case: &Case| space_with(target, case, None);
        for (dtype, batch, tiles) in [
            (DType::Q6_K, 8, vec![0, 32, 128]),
            (DType::Q6_K, 16, vec![0, 32, 128]),
            (DType::F16, 64, vec![0, 32, 64]),
        ] {
            let space = space(Target::Sm87, &case_of(dtype, 512, batch)).unwrap();
            space.check(&space.heuristic).unwrap();
            assert_eq!(space.parameter(TILE).unwrap().values, tiles);
            for tile in tiles {
                let choice = space.heuristic_with(TILE, tile).unwrap();
                assert_eq!(choice.len(), space.parameters.len());
            }
        }
        assert!(space(Target::Sm87, &case_of(DType::I32, 512, 1)).is_none());
        assert!(space(Target::Sm87, &case_of(DType::Q8_0, 512, 3)).is_none());
        let space = space(Target::Sm87, &case_of(DType::Q8_0, 512, 1)).unwrap();
        for (name, value, says) in [
            ("threads_per_row", 128, "threads_per_row = 128; it takes [4, 8, 16, 32]"),
            ("unroll", 3, "unroll = 3; it takes [1, 2, 4]"),
        ] {
            let why = space.heuristic_with(name, value).unwrap_err().to_string();
            assert!(why.contains(says), "{why}");
        }
        // An entry from a version with other parameters.
        let mut old = space.heuristic.clone();
        old.remove("unroll");
        let why = space.check(&old).unwrap_err().to_string();
        assert!(why.contains("unroll, warps_per_sm, not "), "{why}");
    }

    #[test]
    fn a_compiler_extends_the_space() {
        let case = case_of(DType::Q6_K, 512, 1);
        let prebuilt = space_with(Target::Sm87, &case, None).unwrap();
        let compiling = space_with(Target::Sm87, &case, Some((12, 6))).unwrap();
        assert_eq!(compiling.candidates, Candidates::Nvrtc(12, 6));
        assert_eq!(compiling.heuristic, prebuilt.heuristic);
        let exist = |space: &Space| {
            let all = ProjectVariant::all(Weight::Q6_K, 1).into_iter();
            let all = all.map(|v| choice(v, HEURISTIC_WARPS));
            all.filter(|c| space.check(c).is_ok()).collect::<Vec<Choice>>()
        };
        let (few, all) = (exist(&prebuilt), exist(&compiling));
        assert_eq!(few.len(), ProjectVariant::prebuilt(Weight::Q6_K, 1).len());
        assert_eq!(all.len(), ProjectVariant::all(Weight::Q6_K, 1).len());
        assert!(all.len() > few.len());
        for choice in &all {
            assert_eq!(compiling.is_compiled(choice), !few.contains(choice), "{choice:?}");
        }
        // A choice is launched only if it can be compiled.
        let odd = ProjectVariant { warps: 4, ..ProjectVariant::heuristic(Weight::Q6_K) };
        let odd = ProjectVariant { unroll: 1, ..odd };
        let choices = [(case.clone(), choice(odd, 16))].into_iter().collect();
        let shape = |compiles| {
            let tuning = Tuning { target: Target::Sm87, choices: Some(&choices), compiles };
            tuning.shape(Weight::Q6_K, &case).variant
        };
        assert_eq!(shape(true), odd);
        assert_eq!(shape(false), ProjectVariant::heuristic(Weight::Q6_K));
    }

    /// The row count from which tiles are used is the default's, or a choice's for that row count.
    #[test]
    fn the_tile_threshold_is_tunable() {
        let weight = Weight::Q6_K;
        let tile = |choices: Option<&Choices>, rows| {
            let tuning = Tuning { target: Target::Sm87, choices, compiles: false };
            tuning.tile(weight, rows, |batch| case_of(DType::Q6_K, 512, batch))
        };
        let heuristic = [8, 9, 33, 65].map(|rows| tile(None, rows));
        assert_eq!(heuristic, [None, Some(32), Some(128), Some(128)]);
        let chosen = |tile| Choice::from([(TILE.to_owned(), tile)]);
        let choices: Choices = [(8, 32), (16, 0), (32, 128), (64, 1)]
            .map(|(batch, tile)| (case_of(DType::Q6_K, 512, batch), chosen(tile)))
            .into();
        let chosen = [1, 4, 5, 8, 9, 16, 17, 64, 65].map(|rows| tile(Some(&choices), rows));
        let [m32, m128] = [32, 128].map(Some);
        assert_eq!(chosen, [None, None, m32, m32, None, None, m128, m128, m128]);
    }

    /// Choices are per case, and variants that are not built are not launched.
    #[test]
    fn choices_are_per_case() {
        let weight = Weight::Q8_0;
        let first = ProjectVariant::heuristic(weight);
        let four = ProjectVariant { threads_per_row: 4, ..first };
        let large = case_of(DType::Q8_0, 4096, 1);
        let choices: Choices = [(large.clone(), choice(four, 16))].into_iter().collect();
        let of = |target, case: &Case| {
            let tuning = Tuning { target, choices: Some(&choices), compiles: false };
            tuning.shape(weight, case)
        };
        assert_eq!(of(Target::Sm87, &large), Shape { variant: four, blocks: 2 });
        assert_eq!(of(Target::Compute80, &large).variant, first);
        for other in [case_of(DType::Q8_0, 4096, 8), case_of(DType::Q8_0, 512, 1)] {
            assert_eq!(of(Target::Sm87, &other), Shape { variant: first, blocks: 4 });
        }
    }
}
