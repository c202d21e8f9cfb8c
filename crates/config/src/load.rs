//! Options of a load: their types, and the struct that a request, a configured model and the command line share.

use std::str::FromStr;

use plan::DType;
use serde::{Deserialize, Serialize};
use strum::{Display, EnumString, IntoStaticStr, VariantNames};

/// Device that a model runs on.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    IntoStaticStr,
    VariantNames,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum Backend {
    /// The best one that can run the model.
    #[default]
    Auto,
    Nv,
    Cuda,
    Cpu,
    Reference,
}

/// Instruction set of the CPU device. Loading a model checks that the machine supports it.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    IntoStaticStr,
    VariantNames,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum CpuIsa {
    /// The best one of the machine.
    #[default]
    Auto,
    Amx,
    Avx512,
    Avx2,
    Neon,
    Scalar,
}

/// Type of the KV cache.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Serialize,
    Deserialize,
    Display,
    EnumString,
    IntoStaticStr,
    VariantNames,
)]
#[serde(rename_all = "lowercase")]
#[strum(serialize_all = "lowercase")]
pub enum KvType {
    #[default]
    F16,
    Q8_0,
    Q4_0,
}

impl From<KvType> for DType {
    fn from(kv_type: KvType) -> Self {
        match kv_type {
            KvType::F16 => Self::F16,
            KvType::Q8_0 => Self::Q8_0,
            KvType::Q4_0 => Self::Q4_0,
        }
    }
}

/// Parses a name on a command line.
///
/// # Errors
///
/// The allowed names.
pub fn named<T: FromStr + VariantNames>(name: &str) -> Result<T, String> {
    name.parse().map_err(|_| format!("allowed are {}", T::VARIANTS.join(", ")))
}

/// Parses a number of tokens on a command line: `4096`, or `32k` for 32 x 1024.
///
/// # Errors
///
/// The accepted forms.
pub fn tokens(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.strip_suffix(['k', 'K']) {
        Some(digits) => (digits, 1024),
        None => (text, 1),
    };
    let count = digits.parse::<usize>().ok().and_then(|count| count.checked_mul(unit));
    count.ok_or_else(|| "expected a number of tokens, such as 8192 or 8k".into())
}

/// Declares a struct with fields of its own and those of [`LoadOptions`](crate::LoadOptions), side by side: serde's
/// `flatten` would lose the names of invalid fields.
#[macro_export]
macro_rules! with_load_options {
    ($(#[$meta:meta])* pub struct $name:ident { $($own:tt)* }) => {
        $(#[$meta])*
        pub struct $name {
            $($own)*
            /// Device.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub backend: Option<$crate::Backend>,
            /// Number of sequences served at once.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub slots: Option<usize>,
            /// Context length of a slot in tokens. 0: the model's own, cut to
            /// what fits into memory.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub context: Option<usize>,
            /// Rows of one prefill chunk.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub prefill_chunk: Option<usize>,
            /// Draft model for speculative decoding; empty for none.
            #[serde(default, alias = "draft", skip_serializing_if = "Option::is_none")]
            pub draft_model: Option<String>,
            /// LoRA adapters, each `PATH` or `PATH=SCALE`; an empty list for none.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub lora: Option<Vec<String>>,
            /// KV cache type.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub kv_type: Option<$crate::KvType>,
            /// Worker threads. 0: all allowed cores.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub threads: Option<usize>,
            /// Instruction set of the CPU device.
            #[serde(default, skip_serializing_if = "Option::is_none")]
            pub cpu_isa: Option<$crate::CpuIsa>,
        }

        impl $name {
            /// Options of the load.
            #[must_use]
            pub fn options(&self) -> $crate::LoadOptions {
                $crate::LoadOptions {
                    backend: self.backend,
                    slots: self.slots,
                    context: self.context,
                    prefill_chunk: self.prefill_chunk,
                    draft_model: self.draft_model.clone(),
                    lora: self.lora.clone(),
                    kv_type: self.kv_type,
                    threads: self.threads,
                    cpu_isa: self.cpu_isa,
                }
            }

            /// Replaces the options of the load.
            #[must_use]
            pub fn with_options(mut self, options: $crate::LoadOptions) -> Self {
                self.backend = options.backend;
                self.slots = options.slots;
                self.context = options.context;
                self.prefill_chunk = options.prefill_chunk;
                self.draft_model = options.draft_model;
                self.lora = options.lora;
                self.kv_type = options.kv_type;
                self.threads = options.threads;
                self.cpu_isa = options.cpu_isa;
                self
            }
        }
    };
}

with_load_options! {
    /// Options of a load. An absent one has the value of the next level: request, model in the configuration, configuration.
    #[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
    pub struct LoadOptions {}
}

impl LoadOptions {
    /// Fills absent options from `other`.
    #[must_use]
    pub fn or(self, other: Self) -> Self {
        Self {
            backend: self.backend.or(other.backend),
            slots: self.slots.or(other.slots),
            context: self.context.or(other.context),
            prefill_chunk: self.prefill_chunk.or(other.prefill_chunk),
            draft_model: self.draft_model.or(other.draft_model),
            lora: self.lora.or(other.lora),
            kv_type: self.kv_type.or(other.kv_type),
            threads: self.threads.or(other.threads),
            cpu_isa: self.cpu_isa.or(other.cpu_isa),
        }
    }
}
