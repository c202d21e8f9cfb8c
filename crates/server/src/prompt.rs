//! Conversion of texts and conversations to token ids. Limits length and concurrency, and stops if
//! the client disconnects.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::StatusCode;
use model::tokenizer::{self, Bounds, Message, RenderOptions, Specials};

use super::App;
use super::dialogue::Enforcement;
use super::error::Error;
use engine::{Constraint, Grammar, Served};

/// Tokenizes the texts of a field. Control tokens may be parsed or not. Adds BOS if the model
/// requires it.
pub(super) async fn encode(
    app: &App,
    served: &Arc<Served>,
    field: &'static str,
    texts: Vec<String>,
    specials: Specials,
) -> Result<Vec<(String, Vec<u32>)>, Error> {
    let bytes = texts.iter().map(String::len).max().unwrap_or(0);
    fits(field, bytes, served)?;
    let tokens = served.model.context;
    let bytes = texts.iter().map(String::len).sum();
    let task = run_limited(app, served, bytes, move |served, cancelled| {
        let bounds = Bounds { tokens, cancelled };
        let encode = |text: String| {
            let ids = served.text.tokenizer.encode_within(&text, specials, true, &bounds)?;
            Ok((text, ids))
        };
        texts.into_iter().map(encode).collect::<Result<Vec<_>, tokenizer::Error>>()
    });
    task.await?.map_err(|error| match error {
        tokenizer::Error::TooManyTokens { limit } => too_many(field, limit),
        error => Error::value(field, format!("{field}: {error}")),
    })
}

/// Tokenizes the text of a field, of any length.
pub(super) async fn tokens(
    app: &App,
    served: &Arc<Served>,
    field: &str,
    text: String,
    control: bool,
    begin: bool,
) -> Result<Vec<u32>, Error> {
    let task = run_limited(app, served, text.len(), move |served, cancelled| {
        let specials = if control { Specials::Parse } else { Specials::Plain };
        let bounds = Bounds { tokens: usize::MAX, cancelled };
        served.text.tokenizer.encode_within(&text, specials, begin, &bounds)
    });
    task.await?.map_err(|error| Error::value(field, format!("{field}: {error}")))
}

/// Creates a prompt for the text between two others. The last of `files` that fit into `room` tokens
/// precede them.
pub(super) async fn infill(
    app: &App,
    served: &Arc<Served>,
    text: String,
    suffix: String,
    files: Vec<String>,
    room: usize,
) -> Result<Vec<u32>, Error> {
    let Some(infill) = served.text.infill else {
        let message = format!("suffix: {} has no fill-in-the-middle tokens", served.model.id);
        return Err(Error::new(StatusCode::BAD_REQUEST, "unsupported_parameter", message)
            .param("suffix")
            .hint("load a model that was trained to fill in the middle"));
    };
    let begin = served.text.tokenizer.begin();
    fits("suffix", suffix.len().max(text.len()), served)?;
    let suffix = tokens(app, served, "suffix", suffix, false, false).await?;
    let prefix = tokens(app, served, "prompt", text, false, false).await?;
    let mut ids = infill.prompt(begin, &prefix, &suffix);
    for file in files.into_iter().rev() {
        if file.len() > room.saturating_mul(served.text.tokenizer.longest_token()) {
            break;
        }
        let file = tokens(app, served, "input_extra", file, false, false).await?;
        if ids.len() + file.len() > room {
            break;
        }
        let at = begin.iter().len();
        ids.splice(at..at, file);
    }
    Ok(ids)
}

/// A prepared conversation.
pub(super) struct Prepared {
    /// Token ids up to the beginning of the answer.
    pub(super) ids: Vec<u32>,
    /// Last characters of its text.
    pub(super) tail: String,
    pub(super) constraint: Option<Constraint>,
    /// Enforcement of the tools' schemas with which the grammar compiled, and the reason why not
    /// with a stricter one.
    pub(super) enforcement: (Enforcement, Option<String>),
}

/// Number of characters at a prompt's end that determine how its answer begins.
const TAIL: usize = 64;

/// Prepares a conversation for generation. `field` is its name in the request. `grammar` returns
/// the answer's grammar for the last characters of the prompt. Of its forms, the first that
/// compiles is used.
pub(super) async fn conversation(
    app: &App,
    served: &Arc<Served>,
    field: &'static str,
    messages: Vec<Message>,
    options: RenderOptions,
    grammar: impl Fn(&Served, &str, Enforcement) -> Option<Grammar> + Send + 'static,
) -> Result<Prepared, Error> {
    let tools: usize = options.tools.iter().map(|tool| tool.to_string().len()).sum();
    let bytes = messages.iter().map(|message| message.content.len()).sum::<usize>();
    let bytes = bytes.saturating_add(tools);
    fits(field, bytes, served)?;
    let tokens = served.model.context;
    let task = run_limited(app, served, bytes, move |served, cancelled| {
        let prompt = served.text.chat.render(&messages, &options, cancelled)?;
        let ids = served.text.tokenizer.encode_rendered(&prompt, &Bounds { tokens, cancelled })?;
        let tail = prompt.text().chars().rev().take(TAIL).collect::<Vec<_>>();
        let tail: String = tail.into_iter().rev().collect();
        let compiled =
            compile(served, cancelled, |enforcement| grammar(served, &tail, enforcement));
        Ok((ids, tail, compiled))
    });
    let (ids, tail, compiled) = task.await?.map_err(|error| failed(field, error))?;
    let (constraint, enforcement) = compiled.map_err(|reason| grammar_failed(&reason))?;
    Ok(Prepared { ids, tail, constraint, enforcement })
}

type Compiled = (Option<Constraint>, (Enforcement, Option<String>));

/// Compiles the first form of a grammar that compiles. The error is that of the strictest one.
fn compile(
    served: &Served,
    cancelled: &AtomicBool,
    grammar: impl Fn(Enforcement) -> Option<Grammar>,
) -> Result<Compiled, String> {
    let mut failed: Option<(Grammar, String)> = None;
    for enforcement in Enforcement::ALL {
        let Some(form) = grammar(enforcement) else {
            return Ok((None, (Enforcement::Full, None)));
        };
        if failed.as_ref().is_some_and(|(tried, _)| *tried == form) {
            continue;
        }
        match served.text.grammars.compile(&form, cancelled) {
            Ok(constraint) => {
                let reason = failed.map(|(_, reason)| reason);
                return Ok((Some(constraint), (enforcement, reason)));
            }
            Err(reason) => {
                let first = failed.map_or(reason, |(_, first)| first);
                failed = Some((form, first));
            }
        }
    }
    Err(failed.map(|(_, reason)| reason).unwrap_or_default())
}

/// Renders a conversation up to the beginning of the answer.
pub(super) async fn text(
    app: &App,
    served: &Arc<Served>,
    field: &'static str,
    messages: Vec<Message>,
    options: RenderOptions,
) -> Result<String, Error> {
    let bytes = messages.iter().map(|message| message.content.len()).sum::<usize>();
    fits(field, bytes, served)?;
    let task = run_limited(app, served, bytes, move |served, cancelled| {
        served.text.chat.render(&messages, &options, cancelled)
    });
    Ok(task.await?.map_err(|error| failed(field, error))?.text().to_owned())
}

/// Compiles a grammar for the answers.
pub(super) async fn constraint(
    app: &App,
    served: &Arc<Served>,
    grammar: Grammar,
) -> Result<Constraint, Error> {
    let task = run_limited(app, served, 0, move |served, cancelled| {
        served.text.grammars.compile(&grammar, cancelled)
    });
    task.await?.map_err(|reason| grammar_failed(&reason))
}

fn failed(field: &str, error: tokenizer::Error) -> Error {
    match error {
        tokenizer::Error::TooManyTokens { limit } => too_many(field, limit),
        error => {
            Error::new(StatusCode::BAD_REQUEST, "template_failed", format!("{field}: {error}"))
                .param(field)
                .hint(
                    "the chat template rejects this conversation; /v1/completions accepts any text",
                )
        }
    }
}

fn grammar_failed(reason: &str) -> Error {
    let message = format!("the grammar or schema of the answer: {reason}");
    Error::new(StatusCode::BAD_REQUEST, "grammar_failed", message)
        .hint("docs/api.md describes the supported grammars and schemas and their size limits")
}

/// Rejects a text that is too long with any tokenization.
fn fits(param: &str, bytes: usize, served: &Served) -> Result<(), Error> {
    let context = served.model.context;
    let most = context.saturating_mul(served.text.tokenizer.longest_token());
    if bytes <= most {
        return Ok(());
    }
    let message =
        format!("{param}: has {bytes} bytes; the {context} tokens of a slot have at most {most}");
    Err(too_long(param, message))
}

fn too_many(param: &str, limit: usize) -> Error {
    too_long(param, format!("{param}: has more than {limit} tokens, the context length of a slot"))
}

fn too_long(param: &str, message: String) -> Error {
    Error::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
        .param(param)
        .hint("shorten it, or load the model with a larger context")
}

/// Cancels work when the client disconnects.
struct Client(Arc<AtomicBool>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs work on a text of `bytes` bytes on a blocking thread, in the order of the queue.
async fn run_limited<T: Send + 'static>(
    app: &App,
    served: &Arc<Served>,
    bytes: usize,
    work: impl FnOnce(&Served, &AtomicBool) -> T + Send + 'static,
) -> Result<T, Error> {
    let place = app.prompts.place(bytes).await?;
    let cancelled = Arc::new(AtomicBool::new(false));
    let client = Client(Arc::clone(&cancelled));
    let served = Arc::clone(served);
    let done = tokio::task::spawn_blocking(move || {
        // The place is free when the work ends, even if the client has disconnected.
        let _place = place;
        work(&served, &cancelled)
    });
    let done = done.await.map_err(|e| Error::internal(format!("making the prompt failed: {e}")));
    drop(client);
    done
}
