//! Byte-level BPE: words are cut by a pre-tokeniser, and begin as bytes that merges make tokens of.

use std::ops::Range;

use super::encode::Run;
use super::merges::{Ids, Merges};
use super::patterns::PreTokeniser;
use super::special::Kind;
use super::split::Splitter;
use super::{Error, Tokenizer, Vocabulary, alphabet};

#[derive(Debug)]
pub(super) struct ByteLevel {
    ids: Ids,
    merges: Merges,
    /// A word that is a token is not built from parts.
    whole_words: bool,
    splitter: Splitter,
    /// The token of every byte as text, where it has one.
    bytes: Vec<Option<u32>>,
}

impl ByteLevel {
    pub(super) fn new(
        family: PreTokeniser,
        vocabulary: Vocabulary,
        kinds: &[Kind],
    ) -> Result<Self, Error> {
        let ids = Ids::new(vocabulary.tokens)?;
        let of_byte = |byte| ids.get(alphabet::char_of(byte).encode_utf8(&mut [0; 4]));
        let is_normal = |id: &u32| kinds.get(*id as usize) == Some(&Kind::Normal);
        let bytes = (0..=255).map(|byte| of_byte(byte).filter(is_normal)).collect();
        Ok(Self {
            merges: Merges::new(&vocabulary.merges, &ids, kinds)?,
            ids,
            whole_words: family.whole_words,
            splitter: family.rule.splitter()?,
            bytes,
        })
    }

    /// Appends the ids of `text[range]`, which holds no special token.
    pub(super) fn encode(
        &self,
        text: &str,
        range: Range<usize>,
        of: &Tokenizer,
        run: &mut Run<'_>,
    ) -> Result<(), Error> {
        let Run { out, work, word, letters } = run;
        let mut left = text.len() - range.start;
        let words = &text[range.clone()];
        let id = |byte: u8| self.bytes.get(usize::from(byte)).copied().flatten();
        if let Some((offset, byte)) = range.zip(words.bytes()).find(|(_, b)| id(*b).is_none()) {
            return Err(Error::NoToken { byte, offset });
        }
        self.splitter.split(words, &mut |piece| {
            work.add(piece.len())?;
            out.expect(left.div_ceil(of.longest))?;
            left -= piece.len();
            if self.whole_words && piece.len() <= of.longest {
                letters.clear();
                letters.extend(piece.bytes().map(alphabet::char_of));
                let whole = self.ids.get(letters);
                if let Some(id) = whole.filter(|&id| of.kind(id) == Some(Kind::Normal)) {
                    return out.push(id);
                }
            }
            let bytes = piece.bytes().map(|byte| (id(byte).unwrap_or_default(), 1));
            word.merge(piece.len(), bytes, &self.merges, work, |id, _| out.push(id))
        })
    }
}

/// Appends what the token `text` stands for: the bytes of its characters, or itself when one of
/// them is none of the alphabet, as Hugging Face has it.
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
