//! Steps of a plan: operation, label, cost.

use crate::buffer::BufferId;
use crate::op::Op;

/// Bytes that a step moves and operations that it computes, at the plan's full context band.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    pub weight_bytes: u64,
    /// Bytes of state (KV cache) read or written.
    pub state_bytes: u64,
    /// Bytes of everything else read or written.
    pub other_bytes: u64,
    /// Floating-point operations (a multiply-add counts as two).
    pub flops: u64,
}

impl Cost {
    #[must_use]
    pub const fn bytes(&self) -> u64 {
        self.weight_bytes + self.state_bytes + self.other_bytes
    }
}

impl std::ops::Add for Cost {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            weight_bytes: self.weight_bytes + other.weight_bytes,
            state_bytes: self.state_bytes + other.state_bytes,
            other_bytes: self.other_bytes + other.other_bytes,
            flops: self.flops + other.flops,
        }
    }
}

impl std::ops::Mul<usize> for Cost {
    type Output = Self;

    fn mul(self, times: usize) -> Self {
        let of = |count: u64| count.saturating_mul(times as u64);
        Self {
            weight_bytes: of(self.weight_bytes),
            state_bytes: of(self.state_bytes),
            other_bytes: of(self.other_bytes),
            flops: of(self.flops),
        }
    }
}

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), |a, b| a + b)
    }
}

/// One step. Steps run in order; nothing else orders them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    pub op: Op,
    /// Place in the model, for people: `blk.3.attn_q`.
    pub label: String,
    /// The composite that this primitive step is part of.
    pub scope: Option<ScopeId>,
    /// The repeated body that this step belongs to.
    pub repeat: Option<RepeatId>,
    /// Cost of one execution.
    pub cost: Cost,
}

/// Index of a repeated body in [`Plan::repeats`](crate::Plan::repeats).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RepeatId(pub u32);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopeId(pub u32);

impl Step {
    /// True if the step reads or writes the buffer.
    #[must_use]
    pub fn touches(&self, buffer: BufferId) -> bool {
        self.op.reads().into_iter().chain(self.op.writes()).any(|view| view.buffer == buffer)
    }
}
