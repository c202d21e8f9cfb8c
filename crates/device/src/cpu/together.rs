//! Neighbouring groups over the same rows, done row by row one after the other: what one leaves of a row, the next finds in
//! the cache. A softmax is three of them, a layer's norm four.

use std::collections::BTreeSet;
use std::ops::Range;

use super::group::{BLOCK, CLAIM, Kernel};
use super::pool::Worker;
use plan::{BufferId, Class, DType, Group, Op, Plan, Step, View};
use simd::Isa;

/// Kernels of groups over the same rows.
pub(super) struct Rows {
    pub(super) kernels: Vec<Kernel>,
    pub(super) rows: usize,
    /// Elements of a row.
    pub(super) length: usize,
}

impl Rows {
    /// This thread's share, with scratch as for each of the kernels.
    ///
    /// # Safety
    ///
    /// As for [`Kernel::run`].
    pub(super) unsafe fn run(&self, isa: Isa, w: &Worker<'_>, scratch: *mut f32) {
        let claim = (CLAIM / self.length).clamp(1, BLOCK);
        while let Some(rows) = w.claim(self.rows, claim) {
            for kernel in &self.kernels {
                // SAFETY: the caller's contract; no kernel reads another row of what one before it has written.
                unsafe {
                    kernel.begin(scratch);
                    kernel.rows(isa, rows.clone(), self.length, scratch);
                }
            }
        }
    }
}

/// Rows and their length, where a group adds up whole rows.
pub(super) fn space(plan: &Plan, group: &Group) -> Option<(usize, usize)> {
    let Op::Reduce { axis, x, .. } = &plan.steps[group.reduce?].op else { return None };
    let (heads, tail) = x.shape.split_at(*axis);
    let (length, inner) = (tail[0], tail[1..].iter().product::<usize>());
    (inner == 1 && length > 1).then(|| (heads.iter().product(), length))
}

/// Groups in their order, those together that are done row by row.
pub(super) fn sets(plan: &Plan, groups: &[Group]) -> Vec<Range<usize>> {
    let mut sets = Vec::new();
    let mut at = 0;
    while let Some(first) = groups.get(at) {
        let mut end = at + 1;
        if let Some((rows, length)) = space(plan, first) {
            let (read, written) = (BTreeSet::new(), BTreeSet::new());
            let mut set = Set { plan, rows, length, read, written };
            set.take(first);
            while groups.get(end).is_some_and(|group| set.fits(group)) {
                set.take(&groups[end]);
                end += 1;
            }
        }
        sets.push(at..end);
        at = end;
    }
    sets
}

/// What the groups of a set may keep where the last of them writes: values of each row that only they read, in the same
/// places, until these are written over.
pub(super) fn place<'a>(plan: &'a Plan, set: &[Group]) -> Option<(BufferId, &'a View)> {
    let (first, last) = (set.first()?, set.last()?);
    let steps = first.steps.start..last.steps.end;
    let [out] = plan.steps[steps.end - 1].op.writes()[..] else { return None };
    let plain = |id: BufferId| {
        let buffer = plan.buffer(id);
        buffer.dtype == DType::F32 && buffer.elements() == out.elements()
    };
    let whole = out.is_contiguous() && plain(out.buffer);
    let alone = last.reduce.is_none() && set.len() > 1;
    let own = |id: BufferId| {
        let reads = |step: &Step| step.op.reads().iter().any(|view| view.buffer == id);
        let mut others = plan
            .steps
            .iter()
            .enumerate()
            .filter(|(at, _)| !steps.contains(at))
            .map(|(_, step)| step);
        plan.buffer(id).class == Class::Scratch && plain(id) && !others.any(reads)
    };
    let before = &plan.steps[steps.start..last.steps.start];
    let written = before.iter().flat_map(|step| step.op.writes()).map(|view| view.buffer);
    let read = |id: &BufferId| {
        let of_last = &plan.steps[last.steps.clone()];
        of_last.iter().any(|step| step.op.reads().iter().any(|view| view.buffer == *id))
    };
    written.filter(|_| whole && alone).find(|id| read(id) && own(*id)).map(|id| (id, out))
}

/// What the groups so far are over, and touch.
struct Set<'a> {
    plan: &'a Plan,
    rows: usize,
    length: usize,
    read: BTreeSet<BufferId>,
    written: BTreeSet<BufferId>,
}

impl Set<'_> {
    fn take(&mut self, group: &Group) {
        for step in &self.plan.steps[group.steps.clone()] {
            self.read.extend(step.op.reads().iter().map(|view| view.buffer));
            self.written.extend(step.op.writes().iter().map(|view| view.buffer));
        }
    }

    /// Whether a group is over the same rows, and of what was written reads no row but its own.
    fn fits(&self, group: &Group) -> bool {
        let plan = self.plan;
        let all = self.rows * self.length;
        let steps = &plan.steps[group.steps.clone()];
        let over = |op: &Op| match op {
            Op::Reduce { x, .. } => x.elements(),
            op => plan::elementwise(op).map_or(0, View::elements),
        };
        let same = match group.reduce {
            Some(_) => space(plan, group) == Some((self.rows, self.length)),
            None => group.is_kernel(plan) && steps.iter().all(|step| over(&step.op) == all),
        };
        let own = |op: &Op, view: &View| {
            let (elements, n) = (plan.buffer(view.buffer).elements(), over(op));
            let whole = view.offset == 0 && view.is_contiguous() && view.elements() == elements;
            let same = whole && elements == n;
            let repeats = elements == self.rows && n == all && self.repeats(view);
            !self.written.contains(&view.buffer)
                || (!matches!(op, Op::Pad { .. }) && (same || repeats))
        };
        let free = |op: &Op| {
            let known = |id: &BufferId| self.read.contains(id) || self.written.contains(id);
            op.writes().iter().all(|view| !known(&view.buffer))
        };
        let fits = |op: &Op| op.reads().iter().all(|view| own(op, view)) && free(op);
        same && steps.iter().all(|step| fits(&step.op))
    }

    /// Whether a view has one element of its buffer for each row, in their order.
    fn repeats(&self, view: &View) -> bool {
        let mut axes = view.shape.iter().zip(&view.strides).rev();
        let mut length = 1;
        while length < self.length {
            match axes.next() {
                Some((n, stride)) if *n == 1 || *stride == 0 => length *= n,
                _ => return false,
            }
        }
        let mut next = 1;
        let in_order = axes.all(|(n, stride)| {
            let fits = *n == 1 || *stride == next;
            next *= n.cast_signed();
            fits
        });
        length == self.length && view.offset == 0 && in_order
    }
}
