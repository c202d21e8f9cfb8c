//! Draft model of speculative decoding: a small model on the same device that drafts what the served model will sample.
//!
//! It evaluates the same tokens and samples with the same noise, so that its drafts of sampled answers are likely to be
//! accepted too. It caches what it has evaluated and continues from the longest common prefix.

use super::Scales;
use super::runner::{Chunk, ModelRunner, Row};
use super::slots::common_prefix;
use device::{Error, MAX_SUBMISSIONS};
use model::tokenizer::Tokenizer;
use plan::Outputs;
use plan::sample::{NOT_FINITE, Sampling};

/// Largest number of tokens that one call evaluates and still drafts: the cost of more is not the cost of a draft.
const FEW: usize = 16;
/// Number of ids by which vocabularies may differ at their ends, because of padding.
const PADDING: usize = 128;

pub(super) struct DraftModel {
    runner: ModelRunner,
    /// Tokens in the KV cache of its slot.
    cached: Vec<u32>,
    /// Number of positions written since the sequence started at 0.
    written: usize,
    sampled: Vec<u32>,
}

impl DraftModel {
    /// Wraps a model with one slot, which has passed [`disagreement`].
    pub(super) const fn new(runner: ModelRunner) -> Self {
        Self { runner, cached: Vec::new(), written: 0, sampled: Vec::new() }
    }

    pub(super) const fn runner(&self) -> &ModelRunner {
        &self.runner
    }

    /// Drafts up to `most` tokens behind these tokens, ids below `vocabulary`. Each call evaluates one chunk; the draft
    /// is empty until at most [`FEW`] tokens are left to evaluate.
    ///
    /// # Errors
    /// Errors of the device.
    pub(super) fn draft(
        &mut self,
        tokens: &[u32],
        sampling: Sampling,
        most: usize,
        vocabulary: usize,
    ) -> Result<Vec<u32>, Error> {
        let Self { runner, cached, written, sampled } = self;
        let most = most.min(MAX_SUBMISSIONS);
        runner.settle()?;
        if tokens.iter().any(|&token| token as usize >= runner.vocabulary()) {
            return Ok(Vec::new());
        }
        // Evaluate at least the newest token.
        let mut from = common_prefix(cached, tokens).min(tokens.len() - 1);
        if !runner.continues(cached.len(), *written, from) {
            (from, *written) = (0, 0);
        }
        cached.truncate(from);
        let (token, position) = (tokens[from], from as u32);
        let mut row = Row { slot: 0, token, position, sampling, adapters: Scales::NONE };
        let part = &tokens[from..tokens.len().min(from + runner.chunk())];
        let whole = from + part.len() == tokens.len();
        *written = (*written).max(from + part.len() + most);
        match part.len() {
            1 => runner.steps().submit_decode(&[row], &[], true)?,
            _ => {
                let outputs = if whole { Outputs::Last } else { Outputs::None };
                let (tokens, edits) = (part, &[][..]);
                let chunk =
                    Chunk { start: row, tokens, next: None, outputs, edits, feeds_nextn: true };
                runner.steps().submit_chunk(&chunk)?
            }
        };
        runner.finish(sampled)?;
        cached.extend(part);
        if !whole || part.len() > FEW {
            return Ok(Vec::new());
        }
        let mut draft = vec![sampled[0]];
        if most > 1 && sampled[0] != NOT_FINITE {
            row = Row { token: sampled[0], position: tokens.len() as u32, ..row };
            runner.steps().submit_decode(&[row], &[], true)?;
            for _ in 2..most {
                runner.steps().submit_ahead()?;
            }
            for _ in 1..most {
                runner.finish(sampled)?;
                cached.extend(draft.last());
                draft.push(sampled[0]);
            }
        }
        let valid = draft.iter().take_while(|&&id| (id as usize) < vocabulary).count();
        draft.truncate(valid);
        Ok(draft)
    }
}

/// Returns how a draft model's vocabulary differs from the served one's, if it does.
pub(super) fn disagreement(ours: &Tokenizer, served: &Tokenizer) -> Option<String> {
    let [few, many] = [ours.vocab_size(), served.vocab_size()];
    if few.abs_diff(many) > PADDING {
        return Some(format!("its vocabulary has {few} tokens, the served model's has {many}"));
    }
    let other = |id: &u32| ours.token_bytes(*id) != served.token_bytes(*id);
    let id = (0..few.min(many) as u32).find(other)?;
    let [here, there] = [ours, served].map(|all| all.token_text(id).unwrap_or_default());
    Some(format!("its token {id} is `{here}`, the served model's is `{there}`"))
}
