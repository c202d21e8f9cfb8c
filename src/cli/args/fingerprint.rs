//! Arguments of `orinctl fingerprint`.

use parity::fingerprint::LONGEST;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl fingerprint model.gguf
      the hash, and one for each part
  orinctl fingerprint model.gguf --backend cuda --expect 0123456789abcdef0123456789abcdef
      does this GPU compute the same bits as the machine that printed this hash?
  orinctl fingerprint model.gguf --longest 100
      faster; a different set of sequences, so a different hash

The hash is over the bits of the model's logits for a fixed set of token sequences: prompts of 1 to 600 tokens, \
each followed by three decoded tokens; one prompt in chunks of 512, 64, 33 and 2; sequences decoded \
together. The text of a model's answers follows from these bits, so two machines with the same hash give the \
same answers to the same prompts and seeds. The hash depends on the file, the version of the arithmetic \
(docs/numerics.md, printed as `numerics`) and --longest, not on threads, instruction set or kernel tuning. If two hashes \
differ, the first part that differs shows where to look: a matmul or a norm for prompts of up to 32 tokens, \
attention for longer prompts, a kernel that depends on the batch for chunks and sequences.

Exit code: 0, or 1 if the hash is not that of --expect.")]
pub(crate) struct Fingerprint {
    /// GGUF file or synthetic:NAME
    pub(crate) model: String,
    /// Device: nv, cuda, cpu, reference
    #[arg(long, visible_alias = "device", value_name = "NAME", default_value = "cpu", value_parser = device::NAMES)]
    pub(crate) backend: String,
    /// Worker threads of the CPU device [default: the allowed cores]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
    /// Instruction set of the CPU device: amx, avx512, avx2, neon, scalar [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub(crate) cpu_isa: Option<String>,
    /// Length of the longest prompt in tokens
    #[arg(long, value_name = "N", default_value_t = LONGEST, value_parser = clap::value_parser!(u32).range(1..=i64::from(LONGEST)))]
    pub(crate) longest: u32,
    /// Expected hash
    #[arg(long, value_name = "HASH")]
    pub(crate) expect: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
