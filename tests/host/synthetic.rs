//! Synthetic models through the engine: long generations stay finite, and the margins of tiny models are larger than
//! any device's rounding errors.

use ::engine::{Handle, LoadSpec, Request, TokenLogprobs};
use orind_testing::engine;

fn start(model: &str, backend: &str, context: usize) -> Handle {
    let spec = LoadSpec { context, prefill_chunk: 64, threads: 2, ..engine::spec(model, backend) };
    let handle = engine::engine();
    assert!(engine::load(&handle, spec).unwrap().synthetic);
    handle
}

fn greedy(handle: &Handle, prompt: u32, max_tokens: u32) -> Vec<TokenLogprobs> {
    let prompt = (0..prompt).map(|i| i * 61 % 1000);
    let request = Request { logprobs: Some(2), ..engine::request(prompt, max_tokens) };
    let all = engine::ask(handle, request).logprobs;
    assert_eq!(all.len(), max_tokens as usize);
    all
}

#[test]
fn long_generations_have_finite_logits_and_large_margins() {
    check_margins(2500, 300);
}

#[test]
#[ignore = "nightly"]
fn nightly_longer_generations_have_finite_logits_and_large_margins() {
    check_margins(2500, 1200);
}

fn check_margins(prompt: u32, max_tokens: u32) {
    for model in ["synthetic:tiny-llama:q8_0", "synthetic:tiny-qwen3:q4_k_m"] {
        let handle = start(model, "cpu", 4096);
        let tokens = greedy(&handle, prompt, max_tokens);
        for (i, token) in tokens.iter().enumerate() {
            let [first, second] = &token.top[..] else { panic!("two were asked for") };
            let margin = first.logprob - second.logprob;
            assert!(first.logprob.is_finite() && second.logprob.is_finite(), "{model} token {i}");
            assert!(margin > 1.0, "{model} token {i}: margin {margin}");
        }
        let ids: std::collections::BTreeSet<u32> = tokens.iter().map(|t| t.token.id).collect();
        assert!(ids.len() > 50, "{model}: the text repeats itself");
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
