//! Tests of row operations, elementwise functions and the RoPE table.

use orind_kernels::catalogue::Kernel;
use orind_kernels::catalogue::launch::{elements_grid, rows_grid};
use orind_kernels::params::{
    ElementwiseParams, Function, GatherParams, NormParams, RopeTableParams, RowsParams,
};

use super::device::Device;
use super::numbers;
use orind_testing::numerics;
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
            reserved: 0,
        };
        // Bit-exact with the definition, which is close to the exact value.
        let check = |got: Vec<f32>,
                     defined: &dyn Fn(usize) -> f32,
                     meant: &dyn Fn(usize) -> f64,
                     what: &str| {
            for (i, got) in got.into_iter().enumerate() {
                let (defined, meant) = (defined(i), meant(i));
                assert_eq!(
                    got.to_bits(),
                    defined.to_bits(),
                    "{what} {n}: {got:e}, not {defined:e}"
                );
                let error = (f64::from(got) - meant).abs();
                assert!(error <= 1e-6 * meant.abs() + 1e-30, "{what} {n}: {got}, not {meant}");
            }
        };
        let normalised: Vec<f32> = a
            .chunks(n)
            .flat_map(|row| {
                let mut row = row.to_vec();
                numbers::normalise(&mut row, &b[..n], params.eps);
                row
            })
            .collect();
        let (x, y) = (&a, &b);
        let (a, b) = (|i: usize| f64::from(x[i]), |i: usize| f64::from(y[i]));
        device.launch(Kernel::Add, elements_grid(params.n, 3), 0, &params);
        check(
            device.read(params.out),
            &|i| x[i] + y[i],
            &|i| f64::from((a(i) + b(i)) as f32),
            "add",
        );
        device.launch(Kernel::SwiGlu, elements_grid(params.n, 3), 0, &params);
        let gate = |i: usize| a(i) / (1.0 + (-a(i)).exp()) * b(i);
        check(device.read(params.out), &|i| numbers::silu_product(x[i], y[i]), &gate, "gate");
        params.out = device.scratch(3 * n);
        device.launch(Kernel::RmsNorm, rows_grid(3), 0, &params);
        let factor = |row: usize| {
            let squares: f64 = (0..n).map(|i| a(row * n + i).powi(2)).sum();
            1.0 / (squares / n as f64 + f64::from(1e-5_f32)).sqrt()
        };
        let norm = |i: usize| a(i) * factor(i / n) * b(i % n);
        check(device.read(params.out), &|i| normalised[i], &norm, "norm");
    }
}

/// Gate values over the range of the exponential and beyond.
#[test]
fn the_gate_matches_the_definition_over_its_range() {
    let mut gates: Vec<f32> = (-12_000..12_000).map(|i| i as f32 / 128.0 + 0.001).collect();
    let odd = [
        f32::NAN,
        f32::INFINITY,
        0.0,
        f32::MIN_POSITIVE,
        1e-40,
        87.33,
        87.329,
        87.34,
        88.0,
        f32::MAX,
    ];
    gates.extend(odd.into_iter().flat_map(|x| [x, -x]));
    gates.extend([87.5, 88.000_01, 87.999_99].map(|x: f32| -x));
    let mut device = Device::new(4);
    let n = gates.len();
    let params = RowsParams {
        a: device.floats(&gates),
        b: device.floats(&vec![1.0; n]),
        out: device.scratch(n),
        n: n as u32,
        rows: 1,
        eps: 0.0,
        reserved: 0,
    };
    device.launch(Kernel::SwiGlu, elements_grid(params.n, 1), 0, &params);
    for (got, gate) in device.read(params.out).into_iter().zip(gates) {
        let want = numbers::silu_product(gate, 1.0);
        let same = got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan());
        assert!(same, "{gate:e}: {got:e}, not {want:e}");
    }
}

/// RMSNorm and LayerNorm: bit-exact with the definition, which is close to the exact value.
#[test]
fn norms_match_the_definition() {
    let mut random = Random(2);
    for n in [1, 77, 300, 2048] {
        let (x, weight, bias) =
            (random.reals(3 * n, 4.0), random.reals(n, 2.0), random.reals(n, 2.0));
        for centred in [false, true] {
            let mut device = Device::new(n as u64);
            let params = NormParams {
                x: device.floats(&x),
                weight: device.floats(&weight),
                bias: if centred { device.floats(&bias) } else { 0 },
                out: device.scratch(3 * n),
                n: n as u32,
                rows: 3,
                centred: u32::from(centred),
                eps: 1e-5,
            };
            device.launch(Kernel::Norm, rows_grid(3), 0, &params);
            let got = device.read(params.out);
            for (x, got) in x.chunks(n).zip(got.chunks(n)) {
                let mut defined = if centred { numerics::centred(x) } else { x.to_vec() };
                numbers::normalise(&mut defined, &weight, params.eps);
                let wide: Vec<f64> = x.iter().map(|v| f64::from(*v)).collect();
                let mean = if centred { wide.iter().sum::<f64>() / n as f64 } else { 0.0 };
                let squares: f64 = wide.iter().map(|v| (v - mean).powi(2)).sum();
                let factor = 1.0 / (squares / n as f64 + f64::from(1e-5_f32)).sqrt();
                for i in 0..n {
                    let mut meant = (wide[i] - mean) * factor * f64::from(weight[i]);
                    if centred {
                        defined[i] += bias[i];
                        meant += f64::from(bias[i]);
                    }
                    assert_eq!(got[i].to_bits(), defined[i].to_bits(), "{n} {centred} {i}");
                    let error = (f64::from(got[i]) - meant).abs();
                    assert!(error <= 3e-6 * (1.0 + meant.abs()), "{n}: {}, not {meant}", got[i]);
                }
            }
        }
    }
}

/// Result of `elementwise` for `a` and a strided `b`.
fn elementwise(
    function: Function,
    a: &[f32],
    (b, strides): (&[f32], [u32; 2]),
    by: f32,
    rows: usize,
) -> Vec<f32> {
    let mut device = Device::new(4);
    let params = ElementwiseParams {
        a: device.floats(a),
        b: if b.is_empty() { 0 } else { device.floats(b) },
        out: device.scratch(a.len()),
        n: (a.len() / rows) as u32,
        rows: rows as u32,
        row_stride: strides[0],
        column_stride: strides[1],
        function: function as u32,
        by,
    };
    device.launch(Kernel::Elementwise, elements_grid(params.n, params.rows), 0, &params);
    device.read(params.out)
}

fn same(got: f32, want: f32) -> bool {
    got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan())
}

/// Every function over the range of the exponential and beyond.
#[test]
fn every_function_matches_the_definition_over_its_range() {
    let mut x: Vec<f32> = (-12_000..12_000).map(|i| i as f32 / 128.0 + 0.001).collect();
    let odd = [
        f32::NAN,
        f32::INFINITY,
        0.0,
        f32::MIN_POSITIVE,
        1e-40,
        87.33,
        87.329,
        87.34,
        88.0,
        f32::MAX,
    ];
    x.extend(odd.into_iter().flat_map(|x| [x, -x]));
    x.extend([87.5, 88.000_01, 87.999_99].map(|x: f32| -x));
    let y: Vec<f32> = (0..x.len()).map(|i| (i % 777) as f32 / 77.0 - 4.0).collect();
    type Defined = fn(f32, f32) -> f32;
    let all: [(Function, Defined); 9] = [
        (Function::Add, |a, b| a + b),
        (Function::Multiply, |a, b| a * b),
        (Function::Gate, |a, b| a * (1.0 / (1.0 + numerics::exp(-b)))),
        (Function::Scale, |a, _| a * 2.7),
        (Function::SoftCap, |a, _| numerics::capped(a, Some(2.7))),
        (Function::Silu, |a, _| numerics::swiglu(a, 1.0)),
        (Function::Gelu, |a, _| numerics::gelu(a)),
        (Function::SwiGlu, |a, b| numbers::silu_product(a, b)),
        (Function::GeGlu, |a, b| numerics::gelu(a) * b),
    ];
    for (function, defined) in all {
        // The gate's range is that of its other operand.
        let (a, b) = if function == Function::Gate { (&y, &x) } else { (&x, &y) };
        let got = elementwise(function, a, (b, [0, 1]), 2.7, 1);
        for (i, got) in got.into_iter().enumerate() {
            let want = defined(a[i], b[i]);
            assert!(same(got, want), "{function:?} {:e} {:e}: {got:e}, not {want:e}", a[i], b[i]);
        }
    }
}

/// One row for all, one value per row, columns of wider rows.
#[test]
fn the_second_operand_may_be_strided() {
    let mut random = Random(8);
    let (rows, n) = (3, 131);
    let (a, b) = (random.reals(rows * n, 4.0), random.reals(rows * (n + 40), 4.0));
    for strides in [[0, 1], [1, 0], [n as u32 + 40, 1]] {
        let got = elementwise(Function::Add, &a, (&b, strides), 0.0, rows);
        for (i, got) in got.into_iter().enumerate() {
            let at = (i / n) as u32 * strides[0] + (i % n) as u32 * strides[1];
            assert_eq!(got.to_bits(), (a[i] + b[at as usize]).to_bits(), "{strides:?} {i}");
        }
    }
}

#[test]
fn the_rope_table_is_exact_at_large_positions() {
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
            let angle = f64::from(position as f32) * f64::from(*frequency);
            let defined = numbers::cos_sin(position as f32, *frequency).map(|x| x * 1.25);
            for (at, want) in [(0, angle.cos()), (1, angle.sin())] {
                let got = row[at * half + i];
                assert_eq!(got.to_bits(), defined[at].to_bits(), "{position} x {frequency}");
                let error = (f64::from(got) - 1.25 * want).abs();
                assert!(error <= 3e-7, "{position} x {frequency}: {error:e}");
            }
        }
    }
}
