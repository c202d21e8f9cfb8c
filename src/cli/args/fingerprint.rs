//! Arguments of `orinctl fingerprint`.

use parity::fingerprint::LONGEST;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl fingerprint model.gguf
      the hash, and one of each part
  orinctl fingerprint model.gguf --backend cuda --expect 0123456789abcdef0123456789abcdef
      does this GPU compute what the machine with that hash did?
  orinctl fingerprint model.gguf --longest 100
      quicker; another set of sequences has another hash

The hash is over the bits of the model's logits for a fixed set of token sequences: prompts of 1 to 600 tokens, \
each with three tokens decoded after it; one prompt in chunks of 512, 64, 33 and 2; sequences decoded \
together. The text of a model's answers follows from these bits, so two machines with the same hash give the \
same answers to the same prompts and seeds. The file, the version of the arithmetic (docs/numerics.md, told as \
`numerics`) and --longest decide the hash; threads, the CPU's instruction set and how kernels are tuned do not. Where two hashes \
differ, the first part that does says where to look: prompts of up to 32 tokens are a product or a norm, longer \
ones attention, chunks and sequences a kernel that minds its company.

Exit code: 0, or 1 where the hash is not the one of --expect.")]
pub(crate) struct Fingerprint {
    /// GGUF file or synthetic:NAME
    pub(crate) model: String,
    /// Device: nv, cuda, cpu, reference
    #[arg(long, visible_alias = "device", value_name = "NAME", default_value = "cpu", value_parser = device::NAMES)]
    pub(crate) backend: String,
    /// The CPU's worker threads [default: the cores allowed]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
    /// The CPU's instruction set: amx, avx512, avx2, neon, scalar [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub(crate) cpu_isa: Option<String>,
    /// Tokens of the longest prompt
    #[arg(long, value_name = "N", default_value_t = LONGEST, value_parser = clap::value_parser!(u32).range(1..=i64::from(LONGEST)))]
    pub(crate) longest: u32,
    /// The hash that it must be
    #[arg(long, value_name = "HASH")]
    pub(crate) expect: Option<String>,
    /// Print JSON
    #[arg(long)]
    pub(crate) json: bool,
}
