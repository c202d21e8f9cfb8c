//! LoRA adapters that requests select: neither other requests in the batch nor cached prefixes with other adapters
//! change an answer.

use std::path::Path;
use std::time::Duration;

use ::engine::{
    AdapterSpec, GenerateError, Handle, LoadError, LoadSpec, PrefixStore, Request, Scales,
};
use model::gguf::{Gguf, Value, Writer};
use model::synthetic;
use orind_testing::adapters::{Noise, merged};
use orind_testing::engine::{self, Answer, ask, collect};
use orind_testing::random::Random;
use orind_testing::tiny;
use plan::DType;
use plan::sample::Sampling;

const MODELS: [&str; 2] = ["tiny-llama-Q8_0", "tiny-qwen3-Q4_K_M"];

/// Writes two adapters for a model.
fn adapters(model: &str, dir: &Path) -> Vec<AdapterSpec> {
    let strong = |seed, rank| Noise { alpha: Some(4.0 * rank as f32), ..Noise::new(seed, rank) };
    let noise = [strong(1, 8), Noise { dtype: DType::F32, every: 2, ..strong(2, 3) }];
    let written = |(noise, name): (Noise, &str)| {
        let path = noise.write(model, &dir.join(name));
        AdapterSpec { path, scale: 1.0 }
    };
    noise.into_iter().zip(["first.gguf", "second.gguf"]).map(written).collect()
}

fn spec(model: &str, adapters: &[AdapterSpec], slots: usize) -> LoadSpec {
    let spec = engine::spec(model, "cpu");
    let adapters = adapters.to_vec();
    LoadSpec { slots, adapters, prefill_chunk: 16, draft: 7, threads: 2, ..spec }
}

fn scales(first: f32, second: f32) -> Scales {
    let mut scales = Scales::NONE;
    (scales.0[0], scales.0[1]) = (first, second);
    scales
}

fn cached(answer: &Answer) -> u32 {
    answer.finished.as_ref().unwrap().cached_tokens
}

/// The answer of an engine that serves only this request, without a cached prefix.
fn ask_alone(handle: &Handle, request: &Request) -> Answer {
    ask(handle, engine::request([request.prompt[0] + 1], 1));
    ask(handle, request.clone())
}

fn same(answer: &Answer, alone: &Answer, what: &str) {
    assert_eq!((&answer.ids, &answer.text), (&alone.ids, &alone.text), "{what}");
    assert_eq!(answer.logprobs, alone.logprobs, "equal to the bit: {what}");
}

/// Forking conversations with either adapter, both or none, several at a time.
#[test]
fn adapters_of_other_requests_change_no_answer() {
    check_conversations(1, MODELS[0]);
}

#[test]
#[ignore = "nightly"]
fn nightly_adapters_of_other_requests_change_no_answer_of_another_model() {
    check_conversations(2, MODELS[1]);
}

fn check_conversations(seed: u64, model: &str) {
    let model = tiny(model);
    println!("{model}: seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let adapters = adapters(&model, dir.path());
    let (handle, other) =
        (engine::start(spec(&model, &adapters, 3)), engine::start(spec(&model, &adapters, 1)));
    let without = engine::start(spec(&model, &[], 1));
    let choices = [Scales::NONE, scales(1.0, 0.0), scales(0.0, 1.0), scales(0.5, -0.25)];
    let mut random = Random(seed);
    let (mut from_cache, mut differ) = (0, 0);
    // Tokens and adapters of every answered request.
    let mut said = vec![(vec![1], Scales::NONE)];
    for _ in 0..8 {
        let requests: Vec<Request> = (0..1 + random.below(5))
            .map(|_| {
                let (before, adapters) = &said[random.below(said.len())];
                let mut prompt = before[..1 + random.below(before.len())].to_vec();
                prompt.truncate(120);
                prompt.extend((0..1 + random.below(30)).map(|_| 2 + random.below(200) as u32));
                let sampling = Sampling {
                    temperature: random.pick(&[0.0, 1.0]),
                    top_k: 40,
                    top_p: 0.95,
                    seed: random.bits(),
                    ..Sampling::GREEDY
                };
                let logprobs = (random.below(2) == 0).then_some(1);
                let change = random.below(2) == 0;
                let adapters = if change { random.pick(&choices) } else { *adapters };
                let request = engine::request(prompt, 1 + random.below(30) as u32);
                Request { sampling, logprobs, adapters, ..request }
            })
            .collect();
        let streams: Vec<_> =
            requests.iter().map(|request| handle.generate(request.clone()).unwrap()).collect();
        for (request, events) in requests.iter().zip(streams) {
            let answer = collect(events).unwrap();
            let what = format!("seed {seed}, {:?}", request.adapters);
            same(&answer, &ask_alone(&other, request), &what);
            let plain = Request { adapters: Scales::NONE, ..request.clone() };
            let base = ask_alone(&without, &plain);
            if request.adapters == Scales::NONE {
                same(&answer, &base, "equal to an engine without adapters");
            } else {
                differ += usize::from(answer.ids != base.ids);
            }
            from_cache += cached(&answer);
            let all = [&request.prompt[..], &answer.ids].concat();
            said.push((all, request.adapters));
        }
    }
    println!("{from_cache} cached tokens, {differ} answers changed");
    assert!(from_cache > 20 && differ > 5, "{from_cache} cached tokens, {differ} answers changed");
}

/// Draft tokens use the adapters of their sequence.
#[test]
fn draft_tokens_change_no_answer() {
    // A model that repeats itself after a repeated token, also with these adapters.
    let model = synthetic::locate("synthetic:tiny-llama:q8_0", &mut |_, _| {}).unwrap();
    let (model, dir) = (model.to_str().unwrap(), tempfile::tempdir().unwrap());
    let adapters: Vec<_> = (1..3)
        .map(|seed| {
            let noise = Noise { alpha: Some(0.5), ..Noise::new(seed, 4) };
            let path = noise.write(model, &dir.path().join(format!("{seed}.gguf")));
            AdapterSpec { path, scale: 1.0 }
        })
        .collect();
    let [with, without] =
        [7, 0].map(|draft| engine::start(LoadSpec { draft, ..spec(model, &adapters, 1) }));
    let mut accepted = 0;
    let choices = [scales(1.0, 0.0), scales(0.0, 1.0), scales(0.5, 0.5)];
    for (first, adapters) in (5..17).zip(choices.into_iter().cycle()) {
        let asked = |prompt: &[u32], max_tokens| {
            let request = engine::request(prompt.iter().copied(), max_tokens);
            Request { adapters, ..request }
        };
        // An answer, then its first tokens again.
        let said = ask(&without, asked(&[first], 30)).ids;
        let request = asked(&[&[first], &said[..], &[first], &said[..9]].concat(), 40);
        let answer = ask(&with, request.clone());
        same(&answer, &ask(&without, request), "without drafts");
        accepted += answer.finished.unwrap().accepted_tokens;
    }
    assert!(accepted > 20, "{accepted} accepted tokens");
}

/// Log-probabilities match those of a model with the adapters merged into its weights.
#[test]
fn answers_match_the_merged_model() {
    let (model, dir) = (tiny("tiny-llama-f16"), tempfile::tempdir().unwrap());
    let adapters = adapters(&model, dir.path());
    let handle = engine::start(spec(&model, &adapters, 1));
    let prompt = || (0..40).map(|i| 2 + i * 7 % 90);
    let asked = |scales| Request {
        logprobs: Some(3),
        prompt_logprobs: true,
        adapters: scales,
        ..engine::request(prompt(), 12)
    };
    let base = ask(&handle, asked(Scales::NONE));
    for (first, second) in [(1.0, 0.0), (0.0, 0.5), (0.75, -0.5)] {
        let taken = [(&*adapters[0].path, first), (&*adapters[1].path, second)];
        let merged = merged(&model, &taken, &dir.path().join("merged.gguf"));
        let merged = engine::start(spec(&merged, &[], 1));
        let (ours, theirs) =
            (ask(&handle, asked(scales(first, second))), ask(&merged, asked(Scales::NONE)));
        let logprobs = |answer: &Answer| -> Vec<f32> {
            let prompt = answer.prompt.as_ref().unwrap().iter().skip(1);
            prompt.chain(&answer.logprobs).map(|at| at.token.logprob).collect()
        };
        let off = |a: &Answer, b: &Answer| {
            let all = logprobs(a).into_iter().zip(logprobs(b));
            all.map(|(a, b)| (a - b).abs()).fold(0.0, f32::max)
        };
        let (error, moved) = (off(&ours, &theirs), off(&base, &theirs));
        println!("{first}, {second}: off by {error:.1e}, moved by {moved:.1e}");
        assert_eq!(ours.ids, theirs.ids);
        assert!(error < 2e-3 && moved > 100.0 * error, "{error}, moved by {moved}");
    }
}

/// A restarted engine reads the prefixes of an adapter only for requests with this adapter.
#[test]
fn prefixes_on_disk_belong_to_their_adapter() {
    let (model, dir) = (tiny("tiny-llama-Q8_0"), tempfile::tempdir().unwrap());
    let adapters = adapters(&model, dir.path());
    let store = PrefixStore { dir: dir.path().join("prefixes"), limit: 1 << 30 };
    let start = || {
        let prefixes = Some(store.clone());
        let spec = spec(&model, &adapters, 3);
        engine::start(LoadSpec { context: 512, prefixes, ..spec })
    };
    let request = |adapters| Request {
        logprobs: Some(1),
        adapters,
        ..engine::request((0..300).map(|i| 2 + i * 3 % 97), 4)
    };
    let choices = [Scales::NONE, scales(1.0, 0.0), scales(0.0, 1.0), scales(0.5, 0.0)];
    let first = start();
    // The store has no prefix with the last choice.
    let expected = choices[..3].iter().map(|s| ask(&first, request(*s))).collect::<Vec<_>>();
    first.stop(Duration::from_secs(20));
    assert_eq!(first.snapshot().prefixes.written, 6);
    let alone = engine::start(LoadSpec { context: 512, ..spec(&model, &adapters, 1) });
    let again = start();
    for (scales, before) in choices.into_iter().zip(&expected) {
        let answer = ask(&again, request(scales));
        same(&answer, before, "equal to the answer before the restart");
        same(&answer, &ask_alone(&alone, &request(scales)), "as alone");
    }
    let answer = ask(&again, request(choices[3]));
    assert_eq!(cached(&answer), 0, "another scale has no cached prefix");
    same(&answer, &ask_alone(&alone, &request(choices[3])), "as alone");
    assert_eq!(again.snapshot().prefixes.read, 6);
}

fn refused(model: &str, adapters: &[&str]) -> LoadError {
    let adapters: Vec<_> = adapters.iter().map(|text| AdapterSpec::written(text)).collect();
    engine::load(&engine::engine(), spec(model, &adapters, 1)).unwrap_err()
}

/// Writes a file with these keys, and tensors of zeroes.
fn file(path: &Path, keys: &[(&str, Value)], tensors: &[(&str, &[usize], DType)]) -> String {
    let mut to = Writer::new(path);
    for (key, value) in keys {
        to.metadata(key, value.clone()).unwrap();
    }
    let ids: Vec<_> = tensors
        .iter()
        .map(|(name, shape, dtype)| (to.tensor(name, shape, *dtype).unwrap(), *shape, *dtype))
        .collect();
    let to = to.begin().unwrap();
    for (id, shape, dtype) in ids {
        let bytes = dtype.size_of(shape.iter().product::<usize>() as u64).unwrap();
        to.write(id, 0, &vec![0; bytes as usize]).unwrap();
    }
    to.finish().unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn an_adapter_that_does_not_fit_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (llama, qwen) = (tiny("tiny-llama-Q8_0"), tiny("tiny-qwen3-Q8_0"));
    let good = Noise::new(1, 4).write(&llama, &dir.path().join("good.gguf"));
    let path = dir.path().join("bad.gguf");
    let text = |text: &str| Value::from(text.to_owned());
    let keys = |architecture: &str| {
        vec![
            ("general.type", text("adapter")),
            ("general.architecture", text(architecture)),
            ("adapter.type", text("lora")),
            ("adapter.lora.alpha", Value::from(8.0f32)),
        ]
    };
    let with = |key: &'static str, value: Value| {
        let mut keys = keys("llama");
        keys.retain(|(name, _)| *name != key);
        keys.push((key, value));
        keys
    };
    let gguf = Gguf::open(&llama).unwrap();
    let shape = gguf.tensor("blk.0.attn_q.weight").unwrap().shape.clone();
    let [rows, columns] = shape[..] else { panic!("{shape:?}") };
    let vocabulary = gguf.tensor("token_embd.weight").unwrap().shape[0];
    let (a, b) = ("blk.0.attn_q.weight.lora_a", "blk.0.attn_q.weight.lora_b");
    let f16 = DType::F16;
    let whole: &[(&str, &[usize], DType)] = &[(a, &[4, columns], f16), (b, &[rows, 4], f16)];
    for (keys, tensors, expected) in [
        (keys("qwen3"), whole, "made for architecture `qwen3`, the model is `llama`"),
        (
            with("general.type", text("model")),
            whole,
            "`general.type` is `model`, `adapter` expected",
        ),
        (with("adapter.type", text("ia3")), whole, "`adapter.type` is `ia3`, `lora` expected"),
        (
            with("adapter.lora.alpha", Value::from(f32::NAN)),
            whole,
            "`adapter.lora.alpha` is NaN, a finite number expected",
        ),
        (keys("llama"), &[], "no tensors in the file"),
        (keys("llama"), &whole[..1], "has no counterpart `blk.0.attn_q.weight.lora_b`"),
        (keys("llama"), &[("blk.0.attn_norm.weight", &[64], f16)], "names end in `.lora_a` or"),
        (
            keys("llama"),
            &[(a, &[4, columns + 32], f16), (b, &[rows, 4], f16)],
            "expected for the model's `blk.0.attn_q.weight`",
        ),
        (
            keys("llama"),
            &[(a, &[4, columns], f16), (b, &[rows, 5], f16)],
            "expected for the model's `blk.0.attn_q.weight`",
        ),
        (keys("llama"), &[(a, &[4], f16), (b, &[rows, 4], f16)], "has shape [4], [4, "),
        (
            keys("llama"),
            &[(a, &[4, columns], DType::I32), (b, &[rows, 4], f16)],
            "is I32, floating-point or quantised expected",
        ),
        (
            keys("llama"),
            &[
                ("blk.77.attn_q.weight.lora_a", &[4, columns], f16),
                ("blk.77.attn_q.weight.lora_b", &[rows, 4], f16),
            ],
            "the model has no `blk.77.attn_q.weight`",
        ),
        (
            keys("llama"),
            &[
                ("token_embd.weight.lora_a", &[vocabulary, 4], f16),
                ("token_embd.weight.lora_b", &[columns, 4], f16),
            ],
            "adapters for embeddings are not supported",
        ),
    ] {
        let bad = file(&path, &keys, tensors);
        let error = refused(&llama, &[&good, &bad]);
        let message = error.to_string();
        assert!(matches!(error, LoadError::Invalid(_)), "{error:?}");
        assert!(
            message.starts_with(&format!("adapter {bad}: ")) && message.contains(expected),
            "{message}"
        );
    }
    // Truncated files.
    let bytes = std::fs::read(&good).unwrap();
    for len in [3, 100, bytes.len() / 2, bytes.len() - 1] {
        std::fs::write(&path, &bytes[..len]).unwrap();
        let message = refused(&llama, &[path.to_str().unwrap()]).to_string();
        let cut = ["truncated", "cannot fit in the", "ends after the file's"]
            .iter()
            .any(|word| message.contains(word));
        assert!(cut && message.starts_with("adapter "), "{len}: {message}");
    }
    assert!(matches!(refused(&llama, &["/nowhere.gguf"]), LoadError::NotFound(_)));
    for (model, adapters, expected) in [
        (&qwen, vec![&*good], "architecture `llama`, the model is `qwen3`"),
        (&llama, vec![&*good, &*good], "duplicate name `good`"),
        (&llama, vec![&*llama], "not a LoRA adapter"),
        (
            &good,
            vec![],
            "this is an adapter, not a model: load it with `--lora`, in addition to a model",
        ),
    ] {
        let message = refused(model, &adapters).to_string();
        assert!(message.contains(expected), "{message}");
    }
    let names: Vec<String> = (0..9)
        .map(|i| {
            let copy = dir.path().join(format!("{i}.gguf"));
            std::fs::copy(&good, &copy).unwrap();
            copy.to_str().unwrap().to_owned()
        })
        .collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let message = refused(&llama, &names).to_string();
    assert!(message.contains("9 adapters, at most 8 per model"), "{message}");
}

/// NaN in an adapter is found on loading, and the error names the file.
#[test]
fn nan_in_an_adapter_is_refused_by_tensor_name() {
    let (model, dir) = (tiny("tiny-llama-Q8_0"), tempfile::tempdir().unwrap());
    let noise = Noise { dtype: DType::F32, ..Noise::new(1, 4) };
    let path = noise.write(&model, &dir.path().join("nan.gguf"));
    let mut bytes = std::fs::read(&path).unwrap();
    let at = bytes.len() - 400;
    bytes[at..at + 4].copy_from_slice(&f32::NAN.to_le_bytes());
    std::fs::write(&path, bytes).unwrap();
    let message = refused(&model, &[&path]).to_string();
    assert!(message.contains("lora_b`, element ") && message.contains("is NaN"), "{message}");
}

#[test]
fn a_request_for_an_unknown_adapter_is_refused() {
    let (model, dir) = (tiny("tiny-llama-Q8_0"), tempfile::tempdir().unwrap());
    let handle = engine::start(spec(&model, &adapters(&model, dir.path())[..1], 1));
    for (adapters, expected) in [
        (scales(0.0, 1.0), "names an adapter that is not loaded; number of loaded adapters: 1"),
        (scales(f32::NAN, 0.0), "has a scale that is not finite"),
    ] {
        let request = Request { adapters, ..engine::request([1], 1) };
        match handle.generate(request).unwrap_err() {
            GenerateError::Invalid { field: "lora", reason } => assert_eq!(reason, expected),
            error => panic!("{error}"),
        }
    }
}

#[test]
fn an_adapter_argument_may_have_a_scale() {
    let written = |text| {
        let AdapterSpec { path, scale } = AdapterSpec::written(text);
        (path, scale)
    };
    for (text, path, scale) in [
        ("a.gguf", "a.gguf", 1.0),
        ("a.gguf=0", "a.gguf", 0.0),
        ("/x=y/a.gguf=-0.5", "/x=y/a.gguf", -0.5),
        ("/x=y/a.gguf", "/x=y/a.gguf", 1.0),
        ("a=inf", "a=inf", 1.0),
    ] {
        assert_eq!(written(text), (path.to_owned(), scale), "{text}");
    }
}
