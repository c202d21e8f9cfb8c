//! The log: lines on standard error, whose filter can change while the daemon runs.

use std::io::{self, IsTerminal};

use tracing_subscriber::EnvFilter;

use config::{Config, LogFormat};

pub(super) struct Log {
    set: Box<dyn Fn(EnvFilter)>,
}

impl Log {
    /// Starts to log as `config`, which has been checked, says. Whoever runs the daemon may have set
    /// up logging already; then that stays.
    pub(super) fn start(config: &Config) -> Self {
        // A line that cannot be written is lost. The subscriber would say so on the same standard error, and panic
        // because it cannot.
        let log = tracing_subscriber::fmt()
            .with_writer(io::stderr)
            .with_ansi(io::stderr().is_terminal())
            .log_internal_errors(false);
        let filter = filter(&config.log);
        // An error would mean that there is no log.
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

/// The directives were checked with the configuration.
fn filter(directives: &str) -> EnvFilter {
    EnvFilter::builder().parse_lossy(directives)
}
