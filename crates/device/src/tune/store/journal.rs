//! Journal of unfinished searches: a line of JSON per tried candidate, next to the store's file. An
//! interrupted case continues from it; when a case is finished its lines are removed. Choices are
//! never read from the journal, so an unreadable line only costs work.

use serde::{Deserialize, Serialize};

use super::disk::{self, Lock, PATIENCE};
use super::{Case, Choice, Clock, DeviceKey, Store, StoreError};
use plan::DType;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Faster than the best so far; cost relative to the default's.
    Faster(f64),
    /// Slower, or not distinguishable.
    Slower(f64),
    Rejected(String),
}

#[derive(Clone, Debug, PartialEq)]
pub struct Tried {
    pub choice: Choice,
    pub verdict: Verdict,
}

/// Subject of lines: a case of certain kernels, compared with a certain default.
#[derive(Clone, Copy, Debug)]
pub struct Topic<'a> {
    pub case: &'a Case,
    /// Hash of the kernels' sources.
    pub source: &'a str,
    pub clock: Clock,
    pub heuristic: &'a Choice,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line {
    family: String,
    dtype: String,
    rows: u32,
    cols: u32,
    batch: u32,
    source: String,
    clock: Clock,
    heuristic: Choice,
    choice: Choice,
    verdict: Verdict,
}

impl Line {
    fn new(topic: Topic<'_>, tried: &Tried) -> Self {
        let Case { family, dtype, rows, cols, batch } = topic.case.clone();
        Self {
            family,
            dtype: dtype.name().to_owned(),
            rows,
            cols,
            batch,
            source: topic.source.to_owned(),
            clock: topic.clock,
            heuristic: topic.heuristic.clone(),
            choice: tried.choice.clone(),
            verdict: tried.verdict.clone(),
        }
    }

    fn is_of(&self, case: &Case) -> bool {
        self.family == case.family
            && self.dtype.parse::<DType>().is_ok_and(|dtype| dtype == case.dtype)
            && (self.rows, self.cols, self.batch) == (case.rows, case.cols, case.batch)
    }

    fn is_about(&self, topic: Topic<'_>) -> bool {
        self.is_of(topic.case)
            && self.source == topic.source
            && self.clock == topic.clock
            && self.heuristic == *topic.heuristic
    }
}

/// Candidates of unfinished searches.
#[derive(Default)]
pub struct Journal {
    lines: Vec<Line>,
}

impl Journal {
    /// Tried candidates in order.
    #[must_use]
    pub fn tried(&self, topic: Topic<'_>) -> Vec<Tried> {
        let of = self.lines.iter().filter(|line| line.is_about(topic));
        of.map(|line| Tried { choice: line.choice.clone(), verdict: line.verdict.clone() })
            .collect()
    }

    /// Returns whether a search of the case is unfinished, with any default.
    #[must_use]
    pub fn is_unfinished(&self, case: &Case, source: &str, clock: Clock) -> bool {
        let of = |line: &Line| line.is_of(case) && line.source == source && line.clock == clock;
        self.lines.iter().any(of)
    }
}

/// Readable lines of a journal.
fn lines(bytes: &[u8]) -> impl Iterator<Item = Line> {
    let believable = |line: &Line| match line.verdict {
        Verdict::Faster(cost) | Verdict::Slower(cost) => cost.is_finite() && cost > 0.0,
        Verdict::Rejected(_) => true,
    };
    let read = move |line: &[u8]| serde_json::from_slice(line).ok().filter(believable);
    bytes.split(|byte| *byte == b'\n').filter_map(read)
}

impl Store {
    /// Reads the journal of a device.
    ///
    /// # Errors
    ///
    /// The journal cannot be read; a missing one is empty.
    pub fn journal(&self, key: &DeviceKey) -> Result<Journal, StoreError> {
        let bytes = disk::read(&self.journal_path(key))?.unwrap_or_default();
        Ok(Journal { lines: lines(&bytes).collect() })
    }

    /// Records a tried candidate. Several processes may do so at once.
    pub fn note(&self, key: &DeviceKey, topic: Topic<'_>, tried: &Tried) -> Result<(), StoreError> {
        let path = self.journal_path(key);
        let lock = Lock::acquire(&self.path(key), PATIENCE)?;
        let mut line = serde_json::to_string(&Line::new(topic, tried))
            .map_err(|e| StoreError::io("write", &path, e.into()))?;
        line.push('\n');
        lock.append(&path, &line)
    }

    /// Removes the lines of a case, for all kernels.
    pub fn conclude(&self, key: &DeviceKey, case: &Case) -> Result<(), StoreError> {
        let path = self.journal_path(key);
        let Some(bytes) = disk::read(&path)? else { return Ok(()) };
        if !lines(&bytes).any(|line| line.is_of(case)) {
            return Ok(());
        }
        let lock = Lock::acquire(&self.path(key), PATIENCE)?;
        // Preserves lines that others have added meanwhile.
        let bytes = disk::read(&path)?.unwrap_or_default();
        let mut text = String::new();
        for line in lines(&bytes).filter(|line| !line.is_of(case)) {
            let line = serde_json::to_string(&line)
                .map_err(|e| StoreError::io("write", &path, e.into()))?;
            text.push_str(&line);
            text.push('\n');
        }
        lock.rewrite(&path, &text)
    }

    fn journal_path(&self, key: &DeviceKey) -> std::path::PathBuf {
        self.path(key).with_extension("journal")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(value: u32) -> Choice {
        Choice::from([("a".to_owned(), value)])
    }

    fn case(rows: u32) -> Case {
        Case { family: "project".into(), dtype: DType::Q8_0, rows, cols: 64, batch: 1 }
    }

    #[test]
    fn tried_candidates_are_known_until_the_search_ends() {
        let dir = tempfile::tempdir().unwrap();
        let (store, key) = (Store::new(dir.path()), DeviceKey::gpu(87, 8, 1000));
        let (one, two, heuristic) = (case(16), case(32), choice(1));
        let topic = |case| Topic {
            case,
            source: "0123456789",
            clock: Clock::Measured,
            heuristic: &heuristic,
        };
        let tried = |topic| store.journal(&key).unwrap().tried(topic);
        assert_eq!(tried(topic(&one)), []);
        let slow = Tried { choice: choice(2), verdict: Verdict::Slower(1.25) };
        let why = "row 3 is \"1\"\nnot 2".to_owned();
        let wrong = Tried { choice: choice(4), verdict: Verdict::Rejected(why) };
        store.note(&key, topic(&one), &slow).unwrap();
        store.note(&key, topic(&two), &slow).unwrap();
        store.note(&key, topic(&one), &wrong).unwrap();
        assert_eq!(tried(topic(&one)), [slow.clone(), wrong]);
        // Other kernels, another clock or another default have no lines.
        let others = [
            Topic { source: "9876543210", ..topic(&one) },
            Topic { clock: Clock::Counted, ..topic(&one) },
            Topic { heuristic: &slow.choice, ..topic(&one) },
        ];
        for other in others {
            assert_eq!(tried(other), []);
        }
        let journal = store.journal(&key).unwrap();
        assert!(journal.is_unfinished(&one, "0123456789", Clock::Measured));
        assert!(!journal.is_unfinished(&one, "0123456789", Clock::Counted));
        // A truncated line does not affect the next one.
        let path = store.journal_path(&key);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.truncate(bytes.len() - 9);
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(tried(topic(&one)), std::slice::from_ref(&slow));
        store.note(&key, topic(&two), &slow).unwrap();
        assert_eq!(tried(topic(&two)), [slow.clone(), slow.clone()]);
        store.conclude(&key, &one).unwrap();
        assert_eq!(tried(topic(&one)), []);
        assert_eq!(tried(topic(&two)).len(), 2);
        store.conclude(&key, &two).unwrap();
        assert!(!path.exists(), "a journal without lines is no file");
    }
}
