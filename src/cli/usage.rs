//! Summary line of an answer: tokens, time to first token, speed.

use std::time::Instant;

use api::{Timings, Usage};

/// Usage and timings collected from a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AnswerStats {
    usage: Option<Usage>,
    timings: Option<Timings>,
}

impl AnswerStats {
    /// Adds the numbers of one chunk.
    pub(super) fn add(&mut self, usage: Option<Usage>, timings: Option<Timings>) {
        self.usage = usage.or(self.usage);
        self.timings = timings.or(self.timings);
    }

    /// Formats the summary: `12 tokens in, 64 out, first after 210 ms, then 15.20 tok/s`.
    pub(super) fn line(&self, begin: Instant) -> String {
        let usage = self.usage.unwrap_or_default();
        let mut line =
            format!("{} tokens in, {} out", usage.prompt_tokens, usage.completion_tokens);
        match self.timings {
            Some(times) => {
                line.push_str(&format!(", first after {:.0} ms", times.first_token_ms));
                let rest = (times.total_ms - times.first_token_ms) / 1e3;
                if usage.completion_tokens > 1 && rest > 0.0 {
                    let speed = (usage.completion_tokens - 1) as f64 / rest;
                    line.push_str(&format!(", then {speed:.2} tok/s"));
                }
            }
            None => line.push_str(&format!(" in {:.1} s", begin.elapsed().as_secs_f64())),
        }
        line
    }
}
