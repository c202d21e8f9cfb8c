//! One layer and the output layer of Llama-3.2-1B in Q6_K, at their real sizes, on the simulated Orin:
//! how many bytes the kernels move, and how much they compute for each weight. The weights are
//! zeroes, which changes neither.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[path = "graph/shapes.rs"]
mod shapes;

use std::process::Command;

use device::gpu::nv::Nv;
use device::{Data, Device, Request, WeightSource};
use model::{KvLayout, Model, ports};
use plan::{Bucket, Class, fuse};
use serde_json::Value;
use shapes::{LLAMA_3_2_1B, Shapes, Sizes};
use tegra_sim_preload as _;

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

/// One decoded token; the simulator writes what every launch did into the trace that the environment
/// names.
#[test]
#[ignore = "run by the other test, in a process of its own"]
fn one_token() {
    let shapes = Shapes::new(&Sizes { layers: 1, ..LLAMA_3_2_1B });
    let model = &shapes.model;
    let layout = KvLayout { slots: 1, context: 512 };
    let nv = Nv::detect().unwrap();
    let plan = fuse(&model.plan(layout, Bucket::decode(1, 512)).unwrap(), nv.fusions());
    let weights: Vec<_> = model.weights().cloned().collect();
    let states = model.states(layout);
    let request = Request {
        weights: &weights,
        states: &states,
        plans: std::slice::from_ref(&plan),
        choices: None,
    };
    let mut instance = nv.open(&request).unwrap();
    for weight in &weights {
        instance.upload(&weight.name, &Source(model, &weight.name), &|_| {}).unwrap();
    }
    let prepared = instance.prepare(&plan).unwrap();
    for (name, value) in [(ports::TOKENS, 5), (ports::POSITIONS, 0), (ports::SLOTS, 0)] {
        let mailbox = plan.find(Class::Mailbox, name).unwrap();
        instance.write(prepared, mailbox, 0, Data::I32(&[value])).unwrap();
    }
    let ticket = instance.submit(prepared, 1).unwrap();
    instance.wait(ticket).unwrap();
    println!("plan {}", plan.cost().bytes());
    println!("weights {}", plan.cost().weight_bytes);
}

#[test]
fn bytes_are_those_of_the_weights() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["one_token", "--exact", "--ignored", "--nocapture"])
        .env("TEGRA_SIM_TRACE", &trace)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{text}\n{}", String::from_utf8_lossy(&output.stderr));
    let number = |name: &str| -> f64 {
        text.lines().find_map(|l| l.split_once(name)?.1.trim().parse().ok()).unwrap()
    };
    let (plan, weight_bytes) = (number("plan "), number("weights "));
    let weights = weight_bytes / 210.0 * 256.0;

    let trace = std::fs::read_to_string(&trace).unwrap();
    let works: Vec<Value> = trace
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter_map(|event| event.get("work").cloned())
        .collect();
    assert_eq!(works.len(), 5 + 4, "launches of a layer and around it");
    let sum = |name: &str| works.iter().map(|w| w[name].as_f64().unwrap()).sum::<f64>();
    let lanes = |kind: &str| {
        works.iter().filter_map(|w| w["instructions"][kind]["lanes"].as_f64()).sum::<f64>()
    };
    let moved = 32.0 * sum("l2_misses");
    println!("plan {plan} bytes, moved {moved}");
    for kind in ["integer", "dot", "float", "conversion", "shared", "global"] {
        println!("{kind:10} {:.3} per weight", lanes(kind) / weights);
    }
    println!("bank conflicts {:.4} per 32 weights", sum("bank_conflicts") / weights * 32.0);
    assert!((moved / plan - 1.0).abs() < 0.02, "{moved} bytes moved, the plan has {plan}");
    // The 30 W mode of an Orin affords about 1.7 integer operations for each weight.
    assert!(lanes("integer") / weights < 1.7);
}
