//! Kernel launches, independent of the driver.

use orind_kernels::catalogue::Kernel;
use orind_kernels::params::{
    AttentionParams, CombineParams, DeltaRuleParams, ElementwiseParams, EmbedParams, ExpertsParams,
    GatedDeltaParams, GatherParams, GroupParams, IntoBytes, MatmulParams, NormParams,
    ProjectParams, QuantiseParams, RopeTableParams, RouteParams, RowsParams, SampleParams,
    ShortConvParams, TensorMatmulParams, TensorParams, TensorRowsParams, TensorTopKParams,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    pub(super) address: u64,
    pub(super) bytes: u64,
}

impl Region {
    pub(super) const fn new(address: u64, bytes: u64) -> Self {
        Self { address, bytes }
    }

    pub(super) const fn overlaps(self, other: Self) -> bool {
        self.address < other.address + other.bytes && other.address < self.address + self.bytes
    }
}

#[derive(Clone, Copy, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "a plan has hundreds of launches, each of which is made once"
)]
pub(super) enum Params {
    Project(ProjectParams),
    Quantise(QuantiseParams),
    Matmul(MatmulParams),
    Embed(EmbedParams),
    Gather(GatherParams),
    RopeTable(RopeTableParams),
    Attention(AttentionParams),
    Sample(SampleParams),
    Rows(RowsParams),
    Elementwise(ElementwiseParams),
    Norm(NormParams),
    Route(RouteParams),
    Group(GroupParams),
    Experts(ExpertsParams),
    Combine(CombineParams),
    ShortConv(ShortConvParams),
    GatedDelta(GatedDeltaParams),
    DeltaRule(DeltaRuleParams),
    Tensor(TensorParams),
    TensorMatmul(TensorMatmulParams),
    TensorRows(TensorRowsParams),
    TensorTopK(TensorTopKParams),
}

impl Params {
    /// Parameter block as bytes of constant memory.
    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Self::Project(p) => p.as_bytes(),
            Self::Quantise(p) => p.as_bytes(),
            Self::Matmul(p) => p.as_bytes(),
            Self::Embed(p) => p.as_bytes(),
            Self::Gather(p) => p.as_bytes(),
            Self::RopeTable(p) => p.as_bytes(),
            Self::Attention(p) => p.as_bytes(),
            Self::Sample(p) => p.as_bytes(),
            Self::Rows(p) => p.as_bytes(),
            Self::Elementwise(p) => p.as_bytes(),
            Self::Norm(p) => p.as_bytes(),
            Self::Route(p) => p.as_bytes(),
            Self::Group(p) => p.as_bytes(),
            Self::Experts(p) => p.as_bytes(),
            Self::Combine(p) => p.as_bytes(),
            Self::ShortConv(p) => p.as_bytes(),
            Self::GatedDelta(p) => p.as_bytes(),
            Self::DeltaRule(p) => p.as_bytes(),
            Self::Tensor(p) => p.as_bytes(),
            Self::TensorMatmul(p) => p.as_bytes(),
            Self::TensorRows(p) => p.as_bytes(),
            Self::TensorTopK(p) => p.as_bytes(),
        }
    }
}

/// One launch. The launches of a list run as if one after the other.
#[derive(Clone, Debug)]
pub(super) struct Launch {
    /// Index of the plan's step, and its name in the model.
    pub(super) step: usize,
    pub(super) label: String,
    pub(super) kernel: Kernel,
    pub(super) grid: [u32; 3],
    /// Dynamic shared memory of a block, in bytes.
    pub(super) shared_bytes: u32,
    pub(super) params: Params,
    /// Mutable memory that the launch reads: everything but weights.
    pub(super) reads: Vec<Region>,
    pub(super) writes: Vec<Region>,
}
