//! Errors for files with wrong metadata or tensors name the key or the tensor.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use crate::error::Error;
use crate::gguf::{Array, Gguf, Value, Writer};
use crate::model::Model;
use crate::tokenizer::{ChatTemplate, Message, RenderOptions, Tokenizer, Vocabulary};
use plan::DType;

const DATA: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/data/architectures");

/// A model file that a test modifies before it is opened.
struct File {
    keys: BTreeMap<String, Value>,
    /// Name to shape and values.
    tensors: BTreeMap<String, (Vec<usize>, Vec<f32>)>,
}

impl File {
    fn read(architecture: &str) -> Self {
        let gguf = Gguf::open(Path::new(DATA).join(format!("{architecture}.gguf"))).unwrap();
        let keys = gguf.metadata().iter().map(|(key, value)| (key.to_owned(), value.clone()));
        let values = |tensor: &crate::gguf::TensorInfo| {
            let mut bytes = vec![0; tensor.bytes as usize];
            gguf.read(tensor, 0, &mut bytes).unwrap();
            let mut values = vec![0.0; tensor.elements() as usize];
            plan::quant::dequantise(tensor.dtype, &bytes, &mut values).unwrap();
            (tensor.name.clone(), (tensor.shape.clone(), values))
        };
        Self { keys: keys.collect(), tensors: gguf.tensors().iter().map(values).collect() }
    }

    fn set(&mut self, key: &str, value: impl Into<Value>) {
        self.keys.insert(key.to_owned(), value.into());
    }

    fn put(&mut self, tensor: &str, shape: &[usize], value: f32) {
        let values = vec![value; shape.iter().product()];
        self.tensors.insert(tensor.to_owned(), (shape.to_vec(), values));
    }

    fn open(self) -> Result<Model, Error> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("model.gguf");
        let mut writer = Writer::new(&path);
        for (key, value) in self.keys {
            writer.metadata(&key, value).unwrap();
        }
        let tensors: Vec<_> = self.tensors.into_iter().collect();
        let ids: Vec<_> = tensors
            .iter()
            .map(|(name, (shape, _))| writer.tensor(name, shape, DType::F32).unwrap())
            .collect();
        let data = writer.begin().unwrap();
        for (id, (_, (_, values))) in ids.into_iter().zip(&tensors) {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            data.write(id, 0, &bytes).unwrap();
        }
        data.finish().unwrap();
        Model::open(path)
    }
}

/// The error for a modified file of an architecture.
fn rejected(architecture: &str, change: impl FnOnce(&mut File)) -> String {
    let mut file = File::read(architecture);
    change(&mut file);
    match file.open() {
        Err(error) => error.to_string(),
        Ok(_) => panic!("a modified file of `{architecture}` was accepted"),
    }
}

#[test]
fn unmodified_files_are_accepted() {
    for architecture in super::ALL {
        let model = File::read(architecture.name()).open().unwrap();
        assert_eq!(model.architecture().name(), architecture.name());
    }
}

/// Files of llama-quantize, which writes shapes without outer dimensions of one row, and files with more of them.
#[test]
fn shapes_may_differ_in_outer_dimensions_of_one_row() {
    let mut changed = 0;
    for architecture in super::ALL {
        for longer in [false, true] {
            let mut file = File::read(architecture.name());
            for (shape, _) in file.tensors.values_mut() {
                let ones = shape.iter().take_while(|extent| **extent == 1).count();
                if longer && shape.len() < 4 {
                    shape.insert(0, 1);
                } else if !longer && ones > 0 && shape.len() > ones {
                    shape.drain(..ones);
                    changed += 1;
                }
            }
            let model = file.open().unwrap();
            assert_eq!(model.architecture().name(), architecture.name());
        }
    }
    assert!(changed > 0);
}

#[test]
fn errors_name_the_wrong_key() {
    let cases: [(&str, &str, Value, &str); 40] = [
        ("llama", "block_count", 0u32.into(), "is 0, 1 to 1024 expected"),
        ("llama", "attention.head_count_kv", 3u32.into(), "is 3, a divisor of 4 heads expected"),
        ("llama", "attention.key_length", 20u32.into(), "is 20, a multiple of 16"),
        ("llama", "attention.value_length", 32u32.into(), "is 32, 16 (the key length)"),
        ("llama", "attention.layer_norm_rms_epsilon", f32::NAN.into(), "is NaN, a number between"),
        ("llama", "rope.freq_base", f32::INFINITY.into(), "is inf, a positive number"),
        ("llama", "rope.dimension_count", 7u32.into(), "is 7, an even number, at most 16"),
        ("llama", "rope.dimension_count", 64u32.into(), "is 64, an even number, at most 16"),
        ("llama", "rope.scaling.type", "spiral".into(), "is `spiral`, none, linear, longrope or"),
        ("llama", "attention.head_count", 0u32.into(), "is 0, 1 to"),
        ("qwen2", "expert_count", 8u32.into(), "is 8, mixtures of experts are not supported"),
        ("olmoe", "expert_count", 0u32.into(), "is 0, 1 to 4096 expected"),
        ("gpt-oss", "expert_used_count", 7u32.into(), "is 7, 1 to 6 expected"),
        ("gpt-oss", "attention.sliding_window", 0u32.into(), "is 0, 1 to"),
        ("gpt-oss", "rope.scaling.factor", f32::NAN.into(), "is NaN, a positive number"),
        ("llama", "feed_forward_length", 0u32.into(), "is 0, 1 to"),
        ("mistral3", "attention.temperature_scale", f32::NAN.into(), "is NaN, a positive number"),
        ("mistral3", "rope.scaling.yarn_beta_fast", (-1.0f32).into(), "is -1, a positive number"),
        ("granite", "residual_scale", f32::NAN.into(), "is NaN, a positive number"),
        ("granite", "logit_scale", f32::INFINITY.into(), "is inf, a positive number"),
        ("gpt2", "attention.layer_norm_epsilon", 1.0f32.into(), "is 1, a number between"),
        ("gemma2", "attn_logit_softcapping", f32::NAN.into(), "is NaN, a positive number"),
        ("gemma2", "final_logit_softcapping", 0.0f32.into(), "is 0, a positive number"),
        ("gemma2", "attention.sliding_window", 0u32.into(), "is 0, 1 to"),
        ("gemma3", "attention.sliding_window_pattern", 0u32.into(), "is 0, 1 to 1024"),
        ("gemma4", "attention.key_length_swa", 0u32.into(), "is 0, 1 to 512"),
        ("gemma4", "attention.shared_kv_layers", 5u32.into(), "is 5, layers of both kinds"),
        ("qwen3moe", "expert_count", 0u32.into(), "is 0, 1 to 4096 expected"),
        ("qwen3moe", "expert_used_count", 0u32.into(), "is 0, 1 to 7 expected"),
        ("qwen3moe", "expert_used_count", 8u32.into(), "is 8, 1 to 7 expected"),
        ("qwen35", "ssm.inner_size", 65u32.into(), "is 65, 4 heads of 16, 64, expected"),
        ("qwen35", "ssm.group_count", 3u32.into(), "is 3, a divisor of 4 (ssm.time_step_rank)"),
        ("qwen35", "ssm.conv_kernel", 1u32.into(), "is 1, 2 to 8 expected"),
        ("qwen35moe", "nextn_predict_layers", 6u32.into(), "is 6, at most 5 expected"),
        ("lfm2", "shortconv.l_cache", 9u32.into(), "is 9, 1 to 8 expected"),
        ("rwkv7", "wkv.head_size", 24u32.into(), "is 24, a divisor of 64 (embedding_length)"),
        ("rwkv7", "token_shift_count", 1u32.into(), "is 1, 2 expected"),
        ("rwkv7", "attention.decay_lora_rank", 0u32.into(), "is 0, 1 to"),
        (
            "gemma4",
            "attention.sliding_window_pattern",
            Value::Array(Array::Bool(vec![true, false])),
            "is 2 values of BOOL, a truth value for each of 5 layers",
        ),
        (
            "gemma4",
            "attention.head_count_kv",
            Value::Array(Array::I32(vec![2, 2, -1, 2, 1])),
            "is 0, 1 to 4",
        ),
    ];
    for (architecture, key, value, expected) in cases {
        let key = format!("{architecture}.{key}");
        let error = rejected(architecture, |file| file.set(&key, value));
        assert!(error.starts_with(&format!("`{key}` {expected}")), "{error}");
    }
}

#[test]
fn errors_name_the_wrong_tensor() {
    let cases: [(&str, &str, &[usize], f32, &str); 19] = [
        ("llama", "blk.1.attn_q.bias", &[63], 0.0, "has shape [63], [64] expected"),
        ("llama", "rope_freqs.weight", &[8], 0.0, "is a tensor with entries that are not positive"),
        ("llama", "blk.0.ffn_gate_inp.weight", &[8, 64], 0.0, "is not part of what is supported"),
        ("qwen3", "blk.0.attn_q_norm.weight", &[16], 0.0, "has shape [16], [32] expected"),
        ("phi3", "blk.2.attn_qkv.weight", &[64, 64], 0.0, "has shape [64, 64], [128, 64] expected"),
        ("phi3", "rope_factors_long.weight", &[12], f32::NAN, "is a tensor with entries"),
        ("gpt2", "position_embd.weight", &[16, 64], 0.0, "has shape [16, 64], [512, 64] expected"),
        ("qwen3moe", "blk.0.ffn_gate_inp.weight", &[6, 64], 0.0, "has shape [6, 64], [7, 64] exp"),
        (
            "qwen3moe",
            "blk.1.ffn_up_exps.weight",
            &[6, 32, 64],
            0.0,
            "has shape [6, 32, 64], [7, 32, 64] expected",
        ),
        (
            "qwen2moe",
            "blk.0.ffn_gate_inp_shexp.weight",
            &[63],
            0.0,
            "has shape [63], [64] expected",
        ),
        ("gpt-oss", "blk.0.attn_sinks.weight", &[3], 0.0, "has shape [3], [4] expected"),
        ("gpt-oss", "blk.1.ffn_gate_inp.bias", &[5], 0.0, "has shape [5], [6] expected"),
        ("gpt-oss", "blk.1.ffn_up_exps.bias", &[6, 63], 0.0, "has shape [6, 63], [6, 64] expected"),
        ("olmoe", "blk.0.attn_k_norm.weight", &[16], 0.0, "has shape [16], [64] expected"),
        ("gemma4-moe", "blk.1.ffn_down_exps.scale", &[4], 0.0, "has shape [4], [5] expected"),
        ("qwen35", "blk.0.ssm_conv1d.weight", &[128, 3], 0.0, "has shape [128, 3], [128, 4] expec"),
        (
            "qwen35",
            "blk.2.attn_q.weight",
            &[128, 64],
            0.0,
            "has shape [128, 64], [256, 64] expecte",
        ),
        ("gemma4", "blk.3.layer_output_scale.weight", &[1], f32::NAN, "is NaN, a number expected"),
        (
            "rwkv7",
            "blk.2.time_mix_w1.weight",
            &[16, 64],
            0.0,
            "has shape [16, 64], [32, 64] expect",
        ),
    ];
    for (architecture, tensor, shape, value, expected) in cases {
        let error = rejected(architecture, |file| file.put(tensor, shape, value));
        assert!(error.contains(&format!("`{tensor}` {expected}")), "{error}");
    }
}

#[test]
fn errors_name_the_missing_tensor() {
    for (architecture, tensor) in [
        ("llama", "token_embd.weight"),
        ("llama", "blk.2.ffn_down.weight"),
        ("qwen3", "blk.1.attn_k_norm.weight"),
        ("phi2", "blk.0.attn_norm.bias"),
        ("gpt2", "position_embd.weight"),
        ("gemma2", "blk.3.post_ffw_norm.weight"),
        ("gemma4", "per_layer_model_proj.weight"),
        ("qwen3moe", "blk.2.ffn_down_exps.weight"),
        ("qwen2moe", "blk.1.ffn_gate_shexp.weight"),
        ("qwen35moe", "blk.0.ssm_a"),
        ("lfm2", "blk.0.shortconv.in_proj.weight"),
        ("rwkv7", "blk.1.time_mix_v2.weight"),
        ("rwkv7", "blk.0.channel_mix_value.weight"),
        ("gpt-oss", "blk.3.attn_sinks.weight"),
        ("gpt-oss", "blk.2.ffn_gate_exps.weight"),
        ("olmoe", "blk.0.attn_q_norm.weight"),
        ("mixtral", "blk.1.ffn_gate_inp.weight"),
        ("gemma4-moe", "blk.2.ffn_gate_inp.scale"),
        ("gemma4-moe", "blk.0.pre_ffw_norm_2.weight"),
    ] {
        let error = rejected(architecture, |file| drop(file.tensors.remove(tensor)));
        assert!(error.starts_with(&format!("tensor `{tensor}` is missing")), "{error}");
    }
}

/// Reads everything that opening a model does not: weights, vocabulary, template.
fn read(model: &Model) -> Result<(), Box<dyn std::error::Error>> {
    for weight in model.weights() {
        model.read_weight(&weight.name, 0, &mut vec![0; weight.bytes() as usize])?;
    }
    if model.gguf().metadata().get("tokenizer.ggml.model").is_some() {
        let vocabulary = Vocabulary::from_metadata(model.gguf().metadata())?;
        let mut template = ChatTemplate::new(&vocabulary)?;
        template.limit_time(std::time::Duration::from_millis(500));
        Tokenizer::new(vocabulary)?;
        let message = Message::new("user", "abc");
        template.render(&[message], &RenderOptions::answer(), &AtomicBool::new(false))?;
    }
    Ok(())
}

/// Tested in a vector, in a fused matrix, in alternating rows and in an expert.
#[test]
fn errors_name_the_element_that_is_not_finite() {
    for (architecture, tensor, at) in [
        ("llama", "blk.1.attn_norm.weight", 63),
        ("phi3", "blk.2.attn_qkv.weight", 70 * 64 + 3),
        ("qwen35", "blk.2.attn_q.weight", 200 * 64 + 1),
        ("qwen3moe", "blk.1.ffn_up_exps.weight", (3 * 32 + 31) * 64),
    ] {
        let mut file = File::read(architecture);
        file.tensors.get_mut(tensor).unwrap().1[at] = f32::NEG_INFINITY;
        let error = read(&file.open().unwrap()).unwrap_err().to_string();
        let expected = format!("tensor `{tensor}`, element {at}, is -inf: ");
        assert!(error.starts_with(&expected), "{error}");
    }
}

/// Small files with one defect each: `tests/data/gguf/liars.py`.
#[test]
fn every_defective_file_of_the_corpus_is_rejected() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let expected = std::fs::read_to_string(root.join("tests/data/gguf/liars.tsv")).unwrap();
    for (name, expected) in expected.lines().map(|line| line.split_once('\t').unwrap()) {
        let file = root.join(format!("fuzz/corpus/gguf/{name}.gguf"));
        match Model::open(file).map_err(Into::into).and_then(|model| read(&model)) {
            Ok(()) => assert_eq!(expected, "ok", "{name} was accepted"),
            Err(error) => assert!(error.to_string().contains(expected), "{name}: {error}"),
        }
    }
}

#[test]
fn the_error_for_an_unknown_architecture_lists_the_supported_ones() {
    let error = rejected("llama", |file| file.set("general.architecture", "mamba"));
    let expected = format!(
        "architecture `mamba` is not supported; supported: {}",
        super::Architecture::names()
    );
    assert_eq!(error, expected);
}
