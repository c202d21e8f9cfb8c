//! Operations of a plan, with their operands by name. [`Op::map`] is the only list of what an operation
//! reads and writes: whatever goes over operands (liveness, the arena, bytes, printing) is derived from it.

use crate::{Conv, DeltaRule, GatedDelta, Mixture, Recurrence, Scalar, ShortConv, View};

/// Elementwise functions of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// `-x`
    Neg,
    /// `e^x`
    Exp,
    /// Natural logarithm; `ln 0` is minus infinity.
    Ln,
    Sqrt,
    /// `1 / x`
    Recip,
    /// Sine of an angle in radians.
    Sin,
    /// Cosine of an angle in radians.
    Cos,
    /// The largest integer that is not above `x`.
    Floor,
}

/// Elementwise functions of two operands: of `f32` but for those that shift or look at bits, of `i32` all, wrapping.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Binary {
    /// `a + b`
    Add,
    /// `a - b`
    Sub,
    /// `a * b`
    Mul,
    /// `max(a, b)`
    Max,
    /// 1 where `a <= b`, else 0; `F32` whatever the operands are.
    LessEqual,
    /// What is left of `a` when `b` is taken off as often as it goes; the sign is that of `a`.
    Rem,
    And,
    Or,
    Xor,
    /// `a << b`, of `b` the lowest five bits.
    ShiftLeft,
    /// `a >> b`, of `b` the lowest five bits; the sign comes in from the left.
    ShiftRight,
}

impl Binary {
    /// Whether its operands are integers.
    #[must_use]
    pub const fn is_of_bits(self) -> bool {
        matches!(self, Self::And | Self::Or | Self::Xor | Self::ShiftLeft | Self::ShiftRight)
    }

    /// Of integers. [`Binary::LessEqual`] as an integer too.
    #[must_use]
    pub const fn of_ints(self, a: i32, b: i32) -> i32 {
        match self {
            Self::Add => a.wrapping_add(b),
            Self::Sub => a.wrapping_sub(b),
            Self::Mul => a.wrapping_mul(b),
            Self::Max => {
                if a > b {
                    a
                } else {
                    b
                }
            }
            Self::LessEqual => (a <= b) as i32,
            // As often as zero goes into anything, nothing is left.
            Self::Rem => match b {
                0 => 0,
                _ => a.wrapping_rem(b),
            },
            Self::And => a & b,
            Self::Or => a | b,
            Self::Xor => a ^ b,
            Self::ShiftLeft => a.wrapping_shl(b as u32),
            Self::ShiftRight => a.wrapping_shr(b as u32),
        }
    }
}

/// Reductions along one axis, which stays with extent 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    Sum,
    Max,
}

/// How rotary embedding pairs the elements of a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RopeStyle {
    /// Element `2i` with `2i + 1` (GGUF `llama`).
    Interleaved,
    /// Element `i` with `i + head_dim / 2` (GGUF `qwen3`).
    HalfSplit,
}

/// Functions that bend what lies between two products.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Activation {
    /// `x * sigmoid(x)`
    Silu,
    /// GELU by tanh, as ggml's `gelu` and PyTorch's `tanh` variant have it:
    /// `x / 2 * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 x^3)))`.
    Gelu,
}

impl Activation {
    /// Coefficients `[a, b]` of the angle: both functions are `x * sigmoid(a x + b x^3)`, as
    /// `1 + tanh y = 2 sigmoid(2 y)`.
    #[must_use]
    pub const fn angle(self) -> [f32; 2] {
        match self {
            Self::Silu => [1.0, 0.0],
            // 2 sqrt(2 / pi), and 0.044715 times it.
            Self::Gelu => [1.595_769, 0.071_354_814],
        }
    }

    const fn name(self) -> &'static str {
        match self {
            Self::Silu => "silu",
            Self::Gelu => "gelu",
        }
    }

    /// Of a product with a gate: SwiGLU, GeGLU.
    const fn glu(self) -> &'static str {
        match self {
            Self::Silu => "swiglu",
            Self::Gelu => "geglu",
        }
    }
}

/// What a step does, and to what. `T` is what an operand is: a [`View`] in a plan, a tensor in a graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op<T = View> {
    // Primitives.
    Unary {
        op: Unary,
        x: T,
        out: T,
    },
    /// Elementwise, two operands of equal shape.
    Binary {
        op: Binary,
        a: T,
        b: T,
        out: T,
    },
    /// Elementwise: `a` where the condition is not 0, `b` elsewhere.
    Where {
        condition: T,
        a: T,
        b: T,
        out: T,
    },
    /// Conversion to the type of `out` (rounding to nearest, ties to even).
    Cast {
        x: T,
        out: T,
    },
    /// A strided view made contiguous.
    Copy {
        x: T,
        out: T,
    },
    /// Reduction along `axis`, which stays with extent 1.
    Reduce {
        op: Reduce,
        axis: usize,
        x: T,
        out: T,
    },
    /// Zeroes before `axis` up to `before`, then `x`, then zeroes to the extent of `out`.
    Pad {
        axis: usize,
        before: usize,
        x: T,
        out: T,
    },
    /// Writes `0, 1, 2, ...`
    Iota {
        out: T,
    },
    /// `a [.., M, K]` times `b [.., N, K]` transposed: `[.., M, N]`. `b` may be quantised (then it is a
    /// whole matrix).
    MatMul {
        a: T,
        b: T,
        out: T,
    },
    /// Indices of the greatest elements of each row of `x [M, E]`, best first: `I32 [M, K]`; see [`crate::top_k`].
    TopK {
        x: T,
        out: T,
    },
    Gather(Gather<T>),
    /// Writes `values [M, rest..]` into the table `[A.., rest..]`, one index tensor `[M]` per leading axis.
    /// A row with a negative index is skipped.
    Scatter {
        indices: Vec<T>,
        values: T,
        table: T,
    },
    /// Zeroes `[A.., rest..]`, to whose rows those of `values [M, rest..]` are added, one index tensor `[M]` per
    /// leading axis. A row with a negative index is skipped.
    ScatterAdd {
        indices: Vec<T>,
        values: T,
        out: T,
    },
    Assign {
        value: T,
        mailbox: T,
    },
    ShortConv(ShortConv<T>),
    DeltaRule(DeltaRule<T>),
    /// Tokens chosen from logits. Fused when it has [`Sample::next`].
    Sample(Sample<T>),

    // Composites: operations that `graph` defines in primitives; that definition is their meaning.
    Normalise(Normalise<T>),
    /// `x [.., D]` plus a value for each column.
    Bias {
        x: T,
        bias: T,
        out: T,
    },
    /// `x * factor`
    Scale {
        factor: Scalar,
        x: T,
        out: T,
    },
    /// `cap * tanh(x / cap)`
    SoftCap {
        cap: Scalar,
        x: T,
        out: T,
    },
    Activate {
        activation: Activation,
        x: T,
        out: T,
    },
    /// A gated linear unit's middle: `activation(gate) * up`.
    Glu {
        activation: Activation,
        gate: T,
        up: T,
        out: T,
    },
    /// `x [M, N]` times the sigmoid of a gate, `[M, N]` or `[M, 1]`.
    Gate {
        gate: T,
        x: T,
        out: T,
    },
    RopeTable(RopeTable<T>),
    /// The first R of each head's D values, `x [M, H, D]`, rotated by the table `[M, 2, R/2]`; the others as
    /// they are.
    Rope {
        style: RopeStyle,
        x: T,
        table: T,
        out: T,
    },
    /// Writes `values [M, KVH, D]` into the cache `[slots, C, KVH, D]`, converted to the cache's type.
    /// Negative slots are skipped.
    KvWrite {
        rows: Rows<T>,
        values: T,
        cache: T,
        /// See [`Caches::ring`].
        ring: bool,
    },
    Attention(Attention<T>),
    Mixture(Mixture<T>),
    GatedDelta(GatedDelta<T>),
    Conv(Conv<T>),

    // Fused.
    /// A norm, products with weights, what follows them.
    Project(Project<T>),
    /// QK-norm, RoPE on queries and keys, keys and values into their caches.
    RopeKv(RopeKv<T>),
}

/// Where each row of tokens lives: `I32 [M]` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rows<T = View> {
    /// KV slot; negative for padding rows.
    pub slots: T,
    pub positions: T,
}

/// Key and value cache of one layer, `[slots, C, KVH, D]` each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caches<T = View> {
    pub keys: T,
    pub values: T,
    /// Position p lies at p modulo C: only those of a window are read, and C is no less than a window and a chunk.
    pub ring: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NormKind {
    /// RMSNorm: `x / sqrt(mean(x^2) + eps)`.
    Rms,
    /// LayerNorm: the mean is taken off `x` first.
    Layer,
}

/// What a norm needs beside its operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Norm<T = View> {
    pub kind: NormKind,
    /// Factor of each column, `F32 [D]`.
    pub weight: T,
    /// Added to each column after it, `F32 [D]`.
    pub bias: Option<T>,
    /// Added to the mean square.
    pub eps: Scalar,
}

/// [`Op::Gather`]: `out [M, rest..]` from the table `[A.., rest..]`, as `F32` unless the table holds integers.
/// A negative index gives zeroes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gather<T = View> {
    pub table: T,
    /// One index tensor `[M]` per leading axis, at most [`MAX_INDICES`].
    pub indices: Vec<T>,
    pub out: T,
}

/// [`Op::Sample`]; see [`crate::sample`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample<T = View> {
    /// `F32 [N, V]`.
    pub logits: T,
    pub inputs: SampleInputs<T>,
    /// Token ids, `I32 [N]`.
    pub ids: T,
    /// The next step's inputs, where this step writes them too.
    pub next: Option<NextInputs<T>>,
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
    /// `I32 [N, A]`: what is done to logits first, each row as [`crate::sample::Adjustment`] lies in it.
    pub adjustments: Option<T>,
}

/// The mailboxes that make a decode step's results the next one's inputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NextInputs<T = View> {
    /// Gets the sampled tokens.
    pub tokens: T,
    /// Gets every position plus one.
    pub positions: T,
}

/// [`Op::Normalise`]: over the last axis of `x [.., D]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Normalise<T = View> {
    pub x: T,
    pub norm: Norm<T>,
    pub out: T,
}

/// [`Op::RopeTable`]: `out [M, 2, D/2]` holds cosines, then sines, of `position * frequency`, both times
/// `magnitude`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RopeTable<T = View> {
    /// Factor on cosine and sine (1 but for YaRN).
    pub magnitude: Scalar,
    /// `I32 [M]`.
    pub positions: T,
    /// `F32 [D/2]`.
    pub frequencies: T,
    pub out: T,
}

/// How the product of a query and a key becomes a score, and which positions have one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scores {
    /// Factor on the products.
    pub scale: Scalar,
    /// Another factor, which grows with the row's position.
    pub temperature: Option<Temperature>,
    /// Soft cap of what comes out.
    pub cap: Option<Scalar>,
    /// Positions that a row attends to, its own the last; all up to it if there is none.
    pub window: Option<usize>,
}

impl Scores {
    /// Nothing but a factor.
    #[must_use]
    pub const fn scaled(scale: f32) -> Self {
        Self { scale: Scalar::new(scale), temperature: None, cap: None, window: None }
    }

    /// Positions of a band of `context` that `chunk` neighbouring rows attend to, at most.
    #[must_use]
    pub fn band(&self, context: usize, chunk: usize) -> usize {
        self.window.map_or(context, |window| context.min(window.saturating_add(chunk - 1)))
    }
}

/// `1 + slope * ln(1 + floor(position / length))`: sharper attention beyond the context of the training.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Temperature {
    pub slope: Scalar,
    pub length: usize,
}

/// [`Op::Attention`]: softmax attention over positions `0..=position` of the row's slot, or the last of them, each
/// KV head serving `H / KVH` query heads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attention<T = View> {
    pub scores: Scores,
    /// `[M, H, D]`, as is `out`.
    pub q: T,
    pub caches: Caches<T>,
    pub rows: Rows<T>,
    /// A score of each head that takes weight and has no value, `F32 [H]`.
    pub sinks: Option<T>,
    pub out: T,
}

/// [`Op::Project`]: products of one operand with weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Project<T = View> {
    pub x: T,
    /// Norm of `x` before the products.
    pub norm: Option<Norm<T>>,
    pub product: Product<T>,
}

/// The weights of an [`Op::Project`], and what becomes of their products.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Product<T = View> {
    /// A result for each weight, at most [`MAX_WEIGHTS`].
    Each(Vec<Linear<T>>),
    /// `activation(x gate^T) * (x up^T)`.
    Glu { activation: Activation, gate: T, up: T, out: T },
    /// `residual + (x weight^T + bias)`.
    Residual { weight: T, bias: Option<T>, residual: T, out: T },
}

/// `activation(x weight^T + bias)`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Linear<T = View> {
    pub weight: T,
    pub bias: Option<T>,
    pub activation: Option<Activation>,
    pub out: T,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RopeKv<T = View> {
    pub style: RopeStyle,
    /// Absent where a step only fills the caches.
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

/// Queries `[M, H, D]` as they come, and rotated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Queries<T = View> {
    pub q: T,
    pub out: T,
}

/// RMSNorm of every head before its rotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QkNorm<T = View> {
    /// Present where there are queries.
    pub q: Option<T>,
    pub k: T,
    /// Added to the mean square.
    pub eps: Scalar,
}

/// Most leading axes that a gather or scatter indexes.
pub const MAX_INDICES: usize = 3;

/// Most weights of an [`Op::Project`]: queries, keys and values.
pub const MAX_WEIGHTS: usize = 3;

impl<T> Op<T> {
    /// The same operation on other operands: what it reads goes through `read`, what it writes through
    /// `write`, each in the order of [`Op::reads`] and [`Op::writes`].
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
            Self::Gather(Gather { table, indices, out }) => Op::Gather(Gather {
                table: read(table),
                indices: indices.iter().map(read).collect(),
                out: write(out),
            }),
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
            Self::Sample(Sample { logits, inputs, ids, next }) => Op::Sample(Sample {
                logits: read(logits),
                inputs: SampleInputs {
                    temperature: read(&inputs.temperature),
                    top_k: read(&inputs.top_k),
                    top_p: read(&inputs.top_p),
                    min_p: read(&inputs.min_p),
                    seed: read(&inputs.seed),
                    positions: read(&inputs.positions),
                    adjustments: inputs.adjustments.as_ref().map(&mut read),
                },
                ids: write(ids),
                next: next.as_ref().map(|NextInputs { tokens, positions }| NextInputs {
                    tokens: write(tokens),
                    positions: write(positions),
                }),
            }),
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
            Self::Attention(Attention { scores, q, caches, rows, sinks, out }) => {
                Op::Attention(Attention {
                    scores: *scores,
                    q: read(q),
                    caches: caches.map(&mut read),
                    rows: rows.map(&mut read),
                    sinks: sinks.as_ref().map(read),
                    out: write(out),
                })
            }
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
            Self::RopeKv(RopeKv { style, queries, k, v, table, rows, norm, caches }) => {
                Op::RopeKv(RopeKv {
                    style: *style,
                    queries: queries
                        .as_ref()
                        .map(|Queries { q, out }| Queries { q: read(q), out: write(out) }),
                    k: read(k),
                    v: read(v),
                    table: read(table),
                    rows: rows.map(&mut read),
                    norm: norm.as_ref().map(|QkNorm { q, k, eps }| QkNorm {
                        q: q.as_ref().map(&mut read),
                        k: read(k),
                        eps: *eps,
                    }),
                    caches: caches.map(write),
                })
            }
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

    /// What it remembers from step to step, if that is not a cache.
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

impl<T> Rows<T> {
    pub(crate) fn map<'a, U>(&'a self, mut f: impl FnMut(&'a T) -> U) -> Rows<U> {
        Rows { slots: f(&self.slots), positions: f(&self.positions) }
    }
}

impl<T> Caches<T> {
    fn map<'a, U>(&'a self, mut f: impl FnMut(&'a T) -> U) -> Caches<U> {
        Caches { keys: f(&self.keys), values: f(&self.values), ring: self.ring }
    }
}

impl NormKind {
    const fn name(self) -> &'static str {
        match self {
            Self::Rms => "rms-norm",
            Self::Layer => "layer-norm",
        }
    }
}

impl<T> Norm<T> {
    fn map<'a, U>(&'a self, mut f: impl FnMut(&'a T) -> U) -> Norm<U> {
        let (kind, eps) = (self.kind, self.eps);
        Norm { kind, weight: f(&self.weight), bias: self.bias.as_ref().map(f), eps }
    }
}

impl<T> Product<T> {
    fn map<'a, U>(
        &'a self,
        mut read: impl FnMut(&'a T) -> U,
        mut write: impl FnMut(&'a T) -> U,
    ) -> Product<U> {
        match self {
            Self::Each(each) => {
                let linear = |l: &'a Linear<T>| Linear {
                    weight: read(&l.weight),
                    bias: l.bias.as_ref().map(&mut read),
                    activation: l.activation,
                    out: write(&l.out),
                };
                Product::Each(each.iter().map(linear).collect())
            }
            Self::Glu { activation, gate, up, out } => Product::Glu {
                activation: *activation,
                gate: read(gate),
                up: read(up),
                out: write(out),
            },
            Self::Residual { weight, bias, residual, out } => Product::Residual {
                weight: read(weight),
                bias: bias.as_ref().map(&mut read),
                residual: read(residual),
                out: write(out),
            },
        }
    }

    /// The matrices, in the order in which a step reads them.
    #[must_use]
    pub fn weights(&self) -> Vec<&T> {
        match self {
            Self::Each(each) => each.iter().map(|linear| &linear.weight).collect(),
            Self::Glu { gate, up, .. } => vec![gate, up],
            Self::Residual { weight, .. } => vec![weight],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What `orinctl plan` prints, and the order in which scratch comes to life, hangs on these lists.
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
