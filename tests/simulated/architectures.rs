//! Every architecture on the simulated Orin: the CPU's logits, to the last bit, of prompts with padding behind them and
//! of two sequences decoded together, of steps that are done again and slots that begin anew.

use device::Device;
use device::cpu::Cpu;
use device::gpu::nv::Nv;
use model::gguf::Gguf;
use model::mix::Mix;
use model::quantise::Conversion;
use model::{KvLayout, Model};
use orind_testing::data;
use orind_testing::session::{Row, Session};
use plan::{Bucket, Outputs};
use std::sync::atomic::AtomicBool;

const LAYOUT: KvLayout = KvLayout { slots: 3, context: 96, ring: None };
/// Rows of a prompt's chunk: more than a span of positions, and no whole number of tiles.
const CHUNK: usize = 40;

fn buckets() -> [Bucket; 2] {
    let context = LAYOUT.context;
    [Bucket::prefill(CHUNK, context, Outputs::All), Bucket::decode(2, context)]
}

/// The logits of all rows of all steps, as bits.
fn logits(device: &dyn Device, model: &Model) -> Vec<Vec<u32>> {
    let mut session = Session::new(device, model, LAYOUT, &buckets());
    let token = |at: i32, slot: i32| (at * 37 + slot * 11 + 5) % 128;
    let row = |at: i32, slot: i32| -> Row { (token(at, slot), at, slot) };
    // A second chunk goes on from the first; then each slot's next token, one twice, one step back; a slot anew.
    let prompts = [(0, 0..36), (2, 0..17), (0, 36..41)];
    let mut steps: Vec<(usize, Vec<Row>)> =
        prompts.into_iter().map(|(slot, at)| (0, at.map(|at| row(at, slot)).collect())).collect();
    steps.extend([0, 1, 2, 2, 3, 3, 2].map(|i| (1, vec![row(41 + i, 0), row(17 + i, 2)])));
    steps.push((0, (0..9).map(|at| row(at, 0)).collect()));
    steps.push((1, vec![row(20, 2), row(9, 0)]));
    let mut all = Vec::new();
    for (plan, rows) in steps {
        session.load(plan, &rows);
        session.run(plan, 1);
        let logits = session.logits(plan);
        let real = &logits[..rows.len() * session.vocabulary];
        all.push(real.iter().map(|v| v.to_bits()).collect());
    }
    all
}

fn check(name: &str) {
    let file = data(&format!("architectures/{name}.gguf"));
    let dir = tempfile::tempdir().unwrap();
    for mix in [Mix::Q8_0, Mix::F16] {
        let path = dir.path().join(mix.name());
        let conversion = Conversion::new(Gguf::open(&file).unwrap(), mix, false).unwrap();
        conversion.write(&path, 1, &AtomicBool::new(false), &mut |_| {}).unwrap();
        let (model, nv) = (Model::open(&path).unwrap(), Nv::detect().unwrap());
        let (got, want) = (logits(&nv, &model), logits(&Cpu::detect(), &model));
        for (step, (got, want)) in got.iter().zip(&want).enumerate() {
            let differ = got.iter().zip(want).filter(|(a, b)| a != b).count();
            assert_eq!(differ, 0, "{name} {}, step {step}: of {} logits", mix.name(), want.len());
        }
    }
}

/// The file of a test of that name.
fn file_of(test: &str) -> String {
    test.replace('_', "-")
}

macro_rules! architectures {
    ($($name:ident)*) => {$(
        #[test]
        fn $name() {
            check(&file_of(stringify!($name)));
        }
    )*

    #[test]
    fn every_architecture_is_here() {
        let names = [$(file_of(stringify!($name))),*];
        for name in model::Architecture::names().split(", ") {
            assert!(names.iter().any(|known| known == name), "{name} is held to nothing here");
        }
    }};
}
architectures! {
    gemma gemma2 gemma3 gemma4 gemma4_moe gpt_oss gpt2 granite lfm2 llama mistral3 mixtral olmoe phi2 phi3 qwen2 qwen2moe qwen3
    qwen35 qwen35moe qwen3moe qwen3next rwkv7 smollm3
}
