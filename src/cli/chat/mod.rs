//! `orinctl chat`: a conversation in the terminal. `editor` reads lines, `command` parses slash
//! commands, `conversation` stores the messages, `markdown` renders answers while they stream.
//! Ctrl-C cancels the current answer in the daemon; the program continues.

mod command;
mod conversation;
mod editor;
mod markdown;

use std::path::Path;
use std::time::Instant;

use futures_util::FutureExt;
use serde::Deserialize;
use serde_json::json;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::args::{self, Connection};
use super::error::Error;
use super::session::{self, Room, Session};
use super::terminal::Terminal;
use super::text;
use super::usage::AnswerStats;
use api::{ChatRequest, LoadRequest, StreamOptions, route};
use command::{COMMANDS, Command};
use conversation::Conversation;
use editor::{Editor, Line};
use markdown::Markdown;

const THOUGHTS: (&str, &str) = ("\x1b[2m", "\x1b[0m");

struct Chat<'a> {
    args: &'a args::Chat,
    terminal: &'a Terminal,
    session: Session,
    conversation: Conversation,
    interrupt: Signal,
}

pub(super) async fn run(
    connection: &Connection,
    args: &args::Chat,
    terminal: &Terminal,
) -> Result<(), Error> {
    let handled =
        |kind| signal(kind).map_err(|source| Error::Setup { what: "handling signals", source });
    let (mut terminate, mut hangup) =
        (handled(SignalKind::terminate())?, handled(SignalKind::hangup())?);
    let room = Room { slots: 1, context: None };
    let mut interrupt = handled(SignalKind::interrupt())?;
    let session = tokio::select! {
        session = Session::open(connection, &args.model, room, terminal) => session?,
        _ = interrupt.recv() => return Err(Error::Interrupted),
        _ = terminate.recv() => return Err(Error::Interrupted),
    };
    let model = &session.model;
    terminal.print_line(&format!("{} on {}; /help lists commands", model.id, model.device.name));
    if model.synthetic {
        terminal.print_line(&format!("{} has random weights: the text means nothing", model.id));
    }
    let mut conversation = Conversation::default();
    conversation.instruct(args.system.as_deref().unwrap_or_default());
    let mut chat = Chat { args, terminal, session, conversation, interrupt };
    let mut editor = Editor::open()?;
    loop {
        // On a blocking thread, so that the daemon's answers and signals are handled meanwhile.
        let reading = tokio::task::spawn_blocking(move || {
            let line = editor.line();
            (editor, line)
        });
        let line = tokio::select! {
            read = reading => {
                let (back, line) = read.map_err(std::io::Error::other)?;
                editor = back;
                line?
            }
            _ = terminate.recv() => return Err(Error::Interrupted),
            _ = hangup.recv() => return Err(Error::Interrupted),
        };
        let line = match line {
            Line::Said(line) => editor::join_lines(line.trim()),
            Line::Dropped => continue,
            Line::End => break,
        };
        if line.is_empty() {
            continue;
        }
        let done = tokio::select! {
            done = chat.take(line) => done,
            _ = terminate.recv() => return Err(Error::Interrupted),
            _ = hangup.recv() => return Err(Error::Interrupted),
        };
        match done {
            Ok(true) => {}
            Ok(false) => break,
            // The reader of standard output has closed it.
            Err(error) if error.is_broken_pipe() => return Err(error),
            Err(error) => terminal.error(&error),
        }
    }
    editor.close();
    Ok(())
}

impl Chat<'_> {
    /// Handles an input line; returns false to quit.
    async fn take(&mut self, line: String) -> Result<bool, Error> {
        if !line.starts_with('/') {
            self.answer(line).await?;
            return Ok(true);
        }
        match command::parse(&line).map_err(Error::Usage)? {
            Command::System(None) => {
                self.notify(self.conversation.instructions().unwrap_or("no system prompt"));
            }
            Command::System(Some(text)) => {
                self.conversation.instruct(if text == "-" { "" } else { &text });
            }
            Command::Save(file) => {
                self.conversation.save(Path::new(&file))?;
                self.notify(&format!("{} turns written to {file}", self.conversation.turns()));
            }
            Command::Load(file) => {
                self.conversation = Conversation::read(Path::new(&file))?;
                self.notify(&format!("{} turns read from {file}", self.conversation.turns()));
            }
            Command::Model(None) => {
                let model = &self.session.model;
                self.notify(&format!("{}, context of {} tokens", model.id, model.context));
            }
            Command::Model(Some(name)) => self.load(&name).await?,
            Command::Tokens => self.count().await?,
            Command::Undo => match self.conversation.undo() {
                Some(asked) => self.notify(&format!("removed: {asked}")),
                None => self.notify("no question yet"),
            },
            Command::Clear => self.conversation.clear(),
            Command::Help => self.help(),
            Command::Quit => return Ok(false),
        }
        Ok(true)
    }

    fn notify(&self, line: &str) {
        self.terminal.print_line(line);
    }

    fn help(&self) {
        let rows =
            COMMANDS.map(|(name, takes, does)| [name, takes, does].map(str::to_owned).to_vec());
        self.notify(text::columns(&rows, &[]).trim_end());
        self.notify(
            "A message continues after \\, inside ```, and after Alt-Enter. Ctrl-C stops an answer.",
        );
    }

    /// Sends the question, prints the answer while it streams, and stores both. The received part of
    /// a stopped answer is stored; a question without an answer is not.
    async fn answer(&mut self, question: String) -> Result<(), Error> {
        self.conversation.ask(question);
        let mut whole = String::new();
        let answered = self.stream(&mut whole).await;
        if whole.is_empty() {
            self.conversation.undo();
        } else {
            self.conversation.answer(whole);
        }
        answered
    }

    async fn stream(&mut self, whole: &mut String) -> Result<(), Error> {
        let request = ChatRequest {
            model: self.session.named(),
            messages: self.conversation.messages(),
            max_completion_tokens: self.args.max_tokens,
            temperature: self.args.temp,
            top_k: self.args.top_k,
            top_p: self.args.top_p,
            seed: self.args.seed.map(i64::from),
            stream_options: Some(StreamOptions { include_usage: true }),
            ..ChatRequest::default()
        };
        // Discard an interrupt that arrived after the previous answer had ended.
        while self.interrupt.recv().now_or_never().flatten().is_some() {}
        let begin = Instant::now();
        let mut stats = AnswerStats::default();
        let mut markdown = Markdown::new(self.terminal.paints());
        let mut thinks = false;
        let mut ends_with_line_feed = true;
        let mut interrupted = false;
        let mut stream = tokio::select! {
            stream = self.session.client.chat(&request) => stream?,
            _ = self.interrupt.recv() => {
                self.notify("interrupted");
                return Ok(());
            }
        };
        loop {
            let part = tokio::select! {
                part = stream.next() => part,
                _ = self.interrupt.recv() => {
                    interrupted = true;
                    break;
                }
            };
            let Some(part) = part? else { break };
            stats.add(part.usage, part.timings);
            for delta in part.choices.into_iter().map(|choice| choice.delta) {
                let mut shown = String::new();
                if let Some(thought) = delta.reasoning_content {
                    shown.push_str(&self.think(true, &mut thinks));
                    shown.push_str(&Markdown::new(false).push(&thought));
                }
                if let Some(text) = delta.content.filter(|text| !text.is_empty()) {
                    shown.push_str(&self.think(false, &mut thinks));
                    shown.push_str(&markdown.push(&text));
                    whole.push_str(&text);
                }
                if !shown.is_empty() {
                    ends_with_line_feed = shown.ends_with('\n');
                    text::painted(&shown)?;
                }
            }
        }
        // Dropping the stream cancels the request in the daemon.
        drop(stream);
        let mut rest = self.think(false, &mut thinks) + &markdown.finish();
        if !ends_with_line_feed {
            rest.push('\n');
        }
        text::painted(&rest)?;
        if interrupted {
            self.notify("interrupted");
        } else {
            self.notify(&stats.line(begin));
        }
        Ok(())
    }

    /// Returns the escape codes to print where reasoning text begins or ends.
    fn think(&self, now: bool, thinks: &mut bool) -> String {
        let was = std::mem::replace(thinks, now);
        let (begin, end) = if self.terminal.paints() { THOUGHTS } else { ("", "") };
        match (was, now) {
            (false, true) => begin.to_owned(),
            (true, false) => format!("{end}\n"),
            _ => String::new(),
        }
    }

    async fn load(&mut self, name: &str) -> Result<(), Error> {
        let private = self.session.private.is_some();
        let model = if private { session::absolute(name)? } else { name.to_owned() };
        let request = LoadRequest { model, ..LoadRequest::default() };
        let load = session::load(&self.session.client, &request, self.terminal);
        let (model, _) = tokio::select! {
            loaded = load => loaded?,
            _ = self.interrupt.recv() => {
                self.notify("the load continues; until then the previous model is used");
                return Ok(());
            }
        };
        self.session.model = model;
        self.notify(&format!("{} is loaded", self.session.model.id));
        Ok(())
    }

    async fn count(&self) -> Result<(), Error> {
        /// Length of a conversation, from Anthropic's token counting route.
        #[derive(Deserialize)]
        struct Count {
            input_tokens: u64,
        }
        if self.conversation.turns() == 0 {
            self.notify("no question yet");
            return Ok(());
        }
        let request = json!({"messages": self.conversation.messages()});
        let Count { input_tokens } = self.session.client.ask(route::COUNT_TOKENS, &request).await?;
        self.notify(&format!("{input_tokens} of {} tokens", self.session.model.context));
        Ok(())
    }
}
