//! Logit edits: bias and penalties of the next token, one edit for each token that they concern.

use std::collections::HashMap;

use plan::sample::{self, Edit};

use crate::LogitsProcessors;

/// Sum added to a logit, the repetition penalty, and the sum subtracted in the end.
type Parts = [f32; 3];

const NEUTRAL: Parts = [0.0, 1.0, 0.0];

/// Edits of the next token, and the counts that they depend on.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    pub(crate) list: Vec<Edit>,
    parts: HashMap<u32, Parts>,
    /// Number of occurrences of each token in the answer.
    counts: HashMap<u32, u32>,
}

impl Edits {
    /// Counts a token of the answer.
    pub(crate) fn count(&mut self, id: u32) {
        *self.counts.entry(id).or_default() += 1;
    }

    /// Computes the edits for the token behind `tokens`: steps 1 to 4.
    pub(crate) fn compute(&mut self, processors: &LogitsProcessors, tokens: &[u32]) {
        let LogitsProcessors { bias, repetition, frequency, presence, window, dry, .. } =
            processors;
        let parts = &mut self.parts;
        parts.clear();
        for (id, bias) in bias {
            parts.entry(*id).or_insert(NEUTRAL)[0] += bias;
        }
        let window = window.map_or(tokens.len(), |window| tokens.len().min(window as usize));
        let recent = &tokens[tokens.len() - window..];
        if *repetition != 1.0 {
            for id in recent {
                parts.entry(*id).or_insert(NEUTRAL)[1] = *repetition;
            }
        }
        if *frequency != 0.0 || *presence != 0.0 {
            for (id, count) in &self.counts {
                parts.entry(*id).or_insert(NEUTRAL)[2] += *frequency * *count as f32 + presence;
            }
        }
        if let Some(dry) = dry {
            dry.penalties(recent, |id, penalty| {
                parts.entry(id).or_insert(NEUTRAL)[2] += penalty;
            });
        }
        let edit = |(id, [add, factor, subtract]): (&u32, &Parts)| {
            sample::edit(*id, *add, *factor, *subtract)
        };
        self.list.clear();
        self.list.extend(parts.iter().map(edit));
    }
}
