//! The bring-up steps of the daemon's first light, one experiment each. Each opens its own channel,
//! so that the failure of one does not affect the next.

use tegra::orin::Orin;
use tegra::space::Range;
use tegra_first_light::{Failure, LENGTHS, Trial};
use tegra_profile::facts;

use super::answer::Answer;
use super::error::Error;

/// Longer than a step of any model.
const LONGEST: u32 = 4096;

fn trial() -> Result<Trial, Error> {
    Ok(Trial::open(&Orin::open()?, Range::Short)?)
}

/// Runs a step, which passes or returns a failure.
fn passes(
    step: fn(&mut Trial) -> Result<(), Failure>,
    text: &'static str,
) -> Result<Answer, Error> {
    let mut trial = trial()?;
    let mut answer = Answer::new();
    match step(&mut trial) {
        Ok(()) => {
            answer.fact("passes", true);
            Ok(answer.judged(true, text))
        }
        Err(failure) => {
            answer.fact("passes", false);
            Ok(answer.judged(false, failure.to_string()))
        }
    }
}

pub(super) fn channel() -> Result<Answer, Error> {
    passes(|_| Ok(()), "a channel whose reported addresses are all below 2^40")
}

pub(super) fn release() -> Result<Answer, Error> {
    passes(Trial::release, "a release writes its payload and its timestamp")
}

pub(super) fn event() -> Result<Answer, Error> {
    let woken = trial()?.event()?;
    let mut answer = Answer::new();
    answer.fact(facts::EVENT.name, woken);
    let text = match woken {
        true => "an interrupt wakes a sleeper within 20 ms",
        false => "no interrupt wakes a sleeper within 20 ms: completion must be polled",
    };
    Ok(answer.judged(woken, text))
}

pub(super) fn launch() -> Result<Answer, Error> {
    passes(Trial::launch, "every word of the probe is right")
}

pub(super) fn order() -> Result<Answer, Error> {
    let lengths: Vec<u32> = LENGTHS.into_iter().chain([LONGEST]).collect();
    let mut trial = trial()?;
    let longest = trial.order(&lengths)?;
    let mut answer = Answer::new();
    answer.fact(facts::LONGEST_CHAIN.name, longest).fact("tried", LONGEST);
    let text = match trial.stopped() {
        None => format!("chains up to {longest} launches run in order"),
        Some(failure) => format!("chains up to {longest} launches run in order; then {failure}"),
    };
    Ok(answer.judged(longest == LONGEST, text))
}

pub(super) fn atomics() -> Result<Answer, Error> {
    passes(Trial::atomics, "the last of 64 blocks is detected, 64 times")
}

pub(super) fn handover() -> Result<Answer, Error> {
    passes(Trial::handover, "CPU and SMs see each other's writes, 64 times")
}
