//! Request ids: from the client or a proxy, else generated. The log and the answer contain the id,
//! in the headers that OpenAI's and Anthropic's clients read.

use axum::http::{HeaderMap, HeaderName, HeaderValue};

use super::unique;

const OPENAI: HeaderName = HeaderName::from_static("x-request-id");
const ANTHROPIC: HeaderName = HeaderName::from_static("request-id");

/// Maximum length of an id in characters.
const LONGEST: usize = 128;

pub(super) struct RequestId(HeaderValue);

impl RequestId {
    /// Returns the id in the request's headers if it is letters, digits and punctuation, so that a
    /// log entry stays one line.
    pub(super) fn of(headers: &HeaderMap) -> Self {
        let is_sound = |id: &&HeaderValue| {
            let bytes = id.as_bytes();
            (1..=LONGEST).contains(&bytes.len()) && bytes.iter().all(u8::is_ascii_graphic)
        };
        let given = headers.get(OPENAI).filter(is_sound).cloned();
        Self(given.unwrap_or_else(|| {
            HeaderValue::from_str(&format!("req_{:016x}", unique()))
                .unwrap_or_else(|error| unreachable!("letters and digits: {error}"))
        }))
    }

    pub(super) fn as_str(&self) -> &str {
        self.0.to_str().unwrap_or_default()
    }

    pub(super) fn put(self, headers: &mut HeaderMap) {
        headers.insert(OPENAI, self.0.clone());
        headers.insert(ANTHROPIC, self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn valid_ids_are_preserved_and_others_replaced() {
        let of = |id: &str| {
            let mut headers = HeaderMap::new();
            headers.insert(OPENAI, HeaderValue::from_bytes(id.as_bytes()).unwrap());
            RequestId::of(&headers).as_str().to_owned()
        };
        assert_eq!(of("abc-123_/=:"), "abc-123_/=:");
        for odd in ["", "two words", "é", &"x".repeat(LONGEST + 1)] {
            assert!(of(odd).starts_with("req_") && of(odd) != of(odd), "{odd}");
        }
    }
}
