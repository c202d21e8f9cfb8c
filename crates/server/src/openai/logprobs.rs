//! Log-probabilities in OpenAI's two formats.

use std::fmt::Write;

use serde_json::{Map, Value};

use engine::{Logprob, TokenLogprobs};

/// Log-probability of an impossible token: JSON has no infinity.
const IMPOSSIBLE: f32 = -9999.0;

/// Text of a token; `bytes:\xNN..` if it is not UTF-8 on its own.
fn token_text(bytes: &[u8]) -> String {
    if let Ok(text) = std::str::from_utf8(bytes) {
        return text.to_owned();
    }
    let mut text = "bytes:".to_owned();
    for byte in bytes {
        // Writing to a string cannot fail.
        let _ = write!(text, "\\x{byte:02x}");
    }
    text
}

fn finite(logprob: f32) -> f32 {
    if logprob.is_finite() { logprob } else { IMPOSSIBLE }
}

/// Returns the number with the digits of an `f32`, so that every client prints it alike.
fn number(logprob: f32) -> Value {
    logprob.to_string().parse::<f64>().unwrap_or(f64::from(logprob)).into()
}

fn token(logprob: &Logprob) -> api::TokenLogprob {
    api::TokenLogprob {
        id: logprob.id,
        token: token_text(&logprob.bytes),
        logprob: finite(logprob.logprob),
        bytes: logprob.bytes.clone(),
    }
}

pub(super) fn chat(at: &TokenLogprobs) -> api::ChatTokenLogprobs {
    api::ChatTokenLogprobs {
        token: token(&at.token),
        top_logprobs: at.top.iter().map(token).collect(),
    }
}

/// Alternatives by text, most likely first. If two have the same text, the more likely one is
/// reported.
fn by_text(top: &[Logprob]) -> Map<String, Value> {
    let mut map = Map::new();
    for logprob in top {
        map.entry(token_text(&logprob.bytes)).or_insert_with(|| number(finite(logprob.logprob)));
    }
    map
}

/// Offset of the next token, in characters.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Offset(pub(super) usize);

impl Offset {
    /// Appends one token to a completion's lists. `in_text` is false for a token that is not part
    /// of the text, such as BOS.
    pub(super) fn add(
        &mut self,
        to: &mut api::CompletionLogprobs,
        at: &TokenLogprobs,
        in_text: bool,
    ) {
        // The first token of a prompt has no prediction.
        let predicted = !at.token.logprob.is_nan();
        to.tokens.push(token_text(&at.token.bytes));
        to.token_logprobs.push(predicted.then(|| finite(at.token.logprob)));
        to.top_logprobs.push(predicted.then(|| by_text(&at.top)));
        to.text_offset.push(self.0);
        to.token_ids.push(at.token.id);
        to.top.push(at.top.iter().map(token).collect());
        if in_text {
            // Counts a character at its first byte.
            self.0 += at.token.bytes.iter().filter(|byte| **byte & 0xC0 != 0x80).count();
        }
    }
}

pub(super) fn append(
    to: &mut Option<api::CompletionLogprobs>,
    new: Option<api::CompletionLogprobs>,
) {
    let Some(new) = new else { return };
    let to = to.get_or_insert_default();
    to.tokens.extend(new.tokens);
    to.token_logprobs.extend(new.token_logprobs);
    to.top_logprobs.extend(new.top_logprobs);
    to.text_offset.extend(new.text_offset);
    to.token_ids.extend(new.token_ids);
    to.top.extend(new.top);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logprob(id: u32, bytes: &[u8], logprob: f32) -> Logprob {
        Logprob { id, bytes: bytes.to_vec(), logprob }
    }

    #[test]
    fn log_probability_lists_are_parallel_and_offsets_count_characters() {
        let (euro, rest) = "€".as_bytes().split_at(1);
        let mut offset = Offset(2);
        let mut lists = api::CompletionLogprobs::default();
        let bos = TokenLogprobs { token: logprob(7, b"<s>", f32::NAN), top: Vec::new() };
        offset.add(&mut lists, &bos, false);
        for bytes in [b"ab".as_slice(), euro, rest, b"c"] {
            let top = vec![logprob(1, bytes, -0.1), logprob(2, b"z", f32::NEG_INFINITY)];
            offset.add(&mut lists, &TokenLogprobs { token: logprob(1, bytes, -0.1), top }, true);
        }
        assert_eq!(lists.tokens, ["<s>", "ab", "bytes:\\xe2", "bytes:\\x82\\xac", "c"]);
        assert_eq!(lists.text_offset, [2, 2, 4, 5, 5]);
        assert_eq!(lists.token_ids, [7, 1, 1, 1, 1]);
        assert_eq!(lists.token_logprobs[..2], [None, Some(-0.1)]);
        assert_eq!(lists.top_logprobs[0], None);
        let top = serde_json::to_string(&lists.top_logprobs[1]).unwrap();
        assert_eq!(top, r#"{"ab":-0.1,"z":-9999.0}"#);
        assert_eq!(lists.top[1][1].id, 2);
    }

    #[test]
    fn tokens_with_the_same_text_report_the_likelier_one() {
        let top = [logprob(1, b"a", -1.0), logprob(2, b"b", -2.0), logprob(3, b"a", -3.0)];
        assert_eq!(Value::from(by_text(&top)).to_string(), r#"{"a":-1.0,"b":-2.0}"#);
    }
}
