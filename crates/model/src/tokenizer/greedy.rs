//! RWKV's tokeniser: repeatedly takes the longest token that the rest of the text begins with. Tokens are bytes,
//! which may be parts of characters; vocabularies write them in Python's notation.

use std::collections::HashMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind, StartKind};

use super::error::Error;
use super::run::Run;
use super::special::TokenKind;
use super::token_bytes::TokenBytes;

#[derive(Debug)]
pub(super) struct Greedy {
    /// Matches all text tokens.
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

impl Greedy {
    pub(super) fn new(token_bytes: &TokenBytes, kinds: &[TokenKind]) -> Result<Self, Error> {
        let mut known = HashMap::new();
        let (mut ids, mut texts) = (Vec::new(), Vec::new());
        for (id, _) in (0..).zip(kinds).filter(|(_, kind)| kind.is_text()) {
            let Some(bytes) = token_bytes.get(id).filter(|bytes| !bytes.is_empty()) else {
                continue;
            };
            if let Some(first) = known.insert(bytes, id) {
                let text = String::from_utf8_lossy(bytes).into_owned();
                return Err(Error::DuplicateToken { text, first, second: id });
            }
            ids.push(id);
            texts.push(bytes);
        }
        let automaton = AhoCorasick::builder()
            .match_kind(MatchKind::LeftmostLongest)
            .start_kind(StartKind::Anchored)
            .build(texts)
            .map_err(Error::Specials)?;
        Ok(Self { automaton, ids })
    }

    /// Appends the ids of `text[range]`, which contains no special token.
    pub(super) fn encode(
        &self,
        text: &str,
        range: Range<usize>,
        run: &mut Run<'_>,
    ) -> Result<(), Error> {
        let mut start = range.start;
        while start < range.end {
            run.out.expect((text.len() - start).div_ceil(run.longest))?;
            let rest = Input::new(text.as_bytes()).range(start..range.end).anchored(Anchored::Yes);
            let Some(found) = self.automaton.find(rest) else {
                return Err(Error::NoToken { byte: text.as_bytes()[start], offset: start });
            };
            // The search may read as far as the longest token, even if it finds a shorter one.
            run.work.add(run.longest.min(range.end - start))?;
            run.out.push(self.ids[found.pattern().as_usize()])?;
            start = found.end();
        }
        Ok(())
    }
}

/// Appends the bytes of the token `text`, which is written like a Python bytes literal: `\t`, `\n`, `\r`, `\xff`;
/// any other character after a backslash stands for itself.
pub(super) fn spell_out(id: u32, text: &str, bytes: &mut Vec<u8>) -> Result<(), Error> {
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let escape = (byte == b'\\').then(|| escaped(&mut rest));
        let byte = escape.unwrap_or(Some(byte));
        bytes.push(byte.ok_or_else(|| Error::Escape { id, text: text.to_owned() })?);
    }
    Ok(())
}

/// The byte of an escape sequence, without its backslash.
fn escaped(rest: &mut impl Iterator<Item = u8>) -> Option<u8> {
    match rest.next()? {
        b't' => Some(b'\t'),
        b'n' => Some(b'\n'),
        b'r' => Some(b'\r'),
        b'x' => {
            let mut digit = || char::from(rest.next()?).to_digit(16);
            let value = digit()? << 4 | digit()?;
            u8::try_from(value).ok()
        }
        other => Some(other),
    }
}
