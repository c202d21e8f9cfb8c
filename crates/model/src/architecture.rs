//! The model families and what tells them apart.

use plan::RopeStyle;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Architecture {
    /// Llama 3, 3.1, 3.2 and whatever else calls itself `llama` in GGUF and has a byte-level BPE
    /// vocabulary (Llama 2 does not).
    Llama,
    Qwen3,
}

impl Architecture {
    pub const ALL: [Self; 2] = [Self::Llama, Self::Qwen3];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Llama => "llama",
            Self::Qwen3 => "qwen3",
        }
    }

    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|a| a.name() == name)
    }

    /// All names, for messages.
    #[must_use]
    pub fn names() -> String {
        Self::ALL.map(Self::name).join(", ")
    }

    /// How rotary pairs lie. GGUF stores Llama's query and key rows permuted so that pairs are
    /// neighbours; other families keep the halves apart.
    #[must_use]
    pub const fn rope_style(self) -> RopeStyle {
        match self {
            Self::Llama => RopeStyle::Interleaved,
            Self::Qwen3 => RopeStyle::HalfSplit,
        }
    }

    /// True when each head's queries and keys are normalised before rotation.
    #[must_use]
    pub const fn qk_norm(self) -> bool {
        match self {
            Self::Llama => false,
            Self::Qwen3 => true,
        }
    }
}
