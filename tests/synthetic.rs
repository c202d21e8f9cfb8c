//! Synthetic models through the engine: thousands of tokens stay finite, and the tiny ones choose
//! their tokens by margins that no device's rounding reaches.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

use orind::engine::{Event, Handle, LoadEvent, LoadSpec, Request, Settings, TokenLogprobs};
use plan::sample::Sampling;

fn start(model: &str, backend: &str, context: usize) -> Handle {
    let handle = Handle::start(Settings { queue_limit: 4 }).unwrap();
    let mut events = handle.load(LoadSpec {
        model: model.into(),
        backend: backend.into(),
        slots: 1,
        context,
        prefill_chunk: 64,
        threads: 2,
        cpu_isa: "auto".into(),
        tuning: orind::engine::tuning::Tuning::default(),
    });
    loop {
        match events.blocking_recv().unwrap() {
            LoadEvent::Progress { .. } => {}
            LoadEvent::Loaded(info) => {
                assert!(info.synthetic);
                return handle;
            }
            LoadEvent::Failed(error) => panic!("{error}"),
        }
    }
}

fn greedy(handle: &Handle, prompt: usize, max_tokens: u32) -> Vec<TokenLogprobs> {
    let request = Request {
        prompt: (0..prompt as u32).map(|i| i * 61 % 1000).collect(),
        max_tokens,
        sampling: Sampling::GREEDY,
        stop: vec![],
        ignore_end: true,
        logprobs: Some(2),
        prompt_logprobs: false,
    };
    let mut events = handle.generate(request).unwrap();
    let mut all = Vec::new();
    while let Some(event) = events.blocking_recv() {
        match event {
            Event::Token(token) => all.extend(token.logprobs),
            Event::Failed(error) => panic!("{error}"),
            Event::Prompt(_) | Event::Finished(_) => {}
        }
    }
    assert_eq!(all.len(), max_tokens as usize);
    all
}

#[test]
fn thousands_of_tokens_stay_finite_and_clear() {
    for model in ["synthetic:tiny-llama:q8_0", "synthetic:tiny-qwen3:q4_k_m"] {
        let handle = start(model, "cpu", 4096);
        let tokens = greedy(&handle, 2500, 1200);
        for (i, token) in tokens.iter().enumerate() {
            let [first, second] = &token.top[..] else { panic!("two were asked for") };
            let margin = first.logprob - second.logprob;
            assert!(first.logprob.is_finite() && second.logprob.is_finite(), "{model} token {i}");
            assert!(margin > 1.0, "{model} token {i}: margin {margin}");
        }
        let ids: std::collections::BTreeSet<u32> = tokens.iter().map(|t| t.token.id).collect();
        assert!(ids.len() > 50, "{model}: the text does not run in a short circle");
    }
}

#[test]
fn devices_choose_the_same_tokens() {
    for model in ["synthetic:tiny-llama:q6_k", "synthetic:tiny-qwen3:q8_0"] {
        let ids = |backend| -> Vec<u32> {
            let handle = start(model, backend, 256);
            greedy(&handle, 30, 60).iter().map(|t| t.token.id).collect()
        };
        assert_eq!(ids("cpu"), ids("reference"), "{model}");
    }
}
