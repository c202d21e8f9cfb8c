//! Logits of a whole model on one device, step by step, compared with those of another device.

use serde::Serialize;

use super::measure::{Difference, argmax, divergence, equal, margin};
use super::runner::Runner;

pub use super::error::Failure;
use device::Device;
use model::{KvLayout, Model};
use plan::{Bucket, Outputs};

/// Rows of a prompt chunk.
const CHUNK: usize = 32;
/// Slot to use, of two.
const SLOT: i32 = 1;

#[derive(Clone, Copy, Debug)]
pub struct Task<'a> {
    pub model: &'a Model,
    /// Token ids of each prompt; none is empty.
    pub prompts: &'a [Vec<u32>],
    /// Tokens decoded after each prompt.
    pub steps: usize,
}

/// Logits of each step of each prompt: after the prompt, then after each forced token.
#[derive(Clone, Debug)]
pub struct Trace {
    logits: Vec<Vec<Vec<f32>>>,
}

/// Tolerances of a comparison.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Tolerance {
    /// Maximum divergence of a step, in nats.
    pub divergence: f64,
    /// Maximum mean error of a step, in units of the root mean square of the logits.
    pub mean: f64,
    /// A token may differ if the reference's best leads by less than this many mean errors.
    pub margin: f64,
}

impl Default for Tolerance {
    /// Tolerance for 8-bit activations on either side.
    fn default() -> Self {
        Self { divergence: 0.02, mean: 0.05, margin: 8.0 }
    }
}

/// A step compared with the reference's.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Step {
    pub difference: Difference,
    /// Divergence from the reference, in nats.
    pub divergence: f64,
    /// Most likely token of the reference.
    pub expected: usize,
    pub found: usize,
    /// Lead of the reference's best token over its next.
    pub margin: f64,
}

impl Step {
    fn of(got: &[f32], want: &[f32]) -> Self {
        Self {
            difference: Difference::of(got, want),
            divergence: divergence(want, got),
            expected: argmax(want),
            found: argmax(got),
            margin: margin(want),
        }
    }

    fn within(&self, tolerance: &Tolerance) -> bool {
        let Self { difference: d, divergence, expected, found, margin } = *self;
        d.unlike == 0
            && divergence <= tolerance.divergence
            && d.mean <= tolerance.mean * d.scale
            && (expected == found || margin <= tolerance.margin * d.mean)
    }
}

/// A device compared with the reference, over all steps of all prompts.
#[derive(Clone, Debug, Serialize)]
pub struct Comparison {
    /// Largest distance of a logit.
    pub max_error: f64,
    pub mean_error: f64,
    /// Largest divergence of a step, in nats.
    pub max_divergence: f64,
    pub mean_divergence: f64,
    /// Fraction of steps with the same most likely token.
    pub top1_agreement: f64,
    /// First step whose most likely token differs: prompt, step, lead of the reference.
    pub first_difference: Option<(usize, usize, f64)>,
    pub steps: Vec<Vec<Step>>,
    pub passed: bool,
}

impl Trace {
    /// Runs a task on a device, with `forced` tokens or with the device's own most likely ones.
    pub fn record(
        device: &dyn Device,
        task: &Task<'_>,
        forced: Option<&Self>,
    ) -> Result<Self, Failure> {
        let mut runner = runner(device, task)?;
        let mut logits = Vec::new();
        for (p, prompt) in task.prompts.iter().enumerate() {
            let mut steps = vec![runner.run(PREFILL, SLOT, 0, prompt)?];
            for i in 0..task.steps {
                let token = argmax(forced.map_or(&steps[i], |trace| &trace.logits[p][i]));
                steps.push(runner.run(DECODE, SLOT, prompt.len() + i, &[token as u32])?);
            }
            logits.push(steps);
        }
        Ok(Self { logits })
    }

    /// Creates a trace from logits recorded elsewhere.
    pub fn of(logits: Vec<Vec<Vec<f32>>>) -> Self {
        Self { logits }
    }

    /// Rows of logits, by prompt and step.
    pub fn logits(&self) -> &[Vec<Vec<f32>>] {
        &self.logits
    }

    /// First step whose logits are not bit-identical: prompt, step.
    pub fn first_unequal(&self, other: &Self) -> Option<(usize, usize)> {
        self.logits.iter().zip(&other.logits).enumerate().find_map(|(p, (ours, theirs))| {
            Some((p, ours.iter().zip(theirs).position(|(a, b)| !equal(a, b))?))
        })
    }

    pub fn compare(&self, reference: &Self, tolerance: &Tolerance) -> Comparison {
        let pairs = self.logits.iter().zip(&reference.logits);
        let steps: Vec<Vec<Step>> = pairs
            .map(|(got, want)| got.iter().zip(want).map(|(g, w)| Step::of(g, w)).collect())
            .collect();
        let all: Vec<&Step> = steps.iter().flatten().collect();
        let count = all.len().max(1) as f64;
        let mean = |f: fn(&Step) -> f64| all.iter().map(|s| f(s)).sum::<f64>() / count;
        let max = |f: fn(&Step) -> f64| all.iter().map(|s| f(s)).fold(0.0, f64::max);
        let first = steps.iter().enumerate().find_map(|(p, steps)| {
            let at = steps.iter().position(|s| s.expected != s.found)?;
            Some((p, at, steps[at].margin))
        });
        Comparison {
            max_error: max(|s| s.difference.max),
            mean_error: mean(|s| s.difference.mean),
            max_divergence: max(|s| s.divergence),
            mean_divergence: mean(|s| s.divergence),
            top1_agreement: mean(|s| f64::from(u8::from(s.expected == s.found))),
            first_difference: first,
            passed: all.iter().all(|s| s.within(tolerance)),
            steps,
        }
    }
}

/// Indices of the plans of a [`runner`].
const PREFILL: usize = 0;
const DECODE: usize = 1;

/// Loads the model of a task.
fn runner(device: &dyn Device, task: &Task<'_>) -> Result<Runner, Failure> {
    let &Task { model, prompts, steps } = task;
    let context = model.hyperparameters().context.min(4096);
    let tokens = prompts.iter().map(Vec::len).max().unwrap_or(0);
    if tokens + steps > context {
        return Err(Failure::Long { tokens, steps, context });
    }
    let layout = KvLayout {
        slots: 2,
        context: (tokens + steps).next_multiple_of(64).min(context),
        ring: None,
    };
    let chunk = CHUNK.min(layout.context);
    let prefill = Bucket::prefill(chunk, layout.context, Outputs::Last);
    Runner::new(device, model, layout, &[prefill, Bucket::decode(1, layout.context)])
}
