//! The bytes of every token, in one allocation.

use super::error::Error;
use super::special::TokenKind;
use crate::gguf::Strings;

#[derive(Debug)]
pub(super) struct TokenBytes {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl TokenBytes {
    /// Calls `spell_out` with the id, text and kind of each token, to append its bytes.
    pub(super) fn new(
        tokens: &Strings,
        kinds: &[TokenKind],
        spell_out: impl Fn(u32, &str, TokenKind, &mut Vec<u8>) -> Result<(), Error>,
    ) -> Result<Self, Error> {
        let mut bytes = Vec::with_capacity(tokens.text_len());
        let mut ends = Vec::with_capacity(tokens.len());
        for (id, (text, kind)) in (0u32..).zip(tokens.iter().zip(kinds)) {
            spell_out(id, text, *kind, &mut bytes)?;
            ends.push(bytes.len());
        }
        Ok(Self { bytes, ends })
    }

    pub(super) fn get(&self, id: u32) -> Option<&[u8]> {
        let id = id as usize;
        let end = *self.ends.get(id)?;
        let start = id.checked_sub(1).map_or(0, |before| self.ends[before]);
        self.bytes.get(start..end)
    }
}
