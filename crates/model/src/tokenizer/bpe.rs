//! Byte-level BPE: a pre-tokeniser splits text into words, and merges combine the bytes of each word to tokens.

use std::ops::Range;

use super::alphabet;
use super::error::Error;
use super::merges::{Ids, Merges};
use super::patterns::PreTokeniser;
use super::run::Run;
use super::special::TokenKind;
use super::split::Splitter;
use super::vocabulary::Vocabulary;

#[derive(Debug)]
pub(super) struct ByteLevel {
    ids: Ids,
    merges: Merges,
    /// A word that is a token is not merged from its bytes.
    whole_words: bool,
    splitter: Splitter,
    /// The token of each byte, if there is one.
    bytes: Vec<Option<u32>>,
}

impl ByteLevel {
    pub(super) fn new(
        family: PreTokeniser,
        vocabulary: Vocabulary,
        kinds: &[TokenKind],
    ) -> Result<Self, Error> {
        let ids = Ids::new(vocabulary.tokens)?;
        let of_byte = |byte| ids.get(alphabet::char_of(byte).encode_utf8(&mut [0; 4]));
        let is_normal = |id: &u32| kinds.get(*id as usize) == Some(&TokenKind::Normal);
        let bytes = (0..=255).map(|byte| of_byte(byte).filter(is_normal)).collect();
        Ok(Self {
            merges: Merges::new(&vocabulary.merges, &ids, kinds)?,
            ids,
            whole_words: family.whole_words,
            splitter: family.rule.splitter()?,
            bytes,
        })
    }

    /// Appends the ids of `text[range]`, which contains no special token.
    pub(super) fn encode(
        &self,
        text: &str,
        range: Range<usize>,
        run: &mut Run<'_>,
    ) -> Result<(), Error> {
        let &mut Run { ref mut out, ref mut work, ref mut word, ref mut letters, kinds, longest } =
            run;
        let mut left = text.len() - range.start;
        let words = &text[range.clone()];
        let id = |byte: u8| self.bytes.get(usize::from(byte)).copied().flatten();
        if let Some((offset, byte)) = range.zip(words.bytes()).find(|(_, b)| id(*b).is_none()) {
            return Err(Error::NoToken { byte, offset });
        }
        self.splitter.split(words, &mut |piece| {
            work.add(piece.len())?;
            out.expect(left.div_ceil(longest))?;
            left -= piece.len();
            if self.whole_words && piece.len() <= longest {
                letters.clear();
                letters.extend(piece.bytes().map(alphabet::char_of));
                let whole = self.ids.get(letters);
                if let Some(id) =
                    whole.filter(|&id| kinds.get(id as usize) == Some(&TokenKind::Normal))
                {
                    return out.push(id);
                }
            }
            let bytes = piece.bytes().map(|byte| (id(byte).unwrap_or_default(), 1));
            word.merge(piece.len(), bytes, &self.merges, work, |id, _| out.push(id))
        })
    }
}

/// Appends the bytes of the token `text`: those that its characters stand for, or `text` itself if a character is
/// outside the alphabet, as in Hugging Face's `tokenizers`.
pub(super) fn spell_out(text: &str, bytes: &mut Vec<u8>) {
    let start = bytes.len();
    for character in text.chars() {
        let Some(byte) = alphabet::byte_of(character) else {
            bytes.truncate(start);
            bytes.extend_from_slice(text.as_bytes());
            return;
        };
        bytes.push(byte);
    }
}
