//! Allocations on all threads: none in the decode loop, and a bounded number of bytes for the text of a request.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicIsize, AtomicUsize, Ordering};

use ::engine::{BenchSession, LoadSpec};
use model::gguf::Gguf;
use model::tokenizer::{
    Bounds, ChatTemplate, Error, Message, RenderOptions, Tokenizer, Vocabulary,
};
use orind_testing::engine::{spec, start};
use orind_testing::program::{again, said};
use orind_testing::tiny;

struct Counting;

static ARMED: AtomicBool = AtomicBool::new(false);
static COUNT: AtomicUsize = AtomicUsize::new(0);
/// Bytes in use since counting began, and their maximum.
static LIVE: AtomicIsize = AtomicIsize::new(0);
static PEAK: AtomicIsize = AtomicIsize::new(0);

fn grow(bytes: isize) {
    if ARMED.load(Ordering::Relaxed) {
        let live = LIVE.fetch_add(bytes, Ordering::Relaxed) + bytes;
        PEAK.fetch_max(live, Ordering::Relaxed);
        if bytes > 0 {
            COUNT.fetch_add(1, Ordering::Relaxed);
        }
    }
}

// SAFETY: every call goes on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        grow(layout.size().cast_signed());
        // SAFETY: the caller's contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, ptr: *mut u8, layout: Layout) {
        grow(-layout.size().cast_signed());
        // SAFETY: the caller's contract.
        unsafe { System.dealloc(ptr, layout) }
    }

    unsafe fn realloc(&self, ptr: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        // The kernel moves pages of large blocks instead of copying them.
        grow(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: the caller's contract.
        unsafe { System.realloc(ptr, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn count(work: impl FnOnce()) -> usize {
    COUNT.store(0, Ordering::SeqCst);
    ARMED.store(true, Ordering::SeqCst);
    work();
    ARMED.store(false, Ordering::SeqCst);
    COUNT.load(Ordering::SeqCst)
}

/// The maximum of bytes that `work` uses at a time.
fn peak<T>(work: impl FnOnce() -> T) -> (usize, T) {
    LIVE.store(0, Ordering::SeqCst);
    PEAK.store(0, Ordering::SeqCst);
    ARMED.store(true, Ordering::SeqCst);
    let out = work();
    ARMED.store(false, Ordering::SeqCst);
    (PEAK.load(Ordering::SeqCst).unsigned_abs(), out)
}

#[test]
#[ignore = "run by the other test, in a process where nothing else allocates"]
fn counted() {
    assert!(count(|| drop(std::hint::black_box(vec![1u8; 100]))) > 0, "the counter counts");
    for model in ["tiny-llama-Q4_K_M", "tiny-qwen3-Q8_0", "tiny-llama-f16"] {
        let spec = spec(tiny(model), "cpu");
        let handle =
            start(LoadSpec { slots: 3, context: 512, prefill_chunk: 64, threads: 2, ..spec });
        let counted = handle.exclusive("count", |runner| {
            let mut session = BenchSession::new(runner);
            for slot in 0..3 {
                session.prefill(slot, &[1, 2, 3]).unwrap();
            }
            // The first steps may fill pools.
            session.decode(3, 2).unwrap();
            session.decode(1, 2).unwrap();
            count(|| {
                session.decode(3, 40).unwrap();
                session.decode(1, 40).unwrap();
            })
        });
        assert_eq!(counted.blocking_recv().unwrap().unwrap(), 0, "{model}");
    }
}

#[test]
fn decoding_allocates_nothing() {
    said(&mut again(module_path!(), "counted"));
}

/// Template and tokeniser of a family.
fn text_of(name: &str) -> (ChatTemplate, Tokenizer) {
    let data = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/vocab");
    let file = Gguf::open(data.join(name)).unwrap();
    let mut vocabulary = Vocabulary::from_metadata(file.metadata()).unwrap();
    // Some of these vocabularies show no format of chats.
    let plain = "{% for m in messages %}{{ '[' ~ m.role ~ ']' ~ m.content ~ '\n' }}{% endfor %}";
    vocabulary.chat_template.get_or_insert_with(|| plain.into());
    (ChatTemplate::new(&vocabulary).unwrap(), Tokenizer::new(vocabulary).unwrap())
}

#[test]
#[ignore = "run by the other test, in a process where nothing else allocates"]
fn measured() {
    measure(&["llama-bpe.gguf", "llama-spm.gguf"]);
}

#[test]
#[ignore = "run by the other test, in a process where nothing else allocates"]
fn more_measured() {
    measure(&["qwen2.gguf", "gemma-4.gguf"]);
}

/// Measures the memory that templates and tokenizers use, with the vocabularies of these files.
fn measure(vocabularies: &[&str]) {
    const MIB: usize = 1 << 20;
    static NEVER: AtomicBool = AtomicBool::new(false);
    let mut state = 0x9e37_79b9_u32;
    let mut random = |below: u32| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state % below
    };
    let letters: String =
        (0..MIB / 4).map(|_| char::from(b'a' + random(26).to_le_bytes()[0])).collect();
    // Enough kinds of characters for the largest automata of the pre-tokeniser.
    let scripts: String = (0..MIB / 8).filter_map(|_| char::from_u32(random(0x3000))).collect();
    for &name in vocabularies {
        let sentencepiece = ["llama-spm.gguf", "gemma-4.gguf"].contains(&name);
        // Each text with the length of its longest word, and with that of SentencePiece, whose words end only at
        // spaces.
        let texts = [
            (" ".repeat(MIB), MIB, 3 * MIB),
            ("a".repeat(MIB), MIB, MIB),
            (letters.clone(), letters.len(), letters.len()),
            (scripts.clone(), 4096, scripts.len()),
            ("to be or not. ".repeat(MIB / 14), 16, 16),
            ("<|eot_id|><|im_end|>".repeat(MIB / 20), 16, MIB),
        ];
        for (text, longest_word, unspaced) in texts {
            let (template, tokenizer) = text_of(name);
            let messages = [Message::new("user", text)];
            let bytes = messages[0].content.len();
            let (render, prompt) =
                peak(|| template.render(&messages, &RenderOptions::answer(), &NEVER).unwrap());
            let what: String = messages[0].content.chars().take(4).collect();
            assert!(render <= 8 * bytes + 512 + MIB, "{name} {what:?}: {render} for {bytes}");

            let bounds = |tokens| Bounds { tokens, cancelled: &NEVER };
            let encode = |tokens| peak(|| tokenizer.encode_rendered(&prompt, &bounds(tokens)));
            let (encoding, ids) = encode(usize::MAX);
            let ids = ids.unwrap().len();
            let promised = |ids: usize| match sentencepiece {
                // The template adds some bytes.
                true => 10 * (unspaced + 256) + 8 * ids,
                false => 9 * longest_word + 8 * ids + 4 * MIB,
            };
            assert!(
                encoding <= promised(ids),
                "{name} {what:?}: {encoding} for {bytes}, {ids} ids"
            );
            let (encoding, refused) = encode(ids / 2);
            assert!(matches!(refused, Err(Error::TooManyTokens { .. })), "{refused:?}");
            assert!(encoding <= promised(ids / 2), "{name} {what:?}: {encoding} when refused");
        }
        let (template, _) = text_of(name);
        let messages = vec![Message::new("user", "hi"); 2000];
        let (render, prompt) =
            peak(|| template.render(&messages, &RenderOptions::answer(), &NEVER));
        assert!(render <= 2000 * (8 * 6 + 512) + MIB, "{render}, {prompt:?}");
        prompt.unwrap();
    }
}

#[test]
fn memory_for_the_text_of_a_request_is_bounded() {
    said(&mut again(module_path!(), "measured"));
}

#[test]
#[ignore = "nightly"]
fn nightly_memory_for_the_text_of_a_request_is_bounded_for_more_vocabularies() {
    said(&mut again(module_path!(), "more_measured"));
}
