//! Arguments of `orinctl run`.

use std::num::NonZeroU32;
use std::path::PathBuf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl run policy.onnx
      list inputs, outputs and operators of the network
  orinctl run policy.onnx --input observation=obs.npy
      run it on this input and print the outputs
  orinctl run resnet18.onnx --shape input=1,3,224,224 --repeat 50
      time it on random numbers between 0 and 1
  orinctl run detect.onnx --input images=frame.npy --output answers --backend nv
      run it on the Orin's GPU and write every output to answers/NAME.npy
  orinctl run policy.onnx --input observation=obs.npy --daemon
      run it in the daemon, which keeps the network prepared

Inputs are NumPy files (.npy) or ONNX tensors (.pb). The shape of an input sets the dimensions that the \
network leaves open. Floating-point numbers and integers of every width are computed in 32 bits. Opsets 7 to 28. Unsupported \
operators are reported with their node before anything runs (`orinctl run --operators` lists the supported ones).")]
pub(crate) struct Run {
    /// ONNX file
    #[arg(required_unless_present = "operators")]
    pub(crate) model: Option<PathBuf>,
    /// Values of an input, from a .npy or .pb file; may be repeated
    #[arg(short, long, value_name = "NAME=FILE", value_parser = pair)]
    pub(crate) input: Vec<(String, String)>,
    /// Shape of an input to fill with numbers between 0 and 1
    #[arg(long, value_name = "NAME=N,N,..", value_parser = pair)]
    pub(crate) shape: Vec<(String, String)>,
    /// Directory for the outputs, each in a .npy file
    #[arg(short, long, value_name = "DIR")]
    pub(crate) output: Option<PathBuf>,
    /// Device: nv, cuda, cpu, reference [default: cpu; the daemon's own with --daemon]
    #[arg(long, visible_alias = "device", value_name = "NAME", value_parser = device::NAMES)]
    pub(crate) backend: Option<String>,
    /// Run it in the daemon
    #[arg(long, conflicts_with_all = ["threads", "cpu_isa"])]
    pub(crate) daemon: bool,
    /// Worker threads of the CPU device [default: the allowed cores]
    #[arg(short, long, value_name = "N")]
    pub(crate) threads: Option<std::num::NonZeroUsize>,
    /// Instruction set of the CPU device: amx, avx512, avx2, neon, scalar [default: the best one]
    #[arg(long, value_name = "NAME")]
    pub(crate) cpu_isa: Option<String>,
    /// Number of runs; the median time is printed
    #[arg(short, long, value_name = "N", default_value = "1")]
    pub(crate) repeat: NonZeroU32,
    /// List the supported operators
    #[arg(long, conflicts_with_all = ["model", "input", "shape", "output"])]
    pub(crate) operators: bool,
    /// Print JSON, with all values
    #[arg(long)]
    pub(crate) json: bool,
}

/// Parses `NAME=VALUE`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
