//! Where text is cut before byte-pair merges are looked for, in stages ([`super::patterns`] says
//! which).
//!
//! The published patterns end in `\s+(?!\S)|\s+`, a look-ahead that needs a backtracking engine,
//! with a stack that one long run of spaces exhausts. Here the other alternatives are a linear-time
//! `regex`, and those two are the rule of [`Stage::Words`] for what lies between its matches.

use regex::Regex;

#[derive(Debug)]
pub(super) enum Stage {
    /// Matches and what lies between them are both pieces.
    Isolate(Regex),
    /// Matches are pieces, and so is what lies between them, but that runs of white space in it
    /// are pieces of their own, and their last character too when something follows that did not
    /// take it: `\s+(?!\S)|\s+`.
    Words(Regex),
}

/// Cuts text into the pieces that byte-pair encoding works on, in time linear in its length.
#[derive(Debug)]
pub(super) struct Splitter {
    stages: Vec<Stage>,
}

impl Splitter {
    /// One that cuts by `stages`, each applied to the pieces of the one before.
    pub(super) const fn new(stages: Vec<Stage>) -> Self {
        Self { stages }
    }

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
        let mut end = 0;
        for found in regex.find_iter(text) {
            let taken = found.as_str().starts_with(char::is_whitespace);
            self.between(&text[end..found.start()], !taken, each)?;
            each(found.as_str())?;
            end = found.end();
        }
        self.between(&text[end..], false, each)
    }

    /// Cuts what lies in front of a match, or at the end. Its white space at the end is `followed`
    /// by something else that is not white space.
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
            let (run, behind) = rest.split_at(length);
            let last = run.char_indices().next_back().map_or(0, |(last, _)| last);
            let gives = is_space && (followed || !behind.is_empty());
            if matches!(self, Self::Words(_)) && gives && last > 0 {
                each(&run[..last])?;
                each(&run[last..])?;
            } else {
                each(run)?;
            }
            rest = behind;
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
        // Contractions in lower case only.
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
        // \p{N} holds more than digits, \p{L} every script; a mark is neither.
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

    #[test]
    fn deepseek3_splits() {
        let split = |text| split(Rule::Deepseek3, text);
        assert_eq!(split("#include 12345日本x"), ["#include", " ", "123", "45", "日本", "x"]);
        // What no alternative takes is a piece of its own, beside the white space.
        assert_eq!(split("\0\0  \0a \0"), ["\0\0", " ", " ", "\0a", " ", "\0"]);
    }

    #[test]
    fn words_of_case() {
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
        fn pieces_make_up_the_text(text in "\\PC*|[ \t\n\r'sdlvetm0-9a-zÀ-ɏ🚀!-]{0,40}") {
            for family in RULES {
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
            let ends: Vec<usize> = split(Rule::Gpt2, &text)
                .iter()
                .map(|piece| { at += piece.chars().count(); at })
                .collect();
            prop_assert_eq!(ends, ends_of_spaces(&text));
        }
    }
}
