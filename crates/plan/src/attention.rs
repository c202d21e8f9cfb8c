//! Operands of attention and the operations around it: rotary embedding, KV caches, scores.

use crate::buffer::{Scalar, View};

/// Pairing of a head's elements in the rotary embedding.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Element `2i` with `2i + 1` (GGUF `llama`).
    Interleaved,
    /// Element `i` with `i + head_dim / 2` (GGUF `qwen3`).
    HalfSplit,
}

/// Cache slot and position of each row of tokens: `I32 [M]` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows<T = View> {
    /// KV slot; negative for padding rows.
    pub slots: T,
    pub positions: T,
}

impl<T> Rows<T> {
    pub(crate) fn map<'a, U>(&'a self, mut f: impl FnMut(&'a T) -> U) -> Rows<U> {
        Rows { slots: f(&self.slots), positions: f(&self.positions) }
    }
}

/// Key and value cache of one layer, `[slots, C, KVH, D]` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches<T = View> {
    pub keys: T,
    pub values: T,
    /// Position p is stored at p modulo C. Only positions inside the window are read, and C is at
    /// least a window plus a chunk.
    pub ring: bool,
}

impl<T> Caches<T> {
    pub(crate) fn map<'a, U>(&'a self, mut f: impl FnMut(&'a T) -> U) -> Caches<U> {
        Caches { keys: f(&self.keys), values: f(&self.values), ring: self.ring }
    }
}

/// [`Op::RopeTable`](crate::Op::RopeTable): `out [M, 2, D/2]` contains the cosines, then the sines
/// of `position * frequency`, all times `magnitude`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RopeTable<T = View> {
    /// Factor on cosine and sine; 1 except for YaRN.
    pub magnitude: Scalar,
    /// `I32 [M]`.
    pub positions: T,
    /// `F32 [D/2]`.
    pub frequencies: T,
    pub out: T,
}

/// Computation of attention scores from products of queries and keys, and the range of positions
/// that have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scores {
    /// Factor on the products.
    pub scale: Scalar,
    /// Second factor, which grows with the row's position.
    pub temperature: Option<Temperature>,
    /// Soft cap of the scaled product.
    pub cap: Option<Scalar>,
    /// Number of positions that a row attends to, itself included; `None` for all positions up to
    /// its own.
    pub window: Option<usize>,
}

impl Scores {
    /// Scores that are products times a factor.
    #[must_use]
    pub const fn scaled(scale: f32) -> Self {
        Self { scale: Scalar::new(scale), temperature: None, cap: None, window: None }
    }

    /// Most positions of a band of `context` that `chunk` neighbouring rows attend to.
    #[must_use]
    pub fn band(&self, context: usize, chunk: usize) -> usize {
        self.window.map_or(context, |window| context.min(window.saturating_add(chunk - 1)))
    }
}

/// `1 + slope * ln(1 + floor(position / length))`: sharper attention beyond the training context.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Temperature {
    pub slope: Scalar,
    pub length: usize,
}

/// [`Op::Attention`](crate::Op::Attention): softmax attention over positions `0..=position` of the
/// row's slot, or over the last of them (the window). Each KV head serves `H / KVH` query heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attention<T = View> {
    pub scores: Scores,
    /// `[M, H, D]`, as is `out`.
    pub q: T,
    pub caches: Caches<T>,
    pub rows: Rows<T>,
    /// Attention sinks, `F32 [H]`: one extra score for each head, without a value.
    pub sinks: Option<T>,
    pub out: T,
}

impl<T> Attention<T> {
    pub(crate) fn map<'a, U>(
        &'a self,
        mut read: impl FnMut(&'a T) -> U,
        write: impl FnOnce(&'a T) -> U,
    ) -> Attention<U> {
        Attention {
            scores: self.scores,
            q: read(&self.q),
            caches: self.caches.map(&mut read),
            rows: self.rows.map(&mut read),
            sinks: self.sinks.as_ref().map(read),
            out: write(&self.out),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RopeKv<T = View> {
    pub style: RopeStyle,
    /// Absent if the step only fills the caches.
    pub queries: Option<Queries<T>>,
    /// `[M, KVH, D]`, as is `v`.
    pub k: T,
    pub v: T,
    /// See [`RopeTable`].
    pub table: T,
    pub rows: Rows<T>,
    pub norm: Option<QkNorm<T>>,
    pub caches: Caches<T>,
}

impl<T> RopeKv<T> {
    pub(crate) fn map<'a, U>(
        &'a self,
        mut read: impl FnMut(&'a T) -> U,
        mut write: impl FnMut(&'a T) -> U,
    ) -> RopeKv<U> {
        RopeKv {
            style: self.style,
            queries: self
                .queries
                .as_ref()
                .map(|Queries { q, out }| Queries { q: read(q), out: write(out) }),
            k: read(&self.k),
            v: read(&self.v),
            table: read(&self.table),
            rows: self.rows.map(&mut read),
            norm: self.norm.as_ref().map(|QkNorm { q, k, eps }| QkNorm {
                q: q.as_ref().map(&mut read),
                k: read(k),
                eps: *eps,
            }),
            caches: self.caches.map(write),
        }
    }
}

/// Queries `[M, H, D]` before and after the rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queries<T = View> {
    pub q: T,
    pub out: T,
}

/// RMSNorm of every head before its rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QkNorm<T = View> {
    /// Present if the step has queries.
    pub q: Option<T>,
    pub k: T,
    /// Added to the mean square.
    pub eps: Scalar,
}
