//! Compressed request bodies: gzip, deflate (zlib) and zstd, decoded within the limits of bodies.

use std::io::Read;

use axum::http::header::{ACCEPT_ENCODING, CONTENT_ENCODING};
use axum::http::{HeaderMap, HeaderValue, StatusCode};
use flate2::read::{MultiGzDecoder, ZlibDecoder};
use ruzstd::decoding::StreamingDecoder;

use super::App;
use super::body::Arrived;
use super::error::Error;
use errors::invalid::excerpt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Coding {
    Gzip,
    Deflate,
    Zstd,
}

/// Maximum window of a zstd frame in bytes, the one that RFC 8878 recommends. The decoder
/// allocates it.
const WINDOW: u64 = 8 << 20;

/// Bytes decoded at a time.
const CHUNK: usize = 64 << 10;

fn refuse(message: String) -> Error {
    Error::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, "unsupported_media_type", message)
        .header(ACCEPT_ENCODING, HeaderValue::from_static("gzip, deflate, zstd"))
}

/// Returns the coding of a body, if it has one.
pub(super) fn of(headers: &HeaderMap) -> Result<Option<Coding>, Error> {
    let mut found = None;
    for value in headers.get_all(CONTENT_ENCODING) {
        for name in value.to_str().unwrap_or("?").split(',') {
            let coding = match &*name.trim().to_ascii_lowercase() {
                "" | "identity" => continue,
                "gzip" | "x-gzip" => Coding::Gzip,
                "deflate" => Coding::Deflate,
                "zstd" => Coding::Zstd,
                other => {
                    let name = excerpt(other);
                    return Err(refuse(format!(
                        "Content-Encoding: is `{name}`; gzip, deflate and zstd are supported"
                    )));
                }
            };
            if found.replace(coding).is_some() {
                return Err(refuse("Content-Encoding: names several codings".into()));
            }
        }
    }
    Ok(found)
}

/// Decodes a body on a blocking thread, in the order of the prompts' queue.
pub(super) async fn decode(app: &App, coding: Coding, coded: Arrived) -> Result<Arrived, Error> {
    let _place = app.prompts.place(coded.len()).await?;
    let decoded = tokio::task::spawn_blocking(move || decoded(coding, &coded)).await;
    decoded.map_err(|error| Error::internal(format!("decoding the body failed: {error}")))?
}

fn decoded(coding: Coding, coded: &Arrived) -> Result<Arrived, Error> {
    let damaged = |reason: &dyn std::fmt::Display| {
        refuse(format!("the body does not match its Content-Encoding: {reason}"))
    };
    let bytes: &[u8] = coded;
    let mut reader: Box<dyn Read + '_> = match coding {
        Coding::Gzip => Box::new(MultiGzDecoder::new(bytes)),
        Coding::Deflate => Box::new(ZlibDecoder::new(bytes)),
        Coding::Zstd => {
            if window(bytes).is_none_or(|window| window > WINDOW) {
                let reason = format!("no zstd frame with a window of at most {WINDOW} bytes");
                return Err(damaged(&reason));
            }
            Box::new(StreamingDecoder::new(bytes).map_err(|error| damaged(&error))?)
        }
    };
    let mut arrived = coded.like();
    let mut chunk = vec![0; CHUNK];
    loop {
        match reader.read(&mut chunk).map_err(|error| damaged(&error))? {
            0 => return Ok(arrived),
            read => arrived.add(&chunk[..read])?,
        }
    }
}

/// Returns the size of the window that a zstd frame declares (RFC 8878, 3.1.1.1).
fn window(frame: &[u8]) -> Option<u64> {
    let header = frame.strip_prefix(b"\x28\xb5\x2f\xfd")?;
    let (descriptor, rest) = header.split_first()?;
    let single_segment = descriptor & 0x20 != 0;
    if !single_segment {
        let (exponent, mantissa) = (rest.first()? >> 3, rest.first()? & 7);
        let base = 1_u64 << (10 + exponent);
        return Some(base + base / 8 * u64::from(mantissa));
    }
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size = [1, 2, 4, 8][usize::from(descriptor >> 6)];
    let field = rest.get(dictionary..dictionary + size)?;
    let number = field.iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte));
    // The field of two bytes does not count the sizes that one byte can have.
    Some(if size == 2 { number + 256 } else { number })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_known_coding_is_accepted() {
        let coding = |value: &'static str| {
            let headers = [(CONTENT_ENCODING, HeaderValue::from_static(value))];
            of(&HeaderMap::from_iter(headers)).map_err(|error| error.status().as_u16())
        };
        assert_eq!(coding("GZIP"), Ok(Some(Coding::Gzip)));
        assert_eq!(coding("identity"), Ok(None));
        assert_eq!(coding("identity, zstd"), Ok(Some(Coding::Zstd)));
        for odd in ["br", "gzip, gzip", "gzip, br", "?"] {
            assert_eq!(coding(odd), Err(415), "{odd}");
        }
    }

    #[test]
    fn windows_of_zstd_frames_are_read() {
        assert_eq!(window(b"\x28\xb5\x2f\xfd\x00\x58"), Some(2 << 20));
        assert_eq!(window(b"\x28\xb5\x2f\xfd\x20\x07"), Some(7));
        assert_eq!(window(b"\x28\xb5\x2f\xfd\x60\x00\x01"), Some(512));
        assert_eq!(window(b"\x28\xb5\x2f\xfd\x00\xff"), Some((1 << 41) + (7 << 38)));
        assert_eq!(window(b"{}"), None);
    }
}
