//! Writes the file of a synthetic model: metadata, then weights in pieces on several threads.

use std::collections::BTreeMap;
use std::path::Path;

use nix::sys::statvfs::statvfs;

use super::planted;
use super::random::{self, key};
use super::shape::{Family, RANKS, Role, Shape, Tensor};
use super::spec::{Error, Spec, VERSION, VERSION_KEY};
use super::vocabulary::{Vocabulary, chat_template};
use crate::gguf::{self, DataWriter, Gguf, TensorId, Writer};
use crate::pieces::{self, Scratch};
use crate::quantise::QUANTIZATION_VERSION;
use plan::DType;
use plan::quant;

/// Writes the file of `spec` to `path`. The number of threads does not change it.
pub(super) fn build(
    spec: Spec,
    path: &Path,
    threads: usize,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<(), Error> {
    let shape = &spec.shape;
    let planted = if shape.planted { planted::weights(shape) } else { BTreeMap::new() };
    has_room(path, bytes(&spec))?;
    let Begun { data, jobs, bytes } = begin(&spec, path, &planted)?;
    run(&jobs, threads, &data, bytes, progress)?;
    Ok(data.finish()?)
}

/// The file of `spec`, temporarily in `dir`, with zeroes in place of all weights but those that loading reads.
pub(super) fn outline(spec: Spec, dir: &Path) -> Result<Gguf, Error> {
    let nothing = BTreeMap::new();
    let Begun { data, mut jobs, bytes } = begin(&spec, &dir.join(spec.file_name()), &nothing)?;
    jobs.retain(|job| matches!(job.weights, Weights::Owned(_)));
    run(&jobs, 1, &data, bytes, &mut |_, _| true)?;
    Ok(data.outline()?)
}

/// A file with its header, and the pieces to be written.
struct Begun<'a> {
    data: DataWriter,
    jobs: Vec<Job<'a>>,
    bytes: u64,
}

fn begin<'a>(
    spec: &Spec,
    path: &Path,
    planted: &'a BTreeMap<String, Vec<f32>>,
) -> Result<Begun<'a>, Error> {
    let Spec { shape, kind, .. } = spec;
    let mut writer = Writer::new(path);
    describe(&mut writer, spec)?;
    let mut jobs = Vec::new();
    let mut bytes = 0;
    for tensor in shape.tensors() {
        let dtype = kind.dtype(&tensor, shape);
        let id = writer.tensor(&tensor.name, &tensor.shape, dtype)?;
        let elements: usize = tensor.shape.iter().product();
        let weights = match planted.get(&tensor.name) {
            Some(values) => Weights::Values(values),
            None => Weights::new(shape, &tensor),
        };
        for (first, count) in pieces::of(elements) {
            jobs.push(Job { id, dtype, first, count, weights: weights.clone() });
        }
        bytes += dtype.size_of(elements as u64).unwrap_or(0);
    }
    Ok(Begun { data: writer.begin()?, jobs, bytes })
}

/// A piece of a tensor.
struct Job<'a> {
    id: TensorId,
    dtype: DType,
    first: usize,
    count: usize,
    weights: Weights<'a>,
}

#[derive(Clone)]
enum Weights<'a> {
    Noise { key: u64, mean: f32, deviation: f32 },
    Values(&'a [f32]),
    Owned(Vec<f32>),
}

impl Weights<'_> {
    /// Weights of a tensor of a large model. Matrices preserve the size of activations. Layers add less to the
    /// residual stream, which grows to about 1 over all layers: well above the embedding in it, else the tied output
    /// would repeat the last token. Logits get a deviation of 2. Attention adds less than the feed-forward block: it
    /// averages, so the common part of all positions would grow from layer to layer until all positions are equal.
    fn new(shape: &Shape, tensor: &Tensor) -> Self {
        let row = tensor.shape.last().copied().unwrap_or(1) as f32;
        let (mean, deviation) = match tensor.role {
            Role::RopeFactors => return Self::Owned(shape.rope_factors()),
            Role::Norm if tensor.name == "output_norm.weight" => (2.0, 0.1),
            Role::Norm => (1.0, 0.1),
            Role::Bias => (0.0, 0.1),
            Role::Sink => (0.0, 1.0),
            Role::Rate => (-0.5, 0.2),
            Role::Convolution => (0.0, 0.5),
            Role::Lerp => (0.5, 0.2),
            Role::Embedding | Role::Output => (0.0, 1.0 / row.sqrt()),
            Role::Query | Role::Key | Role::Value | Role::Gate | Role::Up => {
                (0.0, 1.0 / row.sqrt())
            }
            Role::Down => (0.0, 1.0 / (row * shape.layers as f32).sqrt()),
            Role::AttentionOutput => (0.0, 0.25 / (row * shape.layers as f32).sqrt()),
        };
        Self::Noise { key: key(&format!("{} {}", shape.name, tensor.name)), mean, deviation }
    }

    fn fill(&self, first: usize, out: &mut [f32]) {
        match self {
            Self::Noise { key, mean, deviation } => {
                random::fill(*key, first as u64, *deviation, out);
                if *mean != 0.0 {
                    out.iter_mut().for_each(|value| *value += mean);
                }
            }
            Self::Values(values) => out.copy_from_slice(&values[first..][..out.len()]),
            Self::Owned(values) => out.copy_from_slice(&values[first..][..out.len()]),
        }
    }
}

/// Size of all weights of a model.
fn bytes(spec: &Spec) -> u64 {
    let Spec { shape, kind, .. } = spec;
    let size = |tensor: Tensor| {
        let elements: usize = tensor.shape.iter().product();
        kind.dtype(&tensor, shape).size_of(elements as u64).unwrap_or(0)
    };
    shape.tensors().into_iter().map(size).sum()
}

/// Rejects a file that is larger than the free space on its disk.
fn has_room(path: &Path, need: u64) -> Result<(), Error> {
    let folder = path.parent().unwrap_or(path);
    // A system that reports no free space may have some.
    let Ok(system) = statvfs(folder) else { return Ok(()) };
    let free = system.blocks_available().saturating_mul(system.fragment_size());
    if need > free {
        return Err(Error::Room { path: folder.to_owned(), need, free });
    }
    Ok(())
}

/// Runs all jobs; calls `progress` on this thread, which stops the work by returning false.
fn run(
    jobs: &[Job<'_>],
    threads: usize,
    data: &DataWriter,
    total: u64,
    progress: &mut dyn FnMut(u64, u64) -> bool,
) -> Result<(), Error> {
    let work = |job: &Job<'_>, scratch: &mut Scratch| work(job, data, scratch);
    let mut report = |done| if progress(done, total) { Ok(()) } else { Err(Error::Cancelled) };
    pieces::run(jobs, threads, work, &mut report)
}

/// Writes one piece; returns its size.
fn work(job: &Job<'_>, data: &DataWriter, scratch: &mut Scratch) -> Result<u64, Error> {
    let Scratch { values, bytes } = scratch;
    let size = |elements: usize| elements / job.dtype.block_len() * job.dtype.block_bytes();
    values.resize(job.count, 0.0);
    bytes.resize(size(job.count), 0);
    job.weights.fill(job.first, values);
    quant::quantise(job.dtype, values, bytes)?;
    data.write(job.id, size(job.first) as u64, bytes)?;
    Ok(bytes.len() as u64)
}

/// Metadata that depends on the building blocks of the model.
fn block_keys(shape: &Shape) -> Vec<(&'static str, u32)> {
    let head_dim = shape.head_dim as u32;
    if shape.architecture == "rwkv7" {
        let ranks = RANKS.map(|(_, key, rank)| (key, rank as u32));
        return [("attention.head_count", 0), ("wkv.head_size", head_dim)]
            .into_iter()
            .chain(ranks)
            .collect();
    }
    let mut keys = vec![
        ("attention.head_count", shape.heads as u32),
        ("attention.head_count_kv", shape.kv_heads as u32),
        ("attention.key_length", head_dim),
        ("attention.value_length", head_dim),
    ];
    if let Some(experts) = shape.experts {
        keys.extend([
            ("expert_count", experts.count as u32),
            ("expert_used_count", experts.chosen as u32),
            ("expert_feed_forward_length", experts.ffn as u32),
        ]);
        if experts.shared > 0 {
            keys.push(("expert_shared_feed_forward_length", experts.shared as u32));
        }
    }
    if let Some(delta) = shape.delta {
        let [key_heads, values, size, taps] = delta.map(|number| number as u32);
        keys.extend([
            ("ssm.conv_kernel", taps),
            ("ssm.group_count", key_heads),
            ("ssm.inner_size", values * size),
            ("ssm.state_size", size),
            ("ssm.time_step_rank", values),
            ("full_attention_interval", 4),
            // A quarter of each head is rotated.
            ("rope.dimension_count", head_dim / 4),
        ]);
    }
    if shape.nextn {
        keys.push(("nextn_predict_layers", 1));
    }
    keys
}

/// Writes the metadata: the keys of llama.cpp's converter and quantiser, and ours.
fn describe(writer: &mut Writer, spec: &Spec) -> Result<(), gguf::Error> {
    let Spec { shape, kind, .. } = spec;
    let arch = shape.architecture;
    let name = format!("{} (synthetic, random weights)", spec.title());
    writer.metadata("general.architecture", arch)?;
    writer.metadata("general.type", "model")?;
    writer.metadata("general.name", name)?;
    writer.metadata("general.file_type", kind.mix.file_type())?;
    writer.metadata("general.quantization_version", QUANTIZATION_VERSION)?;
    writer.metadata(VERSION_KEY, VERSION)?;
    writer.metadata("orind.synthetic.seed", random::SEED)?;

    let head_dim = shape.head_dim as u32;
    let numbers = [
        ("vocab_size", shape.vocab as u32),
        ("context_length", shape.context),
        ("embedding_length", shape.dim as u32),
        ("block_count", shape.layers as u32 + u32::from(shape.nextn)),
        ("feed_forward_length", shape.ffn as u32),
    ];
    for (key, value) in numbers.into_iter().chain(block_keys(shape)) {
        writer.metadata(&format!("{arch}.{key}"), value)?;
    }
    if arch == "rwkv7" {
        writer.metadata("rwkv7.attention.layer_norm_epsilon", shape.epsilon)?;
    }
    if shape.family == Family::Llama {
        writer.metadata(&format!("{arch}.rope.dimension_count"), head_dim)?;
    }
    if shape.window > 0 {
        writer.metadata(&format!("{arch}.attention.sliding_window"), shape.window)?;
    }
    if arch == "gpt-oss" {
        writer.metadata("gpt-oss.rope.scaling.type", "yarn")?;
        writer.metadata("gpt-oss.rope.scaling.factor", 32.0f32)?;
        writer.metadata("gpt-oss.rope.scaling.original_context_length", 4096u32)?;
    }
    if arch == "gemma3" {
        writer.metadata("gemma3.rope.scaling.type", "linear")?;
        writer.metadata("gemma3.rope.scaling.factor", 8.0f32)?;
    }
    writer.metadata(&format!("{arch}.attention.layer_norm_rms_epsilon"), shape.epsilon)?;
    writer.metadata(&format!("{arch}.rope.freq_base"), shape.rope_base)?;

    let vocabulary = Vocabulary::new(shape);
    let pre = match shape.family {
        Family::Llama => "llama-bpe",
        Family::Qwen3 => "qwen2",
    };
    writer.metadata("tokenizer.ggml.model", "gpt2")?;
    writer.metadata("tokenizer.ggml.pre", pre)?;
    writer.metadata("tokenizer.ggml.tokens", vocabulary.tokens)?;
    writer.metadata("tokenizer.ggml.token_type", vocabulary.types)?;
    writer.metadata("tokenizer.ggml.merges", vocabulary.merges)?;
    writer.metadata("tokenizer.ggml.bos_token_id", vocabulary.bos)?;
    writer.metadata("tokenizer.ggml.eos_token_id", vocabulary.eos)?;
    if let Some(padding) = vocabulary.padding {
        writer.metadata("tokenizer.ggml.padding_token_id", padding)?;
    }
    writer.metadata("tokenizer.ggml.add_bos_token", shape.family == Family::Llama)?;
    writer.metadata("tokenizer.chat_template", chat_template(shape.family))?;
    Ok(())
}
