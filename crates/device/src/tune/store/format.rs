//! Text format of a device's tuning file: aligned and sorted TOML, readable and with small diffs.
//!
//! Each entry ends with a `check` over its device and contents: an entry that was edited, or copied
//! from another device's file, was not measured here and is ignored. The last line is `[end]`, so
//! truncation between entries is detected. Ignored entries are preserved when the file is written.

use std::fmt::Write as _;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use toml::{Table, Value};

use super::DeviceKey;
use super::record::{Candidates, Case, Choice, Clock, Cost, Heuristic, Record, Rejected, When};

/// Format version that is written, and the latest that is read.
pub const VERSION: i64 = 1;

#[derive(Clone, Debug, PartialEq)]
pub struct File {
    pub key: DeviceKey,
    /// Sorted, with distinct [`Record::identity`].
    pub records: Vec<Record>,
    pub unusable: Vec<Unusable>,
}

/// An entry that is ignored but preserved.
#[derive(Clone, Debug, PartialEq)]
pub struct Unusable {
    /// The entry in the file.
    pub entry: Table,
    pub why: String,
}

impl Unusable {
    /// Name of the case, if known.
    #[must_use]
    pub fn about(&self) -> String {
        let case = self.entry.get("case").cloned().map(Value::try_into::<CaseEntry>);
        match case {
            Some(Ok(CaseEntry { family, dtype, rows, cols, batch })) => {
                format!("{family} {dtype} {rows}x{cols} batch {batch}")
            }
            _ => "an entry without a case".into(),
        }
    }
}

/// Reason why a text is no tuning file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error("format version {0}; supported is {VERSION}")]
    Newer(i64),
    /// The whole file is invalid.
    #[error("{0}")]
    Damaged(String),
}

/// Fields of an entry.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    case: CaseEntry,
    choice: Choice,
    time_ns: Option<f64>,
    interval_ns: Option<[f64; 2]>,
    gb_per_s: Option<f64>,
    counted: Option<f64>,
    heuristic: HeuristicEntry,
    /// A TOML date, a string for `serde`.
    when: String,
    clocks: String,
    candidates: Candidates,
    source: String,
    #[serde(default)]
    rejected: Vec<Rejected>,
    check: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct CaseEntry {
    family: String,
    dtype: String,
    rows: u32,
    cols: u32,
    batch: u32,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct HeuristicEntry {
    choice: Choice,
    time_ns: Option<f64>,
    counted: Option<f64>,
}

impl File {
    #[must_use]
    pub const fn new(key: DeviceKey) -> Self {
        Self { key, records: Vec::new(), unusable: Vec::new() }
    }

    /// Parses a file.
    ///
    /// # Errors
    ///
    /// [`FormatError`]; an invalid entry is no error but [`Unusable`].
    pub fn parse(text: &str) -> Result<Self, FormatError> {
        let damaged = |what: &str| FormatError::Damaged(what.to_owned());
        let mut table: Table = toml::from_str(text).map_err(|error| {
            let line = |span: std::ops::Range<usize>| {
                1 + text.bytes().take(span.start).filter(|&b| b == b'\n').count()
            };
            let line = error.span().map(line).map_or_else(String::new, |n| format!("line {n}: "));
            FormatError::Damaged(format!("{line}{}", error.message()))
        })?;
        match table.remove("version") {
            Some(Value::Integer(VERSION)) => {}
            Some(Value::Integer(newer)) if newer > VERSION => {
                return Err(FormatError::Newer(newer));
            }
            Some(other) => {
                return Err(damaged(&format!("version is {other}, which does not exist")));
            }
            None => return Err(damaged("no `version` key: not a tuning file, or truncated")),
        }
        let key = table.remove("device").ok_or_else(|| damaged("it names no device"))?;
        let key: DeviceKey = key
            .try_into()
            .map_err(|error: toml::de::Error| damaged(&format!("device: {}", error.message())))?;
        if table.remove("end").is_none() {
            return Err(damaged("it is cut short: its last line, [end], is missing"));
        }
        let entries = table.remove("entry").unwrap_or_else(|| Value::Array(Vec::new()));
        if let Some(unknown) = table.keys().next() {
            return Err(damaged(&format!("unknown key `{unknown}`")));
        }
        // Not by `serde`, which reads a date as a string: unknown entries must be preserved
        // exactly.
        let Value::Array(entries) = entries else { return Err(damaged("entry is no list")) };
        let mut file = Self::new(key);
        for entry in entries {
            let Value::Table(entry) = entry else { return Err(damaged("an entry is no table")) };
            match record(&entry, &file.key) {
                Ok(record) => {
                    file.add(record);
                }
                Err(why) => file.unusable.push(Unusable { entry, why }),
            }
        }
        Ok(file)
    }

    /// Adds a record, or merges it with one of the same identity ([`Record::merged`]).
    pub fn add(&mut self, record: Record) -> Added {
        match self.records.binary_search_by(|known| known.identity().cmp(&record.identity())) {
            Err(at) => {
                self.records.insert(at, record);
                Added::New
            }
            Ok(at) => {
                let known = self.records[at].clone();
                let merged = known.clone().merged(record);
                let added = if merged == known { Added::Known } else { Added::Changed };
                self.records[at] = merged;
                added
            }
        }
    }

    /// Text of the file; [`Self::parse`] reverses it.
    #[must_use]
    pub fn text(&self) -> String {
        let mut text = String::from(
            "# What was found to be fastest on this device. orind writes this file and keeps no\n\
             # comments; an entry may be deleted, one that is changed is not used any more.\n",
        );
        // Writing to a string cannot fail.
        let device = device(&self.key);
        let _ = write!(text, "version = {VERSION}\n\n[device]\n{device}");
        for record in &self.records {
            let body = body(record);
            let check = check(&self.key, &body);
            let _ = write!(text, "\n[[entry]]\n{body}check       = \"{check}\"\n");
        }
        for unusable in &self.unusable {
            let _ = write!(text, "\n# Not used: {}\n[[entry]]\n", one_line(&unusable.why));
            for (key, value) in &unusable.entry {
                let _ = writeln!(text, "{} = {value}", quoted_key(key));
            }
        }
        text.push_str("\n[end]\n");
        text
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Added {
    New,
    /// The stored record changed.
    Changed,
    /// The stored record is unchanged.
    Known,
}

/// Parses an entry; the error is why it is ignored.
fn record(entry: &Table, key: &DeviceKey) -> Result<Record, String> {
    let entry: Entry =
        entry.clone().try_into().map_err(|error: toml::de::Error| error.message().to_owned())?;
    let CaseEntry { family, dtype, rows, cols, batch } = entry.case;
    let dtype = dtype.parse().map_err(|error: plan::UnknownDType| error.to_string())?;
    let cost = match (entry.time_ns, entry.interval_ns, entry.gb_per_s, entry.counted) {
        (Some(ns), Some(interval_ns), Some(gb_per_s), None) => {
            Cost::Measured { ns, interval_ns, gb_per_s }
        }
        (None, None, None, Some(count)) => Cost::Counted(count),
        _ => return Err("either time_ns, interval_ns and gb_per_s are needed, or counted".into()),
    };
    let HeuristicEntry { choice, time_ns, counted } = entry.heuristic;
    let heuristic = match (cost.clock(), time_ns, counted) {
        (Clock::Measured, Some(cost), None) | (Clock::Counted, None, Some(cost)) => {
            Heuristic { choice, cost }
        }
        _ => return Err("the heuristic's cost is not under the same clock".into()),
    };
    let when = When::parse(&entry.when)
        .ok_or_else(|| format!("when is {}, not a time in UTC", entry.when))?;
    let record = Record {
        case: Case { family, dtype, rows, cols, batch },
        source: entry.source,
        choice: entry.choice,
        cost,
        heuristic,
        when,
        clocks: entry.clocks,
        candidates: entry.candidates,
        rejected: entry.rejected,
    };
    record.plausible()?;
    if entry.check != check(key, &body(&record)) {
        return Err("its check does not fit: it was changed by hand or is of another device".into());
    }
    Ok(record)
}

fn device(key: &DeviceKey) -> String {
    match key {
        DeviceKey::Gpu { sm, sms, clock_mhz } => {
            format!(
                "kind      = \"gpu\"\nsm        = {sm}\nsms       = {sms}\nclock_mhz = {clock_mhz}\n"
            )
        }
        DeviceKey::Cpu { model, features, cores } => {
            let (model, features) = (quoted(model), quoted(features));
            format!(
                "kind     = \"cpu\"\nmodel    = {model}\nfeatures = {features}\ncores    = {cores}\n"
            )
        }
    }
}

/// Lines of a record without the check.
fn body(record: &Record) -> String {
    let Record { case, source, cost, heuristic, when, clocks, candidates, .. } = record;
    let mut text = String::new();
    let mut line = |key: &str, value: &str| {
        let _ = writeln!(text, "{key:<11} = {value}");
    };
    let Case { family, dtype, rows, cols, batch } = case;
    line(
        "case",
        &format!(
            "{{ family = \"{family}\", dtype = \"{dtype}\", rows = {rows}, cols = {cols}, batch = {batch} }}"
        ),
    );
    line("choice", &inline(&record.choice));
    let unit = match cost {
        Cost::Measured { ns, interval_ns: [low, high], gb_per_s } => {
            line("time_ns", &format!("{ns:?}"));
            line("interval_ns", &format!("[{low:?}, {high:?}]"));
            line("gb_per_s", &format!("{gb_per_s:?}"));
            "time_ns"
        }
        Cost::Counted(count) => {
            line("counted", &format!("{count:?}"));
            "counted"
        }
    };
    let Heuristic { choice, cost } = heuristic;
    line("heuristic", &format!("{{ choice = {}, {unit} = {cost:?} }}", inline(choice)));
    line("when", &when.to_string());
    line("clocks", &quoted(clocks));
    line("candidates", &format!("\"{candidates}\""));
    line("source", &format!("\"{source}\""));
    if !record.rejected.is_empty() {
        let mut list = String::from("[\n");
        for Rejected { choice, why } in &record.rejected {
            let _ = writeln!(list, "  {{ choice = {}, why = {} }},", inline(choice), quoted(why));
        }
        line("rejected", &(list + "]"));
    }
    text
}

/// `{ rows_per_thread = 2, threads_per_row = 32 }`; names are bare keys.
fn inline(choice: &Choice) -> String {
    let pairs: Vec<String> = choice.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    format!("{{ {} }}", pairs.join(", "))
}

/// 16 hexadecimal digits of a SHA-256, against mistakes rather than attacks.
fn check(key: &DeviceKey, body: &str) -> String {
    Sha256::digest(device(key) + body).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A one-line basic string of TOML.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for c in text.chars() {
        match c {
            '"' | '\\' => quoted.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(quoted, "\\u{:04X}", u32::from(c));
            }
            c => quoted.push(c),
        }
    }
    quoted + "\""
}

fn quoted_key(key: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !key.is_empty() && key.chars().all(bare) { key.to_owned() } else { quoted(key) }
}

/// Comments cannot contain control characters.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
