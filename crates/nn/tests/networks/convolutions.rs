//! Convolutions and products with constant weights on the CPU's specialised paths (tiled, direct,
//! depthwise, packed). Compared with `f64` sums, with epilogues, on every instruction set.

use device::cpu::{Cpu, Isa};
use nn::Session;
use plan::graph::{Graph, Result, Tensor};
use plan::{Binary, Class, DType, Windows};

/// `[N, C, H, W]`, `[O, C / groups, h, w]`, and the window geometry.
struct Case {
    x: [usize; 4],
    weight: [usize; 4],
    stride: [usize; 2],
    pads: [[usize; 2]; 2],
    dilation: [usize; 2],
    groups: usize,
}

impl Case {
    const fn of(x: [usize; 4], weight: [usize; 4]) -> Self {
        let (stride, pads, dilation) = ([1, 1], [[1, 1], [1, 1]], [1, 1]);
        Self { x, weight, stride, pads, dilation, groups: 1 }
    }

    fn counts(&self) -> [usize; 2] {
        std::array::from_fn(|i| {
            let [before, after] = self.pads[i];
            let reach = (self.weight[2 + i] - 1) * self.dilation[i];
            (self.x[2 + i] + before + after - reach - 1) / self.stride[i] + 1
        })
    }

    fn windows(&self) -> Windows {
        Windows {
            stride: self.stride.to_vec(),
            pads: self.pads.to_vec(),
            dilation: self.dilation.to_vec(),
            groups: self.groups,
        }
    }

    /// `max(conv(x) + bias + x2, 0)` with each sum in `f64`, and the magnitude of the summands.
    fn expected(&self, x: &[f32], w: &[f32], bias: &[f32], more: &[f32]) -> Vec<(f64, f64)> {
        let [batch, channels, high, wide] = self.x;
        let [outputs, inner, rows, columns] = self.weight;
        let [down, across] = self.counts();
        let mut all = Vec::new();
        assert_eq!(more.len(), batch * outputs * down * across);
        for (at, more) in more.iter().enumerate() {
            let (column, row) = (at % across, at / across % down);
            let (output, image) = (at / across / down % outputs, at / across / down / outputs);
            let group = output / (outputs / self.groups);
            let (mut sum, mut size) = (f64::from(bias[output]), 0.0);
            for tap in 0..inner * rows * columns {
                let (i, j) = (tap / columns % rows, tap % columns);
                let y = (row * self.stride[0] + i * self.dilation[0]).wrapping_sub(self.pads[0][0]);
                let z =
                    (column * self.stride[1] + j * self.dilation[1]).wrapping_sub(self.pads[1][0]);
                if y < high && z < wide {
                    let channel = image * channels + group * inner + tap / columns / rows;
                    let product = f64::from(x[(channel * high + y) * wide + z])
                        * f64::from(w[output * inner * rows * columns + tap]);
                    (sum, size) = (sum + product, size + product.abs());
                }
            }
            all.push(((sum + f64::from(*more)).max(0.0), size + 1.0));
        }
        all
    }
}

/// The only output of a graph on the CPU; checks that all thread counts and instruction sets return
/// the same bits.
pub(super) fn answers(
    weights: &[(&str, &[f32])],
    inputs: &[(&str, &[f32])],
    draw: impl Fn(&mut Graph) -> Result<Tensor>,
) -> Vec<f32> {
    let mut g = Graph::new();
    let out = draw(&mut g).unwrap();
    g.output("y", out);
    let weights: Vec<_> = weights.iter().map(|(name, w)| (*name, device::Data::F32(w))).collect();
    let mut known: Option<Vec<f32>> = None;
    for isa in Isa::available() {
        for threads in [1, 2, 3] {
            let device = Cpu::new(isa, threads.try_into().unwrap());
            let mut session = Session::open(&device, &weights, [], &[&g]).unwrap();
            let data: Vec<_> =
                inputs.iter().map(|(name, x)| (*name, device::Data::F32(x))).collect();
            session.write(0, &data).unwrap();
            session.run(0, 1).unwrap();
            let have = session.output(0, "y").unwrap();
            let bits = |all: &[f32]| all.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
            let known = known.get_or_insert_with(|| have.clone());
            assert_eq!(bits(&have), bits(known), "{isa}, {threads} threads");
        }
    }
    known.unwrap()
}

/// Random numbers between -1 and 1.
pub(super) fn numbers(seed: &mut u64, n: usize) -> Vec<f32> {
    *seed += 1;
    nn::init::unit(*seed, n).into_iter().map(|value| 2.0 * value - 1.0).collect()
}

pub(super) fn close(have: &[f32], want: &[(f64, f64)], what: &str) {
    assert_eq!(have.len(), want.len(), "{what}");
    for (at, (have, (want, size))) in have.iter().zip(want).enumerate() {
        let apart = (f64::from(*have) - want).abs();
        assert!(apart <= 2e-6 * size, "{what}: element {at}: {have}, not {want}");
    }
}

#[test]
fn convolutions_equal_f64_sums_on_every_path() {
    let cases = [
        // Tiled: odd sizes, more than one block, batches, many channels.
        Case::of([1, 16, 9, 7], [16, 16, 3, 3]),
        Case::of([2, 24, 14, 15], [40, 24, 3, 3]),
        Case::of([1, 160, 12, 12], [136, 160, 3, 3]),
        Case { pads: [[0, 2], [1, 0]], ..Case::of([1, 17, 21, 70], [19, 17, 3, 3]) },
        Case { pads: [[0, 0]; 2], ..Case::of([1, 32, 4, 600], [16, 32, 3, 3]) },
        // Direct: few channels, strides, dilations, groups, 1x1 windows.
        Case::of([1, 3, 11, 13], [8, 3, 3, 3]),
        Case { stride: [2, 2], pads: [[3, 3]; 2], ..Case::of([1, 3, 33, 31], [20, 3, 7, 7]) },
        Case { stride: [2, 1], dilation: [1, 3], ..Case::of([2, 18, 9, 16], [17, 18, 3, 3]) },
        Case { groups: 3, ..Case::of([2, 12, 8, 8], [9, 4, 3, 3]) },
        Case { pads: [[0, 0]; 2], ..Case::of([2, 200, 6, 50], [33, 200, 1, 1]) },
        Case { pads: [[0, 0]; 2], stride: [3, 2], ..Case::of([1, 20, 9, 9], [16, 20, 1, 1]) },
        // Depthwise: one channel per group.
        Case { groups: 10, ..Case::of([2, 10, 9, 7], [10, 1, 3, 3]) },
        Case { groups: 6, stride: [2, 2], ..Case::of([1, 6, 15, 70], [6, 1, 3, 3]) },
        Case {
            groups: 5,
            stride: [2, 3],
            dilation: [2, 1],
            ..Case::of([1, 5, 30, 40], [5, 1, 5, 4])
        },
    ];
    let mut seed = 41;
    for (i, case) in cases.iter().enumerate() {
        let mut values = |n: usize| numbers(&mut seed, n);
        let [down, across] = case.counts();
        let shape = [case.x[0], case.weight[0], down, across];
        let x = values(case.x.iter().product());
        let w = values(case.weight.iter().product());
        let (bias, more) = (values(case.weight[0]), values(shape.iter().product()));
        let have = answers(&[("w", &w), ("b", &bias)], &[("x", &x), ("more", &more)], |g| {
            let weight = g.source(Class::Weight, "w", DType::F32, &[w.len()])?;
            let weight = g.reshape(weight, &case.weight)?;
            let bias = g.source(Class::Weight, "b", DType::F32, &[bias.len()])?;
            let x = g.source(Class::Mailbox, "x", DType::F32, &case.x)?;
            let more = g.source(Class::Mailbox, "more", DType::F32, &shape)?;
            let y = g.conv(x, weight, Some(bias), &case.windows())?;
            let y = g.binary(Binary::Add, y, more)?;
            let zero = g.constant(0.0);
            g.binary(Binary::Max, y, zero)
        });
        close(&have, &case.expected(&x, &w, &bias, &more), &format!("case {i}"));
    }
}

/// Row and column counts around tile sizes, weights on either side, packed or not.
#[test]
fn products_equal_f64_sums_with_constant_weights_on_either_side() {
    let mut seed = 42;
    for [m, n, k] in [
        [1, 1, 1],
        [1, 130, 12],
        [7, 16, 128],
        [9, 241, 129],
        [33, 17, 300],
        [3, 500, 0],
        [50, 49, 70],
    ] {
        let mut values = |n: usize| numbers(&mut seed, n);
        let (a, b, more) = (values(m * k), values(k * n), values(n));
        let expected: Vec<(f64, f64)> = (0..m * n)
            .map(|at| {
                let (row, column) = (at / n, at % n);
                let terms =
                    (0..k).map(|i| f64::from(a[row * k + i]) * f64::from(b[i * n + column]));
                let sum: f64 = terms.clone().sum();
                (sum + f64::from(more[column]), terms.map(f64::abs).sum::<f64>() + 1.0)
            })
            .collect();
        for known in ["neither", "a", "b"] {
            let side = |name: &str| if known == name { Class::Weight } else { Class::Mailbox };
            let all: [(&str, &[f32]); 2] = [("a", &a), ("b", &b)];
            let weights: Vec<_> = all.into_iter().filter(|(name, _)| *name == known).collect();
            let mut inputs: Vec<_> = all.into_iter().filter(|(name, _)| *name != known).collect();
            inputs.push(("more", &more));
            let have = answers(&weights, &inputs, |g| {
                let left = g.source(side("a"), "a", DType::F32, &[m * k])?;
                let right = g.source(side("b"), "b", DType::F32, &[k * n])?;
                let more = g.source(Class::Mailbox, "more", DType::F32, &[n])?;
                let (left, right) = (g.reshape(left, &[m, k])?, g.reshape(right, &[k, n])?);
                let right = g.permute(right, &[1, 0])?;
                let y = g.matmul(left, right)?;
                g.binary(Binary::Add, y, more)
            });
            close(&have, &expected, &format!("{m} x {n} x {k}, {known} known"));
        }
    }
}

/// Tied weights: a gather from a table that is also a matmul weight.
#[test]
fn a_tied_weight_can_be_gathered_from() {
    let (rows, width) = (531, 37);
    let table = numbers(&mut 43, rows * width);
    let ids = [0, 15, 239, 240, 255, 480, 527, 530, -1, 531];
    let have = answers(&[("table", &table)], &[], |g| {
        let table = g.source(Class::Weight, "table", DType::F32, &[rows * width])?;
        let table = g.reshape(table, &[rows, width])?;
        let mut at = None;
        for id in ids {
            let id = g.constant(id as f32);
            let id = g.expand(id, &[1])?;
            at = Some(match at {
                Some(at) => nn::shape::concat(g, &[at, id], 0)?,
                None => id,
            });
        }
        let at = g.cast(at.unwrap(), DType::I32)?;
        let taken = g.gather(table, &[at])?;
        let products = g.matmul(taken, table)?;
        let none = g.constant(0.0);
        let none = g.binary(Binary::Mul, products, none)?;
        let none = g.slice(none, 1, 0, width)?;
        g.binary(Binary::Add, taken, none)
    });
    for (i, id) in ids.into_iter().enumerate() {
        let row = usize::try_from(id).ok().filter(|row| *row < rows);
        let want = row.map_or(vec![0.0; width], |row| table[row * width..][..width].to_vec());
        assert_eq!(have[i * width..][..width], want, "{id}");
    }
}
