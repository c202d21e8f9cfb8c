//! Shape arithmetic of operators, shared by constant folding and graph building.

use crate::error::{NodeResult, invalid};
use crate::node::{Node, axis};

/// Elements of an axis that a `Slice` selects.
pub(crate) struct Cut {
    pub(crate) axis: usize,
    pub(crate) start: usize,
    pub(crate) count: usize,
    /// Not 0; negative steps reverse the order.
    pub(crate) step: i64,
}

impl Cut {
    /// Indices of the selected elements, in order.
    pub(crate) fn places(&self) -> impl Iterator<Item = usize> {
        let (start, step) = (self.start as i64, self.step);
        (0..self.count as i64).map(move |i| (start + i * step) as usize)
    }
}

/// Broadcasts two shapes.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> NodeResult<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at =
        |shape: &[usize], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    let extents = (0..rank).map(|i| match (at(a, i), at(b, i)) {
        (1, n) | (n, 1) => Ok(n),
        (a, b) if a == b => Ok(a),
        _ => Err(invalid(format!("shapes {a:?} and {b:?} do not fit"))),
    });
    extents.collect()
}

/// Output shape of `Expand`.
pub(crate) fn expanded(have: &[usize], to: &[i64]) -> NodeResult<Vec<usize>> {
    broadcast(have, &crate::array::shape(to)?)
}

/// Output shape of `Reshape`.
pub(crate) fn reshaped(have: &[usize], to: &[i64], zeroes: bool) -> NodeResult<Vec<usize>> {
    let all: usize = have.iter().product();
    let mut shape = Vec::new();
    let mut open = None;
    for (i, &extent) in to.iter().enumerate() {
        shape.push(match extent {
            -1 if open.is_none() => {
                open = Some(i);
                1
            }
            0 if !zeroes => {
                *have.get(i).ok_or_else(|| invalid(format!("{have:?} has no axis {i}")))?
            }
            extent => {
                usize::try_from(extent).map_err(|_| invalid(format!("invalid shape {to:?}")))?
            }
        });
    }
    let rest: usize = shape.iter().product();
    if let Some(open) = open {
        if rest == 0 || !all.is_multiple_of(rest) {
            return Err(invalid(format!("{have:?} cannot be {to:?}")));
        }
        shape[open] = all / rest;
    }
    if shape.iter().product::<usize>() == all {
        Ok(shape)
    } else {
        Err(invalid(format!("{have:?} cannot be {to:?}")))
    }
}

/// Output shape of `Squeeze`; without axes, drops all extents of 1.
pub(crate) fn squeezed(have: &[usize], axes: Option<Vec<i64>>) -> NodeResult<Vec<usize>> {
    let out = match axes {
        Some(axes) => {
            axes.iter().map(|&a| axis(a, have.len())).collect::<NodeResult<Vec<usize>>>()?
        }
        None => (0..have.len()).filter(|&i| have[i] == 1).collect(),
    };
    if let Some(wide) = out.iter().find(|&&i| have[i] != 1) {
        return Err(invalid(format!("axis {wide} of {have:?} does not have extent 1")));
    }
    Ok((0..have.len()).filter(|i| !out.contains(i)).map(|i| have[i]).collect())
}

/// Output shape of `Unsqueeze`.
pub(crate) fn unsqueezed(have: &[usize], axes: &[i64]) -> NodeResult<Vec<usize>> {
    let rank = have.len() + axes.len();
    let new = axes.iter().map(|&a| axis(a, rank)).collect::<NodeResult<Vec<usize>>>()?;
    let mut old = have.iter();
    let extents = (0..rank).map(|i| if new.contains(&i) { Some(1) } else { old.next().copied() });
    extents.collect::<Option<_>>().ok_or_else(|| invalid(format!("axes {axes:?} are not distinct")))
}

/// Extents of the flattened axes before and after `at`.
pub(crate) fn flattened(have: &[usize], at: i64) -> NodeResult<[usize; 2]> {
    let at = if at == have.len() as i64 { have.len() } else { axis(at, have.len())? };
    Ok([have[..at].iter().product(), have[at..].iter().product()])
}

/// Axis order of a `Transpose`.
pub(crate) fn order(node: &Node<'_>, rank: usize) -> NodeResult<Vec<usize>> {
    let Some(order) = node.integers("perm") else { return Ok((0..rank).rev().collect()) };
    let order = order.iter().map(|&a| axis(a, rank)).collect::<NodeResult<Vec<usize>>>()?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted.into_iter().eq(0..rank) { Ok(order) } else { Err("perm is not a permutation".into()) }
}

/// Normalises indices into an axis; negative ones count from the end.
pub(crate) fn places(indices: &[i64], extent: usize) -> NodeResult<Vec<usize>> {
    let place = |&index: &i64| {
        let from_front = if index < 0 { index.saturating_add(extent as i64) } else { index };
        let place = usize::try_from(from_front).ok().filter(|place| *place < extent);
        place.ok_or_else(|| {
            invalid(format!("index {index} is out of range for an axis of {extent}"))
        })
    };
    indices.iter().map(place).collect()
}

/// Selections of a `Slice`, one per axis.
pub(crate) fn cuts(node: &Node<'_>, have: &[usize]) -> NodeResult<Vec<Cut>> {
    let of = |place: usize, name: &str| node.integers_of(place, name);
    let starts = of(1, "starts")?.ok_or_else(|| invalid("starts are missing".into()))?;
    let ends = of(2, "ends")?.ok_or_else(|| invalid("ends are missing".into()))?;
    let axes = of(3, "axes")?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = match node.optional(4) {
        Some(_) => node.known_integers(4, "steps")?,
        None => vec![1; starts.len()],
    };
    if [ends.len(), axes.len(), steps.len()].iter().any(|n| *n != starts.len()) {
        return Err("starts, ends, axes and steps have different lengths".into());
    }
    let mut cuts = Vec::new();
    for (((start, end), a), step) in starts.into_iter().zip(ends).zip(axes).zip(steps) {
        let axis = axis(a, have.len())?;
        let extent = have[axis] as i64;
        if step == 0 {
            return Err("a slice step is 0".into());
        }
        let from_front = |at: i64| if at < 0 { at.saturating_add(extent) } else { at };
        let (low, high) = if step > 0 { (0, extent) } else { (-1, extent - 1) };
        let start = from_front(start).clamp(low.max(0), high);
        let end = from_front(end).clamp(low, if step > 0 { extent } else { high });
        let count =
            if step > 0 { (end - start).max(0) as u64 } else { (start - end).max(0) as u64 };
        let count = count.div_ceil(step.unsigned_abs()) as usize;
        cuts.push(Cut { axis, start: start.max(0) as usize, count, step });
    }
    Ok(cuts)
}

/// Axis of a `Split`, and the extents of its parts.
pub(crate) fn parts(node: &Node<'_>, have: &[usize]) -> NodeResult<(usize, Vec<usize>)> {
    let at = axis(node.integer("axis", 0), have.len())?;
    let extent = have[at];
    let sizes = match node.integers_of(1, "split")? {
        Some(sizes) => crate::array::shape(&sizes)?,
        None => {
            let count = node.integer("num_outputs", node.outputs() as i64);
            let count = usize::try_from(count).ok().filter(|n| *n > 0);
            let count = count.ok_or_else(|| invalid("num_outputs must be at least 1".into()))?;
            let size = extent.div_ceil(count);
            (0..count).map(|i| size.min(extent.saturating_sub(i * size))).collect()
        }
    };
    if sizes.iter().sum::<usize>() == extent {
        Ok((at, sizes))
    } else {
        Err(invalid(format!("parts {sizes:?} do not fill an axis of {extent}")))
    }
}

/// Axes of a reduction.
pub(crate) struct Reduced {
    /// In ascending order.
    pub(crate) axes: Vec<usize>,
    /// True if the axes stay, with extent 1.
    pub(crate) keep: bool,
}

/// Axes of a reduction; `None` if it does nothing.
pub(crate) fn reduction(node: &Node<'_>, rank: usize) -> NodeResult<Option<Reduced>> {
    let keep = node.integer("keepdims", 1) != 0;
    let axes = node.integers_of(1, "axes")?.unwrap_or_default();
    let nothing = node.flag("noop_with_empty_axes");
    if axes.is_empty() && nothing {
        return Ok(None);
    }
    let mut axes = axes.iter().map(|&a| axis(a, rank)).collect::<NodeResult<Vec<usize>>>()?;
    if axes.is_empty() {
        axes = (0..rank).collect();
    }
    axes.sort_unstable();
    axes.dedup();
    Ok(Some(Reduced { axes, keep }))
}
