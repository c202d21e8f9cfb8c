//! Layers that remember in a state of fixed size: their operands, and how states are kept. What they compute is
//! `graph`'s to say, and the reference's.

use crate::{Rows, Scalar, View};

/// A state of every slot, and the rows that move it on. A step's rows are those of `rows / chunk` sequences, one
/// after the other, each at neighbouring positions; padding comes last.
///
/// A slot has two versions of its state. A step reads the one that holds as many tokens as come before its first
/// position (none: zeroes), and writes the other. So a step that is done again finds what it began with, one that
/// ran too far spoils nothing that is asked for again, and position 0 begins anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recurrence<T = View> {
    /// `F32 [slots, 2, ..]`.
    pub state: T,
    /// Tokens that each version holds, `I32 [slots, 2]`.
    pub held: T,
    pub rows: Rows<T>,
    /// Rows of a sequence.
    pub chunk: usize,
}

/// [`Op::ShortConv`](crate::Op::ShortConv): of each channel the products of its last L values with the weights,
/// added up; the state is the last L - 1 values, `[L - 1, C]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShortConv<T = View> {
    /// `F32 [M, C]`, as is `out`.
    pub x: T,
    /// `F32 [C, L]`, the last for a row's own value.
    pub weight: T,
    pub memory: Recurrence<T>,
    pub out: T,
}

/// [`Op::DeltaRule`](crate::Op::DeltaRule): for each head a matrix S `[K, V]`, moved on and asked once a row:
/// `S = diag(decay) S + add (take^T S) + key value^T`, then `out = query^T S`.
///
/// With `take = k`, `add = -decay beta k` and `value = beta v` this is the gated delta rule (Yang et al., 2024),
/// with a decay for each column RWKV-7's.
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

/// [`Op::GatedDelta`](crate::Op::GatedDelta): the linear attention of Gated DeltaNet. Queries and keys have
/// length 1, queries are divided by the root of K; `decay = exp(rate * softplus(step + bias))`,
/// `beta = sigmoid(strength)`.
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
    /// Added to the squared length of queries and keys.
    pub eps: Scalar,
    pub memory: Recurrence<T>,
    /// `F32 [M, H, V]`.
    pub out: T,
}

/// Heads of a [`GatedDelta`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeltaHeads {
    /// Heads of queries and keys, HK: a divisor of H.
    pub keys: usize,
    /// Heads of values, H.
    pub values: usize,
    /// Width of queries and keys, K.
    pub key_size: usize,
    /// Width of values, V.
    pub value_size: usize,
    /// Whether neighbouring heads share keys; else those share them that are HK apart.
    pub grouped: bool,
}

impl DeltaHeads {
    /// Columns of a row of queries, keys and values.
    #[must_use]
    pub const fn columns(&self) -> usize {
        2 * self.keys * self.key_size + self.values * self.value_size
    }

    /// The head of queries and keys that a head of values goes with.
    #[must_use]
    pub const fn key_of(&self, head: usize) -> usize {
        if self.grouped { head / (self.values / self.keys) } else { head % self.keys }
    }
}

/// What a step does with one slot's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Turn {
    /// The version to begin with; zeroes where there is none.
    pub from: Option<usize>,
    /// The version to leave behind.
    pub to: usize,
    /// What the versions hold afterwards.
    pub held: [i32; 2],
}

impl Turn {
    /// Of `rows` rows from `position` on, where the slot's versions hold so many tokens.
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
    /// Sequences of a step.
    #[must_use]
    pub fn sequences(&self) -> usize {
        self.rows.slots.elements() / self.chunk.max(1)
    }

    /// Elements of one version of a slot's state.
    #[must_use]
    pub fn size(&self) -> usize {
        self.state.shape.iter().skip(2).product()
    }

    /// What a device may rely on beside what holds for every operation.
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

    /// Whatever a step does, the same step again begins with what it began with.
    #[test]
    fn a_repeated_step_begins_as_it_began() {
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
        // One step too far, then on from where it began; then a new sequence.
        assert_eq!(held, [11, 10]);
        assert_eq!(Turn::new(held, 10, 3).from, Some(1));
        assert_eq!(Turn::new(held, 0, 10), Turn { from: None, to: 0, held: [10, -1] });
        assert_eq!(Turn::new([10, -1], 10, 1).from, Some(0));
    }
}
