//! A peer's HTTP server: latencies as its client sees them, and its answers with log-probabilities.
//! The routes are OpenAI's; [`Dialect`] contains the differences between servers.

use std::time::{Duration, Instant};

use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::outcome::{Answer, Outcome};
use super::workload::{TOP, Workload};
use api::client::{Client, Error, Timed};
use bench::Kind;

/// Number of prompts whose first token is timed.
const FIRST: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// Log-probabilities contain token ids in addition to texts.
    Orind,
    /// `cache_prompt`, and `/completion` with `n_probs`.
    LlamaCpp,
    /// Only the fields of OpenAI's API description.
    OpenAi,
}

/// A server and the name of the model there.
#[derive(Clone, Debug)]
pub(super) struct Server {
    pub(super) client: Client,
    pub(super) model: String,
    pub(super) dialect: Dialect,
}

#[derive(Deserialize)]
struct Part {
    #[serde(default)]
    choices: Vec<Choice>,
}

#[derive(Deserialize)]
struct Choice {
    #[serde(default)]
    logprobs: Option<Logprobs>,
}

/// OpenAI's fields, and two additional ones of orind.
#[derive(Deserialize)]
struct Logprobs {
    #[serde(default)]
    tokens: Vec<String>,
    #[serde(default)]
    top_logprobs: Vec<Option<Map<String, Value>>>,
    #[serde(default)]
    token_ids: Vec<u32>,
    #[serde(default)]
    top: Vec<Vec<Alternative>>,
}

#[derive(Deserialize)]
struct Alternative {
    id: u32,
    logprob: f64,
}

/// Answer of llama.cpp's `/completion`.
#[derive(Deserialize)]
struct Completed {
    #[serde(default)]
    completion_probabilities: Vec<Probabilities>,
}

#[derive(Deserialize)]
struct Probabilities {
    id: u32,
    #[serde(default)]
    top_logprobs: Vec<Alternative>,
}

/// One streamed answer.
struct Streamed {
    first: Duration,
    /// Arrival times of the chunks after the first, from the request.
    parts: Vec<Duration>,
    tokens: u64,
    cached: Option<u64>,
}

impl Server {
    /// Builds a greedy request for `n` tokens after `prompt`.
    fn request(&self, prompt: &[u32], n: u32) -> Value {
        let mut request = json!({
            "model": self.model, "prompt": prompt, "max_tokens": n, "temperature": 0,
            "stream": true, "stream_options": { "include_usage": true },
        });
        match self.dialect {
            Dialect::Orind => request["ignore_eos"] = true.into(),
            Dialect::LlamaCpp => {
                request["ignore_eos"] = true.into();
                request["cache_prompt"] = false.into();
            }
            Dialect::OpenAi => {}
        }
        request
    }

    async fn streamed(&self, prompt: &[u32], n: u32) -> Result<Streamed, Error> {
        let sent = Instant::now();
        let request = self.request(prompt, n);
        let mut timed = Timed::default();
        self.client.timed(&request, &mut timed).await?;
        let times: Vec<Duration> = timed.parts.iter().map(|part| *part - sent).collect();
        let first = times.first().copied();
        let first = first.ok_or_else(|| Error::Protocol("an answer without a token".into()))?;
        Ok(Streamed { first, cached: timed.cached, tokens: timed.tokens, parts: times })
    }

    /// Measures the time to first token of new prompts, and the times between the following tokens.
    pub(super) async fn times(&self, work: &Workload, round: u32) -> Result<Outcome, Error> {
        let mut outcome = Outcome::default();
        for i in 0..FIRST {
            let prompt = work.prompt(work.prompt, round * 1000 + i);
            let streamed = self.streamed(&prompt, work.stream.max(2)).await?;
            outcome.first_token.push(streamed.first.as_secs_f64());
            let between = streamed.parts.windows(2).map(|pair| (pair[1] - pair[0]).as_secs_f64());
            outcome.between.push(between.collect());
            if let Some(cached) = streamed.cached {
                *outcome.cached.get_or_insert(0) += cached;
            }
        }
        Ok(outcome)
    }

    /// Measures the tests as a client sees them, for a server known only by its port.
    pub(super) async fn speeds(
        &self,
        work: &Workload,
        round: u32,
        outcome: &mut Outcome,
    ) -> Result<(), Error> {
        for (i, test) in (0u32..).zip(&work.tests) {
            // Several sequences and depth would measure its scheduler and its cache.
            if test.batch > 1 {
                continue;
            }
            let nonce = round * 1000 + 500 + i;
            let speed = match test.kind {
                Kind::Prefill if test.depth == 0 => {
                    let prompt = work.prompt(test.tokens, nonce);
                    f64::from(test.tokens) / self.streamed(&prompt, 1).await?.first.as_secs_f64()
                }
                Kind::Decode => {
                    let prompt = work.prompt(test.start(), nonce);
                    let streamed = self.streamed(&prompt, test.tokens + 1).await?;
                    let (Some(last), true) = (streamed.parts.last(), streamed.tokens > 1) else {
                        continue;
                    };
                    (streamed.tokens - 1) as f64 / (*last - streamed.first).as_secs_f64()
                }
                Kind::Prefill => continue,
            };
            if speed.is_finite() {
                outcome.speeds.insert(test.to_string(), speed);
            }
        }
        Ok(())
    }

    /// Requests the answers to the test prompts. `id` finds a token by its text if the server
    /// reports no ids.
    pub(super) async fn answers(
        &self,
        work: &Workload,
        id: &dyn Fn(&str) -> Option<u32>,
    ) -> Result<Vec<Answer>, Error> {
        let mut answers = Vec::new();
        for prompt in &work.judged {
            answers.push(match self.dialect {
                Dialect::LlamaCpp => self.completed(prompt, work.steps).await?,
                Dialect::Orind | Dialect::OpenAi => {
                    self.request_logprobs(prompt, work.steps, id).await?
                }
            });
        }
        Ok(answers)
    }

    async fn completed(&self, prompt: &[u32], steps: u32) -> Result<Answer, Error> {
        let request = json!({
            "prompt": prompt, "n_predict": steps, "temperature": 0, "n_probs": TOP,
            "cache_prompt": false, "ignore_eos": true,
        });
        let completed: Completed = self.client.ask("/completion", &request).await?;
        let mut answer = Answer::default();
        for step in completed.completion_probabilities {
            answer.tokens.push(step.id);
            answer.top.push(step.top_logprobs.iter().map(|a| (a.id, a.logprob)).collect());
        }
        Ok(answer)
    }

    async fn request_logprobs(
        &self,
        prompt: &[u32],
        steps: u32,
        id: &dyn Fn(&str) -> Option<u32>,
    ) -> Result<Answer, Error> {
        let mut request = self.request(prompt, steps);
        request["logprobs"] = TOP.into();
        let mut stream = self.client.stream::<Part>("/v1/completions", &request).await?;
        let mut answer = Answer::default();
        while let Some(part) = stream.next().await? {
            for logprobs in part.choices.into_iter().filter_map(|choice| choice.logprobs) {
                let unknown = u32::MAX;
                if logprobs.token_ids.is_empty() {
                    answer.tokens.extend(logprobs.tokens.iter().map(|t| id(t).unwrap_or(unknown)));
                    answer.top.extend(logprobs.top_logprobs.iter().map(|step| by_text(step, id)));
                } else {
                    answer.tokens.extend(logprobs.token_ids);
                    let top = logprobs.top.iter();
                    answer.top.extend(top.map(|s| s.iter().map(|a| (a.id, a.logprob)).collect()));
                }
            }
        }
        Ok(answer)
    }
}

/// Sorts alternatives by text, best first.
fn by_text(step: &Option<Map<String, Value>>, id: &dyn Fn(&str) -> Option<u32>) -> Vec<(u32, f64)> {
    let named = step.iter().flatten();
    let mut top: Vec<(u32, f64)> =
        named.filter_map(|(text, p)| Some((id(text)?, p.as_f64()?))).collect();
    top.sort_by(|a, b| b.1.total_cmp(&a.1));
    top
}
