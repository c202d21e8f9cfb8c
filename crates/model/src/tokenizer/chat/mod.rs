//! Chat templates: render messages to a prompt in the format that a model was trained with.
//!
//! A template is a Jinja program inside of the model file, so it is untrusted code. It has access only to the
//! messages, and limits on its length, time, memory and output ([`jinja`]). [`plain`] prevents message text from
//! becoming control tokens. [`instructions`] and [`generic`] adapt conversations to templates that know no late
//! system messages, repeated roles or tools.

mod answer;
mod clock;
mod generic;
mod instructions;
mod message;
mod origin;
mod plain;
mod probe;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use jiff::Timestamp;
use jinja::{Inputs, Limits, Template, Value};

pub use self::answer::{AnswerParser, Calls, Format, Piece};
use self::generic::Gaps;
pub use self::message::{Call, Message, RenderOptions};
use self::message::{Size, Values};
pub use self::origin::Origin;
use self::plain::Control;
pub use self::plain::Rendered;
use super::bounds::Work;
use super::error::Error;
use super::special;
use super::vocabulary::Vocabulary;

/// The most bytes of a template; the longest published ones have about 30,000.
const SOURCE: usize = 256 << 10;
/// Processor time of one prompt. Published templates need milliseconds, and a tenth of a second for a
/// thousand messages.
const TIME: Duration = Duration::from_secs(2);
/// Bytes of values in addition to the messages' text.
const MEMORY: usize = 32 << 20;
/// Bytes of values for each byte of the messages' text.
const MEMORY_PER_BYTE: usize = 16;
/// Bytes of output in addition to the messages' text.
const OUTPUT: usize = 1 << 20;
/// Number of times that the output may repeat the messages' text.
const OUTPUT_PER_BYTE: usize = 4;
/// Bytes of punctuation and indentation for each value of tools and arguments.
const OUTPUT_PER_VALUE: usize = 64;
/// Bytes of memory for each value of tools and arguments.
const MEMORY_PER_VALUE: usize = 512;
/// Bytes to reserve for text of the template itself: in total, and for each message.
const MARKUP: [usize; 2] = [1024, 64];

static NEVER: AtomicBool = AtomicBool::new(false);

/// Reason why a model has no usable template.
#[derive(Debug)]
enum Unusable {
    Missing,
    Length { bytes: usize },
    Syntax { line: usize, message: String },
}

/// Form of a template's input beyond its own choice.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Expectations {
    /// Contents are lists of parts.
    content_parts: bool,
    /// Arguments of calls are texts of JSON.
    argument_texts: bool,
    /// Some instructions are silently left out.
    drops_instructions: bool,
    /// No tools are an empty list, not `none`.
    tool_list: bool,
    gaps: Gaps,
}

/// A compiled chat template that follows the conventions of Hugging Face's `apply_chat_template`.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    origin: Origin,
    program: Result<Template, Unusable>,
    /// `bos_token` and `eos_token`, if the model has them.
    tokens: Vec<(&'static str, String)>,
    control: Control,
    format: Format,
    expected: Expectations,
    time: Duration,
    /// Noncharacters that the template does not contain, in the order of preference.
    sentinels: Vec<char>,
}

impl ChatTemplate {
    /// The template of a model. Without its own, the tokens of the vocabulary select a built-in one. A template that
    /// is too long or does not parse fails when it renders, so that the model still completes texts.
    ///
    /// # Errors
    /// Errors of a vocabulary that contradicts itself.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self, Error> {
        let (source, origin) = origin::template(vocabulary);
        let (kinds, _) = special::classify(vocabulary)?;
        let control = Control::new(vocabulary, &kinds)?;
        let program = if origin == Origin::Unknown {
            Err(Unusable::Missing)
        } else if source.len() > SOURCE {
            Err(Unusable::Length { bytes: source.len() })
        } else {
            on_deep_stack(|| Template::parse(source))?.map_err(|error| match error {
                jinja::Error::Syntax { line, message } => Unusable::Syntax { line, message },
                error => Unusable::Syntax { line: 1, message: error.to_string() },
            })
        };
        let tokens = [("bos_token", vocabulary.bos), ("eos_token", vocabulary.eos)];
        let text = |(name, id)| Some((name, vocabulary.text(id)?.to_owned()));
        let tokens: Vec<_> = tokens.into_iter().filter_map(text).collect();
        let used = |c| source.contains(c) || tokens.iter().any(|(_, text)| text.contains(c));
        let sentinels = plain::noncharacters().filter(|c| !used(*c)).collect();
        let format = Format::recognise(source);
        let (source, expected) = (source.to_owned(), Expectations::default());
        let time = TIME;
        let mut template =
            Self { source, origin, program, tokens, control, format, expected, time, sentinels };
        template.expected = template.probe();
        Ok(template)
    }

    /// Origin of the template.
    #[must_use]
    pub const fn origin(&self) -> Origin {
        self.origin
    }

    /// Limits the time of one prompt.
    pub const fn limit_time(&mut self, time: Duration) {
        self.time = time;
    }

    /// Reason why the model has no chat, if it has none.
    ///
    /// # Errors
    /// [`Error::TemplateMissing`], [`Error::TemplateLength`], [`Error::TemplateSyntax`].
    pub fn usable(&self) -> Result<(), Error> {
        self.program().map(drop)
    }

    fn program(&self) -> Result<&Template, Error> {
        self.program.as_ref().map_err(|reason| match reason {
            Unusable::Missing => Error::TemplateMissing,
            Unusable::Length { bytes } => Error::TemplateLength { bytes: *bytes, limit: SOURCE },
            Unusable::Syntax { line, message } => {
                Error::TemplateSyntax { line: *line, message: message.clone() }
            }
        })
    }

    /// Format of tool calls and reasoning in answers to this template.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// Source of the template.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// True if the template contains the name of this variable.
    #[must_use]
    pub fn reads(&self, variable: &str) -> bool {
        self.source().contains(variable)
    }

    /// The prompt for `messages`. Soon after `cancelled` is set, fails with [`Error::Cancelled`].
    ///
    /// Message text is always text, even if it contains the name of a control token: only the template can write
    /// control tokens.
    ///
    /// Memory is at most 8 bytes for each byte of the messages, 512 for each message, and 1 MiB, if the template
    /// writes each message once. Only the limit on memory bounds the variables of other templates.
    ///
    /// Instructions that the template refuses or ignores where they are, are merged into user turns; consecutive
    /// messages of a role that it refuses are joined.
    ///
    /// # Errors
    /// If the template fails on these messages, rejects them (the error has its own words), or exceeds a limit.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        cancelled: &AtomicBool,
    ) -> Result<Rendered, Error> {
        let gaps = self.expected.gaps;
        if let Some(calls) = self.format.calls
            && gaps.concern(messages, options)
        {
            let (messages, options) = generic::rewrite(messages, options, gaps, calls);
            return self.merge(&messages, &options, cancelled);
        }
        self.merge(messages, options, cancelled)
    }

    /// Renders the conversation, or the closest form of it that the template accepts.
    fn merge(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        cancelled: &AtomicBool,
    ) -> Result<Rendered, Error> {
        let attempt =
            |messages: &[_]| self.attempt(messages, options, cancelled, self.expected, self.time);
        let first = attempt(messages);
        let complete = |prompt: &Rendered| {
            !self.expected.drops_instructions || instructions::are_all_in(messages, prompt.text())
        };
        match &first {
            Ok(prompt) if !complete(prompt) => {}
            Err(Error::TemplateRender { .. }) => {}
            _ => return first,
        }
        for form in instructions::forms(messages) {
            match attempt(&form) {
                Ok(prompt) if complete(&prompt) => return Ok(prompt),
                Ok(_) | Err(Error::TemplateRender { .. }) => {}
                Err(Error::Cancelled) => return Err(Error::Cancelled),
                Err(_) => break,
            }
        }
        first
    }

    fn attempt(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        cancelled: &AtomicBool,
        expected: Expectations,
        time: Duration,
    ) -> Result<Rendered, Error> {
        let program = self.program()?;
        let sentinel = self.sentinel(messages, options)?;
        let run = || {
            let mut work = Work::new(cancelled);
            let mut values = Values::new(&self.control, sentinel, expected);
            let mut list = Vec::with_capacity(messages.len() + 1);
            // Phi's template reads the tools from the system message.
            let phi = self.format.calls == Some(Calls::Phi) && !options.tools.is_empty();
            let mut system_tools = phi.then(|| message::functions(&options.tools));
            if phi && messages.first().is_none_or(|first| first.role != "system") {
                let system = Message::new("system", "");
                list.push(values.message(&system, system_tools.take().as_deref()));
            }
            for message in messages {
                work.add(message.content.len())?;
                list.push(values.message(message, system_tools.take().as_deref()));
            }
            let tools: Vec<Value> = options.tools.iter().map(|tool| values.json(tool)).collect();
            // None, not undefined, because templates distinguish the two.
            let none = tools.is_empty() && !expected.tool_list;
            let tools = if none { Value::None } else { Value::list(tools) };
            let named = options.variables.iter();
            let mut variables: Vec<_> =
                named.map(|(name, value)| (&**name, values.json(value))).collect();
            variables.extend([
                ("messages", Value::list(list)),
                ("add_generation_prompt", Value::Bool(options.add_generation_prompt)),
                ("documents", Value::None),
            ]);
            if self.reads("xml_tools") && !options.tools.is_empty() {
                // SmolLM3 distinguishes the notation of its calls by the name of the variable.
                let functions =
                    options.tools.iter().map(|tool| tool.get("function").unwrap_or(tool));
                let functions = functions.map(|function| values.json(function)).collect();
                variables.push(("xml_tools", Value::list(functions)));
            }
            variables.push(("tools", tools));
            variables.extend(self.tokens.iter().map(|(name, text)| (*name, Value::from(&**text))));

            let Size { text, values } = values.size;
            let output = OUTPUT
                .saturating_add(text.saturating_mul(OUTPUT_PER_BYTE))
                .saturating_add(values.saturating_mul(OUTPUT_PER_VALUE));
            let memory = MEMORY.saturating_add(text.saturating_mul(MEMORY_PER_BYTE));
            let memory = memory.saturating_add(values.saturating_mul(MEMORY_PER_VALUE));
            let now = Timestamp::now();
            let clock = |format: &str| clock::strftime(format, now);
            // Most templates write each message once.
            let reserve =
                text + values * OUTPUT_PER_VALUE / 2 + MARKUP[0] + messages.len() * MARKUP[1];
            let limits = Limits { time, memory, output };
            let inputs = Inputs { variables, clock: &clock, limits, cancelled, reserve };
            program.render(inputs).map_err(failure)
        };
        Ok(Rendered::new(on_deep_stack(run)??, sentinel))
    }

    /// A character that does not occur in the conversation.
    fn sentinel(&self, messages: &[Message], options: &RenderOptions) -> Result<char, Error> {
        let is_free = |c: &char| {
            let mut free = true;
            message::texts(messages, options, &mut |text| free = free && !text.contains(*c));
            free
        };
        self.sentinels.iter().copied().find(is_free).ok_or(Error::NoSentinel)
    }
}

/// Runs `f` on a thread with enough stack for Jinja. Only the used part takes memory.
fn on_deep_stack<T: Send>(f: impl FnOnce() -> T + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("chat-template".into())
            .stack_size(Template::STACK)
            .spawn_scoped(scope, f)
            .map_err(Error::TemplateThread)?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn failure(error: jinja::Error) -> Error {
    match error {
        jinja::Error::Raised { line, message } => {
            Error::TemplateRender { line, message: format!("the template refuses: {message}") }
        }
        jinja::Error::Failed { line, message } => Error::TemplateRender { line, message },
        jinja::Error::Syntax { line, message } => Error::TemplateSyntax { line, message },
        jinja::Error::Time { line, limit } => Error::TemplateTime { line, limit },
        jinja::Error::Memory { line, limit } => Error::TemplateMemory { line, limit },
        jinja::Error::Output { limit, .. } => Error::TemplateOutput { limit },
        jinja::Error::Cancelled => Error::Cancelled,
        other => Error::TemplateRender { line: 1, message: other.to_string() },
    }
}
