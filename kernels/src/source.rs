//! CUDA sources and compilation units.
//!
//! A unit is one family's header plus one line per kernel of the catalogue, so the catalogue is the
//! only list of kernels. Sources are embedded in the library: a build reads no files, and hashes
//! can be recomputed anywhere.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use parking_lot::Mutex;
use sha2::{Digest as _, Sha256};

use crate::catalogue::{Kernel, Unit};
use crate::first_light;
macro_rules! headers {
    ($($name:literal),* $(,)?) => { &[$(($name, include_str!(concat!("cuda/", $name)))),*] };
}

/// Every header with its `#include` name.
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

/// Architecture that a unit is compiled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Target {
    /// Machine code for the Orin.
    Sm87,
    /// Machine code for Hopper.
    Sm90,
    /// PTX for other GPUs since Ampere, with one variant of each kernel.
    Compute80,
}

impl Target {
    /// All targets.
    pub const ALL: [Self; 3] = [Self::Sm87, Self::Sm90, Self::Compute80];

    /// Value of NVRTC's `--gpu-architecture`.
    #[must_use]
    pub const fn architecture(self) -> &'static str {
        match self {
            Self::Sm87 => "sm_87",
            Self::Sm90 => "sm_90",
            Self::Compute80 => "compute_80",
        }
    }

    /// Name of a unit's machine code file, without compression suffix.
    #[must_use]
    pub fn file(self, unit: Unit) -> String {
        let extension = if self == Self::Compute80 { "ptx" } else { "cubin" };
        format!("{}.{}.{extension}", unit.name(), self.architecture())
    }
}

/// Options of every compilation, except for the architecture.
pub const OPTIONS: &[&str] = &["--std=c++17", "--ptxas-options=-v"];

/// A kernel in a unit's machine code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Compiled {
    /// Symbol in the cubin.
    pub symbol: String,
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of its parameter block.
    pub params_bytes: usize,
    /// True if a stack is intended.
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

/// Kernels of a unit that plans launch and that are compiled for a target.
fn kernels(unit: Unit, target: Target) -> impl Iterator<Item = Kernel> {
    let all = target != Target::Compute80;
    Kernel::all().into_iter().filter(move |k| k.unit() == unit && (all || k.is_default()))
}

/// Source text of a unit.
#[must_use]
pub fn text(unit: Unit, target: Target) -> String {
    text_of(unit, kernels(unit, target))
}

/// Source text of a unit with a subset of kernels.
#[must_use]
pub fn text_of(unit: Unit, kernels: impl IntoIterator<Item = Kernel>) -> String {
    let mut text = format!("#include \"{}\"\n", unit.header());
    for weight in unit.weights() {
        text.extend(weight.header().map(|header| format!("#include \"{header}\"\n")));
        text += &weight.asserts();
    }
    for kernel in kernels {
        text.extend(kernel.instantiation());
    }
    text
}

/// A source without comments, indentation and empty lines: hashes change only if the code does.
fn code(text: &str) -> String {
    let lines = text.lines().map(|line| line.split("//").next().unwrap_or_default().trim());
    lines.filter(|line| !line.is_empty()).flat_map(|line| [line, "\n"]).collect()
}

/// SHA-256 of everything that the machine code is compiled from: code of headers and units,
/// options.
#[must_use]
pub fn hash() -> String {
    let units = Unit::all().flat_map(|unit| Target::ALL.map(|target| (unit, target)));
    let units = units.map(|(unit, target)| (target.file(unit), text(unit, target)));
    let headers = HEADERS.iter().map(|&(name, body)| (name.to_owned(), code(body)));
    let all: Vec<_> = headers.chain(units).collect();
    digest(all.iter().flat_map(|(name, text)| [name.as_str(), text.as_str()]))
}

/// SHA-256 of texts and options.
pub(crate) fn digest<'a>(parts: impl Iterator<Item = &'a str>) -> String {
    let mut hash = Sha256::new();
    for part in parts.chain(OPTIONS.iter().copied()) {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

/// SHA-256 of what one unit's machine code is compiled from: its text, the code of the headers that
/// it includes, options and target. Unlike [`hash`] it does not change with other units. Computed
/// once.
#[must_use]
pub fn unit_hash(unit: Unit, target: Target) -> String {
    static KNOWN: Mutex<BTreeMap<(Unit, Target), String>> = Mutex::new(BTreeMap::new());
    let mut known = KNOWN.lock();
    known.entry((unit, target)).or_insert_with(|| hash_of(&text(unit, target), target)).clone()
}

/// Likewise for any text.
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
    let headers: Vec<_> = headers.map(|&(name, body)| (name, code(body))).collect();
    let headers = headers.iter().flat_map(|(name, body)| [*name, body.as_str()]);
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
