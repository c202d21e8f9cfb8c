//! Arguments of `orinctl run`.

use std::num::NonZeroU32;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl run policy.onnx
      what the network takes and gives, and its operators
  orinctl run policy.onnx --input observation=obs.npy
      what it answers
  orinctl run resnet18.onnx --shape input=1,3,224,224 --repeat 50
      how long it takes, on numbers between 0 and 1
  orinctl run detect.onnx --input images=frame.npy --output answers --backend nv
      every output as answers/NAME.npy, computed by the Orin's GPU
  orinctl run policy.onnx --input observation=obs.npy --daemon
      by the daemon, which keeps the network prepared

Inputs are NumPy's .npy files, or tensors as ONNX writes them (.pb). Where the network leaves an extent open, the \
input's own counts. Floating-point numbers of every width are computed in 32 bits, integers too. Opsets 7 to 28; an operator \
that is not there is named with its node before anything runs (`orinctl run --operators` lists those that are).")]
pub(crate) struct Run {
    /// ONNX file
    #[arg(required_unless_present = "operators")]
    pub(crate) model: Option<PathBuf>,
    /// An input's values, from a .npy or .pb file; may be given several times
    #[arg(short, long, value_name = "NAME=FILE", value_parser = pair)]
    pub(crate) input: Vec<(String, String)>,
    /// An input's shape, to be filled with numbers between 0 and 1
    #[arg(long, value_name = "NAME=N,N,..", value_parser = pair)]
    pub(crate) shape: Vec<(String, String)>,
    /// Directory for the outputs, each in a .npy file
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Device: nv, cuda, cpu, reference [default: cpu; the daemon's own with --daemon]
    #[arg(long, visible_alias = "device", value_name = "NAME", value_parser = device::NAMES)]
    pub(crate) backend: Option<String>,
    /// Have the daemon run it, beside its language model
    #[arg(long, conflicts_with_all = ["threads", "cpu_isa"])]
    pub(crate) daemon: bool,
    /// The CPU's worker threads [default: the cores allowed]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
    /// The CPU's instruction set: amx, avx512, avx2, neon, scalar [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub(crate) cpu_isa: Option<String>,
    /// Runs, of which the median time is told
    #[arg(short, long, value_name = "N", default_value = "1")]
    pub(crate) repeat: NonZeroU32,
    /// List the operators that are supported
    #[arg(long, conflicts_with_all = ["model", "input", "shape", "output"])]
    pub(crate) operators: bool,
    /// Print JSON, with all values
    #[arg(long)]
    pub(crate) json: bool,
}

/// `NAME=VALUE`
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("NAME=VALUE expected")?;
    Ok((name.to_owned(), value.to_owned()))
}
