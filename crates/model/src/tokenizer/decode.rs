//! Decodes ids to bytes and text.

use std::borrow::Cow;

use super::build::{Algorithm, Tokenizer};
use super::special::TokenKind;

impl Tokenizer {
    /// The text of `ids`, without control tokens and ids outside the vocabulary. U+FFFD replaces invalid UTF-8. The
    /// space that [`Self::encode`] prepends is removed.
    #[must_use]
    pub fn decode(&self, ids: &[u32]) -> String {
        let mut begins = true;
        let mut bytes = Vec::new();
        for &id in ids {
            bytes.extend_from_slice(self.text_bytes(id, &mut begins));
        }
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// The bytes that `id` adds to generated text: none for control tokens and unknown ids. `begins` is true at the
    /// start of text, that is after a special token too; the call updates it.
    pub(super) fn text_bytes(&self, id: u32, begins: &mut bool) -> &[u8] {
        let bytes = self.token_bytes.get(id).unwrap_or_default();
        match self.kind(id) {
            Some(TokenKind::Normal) if !bytes.is_empty() => {
                let first = std::mem::take(begins);
                let spaced = bytes.strip_prefix(b" ").filter(|_| first && self.prefix);
                spaced.unwrap_or(bytes)
            }
            Some(TokenKind::Byte) if matches!(self.algorithm, Algorithm::SentencePiece(_)) => {
                *begins = false;
                bytes
            }
            Some(TokenKind::UserDefined) => {
                *begins = true;
                bytes
            }
            Some(TokenKind::Control | TokenKind::Unknown) => {
                *begins = true;
                &[]
            }
            _ => &[],
        }
    }

    /// True if text begins after `ids`, so that [`Self::encode`] prepends a space.
    pub(super) fn begins_after(&self, ids: &[u32]) -> bool {
        ids.last().is_none_or(|&id| self.kind(id).is_some_and(TokenKind::is_special))
    }

    /// The bytes of a token, which may be part of a character; for a control token, its name. `None` outside the
    /// vocabulary.
    #[must_use]
    pub fn token_bytes(&self, id: u32) -> Option<&[u8]> {
        self.token_bytes.get(id)
    }

    /// [`Self::token_bytes`] for display, with U+FFFD in place of invalid UTF-8.
    #[must_use]
    pub fn token_text(&self, id: u32) -> Option<Cow<'_, str>> {
        self.token_bytes.get(id).map(String::from_utf8_lossy)
    }
}
