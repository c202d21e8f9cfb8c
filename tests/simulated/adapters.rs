//! LoRA adapters on the simulated Orin: logits and answers equal the CPU's bit for bit, also when rows of one step use
//! different adapters.

use ::engine::{AdapterSpec, LoadSpec, Request, Scales};
use device::cpu::Cpu;
use device::gpu::nv::Nv;
use device::{Data, Device};
use model::gguf::Gguf;
use model::mix::Mix;
use model::quantise::Conversion;
use model::{Adapter, KvLayout, Model, ports};
use orind_testing::adapters::Noise;
use orind_testing::session::Session;
use orind_testing::{data, engine, tiny};
use plan::{Bucket, DType, Outputs};
use std::path::Path;
use std::sync::atomic::AtomicBool;

const LAYOUT: KvLayout = KvLayout { slots: 3, context: 64, ring: None };
/// Rows of a prompt's chunk: more than the kernels for few rows take.
const CHUNK: usize = 40;

/// Writes two adapters of different types.
fn adapters(model: &str, dir: &Path) -> [String; 2] {
    let single = Noise { dtype: DType::F32, every: 2, ..Noise::new(2, 3) };
    [(Noise::new(1, 8), "first.gguf"), (single, "second.gguf")]
        .map(|(noise, name)| noise.write(model, &dir.join(name)))
}

/// Logits of a chunk with adapters, of decode steps whose two sequences use different ones, and of a chunk without
/// adapters: by the plan without them, and by the plan with all scales zero.
fn logits(device: &dyn Device, model: &Model) -> [Vec<u32>; 4] {
    let context = LAYOUT.context;
    let buckets = [Bucket::prefill(CHUNK, context, Outputs::All), Bucket::decode(2, context)];
    let mut session = Session::adapted(device, model, LAYOUT, &buckets);
    let row = |at: i32, slot: i32| ((at * 37 + slot * 11 + 5) % 128, at, slot);
    let mut run = |plan: usize, rows: &[(i32, i32, i32)], scales: Option<&[f32]>| {
        session.load(plan, rows);
        if let Some(scales) = scales {
            let all = session.plans[plan].0.bucket.rows();
            let each = scales.len() / 2;
            let padded: Vec<f32> = scales.iter().copied().cycle().take(2 * all.max(each)).collect();
            session.write(plan, ports::ADAPTERS, Data::F32(&padded));
        }
        session.run(plan, 1);
        let logits = session.logits(plan);
        let real = &logits[..rows.len() * session.vocabulary];
        real.iter().map(|logit| logit.to_bits()).collect::<Vec<u32>>()
    };
    let chunk: Vec<_> = (0..35).map(|at| row(at, 0)).collect();
    let other: Vec<_> = (0..35).map(|at| row(at, 2)).collect();
    let base = run(0, &other, None);
    let nothing = run(2, &other, Some(&[0.0, 0.0]));
    let with = run(2, &chunk, Some(&[1.0, 0.5]));
    let mut decoded = Vec::new();
    for at in 35..38 {
        // The first sequence uses both adapters, the second none.
        decoded.extend(run(3, &[row(at, 0), row(at, 2)], Some(&[1.0, 0.5, 0.0, 0.0])));
    }
    [with, decoded, base, nothing]
}

/// Quantised and plain matrices, biases, and a recurrent layer.
#[test]
fn logits_with_adapters_equal_the_cpu() {
    check_logits(&[("llama", Mix::Q8_0), ("qwen2", Mix::F16), ("qwen35", Mix::Q8_0)]);
}

/// A matrix that holds queries, keys and values, and norms behind projections.
#[test]
#[ignore = "nightly"]
fn nightly_logits_with_adapters_of_more_models_equal_the_cpu() {
    check_logits(&[("phi3", Mix::Q8_0), ("gemma3", Mix::Q8_0)]);
}

fn check_logits(models: &[(&str, Mix)]) {
    for &(name, mix) in models {
        let dir = tempfile::tempdir().unwrap();
        let file = data(&format!("architectures/{name}.gguf")).to_str().unwrap().to_owned();
        let path = dir.path().join("model.gguf");
        let conversion = Conversion::new(Gguf::open(&file).unwrap(), mix, false).unwrap();
        conversion.write(&path, 1, &AtomicBool::new(false), &mut |_| {}).unwrap();
        let adapters = adapters(&file, dir.path()).map(|path| Adapter::open(path).unwrap());
        let model = Model::open(&path).unwrap().with_adapters(adapters.into()).unwrap();
        let nv = logits(&Nv::detect().unwrap(), &model);
        let cpu = logits(&Cpu::detect(), &model);
        for (i, (nv, cpu)) in nv.iter().zip(&cpu).enumerate() {
            let differ = nv.iter().zip(cpu).filter(|(a, b)| a != b).count();
            assert_eq!(differ, 0, "{name} {}, part {i}: of {} logits", mix.name(), cpu.len());
        }
        assert!(nv[2] == nv[3], "{name}: scales of zero change the logits");
        assert!(nv[0] != nv[2]);
    }
}

#[test]
fn answers_to_concurrent_requests_with_adapters_equal_the_cpu() {
    let (model, dir) = (tiny("tiny-llama-Q8_0"), tempfile::tempdir().unwrap());
    let adapters = adapters(&model, dir.path()).map(|path| AdapterSpec { path, scale: 1.0 });
    let start = |backend| {
        let spec = engine::spec(&*model, backend);
        let adapters = adapters.to_vec();
        engine::start(LoadSpec { slots: 4, context: 128, adapters, ..spec })
    };
    let (nv, cpu) = (start("nv"), start("cpu"));
    // Launches for eight tokens, with the first adapter at this scale.
    let launches = |scale| {
        let before = nv.snapshot().activity.launches;
        let mut adapters = Scales::NONE;
        adapters.0[0] = scale;
        engine::ask(&nv, Request { adapters, ..engine::request([7], 8) });
        nv.snapshot().activity.launches - before
    };
    let (base, with) = (launches(0.0), launches(1.0));
    println!("{base} launches without adapters, {with} with");
    assert!(with < 6 * base, "{base} launches without adapters, {with} with");
    let requests: Vec<Request> = [[0.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.5, -0.5]]
        .into_iter()
        .zip(1..)
        .map(|(scales, i)| {
            let mut adapters = Scales::NONE;
            adapters.0[..2].copy_from_slice(&scales);
            let prompt = (0..9 * i).map(|at| 2 + at * 7 % 90);
            Request { adapters, logprobs: Some(1), ..engine::request(prompt, 5) }
        })
        .collect();
    let together: Vec<_> =
        requests.iter().map(|request| nv.generate(request.clone()).unwrap()).collect();
    for (events, request) in together.into_iter().zip(requests) {
        let (answer, alone) = (engine::collect(events).unwrap(), engine::ask(&cpu, request));
        assert_eq!((answer.ids, answer.logprobs), (alone.ids, alone.logprobs));
    }
}
