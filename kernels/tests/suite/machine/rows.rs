//! The steps between projections, and the RoPE table.

use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::{elements_grid, rows_grid};
use orind_kernels::params::{GatherParams, RopeTableParams, RowsParams};

use super::device::Device;
use orind_testing::random::Random;

#[test]
fn gather_picks_rows_and_zeroes() {
    let mut device = Device::new(1);
    let table: Vec<i32> = (0..5 * 131).collect();
    let ids = [4, -1, 0, 5];
    let params = GatherParams {
        table: device.integers(&table),
        ids: device.integers(&ids),
        out: device.scratch(4 * 131),
        extent: 5,
        width: 131,
        rows: 4,
        reserved: 0,
    };
    device.launch(Kernel::Gather, elements_grid(131, 4), 0, &params);
    let got = device.words(params.out);
    for (got, id) in got.chunks_exact(131).zip(ids) {
        let first = if (0..5).contains(&id) { Some(id as u32 * 131) } else { None };
        for (i, &word) in (0..).zip(got) {
            assert_eq!(word, first.map_or(0, |first| first + i));
        }
    }
}

#[test]
fn norm_sum_and_gate() {
    let mut random = Random(2);
    for n in [1, 77, 2048] {
        let (a, b) = (random.reals(3 * n, 4.0), random.reals(3 * n, 4.0));
        let mut device = Device::new(n as u64);
        let mut params = RowsParams {
            a: device.floats(&a),
            b: device.floats(&b),
            out: device.scratch(3 * n),
            n: n as u32,
            rows: 3,
            eps: 1e-5,
            inverse_n: 1.0 / n as f32,
        };
        let check = |got: Vec<f32>, want: &dyn Fn(usize) -> f64, what: &str| {
            for (i, got) in got.into_iter().enumerate() {
                let want = want(i);
                let error = (f64::from(got) - want).abs();
                assert!(error <= 2e-6 * want.abs() + 1e-30, "{what} {n}: {got}, not {want}");
            }
        };
        let (a, b) = (|i: usize| f64::from(a[i]), |i: usize| f64::from(b[i]));
        device.launch(Kernel::Add, elements_grid(params.n, 3), 0, &params);
        check(device.read(params.out), &|i| f64::from((a(i) + b(i)) as f32), "add");
        device.launch(Kernel::SwiGlu, elements_grid(params.n, 3), 0, &params);
        check(device.read(params.out), &|i| a(i) / (1.0 + (-a(i)).exp()) * b(i), "gate");
        params.out = device.scratch(3 * n);
        device.launch(Kernel::RmsNorm, rows_grid(3), 0, &params);
        let factor = |row: usize| {
            let squares: f64 = (0..n).map(|i| a(row * n + i).powi(2)).sum();
            1.0 / (squares / n as f64 + f64::from(1e-5_f32)).sqrt()
        };
        check(device.read(params.out), &|i| a(i) * factor(i / n) * b(i % n), "norm");
    }
}

#[test]
fn the_table_is_exact_far_out() {
    let half = 48;
    let positions = [0, 1, 77, 8191, 131_071, 1_000_000];
    let frequencies: Vec<f32> =
        (0..half).map(|i| 500_000_f64.powf(-(i as f64) / half as f64) as f32).collect();
    let mut device = Device::new(3);
    let params = RopeTableParams {
        positions: device.integers(&positions),
        frequencies: device.floats(&frequencies),
        out: device.scratch(positions.len() * 2 * half),
        half: half as u32,
        rows: positions.len() as u32,
        magnitude: 1.25,
        reserved: 0,
    };
    device.launch(Kernel::RopeTable, rows_grid(params.rows), 0, &params);
    let got = device.read(params.out);
    for (row, position) in got.chunks_exact(2 * half).zip(positions) {
        for (i, frequency) in frequencies.iter().enumerate() {
            // The angle is an f32, as in the plan's definition.
            let angle = f64::from(position as f32 * frequency);
            for (got, want) in [(row[i], angle.cos()), (row[half + i], angle.sin())] {
                let error = (f64::from(got) - 1.25 * want).abs();
                assert!(error <= 3e-7, "{position} x {frequency}: {error:e}");
            }
        }
    }
}
