//! One layer and the output layer of models at their real sizes, on the simulated Orin: bytes moved by the kernels, and
//! operations per weight. The weights are zero, which changes neither number.

use device::gpu::nv::Nv;
use model::{KvLayout, Model};
use orind_testing::program::{again, said};
use orind_testing::session::Session;
use orind_testing::shapes::{LLAMA_3_2_1B, Shapes, Sizes};
use plan::Bucket;
use serde_json::Value;

/// Experts of the MoE models; a token uses 8.
const EXPERTS: usize = 12;
/// Small, so that the output layer does not dominate.
const VOCABULARY: usize = 8192;

/// Decodes two tokens: recurrent states are empty at the first. Plans count the whole context. The simulator writes
/// the counts of each launch to the environment's trace.
fn decode(model: &Model, context: usize) {
    let (layout, bucket) = (KvLayout { slots: 1, context, ring: None }, Bucket::decode(1, context));
    let mut session = Session::new(&Nv::detect().unwrap(), model, layout, &[bucket]);
    for position in 0..2 {
        session.load(0, &[(5, position, 0)]);
        session.run(0, 1);
    }
    let plan = &session.plans[0].0;
    println!("plan {}", plan.cost().bytes());
    println!("weights {}", plan.cost().weight_bytes);
    println!("state {}", plan.cost().state_bytes);
    println!("launches {}", session.instance.activity().launches / 2);
}

#[test]
#[ignore = "run by the other test, in a process of its own"]
fn one_token() {
    decode(&Shapes::new(&Sizes { layers: 1, ..LLAMA_3_2_1B }).model, 512);
}

#[test]
#[ignore = "run by the other test, in a process of its own"]
fn one_token_of_a_moe_model() {
    decode(&Shapes::layer_of_a_mixture(EXPERTS, VOCABULARY).model, 32);
}

#[test]
#[ignore = "run by the other test, in a process of its own"]
fn one_token_of_a_recurrent_moe_model() {
    decode(&Shapes::layer_of_a_hybrid(EXPERTS, VOCABULARY).model, 32);
}

/// Counts of the launches of the second token, and the output of the test.
struct Token {
    works: Vec<Value>,
    said: String,
}

impl Token {
    fn of(test: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let trace = dir.path().join("trace");
        let said = said(again(module_path!(), test).env("TEGRA_SIM_TRACE", &trace));
        let trace = std::fs::read_to_string(&trace).unwrap();
        let works = trace
            .lines()
            .map(|line| serde_json::from_str::<Value>(line).unwrap())
            .filter_map(|event| event.get("work").cloned());
        let mut token = Self { works: works.collect(), said };
        let launches = token.number("launches ") as usize;
        assert_eq!(token.works.len(), 2 * launches, "launches of two tokens");
        token.works.drain(..launches);
        token
    }

    fn number(&self, name: &str) -> f64 {
        self.said.lines().find_map(|l| l.split_once(name)?.1.trim().parse().ok()).unwrap()
    }

    fn sum(&self, name: &str) -> f64 {
        self.works.iter().map(|w| w[name].as_f64().unwrap()).sum()
    }

    fn lanes(&self, kind: &str) -> f64 {
        let of = |w: &Value| w["instructions"][kind]["lanes"].as_f64();
        self.works.iter().filter_map(of).sum()
    }

    /// Checks that the bytes moved are those that the plan counts, except for `cached` ones.
    fn check(&self, what: &str, cached: f64) {
        let (plan, moved) = (self.number("plan ") - cached, 32.0 * self.sum("l2_misses"));
        let launches = self.works.len();
        println!("{what}: {launches} launches, plan {plan} bytes, moved {moved}");
        assert!((moved / plan - 1.0).abs() < 0.02, "{what}: {moved} bytes, the plan has {plan}");
    }
}

#[test]
fn decode_moves_the_bytes_of_the_weights() {
    let token = Token::of("one_token");
    let weights = token.number("weights ") / 210.0 * 256.0;
    assert_eq!(token.works.len(), 5 + 4, "five launches of the layer, four others");
    for kind in ["integer", "dot", "float", "conversion", "shared", "global"] {
        println!("{kind:10} {:.3} per weight", token.lanes(kind) / weights);
    }
    println!("bank conflicts {:.4} per 32 weights", token.sum("bank_conflicts") / weights * 32.0);
    token.check("Llama-3.2-1B", 0.0);
    // In the 30 W mode of an Orin, memory bandwidth allows about 1.7 integer operations per weight.
    assert!(token.lanes("integer") / weights < 1.7);
}

/// Only the experts that the token uses are read. The recurrent state of a single layer stays in the L2 cache.
#[test]
#[ignore = "nightly"]
fn nightly_decode_moves_the_bytes_of_the_used_experts() {
    Token::of("one_token_of_a_moe_model").check("Qwen3 30B A3B", 0.0);
    let hybrid = Token::of("one_token_of_a_recurrent_moe_model");
    hybrid.check("Qwen3.5 35B A3B", hybrid.number("state "));
}
