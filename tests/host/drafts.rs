//! Drafts from what was said before: they change how many steps an answer takes, and never the answer.

use ::engine::{Handle, LoadSpec, Request, State};
use orind_testing::engine::{self, Answer, ask, collect};
use orind_testing::odd;
use orind_testing::random::Random;
use orind_testing::tiny;
use plan::sample::Sampling;

/// Models that say the same again when they come to the same token; the last one has states of fixed size, which a draft
/// that does not come true moves too far.
const MODELS: [&str; 3] =
    ["synthetic:tiny-llama:q8_0", "synthetic:tiny-qwen3:q4_k_m", "synthetic:tiny-qwen35:q8_0"];
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
        let hybrid = model == MODELS[2];
        let (mut drafted, mut accepted) = (0, 0);
        for i in 0..8 {
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
            // A step that ran ahead of an end may be one more.
            assert!(fewer <= steps + 1 || hybrid, "{fewer} steps instead of {steps}");
            drafted += drafts(&one).0;
            accepted += drafts(&one).1;
        }
        println!("{model}: {accepted} of {drafted} drafted tokens came true");
        let some = if hybrid { 0 } else { 10 };
        assert!(accepted > some && accepted < drafted, "{accepted} of {drafted}");
    }
}

fn start_with(draft_model: Option<&str>, model: &str, kv_type: &str) -> Handle {
    let (spec, kv_type) = (engine::spec(model, "cpu"), kv_type.to_owned());
    let draft_model = draft_model.map(str::to_owned);
    let spec = LoadSpec { draft: 7, draft_model, slots: 2, kv_type, ..spec };
    engine::start(LoadSpec { context: CONTEXT, prefill_chunk: 16, ..spec })
}

/// By the served model itself, and by one of other types: how much comes true differs, the answers do not.
#[test]
fn tokens_are_those_without_a_draft_model() {
    let seed = 20_261_126;
    println!("seed {seed}");
    let (served, near) = (tiny("tiny-llama-f16"), tiny("tiny-llama-Q4_K_M"));
    let without = start_with(None, &served, "f16");
    let mut came_true = Vec::new();
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
            // Longer than what the draft model evaluates in a step.
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
        println!("{draft}: {accepted} of {drafted} drafted tokens came true");
        assert!(accepted <= drafted && drafted > 0);
        came_true.push(f64::from(accepted) / f64::from(drafted));
    }
    assert!(came_true[0] > 0.9 && came_true[1] < came_true[0], "{came_true:?}");
}

/// Two sequences in turn, of which the draft model knows one at a time, and two at once, which have no drafts.
#[test]
fn a_draft_model_follows_whoever_decodes_alone() {
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
    // It is as slow as who is served, so it rests; not from the beginning.
    assert!(accepted > 0);
    let streams = [&requests[0], &requests[5]].map(|r| with.generate(r.clone()).unwrap());
    for (events, request) in streams.into_iter().zip([&requests[0], &requests[5]]) {
        assert_eq!(collect(events).unwrap().ids, ask(&without, request.clone()).ids);
    }
}

#[test]
fn a_draft_model_with_other_words_is_refused_by_name() {
    let (served, other) = (tiny("tiny-llama-Q8_0"), tiny("tiny-qwen3-Q8_0"));
    let refused = |draft: &str| {
        let draft_model = Some(draft.to_owned());
        let spec = LoadSpec { draft: 7, draft_model, ..engine::spec(&*served, "cpu") };
        engine::load(&engine::engine(), spec).unwrap_err().to_string()
    };
    let told = refused(&other);
    assert!(told.starts_with(&format!("draft model {other}: its ")), "{told}");
    assert!(told.contains("the served model's"), "{told}");
    let told = refused("/nowhere.gguf");
    assert!(told.starts_with("draft model /nowhere.gguf: "), "{told}");
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

/// The model's own nextn layer. It is random, so that little of what it guesses comes true; of the second model the
/// next token follows from the newest alone, and its layer knows that.
#[test]
fn tokens_are_those_without_the_nextn_layer() {
    let seed = 20_261_127;
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let made = model::synthetic::locate(MODELS[2], &mut |_, _| {}).unwrap();
    let random = made.to_str().unwrap().to_owned();
    let knowing = odd::of_pairs(&random, dir.path());
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
            // Longer than a chunk; every other conversation goes on.
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
        println!("{accepted} of {drafted} drafted tokens came true");
        assert!(f64::from(accepted) >= least * f64::from(drafted) && accepted <= drafted);
        assert!(drafted > 0);
    }
}

/// Answers that are given up within a draft, that end in one, and that have company for a while: whoever goes on from what
/// they left is answered as if alone.
#[test]
fn what_a_draft_has_left_is_gone_on_from() {
    let seed = 20_261_128;
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let made = model::synthetic::locate(MODELS[2], &mut |_, _| {}).unwrap();
    let random = made.to_str().unwrap().to_owned();
    for model in [&odd::of_pairs(&random, dir.path()), &random] {
        let (with, without) =
            (start_with(None, model, "f16"), start_with(Some("none"), model, "f16"));
        let mut random = Random(seed);
        let mut said: Vec<u32> = vec![1, 2, 3];
        let mut cached = 0;
        for i in 0..12 {
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
        assert!(cached > 100, "{cached} tokens were still held");
    }
}
