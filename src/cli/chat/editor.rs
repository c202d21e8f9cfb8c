//! The line that is being written: editing, history, several lines, completion of commands. Where standard input is
//! no terminal, its lines as they are.

use std::path::PathBuf;

use nix::sys::termios::{SetArg, Termios, tcgetattr, tcsetattr};
use rustyline::completion::Completer;
use rustyline::config::Config;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Cmd, Context, EventHandler, Helper, KeyCode, KeyEvent, Modifiers};

use super::command::COMMANDS;
use crate::error::Error;

/// The file of lines that are remembered, in the state directory.
const FILE: &str = "chat_history";
/// How many.
const HISTORY: usize = 1000;

pub(super) struct Editor {
    lines: rustyline::Editor<Rules, FileHistory>,
    history: PathBuf,
    _terminal: Option<Restored>,
}

/// What became of a line.
pub(super) enum Line {
    Said(String),
    /// Ctrl-C: what was written is dropped.
    Dropped,
    /// Ctrl-D, or the end of standard input.
    End,
}

impl Editor {
    pub(super) fn open() -> Result<Self, Error> {
        let config = Config::builder()
            .max_history_size(HISTORY)
            .and_then(|config| config.history_ignore_dups(true))
            .map_err(failed)?
            .build();
        let mut lines = rustyline::Editor::<Rules, _>::with_default(config).map_err(failed)?;
        // What is typed before the terminal is in raw mode has its carriage returns as line feeds.
        for alt_enter in [KeyEvent(KeyCode::Enter, Modifiers::ALT), KeyEvent::alt('\n')] {
            lines.bind_sequence(alt_enter, EventHandler::Simple(Cmd::Newline));
        }
        let history = config::client_state_dir(FILE).join(FILE);
        // There is none the first time.
        let _ = lines.load_history(&history);
        Ok(Self { lines, history, _terminal: Restored::of_input() })
    }

    /// Waits for a line. Blocks.
    pub(super) fn line(&mut self) -> Result<Line, Error> {
        match self.lines.readline("> ") {
            Ok(line) => {
                let _ = self.lines.add_history_entry(&line);
                Ok(Line::Said(line))
            }
            Err(ReadlineError::Interrupted) => Ok(Line::Dropped),
            Err(ReadlineError::Eof) => Ok(Line::End),
            Err(error) => Err(failed(error)),
        }
    }

    /// Keeps the history. A folder that cannot be written loses it, and nothing else.
    pub(super) fn close(mut self) {
        if let Some(folder) = self.history.parent() {
            let _ = std::fs::create_dir_all(folder);
        }
        let _ = self.lines.append_history(&self.history);
    }
}

fn failed(error: ReadlineError) -> Error {
    let source = match error {
        ReadlineError::Io(error) => error,
        other => std::io::Error::other(other),
    };
    Error::Setup { what: "reading lines from the terminal", source }
}

/// The settings of the terminal, given back when dropped: the program may end while a line is being written.
struct Restored(Termios);

impl Restored {
    fn of_input() -> Option<Self> {
        tcgetattr(std::io::stdin()).ok().map(Self)
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = tcsetattr(std::io::stdin(), SetArg::TCSANOW, &self.0);
    }
}

/// When a message is complete, and what a command may be completed to.
#[derive(Default)]
struct Rules;

/// Whether more lines belong to a message: it ends in a backslash, or within three backquotes.
pub(super) fn goes_on(text: &str) -> bool {
    let fences = text.lines().filter(|line| line.trim_start().starts_with("```")).count();
    fences % 2 == 1 || text.ends_with('\\')
}

/// A message as it is meant: a backslash at the end of a line only joins it to the next.
pub(super) fn joined(text: &str) -> String {
    text.replace("\\\n", "\n")
}

impl Validator for Rules {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if goes_on(context.input()) {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Completer for Rules {
    type Candidate = String;

    fn complete(
        &self,
        line: &str,
        position: usize,
        _: &Context<'_>,
    ) -> rustyline::Result<(usize, Vec<String>)> {
        let written = &line[..position];
        let names = COMMANDS.iter().map(|(name, ..)| *name);
        let fits = names.filter(|name| written.starts_with('/') && name.starts_with(written));
        Ok((0, fits.map(|name| format!("{name} ")).collect()))
    }
}

impl Hinter for Rules {
    type Hint = String;
}

impl Highlighter for Rules {}

impl Helper for Rules {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_goes_on_behind_a_backslash_and_within_a_fence() {
        assert!(goes_on("a\\") && goes_on("look:\n```c\nint a;") && goes_on("```"));
        assert!(!goes_on("a") && !goes_on("```\nx\n```\nwhat is it?") && !goes_on(""));
        assert_eq!(joined("a\\\nb"), "a\nb");
    }
}
