//! Latencies that the CPU sees: from doorbell to completion, and until an event wakes it.

use std::time::Duration;

use tegra::buffer::Mailbox;
use tegra::context::{Context, Options, Timing};
use tegra::pushbuffer::{Engine, Payload, PushBuffer, Release};
use tegra::queue::Wake;
use tegra::space::L2;
use tegra_profile::facts;

use super::answer::{Answer, Point, line, median, timed};
use super::error::Error;
use super::rig::{Rig, TIMEOUT, repeat};

/// Doorbell to completion, with the CPU polling.
pub(super) fn doorbell() -> Result<Answer, Error> {
    // Never sleeps: the spin time is the whole timeout.
    let mut rig = Rig::with(L2::Volatile, Options { spin: TIMEOUT, ..Options::default() })?;
    let copy = rig.copy;
    let results = repeat(64, 4000, |_| {
        let before = rig.context.gpu_time().unwrap_or_default();
        let (ticket, submit) = timed(|| rig.context.submit_timed(copy, &[], Wake::Quiet))?;
        let (Timing { started, finished }, wait) = timed(|| rig.finish(ticket))?;
        let reaction = started.saturating_sub(before) as f64;
        Ok((submit, submit + wait, reaction, finished.saturating_sub(started) as f64))
    })?;
    let mut answer = Answer::new();
    answer.series("submit", "cpu_ns", results.iter().map(|r| r.0).collect());
    let round = answer.series("round_trip", "cpu_ns", results.iter().map(|r| r.1).collect());
    let reaction = answer.series("reaction", "ns", results.iter().map(|r| r.2).collect());
    answer.series("empty_submission", "ns", results.iter().map(|r| r.3).collect());
    answer.fact(facts::DOORBELL.name, reaction).fact("rounds", results.len());
    let text = format!(
        "{} from doorbell to completion as the CPU sees it, {} until the GPU begins",
        tegra_profile::unit::time(round),
        tegra_profile::unit::time(reaction)
    );
    Ok(answer.measured(text))
}

/// Cost of a semaphore release and of a ring entry on the host unit.
pub(super) fn submission() -> Result<Answer, Error> {
    const MANY: usize = 48;
    let mut rig = Rig::new()?;
    let mailbox = Mailbox::new(&rig.space, 8192)?;
    let release = Release::new(mailbox.at(0)?, Payload::Word(1))?.at_once();
    let mut one = PushBuffer::<tegra::class::Copy>::new();
    one.release(release);
    let mut many = PushBuffer::<tegra::class::Copy>::new();
    for _ in 0..MANY {
        many.release(release);
    }
    let one = mailbox.write_stream(4096, one.words())?;
    let many = mailbox.write_stream(4096 + 256, many.words())?;
    let copy = rig.copy;
    let mut time = |bodies: &[_]| -> Result<f64, Error> {
        Ok(median(repeat(8, 200, |_| rig.duration(copy, bodies))?))
    };
    let (empty, single) = (time(&[])?, time(&[one])?);
    let (releases, entries) = (time(&[many])?, time(&[one; MANY])?);
    let per =
        |many: f64| line(Point { x: 1.0, y: single }, Point { x: MANY as f64, y: many }).slope;
    let release = per(releases).max(0.0);
    let entry = (per(entries) - release).max(0.0);
    let mut answer = Answer::new();
    answer
        .fact("empty_ns", empty)
        .fact(facts::RELEASE.name, release)
        .fact(facts::ENTRY.name, entry);
    Ok(answer.measured(format!("{release:.0} ns a release, {entry:.0} ns more a ring entry")))
}

/// Doorbell to completion, with the CPU asleep on the event.
pub(super) fn event() -> Result<Answer, Error> {
    let mut answer = Answer::new();
    let mut text = Vec::new();
    for (name, channels) in [("alone", 1), ("of_16", 16)] {
        let space = Rig::new()?.space;
        let options = Options { spin: Duration::ZERO, ..Options::default() };
        let mut context = Context::new(&space, options)?;
        let queues = (0..channels)
            .map(|_| context.add_queue(Engine::Copy, 64))
            .collect::<Result<Vec<_>, _>>()?;
        for &queue in &queues {
            let ticket = context.submit(queue, &[], Wake::Quiet)?;
            context.wait(ticket, TIMEOUT)?;
        }
        let sleeps = context.statistics().sleeps;
        let results = repeat(16, 1000, |round| {
            let queue = queues[round % queues.len()];
            let ((), ns) = timed(|| -> Result<(), Error> {
                let ticket = context.submit(queue, &[], Wake::Interrupt)?;
                Ok(context.wait(ticket, TIMEOUT)?)
            })?;
            Ok(ns)
        })?;
        let slept = context.statistics().sleeps - sleeps;
        answer.fact(format!("{name}_rounds"), results.len()).fact(format!("{name}_sleeps"), slept);
        let median = answer.series(name, "cpu_ns", results);
        text.push(tegra_profile::unit::time(median));
    }
    let text = format!("{} asleep; {} with 16 channels", text[0], text[1]);
    Ok(answer.measured(text))
}
