//! The file of a sweep: a line of JSON for each measurement, with the whole sweep in each, so that a file tells by
//! itself what it is of. A line is a record too: `orinctl verify` reads it.

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{Point, Sweep};
use crate::record::{FORMAT, RecordError, add_line, locked};
use bench::Report;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {what} {}: {source}; --out names another file", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("{}, line {line}, is no measurement of a sweep ({why}), and nothing is added to such a file; --out names another", path.display())]
    Foreign { path: PathBuf, line: usize, why: String },
    #[error("{} is of another sweep: {}; --out names another file", path.display(), differences.join("; "))]
    Other { path: PathBuf, differences: Vec<String> },
    #[error("another sweep writes to {}; wait for it, or name another file with --out", path.display())]
    Busy { path: PathBuf },
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// One measurement.
#[derive(Serialize, Deserialize)]
struct Line<S> {
    format: u32,
    sweep: S,
    round: u32,
    point: Point,
    report: Report,
}

/// A measurement that was read or made.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) round: u32,
    pub(super) point: Point,
    pub(super) report: Report,
}

pub struct Log {
    pub path: PathBuf,
    /// Locked from the first line on: two sweeps at once would measure each other. A sweep that is refused
    /// leaves no file.
    file: Option<File>,
    sweep: Sweep,
    pub(super) measured: Vec<Measured>,
    /// Bytes at the end that were no whole line, and are gone.
    pub dropped: usize,
}

impl Log {
    /// Reads what a file has of this sweep; one that is not there has nothing. A last line that was cut short is
    /// taken away.
    ///
    /// # Errors
    /// The file cannot be read, holds something else, or is another sweep's at this moment.
    pub fn open(path: &Path, sweep: Sweep) -> Result<Self, Error> {
        let failed = |what| move |source| Error::Io { what, path: path.to_owned(), source };
        let mut file = if path.exists() { Some(lock(path)?) } else { None };
        let mut bytes = Vec::new();
        if let Some(file) = &mut file {
            file.read_to_end(&mut bytes).map_err(failed("read"))?;
        }
        let whole = bytes.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
        let mut log = Self {
            path: path.to_owned(),
            file,
            sweep,
            measured: Vec::new(),
            dropped: bytes.len() - whole,
        };
        let ours = serde_json::to_value(&log.sweep).map_err(RecordError::from)?;
        for (at, line) in bytes[..whole].split(|&byte| byte == b'\n').enumerate() {
            if !line.is_empty() {
                log.measured.push(read(path, at + 1, line, &ours)?);
            }
        }
        // A file without a single line may be anything.
        let cut = &bytes[whole..];
        if whole == 0 && !cut.is_empty() && !cut.starts_with(b"{\"format\":") {
            let why = "its only line has no end".to_owned();
            return Err(Error::Foreign { path: path.to_owned(), line: 1, why });
        }
        if let Some(file) = log.file.as_ref().filter(|_| !cut.is_empty()) {
            file.set_len(whole as u64).map_err(failed("shorten"))?;
        }
        Ok(log)
    }

    /// Adds a measurement. When this returns it is on the disk.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn add(&mut self, round: u32, point: Point, report: Report) -> Result<(), Error> {
        let line = Line { format: FORMAT, sweep: &self.sweep, round, point, report };
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(begun(&self.path)?),
        };
        add_line(file, &self.path, &line)?;
        let Line { round, point, report, .. } = line;
        self.measured.push(Measured { round, point, report });
        Ok(())
    }

    /// Whether a point was measured in a round; not by a measurement that says nothing.
    pub fn has(&self, round: u32, point: &Point) -> bool {
        self.valid(point).any(|measured| measured.round == round)
    }

    /// Measurements that say nothing, since the machine changed during them, and why.
    pub fn invalid(&self) -> impl Iterator<Item = &str> {
        self.measured.iter().flat_map(|measured| &measured.report.invalid).map(String::as_str)
    }

    pub const fn sweep(&self) -> &Sweep {
        &self.sweep
    }

    pub(super) fn valid<'a>(&'a self, point: &'a Point) -> impl Iterator<Item = &'a Measured> {
        let of = move |m: &&Measured| m.point == *point && m.report.invalid.is_empty();
        self.measured.iter().filter(of)
    }
}

fn lock(path: &Path) -> Result<File, Error> {
    locked(path, Duration::ZERO).map_err(|error| match error {
        RecordError::Io { what, path, source } => Error::Io { what, path, source },
        RecordError::Busy { path } => Error::Busy { path },
        json @ RecordError::Json(_) => json.into(),
    })
}

/// The file for a sweep's first line, which another one may have written to since it was not there.
fn begun(path: &Path) -> Result<File, Error> {
    let file = lock(path)?;
    let length = file.metadata().map(|metadata| metadata.len());
    match length {
        Ok(0) => Ok(file),
        Ok(_) => Err(Error::Busy { path: path.to_owned() }),
        Err(source) => Err(Error::Io { what: "look at", path: path.to_owned(), source }),
    }
}

fn read(path: &Path, number: usize, line: &[u8], ours: &Value) -> Result<Measured, Error> {
    let foreign = |why: String| Error::Foreign { path: path.to_owned(), line: number, why };
    let line: Value = serde_json::from_slice(line).map_err(|error| foreign(error.to_string()))?;
    let format = line.get("format").and_then(Value::as_u64);
    if format.is_some_and(|format| format > u64::from(FORMAT)) {
        return Err(foreign("it is of a newer format: update orind".into()));
    }
    let theirs = line.get("sweep").ok_or_else(|| foreign("it names no sweep".into()))?;
    let differences = differences(theirs, ours);
    if !differences.is_empty() {
        return Err(Error::Other { path: path.to_owned(), differences });
    }
    let line: Line<Value> =
        serde_json::from_value(line).map_err(|error| foreign(error.to_string()))?;
    Ok(Measured { round: line.round, point: line.point, report: line.report })
}

/// The fields in which two sweeps differ, in words.
fn differences(theirs: &Value, ours: &Value) -> Vec<String> {
    let fields = ours.as_object().into_iter().flatten();
    let differ = |(name, here): (&String, &Value)| {
        let there = theirs.get(name).unwrap_or(&Value::Null);
        (there != here).then(|| format!("{name} is {there} there and {here} here"))
    };
    fields.filter_map(differ).collect()
}
