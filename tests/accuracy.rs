//! Every device against logits computed elsewhere: small models quantised by llama.cpp, their exact
//! logits in `f64`, and llama.cpp's own answers. `tests/data/README.md` says what the files hold.

#![expect(clippy::unwrap_used, clippy::print_stdout, reason = "a test may panic and report")]

use std::path::PathBuf;

use device::{
    Data, Device, Instance, Prepared, Request, WeightSource, cpu::Cpu, gpu::nv::Nv,
    reference::Reference,
};
use model::{KvLayout, Model, ports};
use plan::{Bucket, BufferId, Class, Outputs, Plan, fuse};
use serde_json::Value;
use tegra_sim_preload as _;

const LAYOUT: KvLayout = KvLayout { slots: 2, context: 256 };

struct Source<'a>(&'a Model, &'a str);

impl WeightSource for Source<'_> {
    fn read_at(
        &self,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
        Ok(self.0.read_weight(self.1, offset, buf)?)
    }
}

/// One model on one device, driven through the seam alone.
struct Runner {
    instance: Box<dyn Instance>,
    prefill: (Plan, Prepared),
    decode: (Plan, Prepared),
    vocabulary: usize,
}

const CHUNK: usize = 32;

impl Runner {
    fn new(device: &dyn Device, model: &Model) -> Self {
        let plan = |bucket| fuse(&model.plan(LAYOUT, bucket).unwrap(), device.fusions());
        let prefill = plan(Bucket::prefill(CHUNK, LAYOUT.context, Outputs::Last));
        let decode = plan(Bucket::decode(1, LAYOUT.context));
        let plans = [prefill.clone(), decode.clone()];
        let weights: Vec<_> = model.weights().cloned().collect();
        let states = model.states(LAYOUT);
        let mut instance = device
            .open(&Request { weights: &weights, states: &states, plans: &plans, choices: None })
            .unwrap();
        for weight in &weights {
            instance.upload(&weight.name, &Source(model, &weight.name), &|_| {}).unwrap();
        }
        let [a, b] = [&prefill, &decode].map(|plan| instance.prepare(plan).unwrap());
        let vocabulary = model.hyperparameters().vocabulary;
        Self { instance, prefill: (prefill, a), decode: (decode, b), vocabulary }
    }

    fn mailbox(plan: &Plan, name: &str) -> BufferId {
        plan.find(Class::Mailbox, name).unwrap()
    }

    /// Runs the tokens, which start at `position`, in slot 1 and gives the last one's logits.
    fn evaluate(&mut self, tokens: &[i32], position: i32) -> Vec<f32> {
        let mut logits = Vec::new();
        for (i, chunk) in tokens.chunks(CHUNK).enumerate() {
            let at = position + (i * CHUNK) as i32;
            logits = if chunk.len() == 1 {
                self.step(chunk, at, true)
            } else {
                self.step(chunk, at, false)
            };
        }
        logits
    }

    fn step(&mut self, tokens: &[i32], position: i32, decode: bool) -> Vec<f32> {
        let (plan, prepared) = if decode { &self.decode } else { &self.prefill };
        let rows = plan.bucket.rows();
        let mut padded = tokens.to_vec();
        padded.resize(rows, 0);
        let positions: Vec<i32> =
            (position..).take(tokens.len()).chain(std::iter::repeat(0)).take(rows).collect();
        let slots: Vec<i32> = (0..rows).map(|i| if i < tokens.len() { 1 } else { -1 }).collect();
        let mut write = |name, data| {
            self.instance.write(*prepared, Self::mailbox(plan, name), 0, data).unwrap();
        };
        write(ports::TOKENS, Data::I32(&padded));
        write(ports::POSITIONS, Data::I32(&positions));
        write(ports::SLOTS, Data::I32(&slots));
        if !decode {
            write(ports::LOGIT_ROWS, Data::I32(&[tokens.len() as i32 - 1]));
        }
        let ticket = self.instance.submit(*prepared, 1).unwrap();
        self.instance.wait(ticket).unwrap();
        let mut logits = vec![0.0; self.vocabulary];
        let output = plan.find(Class::Output, ports::LOGITS).unwrap();
        self.instance.read(*prepared, output, 0, &mut logits).unwrap();
        let mut sampled = [0];
        self.instance.tokens(ticket, 0, &mut sampled).unwrap();
        assert_eq!(sampled[0] as usize, argmax(&logits), "greedy sampling takes the largest logit");
        logits
    }
}

fn argmax(logits: &[f32]) -> usize {
    (0..logits.len()).max_by(|&a, &b| logits[a].total_cmp(&logits[b]).then(b.cmp(&a))).unwrap()
}

fn data(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(path)
}

fn ids(value: &Value) -> Vec<i32> {
    value.as_array().unwrap().iter().map(|v| v.as_i64().unwrap() as i32).collect()
}

/// What a device's logits may be off by: root mean square and maximum over the ten largest.
struct Tolerance {
    rms: f64,
    max: f64,
}

/// Points 1 and 2: teacher-forced logits near the exact ones, argmax equal wherever the margin
/// allows. Returns the errors seen.
fn teacher_forced(device: &dyn Device, name: &str, tolerance: impl Fn(&Value) -> Tolerance) {
    let model = Model::open(data(&format!("models/{name}.gguf"))).unwrap();
    let exact: Value = serde_json::from_slice(
        &std::fs::read(data(&format!("expected/{name}-exact.json"))).unwrap(),
    )
    .unwrap();
    let mut runner = Runner::new(device, &model);
    let (mut squares, mut count, mut largest) = (0.0, 0, 0.0f64);
    let (mut peer_squares, mut bound) = (0.0, 0.0f64);
    let prompts = exact["prompts"].as_array().unwrap();
    for (p, prompt) in prompts.iter().enumerate() {
        let (prompt_ids, forced) = (ids(&prompt["ids"]), ids(&prompt["forced"]));
        let argmaxes = ids(&prompt["argmax"]);
        let allowed = tolerance(&prompt["llama_cpp"]);
        let top10 = prompt["top10"].as_array().unwrap();
        let mut logits = runner.evaluate(&prompt_ids, 0);
        peer_squares += allowed.rms.powi(2) / prompts.len() as f64;
        bound = bound.max(allowed.max);
        for (step, token) in forced.iter().enumerate() {
            if let Some(top) = top10.get(step) {
                for pair in top.as_array().unwrap() {
                    let (id, want) =
                        (pair[0].as_u64().unwrap() as usize, pair[1].as_f64().unwrap());
                    let error = (f64::from(logits[id]) - want).abs();
                    squares += error * error;
                    count += 1;
                    largest = largest.max(error);
                }
            }
            let margin = prompt["margin"][step].as_f64().unwrap();
            if margin > 2.0 * allowed.max {
                assert_eq!(
                    argmax(&logits),
                    argmaxes[step] as usize,
                    "{name} prompt {p} step {step} margin {margin}"
                );
            }
            logits = runner.evaluate(&[*token], (prompt_ids.len() + step) as i32);
        }
    }
    let (rms, allowed) = ((squares / f64::from(count)).sqrt(), peer_squares.sqrt());
    println!("{name}: rms {rms:.5} (allowed {allowed:.5}), max {largest:.5} ({bound:.5})");
    assert!(rms <= allowed && largest <= bound, "{name}: rms {rms} max {largest}");
}

/// Point 3: free-running greedy ids equal llama.cpp's up to the first step whose margin is too
/// small to tell.
fn free_running(device: &dyn Device, name: &str, tolerance: impl Fn(&Value) -> Tolerance) {
    let model = Model::open(data(&format!("models/{name}.gguf"))).unwrap();
    let read = |path: String| -> Value {
        serde_json::from_slice(&std::fs::read(data(&path)).unwrap()).unwrap()
    };
    let (exact, peer) =
        (read(format!("expected/{name}-exact.json")), read(format!("expected/{name}.json")));
    let mut runner = Runner::new(device, &model);
    for (p, prompt) in peer["prompts"].as_array().unwrap().iter().enumerate() {
        let bound = 2.0 * tolerance(&exact["prompts"][p]["llama_cpp"]).max;
        let variant = &prompt["variants"]["kv_f16_fa0"];
        let greedy = ids(&variant["greedy"]);
        let prompt_ids = ids(&prompt["ids"]);
        let mut logits = runner.evaluate(&prompt_ids, 0);
        for (step, want) in greedy.iter().enumerate() {
            if variant["margin"][step].as_f64().unwrap() <= bound {
                break;
            }
            assert_eq!(argmax(&logits) as i32, *want, "{name} prompt {p} step {step}");
            logits = runner.evaluate(&[*want], (prompt_ids.len() + step) as i32);
        }
    }
}

/// At most llama.cpp's own errors, over all prompts; the largest of two thousand, which is luck, may be a
/// quarter more.
fn as_llama_cpp(errors: &Value) -> Tolerance {
    Tolerance {
        rms: errors["top10_rms"].as_f64().unwrap(),
        max: 1.25 * errors["top10_max_abs"].as_f64().unwrap(),
    }
}

/// No activation quantisation: only `f32` rounding and the `f16` KV cache.
fn nearly_exact(_: &Value) -> Tolerance {
    Tolerance { rms: 0.01, max: 0.02 }
}

const QUANTISED: [&str; 5] = [
    "tiny-llama-Q4_K_M",
    "tiny-llama-Q6_K",
    "tiny-llama-Q8_0",
    "tiny-qwen3-Q4_K_M",
    "tiny-qwen3-Q8_0",
];

#[test]
fn reference_is_nearly_exact() {
    for name in QUANTISED.into_iter().chain(["tiny-llama-f16"]) {
        teacher_forced(&Reference, name, nearly_exact);
    }
}

#[test]
fn reference_follows_llama_cpp() {
    for name in QUANTISED {
        free_running(&Reference, name, as_llama_cpp);
    }
}

#[test]
fn cpu_is_as_exact_as_llama_cpp() {
    for name in QUANTISED {
        teacher_forced(&Cpu::detect(), name, as_llama_cpp);
    }
    teacher_forced(&Cpu::detect(), "tiny-llama-f16", nearly_exact);
}

#[test]
fn cpu_follows_llama_cpp() {
    for name in QUANTISED {
        free_running(&Cpu::detect(), name, as_llama_cpp);
    }
}

/// On the simulated Orin, which is linked into this program: one model, all of them with
/// `ORIND_TEST_FULL=1`.
#[test]
fn nv_is_as_exact_as_llama_cpp() {
    let nv = Nv::detect().unwrap();
    let full = std::env::var_os("ORIND_TEST_FULL").is_some();
    for name in if full { &QUANTISED[..] } else { &["tiny-llama-Q6_K"] } {
        teacher_forced(&nv, name, as_llama_cpp);
    }
    if full {
        teacher_forced(&nv, "tiny-llama-f16", nearly_exact);
    }
}
