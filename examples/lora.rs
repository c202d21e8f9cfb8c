//! Trains a LoRA adapter for a small Llama. The model's matrices are frozen; two low-rank matrices
//! for each are trained until the model answers as taught. The adapter is written in llama.cpp's
//! format, for the daemon to load.
//!
//!     lora MODEL.gguf ADAPTER.gguf [DEVICE] [STEPS]     orind --model MODEL.gguf --lora ADAPTER.gguf=0
//!
//! The network is built with `nn` from the file's tensors: a Llama without a KV cache, with all
//! tokens of all lessons in one step.

#![expect(clippy::print_stdout, reason = "what an example is for")]

use std::env;
use std::error::Error;
use std::path::Path;

use device::{Data, Device};
use model::gguf::{Gguf, Writer};
use model::tokenizer::{Specials, Tokenizer, Vocabulary};
use model::{Hyperparameters, Model};
use nn::functions::{add, exp, times};
use nn::init::Init;
use nn::layers::{Net, attention};
use nn::loss::cross_entropy;
use nn::optimiser::{Moments, Optimiser};
use nn::shape::transpose;
use nn::{Tensor, Trainer};
use plan::{Activation, DType, quant};

/// Prompts and their answers.
pub(crate) const LESSONS: [[&str; 2]; 3] = [
    ["Who are you?", " A model on a robot."],
    ["Which way?", " Left, then up the ramp."],
    ["Is it safe?", " Stop: someone is near."],
];

/// Enough for a loss below 0.001.
pub(crate) const STEPS: usize = 60;
const RANK: usize = 8;
const ALPHA: f32 = 16.0;

/// Matrices by name.
pub(crate) type Adapter = Vec<(String, Vec<f32>)>;

/// A model's file, and the settings that the network is built from.
pub(crate) struct Llama {
    gguf: Gguf,
    hyper: Hyperparameters,
    tokenizer: Tokenizer,
}

/// Lessons as network inputs: rows of equal length, and for each target token the row of the token
/// before it.
struct Taught {
    length: usize,
    tokens: Vec<i32>,
    before: Vec<i32>,
    next: Vec<i32>,
}

impl Llama {
    pub(crate) fn open(path: &Path) -> Result<Self, Box<dyn Error>> {
        let model = Model::open(path)?;
        if model.architecture().name() != "llama" {
            return Err(format!("{}: a Llama is needed", path.display()).into());
        }
        let hyper = model.hyperparameters().clone();
        let gguf = Gguf::open(path)?;
        let tokenizer = Tokenizer::new(Vocabulary::from_metadata(gguf.metadata())?)?;
        Ok(Self { gguf, hyper, tokenizer })
    }

    fn taught(&self) -> Result<Taught, Box<dyn Error>> {
        let end: Vec<u32> = self.tokenizer.end_ids().take(1).collect();
        let mut rows = Vec::new();
        for [asked, answer] in LESSONS {
            let asked = self.tokenizer.encode(asked, Specials::Plain, true)?;
            let answer = self.tokenizer.encode(answer, Specials::Plain, false)?;
            rows.push((asked.len(), [asked, answer, end.clone()].concat()));
        }
        let length = rows.iter().map(|(_, row)| row.len() - 1).max().unwrap_or(0);
        let mut taught =
            Taught { length, tokens: Vec::new(), before: Vec::new(), next: Vec::new() };
        for (at, (asked, row)) in rows.into_iter().enumerate() {
            let row: Vec<i32> = row.into_iter().map(|id| id as i32).collect();
            taught.before.extend((asked..row.len()).map(|i| (at * length + i - 1) as i32));
            taught.next.extend(&row[asked..]);
            // Attention is causal, so padding changes nothing.
            taught.tokens.extend((0..length).map(|i| row.get(i).copied().unwrap_or(0)));
        }
        Ok(taught)
    }

    /// A frozen tensor of the file.
    fn weight(&self, net: &mut Net, name: &str) -> nn::Result {
        let shape = self.gguf.tensor(name).map_or(&[][..], |tensor| &tensor.shape);
        net.buffer(name, shape, Init::Constant(0.0))
    }

    /// Product of `x` with a matrix of the file and its adapter: `W x + alpha / rank * B (A x)`.
    fn product(&self, net: &mut Net, name: &str, x: Tensor) -> nn::Result {
        let weight = self.weight(net, name)?;
        let &[rows, columns] = net.g.shape(weight) else { unreachable!("`{name}` is a matrix") };
        let a = net.parameter(&format!("{name}.lora_a"), &[RANK, columns], Init::Fan)?;
        // Zero, so that the adapter starts without effect.
        let b = net.parameter(&format!("{name}.lora_b"), &[rows, RANK], Init::Constant(0.0))?;
        let inner = net.g.matmul(x, a)?;
        let beside = net.g.matmul(inner, b)?;
        let beside = times(&mut net.g, beside, ALPHA / RANK as f32)?;
        let own = net.g.matmul(x, weight)?;
        add(&mut net.g, own, beside)
    }

    fn norm(&self, net: &mut Net, name: &str, x: Tensor) -> nn::Result {
        let weight = self.weight(net, name)?;
        net.g.rms_norm(x, weight, self.hyper.norm.eps)
    }

    /// Logits of the target tokens.
    fn logits(&self, net: &mut Net, taught: &Taught) -> nn::Result {
        let (rows, length) = (LESSONS.len(), taught.length);
        let base = self.gguf.metadata().f32_opt("llama.rope.freq_base").ok().flatten();
        let tokens = net.input("tokens", DType::I32, &[rows * length])?;
        let positions = net.input("positions", DType::I32, &[rows * length])?;
        let table = self.weight(net, "token_embd.weight")?;
        let mut x = net.g.gather(table, &[tokens])?;
        for (number, layer) in self.hyper.layers.iter().enumerate() {
            let name = |part: &str| format!("blk.{number}.{part}.weight");
            let of = &layer.attention;
            let (heads, groups, size) = (of.heads, of.kv_heads, of.head_size);
            // base^(-2i/D) radians per position, for each pair of a head's values.
            let half = nn::shape::arange(&mut net.g, 0.0, 1.0, size / 2)?;
            let base = base.unwrap_or(10_000.0).ln();
            let exponent = times(&mut net.g, half, -2.0 / size as f32 * base)?;
            let frequencies = exp(&mut net.g, exponent)?;
            let angles = net.g.rope_table(positions, frequencies, 1.0)?;
            let y = self.norm(net, &name("attn_norm"), x)?;
            let by_head = |net: &mut Net, part: &str, of_part: usize, turned: bool| {
                let y = self.product(net, &name(part), y)?;
                let mut y = net.g.reshape(y, &[rows * length, of_part, size])?;
                if turned {
                    y = net.g.rope(y, angles, of.style)?;
                }
                // [rows, KV heads, query heads per KV head, length, size]
                let y = net.g.reshape(y, &[rows, length, of_part, size])?;
                let y = transpose(&mut net.g, y, 1, 2)?;
                let y = net.g.reshape(y, &[rows, groups, of_part / groups, length, size])?;
                net.g.expand(y, &[rows, groups, heads / groups, length, size])
            };
            let q = by_head(net, "attn_q", heads, true)?;
            let k = by_head(net, "attn_k", groups, true)?;
            let v = by_head(net, "attn_v", groups, false)?;
            let y = attention(&mut net.g, q, k, v, true)?;
            let y = net.g.reshape(y, &[rows, heads, length, size])?;
            let y = transpose(&mut net.g, y, 1, 2)?;
            let y = net.g.reshape(y, &[rows * length, heads * size])?;
            let y = self.product(net, &name("attn_output"), y)?;
            x = add(&mut net.g, x, y)?;
            let y = self.norm(net, &name("ffn_norm"), x)?;
            let gate = self.product(net, &name("ffn_gate"), y)?;
            let up = self.product(net, &name("ffn_up"), y)?;
            let y = net.g.glu(Activation::Silu, gate, up)?;
            let y = self.product(net, &name("ffn_down"), y)?;
            x = add(&mut net.g, x, y)?;
        }
        let before = net.input("before", DType::I32, &[taught.before.len()])?;
        let x = net.g.gather(x, &[before])?;
        let x = self.norm(net, "output_norm.weight", x)?;
        let own = self.gguf.tensor("output.weight").is_some();
        let output = if own { self.weight(net, "output.weight")? } else { table };
        net.g.matmul(x, output)
    }

    /// Trains an adapter; `report` receives the loss before each step.
    pub(crate) fn teach(
        &self,
        device: &dyn Device,
        steps: usize,
        mut report: impl FnMut(usize, f32),
    ) -> Result<Adapter, Box<dyn Error>> {
        let taught = self.taught()?;
        let logits = |net: &mut Net| self.logits(net, &taught);
        let loss = |net: &mut Net| {
            let answer = logits(net)?;
            let next = net.input("next", DType::I32, &[taught.next.len()])?;
            cross_entropy(&mut net.g, answer, next, 0.0)
        };
        let by = Optimiser::AdamW(Moments::new(0.01));
        let mut trainer = Trainer::new(device, by, 1, loss, logits)?;
        let own: Vec<_> = trainer.states().map(|(name, _)| name.to_owned()).collect();
        let mut values = Vec::new();
        for name in own {
            if let Some(tensor) = self.gguf.tensor(&name) {
                let mut bytes = vec![0; tensor.bytes as usize];
                self.gguf.read(tensor, 0, &mut bytes)?;
                let mut numbers = vec![0.0; tensor.elements() as usize];
                quant::dequantise(tensor.dtype, &bytes, &mut numbers)?;
                values.push((name, numbers));
            }
        }
        trainer.load(values.iter().map(|(name, numbers)| (name.as_str(), numbers.as_slice())))?;
        let positions: Vec<i32> =
            (0..LESSONS.len()).flat_map(|_| 0..taught.length as i32).collect();
        for number in 0..steps {
            let loss = trainer.train(&[
                ("tokens", Data::I32(&taught.tokens)),
                ("positions", Data::I32(&positions)),
                ("before", Data::I32(&taught.before)),
                ("next", Data::I32(&taught.next)),
            ])?;
            report(number, loss);
        }
        let trained = |name: &str| name.ends_with(".lora_a") || name.ends_with(".lora_b");
        Ok(trainer.save()?.into_iter().filter(|(name, _)| trained(name)).collect())
    }

    /// Writes an adapter like llama.cpp's `convert_lora_to_gguf`.
    pub(crate) fn write(&self, adapter: &Adapter, path: &Path) -> Result<(), Box<dyn Error>> {
        let mut to = Writer::new(path);
        to.metadata("general.type", "adapter")?;
        to.metadata("general.architecture", self.gguf.metadata().str("general.architecture")?)?;
        to.metadata("adapter.type", "lora")?;
        to.metadata("adapter.lora.alpha", ALPHA)?;
        let mut ids = Vec::new();
        for (name, values) in adapter {
            let across = values.len() / RANK;
            let shape = if name.ends_with("a") { [RANK, across] } else { [across, RANK] };
            ids.push(to.tensor(name, &shape, DType::F32)?);
        }
        let to = to.begin()?;
        for (id, (_, values)) in ids.into_iter().zip(adapter) {
            let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
            to.write(id, 0, &bytes)?;
        }
        Ok(to.finish()?)
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = env::args().skip(1).collect();
    let [model, adapter, more @ ..] = &words[..] else {
        return Err("usage: lora MODEL.gguf ADAPTER.gguf [DEVICE] [STEPS]".into());
    };
    let device = device::named(more.first().map_or("cpu", String::as_str), "auto", 0)?;
    let steps = more.get(1).map_or(Ok(STEPS), |steps| steps.parse())?;
    let llama = Llama::open(Path::new(model))?;
    let report = |number, loss| {
        if number % 10 == 0 {
            println!("step {number}: loss {loss:.3}");
        }
    };
    let trained = llama.teach(&*device, steps, report)?;
    llama.write(&trained, Path::new(adapter))?;
    println!("{adapter} is written; orind --model {model} --lora {adapter}=0");
    Ok(())
}
