//! Host side of sampling: logits processors, grammar constraints and the samplers that devices lack.
//!
//! [`plan::sample`] defines temperature, top-k, top-p and min-p, which run on the device. This crate computes
//! the rest, in this order:
//!
//! 1. Add `bias`.
//! 2. Apply `repetition` to tokens of prompt and answer: divide positive logits, multiply the others.
//! 3. Subtract `frequency` times the token's count in the answer, and `presence` once.
//! 4. Subtract the DRY penalty from tokens that would extend a repetition.
//! 5. Mask tokens that the grammar ([`Constraint`]) rejects.
//! 6. Remove tokens by `min_p`, `typical_p`, Mirostat and XTC.
//! 7. Compute the dynamic temperature, then sample with [`plan::sample::choose`].
//!
//! Steps 1 to 5 become an [`plan::sample::Adjustment`], which the device can apply. `typical_p`, Mirostat, XTC
//! and dynamic temperature need `f64` probabilities of the whole vocabulary, so [`Sampler`] then samples on
//! the host. It also does so if there are more edits than a device accepts.
//!
//! Reported log-probabilities are those before step 1.

mod dry;
mod edits;
mod ranking;
mod sampler;
mod settings;
mod softmax;
mod truncation;

pub use grammar::{Constraint, Grammar, Grammars, unenforced};
pub use sampler::Sampler;
pub use settings::{Dry, DynamicTemperature, LogitsProcessors, Mirostat, Xtc};
