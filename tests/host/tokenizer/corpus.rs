//! The corpus of the fuzz target `tokenizer`.

use super::*;

/// A file may be refused. An accepted vocabulary encodes its own tokens and all bytes, or names a missing byte, and
/// decodes in a stream.
#[test]
fn the_fuzz_corpus_is_accepted_or_refused() {
    let corpus = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus/tokenizer");
    let (mut taken, mut refused) = (0, 0);
    for entry in std::fs::read_dir(corpus).unwrap() {
        let data = std::fs::read(entry.unwrap().path()).unwrap();
        let vocabulary =
            Vocabulary::from_metadata(Gguf::from_bytes(data.clone()).unwrap().metadata()).unwrap();
        let text = vocabulary.tokens.iter().collect::<String>() + &String::from_utf8_lossy(&data);
        let Ok(tokenizer) = Tokenizer::new(vocabulary).map(Arc::new) else {
            refused += 1;
            continue;
        };
        taken += 1;
        for specials in [Specials::Parse, Specials::Plain] {
            match tokenizer.encode(&text, specials, true) {
                Ok(ids) => {
                    let mut detokeniser = Detokeniser::new(Arc::clone(&tokenizer));
                    let mut streamed = String::new();
                    for &id in &ids {
                        streamed.push_str(detokeniser.push(id));
                    }
                    streamed.push_str(detokeniser.finish());
                    assert_eq!(streamed, tokenizer.decode(&ids));
                }
                Err(error) => assert!(matches!(error, Error::NoToken { .. }), "{error}"),
            }
        }
    }
    assert_eq!((taken, refused), (5, 4));
}
