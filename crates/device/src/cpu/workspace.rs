//! Sizes of the scratch memory that plans need, and offsets in the scratch arena.

use super::conv_shape::is_depthwise;
use super::epilogue;
use super::errors::unsupported;
use super::group;
use super::matmul::{self, TILE_SCRATCH};
use super::moe_workspace::Needs;
use super::variant::TILE_STRIDE;
use super::width::{Width, stored};
use super::{concat_in_place, depthwise, row_fusion, winograd};
use crate::Result;
use crate::precision::residual_planes;
use plan::sample::Candidate;
use plan::{Arena, DeltaHeads, Group, Op, Plan, View};
use simd::activations::{self, F32Block, Q8Block};
use simd::attention;
use simd::vector::LANES;

/// Sizes of all memory that plans need beyond weights and state.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Workspace {
    /// Bytes of the scratch arena, shared by all plans.
    pub(super) arena: usize,
    pub(super) q8: usize,
    pub(super) f32: usize,
    /// Scratch per thread, in `f32` values.
    pub(super) thread: usize,
    /// Width of the logits that are sampled.
    pub(super) vocabulary: usize,
    /// Bytes of scratch that stay valid between the kernel calls of a step.
    pub(super) step: usize,
}

impl Workspace {
    pub(super) fn of(plan: &Plan) -> Result<Self> {
        let groups = epilogue::groups(plan);
        let mut w = Self { arena: size(arena(plan, &groups).bytes)?, ..Self::default() };
        for group in groups.iter().filter(|group| group.is_kernel(plan)) {
            w.thread = w.thread.max(group::registers(plan, group) * group::BLOCK);
        }
        for group in
            groups.iter().filter(|g| epilogue::result(&plan.steps[g.steps.start].op).is_some())
        {
            let own = match &plan.steps[group.steps.start].op {
                Op::Conv(conv) if is_depthwise(conv) => depthwise::scratch(conv),
                Op::Conv(conv) => matmul::scratch(conv).max(winograd::scratch(conv)),
                _ => TILE_SCRATCH,
            };
            w.thread = w.thread.max(own + group::registers(plan, group) * group::BLOCK);
        }
        for set in row_fusion::sets(plan, &groups) {
            let steps = groups[set.clone()].iter().map(|group| &plan.steps[group.steps.start]);
            let values = steps.map(|step| matmul_scratch(plan, &step.op, set.len() > 1));
            let values = values.fold(0usize, usize::saturating_add);
            w.step = w.step.max(values.saturating_mul(4));
        }
        let last = |view: &View| view.shape.last().copied().unwrap_or(0);
        for step in &plan.steps {
            match &step.op {
                Op::Project(project) => {
                    let k = last(&project.x).max(1);
                    let rows = project.x.elements() / k;
                    let blocks = activations::blocks(k) * rows;
                    w.q8 = w.q8.max(blocks * residual_planes(plan, project));
                    w.f32 = w.f32.max(blocks);
                    w.thread = w.thread.max(rows.min(activations::TILE) * TILE_STRIDE);
                    if project.norm.is_some() {
                        w.thread = w.thread.max(k);
                    }
                }
                Op::RopeKv(rope) => w.thread = w.thread.max(last(&rope.k)),
                Op::Attention(attention) => {
                    w.thread = w.thread.max(attention::scratch_len(last(&attention.q)));
                }
                Op::Mixture(mixture) => {
                    let need = Needs::of(mixture);
                    (w.q8, w.f32) = (w.q8.max(need.blocks), w.f32.max(need.blocks));
                    w.thread =
                        w.thread.max(activations::TILE * TILE_STRIDE).max(2 * mixture.experts());
                    w.step = w.step.max(need.bytes);
                }
                Op::GatedDelta(delta) => {
                    let (rows, heads) = (delta.mixed.shape[0], &delta.heads);
                    w.step = w.step.max(4 * delta_scratch(rows, heads));
                    w.thread = w.thread.max(LANES * heads.key_size);
                }
                Op::DeltaRule(rule) => w.thread = w.thread.max(LANES * last(&rule.key)),
                Op::Conv(conv) => {
                    w.step = w.step.max(conv.weight.elements().saturating_mul(4));
                }
                Op::Scatter { .. } | Op::ScatterAdd { .. } => w.thread = w.thread.max(group::BLOCK),
                Op::TopK { x, .. } => w.thread = w.thread.max(last(x)),
                Op::Sample(sample) => w.vocabulary = w.vocabulary.max(last(&sample.logits)),
                _ => {}
            }
        }
        Ok(w)
    }

    pub(super) fn max(self, other: Self) -> Self {
        Self {
            arena: self.arena.max(other.arena),
            q8: self.q8.max(other.q8),
            f32: self.f32.max(other.f32),
            thread: self.thread.max(other.thread),
            vocabulary: self.vocabulary.max(other.vocabulary),
            step: self.step.max(other.step),
        }
    }

    pub(super) fn bytes(&self, threads: usize) -> usize {
        let per_thread = 4 * self.thread + self.vocabulary * (size_of::<Candidate>() + 4);
        self.arena
            + self.q8 * size_of::<Q8Block>()
            + self.f32 * size_of::<F32Block>()
            + self.step
            + threads * per_thread
    }
}

/// `f32` values between the kernel calls of a gated delta layer.
const fn delta_scratch(rows: usize, heads: &DeltaHeads) -> usize {
    rows * 2 * (heads.keys * heads.key_size + heads.values)
}

/// Values that a matrix product needs between its kernel calls: widened operands, packed rows that are not weights,
/// and packed columns if `packed` is set.
fn matmul_scratch(plan: &Plan, op: &Op, packed: bool) -> usize {
    let Op::MatMul { a, b, .. } = op else { return 0 };
    let copied = |view: &View| match stored(plan.buffer(view.buffer)) {
        Some(Width::Less(_)) => view.elements(),
        _ => 0,
    };
    let columns = match b.shape[..] {
        [.., n, _] if packed => b.elements() / n.max(1) * n.next_multiple_of(LANES),
        _ => 0,
    };
    [copied(a), copied(b), a.elements(), columns].into_iter().fold(0, usize::saturating_add)
}

/// Offsets of a plan's scratch buffers. A buffer lives until the end of the groups that run together with its last
/// reader. In-place concats are placed inside their result.
pub(super) fn arena(plan: &Plan, groups: &[Group]) -> Arena {
    let sets = row_fusion::sets(plan, groups).into_iter();
    let last: Vec<usize> = sets
        .flat_map(|set| {
            let (start, end) = (groups[set.start].steps.start, groups[set.end - 1].steps.end);
            (start..end).map(move |_| end - 1)
        })
        .collect();
    let inside = concat_in_place::inside(plan, groups);
    let place =
        |buffer| inside.get(&buffer).map_or((buffer, 0), |(whole, at)| (*whole, 4 * *at as u64));
    Arena::new(plan, |step| last[step], place)
}

pub(super) fn size(bytes: u64) -> Result<usize> {
    usize::try_from(bytes).map_err(|_| unsupported(format!("{bytes} bytes of scratch")))
}
