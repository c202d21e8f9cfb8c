//! From texts and conversations to token ids: no longer than a slot, a few at a time, and ended with their client.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use axum::http::StatusCode;
use model::tokenizer::{self, Bounds, Message, RenderOptions, Specials};

use super::App;
use super::dialogue::Held;
use super::error::Error;
use engine::{Constraint, Grammar, Served};

/// Prompts that are made at the same time. With the bytes that a slot holds they bound the memory that this
/// takes: the tokeniser's and the template's documentation say how much for each byte.
pub(super) const TURNS: usize = 2;

/// The ids of the texts in a field, in which control tokens may be written out or not. BOS is added where the model wants
/// it.
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
    let made = in_turn(app, served, move |served, cancelled| {
        let bounds = Bounds { tokens, cancelled };
        let encode = |text: String| {
            let ids = served.text.tokenizer.encode_within(&text, specials, true, &bounds)?;
            Ok((text, ids))
        };
        texts.into_iter().map(encode).collect::<Result<Vec<_>, tokenizer::Error>>()
    });
    made.await?.map_err(|error| match error {
        tokenizer::Error::TooManyTokens { limit } => too_many(field, limit),
        error => Error::value(field, format!("{field}: {error}")),
    })
}

/// The ids of the text in a field, however many.
pub(super) async fn tokens(
    app: &App,
    served: &Arc<Served>,
    field: &str,
    text: String,
    control: bool,
    begin: bool,
) -> Result<Vec<u32>, Error> {
    let made = in_turn(app, served, move |served, cancelled| {
        let specials = if control { Specials::Parse } else { Specials::Plain };
        let bounds = Bounds { tokens: usize::MAX, cancelled };
        served.text.tokenizer.encode_within(&text, specials, begin, &bounds)
    });
    made.await?.map_err(|error| Error::value(field, format!("{field}: {error}")))
}

/// A conversation made ready.
pub(super) struct Made {
    /// Up to where the answer begins.
    pub(super) ids: Vec<u32>,
    /// The end of its text.
    pub(super) tail: String,
    pub(super) constraint: Option<Constraint>,
}

/// Characters of a prompt's end that say how its answer begins.
const TAIL: usize = 64;

/// Makes a conversation ready to be answered. `field` names it.
pub(super) async fn conversation(
    app: &App,
    served: &Arc<Served>,
    field: &'static str,
    messages: Vec<Message>,
    options: RenderOptions,
    held: Held,
) -> Result<Made, Error> {
    let tools: usize = options.tools.iter().map(|tool| tool.to_string().len()).sum();
    let bytes = messages.iter().map(|message| message.content.len()).sum::<usize>();
    fits(field, bytes.saturating_add(tools), served)?;
    let tokens = served.model.context;
    let made = in_turn(app, served, move |served, cancelled| {
        let prompt = served.text.chat.render(&messages, &options, cancelled)?;
        let ids = served.text.tokenizer.encode_rendered(&prompt, &Bounds { tokens, cancelled })?;
        let tail = prompt.text().chars().rev().take(TAIL).collect::<Vec<_>>();
        let tail: String = tail.into_iter().rev().collect();
        let grammar = held.grammar(served, &tail);
        let constraint = grammar.map(|grammar| served.text.grammars.compile(&grammar));
        Ok((ids, tail, constraint.transpose()))
    });
    let (ids, tail, constraint) = made.await?.map_err(|error| failed(field, error))?;
    let constraint = constraint.map_err(|said| grammar_failed(&said))?;
    Ok(Made { ids, tail, constraint })
}

/// The text of a conversation, up to where the answer begins.
pub(super) async fn text(
    app: &App,
    served: &Arc<Served>,
    field: &'static str,
    messages: Vec<Message>,
    options: RenderOptions,
) -> Result<String, Error> {
    let bytes = messages.iter().map(|message| message.content.len()).sum::<usize>();
    fits(field, bytes, served)?;
    let made = in_turn(app, served, move |served, cancelled| {
        served.text.chat.render(&messages, &options, cancelled)
    });
    Ok(made.await?.map_err(|error| failed(field, error))?.text().to_owned())
}

/// A grammar for the answers to a text.
pub(super) async fn constraint(
    app: &App,
    served: &Arc<Served>,
    grammar: Grammar,
) -> Result<Constraint, Error> {
    let made = in_turn(app, served, move |served, _| served.text.grammars.compile(&grammar));
    made.await?.map_err(|said| grammar_failed(&said))
}

fn failed(field: &str, error: tokenizer::Error) -> Error {
    match error {
        tokenizer::Error::TooManyTokens { limit } => too_many(field, limit),
        error => Error::new(
            StatusCode::BAD_REQUEST,
            "template_failed",
            format!("{field}: {error}"),
        )
        .param(field)
        .hint("the model's template refuses this conversation; /v1/completions takes any text"),
    }
}

fn grammar_failed(said: &str) -> Error {
    let message = format!("the grammar or schema of the answer: {said}");
    Error::new(StatusCode::BAD_REQUEST, "grammar_failed", message).hint(
        "docs/api.md says what grammars and schemas can be held to, and how large they may be",
    )
}

/// Refuses a text that is too long whatever its tokens are.
fn fits(param: &str, bytes: usize, served: &Served) -> Result<(), Error> {
    let context = served.model.context;
    let most = context.saturating_mul(served.text.tokenizer.longest_token());
    if bytes <= most {
        return Ok(());
    }
    let message = format!(
        "{param}: has {bytes} bytes; {context} tokens, which a slot holds, have {most} at most"
    );
    Err(too_long(param, message))
}

fn too_many(param: &str, limit: usize) -> Error {
    too_long(param, format!("{param}: has more than {limit} tokens, which is what a slot holds"))
}

fn too_long(param: &str, message: String) -> Error {
    Error::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
        .param(param)
        .hint("shorten it, or load the model with a larger context")
}

/// Work for a client that may go away: then it is told so, and ends soon.
struct Client(Arc<AtomicBool>);

impl Drop for Client {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Runs work off the threads that serve connections, [`TURNS`] at a time.
async fn in_turn<T: Send + 'static>(
    app: &App,
    served: &Arc<Served>,
    work: impl FnOnce(&Served, &AtomicBool) -> T + Send + 'static,
) -> Result<T, Error> {
    let turn = Arc::clone(&app.turns).acquire_owned().await;
    let cancelled = Arc::new(AtomicBool::new(false));
    let client = Client(Arc::clone(&cancelled));
    let served = Arc::clone(served);
    let done = tokio::task::spawn_blocking(move || {
        // The turn lasts as long as the work, whether somebody waits for it or not.
        let _turn = turn;
        work(&served, &cancelled)
    });
    let done = done.await.map_err(|e| Error::internal(format!("making the prompt failed: {e}")));
    drop(client);
    done
}
