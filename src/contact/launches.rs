//! What launches cost: alone, one behind another, started by each other, with a release, under each
//! kind of preemption; and whether they always cost the same.

use tegra::channel::Preemption;
use tegra::context::Options;
use tegra::space::L2;
use tegra_profile::facts;
use tegra_profile::unit::time;

use super::answer::{Answer, line, median};
use super::error::Error;
use super::kernel::{Link, Nothing};
use super::rig::{Rig, repeat};

const MANY: u64 = 33;

/// GPU time of launches, without that of an empty submission.
fn launches(rig: &mut Rig, count: u64, link: Link) -> Result<f64, Error> {
    let kernel = Nothing::new(&rig.space, count, link)?;
    let compute = rig.compute;
    Ok(median(repeat(8, 200, |_| {
        let empty = rig.duration(compute, &[])?;
        Ok(rig.duration(compute, &[kernel.body])? - empty)
    })?)
    .max(0.0))
}

/// One launch, and many in one stream.
pub(super) fn launch() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let single = launches(&mut rig, 1, Link::Stream)?;
    let many = launches(&mut rig, MANY, Link::Stream)?;
    let (in_row, _) = line((1.0, single), (MANY as f64, many));
    let mut answer = Answer::new();
    answer.fact(facts::LAUNCH.name, single).fact("in_row_ns", in_row.max(0.0));
    Ok(answer.measured(format!("{} alone, {} each in a row", time(single), time(in_row))))
}

/// Launches that start each other.
pub(super) fn dependent() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let single = launches(&mut rig, 1, Link::Dependence)?;
    let many = launches(&mut rig, MANY, Link::Dependence)?;
    let (gap, _) = line((1.0, single), (MANY as f64, many));
    let gap = gap.max(0.0);
    let mut answer = Answer::new();
    answer.fact(facts::DEPENDENT.name, gap).fact("chain_ns", many).fact("launches", MANY);
    Ok(answer.measured(format!("{} from one launch to the one that it starts", time(gap))))
}

/// Launches that start each other, and release a semaphore each.
pub(super) fn released() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let plain = launches(&mut rig, MANY, Link::Dependence)?;
    let chain = Nothing::new(&rig.space, MANY, Link::Released)?;
    let compute = rig.compute;
    let with = median(repeat(8, 200, |_| {
        let empty = rig.duration(compute, &[])?;
        Ok(rig.duration(compute, &[chain.body])? - empty)
    })?);
    let arrived = u64::from(chain.released()?);
    let each = ((with - plain) / MANY as f64).max(0.0);
    let mut answer = Answer::new();
    answer
        .fact("launches", MANY)
        .fact("arrived", arrived)
        .fact("chain_ns", plain)
        .fact("released_chain_ns", with)
        .fact("release_ns", each);
    let text = match arrived == MANY {
        true => format!("each release arrives, and costs its launch {}", time(each)),
        false => format!("the last release is that of launch {arrived} of {MANY}"),
    };
    Ok(answer.judged(arrived == MANY, text))
}

/// The same chain of launches again and again.
pub(super) fn jitter() -> Result<Answer, Error> {
    /// Beyond this times the median a run is slow.
    const SLOW: f64 = 1.5;
    let mut rig = Rig::new()?;
    let chain = Nothing::new(&rig.space, MANY, Link::Dependence)?;
    let compute = rig.compute;
    let times = repeat(16, 4000, |_| rig.duration(compute, &[chain.body]))?;
    let mut answer = Answer::new();
    let median = answer.series("chain", "ns", times.clone());
    let slow: Vec<f64> = times.iter().copied().filter(|ns| *ns > SLOW * median).collect();
    let share = slow.len() as f64 / times.len().max(1) as f64;
    answer.fact("rounds", times.len()).fact("slow_share", share);
    if !slow.is_empty() {
        answer.fact("slow_median_ns", super::answer::median(slow));
    }
    let text =
        format!("{} in the middle, {:.1} % of the runs are slow", time(median), 100.0 * share);
    Ok(answer.measured(text))
}

/// The three kinds of preemption.
pub(super) fn preemption() -> Result<Answer, Error> {
    let mut answer = Answer::new();
    let mut text = Vec::new();
    let kinds = [
        ("kernel", Preemption::Kernel),
        ("block", Preemption::Block),
        ("instruction", Preemption::Instruction),
    ];
    for (name, preemption) in kinds {
        let mut rig = Rig::with(L2::Volatile, Options { preemption, ..Options::default() })?;
        let ns = launches(&mut rig, 1, Link::Stream)?;
        answer.fact(format!("{name}_launch_ns"), ns);
        text.push(format!("{name} {}", time(ns)));
    }
    Ok(answer.judged(true, format!("all are taken; a launch: {}", text.join(", "))))
}
