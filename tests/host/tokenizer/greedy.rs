//! RWKV's tokenizer, compared with its definition, and with hostile vocabularies.

use super::*;

/// A vocabulary of `<s>` and these tokens, in the escaped form of the file.
fn longest_first(written: &[&str]) -> Vocabulary {
    let mut token_types = vec![NORMAL; 1 + written.len()];
    token_types[0] = CONTROL;
    Vocabulary {
        model: "rwkv".into(),
        tokens: ["<s>"].iter().chain(written).map(|text| (*text).to_owned()).collect(),
        token_types,
        ..Vocabulary::default()
    }
}

/// Bytes in Python's notation.
fn written(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("\\x{byte:02x}")).collect()
}

#[test]
fn escapes_are_decoded() {
    let words = [r"\n", r"\t\r", r"\xe3\x81", r"\x82", r"\\", r"\'", "a", "ab"];
    let tokenizer = Tokenizer::new(longest_first(&words)).unwrap();
    let encode = |text: &str| tokenizer.encode(text, Specials::Parse, true);
    assert_eq!(encode("\n\t\r\\'aab").unwrap(), [1, 2, 5, 6, 7, 8]);
    // The bytes of a character may belong to two tokens.
    let ids = encode("\u{3042}<s>a").unwrap();
    assert_eq!(ids, [3, 4, 0, 7]);
    assert_eq!(tokenizer.decode(&ids), "\u{3042}a");
    assert_eq!(tokenizer.token_bytes(3), Some(&[0xe3, 0x81][..]));
    match encode("abx") {
        Err(Error::NoToken { byte: b'x', offset: 2 }) => {}
        other => panic!("{other:?}"),
    }
}

/// RWKV's files contain the template's name, or nothing.
#[test]
fn conversations_have_the_format_of_rwkvs_training() {
    let messages = [
        Message::new("system", "Be brief."),
        Message::new("user", " Hello! \n"),
        Message::new("assistant", "Hi."),
        Message::new("user", "Why?"),
    ];
    for name in [Some("rwkv-world".to_owned()), None] {
        let vocabulary = Vocabulary { chat_template: name, ..longest_first(&["a"]) };
        let template = ChatTemplate::new(&vocabulary).unwrap();
        let never = AtomicBool::new(false);
        let prompt = template.render(&messages, &RenderOptions::answer(), &never).unwrap();
        let expected =
            "System: Be brief.\n\nUser: Hello!\n\nAssistant: Hi.\n\nUser: Why?\n\nAssistant:";
        assert_eq!(prompt.text(), expected);
    }
}

#[test]
fn hostile_vocabularies_are_refused() {
    for broken in [r"\", r"a\x", r"\x4", r"\xg0", r"\x+1"] {
        match Tokenizer::new(longest_first(&["a", broken])) {
            Err(Error::Escape { id: 2, text }) => assert_eq!(text, broken),
            other => panic!("{broken}: {other:?}"),
        }
    }
    match Tokenizer::new(longest_first(&["a", r"\x61"])) {
        Err(Error::DuplicateToken { first: 1, second: 2, .. }) => {}
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn the_longest_token_comes_first(
        words in proptest::collection::btree_set("[ab\u{e9}]{1,5}", 1..20),
        text in "[ab\u{e9}c]{0,40}",
    ) {
        // All bytes of these characters, so that every text can be encoded.
        let bytes = [b'a', b'b', b'c', 0xc3, 0xa9].map(|byte| vec![byte]);
        let mut tokens: Vec<Vec<u8>> = bytes.to_vec();
        tokens.extend(words.into_iter().map(String::into_bytes).filter(|word| word.len() > 1));
        let texts: Vec<String> = tokens.iter().map(|bytes| written(bytes)).collect();
        let texts: Vec<&str> = texts.iter().map(String::as_str).collect();
        let tokenizer = Tokenizer::new(longest_first(&texts)).unwrap();
        let (mut rest, mut expected) = (text.as_bytes(), Vec::new());
        while !rest.is_empty() {
            let begins = (1..).zip(&tokens).filter(|(_, token)| rest.starts_with(token));
            let (id, token) = begins.max_by_key(|(_, token)| token.len()).unwrap();
            expected.push(id);
            rest = &rest[token.len()..];
        }
        let ids = tokenizer.encode(&text, Specials::Plain, false).unwrap();
        prop_assert_eq!(&ids, &expected);
        prop_assert_eq!(tokenizer.decode(&ids), text);
    }
}
