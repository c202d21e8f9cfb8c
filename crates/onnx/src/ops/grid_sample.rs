//! `GridSample`: elements of an image at computed positions, interpolated over any number of axes.

use nn::functions::{self as f, add, mul, sub};
use plan::DType;
use plan::graph::{Graph, Tensor};

use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator};

pub(super) const OPERATORS: &[(&str, Operator)] = &[("GridSample", grid_sample)];

/// Factor of the cubic kernel.
const CUBIC: f32 = -0.75;

/// Treatment of positions outside the image.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Padding {
    Zeros,
    Border,
    Reflection,
}

/// An axis of the image.
#[derive(Clone, Copy)]
struct Line {
    extent: usize,
    corners: bool,
    padding: Padding,
}

/// An element next to a position: its index, its share, and 1 if it is in the image.
type Part = (Tensor, Option<Tensor>, Option<Tensor>);

impl Line {
    fn last(self) -> f32 {
        self.extent as f32 - 1.0
    }

    /// Positions from -1 to 1 as indices.
    fn index(self, g: &mut Graph, x: Tensor) -> NodeResult<Tensor> {
        let n = self.extent as f32;
        let (scale, move_by) = if self.corners {
            (self.last() / 2.0, self.last() / 2.0)
        } else {
            (n / 2.0, (n - 1.0) / 2.0)
        };
        let scaled = f::times(g, x, scale)?;
        Ok(f::plus(g, scaled, move_by)?)
    }

    /// Mirrors positions at the ends of the axis.
    fn reflected(self, g: &mut Graph, x: Tensor) -> NodeResult<Tensor> {
        let (low, high) = if self.corners { (0.0, self.last()) } else { (-0.5, self.last() + 0.5) };
        let range = high - low;
        if range <= 0.0 {
            return Ok(f::times(g, x, 0.0)?);
        }
        // Distance from the nearest end of a period of twice the range.
        let moved = f::plus(g, x, -low)?;
        let moved = f::abs(g, moved)?;
        let period = g.constant(2.0 * range);
        let within = g.binary(plan::Binary::Rem, moved, period)?;
        let back = f::neg(g, within)?;
        let back = f::plus(g, back, 2.0 * range)?;
        let near = f::minimum(g, within, back)?;
        Ok(f::plus(g, near, low)?)
    }

    /// Positions moved into the image, before they are interpolated.
    fn moved(self, g: &mut Graph, x: Tensor) -> NodeResult<Tensor> {
        Ok(match self.padding {
            Padding::Zeros => x,
            Padding::Border => f::clamp(g, x, 0.0, self.last())?,
            Padding::Reflection => self.reflected(g, x)?,
        })
    }

    /// An integral index as it is read, with 1 where it is in the image.
    fn read(self, g: &mut Graph, index: Tensor, share: Option<Tensor>) -> NodeResult<Part> {
        let index = match self.padding {
            Padding::Reflection => self.reflected(g, index)?,
            _ => index,
        };
        let held = f::clamp(g, index, 0.0, self.last())?;
        let inside = match self.padding {
            Padding::Zeros => Some(f::equal(g, held, index)?),
            _ => None,
        };
        Ok((held, share, inside))
    }

    fn parts(self, g: &mut Graph, x: Tensor, mode: &str) -> NodeResult<Vec<Part>> {
        match mode {
            "nearest" => {
                let x = self.moved(g, x)?;
                let near = f::round(g, x)?;
                Ok(vec![self.read(g, near, None)?])
            }
            "linear" | "bilinear" => {
                let x = self.moved(g, x)?;
                let low = f::floor(g, x)?;
                let part = sub(g, x, low)?;
                let rest = f::neg(g, part)?;
                let rest = f::plus(g, rest, 1.0)?;
                let high = f::plus(g, low, 1.0)?;
                Ok(vec![self.read(g, low, Some(rest))?, self.read(g, high, Some(part))?])
            }
            "cubic" | "bicubic" => {
                let low = f::floor(g, x)?;
                let part = sub(g, x, low)?;
                let mut all = Vec::new();
                for i in -1i8..3 {
                    let off = f::plus(g, part, -f32::from(i))?;
                    let distance = f::abs(g, off)?;
                    let share = cubic(g, distance, i == 0 || i == 1)?;
                    let index = f::plus(g, low, f32::from(i))?;
                    all.push(self.read(g, index, Some(share))?);
                }
                Ok(all)
            }
            other => Err(invalid(format!("mode {other} is not supported"))),
        }
    }
}

/// Share of an element at a distance of at most 1, or of 1 to 2.
fn cubic(g: &mut Graph, t: Tensor, near: bool) -> NodeResult<Tensor> {
    let a = CUBIC;
    let factors =
        if near { [a + 2.0, -(a + 3.0), 0.0, 1.0] } else { [a, -5.0 * a, 8.0 * a, -4.0 * a] };
    let mut sum = f::times(g, t, factors[0])?;
    for factor in &factors[1..3] {
        sum = f::plus(g, sum, *factor)?;
        sum = mul(g, sum, t)?;
    }
    Ok(f::plus(g, sum, factors[3])?)
}

fn grid_sample(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let (have, of_grid) = (im.shape(node.input(0)?), im.shape(node.input(1)?));
    let axes = have.len().saturating_sub(2);
    if axes == 0 || of_grid.len() != have.len() || of_grid.last() != Some(&axes) {
        return Err(invalid(format!("image {have:?} and grid {of_grid:?} do not fit")));
    }
    if have[2..].contains(&0) || axes > 4 {
        return Err(invalid(format!("image {have:?} is not supported")));
    }
    let mode = node.text("mode", "linear")?;
    let corners = node.flag("align_corners");
    let padding = match &*node.text("padding_mode", "zeros")? {
        "zeros" => Padding::Zeros,
        "border" => Padding::Border,
        "reflection" => Padding::Reflection,
        other => return Err(invalid(format!("padding_mode {other} is not supported"))),
    };
    let (batch, channels) = (have[0], have[1]);
    let points: usize = of_grid[1..of_grid.len() - 1].iter().product();
    let (x, grid) = (im.float(node.input(0)?)?, im.float(node.input(1)?)?);
    let g = &mut im.g;
    let order: Vec<usize> = std::iter::once(0).chain(2..have.len()).chain([1]).collect();
    let table = g.permute(x, &order)?;
    let inner: usize = have[2..].iter().product();
    let table = g.reshape(table, &[batch * inner, channels])?;
    let grid = g.reshape(grid, &[batch, points, axes])?;
    // All combinations of the elements next to a position, over all axes.
    let first = g.iota(batch);
    let first = f::times(g, first, inner as f32)?;
    let first = g.reshape(first, &[batch, 1])?;
    let mut all: Vec<Part> = vec![(first, None, None)];
    let mut stride = inner;
    for (axis, &extent) in have[2..].iter().enumerate() {
        stride /= extent;
        let line = Line { extent, corners, padding };
        // The grid has the last axis first.
        let position = g.slice(grid, 2, axes - 1 - axis, 1)?;
        let position = g.reshape(position, &[batch, points])?;
        let position = line.index(g, position)?;
        let parts = line.parts(g, position, &mode)?;
        let mut next = Vec::new();
        for &(base, share, inside) in &all {
            for &(index, own, within) in &parts {
                let off = f::times(g, index, stride as f32)?;
                let at = add(g, base, off)?;
                next.push((at, product(g, share, own)?, product(g, inside, within)?));
            }
        }
        all = next;
    }
    let mut sum: Option<Tensor> = None;
    for (at, share, inside) in all {
        let at = g.expand(at, &[batch, points])?;
        let at = g.cast(at, DType::I32)?;
        let at = g.reshape(at, &[batch * points])?;
        let mut taken = g.gather(table, &[at])?;
        if let Some(inside) = inside {
            // A selection, since elements outside do not count even if they are not finite.
            let inside = g.reshape(inside, &[batch * points, 1])?;
            let zero = g.constant(0.0);
            taken = g.select(inside, taken, zero)?;
        }
        if let Some(share) = share {
            let share = g.reshape(share, &[batch * points, 1])?;
            taken = mul(g, taken, share)?;
        }
        sum = Some(match sum {
            Some(sum) => add(g, sum, taken)?,
            None => taken,
        });
    }
    let sum = sum.ok_or_else(|| invalid("no axes".into()))?;
    let made = g.reshape(sum, &[batch, points, channels])?;
    let made = g.permute(made, &[0, 2, 1])?;
    let shape = [&[batch, channels], &of_grid[1..of_grid.len() - 1]].concat();
    Ok(device(elem, g.reshape(made, &shape)?))
}

fn product(g: &mut Graph, a: Option<Tensor>, b: Option<Tensor>) -> NodeResult<Option<Tensor>> {
    Ok(match (a, b) {
        (Some(a), Some(b)) => Some(mul(g, a, b)?),
        (a, b) => a.or(b),
    })
}
