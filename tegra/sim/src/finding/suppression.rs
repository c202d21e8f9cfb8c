//! Suppressed findings with reasons: the file of `--suppress`.
//!
//! A line is `FINDING: PLACE -- REASON`. A place is the finding's message in which `*` matches
//! anything. [`place`] builds one that is the same in every run, independent of addresses. Empty
//! lines and lines that begin with `#` are skipped.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::{Finding, Rule, Severity};

/// Hexadecimal numbers with at least this many digits are addresses, which differ between runs;
/// shorter ones are offsets and sizes.
const ADDRESS_DIGITS: usize = 5;

/// Suppressed findings.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Suppressions {
    path: PathBuf,
    lines: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Line {
    number: usize,
    rule: Rule,
    place: String,
}

/// Error of a suppression file.
#[derive(Debug, thiserror::Error)]
pub enum SuppressionError {
    /// The file cannot be read.
    #[error("{path:?} cannot be read: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    /// A line is invalid.
    #[error("{path:?}, line {number}: {why}; a line is FINDING: PLACE -- REASON")]
    Line { path: PathBuf, number: usize, why: String },
}

impl Suppressions {
    /// Reads a file. [`SuppressionError`] if that fails, or at the first invalid line.
    pub fn read(path: &Path) -> Result<Self, SuppressionError> {
        let text = fs::read_to_string(path)
            .map_err(|source| SuppressionError::Unreadable { path: path.to_owned(), source })?;
        let mut lines = Vec::new();
        for (number, text) in (1..).zip(text.lines()) {
            let text = text.trim();
            if text.is_empty() || text.starts_with('#') {
                continue;
            }
            let (rule, place) = parse(text).map_err(|why| {
                let path = path.to_owned();
                SuppressionError::Line { path, number, why }
            })?;
            lines.push(Line { number, rule, place });
        }
        Ok(Self { path: path.to_owned(), lines })
    }

    /// Returns the path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the number of the line that matches a finding.
    #[must_use]
    pub fn knows(&self, finding: &Finding) -> Option<usize> {
        let line = self.lines.iter().find(|line| {
            line.rule == finding.rule && matches(line.place.as_bytes(), finding.message.as_bytes())
        });
        line.map(|line| line.number)
    }

    /// Returns the numbers of all lines.
    pub fn numbers(&self) -> impl Iterator<Item = usize> {
        self.lines.iter().map(|line| line.number)
    }
}

fn parse(line: &str) -> Result<(Rule, String), String> {
    let (said, reason) = line.rsplit_once(" --").ok_or("it gives no reason")?;
    if reason.trim().is_empty() {
        return Err("its reason is empty".into());
    }
    let (name, place) = said.split_once(": ").ok_or("it names no place")?;
    let rule = Rule::from_name(name).ok_or_else(|| format!("there is no finding {name:?}"))?;
    if rule.severity() == Severity::Fault {
        return Err(format!("{rule} is a fault that hardware raises"));
    }
    Ok((rule, place.trim().to_owned()))
}

/// Returns whether a text matches a pattern, in which `*` matches any bytes.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut seen) = (0, 0);
    // Position to resume from when the last star has to match more.
    let mut star = None;
    while seen < text.len() {
        if pattern.get(at) == Some(&b'*') {
            star = Some((at + 1, seen));
            at += 1;
        } else if pattern.get(at) == Some(&text[seen]) {
            (at, seen) = (at + 1, seen + 1);
        } else if let Some((behind, from)) = star {
            star = Some((behind, from + 1));
            (at, seen) = (behind, from + 1);
        } else {
            return false;
        }
    }
    pattern[at..].iter().all(|byte| *byte == b'*')
}

/// Replaces the parts of a message that differ between runs by stars: addresses and decimal
/// numbers. Names such as `R5` and offsets such as `+0x70` are kept.
#[must_use]
pub fn place(message: &str) -> String {
    let mut out = String::with_capacity(message.len());
    let mut rest = message;
    while let Some(first) = rest.chars().next() {
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        let end = rest.find(|c: char| !is_word(c)).unwrap_or(rest.len());
        if end == 0 {
            out.push(first);
            rest = &rest[first.len_utf8()..];
            continue;
        }
        let (word, behind) = rest.split_at(end);
        let is_address = word.strip_prefix("0x").is_some_and(|hex| hex.len() >= ADDRESS_DIGITS);
        let is_number = word.bytes().all(|byte| byte.is_ascii_digit());
        out.push_str(if is_address || is_number { "*" } else { word });
        rest = behind;
    }
    out
}
