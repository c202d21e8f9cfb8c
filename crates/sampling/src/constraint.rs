//! Grammar-constrained decoding: computes the tokens that a grammar allows next, with llguidance.
//!
//! A grammar is compiled once per request, outside the engine thread. The mask of the next token depends on the
//! tokens before it. It is computed before the step that applies it, or during that step if the host applies it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use llguidance::api::{GrammarWithLexer, ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{ApproximateTokEnv, SimpleVob, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use model::tokenizer::Tokenizer;
use serde_json::Value;

use crate::{gbnf, schema};

/// Largest source of a grammar, in bytes.
const SOURCE: usize = 256 << 10;

/// Format that an answer must have.
#[derive(Clone, Debug, PartialEq)]
pub enum Grammar {
    /// JSON that matches a schema.
    JsonSchema(Value),
    Regex(String),
    /// Grammar in llguidance's dialect of Lark.
    Lark(String),
    /// Grammar in llama.cpp's notation.
    Gbnf(String),
    /// Lark grammar that refers to others by `@name`.
    Within {
        lark: String,
        parts: Vec<(String, Grammar)>,
    },
}

impl Grammar {
    /// Grammar from its source, in GBNF or Lark.
    #[must_use]
    pub fn written(text: String) -> Self {
        if gbnf::is_gbnf(&text) { Self::Gbnf(text) } else { Self::Lark(text) }
    }

    /// Size of the source in bytes.
    fn size(&self) -> usize {
        match self {
            Self::JsonSchema(schema) => schema.to_string().len(),
            Self::Regex(text) | Self::Lark(text) | Self::Gbnf(text) => text.len(),
            Self::Within { lark, parts } => {
                lark.len() + parts.iter().map(|(_, part)| part.size()).sum::<usize>()
            }
        }
    }

    fn without_parts(&self) -> Result<GrammarWithLexer, String> {
        Ok(match self {
            Self::JsonSchema(schema) => {
                let schema = schema::prepare(schema.clone(), SOURCE)?;
                GrammarWithLexer::from_json_schema(spaced(schema))
            }
            Self::Regex(regex) => GrammarWithLexer::from_regex(regex),
            Self::Lark(lark) | Self::Within { lark, .. } => {
                GrammarWithLexer::from_lark(lark.clone())
            }
            Self::Gbnf(text) => GrammarWithLexer::from_lark(gbnf::to_lark(text)?),
        })
    }

    /// Grammar in llguidance's form, with those that it refers to.
    fn translated(&self) -> Result<TopLevelGrammar, String> {
        let mut top = TopLevelGrammar::from_grammar(self.without_parts()?);
        if let Self::Within { parts, .. } = self {
            for (name, part) in parts {
                top.grammars
                    .push(GrammarWithLexer { name: Some(name.clone()), ..part.without_parts()? });
            }
        }
        Ok(top)
    }
}

/// Allows at most one space between the parts of JSON: a model could otherwise generate white space forever.
fn spaced(mut schema: Value) -> Value {
    if let Value::Object(map) = &mut schema {
        let options = serde_json::json!({
            "whitespace_flexible": false, "item_separator": ", ?", "key_separator": ": ?",
        });
        map.entry("x-guidance").or_insert(options);
    }
    schema
}

/// Compiler of grammars for one tokenizer.
pub struct Grammars {
    tokenizer: Arc<Tokenizer>,
    /// Created on first use: it contains a trie of all tokens.
    factory: OnceLock<Result<ParserFactory, String>>,
}

impl fmt::Debug for Grammars {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

impl Grammars {
    pub const fn new(tokenizer: Arc<Tokenizer>) -> Self {
        Self { tokenizer, factory: OnceLock::new() }
    }

    /// Compiles a grammar into the constraint of one answer.
    ///
    /// # Errors
    /// The grammar is invalid, or compiling it exceeds the limits.
    pub fn compile(&self, grammar: &Grammar) -> Result<Constraint, String> {
        let size = grammar.size();
        if size > SOURCE {
            return Err(format!("has {size} bytes, limit {SOURCE}"));
        }
        let factory = self.factory.get_or_init(|| self.factory());
        let factory = factory.as_ref().map_err(Clone::clone)?;
        let mut matcher = Matcher::new(factory.create_parser(grammar.translated()?));
        if let Some(error) = matcher.get_error() {
            return Err(first_lines(&error));
        }
        // An expensive grammar exceeds its limits at the first mask.
        matcher.compute_mask().map_err(|error| first_lines(&error.to_string()))?;
        let ends: Arc<[u32]> = self.tokenizer.end_ids().collect();
        Ok(Constraint { matcher, next: None, ends })
    }

    fn factory(&self) -> Result<ParserFactory, String> {
        let tokenizer = &self.tokenizer;
        let size = tokenizer.vocab_size() as u32;
        let token = |id: u32| {
            let bytes = tokenizer.token_bytes(id).unwrap_or_default();
            // Grammars refer to control tokens by number only, not by text.
            let mark = tokenizer.is_control(id) || tokenizer.is_end(id);
            let mark = mark.then_some(TokTrie::SPECIAL_TOKEN_MARKER);
            mark.into_iter().chain(bytes.iter().copied()).collect()
        };
        let tokens: Vec<Vec<u8>> = (0..size).map(token).collect();
        let Some(end) = tokenizer.end_ids().next() else {
            return Err("the model has no end-of-sequence token".into());
        };
        let trie = TokTrie::from(&TokRxInfo::new(size, end), &tokens);
        let environment: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let mut factory = ParserFactory::new_simple(&environment).map_err(|e| e.to_string())?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            initial_lexer_fuel: 500_000,
            step_lexer_fuel: 100_000,
            max_lexer_states: 15_000,
            max_grammar_size: 100_000,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        Ok(factory)
    }
}

/// First lines of an error, without the grammar and the parser state that follow.
fn first_lines(error: &str) -> String {
    let lines: Vec<&str> = error.lines().take(3).map(str::trim).collect();
    lines.join(" ").chars().take(500).collect()
}

/// Parser state of one answer in its grammar.
pub struct Constraint {
    matcher: Matcher,
    /// Mask of the next token, once computed.
    next: Option<Result<SimpleVob, String>>,
    /// End-of-sequence tokens.
    ends: Arc<[u32]>,
}

impl Clone for Constraint {
    fn clone(&self) -> Self {
        let (matcher, ends) = (self.matcher.deep_clone(), Arc::clone(&self.ends));
        Self { matcher, next: None, ends }
    }
}

impl fmt::Debug for Constraint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Constraint").finish_non_exhaustive()
    }
}

impl Constraint {
    /// Computes the mask of the next token, if it is not computed yet.
    pub(crate) fn look_ahead(&mut self) {
        self.allowed();
    }

    fn allowed(&mut self) -> &Result<SimpleVob, String> {
        self.next.get_or_insert_with(|| {
            self.matcher.compute_mask_or_eos().map_err(|e| first_lines(&e.to_string()))
        })
    }

    /// Writes the mask of the next token in the form of [`plan::sample::Adjustment`]. It contains the
    /// end-of-sequence tokens if the answer may end.
    pub(crate) fn mask(&mut self, vocabulary: usize, mask: &mut Vec<i32>) -> Result<(), String> {
        let ends = Arc::clone(&self.ends);
        let allowed = self.allowed().as_ref().map_err(Clone::clone)?;
        let may_end = ends.iter().any(|end| allowed.is_allowed(*end));
        mask.clear();
        mask.extend(allowed.as_slice().iter().map(|word| word.cast_signed()));
        // Ids beyond the tokenizer's are padding.
        mask.resize(allowed.len().div_ceil(32), 0);
        if let (Some(last), odd @ 1..) = (mask.last_mut(), allowed.len() % 32) {
            *last &= (1 << odd) - 1;
        }
        mask.resize(vocabulary.div_ceil(32), 0);
        for end in ends.iter().filter(|_| may_end) {
            if let Some(word) = mask.get_mut(*end as usize / 32) {
                *word |= 1 << (end % 32);
            }
        }
        Ok(())
    }

    /// Appends a token. True if nothing may follow.
    pub(crate) fn accept(&mut self, id: u32) -> Result<bool, String> {
        self.next = None;
        if self.ends.contains(&id) {
            return Ok(true);
        }
        self.matcher.consume_token(id).map_err(|e| first_lines(&e.to_string()))?;
        Ok(self.matcher.is_stopped())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use model::tokenizer::Vocabulary;
    use plan::sample::Adjustment;
    use serde_json::json;

    /// Ids of the allowed next tokens, ascending.
    fn allowed(constraint: &mut Constraint) -> Vec<u32> {
        let (mut mask, mut logits) = (Vec::new(), vec![0.0; 262]);
        constraint.mask(262, &mut mask).unwrap();
        Adjustment { edits: &[], mask: Some(&mask) }.apply(&mut logits);
        (0..262).filter(|id| logits[*id as usize] == 0.0).collect()
    }

    /// Vocabulary of all bytes, some longer tokens, and an end-of-sequence token.
    fn grammars() -> Grammars {
        let bytes = (0..=255u8).map(|byte| match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => char::from(byte).to_string(),
            _ => String::new(),
        });
        let mut next = 0x100;
        let bytes = bytes.map(|text| match text.is_empty() {
            false => text,
            true => {
                next += 1;
                char::from_u32(next - 1).unwrap().to_string()
            }
        });
        let pieces = ["true", "{\"", "\":", "1}", "<|im_end|>", "<|x|>"].map(str::to_owned);
        let mut token_types = vec![1; 260];
        token_types.extend([3, 3]);
        let vocabulary = Vocabulary {
            model: "gpt2".into(),
            pre: Some("gpt-2".into()),
            tokens: bytes.chain(pieces).collect(),
            token_types,
            ..Vocabulary::default()
        };
        Grammars::new(Arc::new(Tokenizer::new(vocabulary).unwrap()))
    }

    /// Text of an answer that always appends the allowed token with the highest id.
    fn walk(grammars: &Grammars, constraint: &mut Constraint, most: usize) -> String {
        let mut ids = Vec::new();
        for _ in 0..most {
            let id = allowed(constraint).pop().unwrap();
            ids.push(id);
            if constraint.accept(id).unwrap() {
                break;
            }
        }
        grammars.tokenizer.decode(&ids)
    }

    #[test]
    fn answers_match_their_grammars() {
        let grammars = grammars();
        let schema = json!({"type": "object", "properties": {"a": {"const": 1}},
            "required": ["a"], "additionalProperties": false});
        let mut constraint = grammars.compile(&Grammar::JsonSchema(schema.clone())).unwrap();
        let mut again = constraint.clone();
        let text = walk(&grammars, &mut constraint, 50);
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), json!({"a": 1}));
        assert_eq!(walk(&grammars, &mut again, 50), text, "a clone has the state of its original");
        let mut regex = grammars.compile(&Grammar::Regex("(ab){3}".into())).unwrap();
        assert_eq!(walk(&grammars, &mut regex, 50), "ababab");
        let lark = "start: \"x\" @inner <[261]>\n".to_owned();
        let parts = vec![("inner".into(), Grammar::JsonSchema(schema))];
        let mut within = grammars.compile(&Grammar::Within { lark, parts }).unwrap();
        let text = walk(&grammars, &mut within, 50);
        let inner = text.strip_prefix('x').unwrap();
        assert_eq!(serde_json::from_str::<Value>(inner).unwrap(), json!({"a": 1}));
    }

    /// True if a grammar accepts a complete text, byte by byte.
    fn takes(grammars: &Grammars, grammar: &Grammar, text: &str) -> bool {
        let mut constraint = grammars.compile(grammar).unwrap();
        for (at, byte) in text.bytes().enumerate() {
            let id = u32::from(byte);
            if !allowed(&mut constraint).contains(&id) {
                return false;
            }
            if constraint.accept(id).unwrap() {
                return at + 1 == text.len();
            }
        }
        allowed(&mut constraint).contains(&260)
    }

    /// Some of these grammars are llama.cpp's own examples.
    #[test]
    fn gbnf_grammars_accept_the_same_texts_as_in_llama_cpp() {
        let grammars = grammars();
        let arithmetic = "root ::= (expr \"=\" ws term \"\\n\")+\n\
             expr ::= term ([-+*/] term)*\n\
             term ::= ident | num | \"(\" ws expr \")\" ws\n\
             ident ::= [a-z] [a-z0-9_]* ws\n\
             num ::= [0-9]+ ws\n\
             ws ::= [ \\t]*\n";
        let chess = "root ::= \"1. \" move \" \" move \"\\n\"\n\
             move ::= (pawn | nonpawn | castle) [+#]?\n\
             nonpawn ::= [NBKQR] [a-h]? [1-8]? \"x\"? [a-h] [1-8]\n\
             pawn ::= ([a-h] \"x\")? [a-h] [1-8] (\"=\" [NBKQR])?\n\
             castle ::= \"O-O\" \"-O\"?";
        let until = "root ::= [a-z]* \"end\"";
        for (grammar, text, fits) in [
            (arithmetic, "a=1\n", true),
            (arithmetic, "(a+2) *b = 7\n", true),
            (arithmetic, "(a+2 = 7\n", false),
            (chess, "1. e4 Nf6\n", true),
            (chess, "1. exd8=Q+ O-O-O#\n", true),
            (chess, "1. e9 e5\n", false),
            (until, "enxend", true),
            (until, "enx", false),
            ("root ::= \"a\"{2} . [^b]", "aa\nc", true),
            ("root ::= \"a\"{2} . [^b]", "aaxb", false),
            ("root ::= \"\" | \"\\u00e9\"", "é", true),
        ] {
            let written = Grammar::written(grammar.to_owned());
            assert_eq!(takes(&grammars, &written, text), fits, "{grammar}: {text:?}");
        }
    }

    #[test]
    fn free_text_ends_at_its_suffix() {
        let grammars = grammars();
        let lark = "start: a \"!\"\na[suffix=\"]\"]: /(.|\\n)*/\n".to_owned();
        let mut constraint = grammars.compile(&Grammar::Lark(lark)).unwrap();
        for id in "x y]!".bytes() {
            let id = grammars
                .tokenizer
                .encode(&char::from(id).to_string(), model::tokenizer::Specials::Plain, false)
                .unwrap()[0];
            assert!(allowed(&mut constraint).contains(&id));
            let stops = constraint.accept(id).unwrap();
            assert_eq!(stops, id == u32::from(b'!'));
        }
    }

    /// The first byte of each file of the corpus selects the notation.
    #[test]
    fn grammars_of_the_fuzz_corpus_compile_or_are_rejected() {
        let grammars = grammars();
        let corpus = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fuzz/corpus/grammar");
        let mut compiled = 0;
        for entry in std::fs::read_dir(corpus).unwrap() {
            let data = std::fs::read(entry.unwrap().path()).unwrap();
            let text = String::from_utf8_lossy(&data[1..]).into_owned();
            let grammar = match data[0] % 3 {
                0 => Grammar::written(text),
                1 => Grammar::Regex(text),
                _ => Grammar::JsonSchema(serde_json::from_str(&text).unwrap()),
            };
            match grammars.compile(&grammar) {
                Ok(_) => compiled += 1,
                Err(said) => assert!((1..600).contains(&said.len()), "{said}"),
            }
        }
        assert!(compiled >= 4, "{compiled}");
    }

    /// A grammar that compiles also has its first mask.
    #[test]
    fn hostile_grammars_are_rejected_or_cheap() {
        let grammars = grammars();
        let deep = "(".repeat(100_000);
        let names: Vec<String> = (0..200_000).map(|i| format!("name {i}")).collect();
        for grammar in [
            Grammar::Regex(deep),
            Grammar::Regex("(".into()),
            Grammar::JsonSchema(json!({"enum": names})),
            Grammar::JsonSchema(json!({"type": "nothing"})),
            Grammar::JsonSchema(json!({"$ref": "http://example.org/schema"})),
            Grammar::Lark("start: missing".into()),
            Grammar::Lark("nothing".into()),
            Grammar::Lark("x".repeat(SOURCE + 1)),
        ] {
            let said = grammars.compile(&grammar).unwrap_err();
            assert!((1..600).contains(&said.len()), "{said}");
        }
        let mut exponential = json!({"type": "string"});
        for _ in 0..40 {
            exponential = json!({"allOf": [
                {"anyOf": [{"type": "string"}, {"type": "number"}]}, exponential,
            ]});
        }
        let many = json!({"type": "array", "minItems": 1_000_000_000_u64, "items": {}});
        let recursive =
            json!({"$ref": "#/$defs/a", "$defs": {"a": {"anyOf": [{"$ref": "#/$defs/a"}]}}});
        for grammar in [
            Grammar::Regex("((((a{1,999}){1,999}){1,999}){1,999}){1,999}".into()),
            Grammar::Regex("(a|b)*a(a|b){100000}".into()),
            Grammar::JsonSchema(exponential),
            Grammar::JsonSchema(many),
            Grammar::JsonSchema(recursive),
        ] {
            if let Ok(mut constraint) = grammars.compile(&grammar) {
                assert_eq!(constraint.mask(262, &mut Vec::new()), Ok(()));
            }
        }
    }
}
