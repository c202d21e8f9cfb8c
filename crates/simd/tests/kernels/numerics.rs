//! Every kernel on every instruction set gives the same bits as `model`, the scalar definition in
//! `docs/numerics.md`.

use orind_testing::numerics as model;
use orind_testing::random::Random;
use plan::{Activation, DType, RopeStyle};
use simd::cache::CacheFormat;
use simd::{norm, rope};

use super::attention::{Cached, SCALE};
use super::{Matrix, bits, everywhere, product_with_planes, raw, sets, weights};

/// Column counts just before and after the ends of leaves, superblocks and vectors.
fn columns(dtype: DType) -> &'static [usize] {
    match dtype.block_len() {
        256 => &[256, 768],
        32 => &[32, 96, 256, 288, 736],
        _ => &[7, 40, 256, 300, 777],
    }
}

#[test]
fn products_equal_the_model() {
    for dtype in weights() {
        for (&k, rows) in columns(dtype).iter().zip([1, 5, 37].into_iter().cycle()) {
            let mut random = Random((1000 * rows + k) as u64);
            let raw = raw(&mut random, dtype, rows, k);
            let mut x = random.reals(11 * k, 1.0);
            // A row of different magnitudes, and a row of zeroes.
            for (i, x) in x[k..2 * k].iter_mut().enumerate() {
                *x *= 10f32.powi(i as i32 % 9 - 4);
            }
            x[2 * k..3 * k].fill(0.0);
            let plane_counts: &[usize] = if dtype.is_quantised() { &[1, 2] } else { &[1] };
            for &planes in plane_counts {
                let row_bytes = raw.len() / rows;
                let want: Vec<f32> = x
                    .chunks(k)
                    .flat_map(|x| raw.chunks(row_bytes).map(move |row| (row, x)))
                    .map(|(row, x)| model::product(dtype, row, x, planes))
                    .collect();
                for isa in sets() {
                    for &packing in isa.packings() {
                        let w = Matrix::packed_by(packing, dtype, rows, k, &raw);
                        // One row, and many.
                        for count in [1, 11] {
                            let got = product_with_planes(isa, &w, &x[..count * k], None, planes);
                            assert_eq!(
                                bits(&got),
                                bits(&want[..count * rows]),
                                "{isa} {dtype} {rows}x{k}, {count} rows, {planes} planes"
                            );
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn norms_equal_the_model() {
    for n in [1, 31, 32, 64, 100, 128, 255, 256, 257, 300, 1024, 2050] {
        let mut random = Random(n as u64);
        let (x, weight) = (random.reals(n, 3.0), random.reals(n, 1.0));
        let got = everywhere("norm", |isa| {
            let mut y = vec![0.0; n];
            // SAFETY: all three are `n` long.
            unsafe { norm::rms_norm(isa, x.as_ptr(), weight.as_ptr(), y.as_mut_ptr(), n, 1e-6) };
            y
        });
        assert_eq!(bits(&got), bits(&model::norm(&x, &weight, 1e-6)), "{n}");
        let got = everywhere("centre", |isa| {
            let mut y = vec![0.0; n];
            // SAFETY: both are `n` long.
            unsafe { norm::centre(isa, x.as_ptr(), y.as_mut_ptr(), n) };
            y
        });
        assert_eq!(bits(&got), bits(&model::centred(&x)), "{n}");
    }
}

#[test]
fn rope_tables_equal_the_model_and_are_exact_to_3e_7() {
    for (theta, half, magnitude) in [(1e4f32, 32, 1.0f32), (1e6, 64, 1.1896), (5e5, 40, 1.0)] {
        let frequencies: Vec<f32> =
            (0..half).map(|i| theta.powf(-(i as f32) / half as f32)).collect();
        for position in [0.0f32, 1.0, 2.0, 31.0, 600.0, 4095.0, 131_071.0, 1_000_000.0] {
            let got = everywhere("table", |isa| {
                let mut out = vec![0.0; 2 * half];
                let (f, out_at) = (frequencies.as_ptr(), out.as_mut_ptr());
                // SAFETY: `half` frequencies, twice as many results.
                unsafe { rope::table(isa, position, f, half, magnitude, out_at) };
                out
            });
            let want = model::table(position, &frequencies, magnitude);
            assert_eq!(bits(&got), bits(&want), "position {position}, theta {theta}");
            for (i, &f) in frequencies.iter().enumerate() {
                let angle = f64::from(position) * f64::from(f);
                for (got, want) in [(got[i], angle.cos()), (got[half + i], angle.sin())] {
                    let error = f64::from(got) - want * f64::from(magnitude);
                    assert!(error.abs() < 3e-7, "{position} x {f}: {got} for {want}");
                }
            }
        }
    }
}

#[test]
fn rotations_equal_the_model() {
    for style in [RopeStyle::Interleaved, RopeStyle::HalfSplit] {
        for dim in [16, 64, 80, 128] {
            let mut random = Random(dim as u64);
            let [x, cos, sin] = [dim, dim / 2, dim / 2].map(|n| random.reals(n, 1.0));
            let got = everywhere("rope", |isa| {
                let mut y = x.clone();
                // SAFETY: sizes as documented.
                unsafe { rope::rope(isa, y.as_mut_ptr(), dim, cos.as_ptr(), sin.as_ptr(), style) };
                y
            });
            assert_eq!(bits(&got), bits(&model::rotate(&x, &cos, &sin, style)), "{dim}");
        }
    }
}

#[test]
fn exponentials_equal_the_model() {
    let mut gate: Vec<f32> = (-20_000..20_000).map(|i| i as f32 * 0.0051).collect();
    gate.extend([0.0, -0.0, 87.3, 87.33, 87.34, 87.5, 88.0, -88.0, 88.1, -88.1, 1e30, -1e30]);
    gate.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1e-40]);
    let up = Random(4).reals(gate.len(), 2.0);
    let got = everywhere("swiglu", |isa| {
        let mut y = vec![0.0; gate.len()];
        // SAFETY: all three are equally long.
        unsafe {
            norm::glu(isa, Activation::Silu, gate.as_ptr(), up.as_ptr(), y.as_mut_ptr(), y.len());
        };
        y
    });
    let want: Vec<f32> = gate.iter().zip(&up).map(|(&g, &u)| model::swiglu(g, u)).collect();
    assert_eq!(bits(&got), bits(&want));
    let got = everywhere("geglu", |isa| {
        let (mut y, gelu) = (vec![0.0; gate.len()], Activation::Gelu);
        // SAFETY: all three are equally long.
        unsafe { norm::glu(isa, gelu, gate.as_ptr(), up.as_ptr(), y.as_mut_ptr(), y.len()) };
        y
    });
    let want: Vec<f32> = gate.iter().zip(&up).map(|(&g, &u)| model::gelu(g) * u).collect();
    assert_eq!(bits(&got), bits(&want));
    let got = everywhere("cap", |isa| {
        let mut y = vec![0.0; gate.len()];
        // SAFETY: both are equally long.
        unsafe { norm::soft_cap(isa, 30.0, gate.as_ptr(), y.as_mut_ptr(), y.len()) };
        y
    });
    let want: Vec<f32> = gate.iter().map(|&x| model::capped(x, Some(30.0))).collect();
    assert_eq!(bits(&got), bits(&want));
}

impl Cached {
    /// The model's attention over the rounded cache.
    fn model(&self, q: &[f32], head: usize, positions: usize) -> Vec<f32> {
        let [k, v] = self.stored();
        let [k, v] = [&k, &v].map(|x| x.chunks(self.dim).take(positions).collect::<Vec<_>>());
        let first = positions.saturating_sub(self.window);
        let sink = self.sinks.get(head).copied();
        model::attention(q, &k, &v, first, sink, |dot| model::capped(dot * SCALE, self.cap))
    }
}

/// Attention of tokens over `first` positions and more, on every instruction set.
fn check_attention(cached: &Cached, q: &[f32], heads: usize, first: usize) -> Vec<f32> {
    let what = format!("{heads} heads of {} from {first}", cached.dim);
    let got = everywhere(&what, |isa| cached.attend(isa, q, heads, first));
    for (line, (q, got)) in q.chunks(cached.dim).zip(got.chunks(cached.dim)).enumerate() {
        let want = cached.model(q, line % heads, first + line / heads);
        assert_eq!(bits(got), bits(&want), "{what}, line {line}");
    }
    got
}

#[test]
fn attention_equals_the_model_at_span_and_group_boundaries() {
    for (positions, (heads, dim)) in [1, 31, 32, 33, 255, 256, 257, 600]
        .into_iter()
        .zip([(1, 64), (3, 16), (2, 128), (7, 80)].into_iter().cycle())
    {
        for tokens in [1, 16.min(positions)] {
            let mut random = Random((positions + tokens) as u64);
            let cached = Cached::new(&mut random, dim, positions);
            // Large scores, so that spans have different powers.
            let q = random.reals(tokens * heads * dim, 4.0);
            check_attention(&cached, &q, heads, positions + 1 - tokens);
            let mut narrow = Cached { window: 40, cap: Some(3.0), ..cached };
            check_attention(&narrow, &q, heads, positions + 1 - tokens);
            // Sinks that take none, some and all of the weight.
            narrow.sinks = (0..heads).map(|head| [1.5, -200.0, 300.0][head % 3]).collect();
            check_attention(&narrow, &q, heads, positions + 1 - tokens);
        }
    }
}

#[test]
fn attention_over_quantised_caches_equals_the_model() {
    for format in [CacheFormat::Q8_0, CacheFormat::Q4_0] {
        for (positions, heads, dim) in [(1, 1, 32), (33, 3, 64), (300, 2, 96), (257, 12, 128)] {
            let mut random = Random(positions as u64);
            let mut cached = Cached::of(format, &mut random, dim, positions);
            let q = random.reals(heads * dim, 4.0);
            check_attention(&cached, &q, heads, positions);
            // An infinite key makes its whole block NaN, and the results of tokens that attend to it.
            cached.put(0, &vec![f32::INFINITY; dim]);
            let got = check_attention(&cached, &q, heads, positions);
            assert!(got.iter().all(|y| y.is_nan()), "{format:?}");
        }
    }
}

#[test]
fn attention_with_out_of_range_scores_equals_the_model() {
    let (dim, positions) = (16, 300);
    let mut random = Random(8);
    let mut cached = Cached::new(&mut random, dim, positions);
    // Scores of thousands, most with a weight of zero; then so large that no power of two is near.
    for (scale, finite) in [(2e3, true), (1e8, false), (f32::INFINITY, false), (f32::NAN, false)] {
        let q: Vec<f32> = random.reals(dim, 1.0).iter().map(|q| q * scale).collect();
        let got = check_attention(&cached, &q, 1, positions);
        assert!(got.iter().all(|y| y.is_finite() == finite && y.is_nan() != finite), "{scale}");
    }
    // One position is NaN: earlier tokens do not attend to it.
    cached = Cached::new(&mut random, dim, positions);
    cached.put(40, &[f32::NAN; 16]);
    let q = random.reals(16 * dim, 1.0);
    let got = check_attention(&cached, &q, 1, 33);
    let (before, after) = got.split_at(8 * dim);
    assert!(before.iter().all(|y| y.is_finite()) && after.iter().all(|y| y.is_nan()));
}
