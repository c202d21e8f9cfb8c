//! Models with a NaN or an infinity in their weights are refused by the tensor's name. Where numbers lead to one, whose
//! logits it reaches is told so, by name and position; nobody else notices.

use ::engine::{BenchSession, Event, GenerateError, Handle, LoadError, LoadSpec, Request};
use orind_testing::engine::{self, ask, collect};
use orind_testing::odd::{odd, overflowing};
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
fn told(handle: &Handle, request: Request, position: usize) {
    let error = collect(handle.generate(request).unwrap()).unwrap_err();
    assert_eq!(error, GenerateError::NotFinite { model: "odd".into(), position, gpu: None });
    let told = error.to_string();
    assert!(told.contains("odd") && told.contains(&format!("position {position} ")), "{told}");
}

/// Both of the token that is asked with and of the one that is come upon in the middle of an answer.
#[test]
fn a_token_whose_embedding_leads_to_no_number_ends_the_requests_that_meet_it() {
    let dir = tempfile::tempdir().unwrap();
    for backend in BACKENDS {
        let sound = start(&overflowing(&tiny(MODEL), dir.path(), None), backend);
        let meets = request(&[5, 6, 7], 40);
        let whole = ask(&sound, meets.clone()).ids;
        // One that has not come before, so that the answer up to it is the same.
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
            assert_eq!(ids, whole[..=at], "{backend}: what came before is the same");
            let position = 3 + at + 1;
            let model = "odd".to_owned();
            assert_eq!(error, GenerateError::NotFinite { model, position, gpu: None });
            for (events, expected) in begun.into_iter().zip(&expected) {
                assert_eq!(collect(events).unwrap().ids, expected.ids, "{backend}");
            }
        }

        // In the prompt, of any length; looked at or not; and for no token at all.
        told(&handle, request(&[token], 5), 1);
        told(&handle, request(&[1, token, 3], 5), 3);
        told(&handle, drawn(&[1, token, 3], 5), 3);
        told(&handle, Request { logprobs: Some(3), ..request(&[1, token, 3], 5) }, 3);
        told(&handle, request(&[1, token, 3], 0), 3);
        let long: Vec<u32> = (0..100).map(|i| if i == 70 { token } else { 1 + i % 20 }).collect();
        told(&handle, request(&long, 5), 100);
        let echoed = Request { logprobs: Some(0), prompt_logprobs: true, ..request(&long, 0) };
        told(&handle, echoed, 71);
        let now = handle.snapshot();
        assert_eq!((now.failures, now.active, now.queued), (9, 0, 0));

        // Slots and their caches are used again.
        let again = others.clone().map(|other| handle.generate(other).unwrap());
        for (events, expected) in again.into_iter().zip(&expected) {
            assert_eq!(collect(events).unwrap().ids, expected.ids, "{backend}");
        }
        let bench = handle
            .exclusive("bench", move |runner| BenchSession::new(runner).prefill(0, &[1, token]));
        let told = bench.blocking_recv().unwrap().unwrap().unwrap_err().to_string();
        assert!(told.contains("odd") && told.contains("not finite"), "{told}");
        assert_eq!(ask(&handle, others[0].clone()).ids, expected[0].ids);
    }
}

/// The tokens sent before, and why no more came.
fn until_it_fails(
    mut events: tokio::sync::mpsc::UnboundedReceiver<Event>,
) -> (Vec<u32>, GenerateError) {
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
fn what_is_no_number_in_any_weight_is_refused_by_its_tensor() {
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
fn weights_too_large_to_compute_with_are_told_and_the_model_stays() {
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
                told(&handle, request, position);
            }
            assert_eq!(handle.snapshot().given_up, None);
        }
    }
}
