//! Row count from which `matmul_*` kernels execute fewer instructions than projections;
//! `docs/kernels.md` has the table.

use orind_kernels::catalogue::launch::matmul_tile;
use orind_kernels::catalogue::{Kernel, ProjectVariant, Weight};
use orind_testing::random::Random;

use super::device::Device;
use super::prefill::instructions;
use super::{matmul, project};

/// Rows and columns of the matrix.
const SIDE: usize = 2048;
const EXECUTED: usize = 128;

/// Warp instructions of projections: a block has two tiles of the matrix.
fn projections(weight: Weight, rows: usize) -> u64 {
    let case = project::Case::new(weight.dtype(), 1, &[EXECUTED], SIDE, &mut Random(1));
    let most = weight.most_rows() as usize;
    let (taken, launches) = (rows.min(most), rows.div_ceil(most));
    let Some(Kernel::Project { rows: most, .. }) = Kernel::project(weight, taken as u32, 1) else {
        unreachable!("rows that there is a kernel for");
    };
    let variant = ProjectVariant::heuristic(weight);
    let how = project::How { most, rows: taken, variant, grid: 1 };
    let (_, counters) = case.launch(how, &mut Device::new(1));
    instructions(&counters) * (launches * SIDE / EXECUTED) as u64
}

fn tile(weight: Weight, tile: u32, rows: usize) -> u64 {
    let kernel = (weight.dtype(), tile);
    let case = matmul::Case::new(kernel, rows, SIDE, &[(EXECUTED, 1)], &mut Random(1));
    let (_, [rows, products]) = case.launch(&mut Device::new(1));
    instructions(&rows) + instructions(&products) * (SIDE / EXECUTED) as u64
}

#[test]
fn the_default_tile_is_near_the_best() {
    for weight in Weight::ALL {
        println!("{}: projections, tiles {:?}", weight.name(), weight.tiles());
        for rows in [2, 4, 8, 16, 32, 64] {
            let projections = (None, projections(weight, rows));
            let tiles = weight.tiles().iter().map(|&m| (Some(m), tile(weight, m, rows)));
            let all: Vec<_> = std::iter::once(projections).chain(tiles).collect();
            let per_weight = |count: u64| 32.0 * count as f64 / (SIDE * SIDE) as f64;
            let said: Vec<_> = all.iter().map(|(_, n)| format!("{:.2}", per_weight(*n))).collect();
            println!("  {rows} rows: {}", said.join(", "));
            let least = all.iter().map(|(_, n)| *n).min().unwrap();
            let chosen = all.iter().find(|(m, _)| *m == matmul_tile(weight, rows)).unwrap().1;
            // A tile reads plain weights once, which instruction counts do not show.
            assert!(!weight.is_quantised() || chosen <= least + least / 4, "{rows} rows: {all:?}");
        }
    }
}
