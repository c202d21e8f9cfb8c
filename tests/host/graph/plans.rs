//! Properties of every plan of every model, before and after any fusion: it is valid, it reads each weight once, and
//! its steps are those that devices launch.

use std::collections::{BTreeMap, BTreeSet};

use model::{Architecture, KvLayout, Model, ports};
use plan::graph::Graph;
use plan::sample::Adjustment;
use plan::{Bucket, Class, DType, Fusions, Op, Outputs, Plan, RopeKv, fuse};

use orind_testing::shapes::{LLAMA_3_2_1B, Shapes, Sizes};
use orind_testing::{data, tiny};

const LAYOUT: KvLayout = KvLayout { slots: 4, context: 64, ring: None };

fn open(name: &str) -> Model {
    Model::open(tiny(name)).unwrap()
}

fn models() -> Vec<(&'static str, Model)> {
    ["tiny-llama-Q4_K_M", "tiny-llama-f16", "tiny-qwen3-Q4_K_M"]
        .map(|name| (name, open(name)))
        .into()
}

fn buckets() -> Vec<Bucket> {
    let mut buckets: Vec<Bucket> = [1, 2, 3, 4].map(|n| Bucket::decode(n, 64)).into();
    for outputs in [Outputs::None, Outputs::Last, Outputs::All, Outputs::Hidden] {
        for chunk in [2, 7, 32] {
            buckets.push(Bucket::prefill(chunk, 48, outputs));
        }
        buckets.push(Bucket { batch: 3, chunk: 5, context: 16, outputs });
    }
    buckets
}

/// Number of independent flags in `fusions`.
const FLAGS: u32 = 7;

fn fusions(bits: u32) -> Fusions {
    let bit = |i: u32| bits >> i & 1 == 1;
    Fusions {
        composites: bit(0),
        projections: bit(1),
        norm: bit(2),
        residual: bit(3),
        rope_kv: bit(4),
        sample_advance: bit(5),
        epilogue: bit(6),
        // Models have no convolutions.
        convolutions: bit(6),
    }
}

/// All fusions, none, all but one, and only one.
fn some_fusions() -> Vec<Fusions> {
    let all = (1 << FLAGS) - 1;
    let each = (0..FLAGS).flat_map(|flag| [1 << flag, all & !(1 << flag)]);
    [0, all].into_iter().chain(each).map(fusions).collect()
}

/// Every combination of fusions.
fn all_fusions() -> Vec<Fusions> {
    (0..1 << FLAGS).map(fusions).collect()
}

fn names(plan: &Plan, class: Class) -> BTreeSet<&str> {
    plan.buffers.iter().filter(|b| b.class == class).map(|b| b.name.as_str()).collect()
}

fn count(plan: &Plan, matches: impl Fn(&Op) -> bool) -> usize {
    plan.steps.iter().filter(|step| matches(&step.op)).count()
}

#[test]
fn fused_plans_of_every_bucket_are_valid_and_read_the_same_weights() {
    check_buckets(&some_fusions());
}

#[test]
#[ignore = "nightly"]
fn nightly_every_combination_of_fusions_is_valid() {
    check_buckets(&all_fusions());
    check_architectures(&all_fusions());
}

fn check_buckets(all: &[Fusions]) {
    for (name, model) in models() {
        for bucket in buckets() {
            let unfused = model.plan(LAYOUT, bucket).unwrap();
            assert_eq!(fuse(&unfused, Fusions::NONE), unfused, "{name} {bucket:?}");
            for &fusions in all {
                let place = format!("{name} {bucket:?} {fusions:?}");
                let plan = fuse(&unfused, fusions);
                plan.validate().unwrap_or_else(|e| panic!("{place}: {e}"));
                assert_eq!(plan.bucket, bucket);
                // Fusion keeps weights, caches, mailboxes and outputs.
                for class in [Class::Weight, Class::State, Class::Mailbox, Class::Output] {
                    assert_eq!(names(&plan, class), names(&unfused, class), "{place}");
                }
                assert!(
                    (0..plan.buffers.len() as u32)
                        .all(|i| { plan.steps.iter().any(|s| s.touches(plan::BufferId(i))) }),
                    "{place}: a buffer that no step touches"
                );
                assert_eq!(plan.cost().weight_bytes, unfused.cost().weight_bytes, "{place}");
                assert!(plan.cost().bytes() <= unfused.cost().bytes(), "{place}");
                assert!(plan.steps.len() <= unfused.steps.len(), "{place}");
            }
        }
    }
}

#[test]
fn a_fully_fused_plan_has_only_fused_steps() {
    for (name, model) in models() {
        let layers = model.hyperparameters().layers.len();
        for bucket in buckets() {
            let plan = fuse(&model.plan(LAYOUT, bucket).unwrap(), Fusions::ALL);
            let place = format!("{name} {bucket:?}");
            assert!(plan.scopes.is_empty(), "{place}");
            assert_eq!(count(&plan, |op| matches!(op, Op::MatMul { .. })), 0, "{place}");
            assert_eq!(
                count(&plan, |op| matches!(op, Op::Unary { .. } | Op::Binary { .. })),
                0,
                "{place}"
            );
            let rope = count(&plan, |op| matches!(op, Op::RopeKv(_)));
            let kv = names(&plan, Class::State).len();
            assert_eq!(kv, 2 * layers, "{place}: every layer's keys and values are written");
            // Without logits the last layer only fills its cache, so its queries are not computed.
            let silent = usize::from(bucket.outputs == Outputs::None);
            assert_eq!(rope, layers, "{place}");
            let asked =
                count(&plan, |op| matches!(op, Op::RopeKv(RopeKv { queries: Some(_), .. })));
            assert_eq!(asked, layers - silent, "{place}");
            let left_over =
                |op: &Op| matches!(op, Op::Rope { .. } | Op::KvWrite { .. } | Op::Glu { .. });
            assert_eq!(count(&plan, left_over), 0, "{place}");
            super::arena::check(&plan, |id| (id, 0));
        }
    }
}

/// A decode step reads all weights, but only the needed rows of the embedding.
#[test]
fn a_decode_step_reads_weights_and_caches_once() {
    for (name, model) in models() {
        let hyper = model.hyperparameters();
        let weights: BTreeMap<_, _> = model.weights().map(|w| (w.name.as_str(), w)).collect();
        let embedding = weights["token_embd.weight"];
        let row = embedding.dtype.size_of(hyper.width as u64).unwrap();
        let tied = !weights.contains_key("output.weight");
        for batch in [1, 2, 4] {
            let bucket = Bucket::decode(batch, 64);
            let cost = fuse(&model.plan(LAYOUT, bucket).unwrap(), Fusions::ALL).cost();
            let rows = batch as u64 * row;
            let once = model.weight_bytes() - if tied { 0 } else { embedding.bytes() };
            assert_eq!(cost.weight_bytes, once + rows, "{name} batch {batch}");
            let per_token = model.state_bytes_per_token();
            let band = batch as u64 * (bucket.context as u64 + 1) * per_token;
            assert_eq!(cost.state_bytes, band, "{name} batch {batch}");
        }
    }
}

#[test]
fn flops_grow_with_the_rows_and_bytes_do_not() {
    for (name, model) in models() {
        let plan = |chunk| model.plan(LAYOUT, Bucket::prefill(chunk, 64, Outputs::All)).unwrap();
        let cost = |chunk| fuse(&plan(chunk), Fusions::ALL).cost();
        let (few, many) = (cost(8), cost(16));
        assert_eq!(many.flops, 2 * few.flops);
        // The cost of a fused step is the sum of its parts' costs.
        for fusions in some_fusions().into_iter().filter(|fusions| fusions.composites) {
            let flops = fuse(&plan(8), fusions).cost().flops;
            assert_eq!(flops, few.flops, "{name} {fusions:?}");
        }
        let embedding = model.weights().next().unwrap();
        let row = embedding.dtype.size_of(model.hyperparameters().width as u64).unwrap();
        assert_eq!(many.weight_bytes, few.weight_bytes + 8 * row);
        // Two flops for each weight except the embedding's, and those of attention.
        let matrices: u64 = model
            .weights()
            .filter(|w| w.shape.len() == 2 && w.name != "token_embd.weight")
            .map(|w| w.elements() as u64)
            .sum();
        assert!(few.flops > 8 * 2 * matrices);
    }
}

/// Per layer: norm+QKV, RoPE+KV, attention, output+residual, norm+gate/up+SwiGLU, down+residual.
/// Around them: embedding, RoPE table, norm+logits, sampling with the next inputs.
const PER_LAYER: usize = 6;
const AROUND: usize = 4;

#[test]
fn launches_of_llama_3_2_1b() {
    let shapes = Shapes::new(&LLAMA_3_2_1B);
    let layout = KvLayout { slots: 8, context: 4096, ring: None };
    for batch in [1, 8] {
        let plan = shapes.model.plan(layout, Bucket::decode(batch, 4096)).unwrap();
        let fused = fuse(&plan, Fusions::ALL);
        assert_eq!(fused.steps.len(), 16 * PER_LAYER + AROUND);
        assert_eq!(
            count(&fused, |op| matches!(op, Op::RopeKv(RopeKv { norm: None, .. }))),
            16,
            "no QK-norm in this family"
        );
        // 1,235,814,400 parameters without the RoPE factors; all but the norms in Q6_K.
        let norms = (16 * 2 + 1) * 2048;
        let matrices = 1_235_814_400 - norms;
        let embedding_rows = batch as u64 * 2048 / 256 * 210;
        let frequencies = 32 * 4;
        let bytes = matrices / 256 * 210 + norms * 4 + embedding_rows + frequencies;
        assert_eq!(fused.cost().weight_bytes, bytes);
    }
    let chunk = Bucket::prefill(256, 4096, Outputs::Last);
    let fused = fuse(&shapes.model.plan(layout, chunk).unwrap(), Fusions::ALL);
    // Two gathers of the rows that continue after the last attention and one of their positions; no
    // assignment of the next inputs.
    assert_eq!(fused.steps.len(), 16 * PER_LAYER + AROUND + 3);
}

#[test]
fn launches_of_qwen3_0_6b() {
    let shapes = Shapes::new(&Sizes {
        architecture: "qwen3",
        dtype: DType::Q8_0,
        layers: 28,
        width: 1024,
        feed_forward: 3072,
        heads: 16,
        kv_heads: 8,
        head_size: 128,
        vocabulary: 151_936,
    });
    let layout = KvLayout { slots: 1, context: 2048, ring: None };
    let plan = shapes.model.plan(layout, Bucket::decode(1, 2048)).unwrap();
    let fused = fuse(&plan, Fusions::ALL);
    assert_eq!(fused.steps.len(), 28 * PER_LAYER + AROUND);
    assert_eq!(count(&fused, |op| matches!(op, Op::RopeKv(RopeKv { norm: Some(_), .. }))), 28);
}

#[test]
fn a_norm_that_the_host_reads_stays_a_step() {
    let mut g = Graph::new();
    let x = g.source(Class::Mailbox, "x", DType::F32, &[1, 32]).unwrap();
    let scale = g.source(Class::Weight, "scale", DType::F32, &[32]).unwrap();
    let matrix = g.source(Class::Weight, "matrix", DType::F16, &[8, 32]).unwrap();
    let normed = g.rms_norm(x, scale, 1e-5).unwrap();
    let y = g.matmul(normed, matrix).unwrap();
    for (outputs, norms) in [(&[("y", y)][..], 0), (&[("y", y), ("normed", normed)], 1)] {
        let mut g = g.clone();
        for &(name, tensor) in outputs {
            g.output(name, tensor);
        }
        let fused = fuse(&g.lower(Bucket::decode(1, 64)).unwrap(), Fusions::ALL);
        assert_eq!(count(&fused, |op| matches!(op, Op::Normalise(_))), norms, "{outputs:?}");
    }
}

#[test]
fn a_decode_plan_has_these_mailboxes_and_outputs() {
    for (name, model) in models() {
        let plan = fuse(&model.plan(LAYOUT, Bucket::decode(2, 64)).unwrap(), Fusions::ALL);
        let vocabulary = model.hyperparameters().vocabulary;
        let mailboxes = [
            (ports::TOKENS, DType::I32, vec![2]),
            (ports::POSITIONS, DType::I32, vec![2]),
            (ports::SLOTS, DType::I32, vec![2]),
            (ports::TEMPERATURE, DType::F32, vec![2]),
            (ports::TOP_K, DType::I32, vec![2]),
            (ports::TOP_P, DType::F32, vec![2]),
            (ports::MIN_P, DType::F32, vec![2]),
            (ports::SEED, DType::I32, vec![2, 2]),
            (ports::ADJUSTMENTS, DType::I32, vec![2, Adjustment::words(vocabulary)]),
        ];
        assert_eq!(names(&plan, Class::Mailbox).len(), mailboxes.len(), "{name}");
        for (port, dtype, shape) in mailboxes {
            let buffer = plan.buffer(plan.find(Class::Mailbox, port).unwrap());
            assert_eq!((buffer.dtype, &buffer.shape), (dtype, &shape), "{name} {port}");
        }
        let logits = plan.buffer(plan.find(Class::Output, ports::LOGITS).unwrap());
        assert_eq!(logits.shape, [2, vocabulary], "{name}");
        let sampled = plan.buffer(plan.find(Class::Output, ports::SAMPLED).unwrap());
        assert_eq!(sampled.shape, [2], "{name}");
    }
}

fn architecture(name: &str) -> Model {
    Model::open(data(&format!("architectures/{name}.gguf"))).unwrap()
}

#[test]
fn every_architecture_fuses_to_valid_plans() {
    check_architectures(&some_fusions());
}

fn check_architectures(all: &[Fusions]) {
    for name in Architecture::names().split(", ") {
        let model = architecture(name);
        for bucket in [Bucket::decode(2, 64), Bucket::prefill(5, 48, Outputs::Last)] {
            let unfused = model.plan(LAYOUT, bucket).unwrap();
            for &fusions in all {
                let plan = fuse(&unfused, fusions);
                plan.validate().unwrap_or_else(|e| panic!("{name} {bucket:?} {fusions:?}: {e}"));
                assert_eq!(names(&plan, Class::Weight), names(&unfused, Class::Weight), "{name}");
                // Without fusion, sinks are read twice: for the largest score and for the sum.
                let (read, whole) = (plan.cost().weight_bytes, unfused.cost().weight_bytes);
                let sinks = model.weights().filter(|weight| weight.name.contains("attn_sinks"));
                let sinks: u64 = sinks.map(plan::Buffer::bytes).sum();
                assert!(read == whole || read + sinks == whole, "{name}: {read} of {whole} bytes");
            }
            let fused = fuse(&unfused, Fusions::ALL);
            // The activation of a short convolution is a step of its own.
            let convolutions = count(&fused, |op| matches!(op, Op::ShortConv(_)));
            let apart =
                |op: &Op| matches!(op, Op::MatMul { .. } | Op::Bias { .. } | Op::Activate { .. });
            assert!(count(&fused, apart) <= convolutions, "{name} {bucket:?}: in projections");
        }
    }
}

/// Two of the four layers of this Gemma 2 have a window of seven positions.
#[test]
fn a_window_bounds_what_a_step_reads() {
    let model = architecture("gemma2");
    let layer = model.state_bytes_per_token() / 4;
    let read = |context| {
        let bucket = Bucket::decode(1, context);
        fuse(&model.plan(LAYOUT, bucket).unwrap(), Fusions::ALL).cost().state_bytes
    };
    for context in [5, 7, 64] {
        let (all, near) = (context as u64, context.min(7) as u64);
        assert_eq!(read(context), layer * (2 * (all + 1) + 2 * (near + 1)), "{context}");
    }
}

#[test]
fn a_context_larger_than_the_cache_is_refused() {
    let (_, model) = models().remove(0);
    let error = model.plan(LAYOUT, Bucket::decode(1, LAYOUT.context + 1)).unwrap_err();
    assert!(error.to_string().contains("context"), "{error}");
}
