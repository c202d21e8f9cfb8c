//! The engine through its handle: answers, batching, cancellation, limits. Runs on the reference and CPU devices with
//! small models whose answers llama.cpp computed.

use std::time::{Duration, Instant};

use ::engine::{
    BenchSession, FinishReason, GenerateError, Handle, LoadError, LoadEvent, LoadSpec, Request,
    Settings, State,
};
use config::CpuIsa;
use orind_testing::engine::{self, Answer, ask, collect, load};
use orind_testing::{data, tiny};
use plan::sample::Sampling;
use serde_json::Value;

const BACKENDS: [&str; 2] = ["reference", "cpu"];

fn spec(model: &str, backend: &str) -> LoadSpec {
    LoadSpec { slots: 4, prefill_chunk: 32, threads: 2, ..engine::spec(tiny(model), backend) }
}

fn start(model: &str, backend: &str) -> Handle {
    engine::start(spec(model, backend))
}

fn request(prompt: &[u32], max_tokens: u32) -> Request {
    engine::request(prompt.iter().copied(), max_tokens)
}

/// Prompts and llama.cpp's greedy answers with their margins.
fn known(model: &str) -> Vec<(Vec<u32>, Vec<u32>, Vec<f64>)> {
    let bytes = std::fs::read(data(&format!("expected/{model}.json"))).unwrap();
    let json: Value = serde_json::from_slice(&bytes).unwrap();
    let ids =
        |v: &Value| v.as_array().unwrap().iter().map(|i| i.as_u64().unwrap() as u32).collect();
    let prompt = |p: &Value| {
        let variant = &p["variants"]["kv_f16_fa0"];
        let margins =
            variant["margin"].as_array().unwrap().iter().map(|m| m.as_f64().unwrap()).collect();
        (ids(&p["ids"]), ids(&variant["greedy"]), margins)
    };
    json["prompts"].as_array().unwrap().iter().map(prompt).collect()
}

#[test]
fn greedy_answers_match_llama_cpp() {
    let models = ["tiny-llama-Q8_0", "tiny-qwen3-Q4_K_M"];
    for (backend, model) in BACKENDS.into_iter().flat_map(|b| models.map(|model| (b, model))) {
        let handle = start(model, backend);
        for (prompt, greedy, margins) in known(model) {
            // Twice the largest error of llama.cpp itself on these models.
            let sure = margins.iter().position(|m| *m < 1.2).unwrap_or(margins.len());
            let answer = ask(&handle, request(&prompt, greedy.len() as u32));
            assert_eq!(answer.ids[..sure], greedy[..sure], "{model} on {backend}");
            assert_eq!(answer.ids.len(), greedy.len());
            assert_eq!(*answer.reason(), FinishReason::Length);
        }
        handle.stop(Duration::from_secs(5));
    }
}

fn sampled(seed: u64) -> Sampling {
    Sampling { temperature: 1.5, top_k: 50, top_p: 0.95, seed, ..Sampling::GREEDY }
}

/// More concurrent requests than slots, of different lengths.
#[test]
fn other_requests_change_no_answer() {
    BACKENDS.into_iter().for_each(check_concurrent_requests);
}

fn check_concurrent_requests(backend: &str) {
    let handle = start("tiny-llama-Q6_K", backend);
    let requests: Vec<Request> = (0..10u32)
        .map(|i| {
            let prompt: Vec<u32> = (0..1 + i * 7).map(|j| (i * 31 + j * 17) % 1000).collect();
            let mut request = request(&prompt, 8 + i);
            if i % 2 == 1 {
                request.sampling = sampled(u64::from(i));
            }
            request.logprobs = Some(2);
            request
        })
        .collect();
    let alone: Vec<Answer> = requests.iter().map(|r| ask(&handle, r.clone())).collect();
    let together: Vec<_> = requests.iter().map(|r| handle.generate(r.clone()).unwrap()).collect();
    for (alone, events) in alone.iter().zip(together) {
        let answer = collect(events).unwrap();
        assert_eq!((&alone.ids, &alone.text), (&answer.ids, &answer.text), "{backend}");
        assert_eq!(alone.logprobs, answer.logprobs, "log-probabilities differ");
    }
    assert_eq!(handle.snapshot().active, 0);
}

/// While other requests decode, chunks of a prompt are limited in time.
#[test]
fn a_long_prompt_is_split_into_short_chunks_while_others_decode() {
    let serve = |stall| {
        let spec = spec("tiny-llama-Q8_0", "cpu");
        let handle = engine::start(LoadSpec { stall, prefill_chunk: 64, ..spec });
        let mut stream = handle.generate(request(&[1, 2, 3], 150)).unwrap();
        let begun = stream.blocking_recv();
        let long: Vec<u32> = (5..197).collect();
        let answer = ask(&handle, request(&long, 4));
        let stream = collect(stream).unwrap();
        drop(begun);
        ((stream.ids, answer.ids), handle.snapshot().steps)
    };
    // Shorter than the smallest chunk takes: 8 rows at a time, 32 at first.
    let (answers, steps) = serve(Duration::from_nanos(1));
    let (same, fewer) = serve(Duration::ZERO);
    assert_eq!(answers, same);
    assert!(steps >= fewer + 10, "{steps} steps, {fewer} without a bound");
}

#[test]
fn equal_seeds_give_equal_answers_and_other_seeds_others() {
    let handle = start("tiny-llama-Q8_0", "reference");
    let with =
        |seed| ask(&handle, Request { sampling: sampled(seed), ..request(&[1, 2, 3], 24) }).ids;
    assert_eq!(with(7), with(7));
    assert_ne!(with(7), with(8));
}

#[test]
fn prompt_logprobs_equal_token_logprobs() {
    let handle = start("tiny-qwen3-Q8_0", "reference");
    let prompt: Vec<u32> = (0..40).map(|i| i * 23 % 1000).collect();
    let generated = ask(&handle, Request { logprobs: Some(5), ..request(&prompt, 6) });
    assert!(generated.prompt.is_none());
    // The generated tokens as part of a longer prompt: the same log-probabilities.
    let longer = [&prompt[..], &generated.ids].concat();
    let echoed =
        ask(&handle, Request { logprobs: Some(5), prompt_logprobs: true, ..request(&longer, 0) });
    let all = echoed.prompt.as_ref().unwrap();
    assert_eq!(all.len(), longer.len());
    assert!(all[0].token.logprob.is_nan() && all[0].top.is_empty());
    assert!(echoed.ids.is_empty());
    for (i, (echoed, generated)) in all[prompt.len()..].iter().zip(&generated.logprobs).enumerate()
    {
        assert_eq!(echoed, generated, "token {i}");
        assert_eq!(generated.top.len(), 5);
        assert_eq!(
            generated.top[0].id, generated.token.id,
            "greedy sampling takes the most likely token"
        );
        assert!(generated.top.windows(2).all(|w| w[0].logprob >= w[1].logprob));
    }
}

#[test]
fn stop_texts_end_the_answer_and_are_not_part_of_it() {
    let handle = start("tiny-llama-Q8_0", "reference");
    let free = ask(&handle, request(&[5, 6, 7], 40));
    let whole: Vec<char> = free.text.chars().collect();
    let stop: String = whole[whole.len() / 2..whole.len() / 2 + 3].iter().collect();
    let stopped = ask(&handle, Request { stop: vec![stop.clone()], ..request(&[5, 6, 7], 40) });
    assert_eq!(*stopped.reason(), FinishReason::Stop { text: stop.clone() });
    assert_eq!(stopped.text, free.text[..free.text.find(&stop).unwrap()]);
}

#[test]
fn the_beginning_of_a_stop_text_is_sent_at_the_end() {
    let handle = start("tiny-llama-Q8_0", "reference");
    let free = ask(&handle, request(&[5, 6, 7], 40));
    let (at, _) = free.text.char_indices().nth_back(1).unwrap();
    let stop = format!("{}, and never this", &free.text[at..]);
    let held = ask(&handle, Request { stop: vec![stop], ..request(&[5, 6, 7], 40) });
    assert_eq!(*held.reason(), FinishReason::Length);
    assert_eq!(held.text, free.text);
}

#[test]
fn a_dropped_receiver_frees_its_slot() {
    let handle = start("tiny-llama-Q8_0", "reference");
    let mut long = handle.generate(request(&[1], 250)).unwrap();
    long.blocking_recv().unwrap();
    assert_eq!(handle.snapshot().active, 1);
    drop(long);
    let before = handle.snapshot().requests;
    let _ = ask(&handle, request(&[1], 2));
    let now = handle.snapshot();
    assert_eq!((now.active, now.queued, now.requests), (0, 0, before + 2));
}

#[test]
fn requests_that_cannot_be_served_are_refused_at_once() {
    let handle = Handle::start(Settings { queue_limit: 1 }).unwrap();
    assert_eq!(handle.generate(request(&[1], 1)).unwrap_err(), GenerateError::NoModel);
    load(&handle, LoadSpec { slots: 1, ..spec("tiny-llama-Q8_0", "reference") }).unwrap();
    let too_long = handle.generate(request(&[1; 200], 57)).unwrap_err();
    assert_eq!(too_long, GenerateError::TooLong { prompt: 200, max_tokens: 57, context: 256 });
    for prompt in [&[][..], &[1024]] {
        let refused = handle.generate(request(prompt, 1)).unwrap_err();
        assert!(matches!(refused, GenerateError::Invalid { field: "prompt", .. }), "{refused}");
    }
    let one = handle.generate(request(&[1], 200)).unwrap();
    let two = handle.generate(request(&[1], 1)).unwrap();
    let three = handle.generate(request(&[1], 1)).unwrap_err();
    assert!(matches!(three, GenerateError::QueueFull { limit: 1, .. }), "{three}");
    drop(one);
    assert_eq!(collect(two).unwrap().ids.len(), 1);
}

#[test]
fn a_stop_cancels_late_requests_and_refuses_new_ones() {
    let handle = start("tiny-llama-Q8_0", "reference");
    let mut slow = handle.generate(request(&[1], 250)).unwrap();
    slow.blocking_recv().unwrap();
    handle.stop(Duration::from_millis(20));
    let answer = collect(slow).unwrap();
    assert_eq!(*answer.reason(), FinishReason::Cancelled);
    assert!(matches!(
        handle.generate(request(&[1], 1)),
        Err(GenerateError::Stopping | GenerateError::NoModel)
    ));
}

#[test]
fn a_stop_with_nothing_in_flight_does_not_wait_for_its_deadline() {
    let handle = start("tiny-llama-Q8_0", "reference");
    let started = Instant::now();
    handle.stop(Duration::from_secs(600));
    assert!(started.elapsed() < Duration::from_secs(300));
}

#[test]
fn a_load_is_visible_as_soon_as_it_is_requested() {
    let handle = Handle::start(Settings { queue_limit: 1 }).unwrap();
    let mut events = handle.load(spec("tiny-llama-Q8_0", "cpu"));
    assert!(!matches!(handle.snapshot().state, State::Empty));
    while let Some(LoadEvent::Progress { .. }) = events.blocking_recv() {}
    assert!(matches!(handle.snapshot().state, State::Ready(_)));
}

#[test]
fn a_load_waits_for_the_requests_in_flight() {
    let handle = start("tiny-llama-Q8_0", "cpu");
    let old = handle.snapshot().state;
    let answer = handle.generate(request(&[1, 2, 3], 40)).unwrap();
    let mut events = handle.load(spec("tiny-llama-Q6_K", "cpu"));
    while let Some(event) = events.blocking_recv() {
        assert!(!matches!(event, LoadEvent::Failed(_) | LoadEvent::Unloading { .. }), "{event:?}");
    }
    assert_eq!(collect(answer).unwrap().ids.len(), 40);
    let now = handle.snapshot();
    assert!(now.state != old && now.loading.is_none());
}

#[test]
fn without_room_for_both_the_loaded_model_is_unloaded_first_and_reported() {
    let handle = start("tiny-llama-Q8_0", "cpu");
    let crowded = LoadSpec { memory_reserve: u64::MAX, ..spec("tiny-llama-Q6_K", "cpu") };
    let mut events = handle.load(crowded);
    let mut said = None;
    let loaded = loop {
        match events.blocking_recv().unwrap() {
            LoadEvent::Progress { .. } => {}
            LoadEvent::Unloading { model, why } => said = Some((model, why)),
            end => break end,
        }
    };
    assert!(matches!(loaded, LoadEvent::Loaded(_)), "{loaded:?}");
    let (model, why) = said.unwrap();
    assert!(model == "tiny-llama-Q8_0" && why.contains("no room for both"), "{model}: {why}");
}

#[test]
fn the_last_requested_load_wins() {
    let handle = start("tiny-llama-Q8_0", "cpu");
    let mut first = handle.load(spec("tiny-llama-Q6_K", "cpu"));
    let second = load(&handle, spec("tiny-llama-f16", "cpu")).unwrap();
    let ended = std::iter::from_fn(|| first.blocking_recv()).last().unwrap();
    let known = matches!(&ended, LoadEvent::Failed(LoadError::GivenUp(_)) | LoadEvent::Loaded(_));
    assert!(known, "{ended:?}");
    let State::Ready(now) = handle.snapshot().state else { unreachable!("it was loaded") };
    assert_eq!(now.id, second.id);
}

#[test]
fn a_failed_load_keeps_the_loaded_model() {
    let handle = start("tiny-llama-Q8_0", "reference");
    let missing = load(&handle, spec("no-such-file", "reference")).unwrap_err();
    assert!(matches!(missing, LoadError::NotFound(_)), "{missing}");
    let huge = LoadSpec { slots: 256, context: 1 << 24, ..spec("tiny-llama-Q6_K", "reference") };
    let refused = load(&handle, huge).unwrap_err();
    assert!(
        matches!(&refused, LoadError::OutOfMemory(why) if why.contains("256 slots")),
        "{refused}"
    );
    let foreign = if cfg!(target_arch = "x86_64") { CpuIsa::Neon } else { CpuIsa::Avx2 };
    let isa = LoadSpec { cpu_isa: foreign, ..spec("tiny-llama-Q6_K", "cpu") };
    let refused = load(&handle, isa).unwrap_err();
    let name = foreign.to_string();
    assert!(
        matches!(&refused, LoadError::Invalid(why) if why.contains(&name) && why.contains("scalar")),
        "{refused}"
    );
    assert_eq!(ask(&handle, request(&[1], 3)).ids.len(), 3);
    load(&handle, spec("tiny-qwen3-Q8_0", "reference")).unwrap();
    let State::Ready(info) = handle.snapshot().state else { panic!("a model is loaded") };
    assert_eq!((info.architecture.as_str(), info.file_type.as_str()), ("qwen3", "Q8_0"));
}

#[test]
fn an_exclusive_task_has_the_model_to_itself() {
    let handle = start("tiny-llama-Q8_0", "reference");
    let other = handle.generate(request(&[1], 30)).unwrap();
    let lengths = handle.exclusive("test", |runner| {
        let mut session = BenchSession::new(runner);
        session.prefill(0, &[1, 2, 3]).unwrap();
        session.prefill(1, &[4; 70]).unwrap();
        session.decode(2, 5).unwrap();
        assert!(session.decode(3, 300).is_err(), "more than the context");
        [session.length(0), session.length(1)]
    });
    assert_eq!(lengths.blocking_recv().unwrap().unwrap(), [8, 75]);
    assert_eq!(collect(other).unwrap().ids.len(), 30);
}
