//! Chat templates: render messages to a prompt in the format that a model was trained with.
//!
//! A template is a Jinja program inside of the model file, so it is untrusted code. It has access only to the
//! messages, and limits on its length, instructions and output. The Jinja engine handles nested code and nested
//! values by recursion, so compiling and running happen on a thread with a stack that is deep enough for everything
//! the other limits allow. [`python`] has the functions that a template may call beyond Jinja itself; [`plain`]
//! prevents message text from becoming control tokens.

mod answer;
mod message;
mod plain;
mod python;

use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};

use jiff::Timestamp;
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value};

pub use self::answer::{AnswerParser, Calls, Format, Piece};
pub use self::message::{Call, Message, RenderOptions};
use self::message::{Size, Values};
use self::plain::Control;
pub use self::plain::Rendered;
use super::bounds::Work;
use super::error::Error;
use super::special;
use super::vocabulary::Vocabulary;

/// The most bytes of a template; the longest published ones have about 30,000.
const SOURCE: usize = 256 << 10;
/// Bytes of stack: about twice the need of the most nested code of that length.
const STACK: usize = 256 << 20;
/// Instructions for a template itself; published templates need a few hundred.
const FUEL: u64 = 50_000;
/// Additional instructions for each message; published templates need less than a hundred.
const FUEL_PER_MESSAGE: u64 = 300;
/// Additional instructions for each value of tools and arguments, which some templates serialise themselves.
const FUEL_PER_VALUE: u64 = 300;
/// The most instructions, since each may nest values one level deeper, or copy them.
const FUEL_MAX: u64 = 1_000_000;
/// Bytes of output in addition to the messages' text.
const OUTPUT: usize = 1 << 20;
/// Number of times that the output may repeat the messages' text.
const OUTPUT_PER_BYTE: usize = 4;
/// Bytes of punctuation and indentation for each value of tools and arguments.
const OUTPUT_PER_VALUE: usize = 64;
/// Bytes to reserve for text of the template itself: in total, and for each message.
const MARKUP: [usize; 2] = [1024, 64];
const RECURSION: usize = 64;

const NAME: &str = "chat_template";
const LLAMA3: &str = include_str!("llama3.jinja");
const CHATML: &str = include_str!("chatml.jinja");
const WORLD: &str = include_str!("world.jinja");
/// Name in RWKV's files in place of a template; llama.cpp has the template by that name (`llama-chat.cpp`).
const WORLD_NAME: &str = "rwkv-world";

/// A compiled chat template that follows the conventions of Hugging Face's `apply_chat_template`.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    environment: Environment<'static>,
    /// `bos_token` and `eos_token`, if the model has them.
    tokens: Vec<(&'static str, String)>,
    control: Control,
    format: Format,
    /// Noncharacters that the template does not contain, in the order of preference.
    sentinels: Vec<char>,
}

impl ChatTemplate {
    /// The template of a model. Without its own, the tokeniser and the special tokens select one: RWKV's, Llama 3's,
    /// or else ChatML.
    ///
    /// # Errors
    /// [`Error::TemplateSyntax`] if it does not parse, [`Error::TemplateLength`] if it is too long, and those of a
    /// vocabulary that contradicts itself.
    pub fn new(vocabulary: &Vocabulary) -> Result<Self, Error> {
        let llama3 = || vocabulary.tokens.iter().any(|token| token == "<|start_header_id|>");
        let source = match vocabulary.chat_template.as_deref() {
            Some(WORLD_NAME) => WORLD,
            Some(source) => source,
            None if vocabulary.model == "rwkv" => WORLD,
            None if llama3() => LLAMA3,
            None => CHATML,
        };
        if source.len() > SOURCE {
            return Err(Error::TemplateLength { bytes: source.len(), limit: SOURCE });
        }
        let (kinds, _) = special::classify(vocabulary)?;
        let control = Control::new(vocabulary, &kinds)?;
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        environment.set_syntax(syntax.map_err(|e| syntax_error(&e))?);
        environment.set_recursion_limit(RECURSION);
        python::install(&mut environment);
        on_deep_stack(|| environment.add_template_owned(NAME, source.to_owned()))?
            .map_err(|error| syntax_error(&error))?;
        let tokens = [("bos_token", vocabulary.bos), ("eos_token", vocabulary.eos)];
        let text = |(name, id)| Some((name, vocabulary.text(id)?.to_owned()));
        let tokens: Vec<_> = tokens.into_iter().filter_map(text).collect();
        let used = |c| source.contains(c) || tokens.iter().any(|(_, text)| text.contains(c));
        let sentinels = plain::noncharacters().filter(|c| !used(*c)).collect();
        let format = Format::recognise(source);
        let source = source.to_owned();
        Ok(Self { source, environment, tokens, control, format, sentinels })
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
    /// writes each message once. Only the limit on instructions bounds the variables of other templates.
    ///
    /// # Errors
    /// If the template fails on these messages, rejects them (the error has its own words), or exceeds a limit.
    pub fn render(
        &self,
        messages: &[Message],
        options: &RenderOptions,
        cancelled: &AtomicBool,
    ) -> Result<Rendered, Error> {
        let sentinel = self.sentinel(messages, options)?;
        let mut work = Work::new(cancelled);
        let mut values = Values::new(&self.control, sentinel);
        let mut list = Vec::with_capacity(messages.len());
        for message in messages {
            work.add(message.content.len())?;
            list.push(values.message(message));
        }
        let tools: Vec<Value> = options.tools.iter().map(|tool| values.json(tool)).collect();
        // None, not undefined, because templates distinguish the two.
        let tools = if tools.is_empty() { Value::from(()) } else { Value::from(tools) };
        let variables: Vec<_> =
            options.variables.iter().map(|(name, value)| (&**name, values.json(value))).collect();
        let Size { text, values } = values.size;
        let limit = OUTPUT
            .saturating_add(text.saturating_mul(OUTPUT_PER_BYTE))
            .saturating_add(values.saturating_mul(OUTPUT_PER_VALUE));
        let fuel = FUEL_PER_MESSAGE
            .saturating_mul(messages.len() as u64)
            .saturating_add(FUEL_PER_VALUE.saturating_mul(values as u64))
            .saturating_add(FUEL)
            .min(FUEL_MAX);

        let mut environment = self.environment.clone();
        environment.set_fuel(Some(fuel));
        let now = Timestamp::now();
        environment.add_function("strftime_now", move |format: &str| python::strftime(format, now));
        let mut context = variables;
        context.extend([
            ("messages", Value::from(list)),
            ("add_generation_prompt", Value::from(options.add_generation_prompt)),
            ("tools", tools),
            ("documents", Value::from(())),
        ]);
        context.extend(self.tokens.iter().map(|(name, text)| (*name, Value::from(text.as_str()))));

        // Most templates write each message once.
        let room = text + values * OUTPUT_PER_VALUE / 2 + MARKUP[0] + messages.len() * MARKUP[1];
        let text = Vec::with_capacity(room.min(limit));
        let mut out = Bounded { text, limit, full: false, cancelled };
        let rendered = on_deep_stack(|| {
            let template = environment.get_template(NAME)?;
            template.render_captured_to(Value::from_pairs(context), &mut out).map(drop)
        })?;
        match rendered {
            _ if cancelled.load(Ordering::Relaxed) => Err(Error::Cancelled),
            Ok(()) => {
                let text = String::from_utf8(out.text)
                    .unwrap_or_else(|e| String::from_utf8_lossy(e.as_bytes()).into_owned());
                Ok(Rendered::new(text, sentinel))
            }
            Err(_) if out.full => Err(Error::TemplateOutput { limit }),
            Err(error) => {
                let line = error.line().unwrap_or(1);
                Err(if error.kind() == ErrorKind::OutOfFuel {
                    Error::TemplateFuel { line, fuel }
                } else {
                    Error::TemplateRender { line, message: describe(&error) }
                })
            }
        }
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

/// Runs `f` on a thread with [`STACK`] bytes of stack. Only the used part takes memory.
fn on_deep_stack<T: Send>(f: impl FnOnce() -> T + Send) -> Result<T, Error> {
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new()
            .name("chat-template".into())
            .stack_size(STACK)
            .spawn_scoped(scope, f)
            .map_err(Error::TemplateThread)?;
        Ok(thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
    })
}

fn syntax_error(error: &minijinja::Error) -> Error {
    Error::TemplateSyntax { line: error.line().unwrap_or(1), message: describe(error) }
}

/// The Jinja engine's message, without the position, which our error has.
fn describe(error: &minijinja::Error) -> String {
    match (error.kind(), error.detail()) {
        (ErrorKind::InvalidOperation, Some(detail)) => detail.to_owned(),
        (kind, Some(detail)) => format!("{kind}: {detail}"),
        (kind, None) => kind.to_string(),
    }
}

struct Bounded<'a> {
    text: Vec<u8>,
    limit: usize,
    full: bool,
    cancelled: &'a AtomicBool,
}

impl Write for Bounded<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(io::Error::other("cancelled"));
        }
        if bytes.len() > self.limit - self.text.len() {
            self.full = true;
            return Err(io::Error::other("output limit"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
