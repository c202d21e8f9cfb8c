//! Standard error: progress lines, messages and errors. Colours only on a terminal and without
//! `NO_COLOR`.

use std::io::{IsTerminal, Write};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::error::Error;
use errors::{one_line, printable};

#[derive(Clone, Copy)]
pub(super) struct Terminal {
    live: bool,
    colour: bool,
    /// True if standard output may be coloured too.
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

    /// Returns whether standard output is a terminal that supports colours.
    pub(super) const fn paints(&self) -> bool {
        self.paints
    }

    /// Prints a message, with control characters escaped. A closed standard error is ignored.
    pub(super) fn print_line(&self, line: &str) {
        let _ = std::io::stderr().write_all(format!("{}\n", printable::page(line)).as_bytes());
    }

    pub(super) fn error(&self, error: &Error) {
        if error.is_broken_pipe() {
            return;
        }
        let (red, bold, end) =
            if self.colour { ("\x1b[1;31m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
        // Some errors end with lines of a log. None of them can pass for a line of this program.
        let message = one_line(error).replace('\n', "\n  ");
        let message = printable::page(&message);
        let mut text = format!("{red}error:{end} {message}\n");
        if let Some(hint) = error.hint() {
            text += &format!("{bold}hint:{end} {}\n", printable::line(&hint));
        }
        let _ = std::io::stderr().write_all(text.as_bytes());
    }

    /// Progress line for work of unknown length.
    pub(super) fn spinner(&self) -> Live {
        self.live(ProgressBar::new_spinner(), "{spinner} {msg} {elapsed}")
    }

    /// Progress bar that counts bytes.
    pub(super) fn bytes(&self) -> Live {
        self.live(
            ProgressBar::new(0),
            "{msg:<12} [{bar:30}] {binary_bytes} of {binary_total_bytes}, {binary_bytes_per_sec}",
        )
    }

    /// Progress bar that counts steps.
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

/// Progress line that disappears on drop; invisible if standard error is not a terminal.
pub(super) struct Live(ProgressBar);

impl Live {
    pub(super) fn set(&self, done: u64, total: u64, message: impl Into<String>) {
        self.0.set_length(total);
        self.0.set_position(done);
        self.message(message);
    }

    /// Prints a permanent line above the progress line.
    pub(super) fn print_line(&self, terminal: &Terminal, line: &str) {
        self.0.suspend(|| terminal.print_line(line));
    }

    pub(super) fn message(&self, message: impl Into<String>) {
        let message = printable::line(&message.into());
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
