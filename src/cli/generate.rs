//! `orinctl generate`: streams a completion or a chat answer to standard output.

use std::path::Path;
use std::time::Instant;

use serde::de::DeserializeOwned;

use super::args::{self, Connection};
use super::error::Error;
use super::session::{Room, Session};
use super::terminal::Terminal;
use super::text;
use super::usage::AnswerStats;
use api::client::Stream;
use api::{
    ChatChunk, ChatMessage, ChatRequest, Completion, CompletionRequest, Content, Prompt, Stop,
    StreamOptions, Timings, Usage,
};

use errors::printable;

/// End of a stream: everything but the text.
#[derive(Default)]
struct End {
    stats: AnswerStats,
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
        terminal.print_line(&format!(
            "{} has random weights: the text means nothing",
            session.model.id
        ));
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
        terminal.print_line(&end.stats.line(begin));
    }
    Ok(())
}

/// Returns the texts of the files, followed by the prompt argument.
async fn prompt(args: &args::Generate) -> Result<String, Error> {
    let given = args.text.as_ref().or(args.prompt.as_ref()).cloned();
    let files = args.files.clone();
    // On a blocking thread, so that Ctrl-C is handled meanwhile.
    let read = tokio::task::spawn_blocking(move || -> Result<String, Error> {
        let mut all = String::new();
        for file in files {
            all.push_str(&text_of(&file)?);
        }
        match given.as_deref() {
            Some("-") => all.push_str(&std::io::read_to_string(std::io::stdin())?),
            Some(text) => all.push_str(text),
            None => {}
        }
        Ok(all)
    });
    read.await.map_err(std::io::Error::other)?
}

fn text_of(file: &Path) -> Result<String, Error> {
    std::fs::read_to_string(file).map_err(|error| {
        let why = match error.kind() {
            std::io::ErrorKind::InvalidData => "is not UTF-8".to_owned(),
            _ => format!("cannot be read: {error}"),
        };
        Error::TextFile { file: file.to_owned(), why }
    })
}

fn stop(args: &args::Generate) -> Option<Stop> {
    (!args.stop.is_empty()).then(|| Stop::Many(args.stop.clone()))
}

fn limit(args: &args::Generate) -> Option<u32> {
    Some(args.max_tokens).filter(|limit| *limit > 0)
}

async fn complete(session: &Session, args: &args::Generate, prompt: String) -> Result<End, Error> {
    let request = CompletionRequest {
        model: session.named(),
        prompt: Prompt::Text(prompt),
        max_tokens: limit(args),
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
        model: session.named(),
        messages: vec![ChatMessage {
            role: "user".into(),
            content: Some(Content::Text(prompt)),
            ..ChatMessage::default()
        }],
        max_completion_tokens: limit(args),
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
    /// Prints the texts of a stream as they arrive, until it ends.
    async fn of<T: DeserializeOwned>(
        mut stream: Stream<T>,
        split: impl Fn(T) -> (String, Option<Usage>, Option<Timings>),
    ) -> Result<Self, Error> {
        let mut end = Self::default();
        while let Some(part) = stream.next().await? {
            let (text, usage, timings) = split(part);
            if !text.is_empty() {
                text::painted(&printable::generated(&text))?;
                end.ends_with_line_feed = text.ends_with('\n');
            }
            end.stats.add(usage, timings);
        }
        Ok(end)
    }
}
