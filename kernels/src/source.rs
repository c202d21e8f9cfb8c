//! The CUDA sources and the units that are compiled from them.
//!
//! A unit is one family's header plus one line per kernel of the catalogue, so that the catalogue is
//! the only list of a plan's kernels. The sources are part of this program: a build needs no files, and the
//! hash of what was compiled can be recomputed anywhere.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::catalogue::{Kernel, Unit};
use crate::first_light::{self, AtomicsParams, HandoverParams, OrderParams, ProbeParams};
use crate::params::{
    AttentionParams, CombineParams, DeltaRuleParams, ElementwiseParams, EmbedParams, ExpertsParams,
    GatedDeltaParams, GatherParams, GroupParams, MatmulParams, NormParams, Parameters,
    ProjectParams, QuantiseParams, Recurrence, RopeTableParams, RouteParams, RowsParams,
    SampleParams, Segment, ShortConvParams, TensorMatmulParams, TensorParams, TensorRowsParams,
    TensorSource, TensorTopKParams,
};

macro_rules! headers {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("cuda/", $name)))),*] };
}

/// Every header, by the name under which the others include it.
pub const HEADERS: &[(&str, &str)] = headers![
    "attention.cuh",
    "base.cuh",
    "byte_scales.cuh",
    "cache.cuh",
    "cut.cuh",
    "elementwise.cuh",
    "embed.cuh",
    "experts.cuh",
    "first_light.cuh",
    "format.cuh",
    "group.cuh",
    "iq1.cuh",
    "iq2.cuh",
    "iq3_s.cuh",
    "iq3_xxs.cuh",
    "iq4_nl.cuh",
    "iq4_xs.cuh",
    "levels.cuh",
    "matmul.cuh",
    "matmul_half.cuh",
    "matmul_plain.cuh",
    "matrix.cuh",
    "mixture.cuh",
    "mxfp4.cuh",
    "nibbles.cuh",
    "noise.cuh",
    "pairs.cuh",
    "params.cuh",
    "prefill_attention.cuh",
    "prefill_attention_half.cuh",
    "project.cuh",
    "q2_k.cuh",
    "q3_k.cuh",
    "q4_0.cuh",
    "q4_1.cuh",
    "q5_0.cuh",
    "q5_1.cuh",
    "quantise.cuh",
    "recurrent.cuh",
    "rope.cuh",
    "rows.cuh",
    "sample.cuh",
    "stage.cuh",
    "tensor.cuh",
    "tensor_group.cuh",
    "tile.cuh",
    "tq2_0.cuh",
    "trig.cuh",
];

/// What a unit is compiled to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Machine code for the Orin.
    Sm87,
    /// Machine code for Hopper.
    Sm90,
    /// PTX for every other GPU since Ampere: one variant of each kernel.
    Compute80,
}

impl Target {
    /// All targets.
    pub const ALL: [Self; 3] = [Self::Sm87, Self::Sm90, Self::Compute80];

    /// As NVRTC's `--gpu-architecture` takes it.
    #[must_use]
    pub const fn architecture(self) -> &'static str {
        match self {
            Self::Sm87 => "sm_87",
            Self::Sm90 => "sm_90",
            Self::Compute80 => "compute_80",
        }
    }

    /// The file of a unit under `prebuilt/`.
    #[must_use]
    pub fn file(self, unit: Unit) -> String {
        let extension = if self == Self::Compute80 { "ptx" } else { "cubin" };
        format!("{}.{}.{extension}", unit.name(), self.architecture())
    }
}

/// Options of every compilation, but for the architecture.
pub const OPTIONS: &[&str] = &["--std=c++17", "--ptxas-options=-v"];

/// A kernel in a unit's machine code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Its symbol.
    pub symbol: String,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of its parameter block.
    pub params_bytes: usize,
    /// Whether it keeps a stack on purpose.
    pub has_stack: bool,
}

/// All kernels of a unit that are compiled for a target.
#[must_use]
pub fn compiled(unit: Unit, target: Target) -> Vec<Compiled> {
    if unit == Unit::FirstLight {
        return first_light::Kernel::ALL.map(first_light::Kernel::compiled).into();
    }
    let compiled = |kernel: Kernel| Compiled {
        symbol: kernel.symbol(),
        threads: kernel.threads(),
        params_bytes: kernel.params_bytes(),
        has_stack: false,
    };
    kernels(unit, target).map(compiled).collect()
}

/// The kernels of a unit that a plan can launch and that are compiled for a target.
fn kernels(unit: Unit, target: Target) -> impl Iterator<Item = Kernel> {
    let all = target != Target::Compute80;
    Kernel::all().into_iter().filter(move |k| k.unit() == unit && (all || k.is_default()))
}

/// The text of a unit.
#[must_use]
pub fn text(unit: Unit, target: Target) -> String {
    text_of(unit, kernels(unit, target))
}

/// The text of a unit with some kernels.
#[must_use]
pub fn text_of(unit: Unit, kernels: impl IntoIterator<Item = Kernel>) -> String {
    let mut text = format!("#include \"{}\"\n", unit.header());
    for weight in unit.weights() {
        text.extend(weight.header().map(|header| format!("#include \"{header}\"\n")));
        text += &weight.asserts();
    }
    if unit == Unit::FirstLight {
        asserts::<ProbeParams>(&mut text);
        asserts::<OrderParams>(&mut text);
        asserts::<AtomicsParams>(&mut text);
        asserts::<HandoverParams>(&mut text);
        return text;
    }
    if unit == Unit::Tensor {
        asserts::<TensorSource>(&mut text);
        asserts::<TensorParams>(&mut text);
        asserts::<TensorMatmulParams>(&mut text);
        asserts::<TensorRowsParams>(&mut text);
        asserts::<TensorTopKParams>(&mut text);
        return text;
    }
    asserts::<Segment>(&mut text);
    asserts::<ProjectParams>(&mut text);
    asserts::<EmbedParams>(&mut text);
    asserts::<GatherParams>(&mut text);
    asserts::<RopeTableParams>(&mut text);
    asserts::<AttentionParams>(&mut text);
    asserts::<SampleParams>(&mut text);
    asserts::<RowsParams>(&mut text);
    asserts::<ElementwiseParams>(&mut text);
    asserts::<NormParams>(&mut text);
    asserts::<RouteParams>(&mut text);
    asserts::<ExpertsParams>(&mut text);
    asserts::<CombineParams>(&mut text);
    asserts::<Recurrence>(&mut text);
    asserts::<ShortConvParams>(&mut text);
    asserts::<GatedDeltaParams>(&mut text);
    if matches!(unit, Unit::Matmul(_)) {
        asserts::<QuantiseParams>(&mut text);
        asserts::<MatmulParams>(&mut text);
    }
    if unit == Unit::Recurrent {
        asserts::<DeltaRuleParams>(&mut text);
    }
    if unit == Unit::Mixture {
        asserts::<GroupParams>(&mut text);
    }
    for kernel in kernels {
        text.extend(kernel.instantiation());
    }
    text
}

/// Ties the CUDA struct to the Rust one.
pub(crate) fn asserts<P: Parameters>(text: &mut String) {
    let name = P::NAME;
    // Writing to a string cannot fail.
    let _ = writeln!(text, "static_assert(sizeof({name}) == {}, \"ABI\");", size_of::<P>());
    for (field, offset) in P::FIELDS {
        // `offsetof` as NVRTC's front end spells it.
        let place = format!("__INTADDR__(&static_cast<{name}*>(nullptr)->{field})");
        let _ = writeln!(text, "static_assert({place} == {offset}, \"ABI\");");
    }
}

/// SHA-256 of everything that the machine code is made from: headers, units, options.
#[must_use]
pub fn hash() -> String {
    let units = Unit::all().flat_map(|unit| Target::ALL.map(|target| (unit, target)));
    let units: Vec<_> =
        units.map(|(unit, target)| (target.file(unit), text(unit, target))).collect();
    let units = units.iter().flat_map(|(file, text)| [file.as_str(), text.as_str()]);
    digest(HEADERS.iter().flat_map(|(name, body)| [*name, *body]).chain(units))
}

/// SHA-256 of some texts and the options.
pub(crate) fn digest<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for part in parts.chain(OPTIONS.iter().copied()) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

/// SHA-256 of what one unit's machine code is made from: its text, the headers that it reaches,
/// options and target. Unlike [`hash`] it does not change with other units. Computed once.
#[must_use]
pub fn unit_hash(unit: Unit, target: Target) -> String {
    static KNOWN: Mutex<BTreeMap<(Unit, Target), String>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock();
    known.entry((unit, target)).or_insert_with(|| hash_of(&text(unit, target), target)).clone()
}

/// The same of any text.
pub(crate) fn hash_of(text: &str, target: Target) -> String {
    let mut reached: Vec<&str> = Vec::new();
    let mut left = vec![text];
    while let Some(body) = left.pop() {
        let named = body.lines().filter_map(|l| l.strip_prefix("#include \"")?.split('"').next());
        for name in named {
            let header = HEADERS.iter().find(|(known, _)| *known == name);
            if let Some((name, body)) = header.filter(|(name, _)| !reached.contains(name)) {
                reached.push(name);
                left.push(body);
            }
        }
    }
    let headers = HEADERS.iter().filter(|(name, _)| reached.contains(name));
    let headers = headers.flat_map(|(name, body)| [*name, *body]);
    digest([target.architecture(), text].into_iter().chain(headers))
}

/// Lower-case hexadecimal.
#[must_use]
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}
