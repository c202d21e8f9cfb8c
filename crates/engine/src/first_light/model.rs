//! Last bring-up step of first light: compares a tiny model with another device. Tokens must be equal and logits
//! close; a difference in bits is reported.

use std::sync::Arc;

use crate::placement;
use crate::runner::{Chunk, ModelRunner, Row};
use crate::shared::Shared;
use crate::{LoadSpec, Scales};
use device::{Device, named};
use parity::measure::{argmax, equal};
use parity::model::{Tolerance, Trace};
use plan::Outputs;
use plan::sample::{NOT_FINITE, Sampling};

/// The matrices have types Q4_K and Q6_K, the norms F32. Each step has a clear most likely token.
const MODEL: &str = "synthetic:tiny-llama:q4_k_m";
/// Longer than a chunk, and not a multiple of it.
const PROMPT: [u32; 21] =
    [1, 38, 75, 112, 149, 186, 223, 7, 44, 81, 118, 155, 192, 229, 13, 50, 87, 124, 161, 198, 235];
const CHUNK: usize = 16;
const STEPS: usize = 8;

/// Results of one device.
struct Run {
    /// Token sampled by each step.
    sampled: Vec<u32>,
    logits: Vec<Vec<f32>>,
}

/// Compares a device with the CPU, and the CPU with the reference. Returns deviations that do not disqualify
/// it.
pub(super) fn check(device: &Arc<dyn Device>, shared: &Shared) -> Result<Option<String>, String> {
    let beside = if device.info().name == "cpu" { "reference" } else { "cpu" };
    let other = named(beside, "auto", 1)?;
    let expected = run(&other, None, shared)?;
    let found = run(device, Some(&expected.sampled), shared)?;
    compare(&found, &expected, beside)?;
    let one_arithmetic = device.numerics().is_some() && device.numerics() == other.numerics();
    Ok(unequal(&found, &expected).filter(|_| one_arithmetic).map(|step| {
        format!(
            "logits of step {step} are near the {beside}'s and not equal to them, as they should be \
             (docs/numerics.md); `orinctl fingerprint` on both tells where they part"
        )
    }))
}

/// First step whose logits differ in any bit.
fn unequal(found: &Run, expected: &Run) -> Option<usize> {
    found.logits.iter().zip(&expected.logits).position(|(ours, theirs)| !equal(ours, theirs))
}

fn compare(found: &Run, expected: &Run, beside: &str) -> Result<(), String> {
    for (i, (sampled, logits)) in found.sampled.iter().zip(&found.logits).enumerate() {
        if *sampled == NOT_FINITE {
            return Err(format!("step {i} gives logits that are not finite"));
        }
        let best = argmax(logits);
        if *sampled as usize != best {
            let why = "though greedily";
            return Err(format!("step {i} sampled token {sampled}, {why}, and not {best}"));
        }
    }
    let trace = |run: &Run| Trace::of(vec![run.logits.clone()]);
    let compared = trace(found).compare(&trace(expected), &Tolerance::default());
    if compared.passed {
        return Ok(());
    }
    let token = compared.first_difference.map_or_else(String::new, |(_, step, _)| {
        let [is, was] = [found, expected].map(|run| run.sampled[step]);
        format!("step {step} gives token {is} where the {beside} gives {was}; ")
    });
    let (error, divergence) = (compared.max_error, compared.max_divergence);
    Err(format!("{token}logits differ from the {beside}'s by {error:.3}, {divergence:.3} nats"))
}

/// Runs the prompt and some decode steps, on the tokens of another run if there is one.
fn run(device: &Arc<dyn Device>, forced: Option<&[u32]>, shared: &Shared) -> Result<Run, String> {
    let spec = LoadSpec {
        model: MODEL.into(),
        backend: device.info().name.parse().unwrap_or_default(),
        slots: 2,
        context: 64,
        prefill_chunk: CHUNK,
        ..LoadSpec::default()
    };
    let mut runner =
        placement::on_device(device, &spec, shared).map_err(|error| error.to_string())?;
    steps(&mut runner, forced).map_err(|error| errors::one_line(&error))
}

fn steps(runner: &mut ModelRunner, forced: Option<&[u32]>) -> Result<Run, device::Error> {
    let mut run = Run { sampled: Vec::new(), logits: Vec::new() };
    let (sampling, adapters) = (Sampling::GREEDY, Scales::NONE);
    let mut row = Row { slot: 0, token: 0, position: 0, sampling, adapters };
    let mut tokens = Vec::new();
    let (whole, last) = PROMPT.split_at(CHUNK);
    for (chunk, outputs) in [(whole, Outputs::None), (last, Outputs::Last)] {
        let (start, tokens, edits) = (row, chunk, &[][..]);
        let chunk = Chunk { start, tokens, next: None, outputs, edits, feeds_nextn: true };
        runner.steps().submit_chunk(&chunk)?;
        row.position += tokens.len() as u32;
    }
    runner.finish(&mut tokens)?;
    for i in 0..=STEPS {
        if i == 1 {
            // Continues from the cache of another slot.
            runner.copy_slot(0, 1, PROMPT.len())?;
            row.slot = 1;
        }
        if i > 0 {
            row.token = forced.unwrap_or(&run.sampled)[i - 1];
            // Whole decode steps alternate with split ones.
            if i % 2 == 0 {
                runner.steps().submit_decode(&[row], &[], true)?;
            } else {
                runner.steps().submit_until_logits(&[row])?;
                runner.steps().submit_logits(&[row], &[], true)?;
                runner.finish(&mut tokens)?;
            }
            row.position += 1;
        }
        let step = runner.finish(&mut tokens)?;
        let mut logits = vec![0.0; runner.vocabulary()];
        runner.steps().logits(&step, 0, &mut logits)?;
        run.sampled.push(tokens[0]);
        run.logits.push(logits);
    }
    Ok(run)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reference() -> Run {
        run(&named("reference", "auto", 1).unwrap(), None, &Shared::default()).unwrap()
    }

    #[test]
    fn the_cpu_passes_first_light() {
        let told = check(&named("cpu", "auto", 1).unwrap(), &Shared::default()).unwrap();
        assert_eq!(told, None, "the reference has another arithmetic");
    }

    #[test]
    fn a_difference_of_one_bit_is_detected() {
        let (good, mut other) = (reference(), reference());
        assert_eq!(unequal(&good, &other), None);
        let logit = &mut other.logits[4][9];
        *logit = f32::from_bits(logit.to_bits() ^ 1);
        compare(&other, &good, "cpu").unwrap();
        assert_eq!(unequal(&other, &good), Some(4));
    }

    #[test]
    fn comparisons_report_the_difference() {
        let good = reference();
        compare(&good, &good, "cpu").unwrap();
        let mut sampled = reference();
        sampled.sampled[3] += 1;
        let why = compare(&sampled, &good, "cpu").unwrap_err();
        assert!(why.starts_with("step 3 sampled token"), "{why}");
        let mut other = reference();
        other.logits[5].rotate_left(1);
        other.sampled[5] = argmax(&other.logits[5]) as u32;
        let why = compare(&other, &good, "cpu").unwrap_err();
        assert!(why.starts_with("step 5 gives token"), "{why}");
        let mut noisy = reference();
        noisy.logits[2].iter_mut().step_by(2).for_each(|logit| *logit *= 1.2);
        noisy.sampled[2] = argmax(&noisy.logits[2]) as u32;
        assert!(compare(&noisy, &good, "cpu").is_err());
        let mut none = reference();
        none.logits[0][7] = f32::NAN;
        assert!(compare(&none, &good, "cpu").is_err());
        none.sampled[0] = NOT_FINITE;
        let why = compare(&none, &good, "cpu").unwrap_err();
        assert_eq!(why, "step 0 gives logits that are not finite");
    }
}
