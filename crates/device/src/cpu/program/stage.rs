//! What a program is made of: stages, each with its addresses. How they are made of steps is `program`'s, what threads do with them
//! `execute`'s.

use crate::cpu::between::Between;
use crate::cpu::depthwise::Depthwise;
use crate::cpu::group::Kernel;
use crate::cpu::memory::Cache;
use crate::cpu::product::{self, MatMul, Panels};
use crate::cpu::rows::{self, TopK};
use crate::cpu::together::Rows;
use crate::cpu::variant::Variant;
use crate::cpu::winograd::Winograd;
use crate::cpu::{mixture, recurrent};
use plan::{Activation, MAX_WEIGHTS, NormKind, RopeStyle, Scores};
use simd::activations::ActivationFormat;
use simd::packed::PackedLayout;

#[derive(Clone, Copy)]
pub(in crate::cpu) struct Matrix {
    pub(in crate::cpu) layout: PackedLayout,
    pub(in crate::cpu) packed: *const u8,
}

#[derive(Clone, Copy)]
pub(in crate::cpu) struct Norm {
    pub(in crate::cpu) kind: NormKind,
    pub(in crate::cpu) weight: *const f32,
    pub(in crate::cpu) bias: Option<*const f32>,
    pub(in crate::cpu) eps: f32,
}

/// What is done with a value and nothing but its neighbours in other operands.
#[derive(Clone, Copy)]
pub(in crate::cpu) enum Elementwise {
    /// Plus another operand.
    Add(*const f32),
    /// Times another operand.
    Multiply(*const f32),
    /// Times the sigmoid of another operand, which has one value for each of these or of their rows.
    Gate {
        gate: *const f32,
        each: bool,
    },
    /// Plus a row.
    Bias(*const f32),
    Scale(f32),
    SoftCap(f32),
    Activate(Activation),
    /// Activated, times another operand, whose rows are `stride` apart.
    Glu {
        activation: Activation,
        up: *const f32,
        stride: usize,
    },
}

/// Where each row lives: the mailboxes that say so.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct KvRows {
    pub(in crate::cpu) slots: *const i32,
    pub(in crate::cpu) positions: *const i32,
    /// Which blocks are whose: `[slot][entries]`.
    pub(in crate::cpu) table: *const u32,
    pub(in crate::cpu) entries: usize,
}

/// One stage: all threads work on it, then meet at a barrier. `rows` are those of the plan's bucket.
pub(in crate::cpu) enum Stage {
    /// Rows of a packed matrix, decoded: `out[i] = matrix[ids[i]]`.
    Embed {
        matrix: Matrix,
        ids: *const i32,
        rows: usize,
        out: *mut f32,
    },
    /// Rows of 4-byte elements: `out[i] = table[ids[i]]`, zeroes for an index outside `0..extent`.
    Gather {
        table: *const u32,
        extent: usize,
        width: usize,
        ids: *const i32,
        rows: usize,
        out: *mut u32,
    },
    /// The same out of a product's columns; indices are `step` apart.
    Lines {
        panels: Panels,
        table: *const f32,
        ids: *const i32,
        step: usize,
        rows: usize,
        out: *mut f32,
    },
    /// Cosines, then sines, of position times frequency.
    RopeTable {
        positions: *const i32,
        frequencies: *const f32,
        half: usize,
        magnitude: f32,
        rows: usize,
        out: *mut f32,
    },
    Normalise {
        x: *const f32,
        norm: Norm,
        n: usize,
        rows: usize,
        out: *mut f32,
    },
    Elementwise {
        op: Elementwise,
        x: *const f32,
        n: usize,
        rows: usize,
        out: *mut f32,
    },
    Rope {
        x: *const f32,
        rotation: Rotation,
        heads: usize,
        dim: usize,
        rows: usize,
        out: *mut f32,
    },
    Arrange(Arrange),
    Project(Project),
    Gate(Gate),
    RopeKv(RopeKv),
    Attention(Attention),
    Mixture(mixture::Part, mixture::Mixture),
    ShortConv(recurrent::ShortConv),
    /// Queries, keys and gates for [`Stage::GatedDelta`].
    PrepareDelta(recurrent::GatedDelta),
    GatedDelta(recurrent::GatedDelta),
    DeltaRule(recurrent::DeltaRule),
    /// Notes what the versions of a state hold.
    Note(recurrent::Memory),
    Sample(Sample),
    /// A group of tensor operations.
    Group(Box<Kernel>),
    /// Groups that are done row by row.
    Rows(Box<Rows>),
    Pack(Box<product::Pack>),
    MatMul(Box<MatMul>),
    /// Two products and what is done to each row between them.
    Between(Box<Between>),
    Depthwise(Box<Depthwise>),
    Winograd(Box<Winograd>),
    TakeRows(Box<rows::Gather>),
    PutRows(Box<rows::Scatter>),
    TopK(Box<TopK>),
}

/// Rows, normalised if asked, brought into the form that products read.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Arrange {
    pub(in crate::cpu) x: *const f32,
    pub(in crate::cpu) norm: Option<Norm>,
    pub(in crate::cpu) k: usize,
    pub(in crate::cpu) rows: usize,
    /// For quantised weights.
    pub(in crate::cpu) q8: Option<ActivationFormat>,
    /// For plain ones.
    pub(in crate::cpu) f32: bool,
}

#[derive(Clone, Copy)]
pub(in crate::cpu) struct Project {
    pub(in crate::cpu) linears: [Option<Linear>; MAX_WEIGHTS],
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) residual_planes: usize,
    pub(in crate::cpu) residual: Option<*const f32>,
    pub(in crate::cpu) variant: Variant,
}

/// One matrix, what follows its product, where that goes, and how many of the residual planes count for it.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Linear {
    pub(in crate::cpu) matrix: Matrix,
    pub(in crate::cpu) bias: Option<*const f32>,
    pub(in crate::cpu) activation: Option<Activation>,
    pub(in crate::cpu) out: *mut f32,
    pub(in crate::cpu) used_planes: usize,
}

/// `activation(x W0^T) * (x W1^T)` of the arranged rows.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Gate {
    pub(in crate::cpu) activation: Activation,
    pub(in crate::cpu) gate: Matrix,
    pub(in crate::cpu) up: Matrix,
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) residual_planes: usize,
    pub(in crate::cpu) out: *mut f32,
    pub(in crate::cpu) variant: Variant,
}

/// How heads are rotated: their first `2 * half` values.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Rotation {
    pub(in crate::cpu) table: *const f32,
    pub(in crate::cpu) half: usize,
    pub(in crate::cpu) style: RopeStyle,
}

/// Queries (none when `heads` is 0) rotated, keys rotated and values into their caches.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct RopeKv {
    pub(in crate::cpu) q: *const f32,
    pub(in crate::cpu) q_norm: Option<Norm>,
    pub(in crate::cpu) k: *const f32,
    pub(in crate::cpu) k_norm: Option<Norm>,
    pub(in crate::cpu) v: *const f32,
    pub(in crate::cpu) rotation: Rotation,
    pub(in crate::cpu) at: KvRows,
    pub(in crate::cpu) heads: usize,
    pub(in crate::cpu) cache: Cache,
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) out: *mut f32,
    pub(in crate::cpu) keys: *mut u8,
    pub(in crate::cpu) values: *mut u8,
}

#[derive(Clone, Copy)]
pub(in crate::cpu) struct Attention {
    pub(in crate::cpu) q: *const f32,
    pub(in crate::cpu) at: KvRows,
    pub(in crate::cpu) heads: usize,
    pub(in crate::cpu) cache: Cache,
    pub(in crate::cpu) scores: Scores,
    pub(in crate::cpu) sinks: Option<*const f32>,
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) out: *mut f32,
    pub(in crate::cpu) keys: *const u8,
    pub(in crate::cpu) values: *const u8,
}

/// Tokens chosen from rows of logits; then, in decode, the next step's inputs.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Sample {
    pub(in crate::cpu) logits: *const f32,
    pub(in crate::cpu) vocabulary: usize,
    pub(in crate::cpu) temperature: *const f32,
    pub(in crate::cpu) top_k: *const i32,
    pub(in crate::cpu) top_p: *const f32,
    pub(in crate::cpu) min_p: *const f32,
    pub(in crate::cpu) seed: *const i32,
    pub(in crate::cpu) positions: *const i32,
    /// What is done to logits first, row by row.
    pub(in crate::cpu) adjustments: Option<*const i32>,
    pub(in crate::cpu) rows: usize,
    pub(in crate::cpu) ids: *mut i32,
    pub(in crate::cpu) next: Option<NextInputs>,
}

#[derive(Clone, Copy)]
pub(in crate::cpu) struct NextInputs {
    pub(in crate::cpu) tokens: *mut i32,
    pub(in crate::cpu) positions: *mut i32,
}

impl Stage {
    pub(in crate::cpu) const fn name(&self) -> &'static str {
        match self {
            Self::Embed { .. } => "embed",
            Self::Gather { .. } | Self::Lines { .. } => "gather",
            Self::RopeTable { .. } => "rope-table",
            Self::Normalise { .. } => "norm",
            Self::Elementwise { op, .. } => match op {
                Elementwise::Add(_) => "add",
                Elementwise::Bias(_) => "bias",
                Elementwise::Scale(_) => "scale",
                Elementwise::SoftCap(_) => "soft-cap",
                Elementwise::Activate(_) => "activate",
                Elementwise::Glu { .. } => "glu",
                Elementwise::Multiply(_) => "multiply",
                Elementwise::Gate { .. } => "gate",
            },
            Self::Rope { .. } => "rope",
            Self::Arrange(_) => "arrange",
            Self::Project(_) => "project",
            Self::Gate(_) => "gate",
            Self::RopeKv(_) => "rope-kv",
            Self::Attention(_) => "attention",
            Self::Mixture(part, _) => part.name(),
            Self::ShortConv(_) => "short-conv",
            Self::PrepareDelta(_) => "prepare-delta",
            Self::GatedDelta(_) => "gated-delta",
            Self::DeltaRule(_) => "delta-rule",
            Self::Note(_) => "note",
            Self::Sample(_) => "sample",
            Self::Group(_) | Self::Rows(_) => "group",
            Self::Pack(_) => "pack",
            Self::MatMul(_) => "matmul",
            Self::Between(_) => "matmuls",
            Self::Depthwise(_) => "depthwise",
            Self::Winograd(_) => "winograd",
            Self::TakeRows(_) => "take-rows",
            Self::PutRows(_) => "put-rows",
            Self::TopK(_) => "top-k",
        }
    }
}
