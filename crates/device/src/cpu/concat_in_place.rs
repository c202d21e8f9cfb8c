//! Concatenation without copies: if a group only joins tensors that are adjacent in its result, each part is
//! written there directly.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Range;

use plan::{Binary, Buffer, BufferId, Class, DType, Group, Op, Plan, View};

/// For each buffer inside another one: the outer buffer, and the number of elements before the part.
pub(super) type Inside = HashMap<BufferId, (BufferId, usize)>;

/// Scratch buffers of a plan that are allocated inside others.
pub(super) fn inside(plan: &Plan, groups: &[Group]) -> Inside {
    let written = written(plan);
    let mut all = Inside::new();
    for group in groups {
        let Some((whole, parts)) = concat_parts(plan, group) else { continue };
        let (own, steps) = (&written[&whole], &group.steps);
        if !is_plain(plan.buffer(whole)) || own.start < steps.start || own.end > steps.end {
            continue;
        }
        // For each buffer, its beginning in the result and the number of its elements found there.
        let mut found: BTreeMap<BufferId, Option<(usize, usize)>> = BTreeMap::new();
        for (place, part) in parts {
            let begin = place.checked_sub(part.offset).filter(|_| part.is_contiguous());
            let known = found.entry(part.buffer).or_insert(begin.map(|begin| (begin, 0)));
            *known = match (*known, begin) {
                (Some((first, have)), Some(begin)) if first == begin => {
                    Some((first, have + part.elements()))
                }
                _ => None,
            };
        }
        for (part, place) in found {
            let Some((begin, elements)) = place else { continue };
            let buffer = plan.buffer(part);
            let done = written.get(&part).is_some_and(|steps| steps.end <= group.steps.start);
            let free = is_plain(buffer) && !all.contains_key(&part);
            if free && done && elements == buffer.elements() {
                all.insert(part, (whole, begin));
            }
        }
    }
    // A concat may itself be an input of a later concat.
    let outermost = |&(mut whole, mut before): &(BufferId, usize)| {
        while let Some((around, more)) = all.get(&whole) {
            (whole, before) = (*around, before + more);
        }
        (whole, before)
    };
    all.iter().map(|(part, place)| (*part, outermost(place))).collect()
}

/// For each buffer, the steps from its first write to its last.
fn written(plan: &Plan) -> HashMap<BufferId, Range<usize>> {
    let mut written = HashMap::new();
    for (at, step) in plan.steps.iter().enumerate() {
        for view in step.op.writes() {
            written.entry(view.buffer).or_insert(at..at).end = at + 1;
        }
    }
    written
}

fn is_plain(buffer: &Buffer) -> bool {
    buffer.class == Class::Scratch && buffer.dtype == DType::F32
}

/// The result of a group that only joins tensors, and the beginning of each part in it.
fn concat_parts<'a>(plan: &'a Plan, group: &Group) -> Option<(BufferId, Vec<(usize, &'a View)>)> {
    let steps = &plan.steps[group.steps.clone()];
    let [last] = steps.last()?.op.writes()[..] else { return None };
    let (mut parts, mut added) = (Vec::new(), BTreeSet::new());
    let mut along = None;
    for step in steps {
        match &step.op {
            Op::Pad { axis, before, x, out } => {
                let (heads, tail) = out.shape.split_at(*axis);
                let one = heads.iter().all(|extent| *extent == 1);
                if !one || *along.get_or_insert(axis) != axis || out.shape != last.shape {
                    return None;
                }
                parts.push((before * tail[1..].iter().product::<usize>(), x));
            }
            Op::Binary { op: Binary::Or, a, b, .. } => {
                let mut once = |view: &View| {
                    let whole = view.is_contiguous() && view.offset == 0;
                    whole && group.inner.contains(&view.buffer) && added.insert(view.buffer)
                };
                if !once(a) || !once(b) {
                    return None;
                }
            }
            _ => return None,
        }
    }
    parts.sort_unstable_by_key(|(place, _)| *place);
    let apart = parts.windows(2).all(|two| two[0].0 + two[0].1.elements() <= two[1].0);
    let buffer = plan.buffer(last.buffer);
    let whole = last.is_contiguous() && last.offset == 0 && last.elements() == buffer.elements();
    // Everything that the steps write is added up exactly once.
    let summed = added.len() + 1 == steps.len();
    (apart && whole && summed && parts.len() > 1).then_some((last.buffer, parts))
}
