//! Kernel calls: the steps of a program, with resolved operands.

use crate::cpu::depthwise::Depthwise;
use crate::cpu::gather::{Gather, Scatter, TopK};
use crate::cpu::group::Kernel;
use crate::cpu::matmul::MatMul;
use crate::cpu::matmul_chain::MatMulChain;
use crate::cpu::moe::{self, Mixture};
use crate::cpu::operand::{Operand, Storage};
use crate::cpu::packed_operand::Pack;
use crate::cpu::projection::{PackActivations, Project, ProjectGlu};
use crate::cpu::row_fusion::FusedRows;
use crate::cpu::winograd::Winograd;
use plan::{Binary, GatedDelta, Op, Recurrence};

/// One kernel call: all threads work on it, then meet at a barrier. Row counts are those of the plan's bucket.
pub(in crate::cpu) enum KernelCall {
    /// An operation of the plan whose rows are computed independently.
    Op(Box<Op<Operand>>),
    PackActivations(PackActivations),
    Project(Box<Project>),
    ProjectGlu(ProjectGlu),
    Mixture(moe::Phase, Box<Mixture>),
    /// Normalised queries and keys, and gates, for the gated delta rule.
    PrepareDelta(Box<GatedDelta<Operand>>),
    /// Records the token counts of a recurrent state's versions.
    RecordVersions(Recurrence<Operand>),
    Group(Box<Kernel>),
    FusedRows(Box<FusedRows>),
    Pack(Box<Pack>),
    MatMul(Box<MatMul>),
    MatMulChain(Box<MatMulChain>),
    Depthwise(Box<Depthwise>),
    Winograd(Box<Winograd>),
    Gather(Box<Gather>),
    Scatter(Box<Scatter>),
    TopK(Box<TopK>),
}

impl KernelCall {
    /// Kernel name in profiles.
    pub(in crate::cpu) fn name(&self) -> &'static str {
        match self {
            Self::Op(op) => operation(op),
            Self::PackActivations(_) => "arrange",
            Self::Project(_) => "project",
            Self::ProjectGlu(_) => "gate",
            Self::Mixture(phase, _) => phase.name(),
            Self::PrepareDelta(_) => "prepare-delta",
            Self::RecordVersions(_) => "note",
            Self::Group(_) | Self::FusedRows(_) => "group",
            Self::Pack(_) => "pack",
            Self::MatMul(_) => "matmul",
            Self::MatMulChain(_) => "matmuls",
            Self::Depthwise(_) => "depthwise",
            Self::Winograd(_) => "winograd",
            Self::Gather(_) => "take-rows",
            Self::Scatter(_) => "put-rows",
            Self::TopK(_) => "top-k",
        }
    }
}

fn operation(op: &Op<Operand>) -> &'static str {
    match op {
        Op::Gather(gather) if matches!(gather.table.storage, Storage::Matrix(_)) => "embed",
        Op::Gather(_) => "gather",
        Op::RopeTable(_) => "rope-table",
        Op::Normalise(_) => "norm",
        Op::Binary { op: Binary::Mul, .. } => "multiply",
        Op::Binary { .. } => "add",
        Op::Bias { .. } => "bias",
        Op::Scale { .. } => "scale",
        Op::SoftCap { .. } => "soft-cap",
        Op::Activate { .. } => "activate",
        Op::Glu { .. } => "glu",
        Op::Gate { .. } => "gate",
        Op::Rope { .. } => "rope",
        Op::RopeKv(_) => "rope-kv",
        Op::Attention(_) => "attention",
        Op::ShortConv(_) => "short-conv",
        Op::GatedDelta(_) => "gated-delta",
        Op::DeltaRule(_) => "delta-rule",
        Op::Sample(_) => "sample",
        op => unreachable!("{} is no kernel call of its own", op.name()),
    }
}
