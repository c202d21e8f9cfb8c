//! One device's file as text: TOML, aligned and sorted, so that a person can read it and a change of
//! one record changes few lines.
//!
//! Every entry ends in a `check` over its device and its contents: an entry changed by hand, or
//! taken from another device's file, was not measured here and is not used. The last line is
//! `[end]`, so that a file cut short between two entries is not taken for a whole one. What cannot
//! be used is kept as it is and written back.

use std::fmt::Write as _;

use serde::Deserialize;
use sha2::{Digest as _, Sha256};
use toml::{Table, Value};

use super::DeviceKey;
use super::record::{Candidates, Case, Choice, Clock, Cost, Heuristic, Record, Rejected, When};

/// The version of the format that is written, and the latest that is read.
pub const VERSION: i64 = 1;

#[derive(Clone, Debug, PartialEq)]
pub struct File {
    pub key: DeviceKey,
    /// Sorted; no two with the same [`Record::identity`].
    pub records: Vec<Record>,
    pub unusable: Vec<Unusable>,
}

/// An entry that is not used but kept.
#[derive(Clone, Debug, PartialEq)]
pub struct Unusable {
    /// The entry as it stands in the file.
    pub entry: Table,
    pub why: String,
}

impl Unusable {
    /// What it is about, as far as that can be told.
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

/// Why a text is no file of the store.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FormatError {
    #[error("version {0} of the format; this program knows {VERSION}")]
    Newer(i64),
    /// Nothing of it can be trusted.
    #[error("{0}")]
    Damaged(String),
}

/// An entry as it is spelt.
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
    /// A date of TOML, which is a string to `serde`.
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

    /// Reads a file's text.
    ///
    /// # Errors
    /// [`FormatError`]; an entry that is wrong by itself is no error but [`Unusable`].
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
                return Err(damaged(&format!("version is {other}, no version there is")));
            }
            None => return Err(damaged("it has no version: no file of the store, or cut short")),
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
        // Not by `serde`, to which a date is a string: what is not understood must stay what it is.
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

    /// Takes a record in; where there is one about the same, one of the two is kept
    /// ([`Record::merged`]).
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

    /// The file's text; [`Self::parse`] reads the same from it.
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
    /// What is kept differs from what was there.
    Changed,
    /// What was there stays.
    Known,
}

/// The record that an entry is, or why it is not used.
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
        .ok_or_else(|| format!("when is {}, no second in UTC", entry.when))?;
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

/// A record's lines, without the check.
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

/// `{ rows_per_thread = 2, threads_per_row = 32 }`; the names are bare keys.
fn inline(choice: &Choice) -> String {
    let pairs: Vec<String> = choice.iter().map(|(key, value)| format!("{key} = {value}")).collect();
    format!("{{ {} }}", pairs.join(", "))
}

/// 16 hexadecimal digits of a SHA-256: against mistakes, not against malice.
fn check(key: &DeviceKey, body: &str) -> String {
    Sha256::digest(device(key) + body).iter().take(8).map(|byte| format!("{byte:02x}")).collect()
}

/// A basic string of TOML on one line.
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

/// A comment may not hold control characters.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
