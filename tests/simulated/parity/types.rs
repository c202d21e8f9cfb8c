//! Models of each type through prompt and decode.

use device::reference::Reference;
use parity::model::{Task, Tolerance, Trace};

use super::{devices, model};

#[test]
fn logits_of_every_type_are_near_the_reference() {
    let prompts = [vec![1], vec![5, 9, 2, 77, 301, 8, 5]];
    for name in [
        "tiny-llama-f16",
        "tiny-llama-Q8_0",
        "tiny-llama-Q6_K",
        "tiny-llama-Q4_K_M",
        "tiny-qwen3-Q8_0",
        "tiny-qwen3-Q4_K_M",
    ] {
        let model = model(name);
        let task = Task { model: &model, prompts: &prompts, steps: 2 };
        let expected = Trace::record(&Reference, &task, None).unwrap();
        let mut page = None;
        for device in devices() {
            let trace = Trace::record(&*device, &task, Some(&expected)).unwrap();
            let found = trace.compare(&expected, &Tolerance::default());
            println!(
                "{name} on {}: max {:.4}, mean {:.5}, divergence {:.1e}, top-1 {:.0} %",
                device.info().name,
                found.max_error,
                found.mean_error,
                found.max_divergence,
                100.0 * found.top1_agreement
            );
            assert!(found.passed, "{name} on {}: {:?}", device.info().name, found.steps);
            // The CPU is the first device; the others must have its bits.
            let page = page.get_or_insert_with(|| trace.clone());
            assert_eq!(trace.first_unequal(page), None, "{name} on {}", device.info().name);
        }
    }
}
