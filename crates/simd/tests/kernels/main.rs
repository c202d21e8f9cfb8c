//! Every kernel compared with `f64` arithmetic on every instruction set of this machine, and bit for bit between
//! them. Results do not depend on the other rows of a call.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[cfg(target_arch = "x86_64")]
mod amx;
mod attention;
mod inlined;
mod numerics;
mod tensors;

use orind_testing::random::Random;
use orind_testing::weights::{put_scales, raw};
use plan::quant;
use plan::{Activation, DType, RopeStyle};
use simd::activations::{self, ActivationFormat, F32Block, Q8Block};
use simd::matmul::{Activations, Loops, Product, Q8Activations, matmul};
use simd::packed::{LayoutError, PackedLayout};
use simd::read::{PARTS_OF, Pattern, read};
use simd::vector::{BIAS, MINUS_BIAS};
use simd::{Isa, norm, rope};

/// Instruction sets for products: every set of this machine, and sets with a matrix unit that it may lack.
fn sets() -> Vec<Isa> {
    let mut sets: Vec<Isa> = Isa::available().collect();
    sets.push(Isa::modelled());
    #[cfg(target_arch = "x86_64")]
    sets.extend(amx::sets());
    #[cfg(target_arch = "aarch64")]
    // SAFETY: on this processor the matrix unit is a software model.
    sets.extend(Isa::named("neon").ok().map(|vectors| unsafe { vectors.with_tiles() }));
    sets
}

fn weights() -> impl Iterator<Item = DType> {
    DType::ALL.into_iter().filter(|t| !t.is_integer())
}

/// A packed matrix and its values.
struct Matrix {
    layout: PackedLayout,
    packed: Vec<u8>,
    values: Vec<f32>,
}

impl Matrix {
    fn new(dtype: DType, rows: usize, k: usize, raw: &[u8]) -> Self {
        Self::packed_by(16, dtype, rows, k, raw)
    }

    fn packed_by(packing: usize, dtype: DType, rows: usize, k: usize, raw: &[u8]) -> Self {
        let layout = PackedLayout::new(dtype, rows, k).unwrap().packed_by(packing);
        let mut packed = vec![0; layout.bytes()];
        let raw_bytes = layout.interleave() * 16 * layout.raw_row_bytes();
        let groups = packed.chunks_mut(layout.interleave() * layout.group_bytes());
        for (raw, packed) in raw.chunks(raw_bytes).zip(groups) {
            layout.pack_groups(raw, packed);
        }
        let mut values = vec![0.0; rows * k];
        quant::dequantise(dtype, raw, &mut values).unwrap();
        Self { layout, packed, values }
    }

    fn random(random: &mut Random, dtype: DType, rows: usize, k: usize) -> Self {
        Self::new(dtype, rows, k, &raw(random, dtype, rows, k))
    }

    /// Format of its quantised activations; `None` for plain ones.
    fn format(&self, residual_planes: usize) -> Option<ActivationFormat> {
        self.layout
            .quantised()
            .then(|| ActivationFormat { residual_planes, span: self.layout.span() })
    }
}

/// Activation rows in the form that a weight type needs.
enum Acts {
    Q8(Vec<Q8Block>),
    F32(Vec<F32Block>),
}

impl Acts {
    /// Packs rows, quantised if there is a format.
    fn new(isa: Isa, format: Option<ActivationFormat>, x: &[f32], k: usize) -> Self {
        let (rows, quantised) = (x.len() / k, format.is_some());
        let planes = format.map_or(1, |format| format.residual_planes);
        let n = activations::blocks(k) * rows * planes;
        let mut q8 = vec![Q8Block::default(); if quantised { n } else { 0 }];
        let mut plain = vec![[0.0; 32]; if quantised { 0 } else { n }];
        for (r, x) in x.chunks_exact(k).enumerate() {
            let at = activations::place(r, rows, activations::blocks(k) * planes);
            // SAFETY: the buffers have the sizes computed above.
            unsafe {
                if let Some(format) = format {
                    let dst = q8.as_mut_ptr().add(at.first);
                    activations::quantise(isa, x.as_ptr(), k, dst, at.step, format);
                } else {
                    let dst = plain.as_mut_ptr().add(at.first);
                    activations::arrange(isa, x.as_ptr(), k, dst, at.step);
                }
            }
        }
        if quantised { Self::Q8(q8) } else { Self::F32(plain) }
    }

    fn rows(&self, planes: usize) -> Activations {
        match self {
            Self::Q8(b) => Activations::Q8(Q8Activations {
                blocks: b.as_ptr(),
                residual_planes: planes,
                used_planes: planes,
            }),
            Self::F32(b) => Activations::F32(b.as_ptr()),
        }
    }
}

/// `out[m][n]` plus the initial value, computed in two ranges of row groups.
fn product(isa: Isa, w: &Matrix, x: &[f32], init: Option<f32>) -> Vec<f32> {
    product_with_planes(isa, w, x, init, 1)
}

fn product_with_planes(
    isa: Isa,
    w: &Matrix,
    x: &[f32],
    init: Option<f32>,
    planes: usize,
) -> Vec<f32> {
    let loops = Loops::heuristic(isa, &w.layout, x.len() / w.layout.k());
    product_with_loops(isa, w, x, init, planes, loops)
}

fn product_with_loops(
    isa: Isa,
    w: &Matrix,
    x: &[f32],
    init: Option<f32>,
    planes: usize,
    loops: Loops,
) -> Vec<f32> {
    let (k, n, groups) = (w.layout.k(), w.layout.rows(), w.layout.groups());
    let rows = x.len() / k;
    let acts = Acts::new(isa, w.format(planes), x, k);
    // One column more than needed, which must not change.
    let mut out = vec![init.unwrap_or(f32::NAN); rows * (n + 1)];
    // Ranges do not split interleaved row groups.
    let middle = (groups / 2).next_multiple_of(w.layout.interleave()).min(groups);
    for groups in [0..middle, middle..groups] {
        let p = Product {
            layout: &w.layout,
            weights: &w.packed,
            groups,
            x: acts.rows(planes),
            rows: 0..rows,
            of: rows,
            out: out.as_mut_ptr(),
            stride: n + 1,
            residual: init.map(|_| out.as_ptr()),
            loops,
        };
        // SAFETY: the output has the rows and the stride, the activations the blocks.
        unsafe { matmul(isa, &p) };
    }
    for row in out.chunks_exact(n + 1) {
        assert_eq!(row[n].to_bits(), init.unwrap_or(f32::NAN).to_bits(), "beyond the last column");
    }
    out.chunks_exact(n + 1).flat_map(|row| row[..n].to_vec()).collect()
}

fn bits(x: &[f32]) -> Vec<u32> {
    // NaN payloads are not specified.
    x.iter().map(|v| if v.is_nan() { u32::MAX } else { v.to_bits() }).collect()
}

fn shapes(dtype: DType) -> [(usize, usize); 3] {
    match dtype.block_len() {
        256 => [(16, 256), (37, 512), (1, 768)],
        32 => [(16, 64), (37, 96), (5, 32)],
        _ => [(16, 64), (37, 40), (3, 7)],
    }
}

#[test]
fn packed_rows_decode_to_the_bits_of_quant() {
    for (dtype, packing) in weights().flat_map(|dtype| [(dtype, 16), (dtype, 32)]) {
        for (rows, k) in shapes(dtype) {
            let raw = raw(&mut Random(7), dtype, rows, k);
            let m = Matrix::packed_by(packing, dtype, rows, k, &raw);
            let mut row = vec![0.0; k];
            for (r, want) in m.values.chunks_exact(k).enumerate() {
                m.layout.dequantise_row(&m.packed, r, &mut row);
                assert_eq!(bits(&row), bits(want), "{dtype} {rows}x{k} row {r}");
            }
        }
    }
}

#[test]
fn packed_size_is_close_to_the_file_size() {
    for dtype in weights() {
        let layout = PackedLayout::new(dtype, 2048, 2048).unwrap();
        let file = (2048 * layout.raw_row_bytes()) as f64;
        let more = match dtype {
            DType::TQ2_0 => 1.031,
            DType::Q3_K => 1.055,
            DType::MXFP4 => 1.059,
            DType::TQ1_0 => 1.26,
            // One code per weight.
            DType::IQ3_S | DType::IQ3_XXS => 4.625 / 3.06,
            DType::IQ2_S | DType::IQ2_XS | DType::IQ2_XXS => 3.625 / 2.06,
            DType::IQ1_M | DType::IQ1_S => 3.625 / 1.56,
            _ => 1.011,
        };
        assert!((layout.bytes() as f64) < file * more, "{dtype}");
    }
}

#[test]
fn impossible_layouts_are_rejected() {
    use LayoutError::{Columns, TooLarge, Type};
    assert!(matches!(PackedLayout::new(DType::I32, 1, 32), Err(Type(_))));
    assert!(matches!(PackedLayout::new(DType::Q8_0, 1, 48), Err(Columns { .. })));
    assert!(matches!(PackedLayout::new(DType::F32, 1, 0), Err(Columns { .. })));
    assert!(matches!(PackedLayout::new(DType::F32, usize::MAX / 8, 1024), Err(TooLarge { .. })));
}

#[test]
fn products_equal_f64_arithmetic_over_the_same_blocks() {
    for dtype in weights() {
        for (n, k) in shapes(dtype) {
            let mut random = Random(n as u64 * 1000 + k as u64);
            let w = Matrix::random(&mut random, dtype, n, k);
            let x = random.reals(3 * k, 1.0);
            // The kernel multiplies the quantised activations.
            let seen = match Acts::new(Isa::detect(), w.format(1), &x, k) {
                Acts::Q8(b) => {
                    let value = |m: usize, i: usize| {
                        let block = &b[i / 32 * 3 + m];
                        f64::from(block.q[i % 32]) * f64::from(block.scale)
                    };
                    (0..3 * k).map(|i| value(i / k, i % k)).collect::<Vec<_>>()
                }
                Acts::F32(_) => x.iter().map(|&v| f64::from(v)).collect(),
            };
            for isa in sets() {
                for init in [None, Some(0.5f32)] {
                    let got = product(isa, &w, &x, init);
                    for (i, &got) in got.iter().enumerate() {
                        let (m, r) = (i / n, i % n);
                        let row = &w.values[r * k..][..k];
                        let terms = row.iter().zip(&seen[m * k..]).map(|(&w, x)| f64::from(w) * x);
                        let want = terms.clone().sum::<f64>() + f64::from(init.unwrap_or(0.0));
                        // The offsets of unsigned quants cancel terms up to this size.
                        let size: f64 = terms.map(f64::abs).sum::<f64>() + 1.0;
                        // Blocks that are added up before scaling accumulate their biases.
                        let rounding = if w.layout.span() > 1 { 4e-4 } else { 4e-6 };
                        assert!(
                            (f64::from(got) - want).abs() <= size * rounding,
                            "{isa} {dtype} {n}x{k} row {m} column {r}: {got} for {want}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn quantised_activations_are_within_half_a_step() {
    let mut random = Random(3);
    let mut x = random.reals(100, 1.0);
    x[40] = 1000.0;
    x[99] = -1e-9;
    for isa in Isa::available() {
        let format = ActivationFormat { residual_planes: 1, span: 1 };
        let Acts::Q8(blocks) = Acts::new(isa, Some(format), &x, 100) else { unreachable!() };
        assert_eq!(blocks.len(), 4);
        for (i, &x) in x.iter().enumerate() {
            let b = &blocks[i / 32];
            let error = f32::from(b.q[i % 32]) * b.scale - x;
            assert!(error.abs() <= b.scale * 0.500_01, "{isa} {i}: {x} off by {error}");
        }
        for b in &blocks {
            let sum = |r: std::ops::Range<usize>| b.q[r].iter().map(|&q| i32::from(q)).sum::<i32>();
            assert_eq!(b.less32, [BIAS - 32 * sum(0..16), BIAS - 32 * sum(16..32)]);
            assert_eq!((b.less8, b.less128), (BIAS - 8 * sum(0..32), BIAS - 128 * sum(0..32)));
            assert_eq!(b.sum, sum(0..32) as f32);
            assert_eq!(b.negated, [15, 31].map(|m| MINUS_BIAS - m * sum(0..32)));
            assert!(b.q.iter().all(|&q| q != i8::MIN));
        }
    }
}

#[test]
fn products_have_the_same_bits_on_every_set_and_for_any_row_count() {
    for dtype in weights() {
        let (n, k) = shapes(dtype)[1];
        let mut random = Random(11);
        let w = Matrix::random(&mut random, dtype, n, k);
        let x = random.reals(71 * k, 1.0);
        let alone: Vec<Vec<u32>> = x
            .chunks_exact(k)
            .map(|x| bits(&product(Isa::named("scalar").unwrap(), &w, x, None)))
            .collect();
        for isa in sets() {
            for rows in [1, 2, 3, 4, 5, 8, 9, 16, 25, 64, 71] {
                let got = product(isa, &w, &x[..rows * k], None);
                for (m, got) in got.chunks_exact(n).enumerate() {
                    assert_eq!(bits(got), alone[m], "{isa} {dtype} row {m} of {rows}");
                }
            }
        }
    }
}

#[test]
fn loop_parameters_and_weight_packing_do_not_change_results() {
    for dtype in weights() {
        // Five row groups: two interleaved pairs and a single one.
        let (n, k) = (70, dtype.block_len().max(64) * 2);
        let mut random = Random(17);
        let raw = raw(&mut random, dtype, n, k);
        let w = Matrix::new(dtype, n, k, &raw);
        let x = random.reals(71 * k, 1.0);
        for isa in sets() {
            let packed = |&packing| Matrix::packed_by(packing, dtype, n, k, &raw);
            let packings: Vec<Matrix> = isa.packings().iter().map(packed).collect();
            for (rows, planes) in [(1, 1), (1, 2), (3, 1), (71, 2)] {
                let planes = if dtype.is_quantised() { planes } else { 1 };
                let x = &x[..rows * k];
                let expected = bits(&product_with_planes(isa, &w, x, Some(0.5), planes));
                for (prefetch_distance, tile) in
                    [(0, 64), (32768, 64), (8192, 16), (1 << 40, 32), (8192, 1)]
                {
                    let loops = Loops { prefetch_distance, tile };
                    for w in &packings {
                        let got = product_with_loops(isa, w, x, Some(0.5), planes, loops);
                        let interleave = w.layout.interleave();
                        assert_eq!(
                            bits(&got),
                            expected,
                            "{isa} {dtype} {rows} rows {loops:?} {interleave}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_second_residual_plane_reduces_the_error() {
    for dtype in weights().filter(|t| t.is_quantised()) {
        let (n, k) = shapes(dtype)[1];
        let mut random = Random(13);
        let w = Matrix::random(&mut random, dtype, n, k);
        let x = random.reals(6 * k, 1.0);
        let scalar = Isa::named("scalar").unwrap();
        let alone: Vec<Vec<u32>> =
            x.chunks_exact(k).map(|x| bits(&product_with_planes(scalar, &w, x, None, 2))).collect();
        for isa in sets() {
            let both = product_with_planes(isa, &w, &x, None, 2);
            for (m, row) in both.chunks_exact(n).enumerate() {
                assert_eq!(bits(row), alone[m], "{isa} {dtype} row {m}");
            }
            let first = product(isa, &w, &x, None);
            let mut errors = [0.0f64; 2];
            for (i, y) in [&first, &both].into_iter().enumerate() {
                for (j, &y) in y.iter().enumerate() {
                    let (row, x) = (&w.values[j % n * k..][..k], &x[j / n * k..][..k]);
                    let exact: f64 =
                        row.iter().zip(x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum();
                    errors[i] += (f64::from(y) - exact).powi(2);
                }
            }
            // Limits of the squared error: a hundredth of the error, or a tenth if rounded biases add up. Ternary
            // types have levels as small as the biases' rounding errors.
            let left = match dtype {
                DType::TQ1_0 | DType::TQ2_0 => 0.1,
                _ if w.layout.span() > 1 => 0.01,
                _ => 1e-4,
            };
            assert!(errors[1] < errors[0] * left, "{isa} {dtype}: {errors:?}");
        }
    }
}

#[test]
fn extreme_bytes_do_not_saturate() {
    let quantised = || weights().filter(|dtype| dtype.is_quantised());
    for (dtype, fill) in quantised().flat_map(|dtype| [(dtype, 0xFF), (dtype, 0x80), (dtype, 0x7F)])
    {
        let k = dtype.block_len() * 2;
        let mut raw = raw(&mut Random(1), dtype, 16, k);
        for block in raw.chunks_exact_mut(dtype.block_bytes()) {
            block.fill(fill);
            put_scales(dtype, block, 1.0, 1.0);
        }
        let w = Matrix::new(dtype, 16, k, &raw);
        for sign in [1.0f32, -1.0] {
            let x = vec![sign; k];
            let terms = w.values[..k].iter().map(|&v| f64::from(v * sign));
            let (want, size) = (terms.clone().sum::<f64>(), terms.map(f64::abs).sum::<f64>());
            for isa in sets() {
                let got = f64::from(product(isa, &w, &x, None)[0]);
                assert!((got - want).abs() <= size * 5e-5, "{isa} {dtype}: {got} for {want}");
            }
        }
    }
}

#[test]
fn zeros_give_zero_and_a_nan_or_infinity_affects_only_its_row() {
    for dtype in weights() {
        let (n, k) = shapes(dtype)[0];
        let w = Matrix::random(&mut Random(5), dtype, n, k);
        for isa in sets() {
            assert!(
                product(isa, &w, &vec![0.0; k], None).iter().all(|&y| y == 0.0),
                "{isa} {dtype}"
            );
            for bad in [f32::NAN, f32::INFINITY] {
                let mut x = Random(6).reals(2 * k, 1.0);
                x[5] = bad;
                let y = product(isa, &w, &x, None);
                assert!(y[..n].iter().all(|y| !y.is_finite()), "{isa} {dtype} {bad}");
                assert!(y[n..].iter().all(|y| y.is_finite()), "{isa} {dtype} {bad}");
            }
        }
    }
}

/// Runs on every set, asserts equal bits, and returns the result.
fn everywhere(what: &str, f: impl Fn(Isa) -> Vec<f32>) -> Vec<f32> {
    let want = f(Isa::named("scalar").unwrap());
    for isa in Isa::available() {
        assert_eq!(bits(&f(isa)), bits(&want), "{what} on {isa}");
    }
    want
}

fn close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len());
    for (i, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        assert!(error <= tolerance * want.abs().max(1.0), "{what} [{i}]: {got} for {want}");
    }
}

#[test]
fn rms_norm_equals_f64() {
    for n in [1, 15, 16, 64, 100, 2048] {
        let mut random = Random(n as u64);
        let (x, weight) = (random.reals(n, 1.0), random.reals(n, 1.0));
        let got = everywhere("rms_norm", |isa| {
            let mut y = x.clone();
            // SAFETY: all three are `n` long, in place.
            unsafe { norm::rms_norm(isa, y.as_ptr(), weight.as_ptr(), y.as_mut_ptr(), n, 1e-5) };
            y
        });
        let mean = x.iter().map(|&v| f64::from(v).powi(2)).sum::<f64>() / n as f64;
        let want: Vec<f64> = x
            .iter()
            .zip(&weight)
            .map(|(&x, &w)| f64::from(x) / (mean + 1e-5).sqrt() * f64::from(w))
            .collect();
        close("rms_norm", &got, &want, 1e-6);
    }
}

#[test]
fn swiglu_equals_f64_over_the_whole_range() {
    let mut gate: Vec<f32> = (-2000..2000).map(|i| i as f32 * 0.05).collect();
    gate.extend([0.0, -0.0, 1e30, -1e30, f32::MIN_POSITIVE]);
    let up = vec![1.5f32; gate.len()];
    let got = everywhere("swiglu", |isa| {
        let mut y = gate.clone();
        // SAFETY: all three are equally long.
        unsafe {
            norm::glu(isa, Activation::Silu, y.as_ptr(), up.as_ptr(), y.as_mut_ptr(), y.len());
        };
        y
    });
    for (&g, &got) in gate.iter().zip(&got) {
        let want = f64::from(g) / (1.0 + (-f64::from(g)).exp()) * 1.5;
        assert!(
            (f64::from(got) - want).abs() <= want.abs() * 5e-7 + 1e-30,
            "{g}: {got} for {want}"
        );
    }
    let nan = everywhere("swiglu", |isa| {
        let mut y = vec![f32::NAN, 1.0];
        // SAFETY: all three are two long.
        unsafe { norm::glu(isa, Activation::Silu, y.as_ptr(), up.as_ptr(), y.as_mut_ptr(), 2) };
        y
    });
    assert!(nan[0].is_nan() && nan[1].is_finite());
}

#[test]
fn add_and_argmax_are_exact_and_argmax_rejects_nan_and_infinity() {
    let (a, b) = (Random(1).reals(77, 1.0), Random(2).reals(77, 1.0));
    let got = everywhere("add", |isa| {
        let mut y = vec![0.0; 77];
        // SAFETY: all three are equally long.
        unsafe { norm::add(isa, a.as_ptr(), b.as_ptr(), y.as_mut_ptr(), 77) };
        y
    });
    assert!(got.iter().zip(a.iter().zip(&b)).all(|(y, (a, b))| *y == a + b));

    let (nan, infinity) = (f32::NAN, f32::INFINITY);
    let mut long = Random(3).reals(1000, 1.0);
    (long[700], long[701], long[20], long[999]) = (2.0, 2.0, -infinity, -infinity);
    let with = |at: usize, odd| {
        let mut x = long.clone();
        x[at] = odd;
        x
    };
    let odd = [0, 5, 700, 991, 992, 999].map(|at| [nan, -nan, infinity].map(|odd| with(at, odd)));
    let rows: [(&[f32], Option<usize>); 7] = [
        (&long, Some(700)),
        (&[1.0, 3.0, 3.0], Some(1)),
        (&[-infinity, f32::MIN], Some(1)),
        (&[nan, -5.0], None),
        (&[nan, nan], None),
        (&[-infinity; 3], None),
        (&[], None),
    ];
    for (x, want) in rows.into_iter().chain(odd.iter().flatten().map(|x| (&x[..], None))) {
        for isa in Isa::available() {
            // SAFETY: the slice's own length.
            assert_eq!(unsafe { norm::argmax(isa, x.as_ptr(), x.len()) }, want, "{isa}");
        }
    }
}

#[test]
fn rope_rotates_the_pairs_of_each_style() {
    for style in [RopeStyle::Interleaved, RopeStyle::HalfSplit] {
        for dim in [16, 64, 80, 128] {
            let mut random = Random(dim as u64);
            let (x, angle) = (random.reals(dim, 1.0), random.reals(dim / 2, 1.0));
            let (cos, sin): (Vec<f32>, Vec<f32>) = angle.iter().map(|a| (a.cos(), a.sin())).unzip();
            let got = everywhere("rope", |isa| {
                let mut y = x.clone();
                // SAFETY: sizes as documented.
                unsafe { rope::rope(isa, y.as_mut_ptr(), dim, cos.as_ptr(), sin.as_ptr(), style) };
                y
            });
            let mut want = vec![0.0f64; dim];
            for i in 0..dim / 2 {
                let (p, q) = match style {
                    RopeStyle::Interleaved => (2 * i, 2 * i + 1),
                    RopeStyle::HalfSplit => (i, i + dim / 2),
                };
                let (a, b) = (f64::from(x[p]), f64::from(x[q]));
                let (c, s) = (f64::from(cos[i]), f64::from(sin[i]));
                (want[p], want[q]) = (a * c - b * s, a * s + b * c);
            }
            close("rope", &got, &want, 2e-7);
        }
    }
}

#[test]
fn activations_caps_and_means_equal_f64() {
    let (n, mut random) = (1003, Random(21));
    let x: Vec<f32> = random.reals(n, 12.0);
    let run = |name: &str, f: &dyn Fn(Isa, *const f32, *mut f32)| {
        everywhere(name, |isa| {
            let mut y = vec![f32::NAN; n];
            f(isa, x.as_ptr(), y.as_mut_ptr());
            y
        })
    };
    let want = |f: &dyn Fn(f64) -> f64| x.iter().map(|&x| f(f64::from(x))).collect::<Vec<_>>();
    // SAFETY: `n` values each.
    let got = run("gelu", &|isa, x, y| unsafe { norm::activate(isa, Activation::Gelu, x, y, n) });
    let root = (2.0 / std::f64::consts::PI).sqrt();
    let gelu = |x: f64| 0.5 * x * (1.0 + (root * (x + 0.044_715 * x * x * x)).tanh());
    close("gelu", &got, &want(&gelu), 2e-6);
    // SAFETY: as above.
    let got = run("silu", &|isa, x, y| unsafe { norm::activate(isa, Activation::Silu, x, y, n) });
    close("silu", &got, &want(&|x| x / (1.0 + (-x).exp())), 1e-6);
    for cap in [0.5f32, 30.0] {
        // SAFETY: as above.
        let got = run("cap", &|isa, x, y| unsafe { norm::soft_cap(isa, cap, x, y, n) });
        let cap = f64::from(cap);
        close("cap", &got, &want(&|x| cap * (x / cap).tanh()), 1e-6 * cap.max(1.0));
    }
    let shifted: Vec<f32> = x.iter().map(|x| x + 100.0).collect();
    let got = everywhere("centre", |isa| {
        let mut y = shifted.clone();
        // SAFETY: as above.
        unsafe { norm::centre(isa, y.as_ptr(), y.as_mut_ptr(), n) };
        y
    });
    let mean = shifted.iter().map(|&x| f64::from(x)).sum::<f64>() / n as f64;
    let want: Vec<f64> = shifted.iter().map(|&x| f64::from(x) - mean).collect();
    close("centre", &got, &want, 1e-5);
}

#[test]
fn every_read_pattern_reads_every_byte() {
    let part: Vec<u8> = (0..8 * PARTS_OF).map(|i| (i * 31 % 251) as u8).collect();
    let sum = part
        .chunks(8)
        .fold(0u64, |sum, word| sum.wrapping_add(u64::from_ne_bytes(word.try_into().unwrap())));
    for isa in Isa::available() {
        for pattern in Pattern::ALL {
            assert_eq!(read(isa, &part, pattern), sum, "{isa} {pattern:?}");
        }
    }
}
