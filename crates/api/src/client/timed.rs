//! Timing of one streamed OpenAI completion: arrival time of each part, and the final token counts.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{Client, Error};

/// Progress of a streamed answer. Owned by the caller, so that it survives an interrupted stream.
#[derive(Clone, Debug, Default)]
pub struct Timed {
    /// Arrival time of each part with a token.
    pub parts: Vec<Instant>,
    /// Tokens of the answer as counted by the server; until it reports them, the number of parts.
    pub tokens: u64,
    /// Prompt tokens read from the prefix cache, if the server reports them.
    pub cached: Option<u64>,
    /// Milliseconds from arrival until prompt evaluation began, if the server reports it.
    pub queued_ms: Option<f64>,
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    choices: Vec<Choice>,
    #[serde(default)]
    usage: Option<Usage>,
    #[serde(default)]
    timings: Option<Timings>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    text: String,
    #[serde(default)]
    finish_reason: Option<String>,
}

#[derive(Deserialize)]
struct Usage {
    #[serde(default)]
    completion_tokens: u64,
    #[serde(default)]
    prompt_tokens_details: Option<Details>,
}

#[derive(Deserialize)]
struct Details {
    #[serde(default)]
    cached_tokens: Option<u64>,
}

/// orind's timings. llama.cpp's object has the same name but other fields.
#[derive(Deserialize)]
struct Timings {
    #[serde(default)]
    queued_ms: Option<f64>,
}

impl Client {
    /// Streams a request to `/v1/completions` and records the answer's timing in `timed`.
    pub async fn timed(&self, request: &impl Serialize, timed: &mut Timed) -> Result<(), Error> {
        let mut stream = self.stream::<Part>("/v1/completions", request).await?;
        while let Some(part) = stream.next().await? {
            // A token may have no text yet; its part still counts. The last part may have only the
            // end.
            let token = |choice: &Choice| choice.finish_reason.is_none() || !choice.text.is_empty();
            if part.choices.iter().any(token) {
                timed.parts.push(Instant::now());
                timed.tokens += 1;
            }
            if let Some(usage) = part.usage {
                timed.tokens = usage.completion_tokens;
                timed.cached =
                    usage.prompt_tokens_details.and_then(|details| details.cached_tokens);
            }
            timed.queued_ms = part.timings.and_then(|t| t.queued_ms).or(timed.queued_ms);
        }
        Ok(())
    }
}
