//! Grouping of steps that one kernel can run: elementwise steps over one index space, optionally a
//! reduction of their result, then elementwise steps over the reduced space. Values that only the
//! group reads stay in registers.
//!
//! A group is a range of neighbouring steps. The device decides how to run it. A step that is
//! neither elementwise nor a reduction is a group of its own.

use std::collections::BTreeSet;
use std::ops::Range;

use crate::buffer::{Buffer, BufferId, Class, View};
use crate::op::Op;
use crate::plan::Plan;
use crate::step::Step;

/// Most steps of a group; limits registers and compile time.
const MOST_STEPS: usize = 48;

/// Neighbouring steps of a plan that run as one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub steps: Range<usize>,
    /// Index of the reduction; later steps run over its results.
    pub reduce: Option<usize>,
    /// Buffers that the group writes and only the group reads.
    pub inner: BTreeSet<BufferId>,
}

/// Groups the steps of a plan, in order.
#[must_use]
pub fn schedule(plan: &Plan) -> Vec<Group> {
    let mut groups: Vec<Group> = Vec::new();
    let mut open: Option<Open<'_>> = None;
    for (at, step) in plan.steps.iter().enumerate() {
        let joined = groups.last().is_some_and(|group| group.steps.len() < MOST_STEPS)
            && at.checked_sub(1).is_some_and(|last| plan.steps[last].repeat == step.repeat)
            && open.as_mut().is_some_and(|open| open.joins(plan, &step.op));
        let reduces = matches!(step.op, Op::Reduce { .. }).then_some(at);
        match groups.last_mut() {
            Some(group) if joined => {
                group.steps.end = at + 1;
                group.reduce = group.reduce.or(reduces);
            }
            _ => {
                open = Open::with(&step.op);
                let inner = BTreeSet::new();
                groups.push(Group { steps: at..at + 1, reduce: reduces, inner });
            }
        }
    }
    let mut readers: Vec<Range<usize>> =
        vec![Range { start: usize::MAX, end: 0 }; plan.buffers.len()];
    for (at, step) in plan.steps.iter().enumerate() {
        for view in step.op.reads() {
            let range = &mut readers[view.buffer.index()];
            *range = range.start.min(at)..range.end.max(at + 1);
        }
    }
    for group in groups.iter_mut().filter(|group| group.is_kernel(plan)) {
        let writes = plan.steps[group.steps.clone()].iter().flat_map(|step| step.op.writes());
        let own = |readers: &Range<usize>| {
            readers.start >= group.steps.start && readers.end <= group.steps.end
        };
        let inner = writes.map(|view| view.buffer).filter(|buffer| {
            plan.buffer(*buffer).class == Class::Scratch && own(&readers[buffer.index()])
        });
        group.inner = inner.collect();
    }
    groups
}

impl Group {
    /// False for a step that is neither elementwise nor a reduction.
    #[must_use]
    pub fn is_kernel(&self, plan: &Plan) -> bool {
        let op = &plan.steps[self.steps.start].op;
        elementwise(op).is_some() || matches!(op, Op::Reduce { .. })
    }

    /// The elementwise steps before the reduction, and those after it.
    #[must_use]
    pub fn chains<'a>(&self, plan: &'a Plan) -> [&'a [Step]; 2] {
        let end = self.reduce.unwrap_or(self.steps.end);
        let tail = self.reduce.map_or(self.steps.end, |at| at + 1);
        [&plan.steps[self.steps.start..end], &plan.steps[tail..self.steps.end]]
    }

    /// The group as a plan of its own: inputs become mailboxes, results that others read become
    /// outputs. `None` if the group writes a buffer that it also reads from outside.
    #[must_use]
    pub fn alone(&self, plan: &Plan) -> Option<Plan> {
        let steps = &plan.steps[self.steps.clone()];
        let (mut read, mut written) = (BTreeSet::new(), BTreeSet::new());
        for step in steps {
            let reads = step.op.reads().into_iter().map(|view| view.buffer);
            read.extend(reads.filter(|buffer| !written.contains(buffer)));
            written.extend(step.op.writes().into_iter().map(|view| view.buffer));
        }
        if !read.is_disjoint(&written) {
            return None;
        }
        let own: Vec<BufferId> = read.union(&written).copied().collect();
        let place = |view: &View| {
            let place = own.partition_point(|buffer| *buffer < view.buffer);
            View { buffer: BufferId(place as u32), ..view.clone() }
        };
        let of = |id: &BufferId| {
            let buffer = plan.buffer(*id);
            let class = match buffer.class {
                constant @ Class::Constant(_) => constant,
                _ if self.inner.contains(id) => Class::Scratch,
                _ if written.contains(id) => Class::Output,
                _ => Class::Mailbox,
            };
            Buffer { name: id.0.to_string(), class, ..buffer.clone() }
        };
        let step = |step: &Step| Step {
            op: step.op.map(place, place),
            scope: None,
            repeat: None,
            ..step.clone()
        };
        Some(Plan {
            bucket: plan.bucket,
            precision: plan.precision,
            buffers: own.iter().map(of).collect(),
            steps: steps.iter().map(step).collect(),
            scopes: Vec::new(),
            repeats: Vec::new(),
        })
    }

    /// Name from its operations: `mul+reduce-sum+mul`.
    #[must_use]
    pub fn name(&self, plan: &Plan) -> String {
        let names = plan.steps[self.steps.clone()].iter().map(|step| step.op.name());
        names.collect::<Vec<_>>().join("+")
    }
}

/// True if the operation accepts reversed operands, as steps of groups do.
pub(crate) fn takes_any_order<T>(op: &Op<T>) -> bool {
    elementwise(op).is_some() || matches!(op, Op::Reduce { .. })
}

/// Output of an elementwise or data-movement operation; `None` for others.
#[must_use]
pub fn elementwise<T>(op: &Op<T>) -> Option<&T> {
    match op {
        Op::Unary { out, .. }
        | Op::Binary { out, .. }
        | Op::Where { out, .. }
        | Op::Cast { out, .. }
        | Op::Copy { out, .. }
        | Op::Pad { out, .. }
        | Op::Iota { out }
        | Op::Assign { mailbox: out, .. } => Some(out),
        _ => None,
    }
}

/// True if the view covers all `elements` elements of its buffer in order.
fn whole(view: &View, elements: usize) -> bool {
    view.offset == 0 && view.elements() == elements && view.is_contiguous()
}

/// A group that may still grow.
struct Open<'a> {
    /// Elements of the current index space.
    elements: usize,
    /// Buffers written over the current index space.
    here: BTreeSet<BufferId>,
    /// Buffers written before the reduction, if there is one.
    before: Option<BTreeSet<BufferId>>,
    /// Views read from outside, each with the size of its index space.
    reads: Vec<(&'a View, usize)>,
}

impl<'a> Open<'a> {
    /// Starts a group with a step; `None` if nothing can join it.
    fn with(op: &'a Op) -> Option<Self> {
        let out = match op {
            Op::Reduce { out, .. } => out,
            op => elementwise(op)?,
        };
        let elements = out.elements();
        let reads = op.reads().into_iter().map(|view| (view, view.elements())).collect();
        let here = BTreeSet::from([out.buffer]);
        let before = matches!(op, Op::Reduce { .. }).then(BTreeSet::new);
        Some(Self { elements, here, before, reads })
    }

    /// Adds the step if each element of the index space can be computed independently.
    fn joins(&mut self, plan: &Plan, op: &'a Op) -> bool {
        let of_this_space = match op {
            Op::Reduce { x, .. } => self.before.is_none() && self.here.contains(&x.buffer),
            op => elementwise(op).is_some_and(|out| out.elements() == self.elements),
        };
        let fits = |view: &View| {
            let elements = plan.buffer(view.buffer).elements();
            if self.before.as_ref().is_some_and(|before| before.contains(&view.buffer)) {
                return false;
            }
            let here = self.here.contains(&view.buffer);
            let same = self.elements == elements && whole(view, elements);
            !here || (same && !matches!(op, Op::Pad { .. }))
        };
        let reads = op.reads();
        if !of_this_space || !reads.iter().all(|view| fits(view)) {
            return false;
        }
        // A step must not overwrite a buffer that the group has read from outside.
        let free = op.writes().into_iter().all(|out| {
            let unwritten = !self.here.contains(&out.buffer)
                && self.before.as_ref().is_none_or(|before| !before.contains(&out.buffer));
            let same = |(view, over): &(&View, usize)| {
                view.buffer != out.buffer
                    || (*over == self.elements && view.is_contiguous() && view.offset == out.offset)
            };
            let of_own = reads.iter().map(|view| (*view, view.elements())).collect::<Vec<_>>();
            unwritten && self.reads.iter().chain(&of_own).all(same)
        });
        if !free {
            return false;
        }
        let outside = reads.into_iter().filter(|view| !self.here.contains(&view.buffer));
        self.reads.extend(outside.map(|view| (view, view.elements())));
        let written = op.writes().into_iter().map(|view| view.buffer);
        if let Op::Reduce { out, .. } = op {
            self.elements = out.elements();
            self.before = Some(std::mem::take(&mut self.here));
        }
        self.here.extend(written);
        true
    }
}
