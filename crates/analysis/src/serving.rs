//! Serving under load: the requests and arrival times, generated before anything is sent, and the
//! evaluation of their measured times. This module sends nothing itself.
//!
//! All times are in seconds from the start of the run. Time to first token counts from the planned
//! arrival, so waiting for a free client counts as waiting for the server.

use std::collections::BTreeMap;
use std::fmt::{self, Write as _};
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::statistics::Percentiles;
use plan::sample::philox;

/// Random streams, one per quantity.
const GAP: u32 = 1;
const PROMPT: u32 = 2;
const ANSWER: u32 = 3;

/// Lengths in tokens, drawn log-uniformly: as many between 32 and 64 as between 256 and 512.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lengths {
    pub least: u32,
    pub most: u32,
}

impl Lengths {
    /// Length at a position from 0 to 1 (exclusive) of the distribution.
    fn at(self, place: f64) -> u32 {
        let (low, high) = (f64::from(self.least), f64::from(self.most) + 1.0);
        let length = (low.ln() + place * (high.ln() - low.ln())).exp();
        (length as u32).clamp(self.least, self.most)
    }
}

impl FromStr for Lengths {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (least, most) = text.split_once('-').unwrap_or((text, text));
        match (least.parse(), most.parse()) {
            (Ok(least), Ok(most)) if 0 < least && least <= most => Ok(Self { least, most }),
            _ => Err("expected a length above 0 or a range, such as 64 or 32-512".into()),
        }
    }
}

impl fmt::Display for Lengths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.least == self.most {
            return self.least.fmt(f);
        }
        write!(f, "{}-{}", self.least, self.most)
    }
}

/// Load on the server.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Load {
    pub seed: u64,
    /// Maximum number of concurrent requests.
    pub clients: usize,
    /// Requests per second, as a Poisson process; `None` for a closed loop: each client sends its
    /// next request after its answer.
    pub rate: Option<f64>,
    /// Duration of sending.
    pub seconds: f64,
    pub prompt_tokens: Lengths,
    pub answer_tokens: Lengths,
    /// Length of an additional prompt that is sent after a third of the time.
    #[serde(default)]
    pub long: Option<u32>,
}

impl Load {
    /// Uniform random number in (0, 1).
    fn unit(&self, what: u32, i: u32) -> f64 {
        (f64::from(philox([i, what, 0x5e7_7e15, 0], self.seed)[0]) + 0.5) / 4_294_967_296.0
    }

    /// Arrival times; `None` for a closed loop.
    pub fn arrivals(&self) -> Option<Vec<f64>> {
        let rate = self.rate?;
        let mut at = 0.0;
        let next = |i| {
            at -= self.unit(GAP, i).ln() / rate;
            (at < self.seconds).then_some(at)
        };
        Some((0..u32::MAX).map_while(next).collect())
    }

    /// Prompt and answer length of a request.
    pub fn lengths(&self, i: u32) -> (u32, u32) {
        (self.prompt_tokens.at(self.unit(PROMPT, i)), self.answer_tokens.at(self.unit(ANSWER, i)))
    }

    /// Context length of the longest request.
    pub fn context(&self) -> usize {
        let drawn = self.prompt_tokens.most + self.answer_tokens.most;
        drawn.max(self.long.unwrap_or(0) + Self::LONG_ANSWER) as usize
    }

    /// Length of the long prompt's answer.
    pub const LONG_ANSWER: u32 = 1;

    /// Arrival time of the long prompt.
    pub fn long_arrival(&self) -> f64 {
        self.seconds / 3.0
    }
}

/// Limits of a good answer, in seconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limits {
    /// Maximum time to first token.
    pub first_token: f64,
    /// Maximum mean time between tokens.
    pub between: f64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Class of the failure: `503 queue_full`, `connection broken`.
    pub kind: String,
    pub message: String,
    /// HTTP status, if any.
    pub status: Option<u16>,
}

/// A request and its times.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Request {
    pub prompt_tokens: u32,
    /// Requested number of tokens.
    pub answer_tokens: u32,
    pub planned: f64,
    pub sent: f64,
    /// Arrival time of each chunk with a token.
    pub parts: Vec<f64>,
    pub end: f64,
    /// Number of tokens received.
    pub tokens: u64,
    /// Prompt tokens from a cache, if the server reports them.
    pub cached: Option<u64>,
    /// Queue wait, if the server reports it.
    pub queued: Option<f64>,
    pub failure: Option<Failure>,
}

impl Request {
    /// Time to first token from the planned arrival.
    pub fn first_token(&self) -> Option<f64> {
        Some(self.parts.first()? - self.planned)
    }

    /// Mean time between tokens; `None` for a single token.
    pub fn between(&self) -> Option<f64> {
        let further = self.tokens.checked_sub(1).filter(|n| *n > 0)?;
        Some((self.parts.last()? - self.parts.first()?) / further as f64)
    }

    /// Returns whether the answer is within the limits. A failed request never is; a single token
    /// has no time between tokens.
    pub fn good(&self, limits: Limits) -> bool {
        self.failure.is_none()
            && self.first_token().is_some_and(|time| time <= limits.first_token)
            && self.between().is_none_or(|time| time <= limits.between)
    }
}

/// Answers within the limits.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Goodput {
    pub requests: u64,
    /// Fraction of all requests, including failed ones.
    pub share: f64,
    /// Tokens per second of those answers.
    pub tokens_per_second: f64,
}

/// Effect of the long prompt on the answers that were streaming when it arrived.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Long {
    pub request: Request,
    /// Longest time between two chunks of an answer while the long prompt waited for its first
    /// token.
    pub worst_meanwhile: Option<f64>,
    /// Longest time between two chunks at all other times.
    pub worst_otherwise: Option<f64>,
}

impl Long {
    fn of(request: Request, others: &[Request]) -> Self {
        let end = request.parts.first().copied().unwrap_or(request.end);
        let (mut meanwhile, mut otherwise) = (None, None);
        for pair in others.iter().flat_map(|other| other.parts.windows(2)) {
            let during = pair[0] < end && pair[1] > request.sent;
            let worst: &mut Option<f64> = if during { &mut meanwhile } else { &mut otherwise };
            *worst = Some(worst.unwrap_or(0.0).max(pair[1] - pair[0]));
        }
        Self { request, worst_meanwhile: meanwhile, worst_otherwise: otherwise }
    }
}

/// A run with its requests in order of arrival.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Serving {
    pub server: String,
    pub model: String,
    pub load: Load,
    pub limits: Limits,
    /// Seconds from the start to the last answer.
    pub elapsed: f64,
    pub done: u64,
    /// Number of failures by class.
    pub failed: BTreeMap<String, u64>,
    /// Requests that were running when the run was interrupted; not part of any other number.
    pub unfinished: u64,
    /// Answer tokens per second; the next field includes prompt tokens.
    pub output_tokens_per_second: f64,
    pub total_tokens_per_second: f64,
    /// Cached tokens of answered prompts, if the server reports them.
    pub cached_tokens: Option<u64>,
    pub first_token: Option<Percentiles>,
    /// Times between chunks of an answer; most servers send one token per chunk.
    pub between: Option<Percentiles>,
    pub queued: Option<Percentiles>,
    pub goodput: Goodput,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub long: Option<Long>,
    pub requests: Vec<Request>,
}

impl Serving {
    /// Evaluates the requests, excluding the long one and those `unfinished`.
    pub fn of(
        (server, model): (String, String),
        load: Load,
        limits: Limits,
        mut requests: Vec<Request>,
        long: Option<Request>,
        unfinished: u64,
    ) -> Self {
        requests.sort_by(|a, b| a.planned.total_cmp(&b.planned));
        let elapsed = requests.iter().map(|request| request.end).fold(0.0, f64::max);
        let rate = |tokens: u64| if elapsed > 0.0 { tokens as f64 / elapsed } else { 0.0 };
        let mut failed = BTreeMap::new();
        for failure in requests.iter().filter_map(|request| request.failure.as_ref()) {
            *failed.entry(failure.kind.clone()).or_insert(0) += 1;
        }
        let done: Vec<&Request> = requests.iter().filter(|r| r.failure.is_none()).collect();
        let good: Vec<&Request> = done.iter().copied().filter(|r| r.good(limits)).collect();
        let output = |of: &[&Request]| of.iter().map(|request| request.tokens).sum::<u64>();
        let prompts: u64 = done.iter().map(|request| u64::from(request.prompt_tokens)).sum();
        let gaps = done.iter().flat_map(|r| r.parts.windows(2).map(|pair| pair[1] - pair[0]));
        let percentiles = |values: Vec<f64>| Percentiles::of(&values);
        Self {
            server,
            model,
            elapsed,
            done: done.len() as u64,
            failed,
            unfinished,
            output_tokens_per_second: rate(output(&done)),
            total_tokens_per_second: rate(output(&done) + prompts),
            cached_tokens: done.iter().filter_map(|r| r.cached).reduce(|a, b| a + b),
            first_token: percentiles(done.iter().filter_map(|r| r.first_token()).collect()),
            between: percentiles(gaps.collect()),
            queued: percentiles(done.iter().filter_map(|r| r.queued).collect()),
            goodput: Goodput {
                requests: good.len() as u64,
                share: good.len() as f64 / requests.len().max(1) as f64,
                tokens_per_second: rate(output(&good)),
            },
            load,
            limits,
            long: long.map(|long| Long::of(long, &requests)),
            requests,
        }
    }

    /// Formats the result for people.
    pub fn text(&self) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name:<22}{value}");
        };
        let Load { seed, clients, rate, seconds, prompt_tokens, answer_tokens, .. } = &self.load;
        line("server", format!("{} on {}", self.model, self.server));
        let arrivals = match rate {
            Some(rate) => format!("Poisson, {rate} requests/s, at most {clients} at once"),
            None => format!("{clients} clients in a closed loop"),
        };
        line("load", format!("{arrivals}, for {seconds} s, seed {seed}"));
        line("lengths", format!("prompts {prompt_tokens}, answers {answer_tokens} (log-uniform)"));
        let failures: u64 = self.failed.values().sum();
        let mut requests = format!("{} done, {failures} failed", self.done);
        if self.unfinished > 0 {
            let _ = write!(requests, ", {} unfinished", self.unfinished);
        }
        line("requests", format!("{requests} in {:.1} s", self.elapsed));
        for (kind, count) in &self.failed {
            line("  failed", format!("{count} x {kind}"));
        }
        line("output", format!("{:.1} tok/s", self.output_tokens_per_second));
        line("output and prompts", format!("{:.1} tok/s", self.total_tokens_per_second));
        if let Some(cached) = self.cached_tokens.filter(|cached| *cached > 0) {
            line("from a cache", format!("{cached} tokens of prompts"));
        }
        let times = [
            ("time to first token", self.first_token),
            ("between tokens", self.between),
            ("queue wait", self.queued),
        ];
        for (name, percentiles) in times {
            if let Some(percentiles) = percentiles {
                line(name, in_milliseconds(percentiles));
            }
        }
        if let Some(Long { request, worst_meanwhile, worst_otherwise }) = &self.long {
            let ms = |time: &Option<f64>| time.map_or("-".into(), |t| format!("{:.1} ms", t * 1e3));
            let tokens = request.prompt_tokens;
            line(
                "a long prompt",
                match &request.failure {
                    Some(failure) => format!("{tokens} tokens: failed, {}", failure.kind),
                    None => {
                        format!("{tokens} tokens, first token after {}", ms(&request.first_token()))
                    }
                },
            );
            line(
                "  worst between tokens",
                format!("{} meanwhile, {} otherwise", ms(worst_meanwhile), ms(worst_otherwise)),
            );
        }
        let Goodput { requests, share, tokens_per_second } = self.goodput;
        let limits = format!(
            "first token within {:.0} ms, between tokens {:.0} ms",
            self.limits.first_token * 1e3,
            self.limits.between * 1e3
        );
        line(
            "goodput",
            format!(
                "{:.1} % ({requests} requests), {tokens_per_second:.1} tok/s: {limits}",
                share * 1e2
            ),
        );
        text
    }
}

fn in_milliseconds(of: Percentiles) -> String {
    let all = [("p50", Some(of.p50)), ("p90", of.p90), ("p99", of.p99), ("p99.9", of.p99_9)];
    let one = |(name, time): (&str, Option<f64>)| match time {
        Some(time) => format!("{name} {:.1}", time * 1e3),
        None => format!("{name} -"),
    };
    format!("{} ms", all.map(one).join("  "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(rate: Option<f64>) -> Load {
        Load {
            seed: 7,
            clients: 4,
            rate,
            seconds: 2000.0,
            prompt_tokens: Lengths { least: 32, most: 512 },
            answer_tokens: Lengths { least: 16, most: 16 },
            long: None,
        }
    }

    #[test]
    fn arrivals_are_a_seeded_poisson_process() {
        let arrivals = load(Some(5.0)).arrivals().unwrap();
        // 10000 expected, with a standard deviation of 100.
        assert!((9600..10400).contains(&arrivals.len()), "{}", arrivals.len());
        let gaps: Vec<f64> = arrivals.windows(2).map(|pair| pair[1] - pair[0]).collect();
        let n = gaps.len() as f64;
        let mean = gaps.iter().sum::<f64>() / n;
        let deviation = (gaps.iter().map(|gap| (gap - mean).powi(2)).sum::<f64>() / n).sqrt();
        // The standard deviation of an exponential distribution equals its mean, and 1/e of it lies
        // beyond the mean.
        assert!(
            (mean - 0.2).abs() < 0.008 && (deviation - mean).abs() < 0.012,
            "{mean} {deviation}"
        );
        let beyond = gaps.iter().filter(|gap| **gap > 0.2).count() as f64 / n;
        assert!((beyond - 0.3679).abs() < 0.02, "{beyond}");
        assert!(gaps.iter().all(|gap| *gap > 0.0) && *arrivals.last().unwrap() < 2000.0);
        assert_eq!(load(Some(5.0)).arrivals().unwrap(), arrivals);
        let other = Load { seed: 8, ..load(Some(5.0)) };
        assert_ne!(other.arrivals().unwrap(), arrivals);
        assert_eq!(load(None).arrivals(), None);
    }

    #[test]
    fn lengths_are_log_uniform_and_parsed() {
        let lengths: Vec<u32> = (0..4000).map(|i| load(None).lengths(i).0).collect();
        assert!(lengths.iter().all(|n| (32..=512).contains(n)));
        // Four octaves with a quarter of the requests each.
        for octave in [32..64, 64..128, 128..256, 256..513] {
            let share = lengths.iter().filter(|n| octave.contains(*n)).count() as f64 / 4000.0;
            assert!((share - 0.25).abs() < 0.03, "{octave:?} {share}");
        }
        let ends = Lengths { least: 3, most: 5 };
        assert_eq!((ends.at(1e-12), ends.at(1.0 - 1e-12)), (3, 5));
        assert!((0..100).all(|i| load(None).lengths(i).1 == 16));
        for text in ["32-512", "64"] {
            assert_eq!(text.parse::<Lengths>().unwrap().to_string(), text);
        }
        for text in ["", "0", "0-4", "5-4", "-4", "4-", "a-b", "1-2-3"] {
            assert!(text.parse::<Lengths>().is_err(), "{text}");
        }
    }

    fn request(planned: f64, parts: &[f64]) -> Request {
        Request {
            prompt_tokens: 100,
            planned,
            sent: planned,
            parts: parts.to_vec(),
            end: *parts.last().unwrap(),
            tokens: parts.len() as u64,
            ..Request::default()
        }
    }

    fn judged(limits: Limits) -> Serving {
        let late = Request { sent: 4.0, ..request(1.0, &[4.1, 4.2]) };
        let refused = Request {
            planned: 2.0,
            end: 2.1,
            failure: Some(Failure {
                kind: "503 queue_full".into(),
                message: "full".into(),
                status: Some(503),
            }),
            ..Request::default()
        };
        let requests = vec![
            refused,
            late,
            request(0.0, &[0.4, 0.44, 0.48]),
            // First token in time, later ones slow.
            request(3.0, &[3.2, 4.2, 5.0]),
        ];
        Serving::of(("here".into(), "m".into()), load(None), limits, requests, None, 1)
    }

    #[test]
    fn the_long_prompt_is_judged_by_its_effect_on_others() {
        let load = Load { long: Some(9000), ..load(None) };
        assert_eq!((load.context(), load.long_arrival()), (9001, 2000.0 / 3.0));
        let long = Request { prompt_tokens: 9000, ..request(1.0, &[3.0]) };
        let requests = vec![
            request(0.0, &[0.4, 0.9, 1.2, 2.9, 3.1]),
            // One ends before, one begins after.
            request(0.0, &[0.1, 0.8]),
            request(3.0, &[3.2, 4.1]),
        ];
        let limits = Limits { first_token: 9.0, between: 9.0 };
        let found = Serving::of(("here".into(), "m".into()), load, limits, requests, Some(long), 0);
        let Long { worst_meanwhile, worst_otherwise, .. } = found.long.clone().unwrap();
        assert!((worst_meanwhile.unwrap() - 1.7).abs() < 1e-9, "{worst_meanwhile:?}");
        assert!((worst_otherwise.unwrap() - 0.9).abs() < 1e-9, "{worst_otherwise:?}");
        assert_eq!(found.done, 3, "it is not among the judged requests");
        let text = found.text();
        for words in ["9000 tokens, first token after 2000.0 ms", "1700.0 ms meanwhile, 900.0 ms"] {
            assert!(text.contains(words), "{words} in {text}");
        }
    }

    #[test]
    fn goodput_counts_answers_within_both_limits() {
        let found = judged(Limits { first_token: 0.5, between: 0.05 });
        assert_eq!((found.done, found.unfinished, found.elapsed), (3, 1, 5.0));
        assert_eq!(found.failed, BTreeMap::from([("503 queue_full".to_owned(), 1)]));
        let Goodput { requests, share, tokens_per_second } = found.goodput;
        assert_eq!((requests, share), (1, 0.25));
        assert!((tokens_per_second - 0.6).abs() < 1e-12);
        assert!((found.output_tokens_per_second - 8.0 / 5.0).abs() < 1e-12);
        assert!((found.total_tokens_per_second - 308.0 / 5.0).abs() < 1e-12);
        // 0.4, 0.2 and 3.1 from the planned arrival: waiting for a client counts.
        assert!((found.first_token.unwrap().p50 - 0.4).abs() < 1e-12);
        assert!(found.requests[1].first_token().unwrap() > 3.0);
        assert_eq!(judged(Limits { first_token: 9.0, between: 9.0 }).goodput.share, 0.75);
        assert_eq!(judged(Limits { first_token: 1e-9, between: 9.0 }).goodput.requests, 0);
        assert_eq!(judged(Limits { first_token: 9.0, between: 1e-9 }).goodput.requests, 0);
        let text = found.text();
        for words in ["3 done, 1 failed, 1 unfinished", "1 x 503 queue_full", "25.0 %", "seed 7"] {
            assert!(text.contains(words), "{words} in {text}");
        }
    }

    #[test]
    fn unmeasured_values_are_absent() {
        let limits = Limits { first_token: 1.0, between: 1.0 };
        let none =
            Serving::of((String::new(), String::new()), load(None), limits, Vec::new(), None, 0);
        assert_eq!((none.first_token, none.goodput.share), (None, 0.0));
        assert_eq!(none.output_tokens_per_second, 0.0);
    }
}
