//! Transfer of one file from a server.
//!
//! An interrupted transfer resumes at its end (`Range`) if the file is unchanged (`If-Range` with
//! the validator of RFC 9110, 13.1.5: a strong `ETag`, else `Last-Modified`). The checksum covers
//! the whole file, including bytes from earlier tries.

use std::io::{self, Read};
use std::path::Path;
use std::thread;
use std::time::Instant;

use ureq::http::{HeaderMap, Response, header};
use ureq::{Body, http};

use crate::client::{Client, SILENCE, succeeded};
use crate::directory::Directory;
use crate::error::Error;
use crate::file::File;
use crate::part::Part;
use crate::sum::Sum;

/// Most consecutive interruptions without progress.
const TRIES: u32 = 5;

/// Most interruptions of a download, whatever was received in between.
const INTERRUPTIONS: u32 = 1000;

/// Fewest bytes in each [`SILENCE`]: a server that sends less does not make progress.
const LEAST: u64 = 64 << 10;

/// Bytes after which the free space of the disk is looked up again.
const ROOM_STEP: u64 = 64 << 20;

/// Result of a download.
#[derive(Clone, Debug)]
pub struct Fetched {
    pub bytes: u64,
    /// `None` if the file already existed and has no known checksum.
    pub sum: Option<Sum>,
    /// Bytes received in this call.
    pub received: u64,
}

/// Progress in bytes.
#[derive(Clone, Debug)]
pub enum Progress {
    /// Reading an existing file.
    Checking { done: u64, total: u64 },
    /// Receiving; `total` is 0 if unknown.
    Receiving { done: u64, total: u64 },
    /// A change, such as a restart.
    Notice(String),
}

/// Outcome of one request.
enum Ended {
    Whole,
    Broke { total: Option<u64>, why: String },
}

impl Client {
    /// Downloads a file. An existing file with the right checksum is kept, unless `anew`.
    ///
    /// # Errors
    /// [`Error`]. Keeps the partial file unless it can never become the right one.
    pub fn fetch(
        &self,
        file: &File,
        anew: bool,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<Fetched, Error> {
        let directory = Directory::open(file.path.parent().unwrap_or(Path::new("")))?;
        let there = if anew { None } else { there(file, &directory, watch)? };
        if let Some(fetched) = there {
            return Ok(fetched);
        }
        let mut checked = |done, total| watch(Progress::Checking { done, total });
        let mut part = Part::open(&directory, &file.path, file.bytes, &mut checked)?;
        let mut received = 0;
        let done = self.transfer(file, &mut part, &mut received, watch);
        if let Err(error) = done {
            if part.length() == 0 || is_final(&error) {
                part.discard()?;
            }
            return Err(error);
        }
        let (bytes, found) = (part.length(), part.sum());
        part.finish()?;
        Ok(Fetched { bytes, sum: Some(found), received })
    }

    /// Receives a whole file, and checks it.
    fn transfer(
        &self,
        file: &File,
        part: &mut Part,
        received: &mut u64,
        watch: &mut dyn FnMut(Progress),
    ) -> Result<(), Error> {
        let (mut furthest, mut broken, mut interruptions) = (part.length(), 0, 0);
        loop {
            let again = *received > 0;
            match self.request(file, part, again, received, watch) {
                Ok(Ended::Whole) => break,
                Ok(Ended::Broke { total, why }) => {
                    if part.length() > furthest {
                        (furthest, broken) = (part.length(), 0);
                    }
                    broken += 1;
                    interruptions += 1;
                    if interruptions == INTERRUPTIONS {
                        let (url, got) = (file.url.clone(), part.length());
                        return Err(Error::Unsteady { url, got, times: interruptions });
                    }
                    if broken == TRIES {
                        let (url, got) = (file.url.clone(), part.length());
                        return Err(Error::Truncated { url, got, total, times: broken, why });
                    }
                    watch(Progress::Notice(format!("interrupted, resuming: {why}")));
                }
                // A server that failed during the transfer may recover.
                Err(Error::Unreachable { .. } | Error::Status { .. })
                    if again && broken + 1 < TRIES =>
                {
                    broken += 1;
                }
                Err(error) => return Err(error),
            }
            if broken > 1 {
                thread::sleep(self.pause * 2_u32.pow(broken - 2));
            }
        }
        let (bytes, found) = (part.length(), part.sum());
        match (file.bytes, file.sum, part.wrong_beginning(true)) {
            (_, _, Some(begins)) => Err(Error::NotGguf { url: file.url.clone(), begins }),
            (Some(expected), ..) if expected != bytes => {
                Err(Error::Size { url: file.url.clone(), expected, found: bytes })
            }
            (_, Some(expected), _) if expected != found => {
                Err(Error::Sum { url: file.url.clone(), expected, found })
            }
            _ => Ok(()),
        }
    }

    /// Requests the missing bytes once. `again` is true if this call has received some already.
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
            // Without a validator, the rest could belong to another file.
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
        let mut answer = self.get(&file.url, file.hub, headers, None)?;
        let validator = validator(answer.headers());
        let total = match answer.status().as_u16() {
            206 if resumed.is_some() => Some(rest(&file.url, answer.headers(), from)?),
            416 if resumed.is_some() => {
                // The range starts at or after the end: the file is complete, or has been replaced
                // by a shorter one.
                if unsatisfied(answer.headers()) == Some(from) {
                    return Ok(Ended::Whole);
                }
                part.begin(None)?;
                return Ok(Ended::Broke { total: None, why: "the file is shorter now".into() });
            }
            206 => {
                return Err(Error::answer(
                    &file.url,
                    "a range, although the whole file was requested",
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
                    watch(Progress::Notice(format!("restarting: {why}")));
                }
                part.begin(validator.as_deref())?;
                length(&file.url, answer.headers())?
            }
        };
        if let Some(coding) = answer.headers().get(header::CONTENT_ENCODING)
            && coding != "identity"
        {
            return Err(Error::answer(&file.url, format!("unrequested encoding {coding:?}")));
        }
        if let (Some(expected), Some(found)) = (file.bytes, total)
            && expected != found
        {
            return Err(Error::Size { url: file.url.clone(), expected, found });
        }
        let total = total.or(file.bytes);
        part.room(total.map_or(0, |total| total.saturating_sub(part.length())))?;
        receive(file, part, &mut answer, total, received, watch)
    }
}

/// Reads the body of an answer.
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
    let (mut room, mut since, mut arrived) = (0, Instant::now(), 0);
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
        let mut write = || {
            if room < count as u64 {
                room = part.room(count as u64)?.min(ROOM_STEP);
            }
            room -= count as u64;
            part.write(&buffer[..count])
        };
        if let Err(error) = write() {
            // Without a length, what has filled the disk may never end.
            if total.is_none() && matches!(error, Error::Space { .. } | Error::Full { .. }) {
                part.begin(None)?;
            }
            return Err(error);
        }
        *received += count as u64;
        arrived += count as u64;
        if since.elapsed() >= SILENCE {
            if arrived < LEAST {
                let (url, got, seconds) = (file.url.clone(), part.length(), SILENCE.as_secs());
                return Err(Error::Slow { url, least: LEAST, seconds, got });
            }
            (since, arrived) = (Instant::now(), 0);
        }
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

/// Checks for an existing file with the right size and checksum.
fn there(
    file: &File,
    directory: &Directory,
    watch: &mut dyn FnMut(Progress),
) -> Result<Option<Fetched>, Error> {
    let name = file.path.file_name().unwrap_or_default();
    let Some(existing) = directory.existing(name) else { return Ok(None) };
    let failed = |source| Error::File { path: file.path.clone(), source };
    let bytes = existing.metadata().map_err(failed)?.len();
    if file.bytes.is_some_and(|expected| expected != bytes) {
        return Ok(None);
    }
    let Some(expected) = file.sum else {
        return Ok(Some(Fetched { bytes, sum: None, received: 0 }));
    };
    let found = Sum::of(&existing, &mut |done| {
        watch(Progress::Checking { done, total: bytes });
    });
    let found = found.map_err(failed)?;
    Ok((found == expected).then_some(Fetched { bytes, sum: Some(found), received: 0 }))
}

/// Value for `If-Range`.
fn validator(headers: &HeaderMap) -> Option<String> {
    let text = |name| headers.get(name).and_then(|value: &http::HeaderValue| value.to_str().ok());
    let strong = text(header::ETAG).filter(|tag| tag.starts_with('"'));
    strong.or_else(|| text(header::LAST_MODIFIED)).map(str::to_owned)
}

/// Length of the whole answer. Without it, only chunked encoding reveals a truncated transfer.
fn length(url: &str, headers: &HeaderMap) -> Result<Option<u64>, Error> {
    let length = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok());
    match length.map(str::parse) {
        Some(Ok(length)) => Ok(Some(length)),
        None if headers.contains_key(header::TRANSFER_ENCODING) => Ok(None),
        _ => Err(Error::answer(url, "no length")),
    }
}

/// Length of the file, from the `Content-Range` of a resumed transfer.
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
        let wanted = format!("bytes from {from} on were requested");
        Error::answer(url, format!("Content-Range is `{written}`, {wanted}"))
    })
}

/// Length of the file, from the answer to an unsatisfiable range.
fn unsatisfied(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_RANGE)?.to_str().ok()?.strip_prefix("bytes */")?.parse().ok()
}

/// True if the partial file can never become the right one.
const fn is_final(error: &Error) -> bool {
    matches!(error, Error::NotGguf { .. } | Error::Size { .. } | Error::Sum { .. })
}
