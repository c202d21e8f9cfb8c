//! Arguments of `orinctl run`, for ONNX networks and for language models.

use std::num::NonZeroU32;
use std::path::{Path, PathBuf};

use super::{Chat, Generate, ModelChoice};
use crate::error::Error;
use crate::show::is_gguf;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  orinctl run model.gguf
      chat with a language model, as `orinctl chat -m` does
  orinctl run hf.co/OWNER/REPO:Q4_K_M 'Name three primes.'
      answer one question
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
network leaves open. Floating-point numbers and integers of every width are computed in 32 bits. Opsets 1 to 28. Unsupported \
operators are reported with their node before anything runs (`orinctl run --operators` lists the supported ones).")]
pub(crate) struct Run {
    /// ONNX file, or a language model by any of its names
    #[arg(required_unless_present = "operators")]
    pub(crate) model: Option<PathBuf>,
    /// Question for a language model; without one a chat begins
    #[arg(value_name = "QUESTION")]
    pub(crate) question: Option<String>,
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

impl Run {
    /// Returns whether the model is a language model: a GGUF file, or a name that is no file.
    pub(crate) fn is_language_model(&self) -> bool {
        self.model.as_deref().is_some_and(|path| {
            let onnx = path.extension().is_some_and(|extension| extension == "onnx");
            is_gguf(path) || !(onnx || path.exists())
        })
    }

    fn choice(&self) -> ModelChoice {
        ModelChoice {
            backend: self.backend.as_ref().and_then(|name| name.parse().ok()),
            threads: self.threads.map(Into::into),
            cpu_isa: self.cpu_isa.as_ref().and_then(|name| name.parse().ok()),
            ..ModelChoice::named(
                self.model.as_deref().map(Path::display).map(|name| name.to_string()),
            )
        }
    }

    /// Arguments of the chat with a language model.
    pub(crate) fn chat(&self) -> Chat {
        Chat {
            model: self.choice(),
            system: None,
            max_tokens: None,
            temp: None,
            top_k: None,
            top_p: None,
            seed: None,
        }
    }

    /// Arguments of one question for a language model, if there is one.
    pub(crate) fn question(&self) -> Result<Option<Generate>, Error> {
        let network = [
            (!self.input.is_empty(), "--input"),
            (!self.shape.is_empty(), "--shape"),
            (self.output.is_some(), "--output"),
            (self.daemon, "--daemon"),
            (self.json, "--json"),
        ];
        if let Some((_, option)) = network.iter().find(|(given, _)| *given) {
            let model = self.choice().model.unwrap_or_default();
            return Err(Error::Usage(format!(
                "{option} applies to ONNX networks, but {model} is a language model; \
                 `orinctl generate --help` has its options"
            )));
        }
        let asked = |text: &String| Generate::question(self.choice(), text.clone());
        Ok(self.question.as_ref().map(asked))
    }
}

/// Parses `NAME=VALUE`.
pub(super) fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    Ok((name.to_owned(), value.to_owned()))
}
