//! Flags of both programs for the options of a load.

use config::{Backend, CpuIsa, KvType, LoadOptions, named, tokens};

/// Options of a load. Absent ones come from the configuration.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct LoadFlags {
    /// Device: auto, nv, cuda, cpu, reference
    #[arg(long, value_name = "NAME", value_parser = named::<Backend>)]
    backend: Option<Backend>,
    /// Number of worker threads; 0 means the allowed cores
    #[arg(long, short, value_name = "N")]
    threads: Option<usize>,
    /// Instruction set of the CPU device: auto, amx, avx512, avx2, neon, scalar
    #[arg(long, value_name = "NAME", value_parser = named::<CpuIsa>)]
    cpu_isa: Option<CpuIsa>,
    /// Number of slots: sequences served at once
    #[arg(long, value_name = "N")]
    slots: Option<usize>,
    /// Context length of a slot in tokens, such as 8192 or 32k; 0 means the model's own, cut to what fits into memory
    #[arg(long, short, value_name = "N", value_parser = tokens)]
    context: Option<usize>,
    /// Rows of a prefill chunk
    #[arg(long, value_name = "N")]
    prefill_chunk: Option<usize>,
    /// Draft model for speculative decoding; empty for the model's own MTP layer, `none` to disable
    #[arg(long, value_name = "MODEL")]
    draft: Option<String>,
    /// LoRA adapter; may be repeated
    #[arg(long, value_name = "PATH[=SCALE]")]
    lora: Vec<String>,
    /// Type of the KV cache: f16, q8_0, q4_0
    #[arg(long, value_name = "TYPE", value_parser = named::<KvType>)]
    kv_type: Option<KvType>,
}

impl LoadFlags {
    /// The options that are set.
    #[must_use]
    pub fn options(&self) -> LoadOptions {
        LoadOptions {
            backend: self.backend,
            slots: self.slots,
            context: self.context,
            prefill_chunk: self.prefill_chunk,
            draft_model: self.draft.clone(),
            lora: Some(self.lora.clone()).filter(|lora| !lora.is_empty()),
            kv_type: self.kv_type,
            threads: self.threads,
            cpu_isa: self.cpu_isa,
        }
    }
}
