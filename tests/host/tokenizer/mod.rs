//! The tokeniser through its public interface: compared with a naive BPE and with known ids, and with hostile
//! vocabularies and templates.

mod bounds;
mod corpus;
mod families;
mod greedy;
mod messages;
mod sentencepiece;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use model::gguf::{Gguf, Strings};
use model::tokenizer::{
    Bounds, Call, Calls, ChatTemplate, Detokeniser, Error, Message, Origin, RenderOptions,
    Specials, StopMatcher, Tokenizer, Vocabulary,
};
use proptest::prelude::*;

const NORMAL: i32 = 1;
const UNKNOWN: i32 = 2;
const CONTROL: i32 = 3;
const USER_DEFINED: i32 = 4;
const UNUSED: i32 = 5;

static NEVER: AtomicBool = AtomicBool::new(false);

/// GPT-2's byte-level characters, by its own construction: printable bytes, then a counter.
fn byte_characters() -> Vec<char> {
    let mut next = 0x100;
    (0..=255u8)
        .map(|byte| {
            if matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff) {
                char::from(byte)
            } else {
                next += 1;
                char::from_u32(next - 1).unwrap()
            }
        })
        .collect()
}

fn byte_level(text: &str) -> String {
    let characters = byte_characters();
    text.bytes().map(|byte| characters[usize::from(byte)]).collect()
}

/// All 256 bytes (ids 0 to 255), the products of `merges` (of plain text) and `specials`.
fn vocabulary(pre: &str, merges: &[(&str, &str)], specials: &[(&str, i32)]) -> Vocabulary {
    let mut tokens: Vec<String> = byte_characters().into_iter().map(String::from).collect();
    for (left, right) in merges {
        let product = byte_level(left) + &byte_level(right);
        if !tokens.contains(&product) {
            tokens.push(product);
        }
    }
    let mut token_types = vec![NORMAL; tokens.len()];
    for (text, kind) in specials {
        tokens.push((*text).to_owned());
        token_types.push(*kind);
    }
    Vocabulary {
        model: "gpt2".into(),
        pre: Some(pre.into()),
        tokens: tokens.iter().collect(),
        token_types,
        merges: merges.iter().map(|(l, r)| byte_level(l) + " " + &byte_level(r)).collect(),
        ..Vocabulary::default()
    }
}

const HELLO: [(&str, &str); 6] =
    [("h", "e"), ("l", "l"), ("he", "ll"), ("hell", "o"), (" ", "w"), ("o", "r")];

const CHAT: [(&str, i32); 6] = [
    ("<|begin_of_text|>", CONTROL),
    ("<|end_of_text|>", CONTROL),
    ("<|eot_id|>", CONTROL),
    ("<think>", USER_DEFINED),
    ("<|im_end|>", NORMAL),
    ("[PAD]", UNUSED),
];

fn set(strings: &mut Strings, index: usize, text: &str) {
    let other = |(at, old)| if at == index { text } else { old };
    *strings = strings.iter().enumerate().map(other).collect();
}

fn id(vocabulary: &Vocabulary, text: &str) -> u32 {
    u32::try_from(vocabulary.tokens.iter().position(|t| t == text).unwrap()).unwrap()
}

/// Merges the leftmost pair of the lowest rank until there is none: the definition of BPE.
fn naive_bpe(vocabulary: &Vocabulary, word: &str) -> Vec<u32> {
    let mut ranks = HashMap::new();
    for (rank, merge) in vocabulary.merges.iter().enumerate() {
        ranks.insert(merge.to_owned(), rank);
    }
    let mut parts: Vec<String> = byte_level(word).chars().map(String::from).collect();
    loop {
        let best = parts
            .windows(2)
            .enumerate()
            .filter_map(|(at, pair)| Some((*ranks.get(&pair.join(" "))?, at)))
            .min();
        let Some((_, at)) = best else { break };
        let right = parts.remove(at + 1);
        parts[at].push_str(&right);
    }
    parts.iter().map(|part| id(vocabulary, part)).collect()
}

#[test]
fn hello_world_has_these_tokens() {
    let vocabulary = vocabulary("gpt-2", &HELLO, &[]);
    let ids = |tokens: &[&str]| -> Vec<u32> { tokens.iter().map(|t| id(&vocabulary, t)).collect() };
    let tokenizer = Tokenizer::new(vocabulary.clone()).unwrap();
    let encode = |text| tokenizer.encode(text, Specials::Plain, false).unwrap();
    assert_eq!(encode("hello world"), ids(&["hello", "Ġw", "or", "l", "d"]));
    assert_eq!(encode("hell"), ids(&["hell"]));
    assert!(encode("").is_empty());
    // The pre-tokeniser keeps merges within words.
    assert_eq!(encode("hel lo"), ids(&["he", "l", "Ġ", "l", "o"]));
    assert_eq!(encode("\0é"), [0, 0xc3, 0xa9]);
    assert_eq!(tokenizer.vocab_size(), 262);
}

#[test]
fn ignore_merges_prefers_whole_words() {
    // `abc` is a token that no merge produces.
    let with_abc = |pre| {
        let mut vocabulary = vocabulary(pre, &[("b", "c")], &[]);
        vocabulary.tokens.push("abc");
        vocabulary.token_types.push(NORMAL);
        Tokenizer::new(vocabulary).unwrap().encode("abc", Specials::Plain, false).unwrap()
    };
    assert_eq!(with_abc("llama-bpe"), [257]);
    assert_eq!(with_abc("qwen2"), [u32::from(b'a'), 256]);
}

#[test]
fn special_tokens_depend_on_type_and_request() {
    let mut vocabulary = vocabulary("llama-bpe", &HELLO, &CHAT);
    let ids = |tokens: &[&str]| -> Vec<u32> { tokens.iter().map(|t| id(&vocabulary, t)).collect() };
    let parsed = ids(&["<|eot_id|>", "<think>", "h", "<|im_end|>"]);
    let (bos, eos, think) =
        (id(&vocabulary, "<|begin_of_text|>"), id(&vocabulary, "<|end_of_text|>"), parsed[1]);
    vocabulary.bos = Some(bos);
    vocabulary.eos = Some(eos);
    let tokenizer = Tokenizer::new(vocabulary.clone()).unwrap();

    let text = "<|eot_id|><think>h<|im_end|>";
    assert_eq!(tokenizer.encode(text, Specials::Parse, false).unwrap(), parsed);
    let plain = tokenizer.encode(text, Specials::Plain, false).unwrap();
    assert_eq!(plain.iter().filter(|&&t| t > 261).collect::<Vec<_>>(), [&think]);
    assert_eq!(tokenizer.decode(&plain), text);
    // Control tokens, placeholders and unknown ids have no text.
    assert_eq!(tokenizer.decode(&parsed), "<think>h");
    assert_eq!(tokenizer.decode(&[id(&vocabulary, "[PAD]"), 9999, u32::MAX]), "");
    assert_eq!(tokenizer.token_text(parsed[0]).unwrap(), "<|eot_id|>");
    assert_eq!(tokenizer.token_bytes(0xc3), Some(&b"\xc3"[..]));
    assert_eq!(tokenizer.token_bytes(9999), None);

    // Llama 3 adds BOS once; EOS only if the file requests it.
    let h = u32::from(b'h');
    assert_eq!(tokenizer.encode("h", Specials::Parse, true).unwrap(), [bos, h]);
    let written = tokenizer.encode("<|begin_of_text|>h", Specials::Parse, true).unwrap();
    assert_eq!(written, [bos, h]);
    vocabulary.add_bos = Some(false);
    vocabulary.add_eos = Some(true);
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    assert_eq!(tokenizer.encode("h", Specials::Parse, true).unwrap(), [h, eos]);
    assert_eq!(tokenizer.encode("h", Specials::Parse, false).unwrap(), [h]);
}

#[test]
fn end_tokens_are_found_by_key_and_by_name() {
    let mut vocabulary = vocabulary("qwen2", &[], &CHAT);
    vocabulary.eot = Some(7);
    let ends: Vec<u32> = ["<|end_of_text|>", "<|eot_id|>", "<|im_end|>"]
        .into_iter()
        .map(|name| id(&vocabulary, name))
        .collect();
    let think = id(&vocabulary, "<think>");
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    assert_eq!(tokenizer.end_ids().collect::<Vec<_>>(), [&[7], &ends[..]].concat());
    assert!(tokenizer.is_end(7) && !tokenizer.is_end(think) && !tokenizer.is_end(u32::MAX));
    assert!(tokenizer.is_control(ends[2]), "typed as text, but steers the model");
}

#[test]
fn long_and_unusual_texts_survive_encoding_and_decoding() {
    let merges = [(" ", " "), ("  ", "  "), ("a", "a"), ("aa", "aa"), ("\n", "\n")];
    for pre in ["default", "llama-bpe"] {
        let tokenizer = Tokenizer::new(vocabulary(pre, &merges, &CHAT)).unwrap();
        let texts = [
            // More than the million steps after which a backtracking pattern gives up.
            " ".repeat(1_050_000),
            " ".repeat(1_050_000) + "x",
            // Long enough that quadratic work would take forever.
            "\n".repeat(300_000) + " x",
            "a".repeat(300_000),
            "\0".repeat(300_000),
            "😶‍🌫️".repeat(20_000),
            "<|".repeat(150_000),
            "\u{ad}\u{2028}\u{fffd}\u{10ffff}\r\n\t'S".repeat(1000),
        ];
        for text in texts {
            let ids = tokenizer.encode(&text, Specials::Parse, false).unwrap();
            assert!(tokenizer.decode(&ids) == text, "{pre} {:?}", &text[..8]);
        }
    }
}

#[test]
fn a_byte_without_a_token_is_named() {
    let mut vocabulary = vocabulary("gpt-2", &[], &[("<x>", CONTROL)]);
    set(&mut vocabulary.tokens, usize::from(b'q'), "hole");
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    let error = tokenizer.encode("é <x> aq", Specials::Parse, false).unwrap_err();
    assert!(matches!(error, Error::NoToken { byte: b'q', offset: 8 }), "{error}");
}

#[test]
fn hostile_vocabularies_are_refused_by_name() {
    let base = || vocabulary("gpt-2", &HELLO, &CHAT);
    let refused = |damage: &dyn Fn(&mut Vocabulary), words: &[&str]| {
        let mut vocabulary = base();
        damage(&mut vocabulary);
        let error = Tokenizer::new(vocabulary).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{error:?} does not name {word:?}");
        }
    };
    refused(&|v| v.model = "bert".into(), &["`bert`", "tokenizer.ggml.model", "gpt2"]);
    refused(&|v| v.pre = Some("xyz".into()), &["`xyz`", "tokenizer.ggml.pre", "qwen2"]);
    refused(
        &|v| {
            v.tokens = Strings::new();
            v.token_types.clear();
        },
        &["0 tokens"],
    );
    refused(&|v| v.token_types.truncate(5), &["268 tokens", "5 token types"]);
    refused(&|v| v.token_types[3] = 7, &["token 3", "type 7"]);
    refused(&|v| v.token_types[3] = i32::MIN, &["token 3", "-2147483648"]);
    refused(
        &|v| {
            let same = v.tokens[4].to_owned();
            set(&mut v.tokens, 9, &same);
        },
        &["tokens 4 and 9", "same text"],
    );
    refused(&|v| set(&mut v.merges, 1, "ll"), &["merge 1", "\"ll\""]);
    refused(&|v| set(&mut v.merges, 1, ""), &["merge 1"]);
    refused(&|v| set(&mut v.merges, 1, " l"), &["merge 1"]);
    refused(&|v| set(&mut v.merges, 2, "he zz"), &["merge 2", "\"he zz\"", "\"zz\""]);
    refused(&|v| v.merges.push("a b"), &["merge 6", "\"a b\"", "\"ab\""]);
    refused(&|v| v.merges.push("a b c"), &["merge 6", "\"b c\""]);
    refused(&|v| v.eos = Some(268), &["tokenizer.ggml.eos_token_id", "268"]);
    refused(&|v| v.pad = Some(u32::MAX), &["tokenizer.ggml.padding_token_id", "4294967295"]);
    refused(&|v| v.add_bos = Some(true), &["tokenizer.ggml.bos_token_id"]);
    // Tokens without text occur in real files and do no harm; types may be missing.
    let mut odd = base();
    odd.token_types.clear();
    odd.tokens.extend(["", ""]);
    // A token outside the byte-level alphabet is literal: Command R has many.
    odd.tokens.extend(["漢", "Ġ漢"]);
    assert_eq!(Tokenizer::new(odd).unwrap().decode(&[268, 269, 270, 271]), "漢Ġ漢");
}

fn tiny() -> Arc<Tokenizer> {
    let merges = [("é", "x"), ("\u{1f680}", "!")];
    // Merges of partial characters, as in real vocabularies.
    let mut vocabulary = vocabulary("gpt-2", &[], &CHAT);
    for (left, right) in merges {
        let rest: String = byte_level(left).chars().skip(1).collect();
        vocabulary.tokens.push(&(rest + right));
        vocabulary.token_types.push(NORMAL);
    }
    Arc::new(Tokenizer::new(vocabulary).unwrap())
}

#[test]
fn streams_contain_whole_characters() {
    let mut detokeniser = Detokeniser::new(tiny());
    // The bytes of a rocket, F0 9F 9A 80, then half of one before an `a`, then the end.
    let pushes = [0xf0, 0x9f, 0x9a, 0x80, 0xf0, 0x9f, 0x61, 0xff, 0x62, 0xe2, 0x82];
    let texts: Vec<String> = pushes.iter().map(|&id| detokeniser.push(id).to_owned()).collect();
    assert_eq!(texts, ["", "", "", "🚀", "", "", "\u{fffd}a", "\u{fffd}", "b", "", ""]);
    assert_eq!(detokeniser.finish(), "\u{fffd}");
    assert_eq!(detokeniser.finish(), "");
    assert_eq!(detokeniser.push(u32::MAX), "");
    assert_eq!(detokeniser.push(0x61), "a");
}

#[test]
fn stop_strings_are_never_streamed() {
    let mut matcher = StopMatcher::new(["\n\nUser:", "<end>", ""]);
    let mut push = |text: &str| {
        let emitted = matcher.push(text);
        (emitted.text.to_owned(), emitted.stopped)
    };
    assert_eq!(push("Hi <"), ("Hi ".to_owned(), false));
    assert_eq!(push("en"), (String::new(), false));
    assert_eq!(push("t>\n\n"), ("<ent>".to_owned(), false));
    assert_eq!(push("\nUs"), ("\n".to_owned(), false));
    assert_eq!(push("er: next"), (String::new(), true));
    assert_eq!(push("more"), (String::new(), true));
    assert_eq!(matcher.finish(), "");
    assert_eq!(matcher.push("a <e").text, "a ");
    assert_eq!(matcher.finish(), "<e");
}

/// The text before the stop string that ends first; if several end together, the longest.
fn naive_stop(text: &str, stops: &[String]) -> Option<String> {
    text.char_indices().map(|(at, c)| at + c.len_utf8()).find_map(|end| {
        let ending = stops.iter().filter(|s| !s.is_empty() && text[..end].ends_with(s.as_str()));
        ending.map(|s| end - s.len()).min().map(|start| text[..start].to_owned())
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn words_are_merged_as_bpe_defines(
        words in prop::collection::vec("[abc]{1,24}|[ab]{260,300}", 1..8),
        picks in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 0..24),
    ) {
        let mut parts = vec!["a".to_owned(), "b".to_owned(), "c".to_owned()];
        let mut merges: Vec<(String, String)> = Vec::new();
        for (left, right) in picks {
            let (left, right) = (left.get(&parts).clone(), right.get(&parts).clone());
            let product = format!("{left}{right}");
            // One merge for each product, as in trained vocabularies.
            if product.len() <= 12 && !parts.contains(&product) {
                parts.push(product);
                merges.push((left, right));
            }
        }
        let merges: Vec<(&str, &str)> =
            merges.iter().map(|(l, r)| (l.as_str(), r.as_str())).collect();
        let vocabulary = vocabulary("gpt-2", &merges, &[]);
        let expected: Vec<Vec<u32>> =
            words.iter().map(|word| naive_bpe(&vocabulary, word)).collect();
        let tokenizer = Tokenizer::new(vocabulary).unwrap();
        for (word, expected) in words.iter().zip(&expected) {
            let ids = tokenizer.encode(word, Specials::Plain, false).unwrap();
            prop_assert_eq!(&ids, expected, "{}", word);
        }
    }

    #[test]
    fn any_text_round_trips(text in any::<String>()) {
        let tokenizer = tiny();
        let ids = tokenizer.encode(&text, Specials::Plain, true).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids), text);
    }

    #[test]
    fn streamed_text_is_the_whole_text(ids in prop::collection::vec(0u32..290, 0..64)) {
        let tokenizer = tiny();
        let mut detokeniser = Detokeniser::new(Arc::clone(&tokenizer));
        let mut text = String::new();
        for &id in &ids {
            text.push_str(detokeniser.push(id));
        }
        text.push_str(detokeniser.finish());
        prop_assert_eq!(text, tokenizer.decode(&ids));
    }

    #[test]
    fn streamed_stops_are_those_of_the_whole_text(
        chunks in prop::collection::vec("[abé]{0,5}", 0..12),
        stops in prop::collection::vec("[abé]{0,5}", 0..4),
    ) {
        let whole = chunks.concat();
        let mut matcher = StopMatcher::new(stops.clone());
        let mut text = String::new();
        let mut stopped = false;
        for chunk in &chunks {
            let emitted = matcher.push(chunk);
            prop_assert!(!stopped || (emitted.stopped && emitted.text.is_empty()));
            text.push_str(emitted.text);
            stopped = emitted.stopped;
        }
        text.push_str(&matcher.finish());
        let expected = naive_stop(&whole, &stops);
        prop_assert_eq!(stopped, expected.is_some());
        prop_assert_eq!(text, expected.unwrap_or(whole));
    }
}

fn conversation() -> Vec<Message> {
    vec![
        Message::new("system", "Be brief."),
        Message::new("user", " Hi <there> & \"you\" "),
        Message::new("assistant", "Hello."),
        Message::new("user", "Bye"),
    ]
}

#[test]
fn models_without_a_template_use_their_familys() {
    let mut llama =
        vocabulary("llama-bpe", &[], &[&CHAT[..], &[("<|start_header_id|>", CONTROL)]].concat());
    llama.bos = Some(id(&llama, "<|begin_of_text|>"));
    let template = ChatTemplate::new(&llama).unwrap();
    assert_eq!(
        rendered(&template, &conversation()[..2], true).unwrap(),
        "<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\nBe brief.<|eot_id|>\
         <|start_header_id|>user<|end_header_id|>\n\nHi <there> & \"you\"<|eot_id|>\
         <|start_header_id|>assistant<|end_header_id|>\n\n"
    );
    let with = |tokens: &[(&str, i32)]| {
        ChatTemplate::new(&vocabulary("qwen2", &[], &[&CHAT[..], tokens].concat())).unwrap()
    };
    let template = with(&[("<|im_start|>", CONTROL)]);
    assert_eq!(template.origin(), Origin::Vocabulary("ChatML"));
    assert_eq!(
        rendered(&template, &conversation()[2..], true).unwrap(),
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nBye<|im_end|>\n\
         <|im_start|>assistant\n"
    );
    assert_eq!(rendered(&template, &[], false).unwrap(), "");
    let template = with(&[("<start_of_turn>", CONTROL), ("<end_of_turn>", CONTROL)]);
    assert_eq!(
        rendered(&template, &conversation()[..3], true).unwrap(),
        "<start_of_turn>user\nBe brief.\n\nHi <there> & \"you\"<end_of_turn>\n\
         <start_of_turn>model\nHello.<end_of_turn>\n<start_of_turn>model\n"
    );
    // `<|im_end|>` alone shows no format.
    let template = with(&[]);
    assert_eq!(template.origin(), Origin::Unknown);
    let error = rendered(&template, &conversation(), true).unwrap_err();
    assert!(matches!(error, Error::TemplateMissing), "{error}");
}

/// A template that refuses late system messages, that ignores them, that refuses them all, and that keeps the last.
#[test]
fn instructions_are_in_the_prompt_wherever_they_are() {
    let late = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
                {{ raise_exception('System message must be at the beginning.') }}{% endif %}\
                <{{ m.role }}>{{ m.content }}{% endfor %}";
    let ignores = "{% if messages[0].role == 'system' %}<system>{{ messages[0].content }}{% endif %}\
                   {% for m in messages %}{% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}\
                   {% endif %}{% endfor %}";
    let refuses = "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no') }}{% endif %}\
                   <{{ m.role }}>{{ m.content }}{% endfor %}";
    let last = "{% set ns = namespace(s='') %}{% for m in messages %}{% if m.role == 'system' %}\
                {% set ns.s = m.content %}{% endif %}{% endfor %}<system>{{ ns.s }}{% for m in messages %}\
                {% if m.role != 'system' %}<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}";
    let say = |turns: &[(&str, &str)]| -> Vec<Message> {
        turns.iter().map(|(role, content)| Message::new(*role, *content)).collect()
    };
    let two = say(&[("system", "Be kind"), ("user", "Hi"), ("system", "Be brief"), ("user", "Ho")]);
    let end = say(&[("user", "Hi"), ("system", "Be brief")]);
    for (name, source, two_of, end_of) in [
        ("late", late, "<system>Be kind<user>Hi\n\nBe brief<user>Ho", "<user>Hi\n\nBe brief"),
        ("ignores", ignores, "<system>Be kind<user>Hi\n\nBe brief<user>Ho", "<user>Hi\n\nBe brief"),
        ("refuses", refuses, "<user>Be kind\n\nHi\n\nBe brief<user>Ho", "<user>Hi\n\nBe brief"),
        ("last", last, "<system>Be kind<user>Hi\n\nBe brief<user>Ho", "<system>Be brief<user>Hi"),
    ] {
        let template = template(source).unwrap();
        assert_eq!(rendered(&template, &two, true).unwrap(), two_of, "{name}");
        assert_eq!(rendered(&template, &end, true).unwrap(), end_of, "{name}");
    }
    // Other refusals have the template's own words.
    let error = rendered(&template("{{ raise_exception('so \"it\" is') }}").unwrap(), &two, true);
    assert!(error.unwrap_err().to_string().contains("so \"it\" is"));
}

/// A reminder that is new or changes in each turn leaves the prompt before it as it was.
#[test]
fn late_instructions_leave_the_prompt_before_them() {
    let first_only = "{% for m in messages %}{% if m.role == 'system' and not loop.first %}\
                {{ raise_exception('System message must be at the beginning.') }}{% endif %}\
                <{{ m.role }}>{{ m.content }}{% endfor %}";
    let drops = "{% for m in messages %}{% if m.role != 'system' or loop.first %}<{{ m.role }}>\
                 {{ m.content }}{% endif %}{% endfor %}";
    let anywhere = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    let turn = |number: usize| {
        let mut all = vec![Message::new("system", "Be kind")];
        for turn in 0..=number {
            all.push(Message::new("user", format!("Question {turn}")));
            all.push(Message::new("system", format!("{} tokens left", 100 - turn)));
            all.push(Message::new("assistant", format!("Answer {turn}")));
            all.push(Message::new("tool", format!("Result {turn}")));
            all.push(Message::new("developer", format!("{} seconds left", 50 - turn)));
            all.push(Message::new("assistant", format!("Answer {turn}")));
        }
        all
    };
    for source in [first_only, drops, anywhere] {
        let template = template(source).unwrap();
        let prompts: Vec<String> =
            (0..4).map(|number| rendered(&template, &turn(number), false).unwrap()).collect();
        for pair in prompts.windows(2) {
            assert!(pair[1].starts_with(&pair[0]), "{pair:?}");
        }
        let mut changed = turn(2);
        changed[14].content = "9 tokens left".into();
        let text = rendered(&template, &changed, false).unwrap();
        let at = text.find("9 tokens").unwrap();
        assert_eq!(text[..at], prompts[2][..at]);
    }
}

/// Conversations of agents with templates that demand alternating roles: each longer one begins like the shorter one.
#[test]
fn alternating_templates_accept_every_order_of_roles() {
    const ALTERNATE: &str = "(m.role == 'user') != (ns.at % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}\
        {% set ns.at = ns.at + 1 %}{% endif %}<{{ m.role }}>{{ m.content }}{% endfor %}";
    // The first system message is accepted, as by Mistral's, or none, as by Gemma 2's.
    let mistral = "{% set ns = namespace(at=0) %}{% for m in messages %}\
        {% if m.role == 'developer' or m.role == 'system' and not loop.first %}{{ raise_exception('late') }}{% endif %}\
        {% if m.role == 'user' or m.role == 'assistant' and not m.tool_calls %}{% if ";
    let gemma = "{% set ns = namespace(at=0) %}{% for m in messages %}\
        {% if m.role in ['system', 'developer'] %}{{ raise_exception('System role not supported') }}{% endif %}\
        {% if m.role != 'tool' and not m.tool_calls %}{% if ";
    let call =
        Call { id: "abcdefghi".into(), name: "look".into(), arguments: serde_json::json!({}) };
    let id = Some("abcdefghi".to_owned());
    let whole = [
        Message::new("developer", "d1"),
        Message::new("developer", "d2"),
        Message::new("user", "u1"),
        Message::new("user", "u2"),
        Message::new("system", "s1"),
        Message { calls: vec![call], ..Message::new("assistant", "") },
        Message { call_id: id, ..Message::new("tool", "t1") },
        Message::new("system", "s2"),
        Message::new("user", "u3"),
        Message::new("assistant", "a1"),
        Message::new("assistant", "a2"),
        Message::new("system", "s3"),
        Message::new("user", "u4"),
    ];
    for (name, source) in [("mistral", mistral), ("gemma", gemma)] {
        let template = template(&format!("{source}{ALTERNATE}")).unwrap();
        let mut before = String::new();
        for end in 3..=whole.len() {
            let text = rendered(&template, &whole[..end], false).unwrap();
            assert!(text.starts_with(&before), "{name}: {before:?}, {text:?}");
            for message in &whole[..end] {
                assert!(text.contains(&message.content), "{name} lacks {message:?}: {text}");
            }
            before = text;
        }
        // Without instructions the refusal is the template's.
        let two = [Message::new("user", "u1"), Message::new("user", "u2")];
        let error = rendered(&template, &two, true).unwrap_err();
        assert!(error.to_string().contains("roles"), "{name}: {error}");
    }
}

/// Templates that iterate over the tools without asking for them.
#[test]
fn no_tools_are_an_empty_list_where_none_fails() {
    let template = template(
        "{% for t in tools %}{{ t }}{% endfor %}{% for m in messages %}{{ m.content }}{% endfor %}",
    );
    assert_eq!(rendered(&template.unwrap(), &[Message::new("user", "Hi")], true).unwrap(), "Hi");
}

/// Tools, a call and its result with templates that know none of them, or not all.
#[test]
fn tools_reach_templates_that_know_none() {
    let tools = vec![serde_json::json!({
        "type": "function", "function": {"name": "get_weather", "parameters": {"type": "object"}},
    })];
    let call = Call {
        id: "abcdefghi".into(),
        name: "get_weather".into(),
        arguments: serde_json::json!({"city": "Rome"}),
    };
    let messages = [
        Message::new("system", "Be kind"),
        Message::new("user", "Hi"),
        Message { calls: vec![call], ..Message::new("assistant", "") },
        Message { call_id: Some("abcdefghi".into()), ..Message::new("tool", "20") },
        Message { call_id: Some("abcdefghj".into()), ..Message::new("tool", "30") },
        Message::new("user", "Thanks"),
    ];
    let alternating = "{% for m in messages %}{% if m.role not in ['user', 'assistant'] or \
        (m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('roles') }}{% endif %}\
        <{{ m.role }}>{{ m.content }}{% endfor %}";
    let options = RenderOptions { tools, ..RenderOptions::answer() };
    let template = template(alternating).unwrap();
    assert_eq!(template.format().calls, Some(Calls::Generic));
    let text = template.render(&messages, &options, &NEVER).unwrap().text().to_owned();
    let begin =
        "<user>Be kind\n\nYou can call these functions:\n<tools>\n{\"name\": \"get_weather\", ";
    let end = "\n\nHi<assistant><tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Rome\"}}\n\
               </tool_call><user><tool_response>\n20\n</tool_response>\n<tool_response>\n30\n\
               </tool_response>\nThanks";
    assert!(text.starts_with(begin) && text.ends_with(end), "{text}");
    // Without tools in the request, the history renders too.
    let text = template.render(&messages[1..], &RenderOptions::answer(), &NEVER).unwrap();
    assert!(text.text().starts_with("<user>Hi<assistant><tool_call>"), "{}", text.text());
}

fn rendered(template: &ChatTemplate, messages: &[Message], add: bool) -> Result<String, Error> {
    let options = RenderOptions { add_generation_prompt: add, ..Default::default() };
    Ok(template.render(messages, &options, &NEVER)?.text().to_owned())
}

/// The template `source` of a model whose one token, BOS, is `<s>`.
fn template(source: &str) -> Result<ChatTemplate, Error> {
    ChatTemplate::new(&Vocabulary {
        tokens: ["<s>"].iter().collect(),
        token_types: vec![CONTROL],
        bos: Some(0),
        chat_template: Some(source.to_owned()),
        ..Vocabulary::default()
    })
}

fn render(source: &str) -> Result<String, Error> {
    rendered(&template(source)?, &conversation(), true)
}

#[test]
fn templates_follow_hugging_faces_conventions() {
    // Blocks are trimmed; None and undefined differ; namespaces carry state.
    let source = "{% set ns = namespace(last='') %}
{% for message in messages[::-1] %}
    {% if message['role'] == 'user' and not ns.last %}
        {% set ns.last = message.content %}
        {% break %}
    {% endif %}
{% endfor %}
{{ bos_token }}{{ eos_token }}{{ ns.last }}
{% if tools is none and custom_tools is not defined and documents is defined %}
no tools
{% endif %}
{% macro wrap(text) %}[{{ text }}]{% endmacro %}
{{ wrap('x' | upper) }}{{ messages | length }}{{ messages[0] | tojson }}
";
    assert_eq!(
        render(source).unwrap(),
        "<s>Bye\nno tools\n[X]4{\"role\": \"system\", \"content\": \"Be brief.\"}"
    );
    let year = render("{{ strftime_now('%Y') }}").unwrap();
    assert!(year.len() == 4 && year.as_str() >= "2024", "{year}");
}

#[test]
fn expressions_print_as_in_python() {
    // Expected results are those of Jinja2 3.1.6.
    let expressions = [
        ("True", "True"),
        ("none", "None"),
        ("1.0", "1.0"),
        ("7 / 2", "3.5"),
        ("-7 // 2", "-4"),
        ("-7 % 3", "2"),
        ("2 ** 10", "1024"),
        ("[1, 'a', None]", "[1, 'a', None]"),
        ("{'k': ('v', 1.5)}", "{'k': ('v', 1.5)}"),
        ("'a,b'.split(',') | join('|')", "a|b"),
        ("messages | map(attribute='role') | join('/')", "system/user/assistant/user"),
        ("messages | selectattr('role', 'equalto', 'user') | list | length", "2"),
        ("messages[-1].role[:2]", "us"),
        ("messages[0].get('name', '-')", "-"),
        ("'%s-%d' | format('a', 3)", "a-3"),
        ("'role' in messages[0]", "True"),
        ("messages[9] is defined", "False"),
        ("messages[0].name is defined", "False"),
        ("missing ~ '.'", "."),
        ("'ab' * 2", "abab"),
        ("'aXbX'.replace('X', '', 1)", "abX"),
        ("'x' if messages else 'y'", "x"),
    ];
    for (expression, expected) in expressions {
        let source = format!("{{{{ {expression} }}}}");
        assert_eq!(render(&source).unwrap(), expected, "{expression}");
    }
}

#[test]
fn template_errors_name_the_line() {
    let error = render("line one\n{% if %}\n").unwrap_err();
    assert!(matches!(error, Error::TemplateSyntax { line: 2, .. }), "{error}");
    let error = render("a\nb\n{{ raise_exception('only two roles') }}").unwrap_err();
    assert!(matches!(error, Error::TemplateRender { line: 3, .. }), "{error}");
    assert!(error.to_string().contains("only two roles"), "{error}");
    let error = render("a\n{{ messages[0].content.swizzle() }}").unwrap_err();
    assert!(matches!(error, Error::TemplateRender { line: 2, .. }), "{error}");
    let error = render("{% include 'etc/passwd' %}").unwrap_err();
    assert!(matches!(error, Error::TemplateRender { line: 1, .. }), "{error}");
}

#[test]
fn hostile_templates_terminate() {
    let endless = "\n{% for a in range(99999) %}{% for b in range(99999) %}{% set x = b %}{% endfor %}{% endfor %}";
    let mut endless = template(endless).unwrap();
    endless.limit_time(std::time::Duration::from_millis(200));
    let error = rendered(&endless, &conversation(), true).unwrap_err();
    assert!(matches!(error, Error::TemplateTime { line: 2, .. }), "{error}");
    let doubled = "{% set ns = namespace(x='ab') %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    assert!(matches!(render(doubled), Err(Error::TemplateMemory { .. })));
    let flood = "{% for i in range(1000) %}{{ 'abcdefgh' * 1000 }}{% endfor %}";
    assert!(matches!(render(flood), Err(Error::TemplateOutput { .. })));
    let recursive = "{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}";
    assert!(matches!(render(recursive), Err(Error::TemplateRender { .. })));
    // Nested as deeply as the length of a template allows, and deeper.
    let nests = [
        ("", "{% if true %}", ""),
        ("", "{% for i in [1] %}", ""),
        ("{% if a %}", "{%elif b%}", "{% endif %}"),
        ("{{ 1", "+1", " }}"),
        ("{{ 1", "**1", " }}"),
        ("{{ 1", "~1", " }}"),
        ("{{ 1", "if 1 else 1", " }}"),
        ("{{ ", "not ", "1 }}"),
        ("{{ ", "-", "1 }}"),
        ("{{ ", "(", "1 }}"),
        ("{{ ", "[", "1 }}"),
        ("{{ ", "a.b[", "1 }}"),
        ("{{ a", "|upper", " }}"),
    ];
    for (open, nest, close) in nests {
        let code = |bytes: usize| format!("{open}{}{close}", nest.repeat(bytes / nest.len()));
        // It may render or fail, but must return.
        let _ = render(&code((256 << 10) - open.len() - close.len()));
        assert!(matches!(render(&code(300 << 10)), Err(Error::TemplateLength { .. })), "{nest}");
    }
}

#[test]
fn deeply_nested_values_are_harmless() {
    for last in ["", "{{ ns.x }}", "{{ ns.x == [ns.x] }}"] {
        let source = format!(
            "{{% set ns = namespace(x=[]) %}}{{% for i in range(100000) %}}\
             {{% set ns.x = [ns.x] %}}{{% endfor %}}{last}"
        );
        let error = render(&source).unwrap_err();
        assert!(matches!(error, Error::TemplateRender { .. }), "{last} {error}");
    }
    let itself = "{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x }}{{ ns.x == [ns] }}";
    assert!(matches!(render(itself), Err(Error::TemplateRender { .. })));
    let json = "{% set ns = namespace(x=[]) %}{% for i in range(299) %}\
                {% set ns.x = [ns.x] %}{% endfor %}{{ ns.x | tojson }}";
    assert!(matches!(render(json), Err(Error::TemplateRender { .. })));
}

/// Llama 3 compared with llama.cpp, Qwen2 with tiktoken, with whole vocabularies (`tests/data/vocab`).
#[test]
fn ids_match_llama_cpp_and_tiktoken() {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vocab");
    let vectors = std::fs::read(data.join("vectors.json")).unwrap();
    let vectors: HashMap<String, Vec<serde_json::Value>> =
        serde_json::from_slice(&vectors).unwrap();
    for name in ["llama-bpe", "qwen2"] {
        let file = Gguf::open(data.join(format!("{name}.gguf"))).unwrap();
        let original = file.metadata().i32_array_opt("original_ids").unwrap().unwrap();
        let vocabulary = Vocabulary::from_metadata(file.metadata()).unwrap();
        let tokenizer = Tokenizer::new(vocabulary).unwrap();
        let cases = &vectors[name];
        assert!(cases.len() > 90, "{name}: {}", cases.len());
        for case in cases {
            let text = case["text"].as_str().unwrap();
            for (key, specials) in [("special", Specials::Parse), ("plain", Specials::Plain)] {
                let ids = tokenizer.encode(text, specials, false).unwrap();
                let originals: Vec<i32> = ids.iter().map(|id| original[*id as usize]).collect();
                assert_eq!(serde_json::json!(originals), case[key], "{name} {key} {text:?}");
                if key == "plain" {
                    assert_eq!(tokenizer.decode(&ids), text);
                }
            }
        }
    }
}
