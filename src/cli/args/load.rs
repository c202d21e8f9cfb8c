//! Arguments of `orinctl load` and `unload`.

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl load /models/llama-3.2-1b-q6_k.gguf
  orinctl load synthetic:qwen3-0.6b:q8_0 --slots 4 --context 8192
  orinctl load qwen3-embedding-0.6b --beside --name embed
      an additional model; requests that name `embed` use it

Options that are not given come from the daemon's configuration.")]
pub(crate) struct Load {
    /// GGUF file, name from `orinctl models`, or synthetic:NAME
    pub(crate) model: String,
    /// Keep the models that are already loaded
    #[arg(long)]
    pub(crate) beside: bool,
    /// Name of the model in requests [default: the file's stem]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Device: auto, nv, cuda, cpu, reference
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<String>,
    /// Number of slots: sequences served at once
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<usize>,
    /// Context length of a slot in tokens; 0 means the model's own, at most 4096
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<usize>,
    /// Rows of a prefill chunk
    #[arg(long, value_name = "N")]
    pub(crate) prefill_chunk: Option<usize>,
    /// Draft model for speculative decoding; empty for the model's own MTP layer, `none` to disable
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft: Option<String>,
    /// LoRA adapter; may be repeated
    #[arg(long, value_name = "PATH[=SCALE]")]
    pub(crate) lora: Vec<String>,
    /// Type of the KV cache: f16, q8_0, q4_0
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv_type: Option<String>,
    /// Worker threads; 0 means the allowed cores
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Instruction set of the CPU device: auto, amx, avx512, avx2, neon, scalar
    #[arg(long, value_name = "NAME")]
    pub(crate) cpu_isa: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Unload {
    /// Name of the model in requests [default: the first model]
    pub(crate) model: Option<String>,
}
