//! Records: complete reports in one file, one JSON line each, oldest first. Lines are appended
//! whole under a lock. A truncated line is reported by its number and affects no other.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use bench::Report;

/// Name of the file in the state directory.
pub const FILE: &str = "bench.jsonl";

/// Format version, raised if an older program would misunderstand a line. Unknown fields are
/// ignored.
pub const FORMAT: u32 = 1;

/// Time limit for another writer; appending a line takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);

#[derive(Debug, thiserror::Error)]
pub enum RecordError {
    #[error("cannot {what} {}: {source}; --records names another file", path.display())]
    Io { what: &'static str, path: PathBuf, source: io::Error },
    #[error("another process writes to {}; nothing was saved: wait for it or stop it (`fuser {}` names it), and try again", path.display(), path.display())]
    Busy { path: PathBuf },
    #[error("a report cannot be written as JSON: {0}")]
    Json(#[from] serde_json::Error),
}

#[derive(Serialize, Deserialize)]
struct Line<R> {
    format: u32,
    report: R,
}

/// Contents of a record file.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Records {
    pub path: PathBuf,
    /// Line number and report, oldest first.
    pub reports: Vec<(usize, Report)>,
    /// Lines that are not records.
    pub damaged: Vec<Damaged>,
}

/// A line that is not a record.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Damaged {
    pub line: usize,
    pub why: String,
}

/// Appends a record. On return it is on disk; after an error the file is unchanged.
///
/// # Errors
/// The file or its directory cannot be created or written, or another process has locked it.
pub fn append(path: &Path, report: &Report) -> Result<(), RecordError> {
    append_line(path, &Line { format: FORMAT, report })
}

/// Appends a line that contains more than a report.
pub(super) fn append_line(path: &Path, line: &impl Serialize) -> Result<(), RecordError> {
    add_line(&mut locked(path, PATIENCE)?, path, line)
}

/// Opens a file, creating it if missing, with an exclusive lock.
pub(super) fn locked(path: &Path, patience: Duration) -> Result<File, RecordError> {
    let failed = |what| move |source| RecordError::Io { what, path: path.to_owned(), source };
    if let Some(dir) = path.parent().filter(|dir| !dir.as_os_str().is_empty()) {
        fs::create_dir_all(dir).map_err(failed("make the directory of"))?;
    }
    let file = OpenOptions::new().create(true).read(true).append(true).open(path);
    let file = file.map_err(failed("open"))?;
    let start = Instant::now();
    loop {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) if start.elapsed() < patience => {
                thread::sleep(Duration::from_millis(5));
            }
            Err(TryLockError::WouldBlock) => {
                return Err(RecordError::Busy { path: path.to_owned() });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
    }
}

/// Appends a line to a [`locked`] file.
pub(super) fn add_line(
    file: &mut File,
    path: &Path,
    line: &impl Serialize,
) -> Result<(), RecordError> {
    let mut line = serde_json::to_vec(line)?;
    line.push(b'\n');
    let failed = |source| RecordError::Io { what: "write", path: path.to_owned(), source };
    add(file, line).map_err(failed)
}

/// Writes a line at the end; an incomplete last line stays a line of its own.
fn add(file: &mut File, mut line: Vec<u8>) -> io::Result<()> {
    let length = file.metadata()?.len();
    let mut last = [b'\n'];
    if length > 0 {
        file.seek(SeekFrom::End(-1))?;
        file.read_exact(&mut last)?;
    }
    if last != [b'\n'] {
        line.insert(0, b'\n');
    }
    let written = file.write_all(&line).and_then(|()| file.sync_data());
    if written.is_err() {
        // Free the space of a partially written line.
        file.set_len(length)?;
    }
    written
}

/// Reads a record file, or the one report that `orinctl bench --json` prints.
///
/// # Errors
/// The file cannot be read.
pub fn read(path: &Path) -> Result<Records, RecordError> {
    let bytes = fs::read(path).map_err(|source| RecordError::Io {
        what: "read",
        path: path.to_owned(),
        source,
    })?;
    let mut records = Records { path: path.to_owned(), ..Records::default() };
    if let Ok(report) = serde_json::from_slice(&bytes) {
        records.reports.push((1, report));
        return Ok(records);
    }
    for (at, line) in bytes.split(|byte| *byte == b'\n').enumerate() {
        if line.trim_ascii().is_empty() {
            continue;
        }
        let line_number = at + 1;
        match serde_json::from_slice::<Line<Report>>(line) {
            Ok(line) => records.reports.push((line_number, line.report)),
            Err(error) => {
                let newer = serde_json::from_slice::<Line<serde_json::Value>>(line)
                    .ok()
                    .filter(|line| line.format > FORMAT);
                let why = match newer {
                    Some(Line { format, .. }) => format!(
                        "has format {format}, but this program supports {FORMAT}: update orind"
                    ),
                    None => error.to_string(),
                };
                records.damaged.push(Damaged { line: line_number, why });
            }
        }
    }
    Ok(records)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::report;

    #[test]
    fn concurrent_records_are_all_saved() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("new/bench.jsonl");
        thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..25).for_each(|_| append(&path, &report()).unwrap()));
            }
        });
        let records = read(&path).unwrap();
        assert_eq!((records.reports.len(), records.damaged.len()), (100, 0));
        assert!(records.reports.iter().all(|(_, found)| *found == report()));
        assert_eq!(records.reports[99].0, 100);
    }

    #[test]
    fn truncated_lines_are_reported_and_affect_no_other() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bench.jsonl");
        append(&path, &report()).unwrap();
        let whole = fs::read(&path).unwrap();
        for cut in [1, 20, whole.len() / 2, whole.len() - 2] {
            fs::write(&path, [&whole[..], &whole[..cut]].concat()).unwrap();
            append(&path, &report()).unwrap();
            let records = read(&path).unwrap();
            let lines: Vec<usize> = records.reports.iter().map(|(line, _)| *line).collect();
            assert_eq!(lines, [1, 3], "{cut}");
            assert_eq!(records.damaged[0].line, 2, "{cut}");
        }
    }

    #[test]
    fn newer_formats_are_read_or_reported() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("bench.jsonl");
        let mut line = serde_json::to_value(Line { format: 9, report: report() }).unwrap();
        line["weather"] = "fine".into();
        line["report"]["manifest"]["mood"] = 7.into();
        fs::write(&path, format!("{line}\n{{\"format\": 9, \"report\": []}}\n\n{{}}\n")).unwrap();
        let records = read(&path).unwrap();
        assert_eq!(records.reports, [(1, report())]);
        assert!(records.damaged[0].why.contains("format 9"), "{:?}", records.damaged);
        assert_eq!((records.damaged[1].line, records.damaged.len()), (4, 2));
    }

    #[test]
    fn a_single_report_is_a_record() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("before.json");
        fs::write(&path, serde_json::to_string_pretty(&report()).unwrap()).unwrap();
        assert_eq!(read(&path).unwrap().reports, [(1, report())]);
        let missing = read(&dir.path().join("none")).unwrap_err().to_string();
        assert!(missing.contains("none") && missing.contains("--records"), "{missing}");
    }

    #[test]
    fn a_full_disk_leaves_the_file_unchanged() {
        let error = append(Path::new("/dev/full"), &report()).unwrap_err().to_string();
        assert!(error.contains("/dev/full"), "{error}");
    }
}
