//! Splits text into the pieces that byte-pair merges work on, in passes that [`super::patterns`] defines.
//!
//! The published patterns end in `\s+(?!\S)|\s+`. This look-ahead needs a backtracking engine, whose stack one long
//! run of spaces exhausts. Here a linear-time `regex` matches the other alternatives, and [`Pass::Words`] implements
//! these two for the text between the matches.

use regex::Regex;

#[derive(Debug)]
pub(super) enum Pass {
    /// Matches are pieces, and so is the text between them.
    Isolate(Regex),
    /// The same, but runs of white space between matches are separate pieces. If other text follows that does not
    /// include the last character of such a run, that character is a piece of its own: `\s+(?!\S)|\s+`.
    Words(Regex),
}

/// Splits text in time linear in its length.
#[derive(Debug)]
pub(super) struct Splitter {
    passes: Vec<Pass>,
}

impl Splitter {
    /// A splitter that applies each pass to the pieces of the previous one.
    pub(super) const fn new(passes: Vec<Pass>) -> Self {
        Self { passes }
    }

    /// Calls `each` with the pieces of `text` in order. None is empty, and together they are the text. They are not
    /// collected, so a long text needs no memory here.
    ///
    /// # Errors
    /// Returns the first error of `each`, and stops.
    pub(super) fn split<'t, E>(
        &self,
        text: &'t str,
        each: &mut dyn FnMut(&'t str) -> Result<(), E>,
    ) -> Result<(), E> {
        cut(&self.passes, text, each)
    }
}

fn cut<'t, E>(
    passes: &[Pass],
    text: &'t str,
    each: &mut dyn FnMut(&'t str) -> Result<(), E>,
) -> Result<(), E> {
    match passes {
        [] => each(text),
        [pass, finer @ ..] => pass.cut(text, &mut |piece| cut(finer, piece, each)),
    }
}

impl Pass {
    fn cut<'t, E>(
        &self,
        text: &'t str,
        each: &mut dyn FnMut(&'t str) -> Result<(), E>,
    ) -> Result<(), E> {
        let (Self::Isolate(regex) | Self::Words(regex)) = self;
        let mut end = 0;
        for found in regex.find_iter(text) {
            let includes_space = found.as_str().starts_with(char::is_whitespace);
            self.between(&text[end..found.start()], !includes_space, each)?;
            each(found.as_str())?;
            end = found.end();
        }
        self.between(&text[end..], false, each)
    }

    /// Splits the text before a match, or after the last. `followed` is true if a match follows that does not begin
    /// with white space.
    fn between<'t, E>(
        &self,
        gap: &'t str,
        followed: bool,
        each: &mut dyn FnMut(&'t str) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut rest = gap;
        while let Some(first) = rest.chars().next() {
            let is_space = first.is_whitespace();
            let length = match self {
                Self::Isolate(_) => rest.len(),
                Self::Words(_) => {
                    rest.find(|other: char| other.is_whitespace() != is_space).unwrap_or(rest.len())
                }
            };
            let (run, after) = rest.split_at(length);
            let last = run.char_indices().next_back().map_or(0, |(last, _)| last);
            let splits = is_space && (followed || !after.is_empty());
            if matches!(self, Self::Words(_)) && splits && last > 0 {
                each(&run[..last])?;
                each(&run[last..])?;
            } else {
                each(run)?;
            }
            rest = after;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use crate::tokenizer::patterns::Rule;

    fn split(family: Rule, text: &str) -> Vec<&str> {
        let mut pieces = Vec::new();
        let mut push = |piece| {
            pieces.push(piece);
            Ok::<_, ()>(())
        };
        family.splitter().unwrap().split(text, &mut push).unwrap();
        pieces
    }

    #[test]
    fn gpt2_splits() {
        let split = |text| split(Rule::Gpt2, text);
        assert_eq!(split("Hello  world 12345!?"), ["Hello", " ", " world", " 12345", "!?"]);
        // Only lower-case contractions.
        assert_eq!(split("I'm WE'RE"), ["I", "'m", " WE", "'", "RE"]);
        assert_eq!(split("a\n\nb"), ["a", "\n", "\n", "b"]);
        assert_eq!(split("a\n\n b"), ["a", "\n\n", " b"]);
        assert_eq!(split("\t\tx  "), ["\t", "\t", "x", "  "]);
        assert_eq!(split(""), [""; 0]);
    }

    #[test]
    fn llama3_splits() {
        let split = |text| split(Rule::Llama3, text);
        assert_eq!(split("1234567"), ["123", "456", "7"]);
        assert_eq!(split("I'LL go"), ["I", "'LL", " go"]);
        assert_eq!(split("\t\tfoo(x)"), ["\t", "\tfoo", "(x", ")"]);
        assert_eq!(split("a \n \n  b"), ["a", " \n \n", " ", " b"]);
        assert_eq!(split("  5"), [" ", " ", "5"]);
        assert_eq!(split("ok!\n\nnext"), ["ok", "!\n\n", "next"]);
    }

    #[test]
    fn qwen2_splits() {
        let split = |text| split(Rule::Qwen2, text);
        assert_eq!(split("in 2024"), ["in", " ", "2", "0", "2", "4"]);
        assert_eq!(split("you've DON'T"), ["you", "'ve", " DON", "'T"]);
        // \p{N} includes more than digits, \p{L} every script; marks are neither.
        assert_eq!(split("x²Ⅷ٣"), ["x", "²", "Ⅷ", "٣"]);
        assert_eq!(split("Привет, 世界"), ["Привет", ",", " 世界"]);
        assert_eq!(split("e\u{301}!"), ["e", "\u{301}!"]);
        assert_eq!(split("a\u{3000}\u{a0}b"), ["a", "\u{3000}", "\u{a0}b"]);
    }

    #[test]
    fn default_splits() {
        let split = |text| split(Rule::Default, text);
        assert_eq!(split("x=1234 + y"), ["x", "=", "123", "4", " ", "+", " y"]);
        assert_eq!(split("don't"), ["don", "'", "t"]);
    }

    /// The published pattern's rule for white space, character by character.
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

    #[test]
    fn deepseek3_splits() {
        let split = |text| split(Rule::Deepseek3, text);
        assert_eq!(split("#include 12345日本x"), ["#include", " ", "123", "45", "日本", "x"]);
        // Text that no alternative matches is a piece, separate from white space.
        assert_eq!(split("\0\0  \0a \0"), ["\0\0", " ", " ", "\0a", " ", "\0"]);
    }

    #[test]
    fn tekken_and_gpt4o_split_at_case() {
        let split = |text| split(Rule::Tekken, text);
        assert_eq!(split("fooBar DON'T ÉTÉété"), ["foo", "Bar", " DON", "'T", " ÉTÉété"]);
        assert_eq!(split("a/b//\n12"), ["a", "/b", "//\n", "1", "2"]);
        let split = |text| super::tests::split(Rule::Gpt4o, text);
        assert_eq!(split("fooBar DON'T 1234"), ["foo", "Bar", " DON'T", " ", "123", "4"]);
    }

    const RULES: [Rule; 12] = [
        Rule::Default,
        Rule::Gpt2,
        Rule::Digits,
        Rule::Falcon,
        Rule::Llama3,
        Rule::Qwen2,
        Rule::Qwen35,
        Rule::Tekken,
        Rule::Gpt4o,
        Rule::DeepseekLlm,
        Rule::DeepseekCoder,
        Rule::Deepseek3,
    ];

    proptest! {
        #[test]
        fn joined_pieces_equal_the_text(text in "\\PC*|[ \t\n\r'sdlvetm0-9a-zÀ-ɏ🚀!-]{0,40}") {
            for family in RULES {
                let pieces = split(family, &text);
                prop_assert!(pieces.iter().all(|p| !p.is_empty()));
                prop_assert_eq!(pieces.concat(), text.as_str());
            }
        }

        #[test]
        fn white_space_follows_the_published_rule(text in "([ \t\n\u{a0}]{0,4}[a!]){0,6}[ \n]{0,3}") {
            // Words of one character of alternating kinds, so that only the treatment of white space matters.
            let mut text = text;
            while text.contains("aa") || text.contains("!!") {
                text = text.replace("aa", "a!").replace("!!", "!a");
            }
            let mut at = 0;
            let ends: Vec<usize> = split(Rule::Gpt2, &text)
                .iter()
                .map(|piece| { at += piece.chars().count(); at })
                .collect();
            prop_assert_eq!(ends, ends_of_spaces(&text));
        }
    }
}
