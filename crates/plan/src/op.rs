//! Operations of a plan, with operands by name. [`Op::map`] is the only list of what an operation
//! reads and writes; liveness, arena, costs and printing derive from it.

use crate::attention::{Attention, RopeKv, RopeStyle, RopeTable, Rows};
use crate::buffer::{Scalar, View};
use crate::conv::Conv;
use crate::elementwise::{Activation, Binary, Reduce, Unary};
use crate::mixture::Mixture;
use crate::project::{Normalise, Product, Project};
use crate::recurrent::{DeltaRule, GatedDelta, Recurrence, ShortConv};

/// Operation of a step, and its operands: primitives, composites, and fused operations. `graph`
/// defines each composite in primitives; that definition is its meaning. `T` is a [`View`] in a
/// plan and a tensor in a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op<T = View> {
    /// Elementwise; the first of the primitives.
    Unary { op: Unary, x: T, out: T },
    /// Elementwise; both operands have the same shape.
    Binary { op: Binary, a: T, b: T, out: T },
    /// Elementwise: `a` where the condition is not 0, else `b`. A NaN is not 0.
    Where { condition: T, a: T, b: T, out: T },
    /// Conversion to the type of `out`, rounding to nearest, ties to even.
    Cast { x: T, out: T },
    /// Copies a strided view into contiguous memory.
    Copy { x: T, out: T },
    /// Reduction along `axis`, which stays with extent 1. A NaN is reduced to a NaN.
    Reduce { op: Reduce, axis: usize, x: T, out: T },
    /// Writes `before` zeroes along `axis`, then `x`, then zeroes up to the extent of `out`.
    Pad { axis: usize, before: usize, x: T, out: T },
    /// Writes `0, 1, 2, ...`
    Iota { out: T },
    /// `a [.., M, K]` times the transpose of `b [.., N, K]`: `[.., M, N]`. A quantised `b` must be
    /// a whole matrix.
    MatMul { a: T, b: T, out: T },
    /// Indices of the greatest elements of each row of `x [M, E]`, greatest first, NaN before all
    /// numbers: `I32 [M, K]`; see [`crate::top_k`].
    TopK { x: T, out: T },
    /// Gathers rows of a table.
    Gather(Gather<T>),
    /// Writes `values [M, rest..]` into the table `[A.., rest..]`, one index tensor `[M]` per
    /// leading axis. Rows with a negative index are skipped.
    Scatter { indices: Vec<T>, values: T, table: T },
    /// Adds the rows of `values [M, rest..]` to zeroes `[A.., rest..]`, one index tensor `[M]` per
    /// leading axis. Rows with a negative index are skipped.
    ScatterAdd { indices: Vec<T>, values: T, out: T },
    /// Overwrites a mailbox or state with a value.
    Assign { value: T, mailbox: T },
    /// Short causal convolution with a recurrent state.
    ShortConv(ShortConv<T>),
    /// Delta rule with a recurrent state.
    DeltaRule(DeltaRule<T>),
    /// Samples tokens from logits. Fused if it has [`Sample::next`].
    Sample(Sample<T>),
    /// The first of the composites: RMSNorm and LayerNorm.
    Normalise(Normalise<T>),
    /// `x [.., D]` plus a value for each column.
    Bias { x: T, bias: T, out: T },
    /// `x * factor`
    Scale { factor: Scalar, x: T, out: T },
    /// `cap * tanh(x / cap)`
    SoftCap { cap: Scalar, x: T, out: T },
    /// Activation function.
    Activate { activation: Activation, x: T, out: T },
    /// Middle of a gated linear unit: `activation(gate) * up`.
    Glu { activation: Activation, gate: T, up: T, out: T },
    /// `x [M, N]` times the sigmoid of a gate, `[M, N]` or `[M, 1]`.
    Gate { gate: T, x: T, out: T },
    /// Cosines and sines of the rotary embedding.
    RopeTable(RopeTable<T>),
    /// Rotates the first R of each head's D values, `x [M, H, D]`, by the table `[M, 2, R/2]`;
    /// copies the others.
    Rope { style: RopeStyle, x: T, table: T, out: T },
    /// Writes `values [M, KVH, D]` into the cache `[slots, C, KVH, D]`, converted to the cache's
    /// type; see [`Caches`](crate::Caches) for `ring`. Rows with a negative slot are skipped.
    KvWrite { rows: Rows<T>, values: T, cache: T, ring: bool },
    /// Softmax attention over the KV cache.
    Attention(Attention<T>),
    /// Mixture of experts (MoE).
    Mixture(Mixture<T>),
    /// Gated DeltaNet attention.
    GatedDelta(GatedDelta<T>),
    /// Convolution.
    Conv(Conv<T>),
    /// The first of the fused operations: optional norm, products with weights, and an epilogue.
    Project(Project<T>),
    /// QK-norm, RoPE on queries and keys, and the writes of keys and values into their caches.
    RopeKv(RopeKv<T>),
}

/// [`Op::Gather`]: `out [M, rest..]` from the table `[A.., rest..]`, as `F32` unless the table
/// contains integers. A negative index yields zeroes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gather<T = View> {
    pub table: T,
    /// One index tensor `[M]` per leading axis, at most [`MAX_INDICES`].
    pub indices: Vec<T>,
    pub out: T,
}

impl<T> Gather<T> {
    pub(crate) fn map<'a, U>(
        &'a self,
        mut read: impl FnMut(&'a T) -> U,
        write: impl FnOnce(&'a T) -> U,
    ) -> Gather<U> {
        Gather {
            table: read(&self.table),
            indices: self.indices.iter().map(read).collect(),
            out: write(&self.out),
        }
    }
}

/// [`Op::Sample`]; see [`crate::sample`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<T = View> {
    /// `F32 [N, V]`.
    pub logits: T,
    pub inputs: SampleInputs<T>,
    /// Token ids, `I32 [N]`.
    pub ids: T,
    /// Inputs of the next step, if this step writes them too.
    pub next: Option<NextInputs<T>>,
}

impl<T> Sample<T> {
    pub(crate) fn map<'a, U>(
        &'a self,
        mut read: impl FnMut(&'a T) -> U,
        mut write: impl FnMut(&'a T) -> U,
    ) -> Sample<U> {
        Sample {
            logits: read(&self.logits),
            inputs: self.inputs.map(read),
            ids: write(&self.ids),
            next: self.next.as_ref().map(|next| NextInputs {
                tokens: write(&next.tokens),
                positions: write(&next.positions),
            }),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleInputs<T = View> {
    /// `F32 [N]`.
    pub temperature: T,
    /// `I32 [N]`.
    pub top_k: T,
    /// `F32 [N]`.
    pub top_p: T,
    /// `F32 [N]`; see [`crate::sample::Sampling::min_p`].
    pub min_p: T,
    /// `I32 [N, 2]`: low and high half.
    pub seed: T,
    /// `I32 [N]`.
    pub positions: T,
    /// Logit edits and masks, `I32 [N, A]`: one [`crate::sample::Adjustment`] per row.
    pub adjustments: Option<T>,
}

impl<T> SampleInputs<T> {
    fn map<'a, U>(&'a self, mut f: impl FnMut(&'a T) -> U) -> SampleInputs<U> {
        SampleInputs {
            temperature: f(&self.temperature),
            top_k: f(&self.top_k),
            top_p: f(&self.top_p),
            min_p: f(&self.min_p),
            seed: f(&self.seed),
            positions: f(&self.positions),
            adjustments: self.adjustments.as_ref().map(f),
        }
    }
}

/// Mailboxes that turn a decode step's results into the next step's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextInputs<T = View> {
    /// Receives the sampled tokens.
    pub tokens: T,
    /// Receives every position plus one.
    pub positions: T,
}

/// Most leading axes that a gather or scatter indexes.
pub const MAX_INDICES: usize = 3;

impl<T> Op<T> {
    /// The same operation with other operands. `read` maps the operands that it reads and `write`
    /// those that it writes, in the order of [`Op::reads`] and [`Op::writes`].
    #[must_use]
    pub fn map<'a, U>(
        &'a self,
        mut read: impl FnMut(&'a T) -> U,
        mut write: impl FnMut(&'a T) -> U,
    ) -> Op<U> {
        match self {
            Self::Unary { op, x, out } => Op::Unary { op: *op, x: read(x), out: write(out) },
            Self::Binary { op, a, b, out } => {
                Op::Binary { op: *op, a: read(a), b: read(b), out: write(out) }
            }
            Self::Where { condition, a, b, out } => {
                Op::Where { condition: read(condition), a: read(a), b: read(b), out: write(out) }
            }
            Self::Cast { x, out } => Op::Cast { x: read(x), out: write(out) },
            Self::Copy { x, out } => Op::Copy { x: read(x), out: write(out) },
            Self::Reduce { op, axis, x, out } => {
                Op::Reduce { op: *op, axis: *axis, x: read(x), out: write(out) }
            }
            Self::Pad { axis, before, x, out } => {
                Op::Pad { axis: *axis, before: *before, x: read(x), out: write(out) }
            }
            Self::Iota { out } => Op::Iota { out: write(out) },
            Self::MatMul { a, b, out } => Op::MatMul { a: read(a), b: read(b), out: write(out) },
            Self::TopK { x, out } => Op::TopK { x: read(x), out: write(out) },
            Self::Gather(gather) => Op::Gather(gather.map(read, write)),
            Self::Scatter { indices, values, table } => Op::Scatter {
                indices: indices.iter().map(&mut read).collect(),
                values: read(values),
                table: write(table),
            },
            Self::ScatterAdd { indices, values, out } => Op::ScatterAdd {
                indices: indices.iter().map(&mut read).collect(),
                values: read(values),
                out: write(out),
            },
            Self::Assign { value, mailbox } => {
                Op::Assign { value: read(value), mailbox: write(mailbox) }
            }
            Self::Sample(sample) => Op::Sample(sample.map(read, write)),
            Self::Normalise(Normalise { x, norm, out }) => {
                Op::Normalise(Normalise { x: read(x), norm: norm.map(read), out: write(out) })
            }
            Self::Bias { x, bias, out } => {
                Op::Bias { x: read(x), bias: read(bias), out: write(out) }
            }
            Self::Scale { factor, x, out } => {
                Op::Scale { factor: *factor, x: read(x), out: write(out) }
            }
            Self::SoftCap { cap, x, out } => Op::SoftCap { cap: *cap, x: read(x), out: write(out) },
            Self::Activate { activation, x, out } => {
                Op::Activate { activation: *activation, x: read(x), out: write(out) }
            }
            Self::Gate { gate, x, out } => {
                Op::Gate { gate: read(gate), x: read(x), out: write(out) }
            }
            Self::Glu { activation, gate, up, out } => {
                Op::Glu { activation: *activation, gate: read(gate), up: read(up), out: write(out) }
            }
            Self::RopeTable(RopeTable { magnitude, positions, frequencies, out }) => {
                Op::RopeTable(RopeTable {
                    magnitude: *magnitude,
                    positions: read(positions),
                    frequencies: read(frequencies),
                    out: write(out),
                })
            }
            Self::Rope { style, x, table, out } => {
                Op::Rope { style: *style, x: read(x), table: read(table), out: write(out) }
            }
            Self::KvWrite { rows, values, cache, ring } => Op::KvWrite {
                rows: rows.map(&mut read),
                values: read(values),
                cache: write(cache),
                ring: *ring,
            },
            Self::Attention(attention) => Op::Attention(attention.map(read, write)),
            Self::ShortConv(conv) => Op::ShortConv(conv.map(read, write)),
            Self::DeltaRule(rule) => Op::DeltaRule(rule.map(read, write)),
            Self::Mixture(mixture) => Op::Mixture(mixture.map(read, write)),
            Self::GatedDelta(delta) => Op::GatedDelta(delta.map(read, write)),
            Self::Conv(conv) => Op::Conv(conv.map(read, write)),
            Self::Project(Project { x, norm, product }) => Op::Project(Project {
                x: read(x),
                norm: norm.as_ref().map(|norm| norm.map(&mut read)),
                product: product.map(&mut read, write),
            }),
            Self::RopeKv(rope) => Op::RopeKv(rope.map(read, write)),
        }
    }

    #[must_use]
    pub fn reads(&self) -> Vec<&T> {
        let mut reads = Vec::new();
        let _: Op<()> = self.map(|operand| reads.push(operand), |_| ());
        reads
    }

    #[must_use]
    pub fn writes(&self) -> Vec<&T> {
        let mut writes = Vec::new();
        let _: Op<()> = self.map(|_| (), |operand| writes.push(operand));
        writes
    }

    /// State that the operation carries from step to step, other than a KV cache.
    #[must_use]
    pub const fn memory(&self) -> Option<&Recurrence<T>> {
        match self {
            Self::ShortConv(ShortConv { memory, .. })
            | Self::DeltaRule(DeltaRule { memory, .. })
            | Self::GatedDelta(GatedDelta { memory, .. }) => Some(memory),
            _ => None,
        }
    }

    /// False for composites and fused operations.
    #[must_use]
    pub const fn is_primitive(&self) -> bool {
        !matches!(
            self,
            Self::Sample(Sample { next: Some(_), .. })
                | Self::Normalise(_)
                | Self::Bias { .. }
                | Self::Scale { .. }
                | Self::SoftCap { .. }
                | Self::Activate { .. }
                | Self::Glu { .. }
                | Self::Gate { .. }
                | Self::RopeTable(_)
                | Self::Rope { .. }
                | Self::KvWrite { .. }
                | Self::Attention(_)
                | Self::Mixture(_)
                | Self::GatedDelta(_)
                | Self::Conv(_)
                | Self::Project(_)
                | Self::RopeKv(_)
        )
    }

    /// Short name for tables and logs.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Unary { op, .. } => format!("{op:?}").to_lowercase(),
            Self::Binary { op, .. } => format!("{op:?}").to_lowercase(),
            Self::Where { .. } => "where".into(),
            Self::Cast { .. } => "cast".into(),
            Self::Copy { .. } => "copy".into(),
            Self::Reduce { op, .. } => format!("reduce-{op:?}").to_lowercase(),
            Self::Pad { .. } => "pad".into(),
            Self::Iota { .. } => "iota".into(),
            Self::MatMul { .. } => "matmul".into(),
            Self::TopK { .. } => "top-k".into(),
            Self::Gather(_) => "gather".into(),
            Self::Scatter { .. } => "scatter".into(),
            Self::ScatterAdd { .. } => "scatter-add".into(),
            Self::Assign { .. } => "assign".into(),
            Self::Sample(Sample { next: None, .. }) => "sample".into(),
            Self::Sample(_) => "sample+advance".into(),
            Self::Normalise(Normalise { norm, .. }) => norm.kind.name().into(),
            Self::Bias { .. } => "bias".into(),
            Self::Scale { .. } => "scale".into(),
            Self::SoftCap { .. } => "soft-cap".into(),
            Self::Activate { activation, .. } => activation.name().into(),
            Self::Glu { activation, .. } => activation.glu().into(),
            Self::Gate { .. } => "gate".into(),
            Self::RopeTable(_) => "rope-table".into(),
            Self::Rope { .. } => "rope".into(),
            Self::KvWrite { .. } => "kv-write".into(),
            Self::Attention(_) => "attention".into(),
            Self::ShortConv(_) => "short-conv".into(),
            Self::DeltaRule(_) => "delta-rule".into(),
            Self::Mixture(_) => "mixture".into(),
            Self::GatedDelta(_) => "gated-delta".into(),
            Self::Conv(_) => "conv".into(),
            Self::Project(Project { norm, product, .. }) => {
                let norm = if norm.is_some() { "norm+" } else { "" };
                match product {
                    Product::Each(each) if each.len() > 1 => {
                        format!("{norm}projectx{}", each.len())
                    }
                    Product::Each(_) => format!("{norm}project"),
                    Product::Glu { activation, .. } => {
                        format!("{norm}projectx2+{}", activation.glu())
                    }
                    Product::Residual { .. } => format!("{norm}project+residual"),
                }
            }
            Self::RopeKv(RopeKv { norm: None, .. }) => "rope+kv".into(),
            Self::RopeKv(_) => "qknorm+rope+kv".into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::{Caches, QkNorm, Queries, Scores};
    use crate::project::{Linear, Norm, NormKind};

    /// `orinctl plan` prints these lists, and scratch buffers are allocated in their order.
    #[test]
    fn operands_are_listed_in_order() {
        let rows = Rows { slots: "slots", positions: "positions" };
        let caches = Caches { keys: "keys", values: "values", ring: false };
        let eps = Scalar::new(1e-5);
        let rope = RopeKv {
            style: RopeStyle::Interleaved,
            queries: Some(Queries { q: "q", out: "rotated" }),
            k: "k",
            v: "v",
            table: "table",
            rows,
            norm: Some(QkNorm { q: Some("q norm"), k: "k norm", eps }),
            caches,
        };
        let norm = Norm { kind: NormKind::Layer, weight: "norm", bias: Some("shift"), eps };
        let project = |product| Op::Project(Project { x: "x", norm: Some(norm), product });
        let linear = |weight, bias, out| Linear { weight, bias, activation: None, out };
        let sample = Op::Sample(Sample {
            logits: "logits",
            inputs: SampleInputs {
                temperature: "temperature",
                top_k: "top k",
                top_p: "top p",
                min_p: "min p",
                seed: "seed",
                positions: "positions",
                adjustments: Some("adjustments"),
            },
            ids: "ids",
            next: Some(NextInputs { tokens: "tokens", positions: "positions" }),
        });
        let bare = RopeKv { queries: None, norm: None, ..rope.clone() };
        for (op, reads, writes) in [
            (Op::RopeKv(rope), "q k v table slots positions q_norm k_norm", "rotated keys values"),
            (Op::RopeKv(bare), "k v table slots positions", "keys values"),
            (
                project(Product::Each(vec![linear("a", Some("c"), "A"), linear("b", None, "B")])),
                "x norm shift a c b",
                "A B",
            ),
            (
                project(Product::Glu {
                    activation: Activation::Gelu,
                    gate: "gate",
                    up: "up",
                    out: "y",
                }),
                "x norm shift gate up",
                "y",
            ),
            (
                project(Product::Residual {
                    weight: "w",
                    bias: Some("b"),
                    residual: "r",
                    out: "y",
                }),
                "x norm shift w b r",
                "y",
            ),
            (
                sample,
                "logits temperature top_k top_p min_p seed positions adjustments",
                "ids tokens positions",
            ),
            (
                Op::Attention(Attention {
                    scores: Scores::scaled(1.0),
                    q: "q",
                    caches,
                    rows,
                    sinks: Some("sinks"),
                    out: "y",
                }),
                "q keys values slots positions sinks",
                "y",
            ),
            (
                Op::KvWrite { rows, values: "v", cache: "cache", ring: false },
                "slots positions v",
                "cache",
            ),
            (Op::Scatter { indices: vec!["i", "j"], values: "v", table: "t" }, "i j v", "t"),
            (Op::Gather(Gather { table: "t", indices: vec!["i", "j"], out: "y" }), "t i j", "y"),
        ] {
            let list = |operands: Vec<&&str>| {
                operands.iter().map(|name| name.replace(' ', "_")).collect::<Vec<_>>().join(" ")
            };
            assert_eq!(list(op.reads()), reads, "{}", op.name());
            assert_eq!(list(op.writes()), writes, "{}", op.name());
        }
    }
}
