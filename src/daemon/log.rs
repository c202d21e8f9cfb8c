//! Logging to standard error, with a filter that can change while the daemon runs.

//!
//! Control characters in fields are escaped: a name cannot move a terminal's cursor or begin a line.

use std::fmt::Debug;
use std::io::{self, IsTerminal, Write};

use tracing::field::Field;
use tracing_subscriber::EnvFilter;
use tracing_subscriber::field::MakeExt as _;
use tracing_subscriber::fmt::FormatFields;
use tracing_subscriber::fmt::format::{Writer, debug_fn};

use config::{Config, LogFormat};
use errors::printable;

pub(super) struct Log {
    set: Box<dyn Fn(EnvFilter)>,
}

impl Log {
    /// Starts logging as `config` specifies; the configuration has been checked. Keeps a subscriber
    /// that the embedding program installed.
    pub(super) fn start(config: &Config) -> Self {
        // A line that cannot be written is dropped. The subscriber would otherwise report the error
        // on standard error as well, and panic.
        let log = tracing_subscriber::fmt()
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .log_internal_errors(false)
            .fmt_fields(fields());
        let filter = filter(&config.log);
        // The handle fails only if there is no subscriber.
        let set: Box<dyn Fn(EnvFilter)> = match config.log_format {
            LogFormat::Text => {
                let log = log.with_env_filter(filter).with_filter_reloading();
                let handle = log.reload_handle();
                let _ = log.try_init();
                Box::new(move |filter| drop(handle.reload(filter)))
            }
            LogFormat::Json => {
                let log = log
                    .json()
                    .with_writer(JsonLines::default)
                    .with_env_filter(filter)
                    .with_filter_reloading();
                let handle = log.reload_handle();
                let _ = log.try_init();
                Box::new(move |filter| drop(handle.reload(filter)))
            }
        };
        Self { set }
    }

    pub(super) fn set(&self, directives: &str) {
        (self.set)(filter(directives));
    }
}

/// Formats fields as the subscriber does by default, but on one line.
fn fields() -> impl for<'a> FormatFields<'a> + 'static {
    let field = |writer: &mut Writer<'_>, field: &Field, value: &dyn Debug| {
        let value = printable::line(&format!("{value:?}"));
        match field.name() {
            "message" => write!(writer, "{value}"),
            // Added to records of the `log` crate.
            name if name.starts_with("log.") => Ok(()),
            name if writer.has_ansi_escapes() => {
                write!(writer, "\x1b[3m{name}\x1b[0m\x1b[2m=\x1b[0m{value}")
            }
            name => write!(writer, "{name}={value}"),
        }
    };
    debug_fn(field).delimited(" ")
}

/// Standard error for lines of JSON, which may contain some control characters.
#[derive(Default)]
struct JsonLines;

impl Write for JsonLines {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let line_text = printable::json(&String::from_utf8_lossy(line));
        io::stderr().write_all(line_text.as_bytes()).map(|()| line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Parses directives that were checked with the configuration.
fn filter(directives: &str) -> EnvFilter {
    EnvFilter::builder().parse_lossy(directives)
}
