//! Convolution in primitives: window views and one matrix product (im2col in BLAS terms).

use super::builder::{Graph, Result, Tensor};
use crate::{Binary, Conv, Op, Window, Windows};

impl Graph {
    /// Convolution of `x [N, C, spatial..]` with `weight [O, C / groups, sizes..]` and `bias [O]`:
    /// `[N, O, counts..]`.
    pub fn conv(&mut self, x: Tensor, weight: Tensor, bias: Option<Tensor>, w: &Windows) -> Result {
        let (of_x, of_w) = (self.shape(x).to_vec(), self.shape(weight).to_vec());
        let axes = of_x.len().saturating_sub(2);
        let each = [w.stride.len(), w.pads.len(), w.dilation.len()];
        let fits = axes > 0
            && of_w.len() == of_x.len()
            && each == [axes; 3]
            && w.groups > 0
            && of_w[0].is_multiple_of(w.groups)
            && of_x[1] == of_w[1] * w.groups
            && bias.is_none_or(|bias| *self.shape(bias) == [of_w[0]]);
        let reason = "[N, C, spatial..] and [O, C / groups, sizes..] expected, of a bias [O]";
        self.want(fits, "conv", &[x, weight], reason)?;
        let (weight, bias) = (self.dense(weight), bias.map(|bias| self.dense(bias)));
        let windows = w.clone();
        let op = |out| Op::Conv(Conv { windows, x, weight, bias, out });
        self.composite(op, |g| {
            let (batch, inner, outer) = (of_x[0], of_w[1], of_w[0] / w.groups);
            let mut seen = x;
            for (axis, &[before, after]) in w.pads.iter().enumerate() {
                if before + after > 0 {
                    seen = g.pad(seen, 2 + axis, before, after)?;
                }
            }
            for axis in 0..axes {
                let (size, stride, dilation) = (of_w[2 + axis], w.stride[axis], w.dilation[axis]);
                seen = g.window(seen, 2 + axis, Window { size, stride, dilation })?;
            }
            let counts = g.shape(seen)[2..2 + axes].to_vec();
            // [N, G, C / G, counts.., sizes..] to [G, C / G, sizes.., N, counts..]: keeps
            // neighbours along the last axis adjacent, so windows of one element need no copy.
            let split = [&[batch, w.groups, inner], &counts[..], &of_w[2..]].concat();
            let seen = g.reshape(seen, &split)?;
            let sizes = 3 + axes..3 + 2 * axes;
            let order: Vec<usize> =
                [1, 2].into_iter().chain(sizes).chain([0]).chain(3..3 + axes).collect();
            let seen = g.permute(seen, &order)?;
            let positions = counts.iter().product::<usize>();
            let taps = of_w[1..].iter().product();
            let seen = g.reshape(seen, &[w.groups, taps, batch * positions])?;
            let seen = g.permute(seen, &[0, 2, 1])?;
            let weight = g.reshape(weight, &[w.groups, outer, taps])?;
            let products = g.matmul(weight, seen)?;
            let products = g.reshape(products, &[w.groups * outer, batch, positions])?;
            let products = g.permute(products, &[1, 0, 2])?;
            let products = g.reshape(products, &[&[batch, of_w[0]], &counts[..]].concat())?;
            match bias {
                Some(bias) => {
                    let line = [&[of_w[0]][..], &vec![1; axes]].concat();
                    let bias = g.reshape(bias, &line)?;
                    g.binary(Binary::Add, products, bias)
                }
                None if batch == 1 => Ok(products),
                None => Ok(g.gathered(products)),
            }
        })
    }
}
