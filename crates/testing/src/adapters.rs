//! LoRA adapters of seeded noise, and models with adapters merged into their weights in `f64`: W +
//! scale * alpha / rank * B A.

use std::path::Path;

use crate::random::Random;
use model::gguf::{Gguf, TensorInfo, Writer};
use plan::{DType, quant};

/// Name suffixes of the matrices that adapters are trained for.
const MATRICES: [&str; 26] = [
    "attn_q",
    "attn_k",
    "attn_v",
    "attn_qkv",
    "attn_output",
    "attn_gate",
    "ffn_gate",
    "ffn_up",
    "ffn_down",
    "ffn_gate_shexp",
    "ffn_down_shexp",
    "ssm_out",
    "ssm_alpha",
    "ssm_ba",
    "in_proj",
    "out_proj",
    "time_mix_key",
    "time_mix_output",
    "time_mix_w1",
    "time_mix_g2",
    "channel_mix_key",
    "channel_mix_value",
    "ffn_gate_inp",
    "inp_gate",
    "proj",
    "per_layer_model_proj",
];

/// Settings of a random adapter.
#[derive(Clone, Copy)]
pub struct Noise {
    pub seed: u64,
    pub rank: usize,
    pub alpha: Option<f32>,
    pub dtype: DType,
    /// 1 for every matrix, 2 for every other one.
    pub every: usize,
}

impl Noise {
    /// An adapter of this rank, strong enough to change a model's output.
    pub fn new(seed: u64, rank: usize) -> Self {
        Self { seed, rank, alpha: Some(2.0 * rank as f32), dtype: DType::F16, every: 1 }
    }

    /// Writes the adapter for a model's file.
    pub fn write(self, model: &str, path: &Path) -> String {
        let gguf = Gguf::open(model).unwrap();
        let architecture = gguf.metadata().str("general.architecture").unwrap();
        let mut to = Writer::new(path);
        to.metadata("general.type", "adapter").unwrap();
        to.metadata("general.architecture", architecture).unwrap();
        to.metadata("adapter.type", "lora").unwrap();
        if let Some(alpha) = self.alpha {
            to.metadata("adapter.lora.alpha", alpha).unwrap();
        }
        let mut random = Random(self.seed);
        let mut data = Vec::new();
        for matrix in matrices(&gguf).step_by(self.every) {
            let [rows, columns] = matrix.shape[..] else { unreachable!("`matrices` looks") };
            // Ranks vary between matrices, as some trainers produce them.
            let rank = self.rank + data.len() / 2 % 2;
            for (side, shape) in [("lora_a", [rank, columns]), ("lora_b", [rows, rank])] {
                let id = to.tensor(&format!("{}.{side}", matrix.name), &shape, self.dtype).unwrap();
                let scale = 0.4 / (shape[1] as f32).sqrt();
                let values = random.reals(shape[0] * shape[1], scale);
                let bytes = self.dtype.size_of(values.len() as u64).unwrap();
                let mut stored = vec![0; bytes as usize];
                quant::quantise(self.dtype, &values, &mut stored).unwrap();
                data.push((id, stored));
            }
        }
        let to = to.begin().unwrap();
        for (id, bytes) in data {
            to.write(id, 0, &bytes).unwrap();
        }
        to.finish().unwrap();
        path.to_str().unwrap().to_owned()
    }
}

/// Matrices of a model that the adapter covers.
fn matrices(gguf: &Gguf) -> impl Iterator<Item = &TensorInfo> {
    gguf.tensors().iter().filter(|tensor| {
        let name = tensor.name.strip_suffix(".weight").unwrap_or_default();
        let part = name.rsplit('.').next().unwrap_or_default();
        tensor.shape.len() == 2 && (MATRICES.contains(&part) || name == "output")
    })
}

fn values(gguf: &Gguf, tensor: &TensorInfo) -> Vec<f64> {
    let mut bytes = vec![0; tensor.bytes as usize];
    gguf.read(tensor, 0, &mut bytes).unwrap();
    let mut values = vec![0.0; tensor.elements() as usize];
    quant::dequantise(tensor.dtype, &bytes, &mut values).unwrap();
    values.into_iter().map(f64::from).collect()
}

/// Merges adapters into a model at their scales; the merged matrices are F32.
pub fn merged(model: &str, adapters: &[(&str, f32)], path: &Path) -> String {
    let gguf = Gguf::open(model).unwrap();
    let adapters: Vec<_> = adapters
        .iter()
        .map(|(path, scale)| (Gguf::open(path).unwrap(), f64::from(*scale)))
        .collect();
    let mut to = Writer::new(path);
    for (key, value) in gguf.metadata().iter() {
        to.metadata(key, value.clone()).unwrap();
    }
    let kept = |tensor: &TensorInfo| tensor.dtype == DType::I32;
    let ids: Vec<_> = gguf
        .tensors()
        .iter()
        .map(|t| {
            let dtype = if kept(t) { t.dtype } else { DType::F32 };
            to.tensor(&t.name, &t.shape, dtype).unwrap()
        })
        .collect();
    let to = to.begin().unwrap();
    for (tensor, id) in gguf.tensors().iter().zip(ids) {
        let mut sum = values(&gguf, tensor);
        for (adapter, scale) in &adapters {
            let side = |side: &str| adapter.tensor(&format!("{}.{side}", tensor.name));
            let (Some(a), Some(b)) = (side("lora_a"), side("lora_b")) else { continue };
            let (rank, columns) = (a.shape[0], a.shape[1]);
            let alpha = adapter.metadata().f32_opt("adapter.lora.alpha").unwrap();
            let scale = scale * alpha.map_or(1.0, |alpha| f64::from(alpha) / rank as f64);
            let (a, b) = (values(adapter, a), values(adapter, b));
            for (w, at) in sum.iter_mut().zip(0..) {
                let (row, column) = (at / columns, at % columns);
                let product = (0..rank).map(|i| b[row * rank + i] * a[i * columns + column]);
                *w += scale * product.sum::<f64>();
            }
        }
        let bytes: Vec<u8> = sum.iter().flat_map(|w| (*w as f32).to_le_bytes()).collect();
        to.write(id, 0, &bytes).unwrap();
    }
    to.finish().unwrap();
    path.to_str().unwrap().to_owned()
}
