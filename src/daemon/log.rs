//! Logging to standard error, with a filter that can change while the daemon runs.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use config::{Config, LogFormat};

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
            .log_internal_errors(false);
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
                let log = log.json().with_env_filter(filter).with_filter_reloading();
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

/// Parses directives that were checked with the configuration.
fn filter(directives: &str) -> EnvFilter {
    EnvFilter::builder().parse_lossy(directives)
}
