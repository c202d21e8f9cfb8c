//! Errors of downloads, with their remedies.

use std::io;
use std::path::PathBuf;

use crate::sum::Sum;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{name}` {why}")]
    Name { name: String, why: String },
    #[error("{url} does not exist (404); check the name")]
    NotFound { url: String },
    #[error(
        "{url} is not accessible ({status}); check the name. For a private or gated model, accept its terms \
         on the hub and set $HF_TOKEN"
    )]
    Refused { url: String, status: u16 },
    #[error("{url} answers with status {status}; try again later")]
    Status { url: String, status: u16 },
    #[error("{url} is unreachable: {source}")]
    Unreachable { url: String, source: Box<ureq::Error> },
    #[error(
        "this machine has no certificate authorities for https; install ca-certificates, or name a file of \
         them in $SSL_CERT_FILE"
    )]
    NoAuthorities,
    /// A malformed answer.
    #[error("{url}: invalid answer: {what}")]
    Answer { url: String, what: String },
    #[error("{url} is not a GGUF file: it starts with `{begins}`")]
    NotGguf { url: String, begins: String },
    #[error(
        "{url} was interrupted {times} times without progress; {} of {} are kept, the same command resumes: {why}",
        bytes(*got),
        total.map_or_else(|| "an unknown number of bytes".into(), bytes)
    )]
    Truncated { url: String, got: u64, total: Option<u64>, times: u32, why: String },
    #[error(
        "{url} was interrupted after {}, and its server cannot resume (no ranges); the next try restarts",
        bytes(*got)
    )]
    NoRanges { url: String, got: u64 },
    #[error("{url} has {found} bytes, {expected} expected")]
    Size { url: String, expected: u64, found: u64 },
    #[error(
        "{url} has SHA-256 {found}, not {expected}: another file, or damaged in transit; it was discarded"
    )]
    Sum { url: String, expected: Sum, found: Sum },
    #[error("--sha256 takes one file, but `{name}` is split into {count}")]
    SplitSum { name: String, count: usize },
    #[error(
        "not enough disk space: {} needed, {} free in {}, of which {} must stay free",
        bytes(*needs), bytes(*free), folder.display(), bytes(*reserve)
    )]
    Space {
        folder: PathBuf,
        needs: u64,
        free: u64,
        /// Bytes that a download leaves free.
        reserve: u64,
    },
    #[error("{} cannot grow: the disk, a quota or a limit of file sizes is exhausted", path.display())]
    Full { path: PathBuf },
    /// A link, a device, or a file with a second name, in place of a directory or a partial file.
    #[error("{} is a link or another special file, which is not followed; remove it", path.display())]
    Link { path: PathBuf },
    #[error(
        "{url} sends less than {} in {seconds} s; {} are kept, the same command resumes",
        bytes(*least), bytes(*got)
    )]
    Slow { url: String, least: u64, seconds: u64, got: u64 },
    #[error("{url} was interrupted {times} times; {} are kept, the same command resumes", bytes(*got))]
    Unsteady { url: String, got: u64, times: u32 },
    #[error("{name} is split into {count} parts, at most {most} are supported")]
    TooManyParts { name: String, count: u32, most: u32 },
    #[error("another process is downloading {}", path.display())]
    Busy { path: PathBuf },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{repository} has no GGUF file; try a repository with GGUF in its name")]
    NoModel { repository: String },
    #[error("{repository} has no {wanted}; it has {there}")]
    NoType { repository: String, wanted: String, there: String },
    #[error(
        "{repository} has more than one {wanted}: name one file, as {repository}/FILE; it has {there}"
    )]
    Several { repository: String, wanted: String, there: String },
    #[error("{repository} lacks {file}, which is part of the model")]
    NoPart { repository: String, file: String },
}

impl Error {
    pub(crate) fn answer(url: &str, what: impl Into<String>) -> Self {
        Self::Answer { url: url.into(), what: what.into() }
    }
}

/// Size in MiB.
fn bytes(count: u64) -> String {
    format!("{:.1} MiB", count as f64 / f64::from(1 << 20))
}
