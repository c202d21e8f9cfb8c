//! Every architecture on the simulated Orin has the CPU's logits bit for bit: padded prompts, two sequences decoded
//! together, repeated steps, reused slots, ring caches and quantised caches.

use device::Device;
use device::cpu::Cpu;
use device::gpu::nv::Nv;
use model::gguf::Gguf;
use model::mix::Mix;
use model::quantise::Conversion;
use model::{KvLayout, Model};
use orind_testing::data;
use orind_testing::session::{Row, Session};
use plan::{Bucket, DType, Outputs};
use std::ops::Range;
use std::sync::atomic::AtomicBool;

const LAYOUT: KvLayout = KvLayout { slots: 3, context: 96, ring: None };
/// Rows of a prompt's chunk: more than a span of positions, and not a multiple of a tile's rows.
const CHUNK: usize = 40;

/// A step: plan (0 for a chunk, 1 for decode) and rows.
type Step = (usize, Vec<Row>);

/// The row of a position in a slot, with an arbitrary token.
fn row(at: i32, slot: i32) -> Row {
    ((at * 37 + slot * 11 + 5) % 128, at, slot)
}

fn prompt(at: Range<i32>, slot: i32) -> Step {
    (0, at.map(|at| row(at, slot)).collect())
}

/// Two chunks of one prompt and one of another; decode with a repeated step and a step back; then slot 0 is reused.
fn steps() -> Vec<Step> {
    let mut steps = vec![prompt(0..36, 0), prompt(0..17, 2), prompt(36..41, 0)];
    steps.extend([0, 1, 1, 0].map(|i| (1, vec![row(41 + i, 0), row(17 + i, 2)])));
    steps.push(prompt(0..9, 0));
    steps.push((1, vec![row(19, 2), row(9, 0)]));
    steps
}

/// Bits of the logits of all rows of all steps; a prompt's chunk has up to `chunk` rows.
fn logits(
    device: &dyn Device,
    model: &Model,
    layout: KvLayout,
    chunk: usize,
    steps: &[Step],
) -> Vec<Vec<u32>> {
    let context = layout.context;
    let buckets = [Bucket::prefill(chunk, context, Outputs::All), Bucket::decode(2, context)];
    let mut session = Session::new(device, model, layout, &buckets);
    let mut all = Vec::new();
    for (plan, rows) in steps {
        session.load(*plan, rows);
        session.run(*plan, 1);
        let logits = session.logits(*plan);
        let real = &logits[..rows.len() * session.vocabulary];
        all.push(real.iter().map(|v| v.to_bits()).collect());
    }
    all
}

fn same(got: &[Vec<u32>], want: &[Vec<u32>], what: &str) {
    for (step, (got, want)) in got.iter().zip(want).enumerate() {
        let differ = got.iter().zip(want).filter(|(a, b)| a != b).count();
        assert_eq!(differ, 0, "{what}, step {step}: of {} logits", want.len());
    }
}

fn check(name: &str, mix: Mix) {
    let file = data(&format!("architectures/{name}.gguf"));
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join(mix.name());
    let conversion = Conversion::new(Gguf::open(&file).unwrap(), mix, false).unwrap();
    conversion.write(&path, 1, &AtomicBool::new(false), &mut |_| {}).unwrap();
    let (model, nv) = (Model::open(&path).unwrap(), Nv::detect().unwrap());
    let run = |device: &dyn Device| logits(device, &model, LAYOUT, CHUNK, &steps());
    same(&run(&nv), &run(&Cpu::detect()), &format!("{name} {}", mix.name()));
}

/// Ring caches on the GPU give the bits of whole caches on the CPU: chunks and tokens that wrap around, steps back by
/// a few rows and by a chunk, and a reused slot.
fn check_rings(name: &str, cache: DType) {
    const CHUNK: usize = 12;
    let whole = KvLayout { slots: 3, context: 112, ring: None };
    let rings = KvLayout { ring: Some(CHUNK), ..whole };
    let mut steps: Vec<Step> =
        (0..70).step_by(CHUNK).map(|at| prompt(at..at + CHUNK as i32, 0)).collect();
    let mut decode = |at: Range<i32>| {
        steps.extend(at.map(|at| (1, vec![row(at, 0), row(at - 72, 2)])));
    };
    decode(72..80);
    decode(78..84);
    steps.push(prompt(72..84, 0));
    steps.push(prompt(0..12, 0));
    steps.push((1, vec![row(12, 2), row(12, 0)]));
    let model = Model::open(data(&format!("architectures/{name}.gguf"))).unwrap();
    let model = model.with_cache_type(cache).unwrap();
    let (layers, positions) = model.rings(rings);
    assert!(layers > 0 && positions < 72, "{name}: {positions}");
    let got = logits(&Nv::detect().unwrap(), &model, rings, CHUNK, &steps);
    let want = logits(&Cpu::detect(), &model, whole, CHUNK, &steps);
    same(&got, &want, &format!("{name} in {cache}"));
}

/// Attention with and without sinks.
#[test]
fn ring_caches_change_no_bit() {
    for name in ["gemma3", "gpt-oss"] {
        check_rings(name, DType::F16);
    }
}

#[test]
fn quantised_caches_equal_the_cpu() {
    check_rings("gemma3", DType::Q4_0);
    check_cache("qwen3", DType::Q8_0);
}

#[test]
#[ignore = "nightly"]
fn nightly_ring_and_quantised_caches_of_more_architectures_equal_the_cpu() {
    for name in ["gemma2", "gemma4"] {
        check_rings(name, DType::F16);
    }
    check_rings("gpt-oss", DType::Q8_0);
    check_cache("phi3", DType::Q4_0);
    check_cache("mistral3", DType::Q8_0);
}

/// Compares the logits of a model whose cache has this type with the CPU's.
fn check_cache(name: &str, cache: DType) {
    let model = Model::open(data(&format!("architectures/{name}.gguf"))).unwrap();
    let model = model.with_cache_type(cache).unwrap();
    let run = |device: &dyn Device| logits(device, &model, LAYOUT, CHUNK, &steps());
    same(&run(&Nv::detect().unwrap()), &run(&Cpu::detect()), &format!("{name} in {cache}"));
}

/// The model of the test with this name.
fn file_of(test: &str) -> String {
    test.replace('_', "-")
}

macro_rules! architectures {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check(&file_of(stringify!($name)), Mix::Q8_0);
        }
    )*

    /// Matrices of plain numbers; `parity::steps` runs their kernels in the gate.
    #[test]
    #[ignore = "nightly"]
    fn nightly_every_architecture_in_f16() {
        for name in [$(file_of(stringify!($name))),*] {
            check(&name, Mix::F16);
        }
    }

    #[test]
    fn every_architecture_is_tested() {
        let names = [$(file_of(stringify!($name))),*];
        for name in model::Architecture::names().split(", ") {
            assert!(names.iter().any(|known| known == name), "no test of {name}");
        }
    }};
}
architectures! {
    gemma gemma2 gemma3 gemma4 gemma4_moe gpt_oss gpt2 granite lfm2 llama mistral3 mixtral olmoe phi2 phi3 qwen2 qwen2moe qwen3
    qwen35 qwen35moe qwen3moe qwen3next rwkv7 smollm3
}
