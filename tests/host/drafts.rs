//! Drafts from what was said before: they change how many steps an answer takes, and never the answer.

use orind::engine::{Handle, LoadSpec, Request};
use orind_testing::engine::{self, Answer, ask};
use orind_testing::random::Random;
use plan::sample::Sampling;

/// Models that say the same again when they come to the same token.
const MODELS: [&str; 2] = ["synthetic:tiny-llama:q8_0", "synthetic:tiny-qwen3:q4_k_m"];
const CONTEXT: usize = 512;

fn start(model: &str, draft: usize) -> Handle {
    let spec = engine::spec(model, "cpu");
    engine::start(LoadSpec { draft, slots: 2, context: CONTEXT, prefill_chunk: 16, ..spec })
}

/// Drafted, and of these the ones that came true.
fn drafts(answer: &Answer) -> (u32, u32) {
    let finished = answer.finished.as_ref().unwrap();
    (finished.drafted_tokens, finished.accepted_tokens)
}

/// What a model says after a token, and the beginning of it once more, with something else in between.
fn repetitive(handle: &Handle, random: &mut Random) -> Vec<u32> {
    let first = 1 + random.below(200) as u32;
    let said = ask(handle, engine::request([first], 60)).ids;
    let mut prompt = [&[first], &said[..]].concat();
    prompt.extend((0..random.below(8)).map(|_| 1 + random.below(200) as u32));
    prompt.push(first);
    prompt.extend(&said[..8 + random.below(12)]);
    prompt
}

#[test]
fn tokens_are_those_without_greedy_and_sampled() {
    let seed = 20_261_125;
    println!("seed {seed}");
    let mut random = Random(seed);
    for model in MODELS {
        let (with, without, another) = (start(model, 7), start(model, 0), start(model, 0));
        let (mut drafted, mut accepted) = (0, 0);
        for i in 0..12 {
            let temperature = [0.0, 0.0, 0.4, 1.0][i % 4];
            let sampling = Sampling { temperature, top_k: 20, top_p: 0.9, seed: random.bits() };
            let stop = if i % 3 == 0 { vec!["e".to_owned()] } else { Vec::new() };
            let ignore_end = i % 5 != 0;
            let prompt = repetitive(&another, &mut random);
            let request = engine::request(prompt, 1 + random.below(90) as u32);
            let request = Request { sampling, stop, ignore_end, ..request };
            let before = [&with, &without].map(|handle| handle.snapshot().steps);
            let (one, other) = (ask(&with, request.clone()), ask(&without, request));
            assert_eq!((&one.ids, &one.text), (&other.ids, &other.text), "{model}, request {i}");
            assert_eq!(one.reason(), other.reason());
            assert_eq!(drafts(&other), (0, 0));
            let after = [&with, &without].map(|handle| handle.snapshot().steps);
            let [fewer, steps] = [after[0] - before[0], after[1] - before[1]];
            // A step that ran ahead of an end may be one more.
            assert!(fewer <= steps + 1, "{fewer} steps instead of {steps}");
            drafted += drafts(&one).0;
            accepted += drafts(&one).1;
        }
        println!("{model}: {accepted} of {drafted} drafted tokens came true");
        assert!(accepted > 50 && accepted <= drafted, "{accepted} of {drafted}");
    }
}

/// An answer that ends at the last position of its slot, drafts or not.
#[test]
fn a_draft_ends_where_the_slot_does() {
    let [with, without] = [7, 0].map(|draft| start(MODELS[0], draft));
    let prompt = repetitive(&without, &mut Random(5));
    let most = (CONTEXT - prompt.len()) as u32;
    let [one, other] =
        [&with, &without].map(|handle| ask(handle, engine::request(prompt.clone(), most)));
    assert_eq!((one.ids.len(), &one.ids), (most as usize, &other.ids));
    assert!(drafts(&one).1 > 0);
}

/// Where the host looks at every row of logits there is no draft.
#[test]
fn who_is_looked_at_has_no_drafts() {
    let handle = start(MODELS[0], 7);
    let prompt = repetitive(&start(MODELS[0], 0), &mut Random(6));
    let looked_at = Request { logprobs: Some(1), ..engine::request(prompt.clone(), 40) };
    assert_eq!(drafts(&ask(&handle, looked_at)), (0, 0));
    assert!(drafts(&ask(&handle, engine::request(prompt, 40))).1 > 0);
}
