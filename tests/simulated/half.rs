//! Prompts in half precision on the simulated Orin: logits near the exact ones, for long chunks only, on no other
//! device. Results in single precision come from the CPU, which has the same bits.

use ::engine::LoadSpec;
use device::Device;
use device::cpu::Cpu;
use device::gpu::nv::Nv;
use device::reference::Reference;
use model::gguf::Gguf;
use model::mix::Mix;
use model::quantise::Conversion;
use model::{KvLayout, Model};
use orind_testing::session::Session;
use orind_testing::{data, engine};
use plan::{Bucket, DType, Outputs, Precision};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Logits after a prompt of one chunk of `rows` tokens, and after one more token.
fn logits(device: &dyn Device, model: &Model, rows: usize) -> [Vec<f32>; 2] {
    let context = rows.next_multiple_of(32) + 32;
    let layout = KvLayout { slots: 1, context, ring: None };
    let buckets = [Bucket::prefill(rows, context, Outputs::Last), Bucket::decode(1, context)];
    let mut session = Session::new(device, model, layout, &buckets);
    let row = |at: usize| ((at as i32 * 37 + 5) % 128, at as i32, 0);
    [(0, (0..rows).map(row).collect()), (1, vec![row(rows)])].map(|(plan, rows): (_, Vec<_>)| {
        session.load(plan, &rows);
        session.run(plan, 1);
        session.logits(plan)[..session.vocabulary].to_vec()
    })
}

fn bits(logits: &[Vec<f32>; 2]) -> Vec<u32> {
    logits.iter().flatten().map(|x| x.to_bits()).collect()
}

/// Root mean square of the difference, relative to that of `exact`.
fn error(logits: &[Vec<f32>; 2], exact: &[Vec<f32>; 2]) -> f64 {
    let pairs = || logits.iter().flatten().zip(exact.iter().flatten());
    let squares = |f: fn(f64, f64) -> f64| -> f64 {
        pairs().map(|(&x, &y)| f(f64::from(x), f64::from(y)).powi(2)).sum()
    };
    (squares(|x, y| x - y) / squares(|_, y| y)).sqrt()
}

/// A small model, converted to another type of weights.
fn model(dir: &Path, name: &str, mix: Mix, precision: Precision) -> Model {
    let to = dir.join(format!("{name}-{}", mix.name()));
    if !to.exists() {
        let from = Gguf::open(data(&format!("architectures/{name}.gguf"))).unwrap();
        let conversion = Conversion::new(from, mix, false).unwrap();
        conversion.write(&to, 1, &AtomicBool::new(false), &mut |_| {}).unwrap();
    }
    Model::open(&to).unwrap().with_precision(precision)
}

/// Attention uses tensor cores if a prompt fills enough blocks, for every type of weights and caches.
#[test]
fn attention_of_a_long_prompt_is_nearly_exact() {
    check_attention(&[("qwen3", DType::F16)]);
}

#[test]
#[ignore = "nightly"]
fn nightly_attention_with_quantised_caches_or_windows_is_nearly_exact() {
    check_attention(&[("qwen3", DType::Q8_0), ("gemma2", DType::F16)]);
}

fn check_attention(models: &[(&str, DType)]) {
    let (nv, dir) = (Nv::detect().unwrap(), tempfile::tempdir().unwrap());
    for &(name, cache) in models {
        let of = |device: &dyn Device, precision| {
            let model =
                model(dir.path(), name, Mix::F32, precision).with_cache_type(cache).unwrap();
            logits(device, &model, 560)
        };
        let exact = of(&Reference, Precision::Single);
        let half = of(&nv, Precision::Half);
        let single = of(&Cpu::detect(), Precision::Single);
        let [now, before] = [&half, &single].map(|logits| error(logits, &exact));
        println!("{name} {cache}: error {now:.2e}, {before:.2e} in single precision");
        assert!(now < before + 3e-3, "{name} {cache}: {now}, {before}");
        assert_ne!(bits(&half), bits(&single), "{name} {cache}");
    }
}

/// Largest errors of models with weights of this type.
const F16: (Mix, f64) = (Mix::F16, 2e-3);
const BF16: (Mix, f64) = (Mix::BF16, 1.5e-2);

#[test]
fn logits_are_nearly_exact() {
    check_logits("llama", F16);
    check_logits("qwen2", BF16);
}

#[test]
#[ignore = "nightly"]
fn nightly_logits_of_more_models_are_nearly_exact() {
    for name in ["qwen2", "gemma3"] {
        check_logits(name, F16);
    }
    for name in ["llama", "gemma3"] {
        check_logits(name, BF16);
    }
}

fn check_logits(name: &str, (mix, most): (Mix, f64)) {
    let (nv, cpu, dir) = (Nv::detect().unwrap(), Cpu::detect(), tempfile::tempdir().unwrap());
    let [single, half] = [Precision::Single, Precision::Half]
        .map(|precision| model(dir.path(), name, mix, precision));
    let exact = logits(&Reference, &single, 70);
    let (of_single, of_half) = (logits(&cpu, &single, 70), logits(&nv, &half, 70));
    let [before, now] = [&of_single, &of_half].map(|logits| error(logits, &exact));
    println!("{name} {}: error {now:.2e}, {before:.2e} in single precision", mix.name());
    assert!(now < most, "{name}: {now}");
    assert_ne!(bits(&of_half), bits(&of_single), "{name} {}", mix.name());
    // Short chunks, and other devices, compute in single precision.
    assert_eq!(bits(&logits(&nv, &half, 63)), bits(&logits(&cpu, &single, 63)));
    assert_eq!(bits(&logits(&cpu, &half, 70)), bits(&of_single));
}

/// `LoadSpec` selects the precision.
#[test]
fn a_model_is_served_in_half_precision() {
    let spec = engine::spec("synthetic:tiny-llama:f16", "nv");
    let precision = Precision::Half;
    let handle = engine::start(LoadSpec { context: 128, prefill_chunk: 64, precision, ..spec });
    let answer = engine::ask(&handle, engine::request(1..66, 2));
    assert_eq!(answer.ids.len(), 2);
    handle.stop(Duration::from_secs(5));
}
