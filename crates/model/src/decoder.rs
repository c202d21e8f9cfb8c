//! The decoder-only transformer that all supported families share: which weights it needs, and the
//! graph of one step.

use super::rope::Rope;
use super::{Architecture, Error, Hyperparameters, KvLayout, Model, Origin, Weight, ports};
use crate::gguf::{Gguf, TensorInfo};
use plan::graph::{self, Caches, Graph, Rows, SampleInputs, Tensor};
use plan::{Binary, Bucket, Buffer, Class, DType, Outputs};

/// Finds every weight in the file and checks its shape and type.
pub(super) fn weights(
    gguf: &Gguf,
    architecture: Architecture,
    hyper: &Hyperparameters,
    rope: &Rope,
) -> Result<Vec<Weight>, Error> {
    let mut finder = Finder { gguf, weights: Vec::new() };
    let (width, ff) = (hyper.width, hyper.feed_forward);
    let (q, kv) = (hyper.heads * hyper.head_size, hyper.kv_heads * hyper.head_size);

    finder.matrix("token_embd.weight", hyper.vocabulary, width)?;
    for i in 0..hyper.layers {
        let name = |part: &str| format!("blk.{i}.{part}.weight");
        finder.vector(&name("attn_norm"), width)?;
        finder.matrix(&name("attn_q"), q, width)?;
        finder.matrix(&name("attn_k"), kv, width)?;
        finder.matrix(&name("attn_v"), kv, width)?;
        if architecture.qk_norm() {
            finder.vector(&name("attn_q_norm"), hyper.head_size)?;
            finder.vector(&name("attn_k_norm"), hyper.head_size)?;
        }
        finder.matrix(&name("attn_output"), width, q)?;
        finder.vector(&name("ffn_norm"), width)?;
        finder.matrix(&name("ffn_gate"), ff, width)?;
        finder.matrix(&name("ffn_up"), ff, width)?;
        finder.matrix(&name("ffn_down"), width, ff)?;
        for bias in ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
        {
            finder.refuse(&format!("blk.{i}.{bias}.bias"))?;
        }
        finder.refuse(&name("ffn_gate_inp"))?;
    }
    finder.vector("output_norm.weight", width)?;
    if gguf.tensor(OUTPUT).is_some() {
        finder.matrix(OUTPUT, hyper.vocabulary, width)?;
    }
    finder.weights.push(Weight {
        buffer: Buffer {
            name: ports::ROPE_FREQUENCIES.into(),
            class: Class::Weight,
            dtype: DType::F32,
            shape: vec![rope.frequencies.len()],
        },
        origin: Origin::Derived(rope.frequencies.iter().flat_map(|f| f.to_le_bytes()).collect()),
    });
    Ok(finder.weights)
}

/// The output projection; where a file lacks it, the embedding serves for both.
const OUTPUT: &str = "output.weight";
const EMBEDDING: &str = "token_embd.weight";

struct Finder<'a> {
    gguf: &'a Gguf,
    weights: Vec<Weight>,
}

impl Finder<'_> {
    fn matrix(&mut self, name: &str, rows: usize, columns: usize) -> Result<(), Error> {
        self.find(name, vec![rows, columns], |t| t != DType::I32, "floating-point or quantised")
    }

    fn vector(&mut self, name: &str, len: usize) -> Result<(), Error> {
        self.find(name, vec![len], |t| t == DType::F32, "F32")
    }

    fn find(
        &mut self,
        name: &str,
        shape: Vec<usize>,
        fits: impl Fn(DType) -> bool,
        expected: &'static str,
    ) -> Result<(), Error> {
        let Some(index) = self.gguf.tensors().iter().position(|t| t.name == name) else {
            return Err(Error::missing_tensor(self.gguf, name));
        };
        let tensor = &self.gguf.tensors()[index];
        check(tensor, &shape, expected, fits)?;
        let buffer = Buffer { name: name.into(), class: Class::Weight, dtype: tensor.dtype, shape };
        self.weights.push(Weight { buffer, origin: Origin::File(index) });
        Ok(())
    }

    /// Tensors that would change the result if they were ignored.
    fn refuse(&self, name: &str) -> Result<(), Error> {
        match self.gguf.tensor(name) {
            None => Ok(()),
            Some(tensor) => Err(Error::TensorType {
                name: name.into(),
                found: tensor.dtype,
                expected: "no such tensor (biases and experts are not supported)",
            }),
        }
    }
}

pub(super) fn check(
    tensor: &TensorInfo,
    shape: &[usize],
    expected: &'static str,
    fits: impl Fn(DType) -> bool,
) -> Result<(), Error> {
    let (name, found) = (tensor.name.clone(), tensor.dtype);
    if tensor.shape != shape {
        let (found, expected) = (tensor.shape.clone(), shape.to_vec());
        return Err(Error::TensorShape { name, found, expected });
    }
    if fits(found) { Ok(()) } else { Err(Error::TensorType { name, found, expected }) }
}

pub(super) fn graph(model: &Model, layout: KvLayout, bucket: Bucket) -> graph::Result<Graph> {
    let mut step = StepBuilder { g: Graph::new(), model, layout, bucket };
    step.build()?;
    Ok(step.g)
}

struct StepBuilder<'a> {
    g: Graph,
    model: &'a Model,
    layout: KvLayout,
    bucket: Bucket,
}

#[derive(Clone, Copy)]
struct Inputs {
    tokens: Tensor,
    rows: Rows,
    /// Present when only some rows get logits.
    logit_rows: Option<Tensor>,
}

impl StepBuilder<'_> {
    fn build(&mut self) -> graph::Result<()> {
        let hyper = self.model.hyperparameters();
        let inputs = self.inputs()?;
        self.g.at("token_embd");
        let embedding = self.weight(EMBEDDING)?;
        let mut x = self.g.gather(embedding, &[inputs.tokens])?;
        self.g.at("rope_table");
        let frequencies = self.weight(ports::ROPE_FREQUENCIES)?;
        let magnitude = self.model.rope_magnitude;
        let table = self.g.rope_table(inputs.rows.positions, frequencies, magnitude)?;
        for i in 0..hyper.layers {
            let selected = if i + 1 == hyper.layers { inputs.logit_rows } else { None };
            x = self.block(i, x, table, inputs.rows, selected)?;
        }
        if self.bucket.logit_rows() > 0 {
            self.head(x, inputs)?;
        }
        Ok(())
    }

    fn inputs(&mut self) -> graph::Result<Inputs> {
        let rows = [self.bucket.rows()];
        let partial = self.bucket.outputs == Outputs::Last && self.bucket.chunk > 1;
        Ok(Inputs {
            tokens: self.mailbox(ports::TOKENS, DType::I32, &rows)?,
            rows: Rows {
                slots: self.mailbox(ports::SLOTS, DType::I32, &rows)?,
                positions: self.mailbox(ports::POSITIONS, DType::I32, &rows)?,
            },
            logit_rows: if partial {
                Some(self.mailbox(ports::LOGIT_ROWS, DType::I32, &[self.bucket.logit_rows()])?)
            } else {
                None
            },
        })
    }

    /// One transformer block. After its attention only the `selected` rows go on.
    fn block(
        &mut self,
        i: usize,
        x: Tensor,
        table: Tensor,
        rows: Rows,
        selected: Option<Tensor>,
    ) -> graph::Result {
        let hyper = self.model.hyperparameters();
        let (m, eps, style) =
            (self.bucket.rows(), hyper.norm_eps, self.model.architecture().rope_style());
        let heads = [m, hyper.heads, hyper.head_size];
        let kv_heads = [m, hyper.kv_heads, hyper.head_size];

        let h = self.norm(&format!("blk.{i}.attn_norm"), x)?;
        let q = self.project(&format!("blk.{i}.attn_q"), h)?;
        let k = self.project(&format!("blk.{i}.attn_k"), h)?;
        let v = self.project(&format!("blk.{i}.attn_v"), h)?;
        let mut q = self.g.reshape(q, &heads)?;
        let mut k = self.g.reshape(k, &kv_heads)?;
        let v = self.g.reshape(v, &kv_heads)?;
        if self.model.architecture().qk_norm() {
            let weight = self.weight(&format!("blk.{i}.attn_q_norm.weight"))?;
            self.g.at(format!("blk.{i}.attn_q_norm"));
            q = self.g.rms_norm(q, weight, eps)?;
            let weight = self.weight(&format!("blk.{i}.attn_k_norm.weight"))?;
            self.g.at(format!("blk.{i}.attn_k_norm"));
            k = self.g.rms_norm(k, weight, eps)?;
        }
        self.g.at(format!("blk.{i}.rope"));
        let q = self.g.rope(q, table, style)?;
        let k = self.g.rope(k, table, style)?;
        self.g.at(format!("blk.{i}.kv"));
        let (key_cache, value_cache) =
            (self.cache(&ports::key_cache(i))?, self.cache(&ports::value_cache(i))?);
        let keys = self.g.kv_write(key_cache, rows, k)?;
        let values = self.g.kv_write(value_cache, rows, v)?;
        self.g.at(format!("blk.{i}.attention"));
        let mixed = self.g.attention(q, Caches { keys, values }, rows, self.bucket.context)?;
        let mut mixed = self.g.reshape(mixed, &[m, hyper.heads * hyper.head_size])?;
        let mut x = x;
        if let Some(selected) = selected {
            self.g.at(format!("blk.{i}.select"));
            mixed = self.g.gather(mixed, &[selected])?;
            x = self.g.gather(x, &[selected])?;
        }
        let o = self.project(&format!("blk.{i}.attn_output"), mixed)?;
        let x = self.g.binary(Binary::Add, x, o)?;

        let h = self.norm(&format!("blk.{i}.ffn_norm"), x)?;
        let gate = self.project(&format!("blk.{i}.ffn_gate"), h)?;
        let up = self.project(&format!("blk.{i}.ffn_up"), h)?;
        let h = self.g.swiglu(gate, up)?;
        let down = self.project(&format!("blk.{i}.ffn_down"), h)?;
        self.g.binary(Binary::Add, x, down)
    }

    /// Logits, sampled tokens, and in decode the next step's inputs.
    fn head(&mut self, x: Tensor, inputs: Inputs) -> graph::Result<()> {
        let n = self.bucket.logit_rows();
        let h = self.norm("output_norm", x)?;
        let output = if self.model.gguf().tensor(OUTPUT).is_some() { OUTPUT } else { EMBEDDING };
        self.g.at("output");
        let weight = self.weight(output)?;
        let logits = self.g.matmul(h, weight)?;
        self.g.output(ports::LOGITS, logits);
        self.g.at("sample");
        let positions = match inputs.logit_rows {
            Some(rows) => self.g.gather(inputs.rows.positions, &[rows])?,
            None => inputs.rows.positions,
        };
        let parameters = SampleInputs {
            temperature: self.mailbox(ports::TEMPERATURE, DType::F32, &[n])?,
            top_k: self.mailbox(ports::TOP_K, DType::I32, &[n])?,
            top_p: self.mailbox(ports::TOP_P, DType::F32, &[n])?,
            seed: self.mailbox(ports::SEED, DType::I32, &[n, 2])?,
            positions,
        };
        let sampled = self.g.sample(logits, parameters)?;
        self.g.output(ports::SAMPLED, sampled);
        if self.bucket.chunk == 1 {
            let one = self.g.constant(1.0);
            let next = self.g.binary(Binary::Add, inputs.rows.positions, one)?;
            self.g.assign(inputs.tokens, sampled)?;
            self.g.assign(inputs.rows.positions, next)?;
        }
        Ok(())
    }

    fn norm(&mut self, name: &str, x: Tensor) -> graph::Result {
        self.g.at(name);
        let weight = self.weight(&format!("{name}.weight"))?;
        self.g.rms_norm(x, weight, self.model.hyperparameters().norm_eps)
    }

    fn project(&mut self, name: &str, x: Tensor) -> graph::Result {
        self.g.at(name);
        let weight = self.weight(&format!("{name}.weight"))?;
        self.g.matmul(x, weight)
    }

    fn weight(&mut self, name: &str) -> graph::Result {
        match self.model.weights().find(|w| w.name == name) {
            Some(weight) => self.g.source(Class::Weight, name, weight.dtype, &weight.shape),
            None => unreachable!("`weights` lists every name used here, and not `{name}`"),
        }
    }

    fn mailbox(&mut self, name: &str, dtype: DType, shape: &[usize]) -> graph::Result {
        self.g.source(Class::Mailbox, name, dtype, shape)
    }

    fn cache(&mut self, name: &str) -> graph::Result {
        let hyper = self.model.hyperparameters();
        let shape = [self.layout.slots, self.layout.context, hyper.kv_heads, hyper.head_size];
        self.g.source(Class::State, name, DType::F16, &shape)
    }
}
