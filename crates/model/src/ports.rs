//! Names of the buffers of a model's plans: mailboxes (inputs), states, outputs, and computed weights.

/// Mailbox `I32 [M]`: the token of each row.
pub const TOKENS: &str = "tokens";
/// Mailbox `I32 [M]`: the position of each row in its sequence.
pub const POSITIONS: &str = "positions";
/// Mailbox `I32 [M]`: the KV slot of each row; negative for padding rows, which come last.
pub const SLOTS: &str = "slots";
/// Mailbox `I32 [N]`: the token row of each row of logits; only in plans with fewer rows of logits than of tokens.
pub const LOGIT_ROWS: &str = "logit_rows";
/// Mailbox `F32 [N]`: sampling temperature of each row of logits.
pub const TEMPERATURE: &str = "temperature";
/// Mailbox `I32 [N]`: top-k of each row of logits.
pub const TOP_K: &str = "top_k";
/// Mailbox `F32 [N]`: top-p of each row of logits.
pub const TOP_P: &str = "top_p";
/// Mailbox `F32 [N]`: the logarithm of min-p of each row of logits; see [`plan::sample::Sampling::min_p`].
pub const MIN_P: &str = "min_p";
/// Mailbox `I32 [N, A]`: edits of each row of logits before sampling, encoded as [`plan::sample::Adjustment`]; only
/// in plans with one row of logits for each sequence.
pub const ADJUSTMENTS: &str = "adjustments";
/// Mailbox `I32 [N, 2]`: low and high half of each row's seed.
pub const SEED: &str = "seed";
/// Mailbox `F32 [M, n]`: the scale of each adapter for each row; only in plans with adapters.
pub const ADAPTERS: &str = "adapters";
/// Mailbox `I32 [M]`: the next token of each row; only with a nextn layer, in plans that do not sample it.
pub const NEXT: &str = "next";
/// Mailbox `I32 [1]`: the row of [`NEXTN_HIDDEN`] that a draft starts from; only in the draft plan.
pub const HIDDEN_ROW: &str = "hidden_row";
/// State `F32 [H, D]`: hidden states behind the rows of logits of the latest step with logits.
pub const NEXTN_HIDDEN: &str = "nextn.hidden";
/// State `F32 [slots, D]`: the residual stream after the last layer, for another plan that computes the logits.
pub const DEFERRED: &str = "deferred";
/// Output `F32 [N, V]`.
pub const LOGITS: &str = "logits";
/// Output `F32 [M, D]`, in place of logits: each row after the last norm.
pub const HIDDEN: &str = "hidden";
/// Output `I32 [N]`: the sampled tokens.
pub const SAMPLED: &str = "sampled";

/// Weight `F32 [R/2]`, computed from metadata: radians per position of each rotary pair of the rotation with this
/// index.
#[must_use]
pub fn rope_frequencies(rotation: usize) -> String {
    format!("rope_frequencies.{rotation}")
}

/// The same for contexts longer than the training length, in files with separate frequencies for them.
#[must_use]
pub fn long_rope_frequencies(rotation: usize) -> String {
    format!("rope_frequencies.{rotation}.long")
}

/// Weight `F32 [D]`: ones, for norms without weights.
#[must_use]
pub fn ones(len: usize) -> String {
    format!("ones.{len}")
}

/// Weight `F32 [n]`: factor of each adapter at a scale of 1.
#[must_use]
pub fn adapter_factors(factors: &[f32]) -> String {
    factors
        .iter()
        .fold("adapter_factors".to_owned(), |name, f| format!("{name}.{:08x}", f.to_bits()))
}

#[must_use]
pub fn key_cache(layer: usize) -> String {
    format!("blk.{layer}.k_cache")
}

/// State `F32 [slots, 2, L - 1, C]`: the last inputs of a layer's short convolution.
#[must_use]
pub fn conv_state(layer: usize) -> String {
    format!("blk.{layer}.conv_state")
}

/// State `F32 [slots, 2, H, K, V]`: the matrices of a layer's linear attention.
#[must_use]
pub fn delta_state(layer: usize) -> String {
    format!("blk.{layer}.delta_state")
}

/// State `F32 [slots, 2, 1, D]`: the last input row of a layer's channel mixing.
#[must_use]
pub fn channel_state(layer: usize) -> String {
    format!("blk.{layer}.channel_state")
}

/// Weight `F32 [2 D]`: convolution weights of each channel for the previous value minus the current one.
#[must_use]
pub fn step_back(width: usize) -> String {
    format!("step_back.{width}")
}

/// State `I32 [slots, 2]`: number of tokens in each version of a recurrent state.
#[must_use]
pub fn held(state: &str) -> String {
    format!("{state}.held")
}

#[must_use]
pub fn value_cache(layer: usize) -> String {
    format!("blk.{layer}.v_cache")
}
