//! One answer of OpenAI's `completions` as it streams in: when each part came, and what its end tells.

use std::time::Instant;

use serde::{Deserialize, Serialize};

use super::{Client, Error};

/// What has come so far. Kept by the caller, so that it is there too when the answer breaks off.
#[derive(Clone, Debug, Default)]
pub struct Timed {
    /// When each part with a token came.
    pub parts: Vec<Instant>,
    /// Tokens of the answer, as the server counts them; the parts until it has.
    pub tokens: u64,
    /// Tokens of the prompt that came from a cache, where the server tells.
    pub cached: Option<u64>,
    /// Milliseconds from its arrival until the prompt's evaluation began, where the server tells.
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

/// orind's; llama.cpp's have the same name and other fields.
#[derive(Deserialize)]
struct Timings {
    #[serde(default)]
    queued_ms: Option<f64>,
}

impl Client {
    /// Sends a streaming request to `/v1/completions` and notes its answer in `timed`.
    pub async fn timed(&self, request: &impl Serialize, timed: &mut Timed) -> Result<(), Error> {
        let mut stream = self.stream::<Part>("/v1/completions", request).await?;
        while let Some(part) = stream.next().await? {
            // A token may have no text of its own yet; its part counts. The last may be the end alone.
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
