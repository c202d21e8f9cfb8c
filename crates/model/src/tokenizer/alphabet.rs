//! The byte-level alphabet: one printable character for each of the 256 bytes.
//!
//! GPT-2 introduced it to store tokens of arbitrary bytes as text. The printable bytes of Latin-1 map to
//! themselves, the other 68 to the characters from U+0100, in order. GGUF stores tokens and merges of `gpt2`
//! vocabularies in this alphabet.

pub(crate) fn char_of(byte: u8) -> char {
    let code = match byte {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
        0x00..=0x20 => 0x100 + u32::from(byte),
        0x7f..=0xa0 => 0x121 + u32::from(byte - 0x7f),
        0xad => 0x143,
    };
    char::from_u32(code).unwrap_or(char::REPLACEMENT_CHARACTER)
}

/// The byte that `character` represents, or `None` outside the alphabet.
pub(super) fn byte_of(character: char) -> Option<u8> {
    let code = u32::from(character);
    let byte = match code {
        0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff => code,
        0x100..=0x120 => code - 0x100,
        0x121..=0x142 => code - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    u8::try_from(byte).ok()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn the_alphabet_equals_gpt2s() {
        // The construction of GPT-2's `bytes_to_unicode`: printable bytes first, then a counter.
        let mut next = 0x100;
        for byte in 0..=255u8 {
            let printable = matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
            let expected = if printable { u32::from(byte) } else { next };
            next += u32::from(!printable);
            assert_eq!(u32::from(char_of(byte)), expected, "byte {byte:#04x}");
        }
        assert_eq!(char_of(b' '), 'Ġ');
        assert_eq!(char_of(b'\n'), 'Ċ');
    }

    #[test]
    fn characters_and_bytes_are_a_bijection() {
        let characters: HashSet<char> = (0..=255).map(char_of).collect();
        assert_eq!(characters.len(), 256);
        for character in (0..0x1000).filter_map(char::from_u32) {
            let byte = byte_of(character);
            assert_eq!(byte.is_some(), characters.contains(&character), "{character:?}");
            assert!(byte.is_none_or(|b| char_of(b) == character));
        }
    }
}
