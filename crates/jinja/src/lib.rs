//! Jinja templates as Python's Jinja2 runs them in Hugging Face's `apply_chat_template`: an immutable sandbox with
//! trimmed blocks, loop controls and `{% generation %}`.
//!
//! Templates are untrusted. A run is bounded in time, in the memory of its values, in its output, and in the depth
//! of calls and values. Lists, dictionaries and texts are immutable, and no value may contain a
//! namespace, so none contains itself.

mod args;
mod ast;
mod escapes;
mod eval;
mod filters;
mod format;
mod json;
mod lexer;
mod list_filters;
mod meter;
mod methods;
mod number;
mod objects;
mod ops;
mod parser;
mod predicates;
mod print;
mod run;
mod statements;
mod text_filters;
mod value;

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ast::Body;
use meter::{Fault, Meter};
use run::Run;
pub use value::Value;

/// A parsed template.
#[derive(Debug)]
pub struct Template {
    body: Body,
}

/// Limits of one run.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Time of the run.
    pub time: Duration,
    /// Bytes of all values that exist at the same time.
    pub memory: usize,
    /// Bytes of output.
    pub output: usize,
}

/// Function for `strftime_now`: the current time in a format, or the reason why the format is invalid.
pub type Clock<'a> = &'a dyn Fn(&str) -> Result<String, String>;

/// Input of a run.
pub struct Inputs<'a> {
    /// Global variables.
    pub variables: Vec<(&'a str, Value)>,
    pub clock: Clock<'a>,
    pub limits: Limits,
    /// Once set, the run soon fails with [`Error::Cancelled`].
    pub cancelled: &'a AtomicBool,
    /// Bytes to reserve for the output.
    pub reserve: usize,
}

/// Reason why a template was rejected or failed. Lines count from 1.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    #[error("line {line}: {message}")]
    Syntax { line: usize, message: String },
    /// The template called `raise_exception`.
    #[error("line {line}: {message}")]
    Raised { line: usize, message: String },
    #[error("line {line}: {message}")]
    Failed { line: usize, message: String },
    #[error("line {line}: the template ran longer than {limit:?}")]
    Time { line: usize, limit: Duration },
    #[error("line {line}: the values of the template need more than {limit} bytes")]
    Memory { line: usize, limit: usize },
    #[error("line {line}: the output of the template has more than {limit} bytes")]
    Output { line: usize, limit: usize },
    #[error("cancelled")]
    Cancelled,
}

impl Template {
    /// Parses a template.
    ///
    /// # Errors
    /// [`Error::Syntax`].
    pub fn parse(source: &str) -> Result<Self, Error> {
        let body =
            statements::parse(source).map_err(|(line, message)| Error::Syntax { line, message })?;
        Ok(Self { body })
    }

    /// Runs the template on a thread with a few megabytes of stack ([`Template::STACK`]).
    ///
    /// # Errors
    /// All but [`Error::Syntax`].
    pub fn render(&self, inputs: Inputs<'_>) -> Result<String, Error> {
        let limits = inputs.limits;
        let meter = Meter::new(limits, inputs.cancelled);
        let mut run = Run::new(&meter, inputs.clock, inputs.variables, inputs.reserve);
        let done = meter.work(usize::MAX).and_then(|()| run.body(&self.body));
        let line = run.line();
        match done {
            Ok(_) => Ok(run.into_output()),
            Err(Fault::Message(message)) => Err(Error::Failed { line, message }),
            Err(Fault::Raised(message)) => Err(Error::Raised { line, message }),
            Err(Fault::Time) => Err(Error::Time { line, limit: limits.time }),
            Err(Fault::Memory) => Err(Error::Memory { line, limit: limits.memory }),
            Err(Fault::Output) => Err(Error::Output { line, limit: limits.output }),
            Err(Fault::Cancelled) => Err(Error::Cancelled),
        }
    }

    /// Bytes of stack that parsing and running need at most.
    pub const STACK: usize = 64 << 20;
}
