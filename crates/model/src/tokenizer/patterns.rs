//! Pre-tokenisers: the patterns of each name in `tokenizer.ggml.pre`.
//!
//! The patterns are those that the models' authors publish. llama.cpp uses the same, with two exceptions that its
//! regular expressions require: in [`TEKKEN`] and [`GPT4O`] it distinguishes upper and lower case only in ASCII, and
//! excludes combining marks from words.

use regex::Regex;

use super::error::Error;
use super::split::{Pass, Splitter};

/// The pattern of GPT-2. [`Pass::Words`] implements the white-space alternatives `\s+(?!\S)|\s+`, which are
/// therefore left out of all word patterns here.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";

/// Llama 3: digits in groups of three.
const LLAMA3: &str = concat!(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]",
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);

/// Qwen2: as Llama 3, but with single digits.
const QWEN2: &str = concat!(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]",
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);

/// Qwen3.5: as Qwen2, but words contain combining marks.
const QWEN35: &str = concat!(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]",
    r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+"
);

/// Mistral's Tekken: a word is upper case, then lower case; digits are single.
const TEKKEN: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
);

/// GPT-4o (o200k): as Tekken, with contractions at the end of words, and digits in groups of three.
const GPT4O: &str = concat!(
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+",
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?",
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*",
    r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])?",
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+"
);

/// Letters of one word for DeepSeek LLM.
const DEEPSEEK_LETTERS: &str = concat!(
    r"\s?[A-Za-z\x{B5}\x{C0}-\x{D6}\x{D8}-\x{F6}\x{F8}-\x{1BA}\x{1BC}-\x{1BF}\x{1C4}-\x{293}",
    r"\x{295}-\x{2AF}\x{370}-\x{373}\x{376}\x{377}\x{37B}-\x{37D}\x{37F}\x{386}\x{388}-\x{38A}",
    r"\x{38C}\x{38E}-\x{3A1}\x{3A3}-\x{3F5}\x{3F7}-\x{481}\x{48A}-\x{52F}\x{531}-\x{556}",
    r"\x{10A0}-\x{10C5}\x{13A0}-\x{13F5}\x{13F8}-\x{13FD}\x{1C90}-\x{1CBA}\x{1CBD}-\x{1CBF}",
    r"\x{1D00}-\x{1D2B}\x{1D6B}-\x{1D77}\x{1D79}-\x{1D9A}\x{1E00}-\x{1F15}\x{1F18}-\x{1F1D}",
    r"\x{1F20}-\x{1F45}\x{1F48}-\x{1F4D}\x{1F50}-\x{1F57}\x{1F59}\x{1F5B}\x{1F5D}",
    r"\x{1F5F}-\x{1F7D}\x{1F80}-\x{1FB4}\x{1FB6}-\x{1FBC}\x{1FBE}\x{1FC2}-\x{1FC4}",
    r"\x{1FC6}-\x{1FCC}\x{1FD0}-\x{1FD3}\x{1FD6}-\x{1FDB}\x{1FE0}-\x{1FEC}\x{1FF2}-\x{1FF4}",
    r"\x{1FF6}-\x{1FFC}\x{2102}\x{2107}\x{210A}-\x{2113}\x{2115}\x{2119}-\x{211D}\x{2124}",
    r"\x{2126}\x{2128}\x{212A}-\x{212D}\x{212F}-\x{2134}\x{2139}\x{213C}-\x{213F}",
    r"\x{2145}-\x{2149}\x{214E}\x{2183}\x{2184}\x{2C00}-\x{2C7B}\x{2C7E}-\x{2CE4}",
    r"\x{2CEB}-\x{2CEE}\x{2CF2}\x{2CF3}\x{A640}-\x{A66D}\x{A680}-\x{A69B}\x{A722}-\x{A76F}",
    r"\x{A771}-\x{A787}\x{A78B}-\x{A78E}\x{AB70}-\x{ABBF}\x{FB00}-\x{FB06}\x{FB13}-\x{FB17}",
    r"\x{FF21}-\x{FF3A}\x{FF41}-\x{FF5A}\x{10400}-\x{1044F}\x{104B0}-\x{104D3}",
    r"\x{104D8}-\x{104FB}\x{10C80}-\x{10CB2}\x{10CC0}-\x{10CF2}\x{118A0}-\x{118DF}",
    r"\x{1E900}-\x{1E943}]+"
);
const DEEPSEEK_PUNCTUATION: &str =
    r"\s?[!-/:-~\x{FF01}-\x{FF0F}\x{FF1A}-\x{FF5E}\x{2018}-\x{201F}\x{3000}-\x{3002}]+";
const DEEPSEEK_IDEOGRAPHS: &str = r"[\x{4E00}-\x{9FA5}\x{800}-\x{4E00}\x{AC00}-\x{D7FF}]+";

/// DeepSeek V3, applied after digits and ideographs are isolated.
const DEEPSEEK3: &str = concat!(
    r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+"##,
    r"|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+"
);

/// Rule that splits text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// llama.cpp's rule for files without `tokenizer.ggml.pre`.
    Default,
    Gpt2,
    /// GPT-2's, applied after each digit is isolated.
    Digits,
    Falcon,
    Llama3,
    Qwen2,
    Qwen35,
    Tekken,
    Gpt4o,
    DeepseekLlm,
    DeepseekCoder,
    Deepseek3,
}

/// Meaning of a name in `tokenizer.ggml.pre`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PreTokeniser {
    pub(super) rule: Rule,
    /// A word that is a token is not merged from its bytes.
    pub(super) whole_words: bool,
    /// Texts begin with BOS, unless the file says otherwise.
    pub(super) adds_bos: bool,
}

impl PreTokeniser {
    const fn new(rule: Rule) -> Self {
        Self { rule, whole_words: false, adds_bos: false }
    }

    /// Pre-tokeniser with whole words and BOS, as in Llama 3 and Tekken.
    const fn whole(rule: Rule) -> Self {
        Self { rule, whole_words: true, adds_bos: true }
    }

    /// Supported values of `tokenizer.ggml.pre`, which are llama.cpp's names.
    const NAMES: [(&'static str, Self); 46] = [
        ("default", Self::new(Rule::Default)),
        ("gpt-2", Self::new(Rule::Gpt2)),
        ("phi-2", Self::new(Rule::Gpt2)),
        ("mpt", Self::new(Rule::Gpt2)),
        ("olmo", Self::new(Rule::Gpt2)),
        ("jais", Self::new(Rule::Gpt2)),
        ("mellum", Self::new(Rule::Gpt2)),
        ("gigachat", Self::new(Rule::Gpt2)),
        ("a.x-4.0", Self::new(Rule::Gpt2)),
        ("exaone4", Self::new(Rule::Gpt2)),
        ("trillion", Self::new(Rule::Gpt2)),
        ("granite-docling", Self::new(Rule::Gpt2)),
        ("starcoder", Self::new(Rule::Digits)),
        ("refact", Self::new(Rule::Digits)),
        ("command-r", Self::new(Rule::Digits)),
        ("smollm", Self::new(Rule::Digits)),
        ("codeshell", Self::new(Rule::Digits)),
        ("exaone", Self::new(Rule::Digits)),
        ("minerva-7b", Self::new(Rule::Digits)),
        ("falcon", Self::new(Rule::Falcon)),
        ("llama-bpe", Self::whole(Rule::Llama3)),
        ("llama3", Self::whole(Rule::Llama3)),
        ("llama-v3", Self::whole(Rule::Llama3)),
        ("falcon3", Self::whole(Rule::Llama3)),
        ("falcon-h1", Self::whole(Rule::Llama3)),
        ("pixtral", Self::whole(Rule::Llama3)),
        ("midm-2.0", Self::whole(Rule::Llama3)),
        ("lfm2", Self::whole(Rule::Llama3)),
        ("dbrx", Self::new(Rule::Llama3)),
        ("smaug-bpe", Self::new(Rule::Llama3)),
        ("qwen2", Self::new(Rule::Qwen2)),
        ("deepseek-r1-qwen", Self::new(Rule::Qwen2)),
        ("stablelm2", Self::new(Rule::Qwen2)),
        ("megrez", Self::new(Rule::Qwen2)),
        ("hunyuan", Self::new(Rule::Qwen2)),
        ("solar-open", Self::new(Rule::Qwen2)),
        ("grok-2", Self::new(Rule::Qwen2)),
        ("qwen35", Self::new(Rule::Qwen35)),
        ("tekken", Self::whole(Rule::Tekken)),
        ("gpt-4o", Self::new(Rule::Gpt4o)),
        ("llama4", Self::new(Rule::Gpt4o)),
        ("kanana2", Self::new(Rule::Gpt4o)),
        ("deepseek-llm", Self::new(Rule::DeepseekLlm)),
        ("deepseek-coder", Self::new(Rule::DeepseekCoder)),
        ("deepseek-v3", Self::new(Rule::Deepseek3)),
        ("hunyuan-dense", Self::new(Rule::Deepseek3)),
    ];

    /// The pre-tokeniser of this name; the default for a file without the key.
    pub(super) fn named(pre: Option<&str>) -> Result<Self, Error> {
        let pre = pre.filter(|pre| !pre.is_empty()).unwrap_or("default");
        let found = Self::NAMES.into_iter().find(|(name, _)| *name == pre);
        found.map(|(_, family)| family).ok_or_else(|| Error::PreTokeniser {
            pre: pre.to_owned(),
            supported: Self::NAMES.map(|(name, _)| name).join(", "),
        })
    }
}

impl Rule {
    pub(super) fn splitter(self) -> Result<Splitter, Error> {
        let regex = |pattern| Regex::new(pattern).map_err(|e| Error::Pattern(Box::new(e)));
        let words = |pattern| regex(pattern).map(Pass::Words);
        let isolate = |pattern| regex(pattern).map(Pass::Isolate);
        Ok(Splitter::new(match self {
            Self::Gpt2 => vec![words(GPT2)?],
            Self::Llama3 => vec![words(LLAMA3)?],
            Self::Qwen2 => vec![words(QWEN2)?],
            Self::Qwen35 => vec![words(QWEN35)?],
            Self::Tekken => vec![words(TEKKEN)?],
            Self::Gpt4o => vec![words(GPT4O)?],
            Self::Digits => vec![isolate(r"\p{N}")?, words(GPT2)?],
            Self::Falcon => {
                vec![isolate(r"[\p{P}$+<=>^~|`]+")?, words(GPT2)?, isolate("[0-9]{3}")?]
            }
            Self::Default => vec![
                isolate(r"[\p{P}$+<=>^~|]+")?,
                words(GPT2)?,
                isolate(r"\p{N}+")?,
                isolate("[0-9]{3}")?,
            ],
            Self::DeepseekLlm => vec![
                isolate("[\r\n]")?,
                isolate(DEEPSEEK_LETTERS)?,
                isolate(DEEPSEEK_PUNCTUATION)?,
                isolate(r"\s+$")?,
                isolate(DEEPSEEK_IDEOGRAPHS)?,
                isolate(r"\p{N}+")?,
            ],
            Self::DeepseekCoder => vec![
                isolate("[\r\n]")?,
                isolate(r"\s?\p{L}+")?,
                isolate(r"\s?\p{P}+")?,
                isolate(DEEPSEEK_IDEOGRAPHS)?,
                isolate(r"\p{N}")?,
            ],
            Self::Deepseek3 => {
                vec![
                    isolate(r"\p{N}{1,3}")?,
                    isolate(r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+")?,
                    words(DEEPSEEK3)?,
                ]
            }
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn aliases_and_missing_names_resolve() {
        assert_eq!(PreTokeniser::named(None).unwrap().rule, Rule::Default);
        assert_eq!(PreTokeniser::named(Some("")).unwrap().rule, Rule::Default);
        for name in ["llama-bpe", "llama3", "llama-v3", "lfm2"] {
            let family = PreTokeniser::named(Some(name)).unwrap();
            assert_eq!(family, PreTokeniser::whole(Rule::Llama3), "{name}");
        }
        let message = PreTokeniser::named(Some("superbpe")).unwrap_err().to_string();
        assert!(message.contains("`superbpe`") && message.contains("llama-bpe"), "{message}");
    }

    #[test]
    fn names_are_unique() {
        let names = PreTokeniser::NAMES.map(|(name, _)| name);
        let different: std::collections::BTreeSet<&str> = names.into();
        assert_eq!(different.len(), names.len());
    }
}
