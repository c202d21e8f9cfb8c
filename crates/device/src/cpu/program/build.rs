//! Building a program from a plan: fused groups first, then single operations.

use std::ops::Range;

use super::KernelCall;
use super::resolve::Resolver;
use crate::Result;
use crate::cpu::check::is_tensor_op;
use crate::cpu::epilogue;
use crate::cpu::group::Kernel;
use crate::cpu::memory::{Memory, PlanMemory};
use crate::cpu::row_fusion::{self, FusedRows};
use crate::cpu::workspace::arena;
use crate::tune::Choices;
use plan::{Class, Op, Plan, View};
use simd::Isa;

/// Floating-point operations plus bytes that one thread handles before another is awake: 10 to 20 us.
const SMALL: u64 = 500_000;

/// Floating-point operations plus bytes of a kernel call that one thread finishes before it would meet others at a
/// barrier.
const SMALL_CALL: u64 = 100_000;

/// Neighbouring calls that run `count` times.
pub(in crate::cpu) struct Block {
    pub(in crate::cpu) calls: Range<usize>,
    pub(in crate::cpu) count: usize,
    /// True if one thread runs them.
    pub(in crate::cpu) alone: bool,
}

pub(in crate::cpu) struct Program {
    pub(in crate::cpu) calls: Vec<KernelCall>,
    /// Number of kernel calls up to the end of each step of the plan.
    pub(in crate::cpu) ends: Vec<usize>,
    /// The calls in blocks.
    pub(in crate::cpu) blocks: Vec<Block>,
    pub(in crate::cpu) rows: usize,
    /// The slots mailbox. Rows after the last one with a slot are padding and are not computed.
    slots: Option<*const i32>,
    /// True if waking other threads would take longer than the program.
    pub(in crate::cpu) small: bool,
    /// Sampled tokens of a step, and their number.
    pub(in crate::cpu) sampled: Option<(*const i32, usize)>,
    pub(in crate::cpu) buffers: PlanMemory,
    /// Values of constant buffers, which kernel calls point to.
    _constants: Box<[f32]>,
}

// SAFETY: the pointers lead into the instance's memory and the plan's own, which outlive the
// program (the instance drops the thread that runs it first); `instance` orders all access.
unsafe impl Send for Program {}
// SAFETY: as above.
unsafe impl Sync for Program {}

impl Program {
    /// Resolves a plan that [`check`](crate::cpu::check::check) has accepted and the memory admits.
    ///
    /// # Errors
    ///
    /// [`Error::Unsupported`](crate::Error::Unsupported) for operands that this device cannot take there.
    pub(in crate::cpu) fn new(
        plan: &Plan,
        memory: &Memory,
        buffers: PlanMemory,
        isa: Isa,
        choices: Option<&Choices>,
    ) -> Result<Self> {
        let groups = epilogue::groups(plan);
        let constant = |buffer: &plan::Buffer| match buffer.class {
            Class::Constant(value) => value.get(),
            _ => 0.0,
        };
        let constants: Box<[f32]> = plan.buffers.iter().map(constant).collect();
        let resolver = Resolver {
            plan,
            memory,
            arena: arena(plan, &groups),
            buffers: &buffers,
            isa,
            choices,
            constants: &constants,
        };
        let (mut calls, mut ends) = (Vec::new(), Vec::new());
        let locate = |view: &View| resolver.locate(view);
        for set in row_fusion::sets(plan, &groups) {
            let (group, set) = (&groups[set.start], &groups[set]);
            let step = &plan.steps[group.steps.start];
            let alone = group.steps.len() == 1 && !is_tensor_op(plan, &step.op);
            let product = epilogue::result(&step.op).is_some();
            match (row_fusion::space(plan, group), set) {
                (_, [_, _, ..]) if product => resolver.matmul_chain(set, &mut calls)?,
                (Some((rows, length)), [_, _, ..]) => {
                    let kernels = resolver.kernels(set)?;
                    let fused = FusedRows::new(kernels, rows, length);
                    calls.push(KernelCall::FusedRows(Box::new(fused)));
                }
                _ if product => resolver.product(group, &mut calls)?,
                _ if group.is_kernel(plan) && !alone => {
                    let kernel = Kernel::new(plan, group, &locate)?;
                    if !kernel.is_noop() {
                        calls.push(KernelCall::Group(Box::new(kernel)));
                    }
                }
                _ => resolver.single(step, &mut calls)?,
            }
            let steps = set.iter().map(|group| group.steps.len()).sum::<usize>();
            ends.extend(std::iter::repeat_n(calls.len(), steps));
        }
        let rows = plan.bucket.rows();
        let slots = calls.iter().find_map(|call| slots(call, rows));
        let sampled = calls.iter().find_map(|call| match call {
            KernelCall::Op(op) => match &**op {
                Op::Sample(s) => Some((s.ids.i32().cast_const(), s.logits.rows())),
                _ => None,
            },
            _ => None,
        });
        let end = |steps: usize| steps.checked_sub(1).map_or(0, |last: usize| ends[last]);
        let blocks = plan.blocks().into_iter();
        let blocks = blocks.map(|(steps, count)| {
            let calls = end(steps.start)..end(steps.end);
            let cost = plan.steps[steps].iter().map(|step| step.cost).sum::<plan::Cost>();
            let each = (cost.flops + cost.bytes()) / calls.len().max(1) as u64;
            Block { calls, count, alone: count > 1 && each <= SMALL_CALL }
        });
        let blocks = blocks.collect();
        let cost = plan.cost();
        let work = cost.flops + cost.bytes();
        let small = slots.is_none() && work <= SMALL;
        Ok(Self {
            calls,
            ends,
            blocks,
            rows,
            slots,
            small,
            sampled,
            buffers,
            _constants: constants,
        })
    }

    /// Rows before the trailing padding.
    ///
    /// # Safety
    ///
    /// No other thread writes the slots mailbox meanwhile.
    pub(in crate::cpu) unsafe fn active(&self) -> usize {
        let Some(slots) = self.slots else { return self.rows };
        // SAFETY: the mailbox has one element per row.
        let slots = unsafe { std::slice::from_raw_parts(slots, self.rows) };
        slots.iter().rposition(|&slot| slot >= 0).map_or(0, |last| last + 1)
    }
}

/// The mailbox with a slot for each of the bucket's rows, if the call reads it.
fn slots(call: &KernelCall, rows: usize) -> Option<*const i32> {
    let slots = match call {
        KernelCall::Op(op) => match &**op {
            Op::Attention(attention) if attention.q.first == rows => attention.rows.slots,
            Op::RopeKv(rope) if rope.k.first == rows => rope.rows.slots,
            _ => return None,
        },
        KernelCall::RecordVersions(memory) => memory.rows.slots,
        _ => return None,
    };
    Some(slots.i32().cast_const())
}
