//! Line editor of the chat: history, multi-line input, completion of commands. Without a terminal,
//! standard input is read line by line.

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

/// History file in the state directory.
const FILE: &str = "chat_history";
/// Maximum number of lines in the history.
const HISTORY: usize = 1000;

pub(super) struct Editor {
    lines: rustyline::Editor<Rules, FileHistory>,
    history: PathBuf,
    _terminal: Option<Restored>,
}

/// Result of reading a line.
pub(super) enum Line {
    Said(String),
    /// Ctrl-C: the line was discarded.
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
        // Before the terminal is in raw mode, a typed carriage return arrives as a line feed.
        for alt_enter in [KeyEvent(KeyCode::Enter, Modifiers::ALT), KeyEvent::alt('\n')] {
            lines.bind_sequence(alt_enter, EventHandler::Simple(Cmd::Newline));
        }
        let history = config::client_state_dir(FILE).join(FILE);
        // The file does not exist on the first run.
        let _ = lines.load_history(&history);
        Ok(Self { lines, history, _terminal: Restored::of_input() })
    }

    /// Waits for a line; blocks the thread.
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

    /// Saves the history. If the folder is not writable, only the history is lost.
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

/// Terminal settings, restored on drop because the program may end while a line is being edited.
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

/// Decides when a message is complete, and completes commands.
#[derive(Default)]
struct Rules;

/// Returns whether a message continues on the next line: it ends in a backslash or has an open code
/// fence.
pub(super) fn is_incomplete(text: &str) -> bool {
    let fences = text.lines().filter(|line| line.trim_start().starts_with("```")).count();
    fences % 2 == 1 || text.ends_with('\\')
}

/// Joins lines that end in a backslash to the next line.
pub(super) fn join_lines(text: &str) -> String {
    text.replace("\\\n", "\n")
}

impl Validator for Rules {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if is_incomplete(context.input()) {
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
    fn messages_continue_after_a_backslash_or_inside_a_fence() {
        assert!(
            is_incomplete("a\\") && is_incomplete("look:\n```c\nint a;") && is_incomplete("```")
        );
        assert!(
            !is_incomplete("a") && !is_incomplete("```\nx\n```\nwhat is it?") && !is_incomplete("")
        );
        assert_eq!(join_lines("a\\\nb"), "a\nb");
    }
}
