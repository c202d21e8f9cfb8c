//! `orinctl chat`: a conversation at the terminal. `editor` takes lines, `command` reads those that begin with a
//! slash, `conversation` keeps what was said, `markdown` shows answers while they stream. Ctrl-C ends an answer, and
//! the daemon's work for it; the program goes on.

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
use super::took::Took;
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
    said: Conversation,
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
    terminal.say(&format!("{} on {}; /help lists commands", model.id, model.device.name));
    if model.synthetic {
        terminal.say(&format!("{} has random weights: the text means nothing", model.id));
    }
    let mut said = Conversation::default();
    said.instruct(args.system.as_deref().unwrap_or_default());
    let mut chat = Chat { args, terminal, session, said, interrupt };
    let mut editor = Editor::open()?;
    loop {
        // Elsewhere, so that the daemon and signals are heard meanwhile.
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
            Line::Said(line) => editor::joined(line.trim()),
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
            // Nobody reads.
            Err(error) if error.is_broken_pipe() => return Err(error),
            Err(error) => terminal.error(&error),
        }
    }
    editor.close();
    Ok(())
}

impl Chat<'_> {
    /// Does what a line asks for. False when that is to leave.
    async fn take(&mut self, line: String) -> Result<bool, Error> {
        if !line.starts_with('/') {
            self.answer(line).await?;
            return Ok(true);
        }
        match command::parse(&line).map_err(Error::Usage)? {
            Command::System(None) => {
                self.tell(self.said.instructions().unwrap_or("nothing is set"));
            }
            Command::System(Some(text)) => {
                self.said.instruct(if text == "-" { "" } else { &text });
            }
            Command::Save(file) => {
                self.said.save(Path::new(&file))?;
                self.tell(&format!("{} turns written to {file}", self.said.turns()));
            }
            Command::Load(file) => {
                self.said = Conversation::read(Path::new(&file))?;
                self.tell(&format!("{} turns read from {file}", self.said.turns()));
            }
            Command::Model(None) => {
                let model = &self.session.model;
                self.tell(&format!("{}, {} tokens of room", model.id, model.context));
            }
            Command::Model(Some(name)) => self.load(&name).await?,
            Command::Tokens => self.count().await?,
            Command::Undo => match self.said.undo() {
                Some(asked) => self.tell(&format!("taken back: {asked}")),
                None => self.tell("nothing was asked yet"),
            },
            Command::Clear => self.said.clear(),
            Command::Help => self.help(),
            Command::Quit => return Ok(false),
        }
        Ok(true)
    }

    fn tell(&self, line: &str) {
        self.terminal.say(line);
    }

    fn help(&self) {
        let rows =
            COMMANDS.map(|(name, takes, does)| [name, takes, does].map(str::to_owned).to_vec());
        self.tell(text::columns(&rows, &[]).trim_end());
        self.tell(
            "A line goes on behind \\, within ```, and after Alt-Enter. Ctrl-C ends an answer.",
        );
    }

    /// Asks, shows the answer as it comes, and keeps both; of an answer that is ended what there is of it. What
    /// was not answered at all is not kept.
    async fn answer(&mut self, question: String) -> Result<(), Error> {
        self.said.ask(question);
        let mut whole = String::new();
        let answered = self.stream(&mut whole).await;
        if whole.is_empty() {
            self.said.undo();
        } else {
            self.said.answer(whole);
        }
        answered
    }

    async fn stream(&mut self, whole: &mut String) -> Result<(), Error> {
        let request = ChatRequest {
            model: self.session.named(),
            messages: self.said.messages(),
            max_completion_tokens: self.args.max_tokens,
            temperature: self.args.temp,
            top_k: self.args.top_k,
            top_p: self.args.top_p,
            seed: self.args.seed.map(i64::from),
            stream_options: Some(StreamOptions { include_usage: true }),
            ..ChatRequest::default()
        };
        // What came too late for the answer before is not meant for this one.
        while self.interrupt.recv().now_or_never().flatten().is_some() {}
        let begin = Instant::now();
        let mut took = Took::default();
        let mut markdown = Markdown::new(self.terminal.paints());
        let mut thinks = false;
        let mut ends_with_line_feed = true;
        let mut interrupted = false;
        let mut stream = tokio::select! {
            stream = self.session.client.chat(&request) => stream?,
            _ = self.interrupt.recv() => {
                self.tell("interrupted");
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
            took.add(part.usage, part.timings);
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
                    text::print(&shown)?;
                }
            }
        }
        // The daemon works for nobody any more.
        drop(stream);
        let mut rest = self.think(false, &mut thinks) + &markdown.finish();
        if !ends_with_line_feed {
            rest.push('\n');
        }
        text::print(&rest)?;
        if interrupted {
            self.tell("interrupted");
        } else {
            self.tell(&took.line(begin));
        }
        Ok(())
    }

    /// What is to be printed where thoughts begin or end.
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
                self.tell("the load goes on; /model shows the model from before");
                return Ok(());
            }
        };
        self.session.model = model;
        self.tell(&format!("{} is loaded", self.session.model.id));
        Ok(())
    }

    async fn count(&self) -> Result<(), Error> {
        /// A conversation's length, by Anthropic's route.
        #[derive(Deserialize)]
        struct Count {
            input_tokens: u64,
        }
        if self.said.turns() == 0 {
            self.tell("nothing was asked yet");
            return Ok(());
        }
        let request = json!({"messages": self.said.messages()});
        let Count { input_tokens } = self.session.client.ask(route::COUNT_TOKENS, &request).await?;
        self.tell(&format!("{input_tokens} of {} tokens", self.session.model.context));
        Ok(())
    }
}
