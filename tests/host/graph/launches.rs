//! Lowering of plans to GPU launches: their number, kernels and dependencies. Needs no GPU.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use device::gpu::{self, Outline};
use device::{Error, Request};
use model::gguf::Gguf;
use model::mix::Mix;
use model::quantise::Conversion;
use model::{Architecture, KvLayout, Model};
use plan::{Bucket, Buffer, DType, Fusions, Outputs, Plan, Precision, fuse};

use orind_testing::shapes::{LLAMA_3_2_1B, Shapes, Sizes};
use orind_testing::{data, repository, tiny};

const SMS: u32 = 16;

fn open(name: &str) -> Model {
    Model::open(tiny(name)).unwrap()
}

fn outline(model: &Model, layout: KvLayout, bucket: Bucket) -> Result<Vec<Outline>, Error> {
    let plan: Plan = fuse(&model.plan(layout, bucket).unwrap(), Fusions::ALL);
    let weights: Vec<Buffer> = model.weights().cloned().collect();
    let states = model.states(layout);
    let request = Request {
        weights: &weights,
        states: &states,
        plans: std::slice::from_ref(&plan),
        choices: None,
    };
    gpu::outline(&plan, &request, SMS)
}

fn kernels<'a>(launches: &'a [Outline], of: &str) -> Vec<&'a str> {
    launches.iter().map(|l| l.kernel.as_str()).filter(|k| k.starts_with(of)).collect()
}

const LAYOUT: KvLayout = KvLayout { slots: 8, context: 512, ring: None };

#[test]
fn a_decode_step_has_five_launches_per_layer() {
    for name in ["tiny-llama-Q8_0", "tiny-llama-Q6_K", "tiny-qwen3-Q8_0"] {
        let model = open(name);
        let layers = model.hyperparameters().layers.len();
        for batch in [1, 4, 8] {
            let launches = outline(&model, LAYOUT, Bucket::decode(batch, 512)).unwrap();
            // Embedding, RoPE table, logits, sampling.
            assert_eq!(launches.len(), 5 * layers + 4, "{name}, batch {batch}");
            assert_eq!(kernels(&launches, "attention").len(), layers);
            assert!(kernels(&launches, "rope_kv").is_empty(), "attention rotates");
            assert_eq!(kernels(&launches, "project").len(), 4 * layers + 1);
            assert!(!launches[1].waits, "embedding and RoPE table do not depend on each other");
            assert!(launches[2..].iter().all(|l| l.waits), "everything else is a chain");
        }
    }
}

#[test]
fn matrices_of_different_types_are_separate_launches() {
    let model = open("tiny-llama-Q4_K_M");
    let layers = model.hyperparameters().layers.len();
    let launches = outline(&model, LAYOUT, Bucket::decode(1, 512)).unwrap();
    let extra = launches.len() - (5 * layers + 4);
    assert!((1..=layers).contains(&extra), "{extra} layers have V of another type");
    assert!(!kernels(&launches, "project_q4_k").is_empty());
    assert!(!kernels(&launches, "project_q6_k").is_empty());
}

#[test]
fn a_chunk_of_a_prompt_reads_each_matrix_once() {
    let model = open("tiny-llama-Q8_0");
    let layers = model.hyperparameters().layers.len();
    for rows in [2, 8, 9, 200] {
        let bucket = Bucket::prefill(rows, 512, Outputs::Last);
        let launches = outline(&model, LAYOUT, bucket).unwrap();
        assert_eq!(kernels(&launches, "rope_kv").len(), layers, "rows share a slot");
        // After its attention the last layer computes only the last row.
        let few = kernels(&launches, "project").len();
        let many = kernels(&launches, "matmul").len();
        assert_eq!(kernels(&launches, "quantise").len(), many, "{rows} rows");
        assert_eq!(many > 0, rows > 8, "{rows} rows");
        assert_eq!(few + many, 4 * layers + 1, "{rows} rows: {few} and {many}");
    }
}

#[test]
fn plain_weights_process_eight_rows_per_launch_below_tiles() {
    let shapes = Shapes::new(&Sizes { dtype: DType::F16, ..LLAMA_3_2_1B });
    let model = &shapes.model;
    let layers = model.hyperparameters().layers.len();
    for (rows, parts) in [(2, 1), (8, 1), (9, 2), (20, 3)] {
        let bucket = Bucket::prefill(rows, 512, Outputs::Last);
        let launches = outline(model, LAYOUT, bucket).unwrap();
        // After its attention the last layer computes only the last row.
        let projections = kernels(&launches, "project").len();
        assert!(projections > parts * 4 * (layers - 1), "{rows} rows: {projections}");
        let wide = launches.iter().filter(|l| l.kernel.contains("_r8_")).count();
        assert_eq!(wide > 0, rows >= 5);
    }
}

/// On request, long chunks are computed in half precision, but short ones and decode batches are not.
#[test]
fn half_precision_uses_tensor_cores() {
    let dir = tempfile::tempdir().unwrap();
    for (mix, symbol) in [(Mix::F16, "_f16"), (Mix::BF16, "_bf16"), (Mix::F32, "_none")] {
        let to = dir.path().join(symbol);
        let from = Gguf::open(data("architectures/llama.gguf")).unwrap();
        let conversion = Conversion::new(from, mix, false).unwrap();
        conversion.write(&to, 1, &AtomicBool::new(false), &mut |_| {}).unwrap();
        let open = || Model::open(&to).unwrap();
        let layers = open().hyperparameters().layers.len();
        for (precision, bucket, long) in [
            (Precision::Half, Bucket::prefill(64, 512, Outputs::Last), true),
            (Precision::Half, Bucket::prefill(63, 512, Outputs::Last), false),
            (Precision::Half, Bucket::decode(64, 512), false),
            (Precision::Single, Bucket::prefill(200, 512, Outputs::Last), false),
        ] {
            let layout = KvLayout { slots: 64, ..LAYOUT };
            let launches = outline(&open().with_precision(precision), layout, bucket).unwrap();
            let half = kernels(&launches, "matmul_half");
            // After its attention the last layer computes only the last row.
            let many = if long && symbol != "_none" { 4 * layers - 3 } else { 0 };
            assert_eq!(half.len(), many, "{symbol}, {bucket:?}");
            assert!(half.iter().all(|kernel| kernel.ends_with(symbol)));
            assert_eq!(kernels(&launches, "halves").len(), many);
        }
    }
}

/// Rows of a prompt are grouped by expert, for every type; in decode each pair of row and expert is separate.
#[test]
fn rows_with_the_same_expert_share_its_weights() {
    let dir = tempfile::tempdir().unwrap();
    for (mix, symbol) in
        [(Mix::Q8_0, "q8_0"), (Mix::F16, "f16"), (Mix::BF16, "bf16"), (Mix::F32, "f32")]
    {
        let to = dir.path().join(symbol);
        let from = Gguf::open(data("architectures/mixtral.gguf")).unwrap();
        let conversion = Conversion::new(from, mix, false).unwrap();
        conversion.write(&to, 1, &AtomicBool::new(false), &mut |_| {}).unwrap();
        let model = Model::open(&to).unwrap();
        let layers = model.hyperparameters().layers.len();
        // After its attention the last layer computes only the last row.
        for (bucket, groups) in
            [(Bucket::prefill(200, 512, Outputs::Last), layers - 1), (Bucket::decode(1, 512), 0)]
        {
            let launches = outline(&model, LAYOUT, bucket).unwrap();
            let of = |kernel: &str| kernels(&launches, kernel).len();
            let (alone, together) = (of("experts"), of(&format!("matmul_{symbol}_m32")));
            assert_eq!(of("group"), groups, "{symbol}, {bucket:?}");
            assert_eq!(
                (together, alone),
                (2 * groups, 2 * (layers - groups)),
                "{symbol}, {bucket:?}"
            );
        }
    }
}

#[test]
fn llama_3_2_1b_decodes_with_few_launches() {
    let shapes = Shapes::new(&LLAMA_3_2_1B);
    let launches = outline(&shapes.model, LAYOUT, Bucket::decode(1, 512)).unwrap();
    assert_eq!(launches.len(), 84, "tinygrad's NV backend launched 230");
}

/// Numbers of labels for each kind of layer, and without a layer.
fn by_layer<'a>(layers: usize, labels: impl Iterator<Item = &'a str>) -> String {
    let (mut of_layers, mut others) = (vec![0; layers], 0);
    for label in labels {
        let layer = label.strip_prefix("blk.").and_then(|rest| rest.split('.').next());
        match layer.and_then(|layer| layer.parse::<usize>().ok()) {
            Some(layer) => of_layers[layer] += 1,
            None => others += 1,
        }
    }
    of_layers.sort_unstable();
    of_layers.dedup();
    let kinds: Vec<String> = of_layers.iter().map(ToString::to_string).collect();
    format!("{} | {others}", kinds.join(", "))
}

/// Steps for one token, and a GPU's launches of a model in Q8_0.
#[test]
fn docs_state_the_steps_and_launches_of_a_token() {
    let page = std::fs::read_to_string(repository("docs/models.md")).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let mut other = Vec::new();
    for name in Architecture::names().split(", ") {
        let (from, to) = (data(&format!("architectures/{name}.gguf")), dir.path().join(name));
        let conversion = Conversion::new(Gguf::open(from).unwrap(), Mix::Q8_0, false).unwrap();
        conversion.write(&to, 1, &AtomicBool::new(false), &mut |_| {}).unwrap();
        let model = Model::open(to).unwrap();
        let (layers, bucket) = (model.hyperparameters().layers.len(), Bucket::decode(1, 64));
        let plan = fuse(&model.plan(LAYOUT, bucket).unwrap(), Fusions::ALL);
        let steps = by_layer(layers, plan.steps.iter().map(|step| &*step.label));
        let launches = outline(&model, LAYOUT, bucket).unwrap();
        let launches = by_layer(layers, launches.iter().map(|launch| &*launch.label));
        let numbers = format!("| {steps} | {launches} |");
        let row = page.lines().find(|line| line.starts_with(&format!("| `{name}` |"))).unwrap();
        if !row.ends_with(&numbers) {
            other.push(format!("{name} has {numbers}"));
        }
    }
    assert!(other.is_empty(), "{}", other.join("\n"));
}

/// Longer launches could not be distinguished from a hang.
#[test]
fn no_launch_takes_longer_than_a_second() {
    let large = Sizes {
        layers: 2,
        width: 8192,
        feed_forward: 28_672,
        heads: 64,
        kv_heads: 8,
        head_size: 128,
        ..LLAMA_3_2_1B
    };
    let qwen = Sizes { architecture: "qwen3", width: 5120, vocabulary: 151_936, ..large };
    let f16 = Sizes { dtype: DType::F16, feed_forward: 17_408, ..qwen };
    let (second, context) = (Duration::from_secs(1), 131_072);
    let layout = KvLayout { slots: 8, context, ring: None };
    for sizes in [LLAMA_3_2_1B, large, qwen, f16] {
        let shapes = Shapes::new(&sizes);
        for bucket in [
            Bucket::decode(1, context),
            Bucket::decode(8, context),
            Bucket::prefill(512, context, Outputs::All),
        ] {
            let launches = outline(&shapes.model, layout, bucket).unwrap();
            let longest = launches.iter().max_by_key(|launch| launch.at_most).unwrap();
            assert!(longest.at_most <= second, "{longest:?}");
        }
    }
    // A longer context makes attention longer, so it is split into more launches.
    let shapes = Shapes::new(&large);
    let attentions = |context| {
        let layout = KvLayout { slots: 1, context, ring: None };
        let bucket = Bucket::prefill(512, context, Outputs::Last);
        let launches = outline(&shapes.model, layout, bucket).unwrap();
        kernels(&launches, "prefill_attention").len()
    };
    assert!(attentions(512) < attentions(context));
}

/// With and without windows and rings, with wide heads and a temperature.
#[test]
fn rows_of_a_long_prompt_share_the_keys_that_attention_reads() {
    for name in ["gemma2", "gemma3", "gpt-oss", "mistral3"] {
        let model = Model::open(data(&format!("architectures/{name}.gguf"))).unwrap();
        let layers = model.hyperparameters().layers.len();
        for ring in [None, Some(512)] {
            let layout = KvLayout { slots: 1, context: 2048, ring };
            let bucket = Bucket::prefill(512, 2048, Outputs::Last);
            let launches = outline(&model, layout, bucket).unwrap();
            assert_eq!(kernels(&launches, "prefill_attention").len(), layers, "{name}, {ring:?}");
            assert!(kernels(&launches, "attention").is_empty(), "{name}, {ring:?}");
        }
    }
    // Heads of Gemma and of Qwen3.5.
    for (heads, kv_heads) in [(8, 4), (16, 2)] {
        let sizes = Sizes { heads, kv_heads, head_size: 256, ..LLAMA_3_2_1B };
        let shapes = Shapes::new(&sizes);
        let layout = KvLayout { slots: 1, context: 2048, ring: None };
        let bucket = Bucket::prefill(512, 2048, Outputs::Last);
        let launches = outline(&shapes.model, layout, bucket).unwrap();
        assert!(kernels(&launches, "prefill_attention_d256").len() >= sizes.layers);
        assert!(kernels(&launches, "attention").is_empty());
    }
}
