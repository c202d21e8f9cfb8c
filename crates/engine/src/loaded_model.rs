//! A loaded model as the scheduler uses it: its runner, its draft model, and the statistics of drafts.

use super::Scales;
use super::draft_model::DraftModel;
use super::drafts::Drafts;
use super::runner::{ModelRunner, Row};
use device::Error;
use errors::one_line;
use plan::sample::Sampling;

pub(super) struct LoadedModel {
    pub(super) runner: ModelRunner,
    pub(super) speculation: Speculation,
}

impl LoadedModel {
    pub(super) fn new(mut runner: ModelRunner, draft_model: Option<DraftModel>) -> Self {
        if let Some(draft_model) = &draft_model {
            runner.set_draft(draft_model.runner().model().id.clone());
        }
        let speculation = Speculation { draft_model: draft_model.map(Box::new), drafts: None };
        Self { runner, speculation }
    }

    /// Bytes of memory of the model and its draft model.
    pub(super) fn resident_bytes(&self) -> u64 {
        let draft_model = self.speculation.draft_model.as_ref();
        self.runner.resident_bytes() + draft_model.map_or(0, |one| one.runner().resident_bytes())
    }

    /// True if a draft model or a nextn layer can draft.
    pub(super) fn can_draft(&self) -> bool {
        self.speculation.draft_model.is_some() || self.runner.has_nextn()
    }

    /// State of the drafts of a new sequence.
    pub(super) fn new_drafts(&self) -> Drafts {
        let Self { runner, speculation } = self;
        let new =
            || Drafts::new(runner.max_draft(), self.can_draft()).with_nextn(runner.nextn_share());
        speculation.drafts.as_ref().map_or_else(new, Drafts::next_answer)
    }

    /// Drafts up to `most` tokens behind `tokens`, all of which but the newest are in the slot: with the draft model, see
    /// [`DraftModel::draft`], or else with the nextn layer. A draft model that fails is dropped.
    ///
    /// # Errors
    /// Errors of the device while the nextn layer runs.
    pub(super) fn draft(
        &mut self,
        slot: u32,
        tokens: &[u32],
        sampling: Sampling,
        most: usize,
    ) -> Result<Vec<u32>, Error> {
        let Self { runner, speculation } = self;
        let Some(draft_model) = &mut speculation.draft_model else {
            let Some((&token, before)) = tokens.split_last() else { return Ok(Vec::new()) };
            let (position, adapters) = (before.len() as u32, Scales::NONE);
            return runner.nextn_draft(Row { slot, token, position, sampling, adapters }, most);
        };
        match draft_model.draft(tokens, sampling, most, runner.vocabulary()) {
            Ok(draft) => Ok(draft),
            Err(error) => {
                let (model, error) = (&draft_model.runner().model().id, one_line(&error));
                tracing::error!(model, error, "draft model failed and is not used any more");
                speculation.draft_model = None;
                Ok(Vec::new())
            }
        }
    }
}

/// Sources of drafts besides prompt lookup.
pub(super) struct Speculation {
    draft_model: Option<Box<DraftModel>>,
    /// Statistics of the latest finished answer.
    drafts: Option<Drafts>,
}

impl Speculation {
    /// Stores the statistics of a finished answer for the next one.
    pub(super) fn remember(&mut self, drafts: Drafts) {
        self.drafts = Some(drafts);
    }
}
