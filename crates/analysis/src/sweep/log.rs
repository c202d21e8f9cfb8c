//! Log file of a sweep: one JSON line per measurement, each with the whole sweep definition, so
//! that a file identifies its sweep. A line is also a record that `orinctl verify` reads.

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
    #[error("{}, line {line}, is not a measurement of a sweep ({why}); use another file with --out", path.display())]
    Foreign { path: PathBuf, line: usize, why: String },
    #[error("{} belongs to another sweep: {}; use another file with --out", path.display(), differences.join("; "))]
    Other { path: PathBuf, differences: Vec<String> },
    #[error("another sweep writes to {}; wait for it, or use another file with --out", path.display())]
    Busy { path: PathBuf },
    #[error(transparent)]
    Record(#[from] RecordError),
}

/// One measurement, as a line of the file.
#[derive(Serialize, Deserialize)]
struct Line<S> {
    format: u32,
    sweep: S,
    round: u32,
    point: Point,
    report: Report,
}

/// A measurement that was read or just made.
#[derive(Clone, Debug)]
pub(super) struct Measured {
    pub(super) round: u32,
    pub(super) point: Point,
    pub(super) report: Report,
}

pub struct Log {
    pub path: PathBuf,
    /// Locked from the first line on, because two concurrent sweeps would disturb each other. A
    /// rejected sweep creates no file.
    file: Option<File>,
    sweep: Sweep,
    pub(super) measured: Vec<Measured>,
    /// Size of an incomplete last line that was removed.
    pub dropped: usize,
}

impl Log {
    /// Reads the measurements of this sweep; a missing file has none. An incomplete last line is
    /// removed.
    ///
    /// # Errors
    /// The file cannot be read, belongs to something else, or is in use by another sweep.
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
        // A file without a complete line may be anything.
        let cut = &bytes[whole..];
        if whole == 0 && !cut.is_empty() && !cut.starts_with(b"{\"format\":") {
            let why = "its only line is incomplete".to_owned();
            return Err(Error::Foreign { path: path.to_owned(), line: 1, why });
        }
        if let Some(file) = log.file.as_ref().filter(|_| !cut.is_empty()) {
            file.set_len(whole as u64).map_err(failed("shorten"))?;
        }
        Ok(log)
    }

    /// Appends a measurement; on return it is on disk.
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

    /// Returns whether a point has a valid measurement in a round.
    pub fn has(&self, round: u32, point: &Point) -> bool {
        self.valid(point).any(|measured| measured.round == round)
    }

    /// Reasons of the invalid measurements, during which the machine changed.
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

/// Opens the file for a sweep's first line; another sweep may have written to it meanwhile.
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
        return Err(foreign("it has a newer format: update orind".into()));
    }
    let theirs = line.get("sweep").ok_or_else(|| foreign("it contains no sweep".into()))?;
    let differences = differences(theirs, ours);
    if !differences.is_empty() {
        return Err(Error::Other { path: path.to_owned(), differences });
    }
    let line: Line<Value> =
        serde_json::from_value(line).map_err(|error| foreign(error.to_string()))?;
    Ok(Measured { round: line.round, point: line.point, report: line.report })
}

/// Describes the fields in which two sweeps differ.
fn differences(theirs: &Value, ours: &Value) -> Vec<String> {
    let fields = ours.as_object().into_iter().flatten();
    let differ = |(name, here): (&String, &Value)| {
        let there = theirs.get(name).unwrap_or(&Value::Null);
        (there != here).then(|| format!("{name} is {there} there and {here} here"))
    };
    fields.filter_map(differ).collect()
}
