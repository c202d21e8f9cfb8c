//! RWKV's rule: of the tokens that a text begins with, the longest comes first. Tokens are bytes, which may be
//! parts of characters; vocabularies write them as Python does.

use std::collections::HashMap;
use std::ops::Range;

use aho_corasick::{AhoCorasick, Anchored, Input, MatchKind, StartKind};

use super::decode::Pieces;
use super::encode::Run;
use super::special::Kind;
use super::{Error, Tokenizer};

#[derive(Debug)]
pub(super) struct Greedy {
    /// Of all tokens that are text.
    automaton: AhoCorasick,
    ids: Vec<u32>,
}

impl Greedy {
    pub(super) fn new(pieces: &Pieces, kinds: &[Kind]) -> Result<Self, Error> {
        let mut known = HashMap::new();
        let (mut ids, mut texts) = (Vec::new(), Vec::new());
        for (id, _) in (0..).zip(kinds).filter(|(_, kind)| kind.is_text()) {
            let Some(bytes) = pieces.get(id).filter(|bytes| !bytes.is_empty()) else { continue };
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

    /// Appends the ids of `text[range]`, which holds no special token.
    pub(super) fn encode(
        &self,
        text: &str,
        range: Range<usize>,
        of: &Tokenizer,
        run: &mut Run<'_>,
    ) -> Result<(), Error> {
        let mut start = range.start;
        while start < range.end {
            run.out.expect((text.len() - start).div_ceil(of.longest))?;
            let rest = Input::new(text.as_bytes()).range(start..range.end).anchored(Anchored::Yes);
            let Some(found) = self.automaton.find(rest) else {
                return Err(Error::NoToken { byte: text.as_bytes()[start], offset: start });
            };
            // What was looked at behind a token may be as long as the longest.
            run.work.add(of.longest.min(range.end - start))?;
            run.out.push(self.ids[found.pattern().as_usize()])?;
            start = found.end();
        }
        Ok(())
    }
}

/// Appends the bytes of the token `text`, as a literal of bytes in Python has them: `\t`, `\n`, `\r`, `\xff`, and
/// behind any other backslash the character itself.
pub(super) fn spell_out(id: u32, text: &str, bytes: &mut Vec<u8>) -> Result<(), Error> {
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let escape = (byte == b'\\').then(|| escaped(&mut rest));
        let byte = escape.unwrap_or(Some(byte));
        bytes.push(byte.ok_or_else(|| Error::Escape { id, text: text.to_owned() })?);
    }
    Ok(())
}

/// The byte that a backslash and what follows it stand for.
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
