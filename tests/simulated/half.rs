//! Prompts in half precision, on the simulated Orin: near the exact logits, of long chunks alone, and no other device's.

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

/// The logits behind a prompt of so many tokens, which a chunk of as many rows takes, and those of a token behind it.
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

/// Root mean square of the difference, as a share of what `exact` has.
fn error(logits: &[Vec<f32>; 2], exact: &[Vec<f32>; 2]) -> f64 {
    let pairs = || logits.iter().flatten().zip(exact.iter().flatten());
    let squares = |f: fn(f64, f64) -> f64| -> f64 {
        pairs().map(|(&x, &y)| f(f64::from(x), f64::from(y)).powi(2)).sum()
    };
    (squares(|x, y| x - y) / squares(|_, y| y)).sqrt()
}

/// A model of the tests in another type of weights.
fn model(dir: &Path, name: &str, mix: Mix, precision: Precision) -> Model {
    let to = dir.join(format!("{name}-{}", mix.name()));
    if !to.exists() {
        let from = Gguf::open(data(&format!("architectures/{name}.gguf"))).unwrap();
        let conversion = Conversion::new(from, mix, false).unwrap();
        conversion.write(&to, 1, &AtomicBool::new(false), &mut |_| {}).unwrap();
    }
    Model::open(&to).unwrap().in_precision(precision)
}

/// Attention takes tensor cores where a prompt fills enough blocks, whatever weights are, over caches of every type.
#[test]
fn attention_of_a_long_prompt_is_near_the_exact_one() {
    let (nv, dir) = (Nv::detect().unwrap(), tempfile::tempdir().unwrap());
    for (name, cache) in [("qwen3", DType::F16), ("qwen3", DType::Q8_0), ("gemma2", DType::F16)] {
        let of = |device: &dyn Device, precision| {
            let model = model(dir.path(), name, Mix::F32, precision).cached_in(cache).unwrap();
            logits(device, &model, 560)
        };
        let exact = of(&Reference, Precision::Single);
        let [half, single] =
            [Precision::Half, Precision::Single].map(|precision| of(&nv, precision));
        let [now, before] = [&half, &single].map(|logits| error(logits, &exact));
        println!("{name} {cache}: error {now:.2e}, {before:.2e} in single precision");
        assert!(now < before + 3e-3, "{name} {cache}: {now}, {before}");
        assert_ne!(bits(&half), bits(&single), "{name} {cache}");
    }
}

#[test]
fn logits_are_near_the_exact_ones() {
    let (nv, dir) = (Nv::detect().unwrap(), tempfile::tempdir().unwrap());
    for (mix, most) in [(Mix::F16, 2e-3), (Mix::BF16, 1.5e-2)] {
        for name in ["llama", "qwen2", "gemma3"] {
            let [single, half] = [Precision::Single, Precision::Half]
                .map(|precision| model(dir.path(), name, mix, precision));
            let exact = logits(&Reference, &single, 70);
            let [of_single, of_half] = [&single, &half].map(|model| logits(&nv, model, 70));
            let [before, now] = [&of_single, &of_half].map(|logits| error(logits, &exact));
            println!("{name} {}: error {now:.2e}, {before:.2e} in single precision", mix.name());
            assert!(now < most, "{name}: {now}");
            assert_ne!(bits(&of_half), bits(&of_single), "{name} {}", mix.name());
            // Short chunks, and other devices, keep the one arithmetic.
            assert_eq!(bits(&logits(&nv, &half, 63)), bits(&logits(&nv, &single, 63)));
            assert_eq!(bits(&logits(&Cpu::detect(), &half, 70)), bits(&of_single));
        }
    }
}

/// As the daemon's configuration asks for it.
#[test]
fn a_model_is_served_in_half_precision() {
    let of = |precision| {
        let spec = engine::spec("synthetic:tiny-llama:f16", "nv");
        let spec = LoadSpec { context: 128, prefill_chunk: 64, precision, ..spec };
        let handle = engine::start(spec);
        let request = engine::request(1..81, 4);
        let answer = engine::collect(handle.generate(request).unwrap()).unwrap();
        handle.stop(Duration::from_secs(5));
        answer.ids.len()
    };
    assert_eq!([Precision::Half, Precision::Single].map(of), [4, 4]);
}
