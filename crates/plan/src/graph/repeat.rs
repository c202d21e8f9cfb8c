//! Repeated bodies: a part of the graph that runs several times, such as one step of a recurrent
//! layer. Values that one execution passes to the next are mailboxes of the plan.

use super::builder::{Graph, Kind, Result, Tensor};
use crate::{Binary, Class, DType, RepeatId};

/// A number that every execution of a body changes by the same step.
#[derive(Clone, Copy, Debug)]
pub struct Counter {
    /// The number, `I32 [1]`.
    pub value: Tensor,
    step: Tensor,
}

/// Results of an execution of a body.
#[derive(Clone, Copy, Debug, Default)]
pub struct BodyEnds<'a> {
    /// Carried values, and their replacements for the next execution.
    pub next: &'a [(Tensor, Tensor)],
    /// Tables, indices `I32 [1]`, and the rows to write there.
    pub rows: &'a [(Tensor, Tensor, Tensor)],
    pub counters: &'a [Counter],
}

impl Graph {
    /// A value that a body may replace, see [`BodyEnds::next`].
    pub fn carried(&mut self, initial: Tensor) -> Result {
        let (shape, dtype) = (self.shape(initial).to_vec(), self.dtype(initial));
        let name = format!("(carried {})", self.nodes.len());
        let mailbox = self.source(Class::Mailbox, &name, dtype, &shape)?;
        self.assign(mailbox, initial)
    }

    /// The tensor with its elements in memory in order, for use by a body.
    pub fn contiguous(&mut self, x: Tensor) -> Tensor {
        match self.node(x).kind {
            Kind::Compute(_) | Kind::Source { .. } => x,
            _ => self.gathered(x),
        }
    }

    /// A table whose rows a body writes.
    pub fn filled(&mut self, shape: &[usize], dtype: DType) -> Result {
        let name = format!("(filled {})", self.nodes.len());
        self.source(Class::Mailbox, &name, dtype, shape)
    }

    /// A counter for a body: `first`, `first + step`, ..
    pub fn counter(&mut self, first: i32, step: i32) -> Result<Counter> {
        let mut number = |value: i32| {
            let value = self.constant(value as f32);
            let value = self.reshape(value, &[1])?;
            self.cast(value, DType::I32)
        };
        let (first, step) = (number(first)?, number(step)?);
        Ok(Counter { value: self.carried(first)?, step })
    }

    /// True inside a body.
    #[must_use]
    pub const fn is_repeating(&self) -> bool {
        self.open_repeat.is_some()
    }

    /// Begins a body that runs `count` times, at least once. Bodies do not nest.
    pub fn begin_repeat(&mut self, count: usize) {
        debug_assert!(!self.is_repeating() && !self.open_composite && count > 0);
        self.open_repeat = Some(RepeatId(self.repeats.len() as u32));
        self.repeats.push(count);
    }

    /// Ends a body. Returns the versions of carried values and tables after the last execution.
    pub fn end_repeat(&mut self, ends: &BodyEnds<'_>) -> Result<(Vec<Tensor>, Vec<Tensor>)> {
        // A view of a carried value must be read before any of them is replaced.
        let mut computed = |value: Tensor| match self.node(value).kind {
            Kind::Compute(_) => value,
            _ => self.gathered(value),
        };
        let next: Vec<_> = ends.next.iter().map(|&(at, value)| (at, computed(value))).collect();
        let rows: Vec<_> = ends.rows.iter().map(|&(at, i, row)| (at, i, computed(row))).collect();
        let next = next.into_iter().map(|(carried, value)| self.assign(carried, value));
        let next = next.collect::<Result<Vec<_>>>()?;
        let mut tables = Vec::new();
        for (table, index, row) in rows {
            let shape = [&[1], self.shape(row)].concat();
            let row = self.reshape(row, &shape)?;
            tables.push(self.scatter(table, &[index], row)?);
        }
        for counter in ends.counters {
            let value = self.binary(Binary::Add, counter.value, counter.step)?;
            self.assign(counter.value, value)?;
        }
        self.open_repeat = None;
        Ok((next, tables))
    }
}
