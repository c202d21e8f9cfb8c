//! LoRA adapters on models with random weights: compared with merged weights in `f64`, and bit for
//! bit with rows among others.

#![cfg(target_os = "linux")]
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and tells its errors"
)]

use std::num::NonZeroUsize;
use std::path::Path;

use device::cpu::{Cpu, Isa};
use device::reference::Reference;
use device::{Data, Device};
use model::{Adapter, KvLayout, Model, ports};
use orind_testing::adapters::{Noise, merged};
use orind_testing::data;
use orind_testing::session::Session;
use plan::{Bucket, DType, Outputs};

const LAYOUT: KvLayout = KvLayout { slots: 3, context: 64, ring: None };
const CHUNK: usize = 12;

fn tokens() -> Vec<i32> {
    (0..20).map(|i| (i * 37 + 11) % 128).collect()
}

/// Three adapters of different ranks and types; the last covers every other matrix and has no
/// alpha.
fn adapters(model: &str, dir: &Path) -> [String; 3] {
    let noise = [
        Noise::new(1, 4),
        Noise { dtype: DType::F32, alpha: Some(3.0), ..Noise::new(2, 7) },
        Noise { dtype: DType::BF16, alpha: None, every: 2, ..Noise::new(3, 2) },
    ];
    let at = |i: usize| dir.join(format!("adapter-{i}.gguf"));
    [0, 1, 2].map(|i| noise[i].write(model, &at(i)))
}

fn with(model: &str, adapters: &[String]) -> Model {
    let opened = adapters.iter().map(|path| Adapter::open(path).unwrap()).collect();
    Model::open(model).unwrap().with_adapters(opened).unwrap()
}

/// Logits of a prompt's chunk and of the following tokens, with each adapter's scale.
fn logits(session: &mut Session, plans: [usize; 2], scales: Option<[f32; 3]>) -> Vec<f32> {
    let tokens = tokens();
    let mut all = Vec::new();
    let mut run = |session: &mut Session, plan: usize, rows: &[(i32, i32, i32)]| {
        session.load(plan, rows);
        if let Some(scales) = scales {
            let scales = scales.repeat(rows.len().max(session.plans[plan].0.bucket.rows()));
            session.write(plan, ports::ADAPTERS, Data::F32(&scales));
        }
        session.run(plan, 1);
        all.extend(session.logits(plan));
    };
    let row = |at: usize| (tokens[at], at as i32, 1);
    run(session, plans[0], &(0..CHUNK).map(row).collect::<Vec<_>>());
    for at in CHUNK..tokens.len() {
        run(session, plans[1], &[row(at)]);
    }
    all
}

const BUCKETS: [Bucket; 2] =
    [Bucket::prefill(CHUNK, LAYOUT.context, Outputs::Last), Bucket::decode(1, LAYOUT.context)];

/// Root mean square of the differences, relative to that of the expected values.
fn distance(have: &[f32], want: &[f32]) -> f64 {
    assert_eq!(have.len(), want.len());
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let off = squares(&mut have.iter().zip(want).map(|(h, w)| f64::from(h - w)));
    (off / squares(&mut want.iter().map(|w| f64::from(*w)))).sqrt()
}

fn check(name: &str) {
    let dir = tempfile::tempdir().unwrap();
    let file = data(&format!("architectures/{name}.gguf")).to_str().unwrap().to_owned();
    let adapters = adapters(&file, dir.path());
    let model = with(&file, &adapters);
    let devices = [&Reference as &dyn Device, &Cpu::new(Isa::detect(), NonZeroUsize::MIN)];
    for device in devices {
        let mut session = Session::adapted(device, &model, LAYOUT, &BUCKETS);
        let base = logits(&mut session, [0, 1], None);
        for scales in [[1.0, 0.0, 0.0], [0.0, -0.5, 0.0], [0.5, 0.25, 1.5]] {
            let taken: Vec<_> = adapters.iter().map(String::as_str).zip(scales).collect();
            let merged = merged(&file, &taken, &dir.path().join("merged.gguf"));
            let merged = Model::open(merged).unwrap();
            let mut expected = Session::new(&Reference, &merged, LAYOUT, &BUCKETS);
            let expected = logits(&mut expected, [0, 1], None);
            let found = logits(&mut session, [2, 3], Some(scales));
            let (off, moved) = (distance(&found, &expected), distance(&base, &expected));
            println!("{name}, {}, {scales:?}: {off:.1e}, moved by {moved:.1e}", device.info().name);
            assert!(moved > 1e-3, "the adapter changes what is said");
            assert!(off < 2e-3 && off < 0.05 * moved);
        }
        // Scale 0 gives the bits of a plan without adapters.
        let nothing = logits(&mut session, [2, 3], Some([0.0; 3]));
        assert!(nothing == base, "{name}, {}", device.info().name);
    }
}

macro_rules! architectures {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check(stringify!($name));
        }
    )*};
}
// Every form of matrix that a product can have: whole, rows of another, alternating rows, with
// biases.
architectures! { gemma3 gemma4 gpt2 granite lfm2 llama phi2 phi3 qwen2 qwen35 qwen2moe qwen3next rwkv7 olmoe }

/// A file from llama.cpp's converter: its logits with the adapter at different scales.
#[test]
fn llama_cpps_file_gives_llama_cpps_logits() {
    let json = std::fs::read(data("adapters/llama.json")).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    let tokens: Vec<i32> = serde_json::from_value(json["tokens"].clone()).unwrap();
    let file = data("architectures/llama.gguf").to_str().unwrap().to_owned();
    let adapter = data("adapters/llama.gguf").to_str().unwrap().to_owned();
    let (model, rows) = (with(&file, &[adapter]), tokens.len());
    let bucket = Bucket::prefill(rows, LAYOUT.context, Outputs::All);
    for device in [&Reference as &dyn Device, &Cpu::detect()] {
        let mut session = Session::adapted(device, &model, LAYOUT, &[bucket]);
        let chunk: Vec<_> = (0..).zip(&tokens).map(|(at, &token)| (token, at, 0)).collect();
        session.load(0, &chunk);
        session.run(0, 1);
        let base = session.logits(0);
        for run in json["runs"].as_array().unwrap() {
            let scale = run["scale"].as_f64().unwrap() as f32;
            session.load(1, &chunk);
            session.write(1, ports::ADAPTERS, Data::F32(&vec![scale; rows]));
            session.run(1, 1);
            let (ours, vocabulary) = (session.logits(1), session.vocabulary);
            let theirs: Vec<Vec<(usize, f32)>> =
                serde_json::from_value(run["largest"].clone()).unwrap();
            let mut listed = [Vec::new(), Vec::new(), Vec::new()];
            for (at, largest) in theirs.iter().enumerate() {
                for &(token, logit) in largest {
                    let here = at * vocabulary + token;
                    listed[0].push(ours[here]);
                    listed[1].push(base[here]);
                    listed[2].push(logit);
                }
            }
            let [off, moved] = [0, 1].map(|of| distance(&listed[of], &listed[2]));
            println!("{}, scale {scale}: {off:.1e}, moved by {moved:.1e}", device.info().name);
            assert!(off < 5e-3 && moved > 20.0 * off, "{off}, moved by {moved}");
        }
    }
}
