//! Settings of the logits processors and host samplers of one request.

/// Settings that go beyond [`plan::sample::Sampling`]; [`LogitsProcessors::NONE`] changes nothing.
#[derive(Clone, Debug, PartialEq)]
pub struct LogitsProcessors {
    /// Value added to the logit of each listed token.
    pub bias: Vec<(u32, f32)>,
    /// 1 disables the penalty.
    pub repetition: f32,
    pub frequency: f32,
    pub presence: f32,
    /// Number of last tokens that `repetition` and DRY consider: 0 for none, `None` for all.
    pub window: Option<u32>,
    pub dry: Option<Dry>,
    /// Probability mass of the tokens whose surprise is nearest to the entropy; 1 disables the sampler.
    pub typical_p: f32,
    pub mirostat: Option<Mirostat>,
    pub xtc: Option<Xtc>,
    pub dynamic: Option<DynamicTemperature>,
}

/// Don't Repeat Yourself (Weidmann, 2024).
#[derive(Clone, Debug, PartialEq)]
pub struct Dry {
    pub multiplier: f32,
    pub base: f32,
    /// Longest repetition without a penalty.
    pub allowed: u32,
    /// Ids of sequence breakers, ascending.
    pub breakers: Vec<u32>,
}

/// Exclude Top Choices (Weidmann, 2024): with `probability`, removes every token of at least `threshold`
/// except the least likely of them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Xtc {
    pub probability: f32,
    pub threshold: f32,
}

/// Mirostat 2 (Basu et al., ICLR 2021): controls the surprise of tokens towards `tau` bits.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mirostat {
    pub tau: f32,
    pub eta: f32,
}

/// Temperature between `least` and `most`, by the ratio of entropy to its maximum, to the power of `exponent`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct DynamicTemperature {
    pub least: f32,
    pub most: f32,
    pub exponent: f32,
}

impl LogitsProcessors {
    pub const NONE: Self = Self {
        bias: Vec::new(),
        repetition: 1.0,
        frequency: 0.0,
        presence: 0.0,
        window: None,
        dry: None,
        typical_p: 1.0,
        mirostat: None,
        xtc: None,
        dynamic: None,
    };

    /// True if a sampler needs the probabilities of the whole vocabulary, which devices do not compute.
    pub(crate) const fn needs_host(&self) -> bool {
        let Self { typical_p, mirostat, xtc, dynamic, .. } = self;
        *typical_p < 1.0 || mirostat.is_some() || xtc.is_some() || dynamic.is_some()
    }

    /// True if the edits depend on the tokens generated so far.
    pub(crate) fn depends_on_tokens(&self) -> bool {
        let Self { repetition, frequency, presence, dry, .. } = self;
        *repetition != 1.0 || *frequency != 0.0 || *presence != 0.0 || dry.is_some()
    }
}

impl Default for LogitsProcessors {
    fn default() -> Self {
        Self::NONE
    }
}
