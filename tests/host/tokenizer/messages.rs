//! Messages are always text: only the template writes control tokens, and decoding returns all other text unchanged.

use std::sync::LazyLock;

use proptest::test_runner::TestCaseError;

use super::*;

/// A vocabulary of difficult control tokens: within, overlapping and next to one another, of one character, of a word,
/// and user-defined tokens with the same beginning.
const TROUBLE: [(&str, i32); 11] = [
    ("<|eot_id|>", CONTROL),
    ("<|eot_id|><|sep|>", CONTROL),
    ("<|sep|>", CONTROL),
    ("|><|", CONTROL),
    ("☺", CONTROL),
    ("<unk>", UNKNOWN),
    ("END", CONTROL),
    ("<x", USER_DEFINED),
    ("<x|>", CONTROL),
    ("<think>", USER_DEFINED),
    ("</think>", USER_DEFINED),
];

/// A template of a reasoning model: it removes the reasoning from answers.
const THINKING: &str = "{%- for message in messages %}
{%- if message.role == 'assistant' and '</think>' in message.content %}
{%- set answer = message.content.split('</think>')[-1].lstrip('\n') %}
{%- elif message.content.startswith('<tool_response>') %}
{%- set answer = '<response/>' %}
{%- else %}
{%- set answer = message.content %}
{%- endif %}
{{- '<|im_start|>' + message['role'] + '\n' + answer + '<|im_end|>' }}
{%- endfor %}";

/// A template of a model whose control tokens name the roles.
const NAMES: &str = "{% for m in messages %}{{ '<|' ~ m.role ~ '|>\n' ~ m.content ~ '<|end|>\n' }}\
    {% endfor %}";

/// A template with control tokens directly before and after the content.
const CLOSE: &str = "{% for m in messages %}{{ '<|eot_id|>' ~ m.content ~ '<|sep|>' }}{% endfor %}";

struct Family {
    name: &'static str,
    vocabulary: Vocabulary,
    tokenizer: Tokenizer,
    template: ChatTemplate,
    /// The template's text for the content of a role.
    reads: Reads,
}

type Reads = fn(role: &str, content: &str) -> String;

fn as_it_is(_: &str, content: &str) -> String {
    content.to_owned()
}

fn trimmed(_: &str, content: &str) -> String {
    content.trim().to_owned()
}

/// The rule of [`THINKING`], in Rust.
fn thoughtless(role: &str, content: &str) -> String {
    match content.rsplit_once("</think>") {
        Some((_, answer)) if role == "assistant" => answer.trim_start_matches('\n').to_owned(),
        _ if content.starts_with("<tool_response>") => "<response/>".to_owned(),
        _ => content.to_owned(),
    }
}

const ROLES: [&str; 3] = ["user", "assistant", "system"];

impl Family {
    fn new(name: &'static str, vocabulary: Vocabulary, reads: Reads) -> Self {
        let template = ChatTemplate::new(&vocabulary).unwrap();
        let tokenizer = Tokenizer::new(vocabulary.clone()).unwrap();
        Self { name, vocabulary, tokenizer, template, reads }
    }

    fn all() -> Vec<Self> {
        let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vocab");
        let file = |name: &str, template: Option<&str>| {
            let file = Gguf::open(data.join(name)).unwrap();
            let vocabulary = Vocabulary::from_metadata(file.metadata()).unwrap();
            Vocabulary { chat_template: template.map(str::to_owned), ..vocabulary }
        };
        let troubled = |pre, more: &[&str], template: Option<&str>| {
            let more: Vec<_> = more.iter().map(|text| (*text, CONTROL)).collect();
            let vocabulary = vocabulary(pre, &HELLO, &[&TROUBLE[..], &more].concat());
            Vocabulary { chat_template: template.map(str::to_owned), ..vocabulary }
        };
        let chatml = |pre| troubled(pre, &["<|im_start|>", "<|im_end|>"], None);
        let roles = ["<|system|>", "<|user|>", "<|assistant|>", "<|end|>"];
        vec![
            Self::new("Llama 3", file("llama-bpe.gguf", None), trimmed),
            Self::new("Qwen2", file("qwen2.gguf", None), as_it_is),
            Self::new("Qwen2, thinking", file("qwen2.gguf", Some(THINKING)), thoughtless),
            Self::new("GPT-2", chatml("gpt-2"), as_it_is),
            Self::new("no pre-tokeniser", chatml(""), as_it_is),
            Self::new("Llama 3 in trouble", chatml("llama-bpe"), as_it_is),
            Self::new("roles", troubled("default", &roles, Some(NAMES)), as_it_is),
            Self::new("close", troubled("qwen2", &[], Some(CLOSE)), as_it_is),
        ]
    }

    fn specials(&self) -> Vec<&str> {
        let kinds = self.vocabulary.token_types.iter();
        let special =
            |(text, kind): (_, &i32)| (*kind != NORMAL && *kind != UNUSED).then_some(text);
        self.vocabulary.tokens.iter().zip(kinds).filter_map(special).collect()
    }

    fn ids(&self, messages: &[Message]) -> Vec<u32> {
        let rendered = self.template.render(messages, &RenderOptions::answer(), &NEVER).unwrap();
        let bounds = Bounds { tokens: usize::MAX, cancelled: &NEVER };
        self.tokenizer.encode_rendered(&rendered, &bounds).unwrap()
    }

    fn control(&self, ids: &[u32]) -> Vec<u32> {
        let kind = |id: u32| self.vocabulary.token_types[id as usize];
        let control = |id: &u32| [CONTROL, UNKNOWN].contains(&kind(*id));
        ids.iter().copied().filter(|id| control(id) || self.tokenizer.is_control(*id)).collect()
    }

    /// Compares messages with these `contents` with harmless ones.
    fn check(&self, contents: &[String]) -> Result<(), TestCaseError> {
        let harmless: Vec<String> = (0..contents.len()).map(|at| format!("({at})")).collect();
        let roles = || ROLES.into_iter().cycle();
        let ids = |contents: &[String]| {
            let messages = roles().zip(contents).map(|(role, content)| Message::new(role, content));
            self.ids(&messages.collect::<Vec<_>>())
        };
        let (expected, ids) = (ids(&harmless), ids(contents));
        let control = self.control(&expected);
        prop_assert!(control.len() >= contents.len(), "{}", self.name);
        prop_assert_eq!(self.control(&ids), control, "{}", self.name);
        let mut text = self.tokenizer.decode(&expected);
        for ((role, content), harmless) in roles().zip(contents).zip(&harmless) {
            text = text.replacen(harmless, &(self.reads)(role, content), 1);
        }
        prop_assert_eq!(self.tokenizer.decode(&ids), text, "{}", self.name);
        Ok(())
    }
}

#[test]
fn no_message_can_write_a_control_token() {
    for family in Family::all() {
        let specials = family.specials();
        assert!(specials.len() >= 3, "{}: {specials:?}", family.name);
        for token in specials {
            let rest: String = token.chars().skip(1).collect();
            for content in [
                token.to_owned(),
                format!(" {token}\n"),
                format!("a{token}b {token}{token}"),
                format!("{token}{rest}"),
                format!("<|{token}|>"),
            ] {
                family.check(&[content]).unwrap();
            }
        }
    }
}

/// A piece of a message: a special token or a part of one, white space, a word, a noncharacter.
fn fragment(specials: &[&str], kind: u8, one: prop::sample::Index, other: usize) -> String {
    let token = *one.get(specials);
    let characters = token.chars().count();
    let at = other % characters;
    match kind {
        0 | 1 => token.to_owned(),
        2 => token.chars().take(at).collect(),
        3 => token.chars().skip(at).collect(),
        4 => token.chars().skip(at).take(1).collect(),
        5 => [" ", "\n", "\t ", "\u{3000}"][other % 4].to_owned(),
        6 => ["hello", "END", "☺", "é", "</think>", "<tool_response>"][other % 6].to_owned(),
        _ => ["\u{fdd0}", "\u{fdd1}", "\u{10ffff}"][other % 3].to_owned(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn each_message_is_text(
        messages in prop::collection::vec(
            prop::collection::vec((0u8..8, any::<prop::sample::Index>(), 0usize..64), 1..8), 1..5),
    ) {
        static FAMILIES: LazyLock<Vec<Family>> = LazyLock::new(Family::all);
        for family in FAMILIES.iter() {
            let specials = family.specials();
            let content = |fragments: &Vec<_>| {
                let fragments = fragments.iter();
                let text: String =
                    fragments.map(|(kind, one, other)| fragment(&specials, *kind, *one, *other)).collect();
                // Around an empty message the template's tokens would be adjacent.
                if text.is_empty() { ".".to_owned() } else { text }
            };
            family.check(&messages.iter().map(content).collect::<Vec<_>>())?;
        }
    }

    #[test]
    fn adjacent_messages_are_text(
        contents in prop::collection::vec(prop::collection::vec(
            (0u8..6, any::<prop::sample::Index>(), 0usize..64), 1..3), 1..6),
    ) {
        let alone = "{% for m in messages %}{{ m.content }}{% endfor %}";
        let behind = "{% for m in messages %}{{ '<|' ~ m.content | trim ~ '.' }}{% endfor %}";
        let before = "{% for m in messages %}{{ '.' ~ m.content | trim ~ '_id|>' }}{% endfor %}";
        for template in [alone, behind, before] {
            let vocabulary = vocabulary("gpt-2", &HELLO, &TROUBLE);
            let vocabulary = Vocabulary { chat_template: Some(template.into()), ..vocabulary };
            let family = Family::new("nothing written", vocabulary, as_it_is);
            let specials = family.specials();
            let content = |fragments: &Vec<_>| -> String {
                let fragments = fragments.iter();
                fragments.map(|(kind, one, other)| fragment(&specials, *kind, *one, *other)).collect()
            };
            let messages: Vec<Message> =
                contents.iter().map(|parts| Message::new("user", content(parts))).collect();
            let ids = family.ids(&messages);
            prop_assert_eq!(family.control(&ids), [0u32; 0], "{} {:?}", template, messages);
        }
    }
}

#[test]
fn user_defined_tokens_are_recognised_in_messages() {
    let vocabulary = vocabulary("gpt-2", &[], &TROUBLE);
    let ids = |tokens: &[&str]| -> Vec<u32> { tokens.iter().map(|t| id(&vocabulary, t)).collect() };
    let ask = |template: &str, content: &str| {
        let chat_template = Some(template.to_owned());
        let vocabulary = Vocabulary { chat_template, ..vocabulary.clone() };
        Family::new("", vocabulary, as_it_is).ids(&[Message::new("user", content)])
    };
    let plain = "{{ messages[0].content }}";
    assert_eq!(ask(plain, "<think>☺"), [id(&vocabulary, "<think>"), 0xe2, 0x98, 0xba]);
    // The shorter token is user-defined, so it is recognised; the longer one is a control token.
    assert_eq!(ask(plain, "<x|>"), ids(&["<x", "|", ">"]));
    assert_eq!(ask("<x|>", ""), ids(&["<x|>"]));
    // The template's token, although a longer one begins at the same place.
    let written = ask("{{ '<|eot_id|>' ~ messages[0].content }}", "<|sep|>");
    assert_eq!(written, [ids(&["<|eot_id|>"]), ids(&["<", "|", "s", "e", "p", "|", ">"])].concat());
    assert_eq!(ask("<|eot_id|><|sep|>", "x"), ids(&["<|eot_id|><|sep|>"]));
}

#[test]
fn the_sentinel_is_an_unused_character() {
    let noncharacters: String = (0xfdd0..=0xfdef)
        .chain((0..=0x10).flat_map(|plane| [plane << 16 | 0xfffe, plane << 16 | 0xffff]))
        .filter_map(char::from_u32)
        .collect();
    assert_eq!(noncharacters.chars().count(), 66);
    let ask = |used: &str| {
        let template = "\u{fdd0}{{ messages[0].content | trim }}\u{fdd1}".to_owned();
        let vocabulary =
            Vocabulary { chat_template: Some(template), ..vocabulary("gpt-2", &HELLO, &TROUBLE) };
        let family = Family::new("", vocabulary, as_it_is);
        let messages = [Message::new("user", format!(" {used}<|eot_id|> "))];
        let text =
            family.template.render(&messages, &RenderOptions::answer(), &NEVER)?.text().to_owned();
        assert_eq!(text, format!("\u{fdd0}{used}<|eot_id|>\u{fdd1}"));
        assert_eq!(family.control(&family.ids(&messages)), [0u32; 0]);
        Ok::<_, Error>(())
    };
    ask("\u{fdd0}\u{fdd2}").unwrap();
    let all_but_one = noncharacters.replace('\u{afffe}', "");
    ask(&all_but_one).unwrap();
    let error = ask(&noncharacters).unwrap_err();
    assert!(matches!(error, Error::NoSentinel), "{error}");
}

#[test]
fn words_and_merges_produce_no_control_token() {
    let merges = [("E", "O"), ("EO", "T")];
    for pre in ["llama-bpe", "gpt-2"] {
        let mut vocabulary = vocabulary(pre, &merges, &[]);
        let (eo, eot) = (id(&vocabulary, "EO"), id(&vocabulary, "EOT"));
        for kind in [CONTROL, UNKNOWN, UNUSED] {
            vocabulary.token_types[eot as usize] = kind;
            let tokenizer = Tokenizer::new(vocabulary.clone()).unwrap();
            let plain = tokenizer.encode("EOT", Specials::Plain, false).unwrap();
            assert_eq!(plain, [eo, u32::from(b'T')], "{pre} {kind}");
            assert_eq!(tokenizer.decode(&plain), "EOT");
        }
        vocabulary.token_types[usize::from(b'q')] = CONTROL;
        let tokenizer = Tokenizer::new(vocabulary).unwrap();
        let error = tokenizer.encode("q", Specials::Plain, false).unwrap_err();
        assert!(matches!(error, Error::NoToken { byte: b'q', offset: 0 }), "{error}");
    }
}
