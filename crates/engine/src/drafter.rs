//! A draft model: a small one beside the model that is served, on the same device, which guesses what that will say. It
//! sees the same tokens and chooses by the same noise, so that of a sampled answer too it guesses what is likely to come.
//! What it has evaluated it keeps, and goes on from where two sequences part.

use super::Scales;
use super::core::{Core, Row};
use super::slots::shared;
use device::{Error, MAX_SUBMISSIONS};
use model::tokenizer::Tokenizer;
use plan::Outputs;
use plan::sample::{NOT_FINITE, Sampling};

/// Tokens beyond which evaluating them is a step of its own: what that costs is not what a draft costs.
const FEW: usize = 16;
/// Ids by which vocabularies may differ at their ends, where files pad them.
const PADDING: usize = 128;

pub(super) struct Drafter {
    core: Core,
    /// Tokens whose keys and values its slot holds.
    held: Vec<u32>,
    /// Positions written since it began at 0.
    written: usize,
    sampled: Vec<u32>,
}

impl Drafter {
    /// A model with one slot, which has passed [`disagreement`].
    pub(super) const fn new(core: Core) -> Self {
        Self { core, held: Vec::new(), written: 0, sampled: Vec::new() }
    }

    pub(super) const fn core(&self) -> &Core {
        &self.core
    }

    /// What follows these tokens, at most `most` of them, 1 at least, ids below `vocabulary`. While it has yet to evaluate more than a few of
    /// them there is nothing: each call evaluates a step.
    ///
    /// # Errors
    /// Those of its device.
    pub(super) fn draft(
        &mut self,
        tokens: &[u32],
        sampling: Sampling,
        most: usize,
        vocabulary: usize,
    ) -> Result<Vec<u32>, Error> {
        let Self { core, held, written, sampled } = self;
        // As many as can be under way.
        let most = most.min(MAX_SUBMISSIONS);
        core.settle()?;
        if tokens.iter().any(|&token| token as usize >= core.vocabulary()) {
            return Ok(Vec::new());
        }
        // The newest is evaluated in any case.
        let mut from = shared(held, tokens).min(tokens.len() - 1);
        if !core.continues(held.len(), *written, from) {
            (from, *written) = (0, 0);
        }
        held.truncate(from);
        let (token, position) = (tokens[from], from as u32);
        let mut row = Row { slot: 0, token, position, sampling, adapters: Scales::NONE };
        let part = &tokens[from..tokens.len().min(from + core.chunk())];
        let whole = from + part.len() == tokens.len();
        *written = (*written).max(from + part.len() + most);
        match part.len() {
            1 => core.submit_decode(&[row], &[], true)?,
            _ => core.submit_chunk(
                row,
                part,
                None,
                if whole { Outputs::Last } else { Outputs::None },
                &[],
                true,
            )?,
        };
        core.finish(sampled)?;
        held.extend(part);
        if !whole || part.len() > FEW {
            return Ok(Vec::new());
        }
        let mut draft = vec![sampled[0]];
        if most > 1 && sampled[0] != NOT_FINITE {
            row = Row { token: sampled[0], position: tokens.len() as u32, ..row };
            core.submit_decode(&[row], &[], true)?;
            for _ in 2..most {
                core.submit_ahead()?;
            }
            for _ in 1..most {
                core.finish(sampled)?;
                held.extend(draft.last());
                draft.push(sampled[0]);
            }
        }
        let known = draft.iter().take_while(|&&id| (id as usize) < vocabulary).count();
        draft.truncate(known);
        Ok(draft)
    }
}

/// Why a draft model's vocabulary is not the served one's, if it is not.
pub(super) fn disagreement(ours: &Tokenizer, served: &Tokenizer) -> Option<String> {
    let [few, many] = [ours.vocab_size(), served.vocab_size()];
    if few.abs_diff(many) > PADDING {
        return Some(format!("its vocabulary has {few} tokens, the served model's {many}"));
    }
    let other = |id: &u32| ours.token_bytes(*id) != served.token_bytes(*id);
    let id = (0..few.min(many) as u32).find(other)?;
    let [here, there] = [ours, served].map(|all| all.token_text(id).unwrap_or_default());
    Some(format!("its token {id} is `{here}`, the served model's is `{there}`"))
}
