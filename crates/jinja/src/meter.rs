//! Limits of a run: time, memory, depth, cancellation.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::Limits;
use crate::value::{Dict, List, ListKind, OBJECT_DEPTH, Text, Value};

/// Units of work between two readings of the clock.
const STRIDE: usize = 4096;
/// Deepest nesting of values.
pub(crate) const VALUE_DEPTH: usize = 200;
/// Deepest nesting of evaluations: expressions, blocks and macros.
const CALL_DEPTH: usize = 3000;

thread_local! {
    /// Bytes of the values of this thread.
    static LIVE: Cell<usize> = const { Cell::new(0) };
}

/// Adds to the bytes of this thread's values.
pub(crate) fn charge(bytes: usize) -> usize {
    LIVE.set(LIVE.get().saturating_add(bytes));
    bytes
}

pub(crate) fn discharge(bytes: usize) {
    LIVE.set(LIVE.get().saturating_sub(bytes));
}

/// Reason why a run ends early.
#[derive(Debug)]
pub(crate) enum Fault {
    Message(String),
    Raised(String),
    Time,
    Memory,
    Output,
    Cancelled,
}

pub(crate) type Result<T> = std::result::Result<T, Fault>;

/// A failure with a message.
pub(crate) fn fail<T>(message: impl Into<String>) -> Result<T> {
    Err(Fault::Message(message.into()))
}

/// Fails if values may not be nested this deeply.
pub(crate) fn check_depth(depth: usize) -> Result<()> {
    match depth {
        0..=VALUE_DEPTH => Ok(()),
        OBJECT_DEPTH.. => fail("a namespace cannot be part of another value"),
        _ => fail("a value is nested too deeply"),
    }
}

/// Processor time of this thread: other work of the machine does not count.
fn processor_time() -> Duration {
    // The clock always exists.
    clock_gettime(ClockId::CLOCK_THREAD_CPUTIME_ID).map_or(Duration::ZERO, Duration::from)
}

#[derive(Debug)]
pub(crate) struct Meter<'a> {
    limits: Limits,
    /// Processor time of this thread at which the run ends.
    deadline: Duration,
    cancelled: &'a AtomicBool,
    left: Cell<usize>,
    depth: Cell<usize>,
}

impl<'a> Meter<'a> {
    pub(crate) fn new(limits: Limits, cancelled: &'a AtomicBool) -> Self {
        let deadline = processor_time().saturating_add(limits.time);
        Self { limits, deadline, cancelled, left: Cell::new(0), depth: Cell::new(0) }
    }

    /// Counts units of work, each some nanoseconds.
    pub(crate) fn work(&self, units: usize) -> Result<()> {
        if let Some(left) = self.left.get().checked_sub(units) {
            self.left.set(left);
            return Ok(());
        }
        self.left.set(STRIDE);
        if self.cancelled.load(Ordering::Relaxed) {
            return Err(Fault::Cancelled);
        }
        if processor_time() >= self.deadline { Err(Fault::Time) } else { Ok(()) }
    }

    /// Fails if `bytes` more are too many.
    pub(crate) fn room(&self, bytes: usize) -> Result<()> {
        let fits = LIVE.get().saturating_add(bytes) <= self.limits.memory;
        if fits { Ok(()) } else { Err(Fault::Memory) }
    }

    pub(crate) const fn output(&self) -> usize {
        self.limits.output
    }

    /// Enters one more level of evaluation.
    pub(crate) fn enter(&self) -> Result<()> {
        if self.depth.get() >= CALL_DEPTH {
            return fail("maximum recursion depth exceeded");
        }
        self.depth.set(self.depth.get() + 1);
        Ok(())
    }

    pub(crate) fn leave(&self) {
        self.depth.set(self.depth.get() - 1);
    }

    pub(crate) fn text(&self, text: impl Into<String>) -> Result<Value> {
        let text = text.into();
        self.work(1 + text.len() / 16)?;
        self.room(text.len())?;
        Ok(Value::Text(Arc::new(Text::charged(text))))
    }

    pub(crate) fn list(&self, items: Vec<Value>) -> Result<Value> {
        self.sequence(items, ListKind::List)
    }

    pub(crate) fn tuple(&self, items: Vec<Value>) -> Result<Value> {
        self.sequence(items, ListKind::Tuple)
    }

    pub(crate) fn sequence(&self, items: Vec<Value>, kind: ListKind) -> Result<Value> {
        self.work(1 + items.len())?;
        self.room(List::bytes(items.len()))?;
        let list = List::new(items, kind);
        check_depth(list.depth)?;
        Ok(Value::List(Arc::new(list)))
    }

    pub(crate) fn dict(&self, pairs: Vec<(Value, Value)>) -> Result<Value> {
        self.work(1 + pairs.len())?;
        self.room(Dict::bytes(pairs.len()))?;
        let dict = Dict::new(pairs);
        check_depth(dict.depth)?;
        Ok(Value::Dict(Arc::new(dict)))
    }

    pub(crate) fn builder(&self) -> Builder<'_> {
        Builder { meter: self, text: String::new() }
    }
}

/// A text that grows within the limit on memory.
pub(crate) struct Builder<'m> {
    pub(crate) meter: &'m Meter<'m>,
    text: String,
}

impl Builder<'_> {
    pub(crate) fn push(&mut self, text: &str) -> Result<()> {
        self.meter.work(1 + text.len() / 16)?;
        self.meter.room(self.text.len().saturating_add(text.len()))?;
        self.text.push_str(text);
        Ok(())
    }

    pub(crate) fn push_char(&mut self, c: char) -> Result<()> {
        self.push(c.encode_utf8(&mut [0; 4]))
    }

    /// Appends a text `count` times.
    pub(crate) fn repeat(&mut self, text: &str, count: usize) -> Result<()> {
        self.meter.room(text.len().saturating_mul(count))?;
        for _ in 0..count {
            self.push(text)?;
        }
        Ok(())
    }

    pub(crate) fn finish(self) -> Result<Value> {
        self.meter.text(self.text)
    }

    pub(crate) fn into_text(self) -> String {
        self.text
    }
}
