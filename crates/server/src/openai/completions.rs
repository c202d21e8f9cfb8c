//! `/v1/completions`: completes one or several prompts, given as text or token ids.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::response::sse;
use axum::response::{IntoResponse, Response};
use futures_util::future::ready;
use futures_util::stream::{self, Stream, StreamExt};
use model::tokenizer::Specials;

use super::logprobs::{self, Offset};
use super::{add_usage, finish_reason, head, timings};
use crate::dialogue::{Form, Reason};
use crate::error::Error;
use crate::rejections::Checked;
use crate::{App, events, generation, params, prompt};
use engine::{Event, Finished, LogitsProcessors, Request, Scales, Served, Text, TokenLogprobs};
use plan::sample::Sampling;

/// Maximum number of prompts, or answers to them, in a request.
const PROMPTS: usize = 64;

pub(crate) async fn completions(
    State(app): State<Arc<App>>,
    Checked(mut request): Checked<api::CompletionRequest>,
) -> Result<Response, Error> {
    let echo = request.echo.unwrap_or(false);
    let alternatives = request.logprobs.map(|n| params::alternatives("logprobs", n)).transpose()?;
    let sampling = params::sampling(
        request.temperature,
        request.top_p,
        request.top_k,
        request.min_p,
        request.seed,
    )?;
    let mut template = Request {
        prompt: Vec::new(),
        max_tokens: 0,
        sampling,
        processors: LogitsProcessors::NONE,
        constraint: None,
        shown: Vec::new(),
        stop: params::stops(request.stop.take())?,
        ignore_end: request.ignore_eos.unwrap_or(false),
        logprobs: alternatives,
        prompt_logprobs: alternatives.is_some() && echo,
        adapters: Scales::NONE,
        embed: false,
    };
    let form = super::form(request.grammar.take(), request.json_schema.take(), None)?;
    let logits_options = request.logits_options();
    let each = params::answers(request.n)?;
    let count = count(&request.prompt, each)?;
    let mut admission = params::admit(&app, request.model.as_deref(), count).await?;
    let served = Arc::clone(&admission.served);
    let (model, lora) = (request.model.as_deref(), request.lora.as_deref());
    template.adapters = params::adapters(&served.model, model, lora)?;
    template.processors =
        params::logits_processors(&logits_options, sampling.temperature, &served.text.tokenizer)?;
    if let Form::Grammar(grammar) = form {
        template.constraint = Some(prompt::constraint(&app, &served, grammar).await?);
    }
    let suffix = request.suffix.filter(|suffix| !suffix.is_empty());
    let prompts = tokenise(&app, &served, request.prompt, suffix).await?;
    if prompts.is_empty() || prompts.iter().any(|prompt| prompt.ids.is_empty()) {
        return Err(Error::value("prompt", "prompt: has no tokens; at least one is needed"));
    }
    let echoed =
        if template.prompt_logprobs { prompts.iter().map(|p| p.ids.len() * each).sum() } else { 0 };
    let asked = params::at_most(request.max_tokens, served.model.context);
    let most = params::reportable(alternatives, echoed, asked, count)?;

    let mut choices = Vec::with_capacity(count);
    let mut requests = Vec::with_capacity(count);
    let answers = prompts.iter().flat_map(|prompt| (0..each as u64).map(move |at| (prompt, at)));
    for (index, (prompt, at)) in answers.enumerate() {
        let wants_logprobs = alternatives.is_some();
        let text = (echo || wants_logprobs).then(|| prompt.text(&served.text));
        let before = if echo { 0 } else { text.as_deref().map_or(0, |text| text.chars().count()) };
        choices.push(Choice {
            index,
            echo: text.filter(|_| echo),
            offset: Offset(before),
            wants_logprobs,
            text: Arc::clone(&served.text),
        });
        let room = served.model.context;
        let max_tokens = params::max_tokens(request.max_tokens, prompt.ids.len(), room, most);
        let sampling = Sampling { seed: sampling.seed.wrapping_add(at), ..sampling };
        let prompt = prompt.ids.clone();
        requests.push(Request { prompt, max_tokens, sampling, ..template.clone() });
    }
    let generations = generation::start(&app, &mut admission, requests)?;
    let head = api::Completion {
        head: head("cmpl", "text_completion", served.model.id.clone()),
        choices: Vec::new(),
        usage: None,
        timings: None,
    };

    if request.stream.unwrap_or(false) {
        let stream = Streaming {
            head,
            left: choices.len(),
            choices,
            include_usage: request.stream_options.is_some_and(|o| o.include_usage),
            usage: api::Usage::default(),
            over: false,
        };
        let parts =
            generations.scan(stream, |stream, (index, event)| ready(stream.step(index, event)));
        return Ok(events::answer(parts.flat_map(stream::iter)));
    }

    Ok(Json(collect_answer(head, choices, generations).await?).into_response())
}

/// Collects the generations into one answer. `answer` has no choices yet.
async fn collect_answer(
    mut answer: api::Completion,
    mut choices: Vec<Choice>,
    mut generations: impl Stream<Item = (usize, Event)> + Unpin,
) -> Result<api::Completion, Error> {
    let mut usage = api::Usage::default();
    answer.choices = choices.iter().map(Choice::empty).collect();
    while let Some((index, event)) = generations.next().await {
        let pair = choices.get_mut(index).zip(answer.choices.get_mut(index));
        let Some((choice, whole)) = pair else { continue };
        let (part, finished) = choice.take(event)?;
        whole.text.push_str(&part.text);
        logprobs::append(&mut whole.logprobs, part.logprobs);
        whole.finish_reason = part.finish_reason;
        if let Some(finished) = finished {
            add_usage(&mut usage, &finished);
            answer.timings = (choices.len() == 1).then(|| timings(&finished));
        }
    }
    answer.usage = Some(usage);
    Ok(answer)
}

struct Prompt {
    ids: Vec<u32>,
    /// The prompt's text; `None` if it was given as ids.
    given: Option<String>,
}

impl Prompt {
    fn text(&self, text: &Text) -> String {
        self.given.clone().unwrap_or_else(|| text.tokenizer.decode(&self.ids))
    }
}

/// Returns the token ids of all prompts. With a suffix, each becomes a fill-in-the-middle prompt.
/// Ids are used unchanged.
async fn tokenise(
    app: &App,
    served: &Arc<Served>,
    prompt: api::Prompt,
    suffix: Option<String>,
) -> Result<Vec<Prompt>, Error> {
    let ids = |ids| Prompt { ids, given: None };
    let texts = match prompt {
        api::Prompt::Text(one) => vec![one],
        api::Prompt::Texts(many) => many,
        _ if suffix.is_some() => {
            return Err(Error::value("prompt", "prompt: must be text if `suffix` is set"));
        }
        api::Prompt::Ids(one) => return Ok(vec![ids(one)]),
        api::Prompt::IdLists(many) => return Ok(many.into_iter().map(ids).collect()),
    };
    let made = match suffix {
        None => prompt::encode(app, served, "prompt", texts, Specials::Parse).await?,
        Some(suffix) => {
            let mut made = Vec::with_capacity(texts.len());
            for text in texts {
                let room = served.model.context;
                let (before, suffix) = (text.clone(), suffix.clone());
                let ids = prompt::infill(app, served, before, suffix, Vec::new(), room).await?;
                made.push((text, ids));
            }
            made
        }
    };
    Ok(made.into_iter().map(|(text, ids)| Prompt { ids, given: Some(text) }).collect())
}

/// Returns the number of requested answers; rejects too many.
fn count(prompt: &api::Prompt, each: usize) -> Result<usize, Error> {
    let count = match prompt {
        api::Prompt::Text(_) | api::Prompt::Ids(_) => 1,
        api::Prompt::Texts(many) => many.len(),
        api::Prompt::IdLists(many) => many.len(),
    };
    let count = count.saturating_mul(each);
    if count > PROMPTS {
        let message = format!("prompt: requests {count} answers, at most {PROMPTS} are allowed");
        return Err(Error::value("prompt", message));
    }
    Ok(count)
}

struct Choice {
    index: usize,
    /// The prompt, until it has been sent (`echo`).
    echo: Option<String>,
    offset: Offset,
    wants_logprobs: bool,
    text: Arc<Text>,
}

impl Choice {
    fn empty(&self) -> api::CompletionChoice {
        api::CompletionChoice { index: self.index, ..Default::default() }
    }

    /// Returns what an event adds to the answer, and the end if it is the last one.
    fn take(&mut self, event: Event) -> Result<(api::CompletionChoice, Option<Finished>), Error> {
        let mut part = self.empty();
        part.text = self.echo.take().unwrap_or_default();
        match event {
            Event::Prompt(tokens) => part.logprobs = self.logprobs(&tokens),
            Event::Embedding(_) => unreachable!("no completion asks for one"),
            Event::Token(token) => {
                part.text.push_str(&token.text);
                part.logprobs = self.logprobs(token.logprobs.as_slice());
            }
            Event::Finished(finished) => {
                part.text.push_str(&finished.text);
                part.finish_reason = Some(finish_reason(&Reason::of(&finished)?).into());
                return Ok((part, Some(finished)));
            }
            Event::Failed(error) => return Err(error.into()),
        }
        Ok((part, None))
    }

    fn logprobs(&mut self, tokens: &[TokenLogprobs]) -> Option<api::CompletionLogprobs> {
        self.wants_logprobs.then(|| {
            let mut lists = api::CompletionLogprobs::default();
            for at in tokens {
                let in_text = !self.text.tokenizer.is_control(at.token.id);
                self.offset.add(&mut lists, at, in_text);
            }
            lists
        })
    }
}

struct Streaming {
    head: api::Completion,
    choices: Vec<Choice>,
    left: usize,
    include_usage: bool,
    usage: api::Usage,
    over: bool,
}

impl Streaming {
    /// Returns the events to send for an engine event; `None` ends the stream.
    fn step(&mut self, index: usize, event: Event) -> Option<Vec<sse::Event>> {
        if self.over {
            return None;
        }
        let (part, finished) = match self.choices.get_mut(index)?.take(event) {
            Ok(taken) => taken,
            Err(error) => {
                self.over = true;
                return Some(vec![events::error(&error)]);
            }
        };
        if part.text.is_empty() && part.logprobs.is_none() && finished.is_none() {
            return Some(Vec::new());
        }
        let mut chunk = api::Completion { choices: vec![part], ..self.head.clone() };
        let Some(finished) = finished else { return Some(vec![events::data(&chunk)]) };

        add_usage(&mut self.usage, &finished);
        chunk.timings = (self.choices.len() == 1).then(|| timings(&finished));
        let mut out = vec![events::data(&chunk)];
        self.left -= 1;
        if self.left == 0 {
            if self.include_usage {
                let usage = api::Completion { usage: Some(self.usage), ..self.head.clone() };
                out.push(events::data(&usage));
            }
            out.push(events::done());
            self.over = true;
        }
        Some(out)
    }
}
