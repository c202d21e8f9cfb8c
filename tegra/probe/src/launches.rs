//! Cost of launches: alone, in sequence, started by each other, with a release, under each kind of
//! preemption, next to other groups; and its variation.

use tegra::buffer::Scratch;
use tegra::channel::{Preemption, Tsg};
use tegra::context::Options;
use tegra::orin::Orin;
use tegra::queue::Wake;
use tegra::space::{AddressSpace, L2};
use tegra_first_light::launch::Link;
use tegra_profile::facts;
use tegra_profile::unit::time;

use super::answer::{Answer, Point, line, median, timed};
use super::error::Error;
use super::kernel::{EmptyKernel, ROW_BYTES, Reader};
use super::rig::{Rig, TIMEOUT, growing, repeat};

const MANY: u64 = 33;

/// GPU time of launches, minus that of an empty submission.
fn launches(rig: &mut Rig, count: u64, link: Link) -> Result<f64, Error> {
    let kernel = EmptyKernel::new(&rig.space, count, link)?;
    let compute = rig.compute;
    Ok(median(repeat(8, 200, |_| {
        let empty = rig.duration(compute, &[])?;
        Ok(rig.duration(compute, &[kernel.body])? - empty)
    })?)
    .max(0.0))
}

/// Duration of each of [`MANY`] more launches.
fn each(single: f64, many: f64) -> f64 {
    line(Point { x: 1.0, y: single }, Point { x: MANY as f64, y: many }).slope
}

/// One launch, and many in one stream.
pub(super) fn launch() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let single = launches(&mut rig, 1, Link::Stream)?;
    let many = launches(&mut rig, MANY, Link::Stream)?;
    let in_row = each(single, many);
    let mut answer = Answer::new();
    answer.fact(facts::LAUNCH.name, single).fact("in_row_ns", in_row.max(0.0));
    Ok(answer.measured(format!("{} alone, {} each in a row", time(single), time(in_row))))
}

/// Launches that start each other.
pub(super) fn dependent() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let single = launches(&mut rig, 1, Link::Dependence)?;
    let many = launches(&mut rig, MANY, Link::Dependence)?;
    let gap = each(single, many).max(0.0);
    let mut answer = Answer::new();
    answer.fact(facts::DEPENDENT.name, gap).fact("chain_ns", many).fact("launches", MANY);
    Ok(answer.measured(format!("{} from one launch to the one that it starts", time(gap))))
}

/// Launches that start each other and release a semaphore each.
pub(super) fn released() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let plain = launches(&mut rig, MANY, Link::Dependence)?;
    let chain = EmptyKernel::releasing(&rig.space, MANY)?;
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

/// Repeats the same chain of launches.
pub(super) fn jitter() -> Result<Answer, Error> {
    /// Multiple of the median above which a run is slow.
    const SLOW: f64 = 1.5;
    let mut rig = Rig::new()?;
    let chain = EmptyKernel::new(&rig.space, MANY, Link::Dependence)?;
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
    let text = format!("median {}, {:.1} % of the runs are slow", time(median), 100.0 * share);
    Ok(answer.measured(text))
}

/// Preemption granularities.
pub(super) const KINDS: [(&str, Preemption); 3] = [
    ("kernel", Preemption::Kernel),
    ("block", Preemption::Block),
    ("instruction", Preemption::Instruction),
];

/// The three kinds of preemption.
pub(super) fn preemption() -> Result<Answer, Error> {
    let mut answer = Answer::new();
    let mut text = Vec::new();
    for (name, preemption) in KINDS {
        let mut rig = Rig::with(L2::Volatile, Options { preemption, ..Options::default() })?;
        let ns = launches(&mut rig, 1, Link::Stream)?;
        answer.fact(format!("{name}_launch_ns"), ns);
        text.push(format!("{name} {}", time(ns)));
    }
    Ok(answer.judged(true, format!("all are accepted; a launch: {}", text.join(", "))))
}

/// A launch while another channel group occupies the GPU, as another process would: the host unit
/// schedules groups, not processes.
pub(super) fn sharing() -> Result<Answer, Error> {
    const LARGEST: u64 = 256 << 20;
    /// Consecutive kernels of the other group.
    const BUSY: usize = 8;
    let space = AddressSpace::new(&Orin::open()?, L2::Volatile)?;
    let matrix = Scratch::new(&space, LARGEST)?;
    // Never sleeps: the spin time is the whole timeout.
    let spinning = Options { spin: TIMEOUT, ..Options::default() };
    let mut rig = Rig::within(space.clone(), spinning)?;
    rig.fill(matrix.address(), 0x0101_0101, LARGEST)?;
    let empty = EmptyKernel::new(&space, 1, Link::Stream)?;
    let compute = rig.compute;
    let sizes = growing(64 * ROW_BYTES, LARGEST, |bytes| {
        let reader = Reader::new(&space, matrix.address(), bytes)?;
        rig.duration(compute, &[reader.body])
    })?;
    let &(bytes, kernel) = sizes.last().ok_or_else(|| Error::Implausible("no size".into()))?;
    let mut answer = Answer::new();
    let slice = Tsg::open(space.orin())?.timeslice()?.as_nanos() as f64;
    answer
        .fact("timeslice_ns", slice)
        .fact("busy_most_bytes", bytes)
        .fact("busy_kernel_ns", kernel);
    let mut one = || -> Result<f64, Error> {
        let ((), ns) = timed(|| rig.run(compute, &[empty.body]).map(drop))?;
        Ok(ns)
    };
    let alone = answer.series("alone", "cpu_ns", repeat(8, 400, |_| one())?);
    let mut text = Vec::new();
    for (name, preemption) in KINDS {
        let reader = Reader::new(&space, matrix.address(), bytes)?;
        let options = Options { preemption, ..Options::default() };
        let mut other = Rig::within(space.clone(), options)?;
        let times = repeat(2, 100, |_| {
            let mut last = None;
            for _ in 0..BUSY {
                let (queue, context) = (other.compute, &mut other.context);
                last = Some(context.submit(queue, &[reader.body], Wake::Quiet)?);
            }
            let ns = one()?;
            if let Some(last) = last {
                other.context.wait(last, TIMEOUT)?;
            }
            Ok(ns)
        })?;
        text.push(format!("{name} {}", time(answer.series(name, "cpu_ns", times))));
    }
    let text = text.join(", ");
    Ok(answer.measured(format!("{} alone; beside others that yield by {text}", time(alone))))
}
