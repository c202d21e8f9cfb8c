//! Standard error: a live line, plain lines, errors. Colour only on a terminal and without `NO_COLOR`.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::error::Error;
use errors::one_line;

#[derive(Clone, Copy)]
pub(super) struct Terminal {
    live: bool,
    colour: bool,
    /// Whether standard output may have colours too.
    paints: bool,
}

impl Terminal {
    pub(super) fn new() -> Self {
        let live = std::io::stderr().is_terminal();
        let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty())
            || std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        let paints = std::io::stdout().is_terminal() && !plain;
        Self { live, colour: live && !plain, paints }
    }

    /// Whether standard output is a terminal that takes colours.
    pub(super) const fn paints(&self) -> bool {
        self.paints
    }

    /// One line. Standard error that is gone is no reason to stop.
    pub(super) fn say(&self, line: &str) {
        let _ = writeln!(std::io::stderr(), "{line}");
    }

    pub(super) fn error(&self, error: &Error) {
        if error.is_broken_pipe() {
            return;
        }
        let (red, bold, end) =
            if self.colour { ("\x1b[1;31m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
        self.say(&format!("{red}error:{end} {}", one_line(error)));
        if let Some(hint) = error.hint() {
            self.say(&format!("{bold}hint:{end} {hint}"));
        }
    }

    /// A live line for work of unknown length.
    pub(super) fn spinner(&self) -> Live {
        self.live(ProgressBar::new_spinner(), "{spinner} {msg} {elapsed}")
    }

    /// A live bar that counts bytes.
    pub(super) fn bytes(&self) -> Live {
        self.live(
            ProgressBar::new(0),
            "{msg:<12} [{bar:30}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}",
        )
    }

    /// A live bar that counts steps.
    pub(super) fn steps(&self) -> Live {
        self.live(ProgressBar::new(0), "[{bar:24}] {pos}/{len} {msg} {elapsed}")
    }

    fn live(&self, bar: ProgressBar, template: &str) -> Live {
        bar.set_draw_target(if self.live {
            ProgressDrawTarget::stderr_with_hz(8)
        } else {
            ProgressDrawTarget::hidden()
        });
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        if self.live {
            bar.enable_steady_tick(Duration::from_millis(125));
        }
        Live(bar)
    }
}

/// A line that goes away when dropped; invisible where standard error is not a terminal.
pub(super) struct Live(ProgressBar);

impl Live {
    pub(super) fn set(&self, done: u64, total: u64, message: impl Into<String>) {
        self.0.set_length(total);
        self.0.set_position(done);
        self.message(message);
    }

    /// A line that stays, above the live one.
    pub(super) fn say(&self, terminal: &Terminal, line: &str) {
        self.0.suspend(|| terminal.say(line));
    }

    pub(super) fn message(&self, message: impl Into<String>) {
        let message = message.into();
        if self.0.message() != message {
            self.0.set_message(message);
        }
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
