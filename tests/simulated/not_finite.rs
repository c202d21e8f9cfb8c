//! Non-finite logits on the simulated Orin, caused by weights or by the GPU.

use ::engine::{GenerateError, Handle, LoadSpec, Request, State};
use orind_testing::engine::{self, ask, collect};
use orind_testing::model_variants::{odd, overflowing};
use orind_testing::program::{again, said};
use orind_testing::tiny;
use plan::sample::Sampling;

const MODEL: &str = "tiny-llama-Q8_0";

fn start(model: impl Into<String>, backend: &str) -> Handle {
    engine::start(LoadSpec { slots: 3, context: 128, ..engine::spec(model, backend) })
}

#[track_caller]
fn expect_not_finite(
    handle: &Handle,
    request: Request,
    at: usize,
    on: Option<&'static str>,
) -> String {
    let error = collect(handle.generate(request).unwrap()).unwrap_err();
    assert_eq!(error, GenerateError::NotFinite { model: "odd".into(), position: at, gpu: on });
    error.to_string()
}

fn device(handle: &Handle) -> (String, String) {
    let State::Ready(model) = handle.snapshot().state else { panic!("no model is ready") };
    (model.device.name, model.device.reason)
}

/// Other requests of the batch and later requests in the slot are unaffected. A GPU that has computed finite logits of
/// this model stays in use.
#[test]
fn a_token_with_a_non_finite_embedding_fails_only_its_request() {
    const TOKEN: u32 = 77;
    let dir = tempfile::tempdir().unwrap();
    let model = overflowing(&tiny(MODEL), dir.path(), Some(TOKEN));
    let drawn = Sampling { temperature: 1.0, top_k: 40, top_p: 0.9, seed: 5, ..Sampling::GREEDY };
    let good = [
        engine::request([1, 2, 3], 14),
        Request { sampling: drawn, ..engine::request([9, 8], 14) },
    ];
    let sound = start(overflowing(&tiny(MODEL), dir.path(), None), "nv");
    let expected = good.clone().map(|request| ask(&sound, request).ids);
    assert!(!expected.concat().contains(&TOKEN));
    drop(sound);
    let handle = start(model, "auto");
    for _ in 0..2 {
        assert_eq!(ask(&handle, good[0].clone()).ids, expected[0]);
        let begun = good.clone().map(|request| handle.generate(request).unwrap());
        let why = expect_not_finite(&handle, engine::request([1, 2, TOKEN, 4], 9), 4, Some("nv"));
        for words in ["odd", "position 4 ", "`orinctl parity --devices nv`", "`orinctl doctor`"] {
            assert!(why.contains(words), "{why}");
        }
        for (events, expected) in begun.into_iter().zip(&expected) {
            assert_eq!(collect(events).unwrap().ids, *expected);
        }
    }
    let echoed = Request { logprobs: Some(1), prompt_logprobs: true, ..good[0].clone() };
    expect_not_finite(&handle, Request { prompt: vec![1, TOKEN, 3, 4], ..echoed }, 2, Some("nv"));
    assert_eq!(device(&handle).0, "nv");
}

/// With `auto`, the CPU repeats the step, and the message does not name the GPU.
#[test]
fn weights_that_lead_to_non_finite_logits_are_reported_on_every_device() {
    let dir = tempfile::tempdir().unwrap();
    let model = odd(&tiny(MODEL), dir.path(), "blk.1.attn_norm.weight", 0..1, f32::MAX);
    let nv = start(&model, "nv");
    for len in [1, 9] {
        expect_not_finite(&nv, engine::request(1..len + 1, 5), len as usize, Some("nv"));
    }
    assert_eq!(device(&nv).0, "nv");
    drop(nv);
    for len in [1, 9] {
        let auto = start(&model, "auto");
        expect_not_finite(&auto, engine::request(1..len + 1, 5), len as usize, None);
        let (device, reason) = device(&auto);
        assert!(device == "cpu" && reason.contains("first step are not finite"), "{reason}");
    }
}

fn answer_of(handle: &Handle) -> Vec<u32> {
    ask(handle, engine::request(1..12, 10)).ids
}

/// Prints an answer on the device that `auto` selects.
#[test]
#[ignore = "run by the next test, in a process of its own"]
fn answer() {
    let handle = start(tiny(MODEL), "auto");
    println!("tokens {:?}", answer_of(&handle));
    println!("device {:?}", device(&handle));
}

/// A GPU that computes NaN, without first light.
#[test]
fn the_next_device_answers_if_only_the_gpu_computes_nan() {
    let on =
        |machine: &str| said(again(module_path!(), "answer").env("TEGRA_SIM_MACHINE", machine));
    let line = |text: &str, name: &str| {
        text.lines().find_map(|line| line.split_once(name)).unwrap().1.to_owned()
    };
    let [good, wrong] = ["", "nan=mufu"].map(on);
    assert!(line(&good, "device ").contains("\"nv\""), "{good}");
    let device = line(&wrong, "device ");
    assert!(device.contains("\"cpu\"") && device.contains("first step are not finite"), "{device}");
    let expected = answer_of(&start(tiny(MODEL), "cpu"));
    assert_eq!(line(&wrong, "tokens "), format!("{expected:?}"));
}
