//! Ids and texts of every family, compared with Hugging Face's `tokenizers` and llama.cpp
//! (`tests/data/vocab/families.py`).

use super::*;

/// Each family of `families.json`, and the number of texts for which llama.cpp's ids differ from the rules of the
/// model's authors. llama.cpp's regular expressions treat all white space beyond ASCII as one character, and for
/// Tekken and GPT-4o they ignore marks, and case beyond ASCII.
const FAMILIES: [(&str, usize); 30] = [
    ("llama-spm", 0),
    ("phi-3", 0),
    ("gemma-4", 0),
    ("gpt-2", 0),
    ("mpt", 0),
    ("falcon", 0),
    ("starcoder", 0),
    ("refact", 0),
    ("command-r", 0),
    ("qwen35", 0),
    ("deepseek-llm", 1),
    ("deepseek-coder", 0),
    ("trained:gpt-2", 0),
    ("trained:mpt", 0),
    ("trained:olmo", 0),
    ("trained:falcon", 0),
    ("trained:starcoder", 0),
    ("trained:refact", 0),
    ("trained:command-r", 0),
    ("trained:smollm", 0),
    ("trained:lfm2", 0),
    ("trained:dbrx", 0),
    ("trained:stablelm2", 0),
    ("trained:qwen35", 0),
    ("trained:tekken", 8),
    ("trained:gpt-4o", 8),
    ("trained:deepseek-v3", 0),
    ("trained:deepseek-llm", 2),
    ("trained:deepseek-coder", 1),
    ("rwkv", 0),
];

/// Tokeniser of a family, types of its tokens, and their ids in the full vocabulary.
fn family(name: &str) -> (Arc<Tokenizer>, Vec<i32>, Vec<i32>) {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vocab");
    let (file, pre) = name.split_once(':').map_or((name, None), |(file, pre)| (file, Some(pre)));
    let file = Gguf::open(data.join(format!("{file}.gguf"))).unwrap();
    let mut vocabulary = Vocabulary::from_metadata(file.metadata()).unwrap();
    vocabulary.pre = pre.map(str::to_owned).or(vocabulary.pre);
    let original = file.metadata().i32_array_opt("original_ids").unwrap().unwrap().to_vec();
    let types = vocabulary.token_types.clone();
    (Arc::new(Tokenizer::new(vocabulary).unwrap()), types, original)
}

/// FNV-1a.
fn checksum(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |state: u64, byte| {
        (state ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn ids_and_texts_match_hugging_face_and_llama_cpp() {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vocab");
    let vectors = std::fs::read(data.join("families.json")).unwrap();
    let vectors: HashMap<String, serde_json::Value> = serde_json::from_slice(&vectors).unwrap();
    assert_eq!(vectors.len(), FAMILIES.len());
    for (name, others) in FAMILIES {
        let (tokenizer, types, original) = family(name);
        let cases = vectors[name]["cases"].as_array().unwrap();
        assert!(cases.len() > 110, "{name}: {}", cases.len());
        let different = cases.iter().filter(|case| case.get("llama_cpp").is_some()).count();
        assert_eq!(different, others, "{name}");
        for case in cases {
            let text = case["text"].as_str().unwrap();
            for (key, specials) in [("special", Specials::Parse), ("plain", Specials::Plain)] {
                let ids = tokenizer.encode(text, specials, false).unwrap();
                let originals: Vec<i32> = ids.iter().map(|id| original[*id as usize]).collect();
                assert_eq!(serde_json::json!(originals), case[key], "{name} {key} {text:?}");
                let decoded = tokenizer.decode(&ids);
                if key == "plain" {
                    assert_eq!(decoded, case["decoded"].as_str().unwrap(), "{name} {text:?}");
                }
                assert_eq!(streamed(&tokenizer, &ids), decoded, "{name} {key} {text:?}");
            }
        }
        let pieces = (0..).zip(&types).filter(|(_, kind)| **kind != UNUSED).flat_map(|(id, _)| {
            let piece = tokenizer.token_bytes(id).unwrap();
            let length = u32::try_from(piece.len()).unwrap().to_le_bytes();
            length.into_iter().chain(piece.iter().copied())
        });
        assert_eq!(format!("{:016x}", checksum(pieces)), vectors[name]["pieces"], "{name}");
    }
}

fn streamed(tokenizer: &Arc<Tokenizer>, ids: &[u32]) -> String {
    let mut detokeniser = Detokeniser::new(Arc::clone(tokenizer));
    let mut text: String = ids.iter().map(|&id| detokeniser.push(id).to_owned()).collect();
    text.push_str(detokeniser.finish());
    text
}

/// The file specifies the tokens at the beginning, or else the family does.
#[test]
fn begin_tokens_follow_the_family() {
    let first = |name: &str| {
        let (tokenizer, _, original) = family(name);
        tokenizer.begin_id().map(|id| original[id as usize])
    };
    assert_eq!(first("llama-spm"), Some(1));
    assert_eq!(first("phi-3"), Some(1));
    assert_eq!(first("gemma-4"), Some(2));
    assert_eq!(first("command-r"), Some(5));
    assert_eq!(first("falcon"), None);
    assert_eq!(first("qwen35"), None);
    assert_eq!(first("rwkv"), None);
}

/// `</s>` is an end token in most vocabularies, and text in Gemma 4's.
#[test]
fn end_tokens_follow_the_family() {
    let ends = |name: &str| {
        let (tokenizer, ..) = family(name);
        let text = |id| tokenizer.token_text(id).unwrap().into_owned();
        tokenizer.end_ids().map(text).collect::<Vec<_>>()
    };
    assert_eq!(ends("llama-spm"), ["</s>"]);
    assert_eq!(ends("phi-3"), ["</s>", "<|endoftext|>", "<|end|>"]);
    assert_eq!(ends("gemma-4"), ["<eos>", "<|tool_response>", "<turn|>"]);
}
