//! How a file does not come, and what to do about it.

use std::io;
use std::path::PathBuf;

use crate::sum::Sum;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("`{name}` {why}")]
    Name { name: String, why: String },
    #[error("{url} is not there (404): is the name right?")]
    NotFound { url: String },
    #[error(
        "{url} is refused ({status}): it needs a login, or is misspelt. For a private or gated model accept its terms \
         on the hub and set $HF_TOKEN"
    )]
    Refused { url: String, status: u16 },
    #[error("{url} is answered by {status}; try again later")]
    Status { url: String, status: u16 },
    #[error("{url} cannot be reached: {source}")]
    Unreachable { url: String, source: Box<ureq::Error> },
    #[error(
        "this machine has no certificate authorities, which https needs: install ca-certificates, or name a file of \
         them in $SSL_CERT_FILE"
    )]
    NoAuthorities,
    /// What no honest server says.
    #[error("{url}: the answer makes no sense: {what}")]
    Answer { url: String, what: String },
    #[error("{url} is no GGUF file: it begins with `{begins}`")]
    NotGguf { url: String, begins: String },
    #[error(
        "{url} broke off {times} times without going on; {} of {} are kept, the same command goes on from there: {why}",
        bytes(*got),
        total.map_or_else(|| "an unknown number of bytes".into(), bytes)
    )]
    Truncated { url: String, got: u64, total: Option<u64>, times: u32, why: String },
    #[error(
        "{url} broke off after {}, and its server cannot send the rest alone (no ranges); the next try begins anew",
        bytes(*got)
    )]
    NoRanges { url: String, got: u64 },
    #[error("{url} has {found} bytes, {expected} were announced")]
    Size { url: String, expected: u64, found: u64 },
    #[error(
        "{url} has the SHA-256 {found}, not {expected}: it is another file, or was damaged on the way; it was not kept"
    )]
    Sum { url: String, expected: Sum, found: Sum },
    #[error("--sha256 is of one file, and `{name}` is split into {count}")]
    SplitSum { name: String, count: usize },
    #[error("{} more are needed, {} are free in {}", bytes(*needs), bytes(*free), folder.display())]
    Space { folder: PathBuf, needs: u64, free: u64 },
    #[error("{} is being fetched by another process", path.display())]
    Busy { path: PathBuf },
    #[error("{}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("{repository} has no GGUF file; a repository with GGUF in its name often has")]
    NoModel { repository: String },
    #[error("{repository} has no {wanted}; it has {there}")]
    NoType { repository: String, wanted: String, there: String },
    #[error(
        "{repository} has more than one {wanted}: name one file, as {repository}/FILE; it has {there}"
    )]
    Several { repository: String, wanted: String, there: String },
    #[error("{repository} lacks {file}, a part of the model")]
    NoPart { repository: String, file: String },
}

impl Error {
    pub(crate) fn answer(url: &str, what: impl Into<String>) -> Self {
        Self::Answer { url: url.into(), what: what.into() }
    }
}

/// In MiB, as transfers are told.
fn bytes(count: u64) -> String {
    format!("{:.1} MiB", count as f64 / f64::from(1 << 20))
}
