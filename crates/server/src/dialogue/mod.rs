//! Common form of all chat APIs: one request type ([`Ask`]) and one stream of [`Update`]s. Each API
//! has a file that translates to and from these.

mod answer;
mod plain;
mod structured_output;
pub(super) mod tools;

use std::sync::Arc;

use axum::http::StatusCode;
use futures_util::stream::{Stream, StreamExt};
use model::tokenizer::{AnswerParser, Calls, Message, RenderOptions};
use serde_json::{Map, Value};

pub(super) use self::answer::{End, Gathered, Part, Reason, Update, gather};
pub(super) use self::plain::PlainPrompt;
use self::structured_output::StructuredOutput;
pub(super) use self::tools::{Choice, Enforcement, Skipped, Tool};
use super::error::Error;
use super::{App, generation, params, prompt, tool_format};
use engine::{Admission, Constraint, Grammar, Request, Served};
use plan::sample::Sampling;

/// Required format of an answer.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) enum Form {
    #[default]
    Text,
    Grammar(Grammar),
}

impl Form {
    /// Any JSON object.
    pub(super) fn json() -> Self {
        Self::schema(serde_json::json!({"type": "object"}))
    }

    pub(super) const fn schema(schema: Value) -> Self {
        Self::Grammar(Grammar::JsonSchema(schema))
    }
}

/// Reasoning setting of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Thinking {
    On,
    Off {
        /// Return an error if the model's reasoning cannot be disabled.
        must: bool,
    },
    /// Reasoning effort, as named by the template: `low`, `high`.
    Effort(String),
}

/// A conversation, and settings for its answer.
#[derive(Debug)]
pub(super) struct Ask {
    pub(super) model: Option<String>,
    /// Name of the conversation's field in the request.
    pub(super) field: &'static str,
    pub(super) messages: Vec<Message>,
    pub(super) tools: Vec<Tool>,
    /// Tools of the request that cannot run here.
    pub(super) skipped: Skipped,
    pub(super) choice: Choice,
    /// Allow several tool calls.
    pub(super) parallel: bool,
    pub(super) form: Form,
    /// Reasoning setting, and the name of its field.
    pub(super) thinking: Option<(&'static str, Thinking)>,
    /// Variables of the chat template.
    pub(super) variables: Map<String, Value>,
    pub(super) sampling: Sampling,
    pub(super) logits_options: api::LogitsOptions,
    /// Scales of LoRA adapters, if the request lists any.
    pub(super) lora: Option<Vec<api::Lora>>,
    pub(super) stop: Vec<String>,
    /// Maximum number of tokens to generate. The slot's space limits it too.
    pub(super) max_tokens: Option<u32>,
    pub(super) ignore_end: bool,
    /// Number of alternatives reported for each token.
    pub(super) logprobs: Option<u8>,
    /// Number of answers to the conversation.
    pub(super) answers: usize,
}

/// Updates with the index of their answer. An error ends the stream.
type Updates = std::pin::Pin<Box<dyn Stream<Item = (usize, Result<Update, Error>)> + Send>>;

/// A conversation that is being answered.
pub(super) struct Dialogue {
    pub(super) served: Arc<Served>,
    pub(super) prompt_tokens: usize,
    pub(super) updates: Updates,
}

/// A prompt, ready for the engine.
struct Encoded<P> {
    ids: Vec<u32>,
    constraint: Option<Constraint>,
    /// Control tokens whose names are part of the text.
    shown: Vec<u32>,
    /// Creates the parser of an answer.
    parser: P,
}

impl Ask {
    /// Counts the tokens of the prompt.
    pub(super) async fn count(mut self, app: &Arc<App>) -> Result<usize, Error> {
        let served = Arc::clone(&params::admit(app, self.model.as_deref(), 0).await?.served);
        self.check(&served, app)?;
        let (messages, options, _) = self.conversation();
        let free = |_: &Served, _: &str, _: Enforcement| None;
        let prepared =
            prompt::conversation(app, &served, self.field, messages, options, free).await?;
        Ok(prepared.ids.len())
    }

    /// Renders the text of the prompt.
    pub(super) async fn text(mut self, app: &Arc<App>) -> Result<String, Error> {
        let served = Arc::clone(&params::admit(app, self.model.as_deref(), 0).await?.served);
        self.check(&served, app)?;
        let (messages, options, _) = self.conversation();
        prompt::text(app, &served, self.field, messages, options).await
    }

    /// Returns the inputs of the template and of the grammar.
    fn conversation(&mut self) -> (Vec<Message>, RenderOptions, StructuredOutput) {
        // A model does not call tools that its prompt does not list.
        if self.choice == Choice::None {
            self.tools.clear();
        }
        if let Choice::Named(name) = &self.choice {
            self.tools.retain(|tool| tool.name == *name);
            self.parallel = false;
        }
        let mut variables = std::mem::take(&mut self.variables);
        match self.thinking.take() {
            None => {}
            Some((_, Thinking::On)) => {
                drop(variables.insert("enable_thinking".into(), true.into()));
            }
            Some((_, Thinking::Off { .. })) => {
                variables.insert("enable_thinking".into(), false.into());
            }
            Some((_, Thinking::Effort(effort))) => {
                variables.insert("enable_thinking".into(), true.into());
                variables.insert("reasoning_effort".into(), effort.into());
            }
        }
        let options = RenderOptions {
            add_generation_prompt: true,
            tools: self.tools.iter().map(Tool::json).collect(),
            variables,
        };
        let must = matches!(self.choice, Choice::Required | Choice::Named(_));
        let structured = StructuredOutput {
            tools: std::mem::take(&mut self.tools),
            calls: if must {
                structured_output::Calls::Must
            } else {
                structured_output::Calls::May
            },
            parallel: self.parallel,
            form: std::mem::take(&mut self.form),
        };
        (std::mem::take(&mut self.messages), options, structured)
    }

    /// Starts the generations.
    pub(super) async fn start(mut self, app: &Arc<App>) -> Result<Dialogue, Error> {
        if self.messages.is_empty() {
            let message = format!("{}: is empty; at least one message is needed", self.field);
            return Err(Error::value(self.field, message));
        }
        let admission = params::admit(app, self.model.as_deref(), self.answers).await?;
        let served = Arc::clone(&admission.served);
        self.check(&served, app)?;
        let (messages, options, structured) = self.conversation();
        let tools = options.tools.clone();
        let relaxed: Vec<_> = structured.tools.iter().map(Tool::relaxed).collect();
        let grammar = move |served: &Served, tail: &str, enforcement| {
            structured.grammar(served, tail, enforcement)
        };
        let prepared =
            prompt::conversation(app, &served, self.field, messages, options, grammar).await?;
        tool_format::report_relaxed(&prepared.enforcement, &relaxed);
        let format = served.text.chat.format();
        let tail = prepared.tail;
        self.begin(
            app,
            admission,
            Encoded {
                ids: prepared.ids,
                constraint: prepared.constraint,
                shown: served.text.marks.iter().map(|(_, id)| *id).collect(),
                parser: move || AnswerParser::new(format, &tools, &tail),
            },
        )
    }

    /// Starts the generations for a prompt.
    fn begin(
        self,
        app: &Arc<App>,
        mut admission: Admission,
        prompt: Encoded<impl Fn() -> AnswerParser>,
    ) -> Result<Dialogue, Error> {
        let served = Arc::clone(&admission.served);
        let context = served.model.context;
        let asked = params::at_most(self.max_tokens, context);
        let most = params::reportable(self.logprobs, 0, asked, self.answers)?;
        let processors = params::logits_processors(
            &self.logits_options,
            self.sampling.temperature,
            &served.text.tokenizer,
        )?;
        let adapters =
            params::adapters(&served.model, self.model.as_deref(), self.lora.as_deref())?;
        let Encoded { ids, constraint, shown, parser } = prompt;
        let prompt_tokens = ids.len();
        let request = Request {
            max_tokens: params::max_tokens(asked, prompt_tokens, context, most),
            prompt: ids,
            sampling: self.sampling,
            processors,
            constraint,
            shown,
            stop: self.stop,
            ignore_end: self.ignore_end,
            logprobs: self.logprobs,
            prompt_logprobs: false,
            adapters,
            embed: false,
        };
        let mut answers: Vec<_> =
            (0..self.answers).map(|_| answer::Answer::new(parser(), self.parallel)).collect();
        let requests = (0..self.answers as u64).map(|at| {
            let seed = self.sampling.seed.wrapping_add(at);
            Request { sampling: Sampling { seed, ..request.sampling }, ..request.clone() }
        });
        let events = generation::start(app, &mut admission, requests.collect())?;
        let updates = events.filter_map(move |(index, event)| {
            let update = answers.get_mut(index).and_then(|answer| answer.take(event));
            std::future::ready(update.map(|update| (index, update)))
        });
        Ok(Dialogue { served, prompt_tokens, updates: Box::pin(updates) })
    }

    /// Rejects settings that would change the answer and that the model's chat template does not
    /// support. Wishes for reasoning are none of them: clients express them to every model.
    fn check(&self, served: &Served, app: &App) -> Result<(), Error> {
        let chat = &served.text.chat;
        let unsupported = |param: &str, message: String| {
            Err(Error::new(StatusCode::BAD_REQUEST, "unsupported_parameter", message).param(param))
        };
        if !self.tools.is_empty()
            && self.choice != Choice::None
            && let Some(format) = chat.format().calls
        {
            if format == Calls::Generic && !app.config().generic_tools {
                let message = format!(
                    "tools: the chat template of {} does not support tools, and generic_tools is false",
                    served.model.id
                );
                return unsupported("tools", message);
            }
            tool_format::report(format);
        }
        let must = matches!(self.choice, Choice::Required | Choice::Named(_));
        if must && self.tools.is_empty() {
            let message = "tool_choice: requires a call, but the request has no tools";
            return Err(Error::value("tool_choice", message));
        }
        if let Choice::Named(name) = &self.choice
            && !self.tools.iter().any(|tool| tool.name == *name)
        {
            let message =
                format!("tool_choice: there is no tool `{}`", errors::invalid::excerpt(name));
            return Err(Error::value("tool_choice", message));
        }
        let Some((field, thinking)) = &self.thinking else { return Ok(()) };
        let must_not_think = *thinking == Thinking::Off { must: true };
        if must_not_think && chat.format().can_think() && !chat.reads("enable_thinking") {
            let message =
                format!("{field}: the reasoning of {} cannot be disabled", served.model.id);
            return unsupported(field, message);
        }
        Ok(())
    }
}
