//! Pre-tokenisers: where text is cut before byte-pair merges are looked for.
//!
//! Each is known by the name in `tokenizer.ggml.pre`. The published patterns end in
//! `\s+(?!\S)|\s+`, a look-ahead that needs a backtracking engine, with a stack that one long run
//! of spaces exhausts. Here the other alternatives are a linear-time `regex`, and those two are the
//! rule of [`Stage::Words`] for what lies between its matches.

use regex::Regex;

use super::Error;

/// The pattern of GPT-2 without its two white-space alternatives.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+";

/// The pattern of Llama 3, likewise; digits go in groups of three.
const LLAMA3: &str = concat!(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]",
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);

/// The pattern of Qwen2, likewise: as Llama 3's, but every digit stands alone.
const QWEN2: &str = concat!(
    r"'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD]",
    r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PreTokeniser {
    /// What llama.cpp does when the file does not say.
    Default,
    Gpt2,
    Llama3,
    /// Qwen2, Qwen2.5 and Qwen3.
    Qwen2,
}

impl PreTokeniser {
    /// The values of `tokenizer.ggml.pre` that are understood.
    const NAMES: [(&'static str, Self); 8] = [
        ("default", Self::Default),
        ("gpt-2", Self::Gpt2),
        ("phi-2", Self::Gpt2),
        ("llama-bpe", Self::Llama3),
        ("llama3", Self::Llama3),
        ("llama-v3", Self::Llama3),
        ("qwen2", Self::Qwen2),
        ("deepseek-r1-qwen", Self::Qwen2),
    ];

    /// The family named by `tokenizer.ggml.pre`; a file without the key gets the default.
    pub(super) fn named(pre: Option<&str>) -> Result<Self, Error> {
        let Some(pre) = pre.filter(|p| !p.is_empty()) else {
            return Ok(Self::Default);
        };
        Self::NAMES.into_iter().find(|(name, _)| *name == pre).map(|(_, family)| family).ok_or_else(
            || Error::PreTokeniser {
                pre: pre.to_owned(),
                supported: Self::NAMES.map(|(name, _)| name).join(", "),
            },
        )
    }

    /// The stages that cut text, each applied to the pieces of the one before.
    pub(super) fn splitter(self) -> Result<Splitter, Error> {
        let regex = |pattern| Regex::new(pattern).map_err(|e| Error::Pattern(Box::new(e)));
        let stages = match self {
            Self::Gpt2 => vec![Stage::Words(regex(GPT2)?)],
            Self::Llama3 => vec![Stage::Words(regex(LLAMA3)?)],
            Self::Qwen2 => vec![Stage::Words(regex(QWEN2)?)],
            Self::Default => vec![
                Stage::Isolate(regex(r"[\p{P}$+<=>^~|]+")?),
                Stage::Words(regex(GPT2)?),
                Stage::Isolate(regex(r"\p{N}+")?),
                Stage::Isolate(regex(r"[0-9]{3}")?),
            ],
        };
        Ok(Splitter { stages })
    }
}

#[derive(Debug)]
enum Stage {
    /// Matches and what lies between them are both pieces.
    Isolate(Regex),
    /// Matches are pieces, and what lies between them is white space, which gives its last
    /// character away as a piece of its own when the match behind it did not take it:
    /// `\s+(?!\S)|\s+`.
    Words(Regex),
}

/// Cuts text into the pieces that byte-pair encoding works on, in time linear in its length.
#[derive(Debug)]
pub(super) struct Splitter {
    stages: Vec<Stage>,
}

impl Splitter {
    /// Hands the pieces of `text` to `each`; none is empty, and in order they make up the text.
    /// They are not collected, so that a long text takes no memory here.
    ///
    /// # Errors
    /// The first one of `each`, which then gets no more.
    pub(super) fn split<'t, E>(
        &self,
        text: &'t str,
        each: &mut dyn FnMut(&'t str) -> Result<(), E>,
    ) -> Result<(), E> {
        cut(&self.stages, text, each)
    }
}

fn cut<'t, E>(
    stages: &[Stage],
    text: &'t str,
    each: &mut dyn FnMut(&'t str) -> Result<(), E>,
) -> Result<(), E> {
    match stages {
        [] => each(text),
        [stage, finer @ ..] => stage.cut(text, &mut |piece| cut(finer, piece, each)),
    }
}

impl Stage {
    fn cut<'t, E>(
        &self,
        text: &'t str,
        each: &mut dyn FnMut(&'t str) -> Result<(), E>,
    ) -> Result<(), E> {
        let (Self::Isolate(regex) | Self::Words(regex)) = self;
        let mut each = |piece: &'t str| if piece.is_empty() { Ok(()) } else { each(piece) };
        let mut end = 0;
        for found in regex.find_iter(text) {
            let gap = &text[end..found.start()];
            let taken = found.as_str().starts_with(char::is_whitespace);
            match gap.char_indices().next_back() {
                Some((last, _)) if matches!(self, Self::Words(_)) && !taken => {
                    each(&gap[..last])?;
                    each(&gap[last..])?;
                }
                _ => each(gap)?,
            }
            each(found.as_str())?;
            end = found.end();
        }
        each(&text[end..])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn split(family: PreTokeniser, text: &str) -> Vec<&str> {
        let mut pieces = Vec::new();
        let mut push = |piece| {
            pieces.push(piece);
            Ok::<_, ()>(())
        };
        family.splitter().unwrap().split(text, &mut push).unwrap();
        pieces
    }

    #[test]
    fn names_and_aliases() {
        assert_eq!(PreTokeniser::named(None).unwrap(), PreTokeniser::Default);
        assert_eq!(PreTokeniser::named(Some("")).unwrap(), PreTokeniser::Default);
        for name in ["llama-bpe", "llama3", "llama-v3"] {
            assert_eq!(PreTokeniser::named(Some(name)).unwrap(), PreTokeniser::Llama3);
        }
        let message = PreTokeniser::named(Some("tekken")).unwrap_err().to_string();
        assert!(message.contains("`tekken`") && message.contains("llama-bpe"), "{message}");
    }

    #[test]
    fn gpt2_splits() {
        let split = |text| split(PreTokeniser::Gpt2, text);
        assert_eq!(split("Hello  world 12345!?"), ["Hello", " ", " world", " 12345", "!?"]);
        // Contractions in lower case only.
        assert_eq!(split("I'm WE'RE"), ["I", "'m", " WE", "'", "RE"]);
        assert_eq!(split("a\n\nb"), ["a", "\n", "\n", "b"]);
        assert_eq!(split("a\n\n b"), ["a", "\n\n", " b"]);
        assert_eq!(split("\t\tx  "), ["\t", "\t", "x", "  "]);
        assert_eq!(split(""), [""; 0]);
    }

    #[test]
    fn llama3_splits() {
        let split = |text| split(PreTokeniser::Llama3, text);
        assert_eq!(split("1234567"), ["123", "456", "7"]);
        assert_eq!(split("I'LL go"), ["I", "'LL", " go"]);
        assert_eq!(split("\t\tfoo(x)"), ["\t", "\tfoo", "(x", ")"]);
        assert_eq!(split("a \n \n  b"), ["a", " \n \n", " ", " b"]);
        assert_eq!(split("  5"), [" ", " ", "5"]);
        assert_eq!(split("ok!\n\nnext"), ["ok", "!\n\n", "next"]);
    }

    #[test]
    fn qwen2_splits() {
        let split = |text| split(PreTokeniser::Qwen2, text);
        assert_eq!(split("in 2024"), ["in", " ", "2", "0", "2", "4"]);
        assert_eq!(split("you've DON'T"), ["you", "'ve", " DON", "'T"]);
        // \p{N} holds more than digits, \p{L} every script; a mark is neither.
        assert_eq!(split("x²Ⅷ٣"), ["x", "²", "Ⅷ", "٣"]);
        assert_eq!(split("Привет, 世界"), ["Привет", ",", " 世界"]);
        assert_eq!(split("e\u{301}!"), ["e", "\u{301}!"]);
        assert_eq!(split("a\u{3000}\u{a0}b"), ["a", "\u{3000}", "\u{a0}b"]);
    }

    #[test]
    fn default_splits() {
        let split = |text| split(PreTokeniser::Default, text);
        assert_eq!(split("x=1234 + y"), ["x", "=", "123", "4", " ", "+", " y"]);
        assert_eq!(split("don't"), ["don", "'", "t"]);
    }

    /// The rule of the published pattern at white space, character by character.
    fn ends_of_spaces(text: &str) -> Vec<usize> {
        let chars: Vec<char> = text.chars().collect();
        let mut ends = Vec::new();
        let mut i = 0;
        while i < chars.len() {
            let run = chars[i..].iter().take_while(|c| c.is_whitespace()).count();
            let last = i + run == chars.len();
            // `\s+(?!\S)`, else `\s+`, else one other character with the space before it.
            i += match run {
                0 => 1,
                1 if !last && chars[i] == ' ' => 2,
                1 => 1,
                run if last => run,
                run => run - 1,
            };
            ends.push(i);
        }
        ends
    }

    proptest! {
        #[test]
        fn pieces_make_up_the_text(text in "\\PC*|[ \t\n\r'sdlvetm0-9a-zÀ-ɏ🚀!-]{0,40}") {
            for family in
                [PreTokeniser::Default, PreTokeniser::Gpt2, PreTokeniser::Llama3, PreTokeniser::Qwen2]
            {
                let pieces = split(family, &text);
                prop_assert!(pieces.iter().all(|p| !p.is_empty()));
                prop_assert_eq!(pieces.concat(), text.as_str());
            }
        }

        #[test]
        fn white_space_follows_the_published_rule(text in "([ \t\n\u{a0}]{0,4}[a!]){0,6}[ \n]{0,3}") {
            // Words of one character, alternating kinds, so that only white space is in question.
            let mut text = text;
            while text.contains("aa") || text.contains("!!") {
                text = text.replace("aa", "a!").replace("!!", "!a");
            }
            let mut at = 0;
            let ends: Vec<usize> = split(PreTokeniser::Gpt2, &text)
                .iter()
                .map(|piece| { at += piece.chars().count(); at })
                .collect();
            prop_assert_eq!(ends, ends_of_spaces(&text));
        }
    }
}
