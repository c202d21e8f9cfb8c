//! Catalogue of the kernels that plans launch: compilation unit, symbol, threads per block and
//! variants of each. [`launch`] computes grids and memory sizes.

mod cache;
pub mod launch;
mod variant;
mod weight;

pub use cache::CacheType;
pub use variant::{InvalidVariant, PROJECT_SPACE, Parameter, ProjectVariant};
pub(crate) use weight::FormatSizes;
pub use weight::Weight;

use crate::generated::Generated;
use crate::params::{
    AttentionParams, CombineParams, DeltaRuleParams, ElementwiseParams, EmbedParams, ExpertsParams,
    GatedDeltaParams, GatherParams, GroupParams, MatmulParams, NormParams, ProjectParams,
    QuantiseParams, RopeTableParams, RouteParams, RowsParams, SampleParams, ShortConvParams,
    TensorMatmulParams, TensorParams, TensorRowsParams, TensorTopKParams,
};
use crate::source::Target;

/// Compilation unit: kernels in one cubin.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Unit {
    /// Projections with weights of one type.
    Project(Weight),
    /// Matmuls of many rows with weights of one type.
    Matmul(Weight),
    /// Matmuls with the experts of an MoE layer, weights of one type.
    Experts(Weight),
    /// Embeddings of every type.
    Embed,
    /// Operations on whole rows between projections.
    Rows,
    /// Operations on single elements between projections.
    Elementwise,
    /// Router, grouping and combination of an MoE layer.
    Mixture,
    /// Recurrent layers, with state of fixed size.
    Recurrent,
    /// RoPE and attention.
    Attention,
    /// Sampling.
    Sample,
    /// Tensor operations, single and in fused groups.
    Tensor,
    /// Self-test kernels: [`crate::first_light`], not part of this catalogue.
    FirstLight,
}

impl Unit {
    /// All units.
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

    /// Stem of the file names.
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

    /// Weight types that the unit reads.
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

    /// Header that defines the unit's kernels.
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

/// A kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kernel {
    /// Projection of up to `rows` rows; norm, residual and SwiGLU as the parameters select.
    Project {
        /// Type of the matrices.
        weight: Weight,
        /// Most rows of activations, one of [`Weight::rows`].
        rows: u32,
        /// Planes of quantised activations: 1, or 2 for queries, keys, values and logits.
        planes: u32,
        /// Distribution over threads.
        variant: ProjectVariant,
    },
    /// Quantises activations of many rows for [`Kernel::Matmul`].
    Quantise(Weight),
    /// Matmul of many rows, on tensor cores for quantised weights; residual and SwiGLU as the
    /// parameters select.
    Matmul {
        /// Type of the matrices.
        weight: Weight,
        /// Rows of activations of a block, one of [`Weight::tiles`].
        tile: u32,
    },
    /// Converts activations of many rows to half precision for [`Kernel::MatmulHalf`].
    Halves(Weight),
    /// Matmul of many rows in half precision on tensor cores; residual and SwiGLU as the parameters
    /// select. The only kernel whose sums differ from other devices.
    MatmulHalf(Weight),
    /// Gathers rows of a weight matrix.
    Embed(Weight),
    /// Gathers rows of 4-byte elements.
    Gather,
    /// RMSNorm.
    RmsNorm,
    /// Addition.
    Add,
    /// SwiGLU.
    SwiGlu,
    /// LayerNorm.
    Norm,
    /// Elementwise function.
    Elementwise,
    /// Chooses the experts of each row.
    Route,
    /// Groups pairs of row and expert by expert, for [`Kernel::Matmul`].
    Group,
    /// Multiplies pairs of row and expert with the expert's matrices.
    Experts(Weight),
    /// Weighted sum of a row's expert results.
    Combine,
    /// Short convolution.
    ShortConv,
    /// Gated delta rule.
    GatedDelta,
    /// Delta rule with a decay for each row of the state.
    DeltaRule,
    /// Fused group of tensor operations, interpreted.
    Tensor,
    /// Fused group of tensor operations, compiled.
    Generated(Generated),
    /// Matmul of tensors that are not weights.
    TensorMatmul,
    /// Gathers rows of a tensor.
    TensorGather,
    /// Scatters rows into a tensor.
    TensorScatter,
    /// Indices of the largest elements.
    TensorTopK,
    /// Table of cosines and sines for RoPE.
    RopeTable,
    /// RoPE and KV cache write.
    RopeKv(CacheType),
    /// Attention of single rows; with a table of angles it first applies RoPE and writes keys and
    /// values.
    Attention {
        /// Most values of a head: 64, 128, 256 or 512.
        width: u32,
        /// Query heads of a block: 1, 2 or 4, of at most 512 values.
        heads: u32,
        /// Type of the KV cache.
        cache: CacheType,
    },
    /// Attention of a prompt's rows, which share the cache lines that they read.
    PrefillAttention {
        /// Most values of a head: 64, 128 or 256.
        width: u32,
        /// Type of the KV cache.
        cache: CacheType,
    },
    /// Prefill attention in half precision on tensor cores.
    PrefillAttentionHalf {
        /// Most values of a head: 64, 128 or 256.
        width: u32,
        /// Type of the KV cache.
        cache: CacheType,
    },
    /// Chooses a token from logits.
    Sample,
}

/// Head widths that attention is compiled for, and most values of all heads of a block.
const ATTENTION_WIDTHS: [u32; 4] = [64, 128, 256, 512];
const ATTENTION_VALUES: u32 = 512;

/// Widths that prefill attention is compiled for.
const PREFILL_ATTENTION_WIDTHS: [u32; 3] = [64, 128, 256];

/// Numbers of query heads that an attention block of a width may take.
fn heads_of(width: u32) -> impl Iterator<Item = u32> {
    [4, 2, 1].into_iter().filter(move |heads| heads * width <= ATTENTION_VALUES)
}

impl Kernel {
    /// All kernels.
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

    /// Projection kernel of the default variant.
    #[must_use]
    pub fn project(weight: Weight, rows: u32, planes: u32) -> Option<Self> {
        let rows = weight.rows().iter().copied().find(|&most| rows <= most)?;
        let variant = ProjectVariant::heuristic(weight);
        weight.planes().contains(&planes).then_some(Self::Project { weight, rows, planes, variant })
    }

    /// Attention kernel for heads of `dim` values, with `group` query heads per KV head.
    #[must_use]
    pub fn attention(dim: u32, group: u32, cache: CacheType) -> Option<Self> {
        CacheType::of(cache.dtype(), dim).filter(|_| group > 0)?;
        // A lane has a sixteenth of the columns.
        let fits = |width: u32| dim <= width && dim.is_multiple_of(width / 16);
        let width = ATTENTION_WIDTHS.into_iter().find(|&width| fits(width))?;
        let heads = heads_of(width).find(|&heads| group.is_multiple_of(heads))?;
        Some(Self::Attention { width, heads, cache })
    }

    /// Prefill attention kernel, likewise. `None` also if the query heads of one row exceed a
    /// block's.
    #[must_use]
    pub fn prefill_attention(dim: u32, group: u32, cache: CacheType) -> Option<Self> {
        Self::prefill(dim, group, cache, |width| Self::PrefillAttention { width, cache })
    }

    /// Prefill attention kernel in half precision.
    #[must_use]
    pub fn prefill_attention_half(dim: u32, group: u32, cache: CacheType) -> Option<Self> {
        Self::prefill(dim, group, cache, |width| Self::PrefillAttentionHalf { width, cache })
    }

    fn prefill(dim: u32, group: u32, cache: CacheType, of: impl Fn(u32) -> Self) -> Option<Self> {
        Self::attention(dim, group, cache)?;
        let kernel = of(PREFILL_ATTENTION_WIDTHS.into_iter().find(|&width| dim <= width)?);
        (launch::prefill_attention_rows(kernel, group)? > 0).then_some(kernel)
    }

    /// Symbol in the cubin.
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

    /// Unit that contains the kernel.
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

    /// Returns whether the kernel is the default variant.
    #[must_use]
    pub fn is_default(self) -> bool {
        match self {
            Self::Project { weight, variant, .. } => variant == ProjectVariant::heuristic(weight),
            Self::Generated(_) => false,
            _ => true,
        }
    }

    /// Returns whether machine code for a target is checked in. Other kernels can be compiled at
    /// run time.
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

    /// Size of its parameters in bytes.
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

    /// Macro call that instantiates the kernel in its unit; `None` if the header defines it.
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
                    // Tensor core tiles of a warp: in units of 16 matrix rows and of 8 rows of
                    // activations.
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
