//! Row fusion: neighbouring groups over the same rows run one after another on each row, so that each group finds
//! the row in cache. A softmax is three groups, a layer norm four. Attention is a matmul chain with such groups in
//! the middle (`matmul_chain.rs`).

use std::collections::{BTreeSet, VecDeque};
use std::ops::Range;

use super::group::{BLOCK, CLAIM, Kernel, Softmax};
use super::pool::Worker;
use plan::{BufferId, Class, DType, Group, Op, Plan, RepeatId, Step, View};
use simd::Isa;

/// Kernels of groups over the same rows.
pub(super) struct FusedRows {
    pub(super) kernels: Vec<RowKernel>,
    pub(super) rows: usize,
    /// Elements of a row.
    pub(super) length: usize,
}

/// One operation on rows.
pub(super) enum RowKernel {
    Kernel(Kernel),
    Softmax(Softmax),
}

impl FusedRows {
    pub(super) fn new(kernels: Vec<Kernel>, rows: usize, length: usize) -> Self {
        let (mut all, mut kernels) = (Vec::new(), VecDeque::from(kernels));
        while let Some(first) = kernels.pop_front() {
            match kernels.front().and_then(|next| Softmax::of([&first, next])) {
                Some(softmax) => {
                    kernels.pop_front();
                    all.push(RowKernel::Softmax(softmax));
                }
                None => all.push(RowKernel::Kernel(first)),
            }
        }
        Self { kernels: all, rows, length }
    }

    /// This thread's share; scratch as for each of the kernels.
    ///
    /// # Safety
    ///
    /// As for [`Kernel::run`].
    pub(super) unsafe fn run(&self, isa: Isa, w: &Worker<'_>, scratch: *mut f32) {
        while let Some(rows) = w.claim(self.rows, self.rows_per_pass()) {
            // SAFETY: the caller's contract.
            unsafe { self.run_rows(isa, rows, scratch) };
        }
    }

    /// Rows that pass through all kernels together.
    pub(super) fn rows_per_pass(&self) -> usize {
        (CLAIM / self.length).clamp(1, BLOCK)
    }

    /// Runs all kernels on some rows.
    ///
    /// # Safety
    ///
    /// As for [`Kernel::run`], and no other thread computes these rows.
    pub(super) unsafe fn run_rows(&self, isa: Isa, rows: Range<usize>, scratch: *mut f32) {
        for kernel in &self.kernels {
            // SAFETY: the caller's contract; of the results of earlier kernels, a kernel reads only its own row.
            unsafe {
                match kernel {
                    RowKernel::Softmax(softmax) => softmax.rows(isa, rows.clone(), self.length),
                    RowKernel::Kernel(kernel) => {
                        kernel.begin(scratch);
                        kernel.rows(isa, rows.clone(), self.length, scratch);
                    }
                }
            }
        }
    }
}

/// Number of rows and their length, if the group reduces whole rows.
pub(super) fn space(plan: &Plan, group: &Group) -> Option<(usize, usize)> {
    let Op::Reduce { axis, x, .. } = &plan.steps[group.reduce?].op else { return None };
    let (heads, tail) = x.shape.split_at(*axis);
    let (length, inner) = (tail[0], tail[1..].iter().product::<usize>());
    (inner == 1 && length > 1).then(|| (heads.iter().product(), length))
}

/// Fewest elements between two products for a matmul chain: smaller results stay in cache anyway.
const FEWEST: usize = 1 << 16;

/// Divides groups into sets that run row by row, with the products before and after them.
pub(super) fn sets(plan: &Plan, groups: &[Group]) -> Vec<Range<usize>> {
    let mut sets = Vec::new();
    let mut at = 0;
    while at < groups.len() {
        let end = products(plan, &groups[at..]).or_else(|| rows(plan, &groups[at..])).unwrap_or(1);
        sets.push(at..at + end);
        at += end;
    }
    sets
}

/// Number of groups, from the first on, that can run row by row.
fn rows(plan: &Plan, groups: &[Group]) -> Option<usize> {
    let (first, others) = groups.split_first()?;
    let (rows, length) = space(plan, first)?;
    let mut set = FusionSet::new(plan, rows, length);
    set.take(first);
    Some(1 + set.take_all(others))
}

/// The same for a set that begins and ends with a matrix product.
fn products(plan: &Plan, groups: &[Group]) -> Option<usize> {
    let (first, others) = groups.split_first()?;
    let op = |group: &Group| &plan.steps[group.steps.start].op;
    let Op::MatMul { out, .. } = op(first) else { return None };
    let [.., m, length] = out.shape[..] else { return None };
    if out.elements() < FEWEST {
        return None;
    }
    let mut set = FusionSet::new(plan, out.elements() / length, length);
    set.take(first);
    let between = set.take_all(others);
    let second = others.get(between).filter(|_| between > 0)?;
    let Op::MatMul { a, .. } = op(second) else { return None };
    let buffer = plan.buffer(a.buffer);
    let whole = a.offset == 0 && a.is_contiguous() && buffer.elements() == a.elements();
    let rows = whole
        && buffer.dtype == DType::F32
        && a.elements() == out.elements()
        && a.shape.ends_with(&[m, length])
        && set.written.contains(&a.buffer);
    let steps = second.steps.clone();
    let apart = plan.steps[steps.clone()].iter().enumerate().all(|(at, step)| {
        let reads = step.op.reads();
        // The second product's first operand is the chain's row.
        let others = &reads[usize::from(at == 0)..];
        others.iter().all(|view| !set.written.contains(&view.buffer)) && set.free(&step.op)
    });
    let repeat = plan.steps[second.steps.start].repeat;
    (rows && apart && repeat == set.repeat).then_some(between + 2)
}

/// A scratch buffer that can share memory with the set's last result: only the set reads it, each element before the
/// result overwrites it.
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

/// Rows of a set, and the buffers that its groups access.
struct FusionSet<'a> {
    plan: &'a Plan,
    rows: usize,
    length: usize,
    repeat: Option<RepeatId>,
    read: BTreeSet<BufferId>,
    written: BTreeSet<BufferId>,
}

impl<'a> FusionSet<'a> {
    const fn new(plan: &'a Plan, rows: usize, length: usize) -> Self {
        let read = BTreeSet::new();
        Self { plan, rows, length, repeat: None, read, written: BTreeSet::new() }
    }

    fn take(&mut self, group: &Group) {
        self.repeat = self.plan.steps[group.steps.start].repeat;
        for step in &self.plan.steps[group.steps.clone()] {
            self.read.extend(step.op.reads().iter().map(|view| view.buffer));
            self.written.extend(step.op.writes().iter().map(|view| view.buffer));
        }
    }

    /// Adds groups up to the first one that does not fit; returns their number.
    fn take_all(&mut self, groups: &[Group]) -> usize {
        let mut count = 0;
        while let Some(group) = groups.get(count).filter(|group| self.fits(group)) {
            self.take(group);
            count += 1;
        }
        count
    }

    /// True if the operation writes no buffer that the set accesses.
    fn free(&self, op: &Op) -> bool {
        let known = |id: &BufferId| self.read.contains(id) || self.written.contains(id);
        op.writes().iter().all(|view| !known(&view.buffer))
    }

    /// True if a group has the set's rows, and reads only its own row of the buffers that the set writes.
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
        let fits = |op: &Op| op.reads().iter().all(|view| own(op, view)) && self.free(op);
        let repeat = plan.steps[group.steps.start].repeat;
        same && repeat == self.repeat && steps.iter().all(|step| fits(&step.op))
    }

    /// True if a view repeats one element of its buffer for each row, in row order.
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
