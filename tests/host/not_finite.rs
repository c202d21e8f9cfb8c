//! Models with NaN or infinities in their weights are refused by tensor name. If finite weights lead to non-finite
//! logits, the request gets an error with the model and position, and other requests are unaffected.

use ::engine::{BenchSession, Event, GenerateError, Handle, LoadError, LoadSpec, Request};
use orind_testing::engine::{self, ask, collect};
use orind_testing::model_variants::{odd, overflowing};
use orind_testing::tiny;
use plan::sample::Sampling;

const BACKENDS: [&str; 2] = ["reference", "cpu"];
const MODEL: &str = "tiny-llama-Q8_0";

fn start(model: &str, backend: &str) -> Handle {
    engine::start(LoadSpec { slots: 4, prefill_chunk: 32, ..engine::spec(model, backend) })
}

fn request(prompt: &[u32], max_tokens: u32) -> Request {
    engine::request(prompt.iter().copied(), max_tokens)
}

fn drawn(prompt: &[u32], max_tokens: u32) -> Request {
    let sampling =
        Sampling { temperature: 1.0, top_k: 40, top_p: 0.9, seed: 5, ..Sampling::GREEDY };
    Request { sampling, ..request(prompt, max_tokens) }
}

#[track_caller]
fn expect_not_finite(handle: &Handle, request: Request, position: usize) {
    let error = collect(handle.generate(request).unwrap()).unwrap_err();
    assert_eq!(error, GenerateError::NotFinite { model: "odd".into(), position, gpu: None });
    let message = error.to_string();
    assert!(
        message.contains("odd") && message.contains(&format!("position {position} ")),
        "{message}"
    );
}

/// The token is part of a prompt, or generated in the middle of an answer.
#[test]
fn a_token_with_a_non_finite_embedding_ends_only_requests_with_it() {
    let dir = tempfile::tempdir().unwrap();
    for backend in BACKENDS {
        let sound = start(&overflowing(&tiny(MODEL), dir.path(), None), backend);
        let meets = request(&[5, 6, 7], 40);
        let whole = ask(&sound, meets.clone()).ids;
        // A new token, so that the answer before it stays the same.
        let at = (3..whole.len())
            .find(|&at| !whole[..at].contains(&whole[at]) && whole[at] > 30)
            .unwrap();
        let token = whole[at];
        let others = [request(&[1, 2, 3], 24), drawn(&[8, 9], 30), drawn(&[10; 40], 12)];
        let expected = others.clone().map(|other| ask(&sound, other));
        assert!(expected.iter().all(|answer| !answer.ids[..].contains(&token)), "{token}");

        let model = overflowing(&tiny(MODEL), dir.path(), Some(token));
        let handle = start(&model, backend);
        for others in [&others[..], &others[..1]] {
            let meets = handle.generate(meets.clone()).unwrap();
            let begun: Vec<_> =
                others.iter().map(|other| handle.generate(other.clone()).unwrap()).collect();
            let (ids, error) = until_it_fails(meets);
            assert_eq!(ids, whole[..=at], "{backend}: the tokens before differ");
            let position = 3 + at + 1;
            let model = "odd".to_owned();
            assert_eq!(error, GenerateError::NotFinite { model, position, gpu: None });
            for (events, expected) in begun.into_iter().zip(&expected) {
                assert_eq!(collect(events).unwrap().ids, expected.ids, "{backend}");
            }
        }

        // In prompts of several lengths, with and without log-probabilities, also with no token to generate.
        expect_not_finite(&handle, request(&[token], 5), 1);
        expect_not_finite(&handle, request(&[1, token, 3], 5), 3);
        expect_not_finite(&handle, drawn(&[1, token, 3], 5), 3);
        expect_not_finite(&handle, Request { logprobs: Some(3), ..request(&[1, token, 3], 5) }, 3);
        expect_not_finite(&handle, request(&[1, token, 3], 0), 3);
        let long: Vec<u32> = (0..100).map(|i| if i == 70 { token } else { 1 + i % 20 }).collect();
        expect_not_finite(&handle, request(&long, 5), 100);
        let echoed = Request { logprobs: Some(0), prompt_logprobs: true, ..request(&long, 0) };
        expect_not_finite(&handle, echoed, 71);
        let now = handle.snapshot();
        assert_eq!((now.failures, now.active, now.queued), (9, 0, 0));

        // Slots and caches are reused.
        let again = others.clone().map(|other| handle.generate(other).unwrap());
        for (events, expected) in again.into_iter().zip(&expected) {
            assert_eq!(collect(events).unwrap().ids, expected.ids, "{backend}");
        }
        let bench = handle
            .exclusive("bench", move |runner| BenchSession::new(runner).prefill(0, &[1, token]));
        let message = bench.blocking_recv().unwrap().unwrap().unwrap_err().to_string();
        assert!(message.contains("odd") && message.contains("not finite"), "{message}");
        assert_eq!(ask(&handle, others[0].clone()).ids, expected[0].ids);
    }
}

/// The tokens before the error, and the error.
fn until_it_fails(mut events: ::engine::Events) -> (Vec<u32>, GenerateError) {
    let mut ids = Vec::new();
    loop {
        match events.blocking_recv() {
            Some(Event::Token(token)) => ids.push(token.id),
            Some(Event::Failed(error)) => return (ids, error),
            other => panic!("{other:?} after {ids:?}"),
        }
    }
}

#[test]
fn non_finite_weight_is_refused_by_tensor_name() {
    let dir = tempfile::tempdir().unwrap();
    for backend in BACKENDS {
        for (tensor, row, value, at) in [
            ("token_embd.weight", 77, f32::NAN, 77 * 256),
            ("output.weight", 1000, f32::NAN, 1000 * 256),
            ("output.weight", 7, f32::INFINITY, 7 * 256),
            ("output_norm.weight", 0, f32::INFINITY, 0),
            ("blk.0.attn_norm.weight", 0, f32::NAN, 0),
            ("blk.1.attn_k.weight", 0, f32::NAN, 0),
            ("blk.1.attn_v.weight", 5, f32::INFINITY, 5 * 256),
            ("blk.0.ffn_down.weight", 3, f32::NAN, 3 * 768),
        ] {
            let model = odd(&tiny(MODEL), dir.path(), tensor, row..row + 1, value);
            let handle = engine::engine();
            let Err(LoadError::Invalid(why)) = engine::load(&handle, engine::spec(&model, backend))
            else {
                panic!("{backend} took {value} in {tensor}");
            };
            assert!(why.contains(&format!("tensor `{tensor}`, element {at}, is ")), "{why}");
        }
    }
}

#[test]
fn weights_that_overflow_are_reported_and_the_model_stays() {
    let dir = tempfile::tempdir().unwrap();
    for backend in BACKENDS {
        for (tensor, row) in [
            ("blk.0.attn_norm.weight", 0),
            ("blk.1.ffn_norm.weight", 0),
            ("blk.1.attn_v.weight", 5),
        ] {
            let model = odd(&tiny(MODEL), dir.path(), tensor, row..row + 1, f32::MAX);
            let handle = start(&model, backend);
            for request in [request(&[1, 2, 3], 8), drawn(&[1, 2, 3], 8), request(&[4], 2)] {
                let position = request.prompt.len();
                println!("{backend}, {tensor}");
                expect_not_finite(&handle, request, position);
            }
            assert_eq!(handle.snapshot().given_up, None);
        }
    }
}
