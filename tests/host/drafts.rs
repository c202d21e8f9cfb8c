//! Speculative decoding: draft tokens change the number of steps of an answer, never the answer.

use ::engine::{Handle, LoadSpec, Request, State};
use orind_testing::engine::{self, Answer, ask, collect};
use orind_testing::model_variants;
use orind_testing::random::Random;
use orind_testing::tiny;
use plan::sample::Sampling;

/// Models that repeat themselves after a repeated token. The last one has recurrent states, which rejected draft tokens
/// would advance too far.
const MODELS: [&str; 3] =
    ["synthetic:tiny-llama:q8_0", "synthetic:tiny-qwen3:q4_k_m", "synthetic:tiny-qwen35:q8_0"];
const CONTEXT: usize = 512;

fn start(model: &str, draft: usize) -> Handle {
    let spec = engine::spec(model, "cpu");
    engine::start(LoadSpec { draft, slots: 2, context: CONTEXT, prefill_chunk: 16, ..spec })
}

/// Numbers of draft tokens and of accepted tokens.
fn drafts(answer: &Answer) -> (u32, u32) {
    let finished = answer.finished.as_ref().unwrap();
    (finished.drafted_tokens, finished.accepted_tokens)
}

/// A prompt: a token and the model's answer to it, some other tokens, then the beginning of the same again.
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
fn lookup_drafts_change_no_greedy_or_sampled_token() {
    let seed = 20_261_125;
    println!("seed {seed}");
    let mut random = Random(seed);
    for model in MODELS {
        let (with, without, another) = (start(model, 7), start(model, 0), start(model, 0));
        let hybrid = model == MODELS[2];
        let (mut drafted, mut accepted) = (0, 0);
        for i in 0..12 {
            let temperature = [0.0, 0.0, 0.4, 1.0][i % 4];
            let sampling = Sampling {
                temperature,
                top_k: 20,
                top_p: 0.9,
                seed: random.bits(),
                ..Sampling::GREEDY
            };
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
            // Async scheduling may add one step after the end.
            assert!(fewer <= steps + 1 || hybrid, "{fewer} steps instead of {steps}");
            drafted += drafts(&one).0;
            accepted += drafts(&one).1;
        }
        println!("{model}: {accepted} of {drafted} draft tokens accepted");
        let some = if hybrid { 0 } else { 10 };
        assert!(accepted > some && accepted < drafted, "{accepted} of {drafted}");
    }
}

fn start_with(draft_model: Option<&str>, model: &str, kv_type: &str) -> Handle {
    let (spec, kv_type) = (engine::spec(model, "cpu"), kv_type.parse().unwrap());
    let draft_model = draft_model.map(str::to_owned);
    let spec = LoadSpec { draft: 7, draft_model, slots: 2, kv_type, ..spec };
    engine::start(LoadSpec { context: CONTEXT, prefill_chunk: 16, ..spec })
}

/// Drafts by the served model itself, and by a more quantised one, have different acceptance rates.
#[test]
fn a_draft_model_changes_no_token() {
    let seed = 20_261_126;
    println!("seed {seed}");
    let (served, near) = (tiny("tiny-llama-f16"), tiny("tiny-llama-Q4_K_M"));
    let without = start_with(None, &served, "f16");
    let mut rates = Vec::new();
    for draft in [&served, &near] {
        let mut random = Random(seed);
        let with = start_with(Some(draft), &served, "f16");
        let info = match with.snapshot().state {
            State::Ready(info) => info.draft.unwrap(),
            state => panic!("{state:?}"),
        };
        assert!(draft.contains(&*info), "{info}");
        let (mut drafted, mut accepted) = (0, 0);
        for i in 0..8 {
            let temperature = [0.0, 0.7, 1.0][i % 3];
            let sampling = Sampling {
                temperature,
                top_k: 0,
                top_p: 0.95,
                seed: random.bits(),
                ..Sampling::GREEDY
            };
            // Longer than one step of the draft model.
            let len = 1 + random.below(60);
            let prompt: Vec<u32> = (0..len).map(|_| 1 + random.below(200) as u32).collect();
            let request = engine::request(prompt, 40 + random.below(60) as u32);
            let request = Request { sampling, ..request };
            let (one, other) = (ask(&with, request.clone()), ask(&without, request));
            assert_eq!((&one.ids, &one.text), (&other.ids, &other.text), "{draft}, request {i}");
            assert_eq!(one.reason(), other.reason());
            drafted += drafts(&one).0;
            accepted += drafts(&one).1;
        }
        println!("{draft}: {accepted} of {drafted} draft tokens accepted");
        assert!(accepted <= drafted && drafted > 0);
        rates.push(f64::from(accepted) / f64::from(drafted));
    }
    assert!(rates[0] > 0.9 && rates[1] < rates[0], "{rates:?}");
}

/// The draft model holds one sequence at a time. Two concurrent sequences have no drafts.
#[test]
fn a_draft_model_follows_a_sequence_that_decodes_alone() {
    let served = tiny("tiny-llama-Q8_0");
    let [with, without] = [Some(&*served), None].map(|draft| start_with(draft, &served, "f16"));
    let requests: Vec<Request> =
        (0..6).map(|i| engine::request((0..30).map(|at| 1 + i % 2 + at), 20 + 10 * i)).collect();
    let mut accepted = 0;
    for request in &requests {
        let (one, other) = (ask(&with, request.clone()), ask(&without, request.clone()));
        assert_eq!(one.ids, other.ids);
        accepted += drafts(&one).1;
    }
    // The draft model is as slow as the served one, so drafting pauses after some drafts.
    assert!(accepted > 0);
    let streams = [&requests[0], &requests[5]].map(|r| with.generate(r.clone()).unwrap());
    for (events, request) in streams.into_iter().zip([&requests[0], &requests[5]]) {
        assert_eq!(collect(events).unwrap().ids, ask(&without, request.clone()).ids);
    }
}

#[test]
fn a_draft_model_with_another_vocabulary_is_refused() {
    let (served, other) = (tiny("tiny-llama-Q8_0"), tiny("tiny-qwen3-Q8_0"));
    let refused = |draft: &str| {
        let draft_model = Some(draft.to_owned());
        let spec = LoadSpec { draft: 7, draft_model, ..engine::spec(&*served, "cpu") };
        engine::load(&engine::engine(), spec).unwrap_err().to_string()
    };
    let message = refused(&other);
    assert!(message.starts_with(&format!("draft model {other}: its ")), "{message}");
    assert!(message.contains("the served model's"), "{message}");
    let message = refused("/nowhere.gguf");
    assert!(message.starts_with("draft model /nowhere.gguf: "), "{message}");
}

#[test]
fn drafts_end_at_the_last_position_of_a_slot() {
    let [with, without] = [7, 0].map(|draft| start(MODELS[0], draft));
    let prompt = repetitive(&without, &mut Random(5));
    let most = (CONTEXT - prompt.len()) as u32;
    let [one, other] =
        [&with, &without].map(|handle| ask(handle, engine::request(prompt.clone(), most)));
    assert_eq!((one.ids.len(), &one.ids), (most as usize, &other.ids));
    assert!(drafts(&one).1 > 0);
}

/// The host reads every row of logits then.
#[test]
fn requests_for_logprobs_have_no_drafts() {
    let handle = start(MODELS[0], 7);
    let prompt = repetitive(&start(MODELS[0], 0), &mut Random(6));
    let with_logprobs = Request { logprobs: Some(1), ..engine::request(prompt.clone(), 40) };
    assert_eq!(drafts(&ask(&handle, with_logprobs)), (0, 0));
    assert!(drafts(&ask(&handle, engine::request(prompt, 40))).1 > 0);
}

/// Drafts of the model's own nextn layer. The first model's layer is random, so few tokens are accepted. In the second
/// model the next token depends on the last one only, which its layer has learnt.
#[test]
fn a_nextn_layer_changes_no_token() {
    let seed = 20_261_127;
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let made = model::synthetic::locate(MODELS[2], &mut |_, _| {}).unwrap();
    let random = made.to_str().unwrap().to_owned();
    let knowing = model_variants::of_pairs(&random, dir.path());
    for (model, least) in [(&random, 0.0), (&knowing, 0.9)] {
        let with = start_with(None, model, "f16");
        let without = start_with(Some("none"), model, "f16");
        let of = |handle: &Handle| match handle.snapshot().state {
            State::Ready(info) => info.draft,
            state => panic!("{state:?}"),
        };
        assert_eq!((of(&with).as_deref(), of(&without)), (Some("its own nextn layer"), None));
        let mut random = Random(seed);
        let (mut drafted, mut accepted) = (0, 0);
        let mut said = vec![1];
        for i in 0..12 {
            let temperature = [0.0, 0.7, 1.0][i % 3];
            let sampling = Sampling {
                temperature,
                top_k: 20,
                top_p: 0.95,
                seed: random.bits(),
                ..Sampling::GREEDY
            };
            // Prompts longer than a chunk; every other one continues the conversation.
            if i % 2 == 0 {
                said.clear();
            }
            said.extend((0..1 + random.below(40)).map(|_| 1 + random.below(900) as u32));
            let request = engine::request(said.clone(), 20 + random.below(60) as u32);
            let request = Request { sampling, ..request };
            let (one, other) = (ask(&with, request.clone()), ask(&without, request));
            assert_eq!((&one.ids, &one.text), (&other.ids, &other.text), "request {i}");
            drafted += drafts(&one).0;
            accepted += drafts(&one).1;
            said.extend(&one.ids);
        }
        println!("{accepted} of {drafted} draft tokens accepted");
        assert!(f64::from(accepted) >= least * f64::from(drafted) && accepted <= drafted);
        assert!(drafted > 0);
    }
}

/// Answers that are cancelled during a draft, end in one, or share steps with another sequence for a while.
#[test]
fn conversations_continue_correctly_after_drafts() {
    let seed = 20_261_128;
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let made = model::synthetic::locate(MODELS[2], &mut |_, _| {}).unwrap();
    let random = made.to_str().unwrap().to_owned();
    for model in [&model_variants::of_pairs(&random, dir.path()), &random] {
        let (with, without) =
            (start_with(None, model, "f16"), start_with(Some("none"), model, "f16"));
        let mut random = Random(seed);
        let mut said: Vec<u32> = vec![1, 2, 3];
        let mut cached = 0;
        for i in 0..16 {
            if said.len() > 300 {
                said.truncate(3);
            }
            said.extend((0..1 + random.below(9)).map(|_| 1 + random.below(900) as u32));
            let request = engine::request(said.clone(), 1 + random.below(30) as u32);
            let company = (i % 3 == 0).then(|| {
                let (tokens, other) = (1 + random.below(9) as u32, 1 + random.below(900) as u32);
                with.generate(engine::request(other..other + 20, tokens)).unwrap()
            });
            if i % 4 == 3 {
                let mut events = with.generate(request.clone()).unwrap();
                for _ in 0..random.below(8) {
                    events.blocking_recv();
                }
                drop(events);
            }
            let (one, other) = (ask(&with, request.clone()), ask(&without, request));
            assert_eq!((&one.ids, &one.text), (&other.ids, &other.text), "{model}, request {i}");
            if let Some(company) = company {
                collect(company).unwrap();
            }
            cached += one.finished.unwrap().cached_tokens;
            said.extend(&one.ids);
        }
        assert!(cached > 100, "{cached} cached tokens");
    }
}
