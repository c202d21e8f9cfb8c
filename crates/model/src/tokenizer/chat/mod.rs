//! Chat templates: messages to the one text that a model was trained on.
//!
//! A template is a Jinja program inside the model file, so it is untrusted code: it runs without
//! access to anything but the messages, and within limits on its length, instructions and output.
//! The engine follows nested code and nested values by recursion, so both compiling and running
//! happen on a thread whose stack is deep enough for all that the other limits admit.
//! What a program may call beyond Jinja itself is in [`python`]; what keeps messages from becoming
//! control tokens is in [`plain`].

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
use super::{Error, Vocabulary, special};

/// Bytes of a template; the longest published ones have about 30,000.
const SOURCE: usize = 256 << 10;
/// Bytes of stack: about twice what the most nested code of that length takes.
const STACK: usize = 256 << 20;
/// Instructions for a template itself; published templates need a few hundred.
const FUEL: u64 = 50_000;
/// Instructions for each message on top; published templates need less than a hundred.
const FUEL_PER_MESSAGE: u64 = 300;
/// Instructions for each value of tools and arguments, which some templates write themselves.
const FUEL_PER_VALUE: u64 = 300;
/// Instructions in all: some can nest values one level deeper, or copy them.
const FUEL_MAX: u64 = 1_000_000;
/// Bytes of output beyond the messages' own.
const OUTPUT: usize = 1 << 20;
/// How often the text of the messages may be repeated in the output.
const OUTPUT_PER_BYTE: usize = 4;
/// Punctuation and indentation of a value of tools and arguments.
const OUTPUT_PER_VALUE: usize = 64;
/// Bytes to reserve for what a template writes of its own: in all, and for each message.
const MARKUP: [usize; 2] = [1024, 64];
const RECURSION: usize = 64;

const NAME: &str = "chat_template";
const LLAMA3: &str = include_str!("llama3.jinja");
const CHATML: &str = include_str!("chatml.jinja");
const WORLD: &str = include_str!("world.jinja");
/// What stands for RWKV's template in its files; llama.cpp knows it by that name (`llama-chat.cpp`).
const WORLD_NAME: &str = "rwkv-world";

/// A compiled chat template, with the conventions of Hugging Face's `apply_chat_template`.
#[derive(Debug)]
pub struct ChatTemplate {
    source: String,
    environment: Environment<'static>,
    /// `bos_token` and `eos_token`, where the model has them.
    tokens: Vec<(&'static str, String)>,
    control: Control,
    format: Format,
    /// Noncharacters that the template does not use, in the order in which they are tried.
    sentinels: Vec<char>,
}

impl ChatTemplate {
    /// The template of a model: its own, or when it has none that of its family, told by the
    /// tokeniser (RWKV's) or the special tokens (Llama 3's headers, else ChatML).
    ///
    /// # Errors
    /// [`Error::TemplateSyntax`] when it does not parse, [`Error::TemplateLength`] when it is too
    /// long, or the vocabulary contradicts itself.
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

    /// How answers to this template call tools and think.
    #[must_use]
    pub const fn format(&self) -> Format {
        self.format
    }

    /// The template itself.
    #[must_use]
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Whether the template speaks of a variable of that name.
    #[must_use]
    pub fn reads(&self, variable: &str) -> bool {
        self.source().contains(variable)
    }

    /// The prompt for `messages`. Once `cancelled` is set, it ends soon, with [`Error::Cancelled`].
    ///
    /// What a message says is text, also where it reads like a control token: only what the
    /// template itself writes becomes one.
    ///
    /// Memory is at most 8 bytes for each byte of the messages, 512 for each message, and 1 MiB,
    /// with a template that writes each message once. Nothing but the number of its instructions
    /// bounds what another one keeps in variables.
    ///
    /// # Errors
    /// When the template fails on these messages or refuses them (its own words are in the
    /// message), or runs into a limit.
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
        // Given as None, not left undefined, because templates ask which of the two it is.
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

    /// A character that occurs in no text of the conversation.
    fn sentinel(&self, messages: &[Message], options: &RenderOptions) -> Result<char, Error> {
        let is_free = |c: &char| {
            let mut free = true;
            message::texts(messages, options, &mut |text| free = free && !text.contains(*c));
            free
        };
        self.sentinels.iter().copied().find(is_free).ok_or(Error::NoSentinel)
    }
}

/// Runs `f` on a thread of its own with [`STACK`] bytes of stack, of which only what is used takes
/// memory.
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

/// What the engine says, without the position, which our message has already.
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
