//! Operators of detectors: non-maximum suppression on the host, and regions of interest.

use nn::functions::{self as f, add, mul};
use plan::DType;
use plan::graph::Tensor;

use crate::array::{Elem, Known};
use crate::error::{NodeResult, invalid};
use crate::import::{Import, Value, device};
use crate::node::{Node, Operator};

pub(super) const OPERATORS: &[(&str, Operator)] =
    &[("NonMaxSuppression", suppress), ("RoiAlign", align)];

/// Most comparisons of boxes.
const MOST: usize = 1 << 30;

/// Corners of a box, lower ones first, in `f32` like onnxruntime.
type Corners = [f32; 4];

fn corners(of: &[f32], centred: bool) -> Corners {
    let &[a, b, c, d] = of else { unreachable!("four values for each box") };
    if centred {
        return [a - c / 2.0, b - d / 2.0, a + c / 2.0, b + d / 2.0];
    }
    [a.min(c), b.min(d), a.max(c), b.max(d)]
}

/// True if the intersection of two boxes exceeds a share of their union.
fn overlap(a: &Corners, b: &Corners, share: f32) -> bool {
    let (height, width) = (a[2].min(b[2]) - a[0].max(b[0]), a[3].min(b[3]) - a[1].max(b[1]));
    if height <= 0.0 || width <= 0.0 {
        return false;
    }
    let area = |c: &Corners| (c[2] - c[0]) * (c[3] - c[1]);
    let both = height * width;
    let (one, other) = (area(a), area(b));
    if one <= 0.0 || other <= 0.0 {
        return false;
    }
    both / (one + other - both) > share
}

/// Indices `[batch, class, box]` of the boxes that no better box of the class overlaps.
fn suppress(_: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let device = |place: &usize| matches!(node.optional(*place), Some(Value::Device { .. }));
    let needs: Vec<usize> = (0..5).filter(device).collect();
    if !needs.is_empty() {
        let what = "the number of boxes depends on data".into();
        return Err(crate::error::NodeError { what, needs });
    }
    let (boxes, scores) = (node.known(0, "the boxes")?, node.known(1, "the scores")?);
    let scalar = |place: usize| match node.optional(place) {
        Some(_) => Ok(node.known(place, "the limit")?.scalar()),
        None => Ok::<_, crate::error::NodeError>(None),
    };
    let most = scalar(2)?.unwrap_or(0.0).max(0.0) as usize;
    let (share, least) = (scalar(3)?.unwrap_or(0.0) as f32, scalar(4)?.map(|least| least as f32));
    let centred = node.flag("center_point_box");
    let (&[batches, count, 4], &[_, classes, _]) = (boxes.shape(), scores.shape()) else {
        return Err("boxes [N, B, 4] and scores [N, C, B] expected".into());
    };
    if scores.shape() != [batches, classes, count] {
        let (boxes, scores) = (boxes.shape(), scores.shape());
        return Err(invalid(format!("boxes {boxes:?} and scores {scores:?} do not fit")));
    }
    let (boxes, scores) = (boxes.floats(), scores.floats());
    let (mut found, mut work) = (Vec::new(), 0usize);
    for batch in 0..batches {
        let own: Vec<Corners> = boxes[batch * count * 4..][..count * 4]
            .chunks(4)
            .map(|one| corners(one, centred))
            .collect();
        for class in 0..classes {
            let scores = &scores[(batch * classes + class) * count..][..count];
            let mut order: Vec<usize> =
                (0..count).filter(|i| least.is_none_or(|least| scores[*i] > least)).collect();
            order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]).then(a.cmp(b)));
            let mut kept: Vec<usize> = Vec::new();
            for i in order {
                if kept.len() == most {
                    break;
                }
                work += kept.len();
                if work > MOST {
                    return Err(invalid(format!("more than {MOST} comparisons of boxes")));
                }
                if kept.iter().all(|k| !overlap(&own[*k], &own[i], share)) {
                    kept.push(i);
                }
            }
            found.extend(kept.into_iter().flat_map(|i| [batch as f64, class as f64, i as f64]));
        }
    }
    let known = Known::new(Elem::I64, &[found.len() / 3, 3], found);
    known.map(|known| vec![Value::Known(known)]).ok_or_else(|| "rows of three".into())
}

/// Extent of an attribute.
fn extent(node: &Node<'_>, name: &str) -> NodeResult<usize> {
    let value = usize::try_from(node.integer(name, 1)).ok().filter(|n| (1..1024).contains(n));
    value.ok_or_else(|| invalid(format!("{name} must be 1 to 1023")))
}

/// `RoiAlign`: mean or maximum of interpolated samples in each cell of a region.
fn align(im: &mut Import, node: &Node<'_>) -> NodeResult<Vec<Value>> {
    let elem = node.input(0)?.elem();
    let &[batches, channels, height, width] = &im.shape(node.input(0)?)[..] else {
        return Err("[N, C, H, W] expected".into());
    };
    let regions = im.shape(node.input(1)?).first().copied().unwrap_or(0);
    let (rows, columns) = (extent(node, "output_height")?, extent(node, "output_width")?);
    let samples = usize::try_from(node.integer("sampling_ratio", 0)).unwrap_or(0);
    if samples == 0 || samples > 64 {
        return Err("sampling_ratio must be 1 to 64: else the samples depend on data".into());
    }
    let scale = node.float("spatial_scale", 1.0);
    let default = if node.opset < 16 { "output_half_pixel" } else { "half_pixel" };
    let half = node.text("coordinate_transformation_mode", default)? == "half_pixel";
    let best = node.text("mode", "avg")? == "max";
    let (x, boxes) = (im.float(node.input(0)?)?, im.float(node.input(1)?)?);
    let batch = im.tensor(node.input(2)?)?;
    let g = &mut im.g;
    let table = g.permute(x, &[0, 2, 3, 1])?;
    let table = g.reshape(table, &[batches * height * width, channels])?;
    let scaled = f::times(g, boxes, scale)?;
    let scaled = f::plus(g, scaled, if half { -0.5 } else { 0.0 })?;
    // Positions of the samples along both axes: [R, cells * samples].
    let mut lines = Vec::new();
    for (first, cells) in [(1, rows), (0, columns)] {
        let (low, high) = (g.slice(scaled, 1, first, 1)?, g.slice(scaled, 1, first + 2, 1)?);
        let mut size = f::sub(g, high, low)?;
        if !half {
            let one = g.constant(1.0);
            size = f::maximum(g, size, one)?;
        }
        let step = f::times(g, size, 1.0 / (cells * samples) as f32)?;
        let place = g.iota(cells * samples);
        let place = f::plus(g, place, 0.5)?;
        let off = mul(g, place, step)?;
        lines.push(add(g, off, low)?);
    }
    let (down, across) = (rows * samples, columns * samples);
    let points = regions * down * across;
    let y = g.reshape(lines[0], &[regions, down, 1])?;
    let x = g.reshape(lines[1], &[regions, 1, across])?;
    let batch = g.cast(batch, DType::F32)?;
    let base = f::times(g, batch, (height * width) as f32)?;
    let base = g.reshape(base, &[regions, 1, 1])?;
    let base = g.expand(base, &[regions, down, across])?;
    let [y, x] = [sides(im, y, height)?, sides(im, x, width)?];
    let g = &mut im.g;
    let inside = mul(g, y.inside, x.inside)?;
    let mut total: Option<Tensor> = None;
    for (row, row_share) in y.parts {
        for &(column, column_share) in &x.parts {
            let share = mul(g, row_share, column_share)?;
            let row = f::times(g, row, width as f32)?;
            let at = add(g, row, column)?;
            let at = add(g, base, at)?;
            let at = g.cast(at, DType::I32)?;
            let at = g.reshape(at, &[points])?;
            let taken = g.gather(table, &[at])?;
            let share = mul(g, share, inside)?;
            let share = g.expand(share, &[regions, down, across])?;
            let share = g.reshape(share, &[points, 1])?;
            let part = mul(g, taken, share)?;
            // The maximum is of the weighted corners, as ONNX defines it.
            total = Some(match total {
                Some(total) if best => f::maximum(g, total, part)?,
                Some(total) => add(g, total, part)?,
                None => part,
            });
        }
    }
    let total = total.ok_or_else(|| invalid("no samples".into()))?;
    let cells = g.reshape(total, &[regions, rows, samples, columns, samples, channels])?;
    let made = if best { f::amax(g, cells, &[2, 4])? } else { f::mean(g, cells, &[2, 4])? };
    let made = g.reshape(made, &[regions, rows, columns, channels])?;
    Ok(device(elem, g.permute(made, &[0, 3, 1, 2])?))
}

/// Both elements next to each position of an axis, and their shares.
struct Sides {
    parts: [(Tensor, Tensor); 2],
    /// 1 where the position is in the image.
    inside: Tensor,
}

fn sides(im: &mut Import, position: Tensor, extent: usize) -> NodeResult<Sides> {
    let g = &mut im.g;
    let last = extent as f32 - 1.0;
    let (from, to) = (g.constant(-1.0), g.constant(extent as f32));
    let (after, before) = (f::less_equal(g, from, position)?, f::less_equal(g, position, to)?);
    let inside = mul(g, after, before)?;
    let position = f::clamp(g, position, 0.0, last)?;
    let low = f::floor(g, position)?;
    let high = f::plus(g, low, 1.0)?;
    let high = f::clamp(g, high, 0.0, last)?;
    let part = f::sub(g, position, low)?;
    let rest = f::neg(g, part)?;
    let rest = f::plus(g, rest, 1.0)?;
    Ok(Sides { parts: [(low, rest), (high, part)], inside })
}
