//! Every architecture compared with `f64`: models with random weights and all features, made by
//! `tests/data/architectures/make.py`; errors are at most llama.cpp's.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and tells its errors"
)]

use std::num::NonZeroUsize;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use device::cpu::{Cpu, Isa};
use device::reference::Reference;
use device::{Data, Device};
use model::gguf::Gguf;
use model::mix::Mix;
use model::quantise::Conversion;
use model::{KvLayout, Model, ports};
use orind_testing::data;
use orind_testing::session::Session;
use plan::{Bucket, Outputs};
use serde_json::Value;

/// Tokens of the prompt; the others are decoded one by one.
const PROMPT: usize = 32;

/// The largest of five hundred errors is random, and may be half as large again as llama.cpp's.
const LUCK: f64 = 1.5;

/// Unquantised matrices.
const PLAIN: [(&str, Mix); 2] = [("F16", Mix::F16), ("F32", Mix::F32)];

/// Sequences for quantised weights, on the reference and on the CPU. The reference does not round
/// activations, so its error is a fiftieth of llama.cpp's, and it is slow.
const SEQUENCES: [usize; 2] = [3, 16];

/// Models with an MTP layer.
const HAVE_NEXTN: [&str; 3] = ["qwen35", "qwen35moe", "qwen3next"];

/// Quantised matrices; the last for MoE models with experts in MXFP4.
const QUANTISED: [(&str, Mix); 2] = [("Q8_0", Mix::Q8_0), ("MXFP4_MOE", Mix::MXFP4_MOE)];

/// Logits of every position.
fn logits(device: &dyn Device, model: &Model, context: usize, tokens: &[i32]) -> Vec<Vec<f32>> {
    let layout = KvLayout { slots: 2, context, ring: None };
    let buckets = [Bucket::prefill(PROMPT, context, Outputs::All), Bucket::decode(1, context)];
    let mut session = Session::new(device, model, layout, &buckets);
    let rows = |from: usize, tokens: &[i32]| -> Vec<_> {
        (from as i32..).zip(tokens).map(|(at, &token)| (token, at, 1)).collect()
    };
    session.load(0, &rows(0, &tokens[..PROMPT]));
    session.run(0, 1);
    let vocabulary = session.vocabulary;
    let mut all: Vec<_> = session.logits(0).chunks(vocabulary).map(<[f32]>::to_vec).collect();
    for at in PROMPT..tokens.len() {
        session.load(1, &rows(at, &tokens[at..=at]));
        session.run(1, 1);
        all.push(session.logits(1));
    }
    all
}

fn argmax(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b])).unwrap()
}

/// Root mean square and maximum of the errors at the largest logits. The largest logit must be at
/// the same token if its margin is more than twice the error.
fn errors(what: &str, logits: &[Vec<f32>], largest: &Value) -> (f64, f64) {
    let (mut squares, mut count, mut most) = (0.0, 0.0, 0.0f64);
    let exact: Vec<Vec<(usize, f64)>> = serde_json::from_value(largest.clone()).unwrap();
    for (logits, exact) in logits.iter().zip(&exact) {
        for &(token, exact) in exact {
            let error = (f64::from(logits[token]) - exact).abs();
            (squares, count, most) = (squares + error * error, count + 1.0, most.max(error));
        }
    }
    for (position, (logits, exact)) in logits.iter().zip(&exact).enumerate() {
        if exact[0].1 - exact[1].1 > 2.0 * most {
            assert_eq!(argmax(logits), exact[0].0, "{what}, position {position}");
        }
    }
    ((squares / count).sqrt(), most)
}

/// The model's file with its matrices converted to another type.
fn converted(file: &Path, mix: Mix, to: &Path) -> Model {
    let conversion = Conversion::new(Gguf::open(file).unwrap(), mix, false).unwrap();
    conversion.write(to, 1, &AtomicBool::new(false), &mut |_| {}).unwrap();
    Model::open(to).unwrap()
}

/// Expected values in a file of `tests/data/architectures`.
fn expected(name: &str) -> Value {
    let json = std::fs::read(data(&format!("architectures/{name}.json"))).unwrap();
    serde_json::from_slice(&json).unwrap()
}

fn number(value: &Value) -> f64 {
    value.as_f64().unwrap()
}

fn check(name: &str) {
    let (file, dir) = (data(&format!("architectures/{name}.gguf")), tempfile::tempdir().unwrap());
    let devices = [&Reference as &dyn Device, &Cpu::detect()];
    let all = expected(name);
    let tokens: Vec<i32> = serde_json::from_value(all["tokens"].clone()).unwrap();
    for (kind, mix) in PLAIN {
        let model = converted(&file, mix, &dir.path().join(kind));
        for device in devices {
            if mix == Mix::F32 {
                check_hidden(name, device, &model, &tokens);
            }
            check_deferred(name, device, &model, &tokens);
            for run in all["runs"].as_array().unwrap() {
                let context = run["context"].as_u64().unwrap() as usize;
                let what = format!("{name} {kind}, context {context}, {}", device.info().name);
                let logits = logits(device, &model, context, &tokens);
                let ours = errors(&what, &logits, &run["plain"]["largest"]);
                let theirs = &run["plain"]["llama_cpp"][kind];
                let (rms, most) = (number(&theirs["rms"]), number(&theirs["max"]));
                println!("{what}: rms {:.2e} ({rms:.2e}), max {:.2e} ({most:.2e})", ours.0, ours.1);
                assert!(ours.0 <= rms && ours.1 <= LUCK * most, "{what}");
                if HAVE_NEXTN.contains(&name) {
                    let open = || Model::open(dir.path().join(kind)).unwrap();
                    check_deferred(name, device, &open().with_nextn().unwrap(), &tokens);
                    check_nextn(name, mix, device, open(), (rms, most));
                }
            }
        }
    }
    let all = expected(&format!("{name}-drawn"));
    for (kind, mix) in QUANTISED.into_iter().filter(|(kind, _)| !all[kind].is_null()) {
        let model = converted(&file, mix, &dir.path().join(kind));
        for (device, sequences) in devices.into_iter().zip(SEQUENCES) {
            let what = format!("{name} {kind}, {}", device.info().name);
            let tokens: Vec<Vec<i32>> = serde_json::from_value(all["tokens"].clone()).unwrap();
            check_deferred(&what, device, &model, &tokens[0]);
            check_drawn(&what, device, &model, &all, kind, sequences);
        }
    }
}

/// The MTP layer over a prompt and then step by step: its prediction for the token after each
/// position, and at the end for its own draft.
fn check_nextn(name: &str, mix: Mix, device: &dyn Device, model: Model, bound: (f64, f64)) {
    let all = expected(&format!("{name}-nextn"));
    let tokens: Vec<i32> = serde_json::from_value(all["tokens"].clone()).unwrap();
    let model = model.with_nextn().unwrap();
    let layout = KvLayout { slots: 2, context: 64, ring: None };
    let buckets = [Bucket::prefill(PROMPT, 64, Outputs::Last), Bucket::decode(1, 64)];
    let mut session = Session::drafting(device, &model, layout, &buckets);
    let rows: Vec<_> = (0..).zip(&tokens[..PROMPT]).map(|(at, &token)| (token, at, 1)).collect();
    session.load(0, &rows);
    session.write(0, ports::NEXT, Data::I32(&tokens[1..=PROMPT]));
    session.run(0, 1);
    let mut made = Vec::new();
    for (at, &token) in tokens.iter().enumerate().skip(PROMPT) {
        let row = (token, at as i32, 1);
        session.load(2, &[row]);
        session.write(2, ports::HIDDEN_ROW, Data::I32(&[0]));
        session.run(2, 1);
        made.push(session.logits(2));
        if at + 1 < tokens.len() {
            session.load(1, &[row]);
            session.run(1, 1);
        }
    }
    assert_eq!(argmax(made.last().unwrap()) as u64, all["guess"].as_u64().unwrap());
    session.run(2, 1);
    made.push(session.logits(2));
    let largest = all["largest"].as_array().unwrap()[PROMPT - 1..].to_vec();
    assert_eq!(largest.len(), made.len());
    let what = format!("{name} nextn {}, {}", mix.name(), device.info().name);
    let (rms, most) = errors(&what, &made, &Value::Array(largest));
    println!("{what}: rms {rms:.2e} ({:.2e}), max {most:.2e} ({:.2e})", bound.0, bound.1);
    assert!(rms <= LUCK * bound.0 && most <= LUCK * bound.1, "{what}");
}

/// Errors of 8-bit activations are random in each engine, and one error may change the choice of an
/// expert, so on one sequence either engine may be worse by a quarter or more. Over several
/// sequences orind's error may not be larger by more than two standard errors of the difference.
fn check_drawn(
    what: &str,
    device: &dyn Device,
    model: &Model,
    all: &Value,
    kind: &str,
    sequences: usize,
) {
    let tokens: Vec<Vec<i32>> = serde_json::from_value(all["tokens"].clone()).unwrap();
    let theirs = &all[kind]["llama_cpp"];
    let (mut squares, mut most) = (Vec::new(), 0.0f64);
    for (i, tokens) in tokens.iter().enumerate().take(sequences) {
        let logits = logits(device, model, number(&all["context"]) as usize, tokens);
        let ours = errors(what, &logits, &all[kind]["largest"][i]);
        squares.push([ours.0, number(&theirs["rms"][i])].map(|rms| rms * rms));
        most = most.max(ours.1);
    }
    let count = squares.len() as f64;
    let mean = |of: &dyn Fn(&[f64; 2]) -> f64| squares.iter().map(of).sum::<f64>() / count;
    let [ours, their] = [mean(&|s| s[0]).sqrt(), mean(&|s| s[1]).sqrt()];
    let more = mean(&|s| s[0] - s[1]);
    let error = (mean(&|s| (s[0] - s[1] - more).powi(2)) / (count - 1.0)).sqrt();
    let largest = number(&theirs["max"]);
    println!("{what}: rms {ours:.2e} ({their:.2e}), max {most:.2e} ({largest:.2e})");
    assert!(more <= 2.0 * error && most <= LUCK * largest, "{what}");
}

/// A weight of a model in F32; `None` if it does not exist.
fn values(model: &Model, name: &str) -> Option<Vec<f64>> {
    let buffer = model.weights().find(|weight| weight.name == name)?;
    let mut bytes = vec![0; buffer.bytes() as usize];
    model.read_weight(name, 0, &mut bytes).unwrap();
    let value = |bytes: &[u8]| f64::from(f32::from_le_bytes(bytes.try_into().unwrap()));
    Some(bytes.chunks(4).map(value).collect())
}

/// Embeddings times the output matrix equal the logits.
fn check_hidden(name: &str, device: &dyn Device, model: &Model, tokens: &[i32]) {
    let layout = KvLayout { slots: 2, context: 64, ring: None };
    let buckets = [Outputs::Hidden, Outputs::All].map(|o| Bucket::prefill(PROMPT, 64, o));
    let mut session = Session::new(device, model, layout, &buckets);
    let rows: Vec<_> = (0..).zip(&tokens[..PROMPT]).map(|(at, &token)| (token, at, 1)).collect();
    let [hidden, logits] = [(0, ports::HIDDEN), (1, ports::LOGITS)].map(|(plan, output)| {
        session.load(plan, &rows);
        session.run(plan, 1);
        session.output(plan, output)
    });
    let hyper = model.hyperparameters();
    let matrix = values(model, "output.weight").or_else(|| values(model, "token_embd.weight"));
    let (matrix, bias) = (matrix.unwrap(), values(model, "output.bias"));
    let largest = logits.iter().fold(0.0f32, |most, logit| most.max(logit.abs()));
    for (hidden, logits) in hidden.chunks(hyper.width).zip(logits.chunks(hyper.vocabulary)) {
        for (token, (row, &logit)) in matrix.chunks(hyper.width).zip(logits).enumerate() {
            let product: f64 = row.iter().zip(hidden).map(|(w, &h)| w * f64::from(h)).sum();
            let mut expected = product + bias.as_ref().map_or(0.0, |bias| bias[token]);
            expected *= f64::from(hyper.logits.scale.unwrap_or(1.0));
            if let Some(cap) = hyper.logits.cap.map(f64::from) {
                expected = (expected / cap).tanh() * cap;
            }
            let error = (f64::from(logit) - expected).abs();
            assert!(error < 4e-3 * f64::from(largest), "{name}: {logit}, {expected} expected");
        }
    }
}

/// A decode step split into two plans gives the same bits as one: logits, sampled token, inputs of
/// later steps, and drafts.
fn check_deferred(what: &str, device: &dyn Device, model: &Model, tokens: &[i32]) {
    let layout = KvLayout { slots: 3, context: 64, ring: None };
    let two = |outputs| Bucket { outputs, ..Bucket::decode(2, 64) };
    let prompt = Bucket::prefill(PROMPT, 64, Outputs::Last);
    let buckets = [prompt, two(Outputs::Last), two(Outputs::Deferred), two(Outputs::Resumed)];
    let mut session = Session::drafting(device, model, layout, &buckets);
    // Also for models with an MTP layer, even when no drafts are left.
    let draft = buckets.len();
    let has_nextn = session.plans.len() > draft;
    let at_rest = |plan: usize| draft + 1 + plan;
    // Two sequences at different tokens in slots 2 and 0.
    let row = |slot: i32, at: usize| (tokens[(at + slot as usize) % tokens.len()], at as i32, slot);
    let mut steps = |prompt: usize, plans: &[usize]| {
        let (mut made, mut drafted) = (Vec::new(), Vec::new());
        for slot in [2, 0] {
            session.load(prompt, &(0..PROMPT).map(|at| row(slot, at)).collect::<Vec<_>>());
            session.run(prompt, 1);
        }
        for at in PROMPT..tokens.len().min(PROMPT + 4) {
            let rows = [row(2, at), row(0, at)];
            plans.iter().for_each(|plan| session.load(*plan, &rows));
            let tickets: Vec<_> = plans.iter().map(|plan| session.run(*plan, 1)).collect();
            let mut drawn = [0; 2];
            session.instance.tokens(tickets[plans.len() - 1], 0, &mut drawn).unwrap();
            made.push((session.logits(plans[plans.len() - 1]), drawn));
            if has_nextn && prompt < draft {
                session.load(draft, &[row(0, at + 1)]);
                session.write(draft, ports::HIDDEN_ROW, Data::I32(&[1]));
                session.run(draft, 1);
                drafted.push(session.logits(draft));
            }
        }
        (made, drafted)
    };
    let whole = steps(0, &[1]);
    assert!(whole == steps(0, &[2, 3]), "{what}, {}", device.info().name);
    if has_nextn {
        for plans in [&[1][..], &[2, 3]] {
            let plans: Vec<_> = plans.iter().map(|plan| at_rest(*plan)).collect();
            let rested = steps(at_rest(0), &plans).0;
            assert!(whole.0 == rested, "{what}, {}: {plans:?} at rest", device.info().name);
        }
    }
}

/// Logits of every position on the CPU, in chunks, in a given slot.
fn in_chunks(threads: usize, model: &Model, tokens: &[i32], chunk: usize, slot: i32) -> Vec<f32> {
    let cpu = Cpu::new(Isa::detect(), NonZeroUsize::new(threads).unwrap());
    let layout = KvLayout { slots: 3, context: 64, ring: None };
    let bucket = Bucket::prefill(chunk, layout.context, Outputs::All);
    let mut session = Session::new(&cpu, model, layout, &[bucket]);
    let mut all = Vec::new();
    for (tokens, at) in tokens.chunks(chunk).zip((0..).step_by(chunk)) {
        let rows: Vec<_> = (at..).zip(tokens).map(|(at, &token)| (token, at, slot)).collect();
        session.load(0, &rows);
        session.run(0, 1);
        all.extend(&session.logits(0)[..rows.len() * session.vocabulary]);
    }
    all
}

/// MoE and recurrent models on the CPU: logits of a position have the same bits for every chunk,
/// slot, thread count and set of other rows.
#[test]
fn chunks_threads_and_other_rows_change_no_bit() {
    let dir = tempfile::tempdir().unwrap();
    for name in ["qwen3moe", "qwen35moe", "lfm2", "rwkv7"] {
        let file = data(&format!("architectures/{name}.gguf"));
        let model = converted(&file, Mix::Q8_0, &dir.path().join(name));
        let tokens: Vec<i32> = (0..40).map(|i| (i * 37 + 11) % 128).collect();
        let want = in_chunks(1, &model, &tokens, 1, 0);
        for (threads, chunk, slot) in [(3, 7, 1), (2, 16, 0), (1, 40, 2)] {
            let got = in_chunks(threads, &model, &tokens, chunk, slot);
            assert!(got == want, "{name}: chunks of {chunk}, {threads} threads");
        }
        let cpu = Cpu::new(Isa::detect(), NonZeroUsize::new(2).unwrap());
        let layout = KvLayout { slots: 3, context: 64, ring: None };
        let mut session = Session::new(&cpu, &model, layout, &[Bucket::decode(3, 64)]);
        let vocabulary = session.vocabulary;
        for (at, &token) in (0..).zip(&tokens) {
            session.load(0, &[(100 - token % 50, at, 0), (token, at, 2)]);
            session.run(0, 1);
            let got = &session.logits(0)[vocabulary..2 * vocabulary];
            let want = &want[at as usize * vocabulary..][..vocabulary];
            assert!(got == want, "{name}: position {at} beside another sequence");
        }
    }
}

/// Architecture name, which may contain a hyphen.
fn file_of(test: &str) -> String {
    test.replace('_', "-")
}

/// MoE variants of architectures that also have dense models.
#[test]
fn mixtral() {
    check("mixtral");
}

#[test]
fn gemma4_moe() {
    check("gemma4-moe");
}

/// Files that `llama-quantize` writes: it drops leading dimensions of one, adds keys and mixes
/// types. Architectures that it does not know are reported. `.ci/requantised` runs this.
#[test]
#[ignore = "nightly"]
fn nightly_files_of_llama_quantize_compute_the_same() {
    let Some(tool) = std::env::var_os("LLAMA_QUANTIZE") else {
        println!("skipped: LLAMA_QUANTIZE is not set");
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let (mut checked, cpu) = (0, Cpu::detect());
    let mut files: Vec<_> = std::fs::read_dir(data("architectures")).unwrap().collect();
    files.sort_by_key(|entry| entry.as_ref().unwrap().path());
    for entry in files {
        let file = entry.unwrap().path();
        if file.extension().is_none_or(|extension| extension != "gguf") {
            continue;
        }
        let name = file.file_stem().unwrap().to_str().unwrap().to_owned();
        let all = expected(&name);
        let tokens: Vec<i32> = serde_json::from_value(all["tokens"].clone()).unwrap();
        let run = &all["runs"][0];
        let context = run["context"].as_u64().unwrap() as usize;
        let bound = number(&run["plain"]["llama_cpp"]["F16"]["rms"]);
        // Errors of these types, relative to that of F16.
        for (kind, factor) in [("F16", LUCK), ("Q8_0", 64.0), ("Q4_0", 1024.0), ("Q4_K_M", 1024.0)]
        {
            let to = dir.path().join("quantised.gguf");
            let output = std::process::Command::new(&tool).arg(&file).arg(&to).arg(kind).output();
            let output = output.unwrap();
            let said = String::from_utf8_lossy(&output.stderr).into_owned();
            if !output.status.success() {
                let reason = said.lines().find(|line| line.contains("failed")).unwrap_or_default();
                println!("{name} {kind}: skipped: {reason}");
                continue;
            }
            let model = Model::open(&to).unwrap_or_else(|e| panic!("{name} {kind}: {e}"));
            let what = format!("{name} {kind}");
            let (rms, most) =
                errors(&what, &logits(&cpu, &model, context, &tokens), &run["plain"]["largest"]);
            println!("{what}: rms {rms:.2e} (F16 {bound:.2e}), max {most:.2e}");
            assert!(rms <= factor * bound, "{what}: {rms}");
            checked += 1;
        }
    }
    assert!(checked >= 20, "{checked}");
}

/// Logits of every position on the CPU, with windows in rings or not.
fn laid(model: &Model, tokens: &[i32], chunk: usize, ring: bool) -> Vec<f32> {
    let cpu = Cpu::new(Isa::detect(), NonZeroUsize::MIN);
    let ring = ring.then_some(chunk);
    let layout = KvLayout { slots: 2, context: 160, ring };
    let bucket = Bucket::prefill(chunk, layout.context, Outputs::All);
    let mut session = Session::new(&cpu, model, layout, &[bucket]);
    let mut all = Vec::new();
    for (tokens, at) in tokens.chunks(chunk).zip((0..).step_by(chunk)) {
        let rows: Vec<_> = (at..).zip(tokens).map(|(at, &token)| (token, at, 1)).collect();
        session.load(0, &rows);
        session.run(0, 1);
        all.extend(&session.logits(0)[..rows.len() * session.vocabulary]);
    }
    all
}

/// A ring that holds a window and a chunk gives the bits of a full cache, and is smaller.
#[test]
fn ring_caches_change_no_bit() {
    let tokens: Vec<i32> = (0..150).map(|i| (i * 37 + 11) % 128).collect();
    for name in ["gemma2", "gemma3", "gemma4", "gpt-oss"] {
        let model = Model::open(data(&format!("architectures/{name}.gguf"))).unwrap();
        for chunk in [2, 15, 50] {
            let want = laid(&model, &tokens, chunk, false);
            assert!(laid(&model, &tokens, chunk, true) == want, "{name}, chunks of {chunk}");
        }
        let bytes = |ring| model.state_bytes(KvLayout { slots: 2, context: 160, ring }).unwrap();
        let states = model.states(KvLayout { slots: 2, context: 160, ring: Some(15) });
        assert_eq!(bytes(Some(15)), states.iter().map(plan::Buffer::bytes).sum::<u64>());
        assert!(10 * bytes(Some(15)) < 8 * bytes(None), "{name}");
    }
}

macro_rules! architectures {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check(&file_of(stringify!($name)));
        }
    )*

    /// Every family has a test.
    #[test]
    fn every_architecture_has_a_test() {
        let names = [$(file_of(stringify!($name))),*].join(", ");
        assert_eq!(model::Architecture::names(), names);
    }};
}
architectures! {
    gemma gemma2 gemma3 gemma4 gpt_oss gpt2 granite lfm2 llama mistral3 olmoe phi2 phi3 qwen2 qwen2moe qwen3 qwen35 qwen35moe qwen3moe qwen3next
    rwkv7 smollm3
}
