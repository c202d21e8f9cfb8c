//! Which kernels a plan can launch, in which unit and under which name; [`launch`] has the arithmetic of their
//! launches.

mod cache;
pub mod launch;
mod variant;
mod weight;

pub use cache::CacheType;
pub use variant::{InvalidVariant, PROJECT_SPACE, Parameter, ProjectVariant};
pub(crate) use weight::Form;
pub use weight::Weight;

use crate::generated::Generated;
use crate::params::{
    AttentionParams, CombineParams, DeltaRuleParams, ElementwiseParams, EmbedParams, ExpertsParams,
    GatedDeltaParams, GatherParams, GroupParams, MatmulParams, NormParams, ProjectParams,
    QuantiseParams, RopeTableParams, RouteParams, RowsParams, SampleParams, ShortConvParams,
    TensorMatmulParams, TensorParams, TensorRowsParams, TensorTopKParams,
};
use crate::source::Target;

/// What is compiled together, into one cubin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    /// Projections with weights of one type.
    Project(Weight),
    /// Products of many rows with weights of one type.
    Matmul(Weight),
    /// Products with the experts of a mixture, of one type.
    Experts(Weight),
    /// Embeddings of every type.
    Embed,
    /// What stands between projections: of whole rows.
    Rows,
    /// Likewise, of single elements.
    Elementwise,
    /// What stands around a mixture's products.
    Mixture,
    /// Layers that remember in a state of fixed size.
    Recurrent,
    /// RoPE and attention.
    Attention,
    /// Sampling.
    Sample,
    /// Tensor operations, one by one and in groups.
    Tensor,
    /// What tells whether a GPU can be trusted: [`crate::first_light`], none of this catalogue.
    FirstLight,
}

impl Unit {
    /// Every unit.
    pub fn all() -> impl Iterator<Item = Self> {
        let projects = Weight::ALL.into_iter().map(Self::Project);
        let matmul = Weight::ALL.into_iter().map(Self::Matmul);
        let experts = Weight::ALL.into_iter().map(Self::Experts);
        projects.chain(matmul).chain(experts).chain([
            Self::Embed,
            Self::Rows,
            Self::Elementwise,
            Self::Mixture,
            Self::Recurrent,
            Self::Attention,
            Self::Sample,
            Self::Tensor,
            Self::FirstLight,
        ])
    }

    /// The stem of its files.
    #[must_use]
    pub fn name(self) -> String {
        match self {
            Self::Project(weight) => format!("project_{}", weight.lower()),
            Self::Matmul(weight) => format!("matmul_{}", weight.lower()),
            Self::Experts(weight) => format!("experts_{}", weight.lower()),
            Self::Embed => "embed".into(),
            Self::Rows => "rows".into(),
            Self::Elementwise => "elementwise".into(),
            Self::Mixture => "mixture".into(),
            Self::Recurrent => "recurrent".into(),
            Self::Attention => "attention".into(),
            Self::Sample => "sample".into(),
            Self::Tensor => "tensor".into(),
            Self::FirstLight => "first_light".into(),
        }
    }

    /// The types that it reads.
    pub(crate) fn weights(self) -> Vec<Weight> {
        match self {
            Self::Project(weight) | Self::Matmul(weight) | Self::Experts(weight) => vec![weight],
            Self::Embed => Weight::ALL.into(),
            Self::Rows
            | Self::Elementwise
            | Self::Mixture
            | Self::Recurrent
            | Self::Attention
            | Self::Sample
            | Self::Tensor
            | Self::FirstLight => Vec::new(),
        }
    }

    /// The header that its kernels come from.
    #[must_use]
    pub const fn header(self) -> &'static str {
        match self {
            Self::Project(_) => "project.cuh",
            Self::Matmul(weight) if weight.is_quantised() => "matmul.cuh",
            Self::Matmul(weight) if weight.is_half() => "matmul_half.cuh",
            Self::Matmul(_) => "matmul_plain.cuh",
            Self::Experts(_) => "experts.cuh",
            Self::Embed => "embed.cuh",
            Self::Rows => "rows.cuh",
            Self::Elementwise => "elementwise.cuh",
            Self::Mixture => "mixture.cuh",
            Self::Recurrent => "recurrent.cuh",
            Self::Attention => "prefill_attention_half.cuh",
            Self::Sample => "sample.cuh",
            Self::Tensor => "tensor.cuh",
            Self::FirstLight => "first_light.cuh",
        }
    }
}

/// A kernel that exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Products of up to `rows` rows, with norm, residual and SiLU-product as the parameters say.
    Project {
        /// Type of the matrices.
        weight: Weight,
        /// Most rows of activations, one of [`Weight::rows`].
        rows: u32,
        /// Planes of quantised activations: 1, or 2 for queries, keys, values and logits.
        planes: u32,
        /// How it is laid over threads.
        variant: ProjectVariant,
    },
    /// Activations of many rows as integers, for [`Kernel::Matmul`].
    Quantise(Weight),
    /// Products of many rows, of quantised weights on tensor cores, with residual and SiLU-product as the parameters
    /// say.
    Matmul {
        /// Type of the matrices.
        weight: Weight,
        /// Rows of activations that a block takes, of [`Weight::tiles`].
        tile: u32,
    },
    /// Activations of many rows in half precision, for [`Kernel::MatmulHalf`].
    Halves(Weight),
    /// Products of many rows in half precision, on tensor cores, with residual and SiLU-product as the parameters say. The
    /// one kernel whose sums no other device has.
    MatmulHalf(Weight),
    /// Rows of a weight matrix.
    Embed(Weight),
    /// Rows of 4-byte elements.
    Gather,
    /// RMSNorm by itself.
    RmsNorm,
    /// A sum by itself.
    Add,
    /// The SiLU-product by itself.
    SwiGlu,
    /// LayerNorm by itself.
    Norm,
    /// A function of each element.
    Elementwise,
    /// Which experts a row chooses.
    Route,
    /// Pairs of rows and experts by expert, for [`Kernel::Matmul`].
    Group,
    /// Products of pairs with the experts that they are of.
    Experts(Weight),
    /// The sum of what a row's experts give.
    Combine,
    /// A short convolution.
    ShortConv,
    /// The gated delta rule.
    GatedDelta,
    /// The delta rule with a decay for each row of the matrix.
    DeltaRule,
    /// A group of tensor operations.
    Tensor,
    /// The same by a kernel that was made for it.
    Generated(Generated),
    /// Products of tensors that are no weights.
    TensorMatmul,
    /// Rows of a table.
    TensorGather,
    /// Rows that a table gets.
    TensorScatter,
    /// The numbers of the greatest elements.
    TensorTopK,
    /// Cosines and sines.
    RopeTable,
    /// Rotation and KV write by themselves.
    RopeKv(CacheType),
    /// Attention, which rotates and writes keys and values first where there is a table of angles.
    Attention {
        /// Values of a head at most: 64, 128, 256 or 512.
        width: u32,
        /// Query heads of a block: 1, 2 or 4, of at most 512 values.
        heads: u32,
        /// What it reads, and writes.
        cache: CacheType,
    },
    /// Attention of the rows of a prompt, which share what they read of the cache.
    PrefillAttention {
        /// Values of a head at most: 64, 128 or 256.
        width: u32,
        /// What it reads.
        cache: CacheType,
    },
    /// The same in half precision, on tensor cores, for all types of caches.
    PrefillAttentionHalf {
        /// Likewise.
        width: u32,
        /// Likewise.
        cache: CacheType,
    },
    /// A token from logits.
    Sample,
}

/// Widths that attention is compiled for, and most values of the heads that a block takes.
const ATTENTION_WIDTHS: [u32; 4] = [64, 128, 256, 512];
const ATTENTION_VALUES: u32 = 512;

/// Widths that prefill attention is compiled for.
const PREFILL_ATTENTION_WIDTHS: [u32; 3] = [64, 128, 256];

/// Query heads that a block of attention takes.
fn heads_of(width: u32) -> impl Iterator<Item = u32> {
    [4, 2, 1].into_iter().filter(move |heads| heads * width <= ATTENTION_VALUES)
}

impl Kernel {
    /// Every kernel.
    #[must_use]
    pub fn all() -> Vec<Self> {
        let mut all = Vec::new();
        for weight in Weight::ALL {
            for &rows in weight.rows() {
                for &planes in weight.planes() {
                    for variant in ProjectVariant::prebuilt(weight, rows) {
                        all.push(Self::Project { weight, rows, planes, variant });
                    }
                }
            }
        }
        for weight in Weight::ALL {
            all.extend(weight.is_quantised().then_some(Self::Quantise(weight)));
            all.extend(weight.tiles().iter().map(|&tile| Self::Matmul { weight, tile }));
            let half = [Self::Halves(weight), Self::MatmulHalf(weight)];
            all.extend(half.into_iter().filter(|_| weight.is_half()));
        }
        all.extend(Weight::ALL.map(Self::Embed));
        all.extend(Weight::ALL.map(Self::Experts));
        all.extend([Self::Gather, Self::RmsNorm, Self::Add, Self::SwiGlu, Self::Norm]);
        all.extend([Self::Elementwise, Self::Route, Self::Group, Self::Combine]);
        all.extend([Self::ShortConv, Self::GatedDelta, Self::DeltaRule]);
        all.extend([Self::Tensor, Self::TensorMatmul, Self::TensorGather]);
        all.extend([Self::TensorScatter, Self::TensorTopK]);
        all.push(Self::RopeTable);
        for cache in CacheType::ALL {
            all.push(Self::RopeKv(cache));
            for width in ATTENTION_WIDTHS {
                all.extend(heads_of(width).map(|heads| Self::Attention { width, heads, cache }));
            }
            let prefill = PREFILL_ATTENTION_WIDTHS.into_iter();
            all.extend(prefill.clone().map(|width| Self::PrefillAttention { width, cache }));
            all.extend(prefill.map(|width| Self::PrefillAttentionHalf { width, cache }));
        }
        all.push(Self::Sample);
        all
    }

    /// The kernel for a projection by the heuristic.
    #[must_use]
    pub fn project(weight: Weight, rows: u32, planes: u32) -> Option<Self> {
        let rows = weight.rows().iter().copied().find(|&most| rows <= most)?;
        let variant = ProjectVariant::heuristic(weight);
        weight.planes().contains(&planes).then_some(Self::Project { weight, rows, planes, variant })
    }

    /// The attention kernel for heads of `dim` in groups of `group` query heads to a KV head.
    #[must_use]
    pub fn attention(dim: u32, group: u32, cache: CacheType) -> Option<Self> {
        CacheType::of(cache.dtype(), dim).filter(|_| group > 0)?;
        // A lane has a sixteenth of the width's columns.
        let fits = |width: u32| dim <= width && dim.is_multiple_of(width / 16);
        let width = ATTENTION_WIDTHS.into_iter().find(|&width| fits(width))?;
        let heads = heads_of(width).find(|&heads| group.is_multiple_of(heads))?;
        Some(Self::Attention { width, heads, cache })
    }

    /// The attention kernel for many rows of a prompt, likewise. `None` also where the heads of one row
    /// are more than a block takes.
    #[must_use]
    pub fn prefill_attention(dim: u32, group: u32, cache: CacheType) -> Option<Self> {
        Self::prefill(dim, group, cache, |width| Self::PrefillAttention { width, cache })
    }

    /// The same in half precision.
    #[must_use]
    pub fn prefill_attention_half(dim: u32, group: u32, cache: CacheType) -> Option<Self> {
        Self::prefill(dim, group, cache, |width| Self::PrefillAttentionHalf { width, cache })
    }

    fn prefill(dim: u32, group: u32, cache: CacheType, of: impl Fn(u32) -> Self) -> Option<Self> {
        Self::attention(dim, group, cache)?;
        let kernel = of(PREFILL_ATTENTION_WIDTHS.into_iter().find(|&width| dim <= width)?);
        (launch::prefill_attention_rows(kernel, group)? > 0).then_some(kernel)
    }

    /// Its symbol in the cubin.
    #[must_use]
    pub fn symbol(self) -> String {
        match self {
            Self::Project { weight, rows, planes, variant } => {
                let [lanes, outputs, warps, unroll] = variant.values();
                let weight = weight.lower();
                format!("project_{weight}_r{rows}_p{planes}_t{lanes}_o{outputs}_w{warps}_u{unroll}")
            }
            Self::Quantise(weight) => format!("quantise_{}", weight.lower()),
            Self::Matmul { weight, tile } => format!("matmul_{}_m{tile}", weight.lower()),
            Self::Halves(weight) => format!("halves_{}", weight.lower()),
            Self::MatmulHalf(weight) => format!("matmul_half_{}", weight.lower()),
            Self::Embed(weight) => format!("embed_{}", weight.lower()),
            Self::Gather => "gather".into(),
            Self::RmsNorm => "rms_norm".into(),
            Self::Add => "add".into(),
            Self::SwiGlu => "swiglu".into(),
            Self::Norm => "normalise".into(),
            Self::Elementwise => "elementwise".into(),
            Self::Route => "route".into(),
            Self::Group => "group".into(),
            Self::Experts(weight) => format!("experts_{}", weight.lower()),
            Self::Combine => "combine".into(),
            Self::ShortConv => "short_conv".into(),
            Self::GatedDelta => "gated_delta".into(),
            Self::DeltaRule => "delta_rule".into(),
            Self::Tensor => "tensor".into(),
            Self::Generated(group) => group.symbol(),
            Self::TensorMatmul => "tensor_matmul".into(),
            Self::TensorGather => "tensor_gather".into(),
            Self::TensorScatter => "tensor_scatter".into(),
            Self::TensorTopK => "tensor_top_k".into(),
            Self::RopeTable => "rope_table".into(),
            Self::RopeKv(cache) => format!("rope_kv{}", cache.infix()),
            Self::Attention { width, heads, cache } => {
                format!("attention{}_d{width}_h{heads}", cache.infix())
            }
            Self::PrefillAttention { width, cache } => {
                format!("prefill_attention{}_d{width}", cache.infix())
            }
            Self::PrefillAttentionHalf { width, cache } => {
                format!("prefill_attention_half{}_d{width}", cache.infix())
            }
            Self::Sample => "sample".into(),
        }
    }

    /// The unit it is compiled in.
    #[must_use]
    pub const fn unit(self) -> Unit {
        match self {
            Self::Project { weight, .. } => Unit::Project(weight),
            Self::Quantise(weight)
            | Self::Matmul { weight, .. }
            | Self::Halves(weight)
            | Self::MatmulHalf(weight) => Unit::Matmul(weight),
            Self::Embed(_) => Unit::Embed,
            Self::Gather | Self::RmsNorm | Self::Add | Self::SwiGlu | Self::Norm => Unit::Rows,
            Self::Elementwise => Unit::Elementwise,
            Self::Route | Self::Group | Self::Combine => Unit::Mixture,
            Self::Experts(weight) => Unit::Experts(weight),
            Self::ShortConv | Self::GatedDelta | Self::DeltaRule => Unit::Recurrent,
            Self::Tensor
            | Self::Generated(_)
            | Self::TensorMatmul
            | Self::TensorGather
            | Self::TensorScatter
            | Self::TensorTopK => Unit::Tensor,
            Self::RopeTable
            | Self::RopeKv(_)
            | Self::Attention { .. }
            | Self::PrefillAttention { .. }
            | Self::PrefillAttentionHalf { .. } => Unit::Attention,
            Self::Sample => Unit::Sample,
        }
    }

    /// False for variants other than the heuristic's.
    #[must_use]
    pub fn is_default(self) -> bool {
        match self {
            Self::Project { weight, variant, .. } => variant == ProjectVariant::heuristic(weight),
            Self::Generated(_) => false,
            _ => true,
        }
    }

    /// Whether there is machine code of it for a target; what there is none of can be compiled.
    #[must_use]
    pub fn is_prebuilt(self, target: Target) -> bool {
        match self {
            Self::Project { weight, rows, variant, .. } if target != Target::Compute80 => {
                ProjectVariant::prebuilt(weight, rows).contains(&variant)
            }
            _ => self.is_default(),
        }
    }

    /// Threads of a block.
    #[must_use]
    pub const fn threads(self) -> u32 {
        match self {
            Self::Project { variant, .. } => variant.warps * 32,
            Self::Experts(weight) => ProjectVariant::of_experts(weight).warps * 32,
            Self::Matmul { weight, tile } => launch::matmul_threads(weight, tile),
            Self::Generated(group) => group.threads(),
            Self::MatmulHalf(_) | Self::RmsNorm | Self::Norm | Self::Sample => 256,
            _ => 128,
        }
    }

    /// Bytes of its parameter block.
    #[must_use]
    pub const fn params_bytes(self) -> usize {
        match self {
            Self::Project { .. } => size_of::<ProjectParams>(),
            Self::Quantise(_) | Self::Halves(_) => size_of::<QuantiseParams>(),
            Self::Matmul { .. } | Self::MatmulHalf(_) => size_of::<MatmulParams>(),
            Self::Embed(_) => size_of::<EmbedParams>(),
            Self::Gather => size_of::<GatherParams>(),
            Self::RmsNorm | Self::Add | Self::SwiGlu => size_of::<RowsParams>(),
            Self::Norm => size_of::<NormParams>(),
            Self::Elementwise => size_of::<ElementwiseParams>(),
            Self::Route => size_of::<RouteParams>(),
            Self::Group => size_of::<GroupParams>(),
            Self::Experts(_) => size_of::<ExpertsParams>(),
            Self::Combine => size_of::<CombineParams>(),
            Self::ShortConv => size_of::<ShortConvParams>(),
            Self::GatedDelta => size_of::<GatedDeltaParams>(),
            Self::DeltaRule => size_of::<DeltaRuleParams>(),
            Self::Tensor | Self::Generated(_) => size_of::<TensorParams>(),
            Self::TensorMatmul => size_of::<TensorMatmulParams>(),
            Self::TensorGather | Self::TensorScatter => size_of::<TensorRowsParams>(),
            Self::TensorTopK => size_of::<TensorTopKParams>(),
            Self::RopeTable => size_of::<RopeTableParams>(),
            Self::RopeKv(_)
            | Self::Attention { .. }
            | Self::PrefillAttention { .. }
            | Self::PrefillAttentionHalf { .. } => size_of::<AttentionParams>(),
            Self::Sample => size_of::<SampleParams>(),
        }
    }

    /// Its line in the unit, unless the header defines it itself.
    pub(crate) fn instantiation(self) -> Option<String> {
        let name = self.symbol();
        Some(match self {
            Self::Project { weight, rows, planes, variant } => {
                let values = variant.values().map(|value| value.to_string()).join(", ");
                format!("PROJECT({name}, {}, {rows}, {planes}, {values})\n", weight.name())
            }
            Self::Experts(weight) => {
                let variant = ProjectVariant::of_experts(weight);
                let values = variant.values().map(|value| value.to_string()).join(", ");
                format!("EXPERTS({name}, {}, {values})\n", weight.name())
            }
            Self::Quantise(weight) => format!("QUANTISE({name}, {})\n", weight.name()),
            Self::Matmul { weight, tile } => {
                let (kind, bytes) = (weight.name(), launch::matmul_shared_bytes(weight, tile));
                if weight.is_quantised() {
                    // Tiles of a warp: of 16 matrix rows, of 8 rows of activations.
                    let [tall, wide] = if tile < 128 { [1, 2] } else { [2, 4] };
                    format!("MATMUL({name}, {kind}, {tile}, {tall}, {wide}, {bytes})\n")
                } else {
                    format!("MATMUL_PLAIN({name}, {kind}, {tile}, {bytes})\n")
                }
            }
            Self::Halves(weight) => format!("HALVES({name}, {})\n", weight.name()),
            Self::MatmulHalf(weight) => {
                let bytes = launch::MATMUL_HALF_SHARED_BYTES;
                format!("MATMUL_HALF({name}, {}, {bytes})\n", weight.name())
            }
            Self::Embed(weight) => format!("EMBED({name}, {})\n", weight.name()),
            Self::RopeKv(cache) => format!("ROPE_KV({name}, {})\n", cache.bits()),
            Self::Attention { width, heads, cache } => {
                format!("ATTENTION({name}, {width}, {heads}, {})\n", cache.bits())
            }
            Self::PrefillAttention { width, cache } => {
                let (bits, bytes) = (cache.bits(), launch::prefill_attention_shared_bytes(self));
                format!("PREFILL_ATTENTION({name}, {width}, {bits}, {bytes})\n")
            }
            Self::PrefillAttentionHalf { width, cache } => {
                let (bits, bytes) = (cache.bits(), launch::prefill_attention_shared_bytes(self));
                format!("PREFILL_ATTENTION_HALF({name}, {width}, {bits}, {bytes})\n")
            }
            _ => return None,
        })
    }
}
