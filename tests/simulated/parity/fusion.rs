//! Fusion: a fused step equals its parts, and unfused plans have more steps.

use device::{Device, Error, Footprint, Info, Instance, Request, Tunable};
use parity::model::{Task, Tolerance, Trace};
use plan::{Bucket, Fusions, fuse};

use super::{devices, model};

/// A device that reports fewer fusions than it supports.
struct Plain<'a>(&'a dyn Device, Fusions);

impl Device for Plain<'_> {
    fn info(&self) -> Info {
        self.0.info()
    }

    fn fusions(&self) -> Fusions {
        self.1
    }

    fn footprint(&self, request: &Request<'_>) -> Result<Footprint, Error> {
        self.0.footprint(request)
    }

    fn open(&self, request: &Request<'_>) -> Result<Box<dyn Instance>, Error> {
        self.0.open(request)
    }

    fn tunable(&self) -> Option<&dyn Tunable> {
        self.0.tunable()
    }
}

/// Fusions without norm and residual, which devices also run as steps of their own.
const FEWER: [(&str, Fusions); 3] = [
    ("norm", Fusions { norm: false, ..Fusions::ALL }),
    ("residual", Fusions { residual: false, ..Fusions::ALL }),
    ("norm and residual", Fusions { norm: false, residual: false, ..Fusions::ALL }),
];

#[test]
fn fused_equals_unfused() {
    let tolerance = Tolerance { divergence: 1e-3, mean: 0.01, margin: 8.0 };
    let name = "tiny-qwen3-Q4_K_M";
    let model = model(name);
    let prompts = [vec![3, 1, 4, 1, 5]];
    let task = Task { model: &model, prompts: &prompts, steps: 2 };
    for device in devices() {
        let fused = Trace::record(&*device, &task, None).unwrap();
        for (what, fusions) in FEWER {
            let apart = Plain(&*device, fusions);
            let trace = Trace::record(&apart, &task, Some(&fused)).unwrap();
            let found = trace.compare(&fused, &tolerance);
            assert!(
                found.passed,
                "{name} on {} without {what}: {:?}",
                device.info().name,
                found.steps
            );
        }
    }
}

#[test]
fn unfused_plans_have_more_steps() {
    let model = model("tiny-llama-Q8_0");
    let layout = model::KvLayout { slots: 1, context: 64, ring: None };
    let plan = model.plan(layout, Bucket::decode(1, 64)).unwrap();
    let steps = |fusions| fuse(&plan, fusions).steps.len();
    let layers = model.hyperparameters().layers.len();
    // Two norms and two residuals a layer, a norm before the logits.
    assert_eq!(steps(FEWER[0].1), steps(Fusions::ALL) + 2 * layers + 1);
    assert_eq!(steps(FEWER[1].1), steps(Fusions::ALL) + 2 * layers);
}
