//! Arguments of `orinctl load` and `unload`.

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl load /models/llama-3.2-1b-q6_k.gguf
  orinctl load synthetic:qwen3-0.6b:q8_0 --slots 4 --context 8192
  orinctl load qwen3-embedding-0.6b --beside --name embed
      one more model; requests that name `embed` get it

What is not given comes from the daemon's configuration.")]
pub(crate) struct Load {
    /// GGUF file, name from `orinctl models`, or synthetic:NAME
    pub(crate) model: String,
    /// Keep the models that are there
    #[arg(long)]
    pub(crate) beside: bool,
    /// What requests call it [default: the file's stem]
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// Device: auto, nv, cuda, cpu, reference
    #[arg(long, value_name = "NAME")]
    pub(crate) backend: Option<String>,
    /// Sequences served at once
    #[arg(long, value_name = "N")]
    pub(crate) slots: Option<usize>,
    /// Tokens a sequence has room for; 0 takes the model's own, at most 4096
    #[arg(long, value_name = "N")]
    pub(crate) context: Option<usize>,
    /// Rows of one prefill chunk
    #[arg(long, value_name = "N")]
    pub(crate) prefill_chunk: Option<usize>,
    /// Model that guesses what this one will say; an empty one for its own layer, `none` for none
    #[arg(long, value_name = "MODEL")]
    pub(crate) draft: Option<String>,
    /// LoRA adapter beside it; may be given several times
    #[arg(long, value_name = "PATH[=SCALE]")]
    pub(crate) lora: Vec<String>,
    /// What keys and values are stored in: f16, q8_0, q4_0
    #[arg(long, value_name = "TYPE")]
    pub(crate) kv_type: Option<String>,
    /// Worker threads; 0 takes the cores allowed
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Instruction set of the CPU device: auto, amx, avx512, avx2, neon, scalar
    #[arg(long, value_name = "NAME")]
    pub(crate) cpu_isa: Option<String>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct Unload {
    /// The model, as requests call it [default: the first]
    pub(crate) model: Option<String>,
}
