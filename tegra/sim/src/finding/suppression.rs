//! Findings that are known, with reasons: the file of `--suppress`.
//!
//! A line is `FINDING: PLACE -- REASON`. A place is the finding's message in which `*` stands for anything;
//! [`place`] makes the one that is the same in every run, whatever addresses the program gets. Empty lines and
//! those that begin with `#` are skipped.

use std::path::{Path, PathBuf};
use std::{fs, io};

use super::{Finding, Rule, Severity};

/// Hexadecimal numbers from here on are addresses, which differ from run to run; below they are offsets and sizes.
const ADDRESS_DIGITS: usize = 5;

/// What is known.
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

/// Why a file of suppressions is none.
#[derive(Debug, thiserror::Error)]
pub enum SuppressionError {
    /// It cannot be read.
    #[error("{path:?} cannot be read: {source}")]
    Unreadable { path: PathBuf, source: io::Error },
    /// A line that says nothing.
    #[error("{path:?}, line {number}: {why}; a line is FINDING: PLACE -- REASON")]
    Line { path: PathBuf, number: usize, why: String },
}

impl Suppressions {
    /// Reads a file. [`SuppressionError`] when that fails, or at the first line that is none.
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

    /// The file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The number of the line that knows a finding.
    #[must_use]
    pub fn knows(&self, finding: &Finding) -> Option<usize> {
        let line = self.lines.iter().find(|line| {
            line.rule == finding.rule && matches(line.place.as_bytes(), finding.message.as_bytes())
        });
        line.map(|line| line.number)
    }

    /// The numbers of all lines.
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

/// Whether a text is as a pattern says, in which `*` stands for any bytes.
fn matches(pattern: &[u8], text: &[u8]) -> bool {
    let (mut at, mut seen) = (0, 0);
    // Where to go on behind the last star, when it has to stand for more.
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

/// A message without what differs from run to run: addresses and decimal numbers are stars. Names as `R5` and
/// offsets as `+0x70` stay.
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
