//! What operators do to shapes, as numbers: for the host, which folds them, and for those that draw them.

use crate::node::{Made, Node, axis, why};

/// Elements of an axis that a `Slice` keeps.
pub(crate) struct Cut {
    pub(crate) axis: usize,
    pub(crate) start: usize,
    pub(crate) count: usize,
    /// Not 0; below it the elements come in the opposite order.
    pub(crate) step: i64,
}

impl Cut {
    /// The places that are kept, in their order.
    pub(crate) fn places(&self) -> impl Iterator<Item = usize> {
        let (start, step) = (self.start as i64, self.step);
        (0..self.count as i64).map(move |i| (start + i * step) as usize)
    }
}

/// Extents of two shapes broadcast against each other.
pub(crate) fn broadcast(a: &[usize], b: &[usize]) -> Made<Vec<usize>> {
    let rank = a.len().max(b.len());
    let at =
        |shape: &[usize], i: usize| (i + shape.len()).checked_sub(rank).map_or(1, |i| shape[i]);
    let extents = (0..rank).map(|i| match (at(a, i), at(b, i)) {
        (1, n) | (n, 1) => Ok(n),
        (a, b) if a == b => Ok(a),
        _ => Err(why(format!("shapes {a:?} and {b:?} do not fit"))),
    });
    extents.collect()
}

/// What an `Expand` makes of a shape.
pub(crate) fn expanded(have: &[usize], to: &[i64]) -> Made<Vec<usize>> {
    broadcast(have, &crate::array::shape(to)?)
}

/// What a `Reshape` makes of a shape.
pub(crate) fn reshaped(have: &[usize], to: &[i64], zeroes: bool) -> Made<Vec<usize>> {
    let all: usize = have.iter().product();
    let mut shape = Vec::new();
    let mut open = None;
    for (i, &extent) in to.iter().enumerate() {
        shape.push(match extent {
            -1 if open.is_none() => {
                open = Some(i);
                1
            }
            0 if !zeroes => *have.get(i).ok_or_else(|| why(format!("no axis {i} in {have:?}")))?,
            extent => usize::try_from(extent).map_err(|_| why(format!("shape {to:?}")))?,
        });
    }
    let rest: usize = shape.iter().product();
    if let Some(open) = open {
        if rest == 0 || !all.is_multiple_of(rest) {
            return Err(why(format!("{have:?} cannot be {to:?}")));
        }
        shape[open] = all / rest;
    }
    if shape.iter().product::<usize>() == all {
        Ok(shape)
    } else {
        Err(why(format!("{have:?} cannot be {to:?}")))
    }
}

/// What a `Squeeze` leaves of a shape: without axes, no extent of 1.
pub(crate) fn squeezed(have: &[usize], axes: Option<Vec<i64>>) -> Made<Vec<usize>> {
    let out = match axes {
        Some(axes) => axes.iter().map(|&a| axis(a, have.len())).collect::<Made<Vec<usize>>>()?,
        None => (0..have.len()).filter(|&i| have[i] == 1).collect(),
    };
    if let Some(wide) = out.iter().find(|&&i| have[i] != 1) {
        return Err(why(format!("axis {wide} of {have:?} has not extent 1")));
    }
    Ok((0..have.len()).filter(|i| !out.contains(i)).map(|i| have[i]).collect())
}

/// What an `Unsqueeze` makes of a shape.
pub(crate) fn unsqueezed(have: &[usize], axes: &[i64]) -> Made<Vec<usize>> {
    let rank = have.len() + axes.len();
    let new = axes.iter().map(|&a| axis(a, rank)).collect::<Made<Vec<usize>>>()?;
    let mut old = have.iter();
    let extents = (0..rank).map(|i| if new.contains(&i) { Some(1) } else { old.next().copied() });
    extents.collect::<Option<_>>().ok_or_else(|| why(format!("axes {axes:?} are not distinct")))
}

/// Two axes of all, cut before `at`.
pub(crate) fn flattened(have: &[usize], at: i64) -> Made<[usize; 2]> {
    let at = if at == have.len() as i64 { have.len() } else { axis(at, have.len())? };
    Ok([have[..at].iter().product(), have[at..].iter().product()])
}

/// The order of axes that a `Transpose` gives.
pub(crate) fn order(node: &Node<'_>, rank: usize) -> Made<Vec<usize>> {
    let Some(order) = node.integers("perm") else { return Ok((0..rank).rev().collect()) };
    let order = order.iter().map(|&a| axis(a, rank)).collect::<Made<Vec<usize>>>()?;
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if sorted.into_iter().eq(0..rank) { Ok(order) } else { Err("perm is no permutation".into()) }
}

/// Places in an axis; negative ones count from its end.
pub(crate) fn places(indices: &[i64], extent: usize) -> Made<Vec<usize>> {
    let place = |&index: &i64| {
        let from_front = if index < 0 { index.saturating_add(extent as i64) } else { index };
        let place = usize::try_from(from_front).ok().filter(|place| *place < extent);
        place.ok_or_else(|| why(format!("index {index} in an axis of {extent}")))
    };
    indices.iter().map(place).collect()
}

/// What a `Slice` keeps, an axis at a time.
pub(crate) fn cuts(node: &Node<'_>, have: &[usize]) -> Made<Vec<Cut>> {
    let of = |place: usize, name: &str| node.integers_of(place, name);
    let starts = of(1, "starts")?.ok_or_else(|| why("it has no starts".into()))?;
    let ends = of(2, "ends")?.ok_or_else(|| why("it has no ends".into()))?;
    let axes = of(3, "axes")?.unwrap_or_else(|| (0..starts.len() as i64).collect());
    let steps = match node.optional(4) {
        Some(_) => node.known_integers(4, "steps")?,
        None => vec![1; starts.len()],
    };
    if [ends.len(), axes.len(), steps.len()].iter().any(|n| *n != starts.len()) {
        return Err("starts, ends, axes and steps are not of one length".into());
    }
    let mut cuts = Vec::new();
    for (((start, end), a), step) in starts.into_iter().zip(ends).zip(axes).zip(steps) {
        let axis = axis(a, have.len())?;
        let extent = have[axis] as i64;
        if step == 0 {
            return Err("a step of 0".into());
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

/// The axis of a `Split`, and the extents of its parts.
pub(crate) fn parts(node: &Node<'_>, have: &[usize]) -> Made<(usize, Vec<usize>)> {
    let at = axis(node.integer("axis", 0), have.len())?;
    let extent = have[at];
    let sizes = match node.integers_of(1, "split")? {
        Some(sizes) => crate::array::shape(&sizes)?,
        None => {
            let count = node.integer("num_outputs", node.outputs() as i64);
            let count = usize::try_from(count).ok().filter(|n| *n > 0);
            let count = count.ok_or_else(|| why("no outputs".into()))?;
            let size = extent.div_ceil(count);
            (0..count).map(|i| size.min(extent.saturating_sub(i * size))).collect()
        }
    };
    if sizes.iter().sum::<usize>() == extent {
        Ok((at, sizes))
    } else {
        Err(why(format!("parts {sizes:?} of an axis of {extent}")))
    }
}

/// What a reduction goes over.
pub(crate) struct Reduced {
    /// In ascending order.
    pub(crate) axes: Vec<usize>,
    /// Whether they stay, with extent 1.
    pub(crate) keep: bool,
}

/// The axes of a reduction; `None` where it does nothing.
pub(crate) fn reduction(node: &Node<'_>, rank: usize) -> Made<Option<Reduced>> {
    let keep = node.integer("keepdims", 1) != 0;
    let axes = node.integers_of(1, "axes")?.unwrap_or_default();
    let nothing = node.flag("noop_with_empty_axes");
    if axes.is_empty() && nothing {
        return Ok(None);
    }
    let mut axes = axes.iter().map(|&a| axis(a, rank)).collect::<Made<Vec<usize>>>()?;
    if axes.is_empty() {
        axes = (0..rank).collect();
    }
    axes.sort_unstable();
    axes.dedup();
    Ok(Some(Reduced { axes, keep }))
}
