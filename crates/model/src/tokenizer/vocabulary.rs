//! The tokeniser's metadata in a GGUF file, as plain data.

use crate::gguf::{self, Metadata, Strings};

const BOS: &str = "tokenizer.ggml.bos_token_id";
const EOS: &str = "tokenizer.ggml.eos_token_id";
const EOT: &str = "tokenizer.ggml.eot_token_id";
const EOM: &str = "tokenizer.ggml.eom_token_id";
const PAD: &str = "tokenizer.ggml.padding_token_id";

/// The values of `tokenizer.ggml.*` and `tokenizer.chat_template`. [`super::Tokenizer::new`] checks them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Vocabulary {
    /// The algorithm (`model`): `gpt2` is byte-level BPE, `llama` is SentencePiece with scores, `gemma4` is
    /// SentencePiece with merges, `rwkv` takes the longest token first.
    pub model: String,
    /// The model's architecture (`general.architecture`).
    pub architecture: Option<String>,
    /// The pre-tokeniser (`pre`).
    pub pre: Option<String>,
    /// The text of every token, by id (`tokens`): in the byte-level alphabet for `gpt2`, as Python bytes literals for
    /// `rwkv`, with U+2581 for a space for the others.
    pub tokens: Strings,
    /// The type of every token, by id (`token_type`); empty if all are normal.
    pub token_types: Vec<i32>,
    /// Merges in order of priority (`merges`), each two tokens separated by a space.
    pub merges: Strings,
    /// The score of every token, by id (`scores`).
    pub scores: Vec<f32>,
    /// Text is encoded as if it began with a space (`add_space_prefix`).
    pub add_space_prefix: Option<bool>,
    /// Begin of text (`bos_token_id`).
    pub bos: Option<u32>,
    /// End of text (`eos_token_id`).
    pub eos: Option<u32>,
    /// End of turn (`eot_token_id`).
    pub eot: Option<u32>,
    /// End of message (`eom_token_id`).
    pub eom: Option<u32>,
    /// Padding (`padding_token_id`).
    pub pad: Option<u32>,
    /// Prompts begin with [`bos`](Self::bos) (`add_bos_token`).
    pub add_bos: Option<bool>,
    /// Prompts end with [`eos`](Self::eos) (`add_eos_token`).
    pub add_eos: Option<bool>,
    pub chat_template: Option<String>,
}

impl Vocabulary {
    /// Reads the tokeniser's metadata.
    ///
    /// # Errors
    /// If the model or the tokens are missing, or a key has an unexpected type.
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, gguf::Error> {
        let merges = metadata.str_array_opt("tokenizer.ggml.merges")?;
        let token_types = metadata.i32_array_opt("tokenizer.ggml.token_type")?;
        let scores = metadata.f32_array_opt("tokenizer.ggml.scores")?;
        Ok(Self {
            architecture: metadata.str_opt("general.architecture")?.map(str::to_owned),
            model: metadata.str("tokenizer.ggml.model")?.to_owned(),
            pre: metadata.str_opt("tokenizer.ggml.pre")?.map(str::to_owned),
            tokens: metadata.str_array("tokenizer.ggml.tokens")?.clone(),
            token_types: token_types.map(<[_]>::to_vec).unwrap_or_default(),
            merges: merges.cloned().unwrap_or_default(),
            scores: scores.map(<[_]>::to_vec).unwrap_or_default(),
            add_space_prefix: metadata.bool_opt("tokenizer.ggml.add_space_prefix")?,
            bos: metadata.u32_opt(BOS)?,
            eos: metadata.u32_opt(EOS)?,
            eot: metadata.u32_opt(EOT)?,
            eom: metadata.u32_opt(EOM)?,
            pad: metadata.u32_opt(PAD)?,
            add_bos: metadata.bool_opt("tokenizer.ggml.add_bos_token")?,
            add_eos: metadata.bool_opt("tokenizer.ggml.add_eos_token")?,
            chat_template: metadata.str_opt("tokenizer.chat_template")?.map(str::to_owned),
        })
    }

    pub(super) fn named_ids(&self) -> [(&'static str, Option<u32>); 5] {
        [(BOS, self.bos), (EOS, self.eos), (EOT, self.eot), (EOM, self.eom), (PAD, self.pad)]
    }

    /// The text of a token; `None` without an id or outside the vocabulary.
    pub(super) fn text(&self, id: Option<u32>) -> Option<&str> {
        self.tokens.get(id? as usize)
    }
}
