//! `orinctl generate`.

use std::time::Instant;

use serde::de::DeserializeOwned;

use super::args::{self, Connection};
use super::error::Error;
use super::session::{Room, Session};
use super::terminal::Terminal;
use super::text;
use crate::control::api::{
    ChatChunk, ChatMessage, ChatRequest, Completion, CompletionRequest, Content, Prompt, Stop,
    StreamOptions, Timings, Usage,
};
use crate::control::client::Stream;

/// What the stream said besides text.
#[derive(Default)]
struct End {
    usage: Option<Usage>,
    timings: Option<Timings>,
    ends_with_line_feed: bool,
}

pub(super) async fn run(
    connection: &Connection,
    args: &args::Generate,
    terminal: &Terminal,
) -> Result<(), Error> {
    let prompt = prompt(args).await?;
    let room = Room { slots: 1, context: None };
    let session = Session::open(connection, &args.model, room, terminal).await?;
    if session.model.synthetic && !args.quiet {
        terminal.say(&format!("{} has random weights: the text means nothing", session.model.id));
    }
    let begin = Instant::now();
    let end = if args.chat {
        chat(&session, args, prompt).await?
    } else {
        complete(&session, args, prompt).await?
    };
    if !end.ends_with_line_feed {
        text::print("\n")?;
    }
    if !args.quiet {
        terminal.say(&summary(&end, begin));
    }
    Ok(())
}

async fn prompt(args: &args::Generate) -> Result<String, Error> {
    // The definition of the arguments wants one of the two.
    let given = args.text.as_ref().or(args.prompt.as_ref()).cloned().unwrap_or_default();
    if given != "-" {
        return Ok(given);
    }
    // Elsewhere, so that Ctrl-C is heard meanwhile.
    let read = tokio::task::spawn_blocking(|| std::io::read_to_string(std::io::stdin())).await;
    Ok(read.map_err(std::io::Error::other)??)
}

fn stop(args: &args::Generate) -> Option<Stop> {
    (!args.stop.is_empty()).then(|| Stop::Many(args.stop.clone()))
}

async fn complete(session: &Session, args: &args::Generate, prompt: String) -> Result<End, Error> {
    let request = CompletionRequest {
        prompt: Prompt::Text(prompt),
        max_tokens: Some(args.max_tokens),
        temperature: Some(args.temp),
        top_k: args.top_k,
        top_p: args.top_p,
        seed: args.seed.map(i64::from),
        stop: stop(args),
        ignore_eos: args.ignore_eos.then_some(true),
        stream_options: Some(StreamOptions { include_usage: true }),
        ..CompletionRequest::default()
    };
    let stream = session.client.completions(&request).await?;
    let text = |part: &Completion| part.choices.iter().map(|choice| &*choice.text).collect();
    End::of(stream, |part| (text(&part), part.usage, part.timings)).await
}

async fn chat(session: &Session, args: &args::Generate, prompt: String) -> Result<End, Error> {
    let request = ChatRequest {
        messages: vec![ChatMessage {
            role: "user".into(),
            content: Some(Content::Text(prompt)),
            ..ChatMessage::default()
        }],
        max_completion_tokens: Some(args.max_tokens),
        temperature: Some(args.temp),
        top_k: args.top_k,
        top_p: args.top_p,
        seed: args.seed.map(i64::from),
        stop: stop(args),
        ignore_eos: args.ignore_eos.then_some(true),
        stream_options: Some(StreamOptions { include_usage: true }),
        ..ChatRequest::default()
    };
    let stream = session.client.chat(&request).await?;
    let text = |part: &ChatChunk| {
        part.choices.iter().filter_map(|choice| choice.delta.content.as_deref()).collect()
    };
    End::of(stream, |part| (text(&part), part.usage, part.timings)).await
}

impl End {
    /// Prints a stream's texts as they come, until it ends.
    async fn of<T: DeserializeOwned>(
        mut stream: Stream<T>,
        split: impl Fn(T) -> (String, Option<Usage>, Option<Timings>),
    ) -> Result<Self, Error> {
        let mut end = Self::default();
        while let Some(part) = stream.next().await? {
            let (text, usage, timings) = split(part);
            if !text.is_empty() {
                text::print(&text)?;
                end.ends_with_line_feed = text.ends_with('\n');
            }
            end.usage = usage.or(end.usage);
            end.timings = timings.or(end.timings);
        }
        Ok(end)
    }
}

/// `12 tokens in, 64 out, first after 210 ms, 15.2 tok/s`
fn summary(end: &End, begin: Instant) -> String {
    let usage = end.usage.unwrap_or_default();
    let mut line = format!("{} tokens in, {} out", usage.prompt_tokens, usage.completion_tokens);
    match end.timings {
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
