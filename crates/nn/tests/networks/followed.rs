//! CPU fusion: epilogues of products, fused row operations and in-place concat return the same bits
//! as separate operations.

use nn::functions as f;
use plan::graph::{Graph, Result, Tensor};
use plan::{Binary, Class, DType, Windows};

use super::convolutions::{answers, close, numbers};

type Chain = fn(&mut Graph, y: Tensor, more: Tensor) -> Result<Tensor>;

/// Epilogues of a product and a second operand of the same shape.
const CHAINS: [(&str, Chain); 8] = [
    ("relu", |g, y, _| f::relu(g, y)),
    ("relu6", |g, y, _| f::relu6(g, y)),
    ("silu", |g, y, _| f::silu(g, y)),
    ("add", f::add),
    ("add, relu", |g, y, more| {
        let y = f::add(g, more, y)?;
        f::relu(g, y)
    }),
    ("silu, add", |g, y, more| {
        let y = f::silu(g, y)?;
        f::add(g, more, y)
    }),
    ("add, silu, add", |g, y, more| {
        let y = f::add(g, y, more)?;
        let y = f::silu(g, y)?;
        f::add(g, y, more)
    }),
    // Not a supported epilogue.
    ("tanh", |g, y, _| f::tanh(g, y)),
];

#[test]
fn fused_epilogues_equal_separate_operations() {
    let one = |groups| Windows {
        stride: vec![1, 1],
        pads: vec![[1, 1]; 2],
        dilation: vec![1, 1],
        groups,
    };
    let point = Windows { pads: vec![[0, 0]; 2], ..one(1) };
    // Tiled windows, several column tiles, depthwise.
    let cases = [
        ([1, 20, 9, 21], vec![24, 20, 3, 3], one(1)),
        ([2, 140, 7, 7], vec![35, 140, 1, 1], point),
        ([1, 9, 17, 70], vec![9, 1, 3, 3], one(9)),
    ];
    let mut seed = 51;
    for (shape, weight, windows) in &cases {
        let mut values = |n: usize| numbers(&mut seed, n).iter().map(|x| 4.0 * x).collect();
        let result = [shape[0], weight[0], shape[2], shape[3]];
        let x: Vec<f32> = values(shape.iter().product());
        let w: Vec<f32> = values(weight.iter().product());
        let (b, more): (Vec<f32>, Vec<f32>) = (values(weight[0]), values(result.iter().product()));
        let product = |g: &mut Graph| {
            let w = g.source(Class::Weight, "w", DType::F32, &[w.len()])?;
            let w = g.reshape(w, weight)?;
            let b = g.source(Class::Weight, "b", DType::F32, &[b.len()])?;
            let x = g.source(Class::Mailbox, "x", DType::F32, shape)?;
            g.conv(x, w, Some(b), windows)
        };
        followed(&[("w", &w), ("b", &b)], &[("x", &x)], &more, &result, &product);
    }
    for [m, n, k] in [[1, 40, 7], [37, 250, 300], [9, 49, 128]] {
        let mut values = |n: usize| numbers(&mut seed, n);
        let (a, b, row, more) = (values(m * k), values(k * n), values(n), values(m * n));
        let product = |g: &mut Graph| {
            let a = g.source(Class::Mailbox, "a", DType::F32, &[m, k])?;
            let b = g.source(Class::Weight, "b", DType::F32, &[n * k])?;
            let b = g.reshape(b, &[n, k])?;
            let row = g.source(Class::Mailbox, "row", DType::F32, &[n])?;
            let y = g.matmul(a, b)?;
            g.binary(Binary::Add, y, row)
        };
        followed(&[("b", &b)], &[("a", &a), ("row", &row)], &more, &[m, n], &product);
    }
}

/// Compares each epilogue after a product with the same epilogue after the stored product.
fn followed(
    weights: &[(&str, &[f32])],
    inputs: &[(&str, &[f32])],
    more: &[f32],
    shape: &[usize],
    product: &dyn Fn(&mut Graph) -> Result<Tensor>,
) {
    let alone = answers(weights, inputs, product);
    for (name, chain) in CHAINS {
        let other = |g: &mut Graph| g.source(Class::Mailbox, "more", DType::F32, shape);
        let extra = [("more", more)];
        let extra = if name.contains("add") { &extra[..] } else { &[] };
        let have = answers(weights, &[inputs, extra].concat(), |g| {
            let (y, more) = (product(g)?, other(g)?);
            chain(g, y, more)
        });
        let alone: [(&str, &[f32]); 1] = [("y", &alone)];
        let want = answers(&[], &[&alone, extra].concat(), |g| {
            let (y, more) = (g.source(Class::Mailbox, "y", DType::F32, shape)?, other(g)?);
            chain(g, y, more)
        });
        let bits = |all: &[f32]| all.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&have), bits(&want), "{name} behind {shape:?}");
    }
}

/// Softmax followed by a norm: several groups over the same rows, with rows longer and shorter than
/// a block.
#[test]
fn fused_rows_equal_f64_sums() {
    let mut seed = 52;
    for [heads, rows, length] in [[1, 1, 2], [2, 3, 300], [3, 50, 17], [1, 5, 9000]] {
        let (x, more) = (numbers(&mut seed, heads * rows * length), numbers(&mut seed, length));
        let shape = [heads, rows, length];
        let have = answers(&[], &[("x", &x), ("more", &more)], |g| {
            let x = g.source(Class::Mailbox, "x", DType::F32, &shape)?;
            let more = g.source(Class::Mailbox, "more", DType::F32, &[length])?;
            let y = f::softmax(g, x, 2)?;
            let y = f::times(g, y, length as f32)?;
            nn::norm::layer_norm(g, y, 1, Some([more, more]), 1e-5)
        });
        let want: Vec<(f64, f64)> = x
            .chunks_exact(length)
            .flat_map(|row| {
                let n = length as f64;
                let all: Vec<f64> = row.iter().map(|x| f64::from(*x).exp()).collect();
                let sum: f64 = all.iter().sum();
                let all: Vec<f64> = all.iter().map(|x| x / sum * n).collect();
                let mean = all.iter().sum::<f64>() / n;
                let spread = all.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
                let size = 1.0 / (spread + 1e-5).sqrt();
                let value = move |(x, more): (&f64, &f32)| {
                    (
                        (x - mean) * size * f64::from(*more) + f64::from(*more),
                        4.0 * (x.abs() + 1.0) * size,
                    )
                };
                all.iter().zip(&more).map(value).collect::<Vec<_>>()
            })
            .collect();
        close(&have, &want, &format!("{shape:?}"));
    }
}

/// Concats of parts of several sizes, some transposed, along each axis. Concat adds zeroes, so
/// negative zero becomes zero.
#[test]
fn in_place_concat_writes_each_part_to_its_place() {
    let mut seed = 53;
    for axis in 0..3 {
        let extents = [[5, 31, 33], [7, 30, 40], [40, 9, 300]][axis];
        let shapes: Vec<[usize; 3]> = (0..3)
            .map(|part| {
                let mut shape = [3, 20, 50];
                shape[axis] = extents[part];
                shape
            })
            .collect();
        let mut parts: Vec<Vec<f32>> =
            shapes.iter().map(|shape| numbers(&mut seed, shape.iter().product())).collect();
        parts[1][3] = -0.0;
        let names = ["a", "b", "c"];
        let inputs: Vec<(&str, &[f32])> =
            names.into_iter().zip(parts.iter().map(|part| &part[..])).collect();
        let have = answers(&[], &inputs, |g| {
            let mut all = Vec::new();
            for (name, shape) in names.into_iter().zip(&shapes) {
                let [a, b, c] = *shape;
                let turned = g.source(Class::Mailbox, name, DType::F32, &[a, c, b])?;
                all.push(g.permute(turned, &[0, 2, 1])?);
            }
            nn::shape::concat(g, &all, axis)
        });
        let mut shape = [3, 20, 50];
        shape[axis] = extents.iter().sum();
        for (at, have) in have.iter().enumerate() {
            let mut place = [at / shape[2] / shape[1], at / shape[2] % shape[1], at % shape[2]];
            let mut part = 0;
            while place[axis] >= extents[part] {
                place[axis] -= extents[part];
                part += 1;
            }
            let [_, b, c] = shapes[part];
            let want = parts[part][(place[0] * c + place[2]) * b + place[1]];
            assert_eq!(have.to_bits(), want.to_bits(), "axis {axis}, element {at}");
        }
    }
}
