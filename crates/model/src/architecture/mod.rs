//! Supported model families. Each file has one function that reads a family's hyperparameters from metadata; the
//! building blocks are in `hyper` and `decoder`.

mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod gpt2;
mod gpt_oss;
mod granite;
mod keys;
mod lfm2;
mod llama;
mod mistral3;
mod olmoe;
mod phi2;
mod phi3;
mod qwen2;
mod qwen2moe;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod rope;
mod rwkv7;
mod smollm3;
#[cfg(test)]
mod tests;

use crate::error::{Error, Result};
use crate::gguf::Gguf;
use crate::hyper::Hyperparameters;
use keys::Keys;

/// A supported family.
#[derive(Clone, Copy, Debug)]
pub struct Architecture {
    name: &'static str,
    describe: fn(&Keys<'_>) -> Result<Hyperparameters>,
}

/// All families, by their name in `general.architecture`.
const ALL: [Architecture; 22] = [
    Architecture { name: "gemma", describe: gemma::describe },
    Architecture { name: "gemma2", describe: gemma2::describe },
    Architecture { name: "gemma3", describe: gemma3::describe },
    Architecture { name: "gemma4", describe: gemma4::describe },
    Architecture { name: "gpt-oss", describe: gpt_oss::describe },
    Architecture { name: "gpt2", describe: gpt2::describe },
    Architecture { name: "granite", describe: granite::describe },
    Architecture { name: "lfm2", describe: lfm2::describe },
    Architecture { name: "llama", describe: llama::describe },
    Architecture { name: "mistral3", describe: mistral3::describe },
    Architecture { name: "olmoe", describe: olmoe::describe },
    Architecture { name: "phi2", describe: phi2::describe },
    Architecture { name: "phi3", describe: phi3::describe },
    Architecture { name: "qwen2", describe: qwen2::describe },
    Architecture { name: "qwen2moe", describe: qwen2moe::describe },
    Architecture { name: "qwen3", describe: qwen3::describe },
    Architecture { name: "qwen35", describe: qwen35::describe },
    Architecture { name: "qwen35moe", describe: qwen35moe::describe },
    Architecture { name: "qwen3moe", describe: qwen3moe::describe },
    Architecture { name: "qwen3next", describe: qwen3next::describe },
    Architecture { name: "rwkv7", describe: rwkv7::describe },
    Architecture { name: "smollm3", describe: smollm3::describe },
];

impl Architecture {
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }

    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        ALL.into_iter().find(|a| a.name == name)
    }

    /// All names, separated by commas.
    #[must_use]
    pub fn names() -> String {
        ALL.map(Self::name).join(", ")
    }

    /// Hyperparameters of a file, and its tensors that are not weights: those read here, and those to ignore.
    pub(crate) fn describe(self, gguf: &Gguf) -> Result<(Hyperparameters, Vec<String>), Error> {
        let keys = Keys::new(gguf, self.name);
        let hyper = (self.describe)(&keys)?;
        Ok((hyper, keys.into_ignored()))
    }
}
