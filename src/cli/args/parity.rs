//! Arguments of `orinctl parity`.

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl parity
      compare every device of this machine
  orinctl parity --devices cpu -m model.gguf --prompt 'The capital of France is'
  orinctl parity --devices cuda -m large.gguf --reference cpu --no-steps
  tegra-sim run -- orinctl parity --devices nv
      the NV driver on a simulated Orin

Devices that cannot be used here are skipped with the reason. Exit code: 0 if all others are within \
the tolerance, 1 if one is not or if none could be used.")]
pub(crate) struct Parity {
    /// Devices: nv, cuda, cpu, reference
    #[arg(long, value_name = "NAME,..", value_delimiter = ',', default_value = "nv,cuda,cpu")]
    pub(crate) devices: Vec<String>,
    /// GGUF file or synthetic:NAME
    #[arg(short, long, default_value = "synthetic:tiny-llama:q8_0")]
    pub(crate) model: String,
    /// Prompt; may be repeated [default: seeded tokens]
    #[arg(short, long = "prompt", alias = "prompts", value_name = "TEXT")]
    pub(crate) prompts: Vec<String>,
    /// Tokens decoded after each prompt
    #[arg(short = 'n', long = "tokens", value_name = "N", default_value_t = 16)]
    pub(crate) tokens: usize,
    /// Device to compare the model's logits with; the reference is slow on large models
    #[arg(long, value_name = "NAME", default_value = "reference")]
    pub(crate) reference: String,
    /// Skip the single steps
    #[arg(long)]
    pub(crate) no_steps: bool,
    /// Test tensor operations and their gradients against PyTorch's values, instead of a model
    #[arg(long, conflicts_with_all = ["prompts", "no_steps"])]
    pub(crate) ops: bool,
    /// Worker threads of the CPU device [default: the allowed cores]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<usize>,
    /// Print JSON: every step of every prompt
    #[arg(long)]
    pub(crate) json: bool,
}
