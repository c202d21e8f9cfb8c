//! What launches cost: alone, one behind another, started by each other, under each kind of
//! preemption.

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
