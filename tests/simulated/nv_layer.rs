//! One layer and the output layer of Llama-3.2-1B in Q6_K, at their real sizes, on the simulated Orin:
//! how many bytes the kernels move, and how much they compute for each weight. The weights are
//! zeroes, which changes neither.

use device::gpu::nv::Nv;
use model::KvLayout;
use orind_testing::program::{again, said};
use orind_testing::session::Session;
use orind_testing::shapes::{LLAMA_3_2_1B, Shapes, Sizes};
use plan::Bucket;
use serde_json::Value;

/// One decoded token; the simulator writes what every launch did into the environment's trace.
#[test]
#[ignore = "run by the other test, in a process of its own"]
fn one_token() {
    let shapes = Shapes::new(&Sizes { layers: 1, ..LLAMA_3_2_1B });
    let (layout, bucket) =
        (KvLayout { slots: 1, context: 512, ring: None }, Bucket::decode(1, 512));
    let mut session = Session::new(&Nv::detect().unwrap(), &shapes.model, layout, &[bucket]);
    session.load(0, &[(5, 0, 0)]);
    session.run(0, 1);
    let plan = &session.plans[0].0;
    println!("plan {}", plan.cost().bytes());
    println!("weights {}", plan.cost().weight_bytes);
}

#[test]
fn bytes_are_those_of_the_weights() {
    let dir = tempfile::tempdir().unwrap();
    let trace = dir.path().join("trace");
    let text = said(again(module_path!(), "one_token").env("TEGRA_SIM_TRACE", &trace));
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
