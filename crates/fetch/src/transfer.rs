//! One file, from a server to its place.
//!
//! A transfer that breaks off is asked for again from its end (`Range`), if the file is still the one that began (`If-Range`
//! with the validator of RFC 9110, 13.1.5: a strong `ETag`, else `Last-Modified`). What is on the disk is believed no more than
//! what comes: the sum is of all of it.

use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::thread;

use nix::sys::statvfs::statvfs;
use ureq::http::{HeaderMap, Response, header};
use ureq::{Body, http};

use crate::client::{Client, succeeded};
use crate::error::Error;
use crate::part::Part;
use crate::sum::Sum;

/// How often a transfer may break off without having got further.
const TRIES: u32 = 5;

/// What is to come, and what is known of it.
#[derive(Clone, Debug)]
pub struct File {
    pub url: String,
    /// Where it will lie.
    pub path: PathBuf,
    pub(crate) bytes: Option<u64>,
    pub(crate) sum: Option<Sum>,
    /// It is the hub's, which gets the token.
    pub(crate) hub: bool,
}

/// What came of it.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub bytes: u64,
    /// `None` for a file that was there and of which nobody knows a sum.
    pub sum: Option<Sum>,
    /// What had to come for it, in this call.
    pub received: u64,
}

/// How far it is, in bytes.
#[derive(Clone, Debug)]
pub enum Progress {
    /// What is on the disk is read.
    Checking { done: u64, total: u64 },
    /// `total` is 0 where the server does not say.
    Receiving { done: u64, total: u64 },
    /// It goes on in another way than before.
    Notice(String),
}

/// How one request ended.
enum Ended {
    Whole,
    Broke { total: Option<u64>, why: String },
}

impl File {
    /// Whether a sum is known that it is held against.
    #[must_use]
    pub const fn is_checked(&self) -> bool {
        self.sum.is_some()
    }
}

impl Client {
    /// Brings a file into its place. One that is there already, and has the sum that is known of it, is left alone, unless
    /// it is to come `anew`.
    ///
    /// # Errors
    /// [`Error`]. What came until then is kept, but for what can never become the file.
    pub fn fetch(
        &self,
        file: &File,
        anew: bool,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<Fetched, Error> {
        let there = if anew { None } else { there(file, watch)? };
        if let Some(fetched) = there {
            return Ok(fetched);
        }
        let mut part =
            Part::open(&file.path, &mut |done, total| watch(Progress::Checking { done, total }))?;
        let mut received = 0;
        let (mut furthest, mut broken) = (part.length(), 0);
        loop {
            let again = received > 0;
            match self.request(file, &mut part, again, &mut received, watch) {
                Ok(Ended::Whole) => break,
                Ok(Ended::Broke { total, why }) => {
                    if part.length() > furthest {
                        (furthest, broken) = (part.length(), 0);
                    }
                    broken += 1;
                    if broken == TRIES {
                        let (url, got) = (file.url.clone(), part.length());
                        return Err(Error::Truncated { url, got, total, times: broken, why });
                    }
                    watch(Progress::Notice(format!("broke off, goes on: {why}")));
                }
                // A server that has gone while it was at it may come back.
                Err(Error::Unreachable { .. } | Error::Status { .. })
                    if again && broken + 1 < TRIES =>
                {
                    broken += 1;
                }
                Err(error @ (Error::NotGguf { .. } | Error::Size { .. })) => {
                    part.discard()?;
                    return Err(error);
                }
                Err(error) => return Err(error),
            }
            if broken > 1 {
                thread::sleep(self.pause * 2_u32.pow(broken - 2));
            }
        }
        let (bytes, found) = (part.length(), part.sum());
        let wrong = match (file.bytes, file.sum, part.wrong_beginning(true)) {
            (_, _, Some(begins)) => Some(Error::NotGguf { url: file.url.clone(), begins }),
            (Some(expected), ..) if expected != bytes => {
                Some(Error::Size { url: file.url.clone(), expected, found: bytes })
            }
            (_, Some(expected), _) if expected != found => {
                Some(Error::Sum { url: file.url.clone(), expected, found })
            }
            _ => None,
        };
        if let Some(error) = wrong {
            part.discard()?;
            return Err(error);
        }
        part.finish()?;
        Ok(Fetched { bytes, sum: Some(found), received })
    }

    /// Asks once for what is missing. `again` says that this call has had some of it.
    fn request(
        &self,
        file: &File,
        part: &mut Part,
        again: bool,
        received: &mut u64,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<Ended, Error> {
        let known = part.validator();
        if part.length() > 0 && known.is_none() {
            // Nothing tells whether the rest would be of the same file.
            if again {
                return Err(Error::NoRanges { url: file.url.clone(), got: part.length() });
            }
            part.begin(None)?;
        }
        let from = part.length();
        if from > 0 && file.bytes == Some(from) {
            return Ok(Ended::Whole);
        }
        let range = format!("bytes={from}-");
        let resumed = known.as_deref().filter(|_| from > 0);
        let headers: &[_] = match resumed {
            Some(validator) => &[("Range", range.as_str()), ("If-Range", validator)],
            None => &[],
        };
        let mut answer = self.get(&file.url, file.hub, headers)?;
        let validator = validator(answer.headers());
        let total = match answer.status().as_u16() {
            206 if resumed.is_some() => Some(rest(&file.url, answer.headers(), from)?),
            416 if resumed.is_some() => {
                // As long as it can be: either whole, or another file by now.
                if unsatisfied(answer.headers()) == Some(from) {
                    return Ok(Ended::Whole);
                }
                part.begin(None)?;
                return Ok(Ended::Broke { total: None, why: "the file has become shorter".into() });
            }
            206 => {
                return Err(Error::answer(
                    &file.url,
                    "a part of the file, where all of it was asked for",
                ));
            }
            status => {
                succeeded(&file.url, status)?;
                if resumed.is_some() {
                    let same = validator == known;
                    if same && again {
                        return Err(Error::NoRanges { url: file.url.clone(), got: from });
                    }
                    let why =
                        if same { "the server sends no ranges" } else { "the file has changed" };
                    watch(Progress::Notice(format!("begins anew: {why}")));
                }
                part.begin(validator.as_deref())?;
                length(&file.url, answer.headers())?
            }
        };
        if let Some(coding) = answer.headers().get(header::CONTENT_ENCODING)
            && coding != "identity"
        {
            return Err(Error::answer(
                &file.url,
                format!("it is encoded ({coding:?}), which was not asked for"),
            ));
        }
        if let (Some(expected), Some(found)) = (file.bytes, total)
            && expected != found
        {
            return Err(Error::Size { url: file.url.clone(), expected, found });
        }
        let total = total.or(file.bytes);
        room(&file.path, total.map_or(0, |total| total.saturating_sub(part.length())))?;
        receive(file, part, &mut answer, total, received, watch)
    }
}

/// Reads an answer's body to its end.
fn receive(
    file: &File,
    part: &mut Part,
    answer: &mut Response<Body>,
    total: Option<u64>,
    received: &mut u64,
    watch: &mut dyn FnMut(Progress),
) -> Result<Ended, Error> {
    let mut body = answer.body_mut().as_reader();
    let mut buffer = vec![0; 1 << 17];
    loop {
        watch(Progress::Receiving { done: part.length(), total: total.unwrap_or(0) });
        let count = match body.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Ok(Ended::Broke { total, why: error.to_string() }),
        };
        let found = part.length() + count as u64;
        if let Some(expected) = total.filter(|&total| found > total) {
            return Err(Error::Size { url: file.url.clone(), expected, found });
        }
        part.write(&buffer[..count]).map_err(|error| full(error, &file.path))?;
        *received += count as u64;
        if let Some(begins) = part.wrong_beginning(false) {
            return Err(Error::NotGguf { url: file.url.clone(), begins });
        }
    }
    match total {
        Some(total) if part.length() < total => {
            Ok(Ended::Broke { total: Some(total), why: "the connection ended".into() })
        }
        _ => Ok(Ended::Whole),
    }
}

/// The file that is there, if it is the one that is meant.
fn there(file: &File, watch: &mut dyn FnMut(Progress)) -> Result<Option<Fetched>, Error> {
    let Ok(meta) = file.path.metadata() else { return Ok(None) };
    let bytes = meta.len();
    if file.bytes.is_some_and(|expected| expected != bytes) {
        return Ok(None);
    }
    let Some(expected) = file.sum else {
        return Ok(Some(Fetched { bytes, sum: None, received: 0 }));
    };
    let found = Sum::of(&file.path, &mut |done| {
        watch(Progress::Checking { done, total: bytes });
    });
    let found = found.map_err(|source| Error::File { path: file.path.clone(), source })?;
    Ok((found == expected).then_some(Fetched { bytes, sum: Some(found), received: 0 }))
}

/// By what a server recognises a file: what it says in `If-Range`.
fn validator(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
    let strong = text(header::ETAG).filter(|tag| tag.starts_with('"'));
    strong.or_else(|| text(header::LAST_MODIFIED)).map(str::to_owned)
}

/// How long a whole answer is. Without that its end could not be told from a connection that broke, but in chunks.
fn length(url: &str, headers: &HeaderMap) -> Result<Option<u64>, Error> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match length.map(str::parse) {
        Some(Ok(length)) => Ok(Some(length)),
        None if headers.contains_key(header::TRANSFER_ENCODING) => Ok(None),
        _ => Err(Error::answer(url, "it does not say how long it is")),
    }
}

/// How long the file is, by an answer that is to be its rest.
fn rest(url: &str, headers: &HeaderMap, from: u64) -> Result<u64, Error> {
    let written = headers.get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok());
    let parsed = || {
        let (range, total) = written?.strip_prefix("bytes ")?.split_once('/')?;
        let (first, last) = range.split_once('-')?;
        let (first, end) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?.checked_add(1)?);
        let to_the_end = total == "*" || total.parse() == Ok(end);
        (first == from && end > first && to_the_end).then_some(end)
    };
    parsed().ok_or_else(|| {
        let written = written.unwrap_or("nothing").escape_debug();
        let wanted = format!("from byte {from} to the end was asked for");
        Error::answer(url, format!("Content-Range is `{written}`, {wanted}"))
    })
}

/// The length of which a range was outside.
fn unsatisfied(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes */")?.parse().ok()
}

/// Refuses what the disk has no room for.
fn room(path: &Path, needs: u64) -> Result<(), Error> {
    let free = free(path);
    if needs > free {
        return Err(Error::Space { folder: folder(path), needs, free });
    }
    Ok(())
}

fn folder(path: &Path) -> PathBuf {
    path.parent().unwrap_or(Path::new(".")).into()
}

/// All there is, where the system does not say.
fn free(path: &Path) -> u64 {
    statvfs(&folder(path))
        .map_or(u64::MAX, |system| system.blocks_available().saturating_mul(system.fragment_size()))
}

/// A write that failed because the disk is full, by name.
fn full(error: Error, path: &Path) -> Error {
    match error {
        Error::File { source, .. }
            if matches!(
                source.kind(),
                io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded
            ) =>
        {
            Error::Space { folder: folder(path), needs: 1, free: 0 }
        }
        error => error,
    }
}
