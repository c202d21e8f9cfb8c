//! SentencePiece: compared with its definition, with hostile vocabularies, and at the start of texts.

use super::*;

const BYTE: i32 = 6;

/// A vocabulary of `<unk>`, `<s>`, `</s>`, all 256 bytes (from id 3), `pieces` with scores (a space stands for U+2581),
/// and `specials`.
pub(super) fn sentencepiece(pieces: &[(&str, f32)], specials: &[(&str, i32)]) -> Vocabulary {
    let mut tokens = vec![
        ("<unk>".to_owned(), UNKNOWN, 0.0),
        ("<s>".to_owned(), CONTROL, 0.0),
        ("</s>".to_owned(), CONTROL, 0.0),
    ];
    tokens.extend((0..=255u8).map(|byte| (format!("<0x{byte:02X}>"), BYTE, 0.0)));
    tokens.extend(pieces.iter().map(|(text, score)| (text.replace(' ', "▁"), NORMAL, *score)));
    tokens.extend(specials.iter().map(|(text, kind)| ((*text).to_owned(), *kind, -1000.0)));
    Vocabulary {
        model: "llama".into(),
        pre: Some("default".into()),
        tokens: tokens.iter().map(|(text, ..)| text).collect(),
        token_types: tokens.iter().map(|(_, kind, _)| *kind).collect(),
        scores: tokens.iter().map(|(.., score)| *score).collect(),
        bos: Some(1),
        eos: Some(2),
        ..Vocabulary::default()
    }
}

/// A vocabulary like Gemma 4's: all 256 bytes, `pieces`, the products of `merges`, and `specials`.
fn with_merges(pieces: &[&str], merges: &[(&str, &str)], specials: &[(&str, i32)]) -> Vocabulary {
    let products = merges.iter().map(|(left, right)| format!("{left}{right}"));
    let pieces: Vec<String> =
        pieces.iter().map(|piece| (*piece).to_owned()).chain(products).collect();
    let pieces: Vec<(&str, f32)> = pieces.iter().map(|piece| (piece.as_str(), 0.0)).collect();
    let spell = |text: &str| text.replace(' ', "▁");
    Vocabulary {
        model: "gemma4".into(),
        merges: merges.iter().map(|(l, r)| spell(l) + " " + &spell(r)).collect(),
        ..sentencepiece(&pieces, specials)
    }
}

const PIECES: [(&str, f32); 14] = [
    (" ", -9.0),
    ("h", -9.0),
    ("e", -9.0),
    ("l", -9.0),
    ("o", -9.0),
    ("é", -9.0),
    ("ll", -1.0),
    (" h", -2.0),
    ("he", -3.0),
    ("llo", -4.0),
    (" he", -5.0),
    (" hello", -6.0),
    ("  ", -7.0),
    ("é h", -8.0),
];

const THINK: [(&str, i32); 2] = [("<think>", USER_DEFINED), ("<pad>", UNUSED)];

fn tiny() -> Arc<Tokenizer> {
    Arc::new(Tokenizer::new(sentencepiece(&PIECES, &THINK)).unwrap())
}

fn pieces(tokenizer: &Tokenizer, ids: &[u32]) -> Vec<String> {
    ids.iter().map(|&id| tokenizer.token_text(id).unwrap().into_owned()).collect()
}

#[test]
fn hello_has_these_tokens() {
    let tokenizer = tiny();
    let encode =
        |text| pieces(&tokenizer, &tokenizer.encode(text, Specials::Parse, false).unwrap());
    assert_eq!(encode("hello"), [" hello"]);
    assert_eq!(encode(" hello"), [" ", " hello"]);
    assert_eq!(encode("helloé hello"), [" hello", "é", " hello"]);
    assert_eq!(encode("oé h"), [" ", "o", "é h"]);
    assert_eq!(encode("q\n"), [" ", "q", "\n"]);
    assert_eq!(encode("ü"), [" ", "\u{fffd}", "\u{fffd}"]);
    // After a special token a new text begins.
    assert_eq!(encode("</s>he<think>he"), ["</s>", " he", "<think>", " he"]);
    assert_eq!(encode(""), [""; 0]);
    // The names of byte tokens, placeholders and control tokens are text.
    assert_eq!(encode("<0x0A>").len(), 7);
    assert_eq!(encode("<pad>").len(), 6);
    let plain = tokenizer.encode("</s>", Specials::Plain, true).unwrap();
    assert_eq!(plain.len(), 6);
    assert_eq!(plain[0], 1, "BOS unless the file says otherwise");

    let mut bare = sentencepiece(&PIECES, &THINK);
    bare.add_space_prefix = Some(false);
    bare.add_bos = Some(false);
    bare.add_eos = Some(true);
    let bare = Tokenizer::new(bare).unwrap();
    let ids = bare.encode("hello", Specials::Parse, true).unwrap();
    assert_eq!(pieces(&bare, &ids), ["he", "llo", "</s>"]);
    assert_eq!(bare.decode(&bare.encode(" hello", Specials::Parse, false).unwrap()), " hello");
}

/// Vocabularies with merges add no space in front, even if the file requests it.
#[test]
fn only_vocabularies_with_scores_add_a_space() {
    let merged = with_merges(&["a", " "], &[(" ", "a")], &[]);
    for vocabulary in [merged, vocabulary("gpt-2", &[(" ", "a")], &[])] {
        let vocabulary = Vocabulary { add_space_prefix: Some(true), ..vocabulary };
        let tokenizer = Tokenizer::new(vocabulary).unwrap();
        for text in [" a", "a", "  a"] {
            let ids = tokenizer.encode(text, Specials::Parse, false).unwrap();
            assert_eq!(tokenizer.decode(&ids), text);
        }
    }
}

/// Even if merges could produce its text.
#[test]
fn no_merge_produces_a_control_token() {
    let mut vocabulary = sentencepiece(&PIECES, &[]);
    vocabulary.tokens.extend(["</", "s>", "<"]);
    vocabulary.token_types.extend([NORMAL; 3]);
    vocabulary.scores.extend([-1.0; 3]);
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    let ids = tokenizer.encode("</s></s>", Specials::Plain, false).unwrap();
    assert!(ids.iter().all(|&id| !tokenizer.is_control(id)), "{ids:?}");
    assert_eq!(tokenizer.decode(&ids), "</s></s>");
}

#[test]
fn merges_apply_to_newlines_and_spaces() {
    let merges = [(" ", "a"), ("a", " a"), ("\n", "\n"), ("\n", "\n\n")];
    let vocabulary = with_merges(&["a", " ", "\n"], &merges, &[]);
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    assert_eq!(tokenizer.begin_id(), Some(1));
    let encode =
        |text: &str| pieces(&tokenizer, &tokenizer.encode(text, Specials::Parse, false).unwrap());
    // A token begins within another one, so words are not split before the space.
    assert_eq!(encode("a a a"), ["a a", " a"]);
    assert_eq!(encode("b a"), ["b", " a"]);
    // Merges alone would give two newlines and one.
    assert_eq!(encode("\n\n\n"), ["\n\n\n"]);
    assert_eq!(encode("\n\n\n\n"), ["\n\n", "\n\n"]);
    assert_eq!(encode("a\n a"), ["a", "\n", " a"]);
}

#[test]
fn bytes_that_are_no_utf8_are_replaced() {
    let tokenizer = tiny();
    let byte = |byte: u8| u32::from(byte) + 3;
    let o = 3 + 256 + 4;
    // Half a rocket, a whole one, half a euro at the end.
    let ids: Vec<u32> = [0xf0, 0x9f, 0xf0, 0x9f, 0x9a, 0x80].map(byte).into_iter().collect();
    let ids = [&ids[..], &[o], &[byte(0xe2), byte(0x82)]].concat();
    assert_eq!(tokenizer.decode(&ids), "\u{fffd}🚀o\u{fffd}");
    let mut detokeniser = Detokeniser::new(Arc::clone(&tokenizer));
    let texts: Vec<String> = ids.iter().map(|&id| detokeniser.push(id).to_owned()).collect();
    assert_eq!(texts, ["", "", "\u{fffd}", "", "", "🚀", "o", "", ""]);
    assert_eq!(detokeniser.finish(), "\u{fffd}");
    assert_eq!(tokenizer.decode(&[0, 1, 2, u32::MAX, 9999]), "");
}

/// Decoding removes the space that encoding adds in front. The space of an answer is kept, unless the prompt ends
/// with a special token.
#[test]
fn answers_continue_their_prompts() {
    let tokenizer = tiny();
    let ids = tokenizer.encode("hello", Specials::Parse, true).unwrap();
    let hello = ids[1..].to_vec();
    let answer = |prompt: &[u32]| {
        let mut detokeniser = Detokeniser::after(Arc::clone(&tokenizer), prompt);
        hello.iter().map(|&id| detokeniser.push(id).to_owned()).collect::<String>()
    };
    assert_eq!(tokenizer.decode(&ids), "hello");
    assert_eq!(tokenizer.decode(&[&hello[..], &hello].concat()), "hello hello");
    assert_eq!(answer(&[]), "hello");
    assert_eq!(answer(&ids), " hello");
    assert_eq!(answer(&[1]), "hello");
    assert_eq!(answer(&[hello[0], 2]), "hello");
}

#[test]
fn phi_3_tokens_include_the_white_space_after_them() {
    let specials = [("<|user|>", CONTROL), ("<|endoftext|>", CONTROL)];
    let mut vocabulary = sentencepiece(&PIECES, &specials);
    vocabulary.architecture = Some("phi3".into());
    let encode = |vocabulary: &Vocabulary, text| {
        let tokenizer = Tokenizer::new(vocabulary.clone()).unwrap();
        pieces(&tokenizer, &tokenizer.encode(text, Specials::Parse, false).unwrap())
    };
    assert_eq!(encode(&vocabulary, "<|user|> \n\thello"), ["<|user|>", " hello"]);
    assert_eq!(encode(&vocabulary, "<|user|> \n"), ["<|user|>"]);
    assert_eq!(encode(&vocabulary, "<|endoftext|> hello"), ["<|endoftext|>", " ", " hello"]);
    vocabulary.architecture = Some("llama".into());
    assert_eq!(encode(&vocabulary, "<|user|> hello"), ["<|user|>", " ", " hello"]);
}

#[test]
fn hostile_vocabularies_are_refused_by_name() {
    let refused = |damage: &dyn Fn(&mut Vocabulary), words: &[&str]| {
        let mut vocabulary = sentencepiece(&PIECES, &THINK);
        damage(&mut vocabulary);
        let error = Tokenizer::new(vocabulary).unwrap_err().to_string();
        for word in words {
            assert!(error.contains(word), "{error:?} does not name {word:?}");
        }
    };
    refused(&|v| v.scores.truncate(5), &["275 tokens", "5 scores", "tokenizer.ggml.scores"]);
    refused(&|v| v.scores.clear(), &["275 tokens", "0 scores"]);
    refused(&|v| v.scores[7] = f32::NAN, &["score of token 7", "tokenizer.ggml.scores"]);
    refused(&|v| v.token_types.truncate(5), &["275 tokens", "5 token types"]);
    for text in ["<0x100>", "<0xG0>", "<0x+1>", "0x01", "<0x>", "é"] {
        refused(&|v| set(&mut v.tokens, 9, text), &["token 9", text, "<0xFF>"]);
    }
    refused(&|v| set(&mut v.tokens, 9, "<0x0A>"), &["tokens 9 and 13", "<0x0A>"]);
    refused(&|v| v.bos = Some(275), &["tokenizer.ggml.bos_token_id", "275"]);
    refused(&|v| v.model = "t5".into(), &["`t5`", "`llama`", "`gemma4`", "`gpt2`"]);
    refused(
        &|v| {
            v.model = "gemma4".into();
            v.merges.push("h q");
        },
        &["merge 0", "\"h q\"", "\"q\""],
    );
    // Infinite scores have an order.
    let mut odd = sentencepiece(&PIECES, &THINK);
    odd.scores[260] = f32::NEG_INFINITY;
    odd.scores[261] = f32::INFINITY;
    Tokenizer::new(odd).unwrap();
}

#[test]
fn a_byte_without_a_token_is_named() {
    let mut vocabulary = sentencepiece(&PIECES, &THINK);
    vocabulary.token_types[usize::from(b'q') + 3] = UNUSED;
    vocabulary.token_types[0xbc + 3] = UNUSED;
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    let error = |text| tokenizer.encode(text, Specials::Parse, false).unwrap_err();
    assert!(matches!(error("é h</s> hq"), Error::NoToken { byte: b'q', offset: 10 }));
    assert!(matches!(error("q"), Error::NoToken { byte: b'q', offset: 0 }));
    let text = error("h  üx").to_string();
    assert!(text.contains("0xbc") && text.contains("at 3"), "{text}");
    // A character that is a token needs no bytes.
    let mut bare = sentencepiece(&PIECES, &[]);
    bare.token_types[3..259].fill(UNUSED);
    let bare = Tokenizer::new(bare).unwrap();
    assert_eq!(bare.decode(&bare.encode("hé ello", Specials::Parse, false).unwrap()), "hé ello");
    assert!(bare.encode("a", Specials::Parse, false).is_err());
}

#[test]
fn long_and_unusual_texts_survive_encoding_and_decoding() {
    let spaces = [(" ", -9.0), ("  ", -1.0), ("    ", -2.0), ("a", -9.0), ("aa", -3.0)];
    let scores = sentencepiece(&spaces, &THINK);
    let merges = [(" ", " "), ("  ", "  "), ("a", "a"), ("\n", "\n")];
    let merged = with_merges(&[" ", "a", "\n"], &merges, &THINK);
    for vocabulary in [scores, merged] {
        let tokenizer = Tokenizer::new(vocabulary).unwrap();
        let texts = [
            " ".repeat(1_050_000),
            " ".repeat(1_050_000) + "x",
            "\n".repeat(300_000) + " x",
            // Long enough that quadratic work would take forever.
            "a".repeat(300_000),
            "\0".repeat(300_000),
            "😶‍🌫️".repeat(20_000),
            "<think".repeat(50_000),
            "\u{ad}\u{2028}\u{fffd}\u{10ffff}\r\n\t'S".repeat(1000),
        ];
        for text in texts {
            let ids = tokenizer.encode(&text, Specials::Parse, false).unwrap();
            assert!(tokenizer.decode(&ids) == text, "{:?}", &text[..8]);
        }
    }
}

/// Joins the leftmost neighbours with the highest score until no pair has one.
fn naive(vocabulary: &Vocabulary, text: &str) -> Vec<u32> {
    let known: HashMap<&str, (u32, f32)> = (0..)
        .zip(vocabulary.tokens.iter().zip(&vocabulary.scores))
        .filter(|(id, _)| vocabulary.token_types[*id as usize] == NORMAL)
        .map(|(id, (text, score))| (text, (id, *score)))
        .collect();
    let mut parts: Vec<String> =
        format!(" {text}").chars().map(|c| c.to_string().replace(' ', "▁")).collect();
    loop {
        let pairs = parts.windows(2).enumerate();
        let scores = pairs.filter_map(|(at, pair)| Some((known.get(&*pair.concat())?.1, at)));
        let best = scores.reduce(|best, next| if next.0 > best.0 { next } else { best });
        let Some((_, at)) = best else { break };
        let right = parts.remove(at + 1);
        parts[at].push_str(&right);
    }
    let ids = |part: &String| match known.get(part.as_str()) {
        Some((id, _)) => vec![*id],
        None => part.bytes().map(|byte| u32::from(byte) + 3).collect(),
    };
    parts.iter().flat_map(ids).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Also with equal scores, characters without a token, and spaces within tokens.
    #[test]
    fn the_best_score_goes_first(
        texts in prop::collection::vec("[ab é]{1,24}|[a ]{100,140}", 1..6),
        pieces in prop::collection::hash_map("[ab é]{1,6}", -4i8..0, 0..24),
    ) {
        let mut pieces: Vec<(&str, f32)> =
            pieces.iter().map(|(text, score)| (text.as_str(), f32::from(*score))).collect();
        if pieces.iter().all(|(text, _)| *text != " ") {
            pieces.push((" ", -9.0));
        }
        let vocabulary = sentencepiece(&pieces, &[]);
        let tokenizer = Tokenizer::new(vocabulary.clone()).unwrap();
        for text in &texts {
            let ids = tokenizer.encode(text, Specials::Plain, false).unwrap();
            prop_assert_eq!(&ids, &naive(&vocabulary, text), "{:?}", text);
            prop_assert_eq!(&tokenizer.decode(&ids), text);
        }
    }

    #[test]
    fn any_text_round_trips(text in "\\PC*|(<think>|hello| |\u{2028}|\0){0,9}") {
        let tokenizer = tiny();
        // The vocabulary treats U+2581 as a space.
        let text = text.replace('▁', "");
        let ids = tokenizer.encode(&text, Specials::Plain, true).unwrap();
        prop_assert_eq!(tokenizer.decode(&ids), text);
    }

    #[test]
    fn streamed_text_is_the_whole_text(ids in prop::collection::vec(0u32..300, 0..64)) {
        let tokenizer = tiny();
        let mut detokeniser = Detokeniser::new(Arc::clone(&tokenizer));
        let mut text: String = ids.iter().map(|&id| detokeniser.push(id).to_owned()).collect();
        text.push_str(detokeniser.finish());
        prop_assert_eq!(text, tokenizer.decode(&ids));
    }
}
