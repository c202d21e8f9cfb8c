//! `orinctl bench --serve`: sends the requests that [`analysis::serving`] generated, at their
//! planned times, and records when each token arrives.

use std::collections::BTreeMap;
use std::fs;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::task::JoinSet;
use tokio::time::sleep_until;

use super::args::{self, Connection};
use super::error::Error;
use super::session::{Room, Session};
use super::terminal::Terminal;
use super::text;
use analysis::serving::{Failure, Limits, Load, Request, Serving};
use api::client::{self, Client, Timed};
use compare::random;
use errors::one_line;

/// Pause of a closed-loop client after a failure: a rejection is immediate, and so would be the
/// next.
const PAUSE: Duration = Duration::from_millis(100);
/// Minimum wait for answers after the last request, in seconds; otherwise as long as requests were
/// sent.
const PATIENCE: f64 = 30.0;
/// Default number of concurrent requests and of slots of a private daemon.
const CLIENTS: usize = 4;
const CLIENTS_OF_RATE: usize = 256;
const SLOTS: usize = 16;

/// Number of the long prompt; no other request reaches it.
const LONG: u32 = u32::MAX;

/// Server under test and its request parameters.
struct Target {
    client: Client,
    model: String,
    owner: String,
    vocabulary: usize,
    /// Part of every prompt, new in each run, so that no prefix cache of an earlier run applies.
    nonce: u64,
}

pub(super) async fn run(
    connection: &Connection,
    args: &args::Bench,
    terminal: &Terminal,
    interrupted: Arc<Notify>,
) -> Result<(), Error> {
    let serve = &args.serve;
    let clients = serve.clients.unwrap_or(match serve.rate {
        Some(_) => CLIENTS_OF_RATE,
        None => CLIENTS,
    });
    let load = Load {
        seed: args.seed,
        clients,
        rate: serve.rate,
        seconds: serve.seconds.as_secs_f64(),
        prompt_tokens: serve.prompt_lengths,
        answer_tokens: serve.answer_lengths,
        long: serve.long_prompt,
    };
    let limits = Limits {
        first_token: serve.ttft_limit.as_secs_f64(),
        between: serve.itl_limit.as_secs_f64(),
    };
    let opened = open(connection, args, &load, terminal);
    let (target, session) = super::until(Arc::clone(&interrupted), opened).await?;
    let target = Arc::new(target);
    let begin = SystemTime::now();
    let ended = drive(&target, &load, &interrupted, terminal).await;
    drop(session);
    let server = (target.client.daemon.to_string(), target.model.clone());
    let found = Serving::of(server, load, limits, ended.requests, ended.long, ended.unfinished);
    text::show(&found, args.format.json, Serving::text)?;
    if let Some(file) = &serve.aiperf {
        fs::write(file, aiperf(&found, begin))
            .map_err(|source| Error::Write { file: file.clone(), source })?;
    }
    if ended.interrupted {
        return Err(Error::Interrupted);
    }
    if let Some(gone) = ended.gone {
        return Err(Error::Serving(format!(
            "the server closed its socket after {:.1} s, later requests were not sent: {gone}",
            found.elapsed
        )));
    }
    match found.requests.iter().find_map(|request| request.failure.as_ref()) {
        Some(failure) if found.done == 0 => {
            Err(Error::Serving(format!("no request was answered: {}", failure.message)))
        }
        _ => Ok(()),
    }
}

/// Opens the named server, the daemon, or a private daemon that lives as long as the session.
async fn open(
    connection: &Connection,
    args: &args::Bench,
    load: &Load,
    terminal: &Terminal,
) -> Result<(Target, Option<Session>), Error> {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let nonce = args.seed ^ since.as_nanos() as u64;
    if let Some(server) = &args.serve.server {
        if connection.socket.is_some() || connection.is_remote() {
            return Err(Error::Usage(
                "--server conflicts with --socket and --tcp; give one of them".into(),
            ));
        }
        let client = Connection {
            socket: None,
            tcp: Some(server.trim_start_matches("http:").trim_matches('/').to_owned()),
            token_file: args.serve.server_token_file.clone(),
        }
        .client()?;
        let models: Value = client.get("/v1/models").await?;
        let first = &models["data"][0];
        let named = args.model.model.as_deref().or(first["id"].as_str());
        let model = named.map(str::to_owned).ok_or_else(|| {
            Error::Serving(format!("{server} lists no model in /v1/models; name one with -m"))
        })?;
        let owner = first["owned_by"].as_str().unwrap_or_default().to_owned();
        let vocabulary = args.serve.vocabulary as usize;
        return Ok((Target { client, model, owner, vocabulary, nonce }, None));
    }
    let room = Room {
        slots: load.clients.min(SLOTS) + usize::from(load.long.is_some()),
        context: Some(load.context().next_multiple_of(64)),
    };
    let session = Session::open(connection, &args.model, room, terminal).await?;
    let model = &session.model;
    if load.context() > model.context {
        return Err(Error::Usage(format!(
            "the longest prompt and answer need {} tokens, a slot of {} has {}; shorten them with --prompt-lengths and --answer-lengths",
            load.context(),
            model.id,
            model.context
        )));
    }
    let target = Target {
        client: session.client.clone(),
        model: model.id.clone(),
        owner: "orind".into(),
        vocabulary: model.vocabulary,
        nonce,
    };
    Ok((target, Some(session)))
}

impl Target {
    fn body(&self, i: u32, request: &Request) -> Value {
        let prompt = random(self.vocabulary, request.prompt_tokens, self.nonce, i);
        let mut body = json!({
            "model": self.model, "prompt": prompt, "max_tokens": request.answer_tokens,
            "temperature": 0, "stream": true, "stream_options": { "include_usage": true },
        });
        // An extension of OpenAI's API, which rejects unknown fields: only for servers that support
        // it.
        if ["orind", "llamacpp", "vllm", "sglang"].contains(&self.owner.as_str()) {
            body["ignore_eos"] = true.into();
        }
        body
    }

    /// Sends a request and records its result; returns true if the server no longer accepts
    /// connections.
    async fn ask(&self, i: u32, begin: Instant, request: &mut Request) -> bool {
        let body = self.body(i, request);
        let mut timed = Timed::default();
        request.sent = begin.elapsed().as_secs_f64();
        let result = self.client.timed(&body, &mut timed).await;
        request.end = begin.elapsed().as_secs_f64();
        request.parts = timed.parts.iter().map(|at| (*at - begin).as_secs_f64()).collect();
        request.tokens = timed.tokens;
        request.cached = timed.cached;
        request.queued = timed.queued_ms.map(|ms| ms / 1e3);
        request.failure = match &result {
            Ok(()) if request.parts.is_empty() => Some(Failure {
                kind: "answer without a token".into(),
                message: "an answer without a token".into(),
                status: None,
            }),
            Ok(()) => None,
            Err(error) => Some(failure(error)),
        };
        matches!(result, Err(client::Error::NotRunning { .. }))
    }
}

fn failure(error: &client::Error) -> Failure {
    let (kind, status) = match error {
        client::Error::Api { status, detail } => {
            (format!("{status} {}", detail.code), Some(*status))
        }
        client::Error::Refused { status, .. } => (status.to_string(), Some(*status)),
        client::Error::NotRunning { .. } => ("nobody listens".into(), None),
        client::Error::Silent { .. } => ("silent".into(), None),
        client::Error::Connect { .. } => ("no connection".into(), None),
        client::Error::Transport(_) => ("connection broken".into(), None),
        client::Error::Distrusted(_) | client::Error::Protocol(_) => {
            ("unexpected answer".into(), None)
        }
    };
    Failure { kind, message: one_line(error), status }
}

struct LoadResult {
    requests: Vec<Request>,
    long: Option<Request>,
    unfinished: u64,
    interrupted: bool,
    /// Reason why no more requests were sent.
    gone: Option<String>,
}

/// Sends a request in a task of its own. With `pause`, the task waits after a failure.
fn spawn(
    under_way: &mut JoinSet<(u32, Request, bool)>,
    target: &Arc<Target>,
    begin: Instant,
    (i, mut request): (u32, Request),
    pause: bool,
) {
    let target = Arc::clone(target);
    under_way.spawn(async move {
        let gone = target.ask(i, begin, &mut request).await;
        if pause && request.failure.is_some() {
            tokio::time::sleep(PAUSE).await;
        }
        (i, request, gone)
    });
}

/// Sends all requests, until the end of the load, until the server stops listening, or until
/// interrupted.
async fn drive(
    target: &Arc<Target>,
    load: &Load,
    interrupted: &Notify,
    terminal: &Terminal,
) -> LoadResult {
    let live = terminal.steps();
    let arrivals = load.arrivals();
    let begin = Instant::now();
    let at = |seconds: f64| (begin + Duration::from_secs_f64(seconds)).into();
    let deadline = load.seconds + load.seconds.max(PATIENCE);
    let closed = arrivals.is_none();
    let mut under_way: JoinSet<(u32, Request, bool)> = JoinSet::new();
    let mut sent: BTreeMap<u32, Request> = BTreeMap::new();
    let mut ended = LoadResult {
        requests: Vec::new(),
        long: None,
        unfinished: 0,
        interrupted: false,
        gone: None,
    };
    let mut next = 0u32;
    let mut long = load.long;
    loop {
        let now = begin.elapsed().as_secs_f64();
        if let Some(prompt_tokens) = long.take_if(|_| now >= load.long_arrival()) {
            let planned = load.long_arrival();
            let answer_tokens = Load::LONG_ANSWER;
            let request =
                Request { prompt_tokens, answer_tokens, planned, sent: now, ..Request::default() };
            spawn(&mut under_way, target, begin, (LONG, request), false);
        }
        // Planned time of the next request, if any.
        let planned = match &arrivals {
            _ if ended.gone.is_some() => None,
            Some(times) => times.get(next as usize).copied(),
            None => (now < load.seconds).then_some(now),
        };
        // The long prompt has its own client.
        let free = sent.len() < load.clients;
        if let Some(planned) = planned.filter(|planned| free && *planned <= now) {
            let (prompt_tokens, answer_tokens) = load.lengths(next);
            let request =
                Request { prompt_tokens, answer_tokens, planned, sent: now, ..Request::default() };
            sent.insert(next, request.clone());
            spawn(&mut under_way, target, begin, (next, request), closed);
            next += 1;
            continue;
        }
        if planned.is_none() && under_way.is_empty() {
            return ended;
        }
        live.set(
            (now.min(load.seconds) * 10.0) as u64,
            (load.seconds * 10.0) as u64,
            format!("{} answered, {} under way", ended.requests.len(), under_way.len()),
        );
        let arrival = planned.filter(|_| free).unwrap_or(deadline);
        let arrival = arrival.min(long.map_or(deadline, |_| load.long_arrival()));
        tokio::select! {
            () = interrupted.notified() => {
                ended.unfinished = sent.len() as u64;
                ended.interrupted = true;
                return ended;
            }
            Some(joined) = under_way.join_next() => {
                // A task that panicked stays in `sent`.
                if let Ok((i, request, gone)) = joined {
                    sent.remove(&i);
                    if gone {
                        ended.gone = request.failure.as_ref().map(|why| why.message.clone());
                    }
                    match i {
                        LONG => ended.long = Some(request),
                        _ => ended.requests.push(request),
                    }
                }
            }
            () = sleep_until(at(arrival.min(deadline))), if now < deadline => {}
            () = std::future::ready(()), if now >= deadline => {
                let message = format!("not done {:.0} s after the last request was sent", deadline - load.seconds);
                // Requests that no client was free to send have failed too.
                let unsent = arrivals.iter().flatten().skip(next as usize);
                let unsent = unsent.map(|&planned| Request { planned, sent: now, ..Request::default() });
                for request in std::mem::take(&mut sent).into_values().chain(unsent) {
                    let kind = "not done in time".to_owned();
                    let failure = Some(Failure { kind, message: message.clone(), status: None });
                    ended.requests.push(Request { end: now, failure, ..request });
                }
                return ended;
            }
        }
    }
}

/// Formats one line per request like AIPerf 0.13 (`profile_export.jsonl`, its `MetricRecordInfo`).
/// Its times start at sending; the planned arrival is `credit_issued_ns`.
fn aiperf(found: &Serving, begin: SystemTime) -> String {
    let since = begin.duration_since(UNIX_EPOCH).unwrap_or_default();
    let ns = |seconds: f64| (since + Duration::from_secs_f64(seconds)).as_nanos() as u64;
    let line = |(i, request): (usize, &Request)| {
        let ms = |seconds: f64| json!({ "value": seconds * 1e3, "unit": "ms" });
        let tokens = |count: u64| json!({ "value": count, "unit": "tokens" });
        let mut metrics = json!({
            "input_sequence_length": tokens(request.prompt_tokens.into()),
        });
        if let (None, Some(first)) = (&request.failure, request.parts.first()) {
            metrics["output_sequence_length"] = tokens(request.tokens);
            metrics["request_latency"] = ms(request.end - request.sent);
            metrics["time_to_first_token"] = ms(first - request.sent);
            if let Some(between) = request.between() {
                metrics["inter_token_latency"] = ms(between);
            }
        }
        let error = request.failure.as_ref().map(|failure| {
            json!({ "code": failure.status, "type": failure.kind, "message": failure.message })
        });
        let record = json!({
            "metadata": {
                "session_num": i,
                "turn_index": 0,
                "credit_issued_ns": ns(request.planned),
                "request_start_ns": ns(request.sent),
                "request_end_ns": ns(request.end),
                "worker_id": "orinctl",
                "record_processor_id": "orinctl",
                "benchmark_phase": "profiling",
                "was_cancelled": false,
            },
            "metrics": metrics,
            "error": error,
        });
        format!("{record}\n")
    };
    found.requests.iter().enumerate().map(line).collect()
}

/// Parses a time: `500ms`, `2s`, `1.5s`.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = match text.strip_suffix("ms") {
        Some(number) => (number, 1e-3),
        None => (text.strip_suffix('s').unwrap_or(text), 1.0),
    };
    let seconds = number.parse::<f64>().ok().map(|number| number * unit);
    let seconds = seconds.filter(|seconds| (1e-6..=86400.0).contains(seconds));
    seconds.map(Duration::from_secs_f64).ok_or_else(|| "expected a time such as 500ms or 2s".into())
}

/// Parses a number of clients; each uses one connection.
pub(super) fn clients(text: &str) -> Result<usize, String> {
    let count = text.parse().ok().filter(|count| (1..=10_000).contains(count));
    count.ok_or_else(|| "expected a whole number from 1 to 10000".into())
}

/// Parses a rate above 0.
pub(super) fn rate(text: &str) -> Result<f64, String> {
    let rate = text.parse::<f64>().ok().filter(|rate| (1e-3..=1e5).contains(rate));
    rate.ok_or_else(|| "expected a number from 0.001 to 100000".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_rates_are_parsed() {
        assert_eq!(time("500ms").unwrap(), Duration::from_millis(500));
        assert_eq!(time("1.5s").unwrap(), time("1.5").unwrap());
        for text in ["", "ms", "-1s", "0", "2h", "NaN", "inf"] {
            assert!(time(text).is_err(), "{text}");
        }
        assert_eq!(rate("2.5").unwrap(), 2.5);
        assert!(rate("0").is_err() && rate("-1").is_err() && rate("inf").is_err());
    }
}
