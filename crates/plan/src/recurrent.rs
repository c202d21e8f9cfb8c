//! Operands of layers with a recurrent state of fixed size, and the versions of that state.
//! `graph::recurrent` and the reference device define what the layers compute.

use crate::attention::Rows;
use crate::buffer::{Scalar, View};

/// Recurrent state of every slot, and the rows that update it. The rows of a step belong to `rows /
/// chunk` sequences, one after the other, each with consecutive positions; padding comes last.
///
/// A slot has two versions of its state. A step reads the version that covers all tokens before its
/// first position (zeroes at position 0) and writes the other. A repeated step therefore starts
/// from the same state, a step that ran too far leaves the previous version intact, and position 0
/// starts a new sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrence<T = View> {
    /// `F32 [slots, 2, ..]`.
    pub state: T,
    /// Number of tokens that each version covers, `I32 [slots, 2]`.
    pub held: T,
    pub rows: Rows<T>,
    /// Rows per sequence.
    pub chunk: usize,
}

/// [`Op::ShortConv`](crate::Op::ShortConv): for each channel, the dot product of its last L values
/// with the weights. The state is the last L - 1 values, `[L - 1, C]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShortConv<T = View> {
    /// `F32 [M, C]`, as is `out`.
    pub x: T,
    /// `F32 [C, L]`; the last column applies to the row's own value.
    pub weight: T,
    pub memory: Recurrence<T>,
    pub out: T,
}

/// [`Op::DeltaRule`](crate::Op::DeltaRule): each head has a matrix S `[K, V]`, updated and read
/// once per row: `S = diag(decay) S + add (take^T S) + key value^T`, then `out = query^T S`.
///
/// With `take = k`, `add = -decay beta k` and `value = beta v` this is the gated delta rule (Yang
/// et al., 2024); with one decay per column it is RWKV-7's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeltaRule<T = View> {
    /// `F32 [M, H, K]`, as are `decay`, `key`, `take` and `add`.
    pub query: T,
    pub decay: T,
    pub key: T,
    /// `F32 [M, H, V]`, as is `out`.
    pub value: T,
    pub take: T,
    pub add: T,
    /// State `[H, K, V]`.
    pub memory: Recurrence<T>,
    pub out: T,
}

/// [`Op::GatedDelta`](crate::Op::GatedDelta): the linear attention of Gated DeltaNet. Queries and
/// keys are L2-normalised, queries divided by the square root of K; `decay = exp(rate *
/// softplus(step + bias))`, `beta = sigmoid(strength)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatedDelta<T = View> {
    /// Queries, keys and values of each row, `F32 [M, 2 HK K + H V]`.
    pub mixed: T,
    /// `F32 [M, H]`, as is `strength`.
    pub step: T,
    pub strength: T,
    /// `F32 [H]`, as is `bias`.
    pub rate: T,
    pub bias: T,
    pub heads: DeltaHeads,
    /// Added to the squared L2 norm of queries and keys.
    pub eps: Scalar,
    pub memory: Recurrence<T>,
    /// `F32 [M, H, V]`.
    pub out: T,
}

/// Heads of a [`GatedDelta`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Number of query and key heads, HK: a divisor of H.
    pub keys: usize,
    /// Number of value heads, H.
    pub values: usize,
    /// Width of queries and keys, K.
    pub key_size: usize,
    /// Width of values, V.
    pub value_size: usize,
    /// True if neighbouring value heads share a key head; else those that are HK apart do.
    pub grouped: bool,
}

impl DeltaHeads {
    /// Columns of a row of queries, keys and values.
    #[must_use]
    pub const fn columns(&self) -> usize {
        2 * self.keys * self.key_size + self.values * self.value_size
    }

    /// The key head that a value head uses.
    #[must_use]
    pub const fn key_of(&self, head: usize) -> usize {
        if self.grouped { head / (self.values / self.keys) } else { head % self.keys }
    }
}

/// Versions of one slot's state that a step reads and writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// Version to read; `None` for zeroes.
    pub from: Option<usize>,
    /// Version to write.
    pub to: usize,
    /// Tokens that each version covers afterwards.
    pub held: [i32; 2],
}

impl Turn {
    /// The versions to read and write for `rows` rows from `position` on. `held` is the number of tokens that each of
    /// the slot's versions covers.
    #[must_use]
    pub const fn new(held: [i32; 2], position: i32, rows: i32) -> Self {
        if position == 0 {
            return Self { from: None, to: 0, held: [rows, -1] };
        }
        let after = position.wrapping_add(rows);
        if held[1] == position {
            Self { from: Some(1), to: 0, held: [after, position] }
        } else {
            Self { from: Some(0), to: 1, held: [held[0], after] }
        }
    }
}

impl<T> Recurrence<T> {
    fn map<'a, U>(
        &'a self,
        mut read: impl FnMut(&'a T) -> U,
        mut write: impl FnMut(&'a T) -> U,
    ) -> Recurrence<U> {
        Recurrence {
            rows: self.rows.map(&mut read),
            state: write(&self.state),
            held: write(&self.held),
            chunk: self.chunk,
        }
    }
}

impl<T> ShortConv<T> {
    pub(crate) fn map<'a, U>(
        &'a self,
        mut read: impl FnMut(&'a T) -> U,
        mut write: impl FnMut(&'a T) -> U,
    ) -> ShortConv<U> {
        ShortConv {
            x: read(&self.x),
            weight: read(&self.weight),
            memory: self.memory.map(read, &mut write),
            out: write(&self.out),
        }
    }
}

impl<T> DeltaRule<T> {
    pub(crate) fn map<'a, U>(
        &'a self,
        mut read: impl FnMut(&'a T) -> U,
        mut write: impl FnMut(&'a T) -> U,
    ) -> DeltaRule<U> {
        DeltaRule {
            query: read(&self.query),
            decay: read(&self.decay),
            key: read(&self.key),
            value: read(&self.value),
            take: read(&self.take),
            add: read(&self.add),
            memory: self.memory.map(read, &mut write),
            out: write(&self.out),
        }
    }
}

impl<T> GatedDelta<T> {
    pub(crate) fn map<'a, U>(
        &'a self,
        mut read: impl FnMut(&'a T) -> U,
        mut write: impl FnMut(&'a T) -> U,
    ) -> GatedDelta<U> {
        GatedDelta {
            mixed: read(&self.mixed),
            step: read(&self.step),
            strength: read(&self.strength),
            rate: read(&self.rate),
            bias: read(&self.bias),
            heads: self.heads,
            eps: self.eps,
            memory: self.memory.map(read, &mut write),
            out: write(&self.out),
        }
    }
}

impl Recurrence {
    /// Number of sequences of a step.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.rows.slots.elements() / self.chunk.max(1)
    }

    /// Elements of one version of a slot's state.
    #[must_use]
    pub fn size(&self) -> usize {
        self.state.shape.iter().skip(2).product()
    }

    /// Checks the shapes that a device relies on.
    pub(crate) fn check(&self) -> Result<(), String> {
        let rows = self.rows.slots.elements();
        let fits = self.chunk > 0
            && rows.is_multiple_of(self.chunk)
            && self.rows.positions.elements() == rows
            && self.state.shape.len() > 2
            && self.state.shape[1] == 2
            && self.held.shape == self.state.shape[..2];
        if fits { Ok(()) } else { Err("two versions of a state for each slot expected".into()) }
    }
}

#[cfg(test)]
mod tests {
    use super::Turn;

    /// A step that is repeated starts from the same version.
    #[test]
    fn a_repeated_step_reads_the_same_version() {
        let mut held = [0, 0];
        for (position, rows) in [(0, 5), (5, 4), (9, 1), (10, 1), (11, 2), (0, 5), (5, 5), (10, 1)]
        {
            let turn = Turn::new(held, position, rows);
            let again = Turn::new(turn.held, position, rows);
            assert_eq!(turn, again, "at {position}");
            assert_ne!(turn.from, Some(turn.to));
            assert_eq!(turn.held[turn.to], position + rows);
            held = turn.held;
        }
        // One step too far, then a restart from its first position; then a new sequence.
        assert_eq!(held, [11, 10]);
        assert_eq!(Turn::new(held, 10, 3).from, Some(1));
        assert_eq!(Turn::new(held, 0, 10), Turn { from: None, to: 0, held: [10, -1] });
        assert_eq!(Turn::new([10, -1], 10, 1).from, Some(0));
    }
}
