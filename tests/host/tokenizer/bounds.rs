//! Bounds of tokenization: a maximum of ids, and cancellation.

use std::sync::atomic::Ordering;
use std::time::Instant;

use super::*;

fn tokenizer() -> Tokenizer {
    let merges = [(" ", " "), ("  ", "  "), ("a", "b"), ("ab", "ab")];
    let vocabulary = vocabulary("llama-bpe", &[&merges[..], &HELLO].concat(), &CHAT);
    let bos = Some(id(&vocabulary, "<|begin_of_text|>"));
    Tokenizer::new(Vocabulary { bos, ..vocabulary }).unwrap()
}

#[test]
fn the_longest_token_is_reachable_from_text() {
    assert_eq!(tokenizer().longest_token(), "<|begin_of_text|>".len());
    let long = [("<|a place holder is never looked for|>", UNUSED), ("<é>", USER_DEFINED)];
    let tokenizer = Tokenizer::new(vocabulary("gpt-2", &[], &long)).unwrap();
    assert_eq!(tokenizer.longest_token(), "<é>".len());
}

proptest! {
    #[test]
    fn the_number_of_ids_is_limited(text in "( {1,9}|[abhelo]{1,9}|<\\|eot_id\\|>|<think>|\\PC){0,12}") {
        let tokenizer = tokenizer();
        for (specials, add) in [(Specials::Parse, true), (Specials::Plain, false)] {
            let ids = tokenizer.encode(&text, specials, add).unwrap();
            prop_assert!(ids.len() >= text.len().div_ceil(tokenizer.longest_token()));
            for tokens in 0..ids.len() + 2 {
                let bounds = Bounds { tokens, cancelled: &NEVER };
                match tokenizer.encode_within(&text, specials, add, &bounds) {
                    Ok(within) => prop_assert!(within == ids && ids.len() <= tokens),
                    Err(Error::TooManyTokens { limit }) => {
                        prop_assert!(limit == tokens && ids.len() > tokens);
                    }
                    Err(error) => prop_assert!(false, "{}", error),
                }
            }
        }
    }
}

#[test]
fn a_cancelled_tokenization_does_nothing() {
    let gone = AtomicBool::new(true);
    let bounds = Bounds { tokens: 100, cancelled: &gone };
    let tokenizer = tokenizer();
    for text in ["a", "<|eot_id|>"] {
        let error = tokenizer.encode_within(text, Specials::Parse, true, &bounds).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
    }
    let template = template("{% for m in messages %}{{ m.content }}{% endfor %}.").unwrap();
    for messages in [&conversation()[..], &[]] {
        let error = template.render(messages, &RenderOptions::answer(), &gone).unwrap_err();
        assert!(matches!(error, Error::Cancelled), "{error}");
    }
}

/// The flag is checked within words, between words, and between texts that look like special tokens.
#[test]
fn cancellation_ends_tokenization_soon() {
    let vocabulary = vocabulary("llama-bpe", &[(" ", " "), ("  ", "  ")], &CHAT);
    let chat_template = Some("{{ messages[0].content }}.".to_owned());
    let template = ChatTemplate::new(&Vocabulary { chat_template, ..vocabulary.clone() }).unwrap();
    let tokenizer = Tokenizer::new(vocabulary).unwrap();
    for piece in [" ", "a ", "<|eot_id|>"] {
        let messages = [Message::new("user", piece.repeat((1 << 20) / piece.len()))];
        let prompt = template.render(&messages, &RenderOptions::answer(), &NEVER).unwrap();
        let encode = |cancelled: &AtomicBool| {
            tokenizer.encode_rendered(&prompt, &Bounds { tokens: usize::MAX, cancelled })
        };
        let start = Instant::now();
        encode(&NEVER).unwrap();
        let whole = start.elapsed();
        // Cancels half-way; on a busy machine that may be too late, so later attempts cancel sooner.
        let left_early = (0..12).any(|attempt| {
            let gone = AtomicBool::new(false);
            let ended = std::thread::scope(|scope| {
                let worker = scope.spawn(|| encode(&gone));
                std::thread::sleep(whole / (2 + attempt));
                gone.store(true, Ordering::Relaxed);
                worker.join().unwrap()
            });
            matches!(ended, Err(Error::Cancelled))
        });
        assert!(left_early, "{piece:?}");
    }
}
