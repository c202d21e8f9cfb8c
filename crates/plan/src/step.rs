//! Steps of a plan: the operation, what it reads and writes, what it costs.

use super::{BufferId, View};

/// Elementwise functions of one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Unary {
    /// `-x`
    Neg,
    /// `e^x`
    Exp,
    /// Natural logarithm; `ln 0` is minus infinity.
    Ln,
    /// Square root.
    Sqrt,
    /// `1 / x`
    Recip,
    /// Sine of an angle in radians.
    Sin,
    /// Cosine of an angle in radians.
    Cos,
}

/// Elementwise functions of two operands.
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
    /// 1 where `a <= b`, else 0.
    LessEqual,
}

/// Reductions along one axis, which stays with extent 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduce {
    /// Sum of the elements.
    Sum,
    /// Largest element.
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

/// A small floating-point attribute (an epsilon, a scale) that compares by its bits.
pub type Attribute = super::Scalar;

/// A named operation that `graph` defines in primitives; that definition is its meaning.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Composite {
    /// Reads `x [.., D]`, `weight [D]`; writes `x / sqrt(mean(x^2) + eps) * weight`.
    RmsNorm {
        /// Added to the mean square.
        eps: Attribute,
    },
    /// Reads `positions [M]`, `frequencies [D/2]`; writes `[M, 2, D/2]`: cosines, then sines, of
    /// `position * frequency`, both times `magnitude`.
    RopeTable {
        /// Factor on cosine and sine (1 but for YaRN).
        magnitude: Attribute,
    },
    /// Reads `x [M, H, D]` and the table; writes the rotated `x`.
    Rope {
        /// Which elements form a pair.
        style: RopeStyle,
    },
    /// Reads `gate`, `up`; writes `gate * sigmoid(gate) * up`.
    SwiGlu,
    /// Reads `slots [M]`, `positions [M]`, `values [M, KVH, D]`; writes them into the cache
    /// `[slots, C, KVH, D]`, converted to the cache's type. Negative slots are skipped.
    KvWrite,
    /// Reads `q [M, H, D]`, the key and value caches `[slots, C, KVH, D]`, `slots [M]`,
    /// `positions [M]`; writes `[M, H, D]`: softmax attention over positions `0..=position` of the
    /// row's slot, each KV head serving `H / KVH` query heads.
    Attention {
        /// Factor on the scores.
        scale: Attribute,
    },
}

/// What follows the product inside a fused projection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Epilogue {
    /// One output per weight.
    None,
    /// Two weights, one output: `silu(x W0^T) * (x W1^T)`.
    SwiGlu,
    /// One weight; adds the last operand read.
    Residual,
}

/// What a step does.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Op {
    /// Elementwise, one operand.
    Unary(Unary),
    /// Elementwise, two operands of equal shape.
    Binary(Binary),
    /// Conversion to the type of the written buffer (rounding to nearest, ties to even).
    Cast,
    /// A strided view made contiguous.
    Copy,
    /// Reduction along `axis`.
    Reduce {
        /// The function.
        op: Reduce,
        /// The axis, kept with extent 1.
        axis: usize,
    },
    /// Zeroes before `axis` up to `before`, then the operand, then zeroes to the written extent.
    Pad {
        /// The padded axis.
        axis: usize,
        /// Zeroes in front.
        before: usize,
    },
    /// Writes `0, 1, 2, ...`
    Iota,
    /// Reads `a [.., M, K]`, `b [.., N, K]`; writes `[.., M, N]`. `b` may be quantised (then it is a
    /// whole matrix).
    MatMul,
    /// Reads the table `[A.., rest..]` and one index tensor `[M]` per leading axis; writes
    /// `[M, rest..]`, as `F32` unless the table holds integers. A negative index gives zeroes.
    Gather,
    /// Reads one index tensor `[M]` per leading axis, then values `[M, rest..]`; writes them into
    /// the table. A row with a negative index is skipped.
    Scatter,
    /// Overwrites a mailbox with the operand.
    Assign,
    /// Reads `logits [N, V]`, `temperature [N]`, `top_k [N]`, `top_p [N]`, `seed [N, 2]`,
    /// `positions [N]`; writes token ids `[N]`. See [`super::sample`].
    Sample,
    /// A whole composite as one step.
    Composite(Composite),
    /// Fused: optional RMSNorm of `x`, one to three projections of it, an epilogue. Reads `x`,
    /// (norm weight), weights.., (residual); writes one output per weight, or one.
    Project {
        /// Epsilon of the norm, when there is one.
        norm: Option<Attribute>,
        /// Number of weights.
        weights: usize,
        /// What follows.
        epilogue: Epilogue,
    },
    /// Fused: optional QK-norm, RoPE on queries and keys, keys and values into their caches.
    /// Reads (`q`), `k`, `v` `[M, heads, D]`, the RoPE table, `slots`, `positions`, (q norm), (k norm
    /// weight); writes (rotated `q`), key cache, value cache.
    RopeKv {
        /// Which elements form a pair.
        style: RopeStyle,
        /// Epsilon of the QK-norm, when there is one.
        norm: Option<Attribute>,
        /// Whether there are queries: a step that only fills the caches has none.
        queries: bool,
    },
    /// Fused: [`Op::Sample`], and the next step's inputs: the sampled tokens into the token
    /// mailbox, every position plus one. Reads as `Sample`; writes ids, tokens, positions.
    SampleAdvance,
}

impl Op {
    /// Short name for tables and logs.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Unary(op) => format!("{op:?}").to_lowercase(),
            Self::Binary(op) => format!("{op:?}").to_lowercase(),
            Self::Cast => "cast".into(),
            Self::Copy => "copy".into(),
            Self::Reduce { op, .. } => format!("reduce-{op:?}").to_lowercase(),
            Self::Pad { .. } => "pad".into(),
            Self::Iota => "iota".into(),
            Self::MatMul => "matmul".into(),
            Self::Gather => "gather".into(),
            Self::Scatter => "scatter".into(),
            Self::Assign => "assign".into(),
            Self::Sample => "sample".into(),
            Self::Composite(c) => c.name().into(),
            Self::Project { norm, weights, epilogue } => {
                let mut name = String::new();
                if norm.is_some() {
                    name.push_str("norm+");
                }
                name.push_str("project");
                if *weights > 1 {
                    name.push_str(&format!("x{weights}"));
                }
                match epilogue {
                    Epilogue::None => {}
                    Epilogue::SwiGlu => name.push_str("+swiglu"),
                    Epilogue::Residual => name.push_str("+residual"),
                }
                name
            }
            Self::RopeKv { norm, .. } => {
                if norm.is_some() { "qknorm+rope+kv" } else { "rope+kv" }.into()
            }
            Self::SampleAdvance => "sample+advance".into(),
        }
    }
}

impl Composite {
    /// Short name for tables and logs.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::RmsNorm { .. } => "rms-norm",
            Self::RopeTable { .. } => "rope-table",
            Self::Rope { .. } => "rope",
            Self::SwiGlu => "swiglu",
            Self::KvWrite => "kv-write",
            Self::Attention { .. } => "attention",
        }
    }
}

/// What a step moves and computes, at the plan's full context band.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes of weights read.
    pub weight_bytes: u64,
    /// Bytes of state (KV cache) read or written.
    pub state_bytes: u64,
    /// Bytes of everything else read or written.
    pub other_bytes: u64,
    /// Floating-point operations (a multiply-add counts two).
    pub flops: u64,
}

impl Cost {
    /// All bytes moved.
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

impl std::iter::Sum for Cost {
    fn sum<I: Iterator<Item = Self>>(costs: I) -> Self {
        costs.fold(Self::default(), |a, b| a + b)
    }
}

/// One step: an operation over views. Steps run in order; nothing else orders them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Step {
    /// What it does.
    pub op: Op,
    /// Where it stands in the model, for people: `blk.3.attn_q`.
    pub label: String,
    /// Operands, in the order that [`Op`] documents.
    pub reads: Vec<View>,
    /// Results, likewise.
    pub writes: Vec<View>,
    /// The composite this primitive step is a part of.
    pub scope: Option<ScopeId>,
    /// What it moves and computes.
    pub cost: Cost,
}

/// Index into [`super::Plan::scopes`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ScopeId(pub u32);

/// A composite as it stands in an unfused plan: the steps tagged with its id compute `writes` from
/// `reads`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Scope {
    /// Which composite.
    pub composite: Composite,
    /// Operands, in the order that [`Composite`] documents.
    pub reads: Vec<View>,
    /// Its result.
    pub writes: Vec<View>,
}

impl Step {
    /// True when the step reads or writes the buffer.
    #[must_use]
    pub fn touches(&self, buffer: BufferId) -> bool {
        self.reads.iter().chain(&self.writes).any(|view| view.buffer == buffer)
    }
}
