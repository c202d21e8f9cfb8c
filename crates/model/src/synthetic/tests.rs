//! Tests of synthetic models. An independent `f64` forward pass over dequantised weights checks the planted rule.

use std::collections::{HashMap, HashSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Barrier;
use std::sync::atomic::AtomicBool;
use std::thread;

use tempfile::TempDir;

use super::planted::Rule;
use super::shape::{Family, SHAPES, Shape};
use super::*;
use crate::gguf::{self, Gguf};
use crate::layout::KvLayout;
use crate::model::Model;
use crate::tokenizer::{
    Bounds, ChatTemplate, Message, RenderOptions, Specials, Tokenizer, Vocabulary,
};
use plan::quant;

fn generate(name: &str, dir: &Path) -> PathBuf {
    Spec::parse(name).unwrap().generate(dir, &mut |_, _| true).unwrap()
}

/// Keys and values, one vector per position.
#[derive(Clone, Default)]
struct Cache {
    keys: Vec<Vec<f64>>,
    values: Vec<Vec<f64>>,
}

/// A textbook forward pass: no batching, no fusion, every number `f64`.
struct Textbook {
    shape: Shape,
    weights: HashMap<String, Vec<f64>>,
    cache: Vec<Cache>,
    /// Round the input of each matrix to 8 bits in blocks of 32, as CPU kernels do.
    eight_bits: bool,
}

impl Textbook {
    fn open(path: &Path, shape: Shape, eight_bits: bool) -> Self {
        let file = Gguf::open(path).unwrap();
        let mut weights = HashMap::new();
        for tensor in file.tensors() {
            let mut bytes = vec![0; tensor.bytes as usize];
            file.read(tensor, 0, &mut bytes).unwrap();
            let mut values = vec![0.0; tensor.elements() as usize];
            quant::dequantise(tensor.dtype, &bytes, &mut values).unwrap();
            weights.insert(tensor.name.clone(), values.into_iter().map(f64::from).collect());
        }
        Self { shape, weights, cache: vec![Cache::default(); shape.layers], eight_bits }
    }

    fn norm(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
        let scale = 1.0 / (mean + f64::from(self.shape.epsilon)).sqrt();
        x.iter().zip(&self.weights[name]).map(|(v, w)| v * scale * w).collect()
    }

    fn times(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mut x = x.to_vec();
        if self.eight_bits {
            for block in x.chunks_mut(32) {
                let step = block.iter().fold(0.0_f64, |a, v| a.max(v.abs())) / 127.0;
                block.iter_mut().for_each(|v| *v = (*v / step).round() * step);
            }
        }
        self.weights[name]
            .chunks(x.len())
            .map(|row| row.iter().zip(&x).map(|(a, b)| a * b).sum())
            .collect()
    }

    fn rotate(&self, head: &mut [f64], position: usize) {
        let half = head.len() / 2;
        for pair in 0..half {
            let base = f64::from(self.shape.rope_base);
            let mut turn = base.powf(-(pair as f64) / half as f64);
            if let Some(factors) = self.weights.get("rope_freqs.weight") {
                turn /= factors[pair];
            }
            let (sin, cos) = (turn * position as f64).sin_cos();
            let (i, j) = match self.shape.family {
                Family::Llama => (2 * pair, 2 * pair + 1),
                Family::Qwen3 => (pair, pair + half),
            };
            (head[i], head[j]) = (head[i] * cos - head[j] * sin, head[i] * sin + head[j] * cos);
        }
    }

    /// Logits after one more token.
    fn step(&mut self, token: usize) -> Vec<f64> {
        let (dim, head_dim) = (self.shape.dim, self.shape.head_dim);
        let mut x = self.weights["token_embd.weight"][token * dim..][..dim].to_vec();
        for layer in 0..self.shape.layers {
            let name = |part: &str| format!("blk.{layer}.{part}.weight");
            let h = self.norm(&name("attn_norm"), &x);
            let mut q = self.times(&name("attn_q"), &h);
            let mut k = self.times(&name("attn_k"), &h);
            let v = self.times(&name("attn_v"), &h);
            let position = self.cache[layer].keys.len();
            for (vector, norm) in [(&mut q, "attn_q_norm"), (&mut k, "attn_k_norm")] {
                for head in vector.chunks_mut(head_dim) {
                    if self.shape.family == Family::Qwen3 {
                        head.copy_from_slice(&self.norm(&name(norm), head));
                    }
                    self.rotate(head, position);
                }
            }
            self.cache[layer].keys.push(k);
            self.cache[layer].values.push(v);
            let Cache { keys, values } = &self.cache[layer];
            let mut attended = vec![0.0; q.len()];
            for (head, (q, out)) in
                q.chunks(head_dim).zip(attended.chunks_mut(head_dim)).enumerate()
            {
                let kv = head / (self.shape.heads / self.shape.kv_heads) * head_dim;
                let score = |k: &Vec<f64>| {
                    let product: f64 = q.iter().zip(&k[kv..]).map(|(a, b)| a * b).sum();
                    product / (head_dim as f64).sqrt()
                };
                let scores: Vec<f64> = keys.iter().map(score).collect();
                let top = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let total: f64 = scores.iter().map(|s| (s - top).exp()).sum();
                for (s, v) in scores.iter().zip(values) {
                    let share = (s - top).exp() / total;
                    out.iter_mut().zip(&v[kv..]).for_each(|(o, v)| *o += share * v);
                }
            }
            let added = self.times(&name("attn_output"), &attended);
            x.iter_mut().zip(added).for_each(|(x, a)| *x += a);

            let h = self.norm(&name("ffn_norm"), &x);
            let gate = self.times(&name("ffn_gate"), &h);
            let up = self.times(&name("ffn_up"), &h);
            let hidden: Vec<f64> =
                gate.iter().zip(up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            let added = self.times(&name("ffn_down"), &hidden);
            x.iter_mut().zip(added).for_each(|(x, a)| *x += a);
        }
        let h = self.norm("output_norm.weight", &x);
        self.times("token_embd.weight", &h)
    }
}

/// The most likely token, and its margin over the second.
fn best(logits: &[f64]) -> (usize, f64) {
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| logits[*b].total_cmp(&logits[*a]));
    (order[0], logits[order[0]] - logits[order[1]])
}

#[test]
fn greedy_decoding_follows_the_rule_with_a_clear_margin() {
    let dir = TempDir::new().unwrap();
    for model in ["tiny-llama", "tiny-qwen3"] {
        for mix in ["f16", "q4_k_m"] {
            let name = format!("synthetic:{model}:{mix}");
            let spec = Spec::parse(&name).unwrap();
            let path = generate(&name, dir.path());
            let rule = Rule::new(&spec.shape);
            let mut exact = Textbook::open(&path, spec.shape, false);
            let mut rounded = Textbook::open(&path, spec.shape, true);
            // The first special token, then text, then generated tokens.
            let prompt = [spec.shape.text_tokens, 17, 400, 401, 3, 3, 3, 900];
            let mut tokens = Vec::new();
            let (mut low, mut errors, mut unclear) = (f64::INFINITY, 0.0_f64, 0);
            for step in 0..120 {
                let token = match prompt.get(step) {
                    Some(token) => *token,
                    None => rule.next(&tokens),
                };
                tokens.push(token);
                let logits = exact.step(token);
                let (found, margin) = best(&logits);
                assert_eq!(found, rule.next(&tokens), "{name} step {step}, margin {margin}");
                let error = logits
                    .iter()
                    .zip(rounded.step(token))
                    .map(|(a, b)| (a - b).abs())
                    .fold(0.0, f64::max);
                low = low.min(margin);
                errors = errors.max(error);
                unclear += usize::from(margin < 10.0 * error);
            }
            let distinct = tokens.iter().collect::<HashSet<_>>().len();
            println!(
                "{name}: least margin {low:.3}, largest error of 8-bit activations {errors:.3}, \
                 {unclear} of 120 margins below ten times it, {distinct} distinct tokens"
            );
            assert!(unclear <= 6, "{name}: {unclear} of 120 steps are not clear");
            assert!(distinct > 80, "{name}: only {distinct} distinct tokens");
        }
    }
}

#[test]
fn names_are_parsed_and_the_nearest_is_suggested() {
    for name in names() {
        let spec = Spec::parse(&name).unwrap();
        assert_eq!(spec.to_string(), name);
        assert!(is_synthetic(&name));
        let shouted = name.to_uppercase().replace("SYNTHETIC", "synthetic");
        assert_eq!(Spec::parse(&shouted).unwrap(), spec);
    }
    // Three shapes are MoE models, two are planted.
    assert_eq!(names().len(), 15 * 5 + 3 + 2 * 17);
    for (wrong, nearest) in [
        ("synthetic:qwen3-0.6:q8_0", "synthetic:qwen3-0.6b:q8_0"),
        ("synthetic:tiny-lama:f16", "synthetic:tiny-llama:f16"),
        ("synthetic:tiny-llama:q4_k_s", "synthetic:tiny-llama:q4_k_m"),
        ("synthetic:llama-3.2-1b:bf16", "synthetic:llama-3.2-1b:f16"),
        ("qwen3-1.7b:q4_k_m", "synthetic:qwen3-1.7b:q4_k_m"),
    ] {
        let error = Spec::parse(wrong).unwrap_err().to_string();
        assert!(error.contains(&format!("did you mean `{nearest}`")), "{error}");
        assert!(error.contains("synthetic:qwen3-1.7b:f16, "), "{error}");
    }
}

#[test]
fn a_model_is_generated_once_and_again_if_damaged() {
    let dir = TempDir::new().unwrap();
    let spec = Spec::parse("synthetic:tiny-qwen3:q8_0").unwrap();
    let mut calls = Vec::new();
    let path = spec
        .generate(dir.path(), &mut |done, total| {
            calls.push((done, total));
            true
        })
        .unwrap();
    let total = Gguf::open(&path).unwrap().tensors().iter().map(|t| t.bytes).sum();
    assert_eq!(calls.last(), Some(&(total, total)));
    assert!(calls.is_sorted());

    let mut never = |_, _| panic!("generated although it exists");
    assert_eq!(spec.generate(dir.path(), &mut never).unwrap(), path);

    let whole = fs::read(&path).unwrap();
    fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    let leftover = dir.path().join(format!(".{}.1-0.tmp", spec.file_name()));
    fs::write(&leftover, b"of a process that was killed").unwrap();
    assert_eq!(spec.generate(dir.path(), &mut |_, _| true).unwrap(), path);
    assert!(fs::read(&path).unwrap() == whole);
    assert!(!leftover.exists());

    let file = dir.path().join("a file");
    fs::write(&file, b"").unwrap();
    let error = spec.generate(&file, &mut |_, _| true).unwrap_err().to_string();
    assert!(error.contains("a file"), "{error}");
}

#[test]
fn a_cancelled_model_leaves_no_file() {
    let dir = TempDir::new().unwrap();
    let spec = Spec::parse("synthetic:tiny-qwen3:q8_0").unwrap();
    let mut seen = Vec::new();
    let cancelled = spec.generate(dir.path(), &mut |_, _| {
        seen.push(fs::read_dir(dir.path()).unwrap().count());
        false
    });
    assert!(matches!(cancelled, Err(Error::Cancelled)), "{cancelled:?}");
    assert_eq!(seen.len(), 1, "it goes on");
    let left: Vec<_> =
        fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert!(left.iter().all(|name| name.to_string_lossy().ends_with(".lock")), "{left:?}");
    spec.generate(dir.path(), &mut |_, _| true).unwrap();
}

#[test]
fn a_model_larger_than_the_disk_is_refused() {
    let dir = TempDir::new().unwrap();
    let spec = Spec::parse("synthetic:qwen3-30b-a3b:f16").unwrap();
    let error = Error::Room { path: dir.path().to_owned(), need: 9 << 30, free: 1 << 30 };
    assert!(error.to_string().contains("has 9216 MiB, but 1024 MiB are free"), "{error}");
    let free = nix::sys::statvfs::statvfs(dir.path()).unwrap();
    let free = free.blocks_available() * free.fragment_size();
    let size = spec.outline().unwrap().tensors().iter().map(|tensor| tensor.bytes).sum::<u64>();
    if size > free {
        let refused = spec.generate(dir.path(), &mut |_, _| panic!("written")).unwrap_err();
        assert!(matches!(refused, Error::Room { need, .. } if need == size), "{refused}");
    }
}

#[test]
fn the_number_of_threads_does_not_matter() {
    let dir = TempDir::new().unwrap();
    let spec = Spec::parse("synthetic:tiny-llama:q6_k").unwrap();
    let made = [1, 2, 5].map(|threads| {
        let path = dir.path().join(threads.to_string());
        build::build(spec, &path, threads, &mut |_, _| true).unwrap();
        fs::read(path).unwrap()
    });
    assert!(made[0] == made[1] && made[0] == made[2]);
}

#[test]
fn concurrent_requests_generate_a_model_once() {
    let dir = TempDir::new().unwrap();
    let spec = Spec::parse("synthetic:tiny-llama:f32").unwrap();
    let barrier = Barrier::new(4);
    let made = thread::scope(|scope| {
        let threads = [(); 4].map(|()| {
            scope.spawn(|| {
                let mut made = false;
                barrier.wait();
                let path = spec
                    .generate(dir.path(), &mut |_, _| {
                        made = true;
                        true
                    })
                    .unwrap();
                assert!(Gguf::open(path).is_ok());
                made
            })
        });
        threads.map(|thread| thread.join().unwrap())
    });
    assert_eq!(
        made.into_iter().filter(|made| *made).count(),
        1,
        "one generates it, the others wait"
    );
}

#[test]
fn vocabularies_have_unique_tokens_and_valid_merges() {
    for shape in &SHAPES {
        let vocabulary = vocabulary::Vocabulary::new(shape);
        assert_eq!(vocabulary.tokens.len(), shape.vocab);
        assert_eq!(vocabulary.types.len(), shape.vocab);
        let tokens: HashSet<&str> = vocabulary.tokens.iter().map(String::as_str).collect();
        assert_eq!(tokens.len(), shape.vocab, "{}: duplicate token", shape.name);
        assert_eq!(vocabulary.merges.len(), shape.text_tokens - 256);

        // Each merge makes the next token from two earlier ones.
        let mut known: HashSet<&str> =
            vocabulary.tokens[..256].iter().map(String::as_str).collect();
        assert!(known.iter().all(|token| token.chars().count() == 1));
        for (merge, token) in vocabulary.merges.iter().zip(&vocabulary.tokens[256..]) {
            let (left, right) = merge.split_once(' ').unwrap();
            assert!(known.contains(left) && known.contains(right), "{merge}");
            assert_eq!(format!("{left}{right}"), *token);
            known.insert(token);
        }
        for id in [vocabulary.bos, vocabulary.eos] {
            assert!(vocabulary.tokens[id as usize].starts_with("<|"));
            assert_eq!(vocabulary.types[id as usize], 3);
        }
    }
}

#[test]
fn any_text_survives_encoding_and_decoding() {
    let dir = TempDir::new().unwrap();
    for (model, template) in [
        (
            "tiny-llama",
            "<|begin_of_text|><|start_header_id|>user<|end_header_id|>\n\nHello!<|eot_id|>\
             <|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("tiny-qwen3", "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"),
    ] {
        let path = generate(&format!("synthetic:{model}:q8_0"), dir.path());
        let file = Gguf::open(path).unwrap();
        let vocabulary = Vocabulary::from_metadata(file.metadata()).unwrap();
        let chat = ChatTemplate::new(&vocabulary).unwrap();
        let tokenizer = Tokenizer::new(vocabulary).unwrap();

        let every_byte: String =
            (0..0x500).chain(0x10_000..0x10_100).filter_map(char::from_u32).collect();
        let english = "The house is on the hill, and 1234 people have seen it.\n\n    return 0;";
        for text in [&every_byte, english] {
            let ids = tokenizer.encode(text, Specials::Plain, false).unwrap();
            assert_eq!(tokenizer.decode(&ids), text);
        }
        let count = tokenizer.encode(english, Specials::Plain, false).unwrap().len();
        assert!(count < english.len() * 2 / 3, "{count} tokens for {} bytes", english.len());

        let never = AtomicBool::new(false);
        let prompt = chat
            .render(&[Message::new("user", "Hello!")], &RenderOptions::answer(), &never)
            .unwrap();
        assert_eq!(prompt.text(), template);
        let bounds = Bounds { tokens: 100, cancelled: &never };
        let ids = tokenizer.encode_rendered(&prompt, &bounds).unwrap();
        let special = ids.iter().filter(|id| tokenizer.is_control(**id)).count();
        assert_eq!(special, prompt.text().matches("<|").count(), "each once, BOS included");
    }
}

#[test]
#[ignore = "writes 2.8 GB to the system's folder for temporary files"]
fn large_models_can_be_generated() {
    let dir = TempDir::new().unwrap();
    for (name, published) in [
        ("synthetic:llama-3.2-1b:q6_k", 1_020_000_000_u64),
        ("synthetic:qwen3-0.6b:q8_0", 640_000_000),
        ("synthetic:qwen3-1.7b:q4_k_m", 1_110_000_000),
    ] {
        let start = std::time::Instant::now();
        let model = Gguf::open(generate(name, dir.path())).unwrap();
        println!("{name}: {} bytes in {:.1?}", model.file_bytes(), start.elapsed());
        assert!(model.file_bytes().abs_diff(published) < 15_000_000, "{name}");
    }
}

#[test]
fn a_bare_model_name_is_looked_up_in_the_models_directory() {
    let dir = TempDir::new().unwrap();
    let file = dir.path().join("a.gguf");
    fs::write(&file, b"").unwrap();
    let found = file.display().to_string();
    assert_eq!(resolve("a", dir.path()), found);
    assert_eq!(resolve("a.gguf", dir.path()), found);
    for same in ["b", "./a", "/x/a.gguf", "synthetic:a"] {
        assert_eq!(resolve(same, dir.path()), same);
    }
}

#[test]
fn an_outline_has_the_metadata_and_tensors_of_the_file() {
    let dir = TempDir::new().unwrap();
    for name in ["synthetic:tiny-llama:q4_k_m", "synthetic:tiny-qwen3:q8_0"] {
        let spec = Spec::parse(name).unwrap();
        let (whole, outline) =
            (Gguf::open(generate(name, dir.path())).unwrap(), spec.outline().unwrap());
        assert_eq!(outline.tensors(), whole.tensors(), "{name}");
        assert_eq!(
            format!("{:?}", outline.metadata()),
            format!("{:?}", whole.metadata()),
            "{name}"
        );
        Model::from_gguf(outline).unwrap();
    }
    // For a large model only the rotary factors are written.
    Model::from_gguf(Spec::parse("synthetic:llama-3.2-1b:q6_k").unwrap().outline().unwrap())
        .unwrap();
}

#[test]
fn a_model_can_be_cut_to_its_first_layers() {
    let spec = Spec::parse("synthetic:gemma3-4b:q8_0@7").unwrap();
    assert_eq!(spec.to_string(), "synthetic:gemma3-4b:q8_0@7");
    assert!(spec.file_name().contains("@7"));
    let model = Model::from_gguf(spec.outline().unwrap()).unwrap();
    assert_eq!(model.hyperparameters().layers.len(), 7);
    let name = model.gguf().metadata().str("general.name").unwrap();
    assert!(name.starts_with("Gemma 3 4B cut to 7 layers"), "{name}");
    for wrong in ["gemma3-4b:q8_0@0", "gemma3-4b:q8_0@34", "gemma3-4b:q8_0@x", "tiny-llama:q8_0@1"]
    {
        assert!(Spec::parse(&format!("synthetic:{wrong}")).is_err(), "{wrong}");
    }
}

#[test]
fn every_shape_can_be_loaded() {
    for shape in &SHAPES {
        let name = format!("synthetic:{}:q8_0", shape.name);
        let outline = Spec::parse(&name).unwrap().outline().unwrap();
        let model = Model::from_gguf(outline).unwrap_or_else(|e| panic!("{name}: {e}"));
        assert_eq!(model.hyperparameters().layers.len(), shape.layers, "{name}");
    }
}

/// A token reads only the experts that it selects, one row of the embedding, and all other weights. For Qwen3.5 35B
/// A3B that is 2.0 of 21 GB, a fifth of it the output projection.
#[test]
fn the_cost_of_a_moe_token_counts_only_selected_experts() {
    for (name, selected, count, least, most) in [
        ("qwen35-35b-a3b:q4_k_m", 8, 256, 1.9e9, 2.05e9),
        ("qwen3-30b-a3b:q4_k_m", 8, 128, 1.75e9, 2.1e9),
        ("gpt-oss-20b:mxfp4", 4, 32, 2.5e9, 2.65e9),
    ] {
        let spec = Spec::parse(&format!("synthetic:{name}")).unwrap();
        let model = Model::from_gguf(spec.outline().unwrap()).unwrap();
        let read = |tensor: &gguf::TensorInfo| match &*tensor.name {
            name if name.contains("_exps.") => tensor.bytes / count * selected,
            "token_embd.weight" => tensor.bytes / tensor.shape[0] as u64,
            _ => tensor.bytes,
        };
        let file: u64 = model.gguf().tensors().iter().map(read).sum();
        let frequencies = model.weights().find(|w| w.name == crate::ports::rope_frequencies(0));
        let want = file + frequencies.unwrap().bytes();
        assert!((least..most).contains(&(want as f64)), "{name}: {want}");
        let layout = KvLayout { slots: 1, context: 16, ring: None };
        let plan = model.plan(layout, plan::Bucket::decode(1, 16)).unwrap();
        // The definition of attention reads sinks twice: for the largest score, and for the sum.
        let sinks = model.weights().filter(|weight| weight.name.contains("attn_sinks"));
        let twice: u64 = sinks.map(plan::Buffer::bytes).sum();
        assert_eq!(plan.cost().weight_bytes, want + twice, "{name}");
        let fused = plan::fuse(&plan, plan::Fusions::ALL);
        assert_eq!(fused.cost().weight_bytes, want, "{name}, fused");
    }
}
