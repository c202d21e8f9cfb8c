//! Deliberate faults, in the experiment's own address spaces: the reported error, and the time
//! until work continues.

use std::time::Duration;

use tegra::address::GpuAddress;
use tegra::buffer::Mailbox;
use tegra::class;
use tegra::context::{Context, Options};
use tegra::pushbuffer::{Acquire, Condition, Engine, Payload, PushBuffer};
use tegra::queue::Wake;

use super::answer::{Answer, timed};
use super::error::Error;
use super::rig::{Rig, TIMEOUT};

const ROUNDS: usize = 3;

/// An address below every buffer, which is never mapped.
fn nowhere() -> Result<GpuAddress, Error> {
    Ok(GpuAddress::new(0x10_0000)?)
}

/// A copy from an unmapped address.
pub(super) fn recovery() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let (from, to) = (Mailbox::new(&rig.space, 4096)?, Mailbox::new(&rig.space, 4096)?);
    let mut answer = Answer::new();
    let (mut noticed, mut rebuilt, mut resumed) = (Vec::new(), Vec::new(), Vec::new());
    for round in 0..ROUNDS as u64 {
        from.store_u64(0, round + 1)?;
        let lost = rig.copier.copy(&mut rig.context, nowhere()?, to.address(), 64)?;
        let (fault, ns) = timed(|| Ok::<_, Error>(rig.context.wait(lost, TIMEOUT)))?;
        noticed.push(ns);
        match fault {
            Err(tegra::Error::Fault(fault)) => {
                let code = fault.code.map_or("none".into(), |code| format!("{code}"));
                answer.fact("notice", code);
            }
            Err(error) => return Err(error.into()),
            Ok(()) => {
                return Err(Error::Implausible("a copy from an unmapped address succeeds".into()));
            }
        }
        let ((), ns) = timed(|| rig.context.rebuild())?;
        rebuilt.push(ns);
        let ((), ns) = timed(|| rig.copy(from.address(), to.address(), 8))?;
        resumed.push(ns);
        if to.load_u64(0)? != round + 1 {
            return Err(Error::Implausible("buffers did not survive the fault".into()));
        }
    }
    let median = |answer: &mut Answer, name, series| answer.series(name, "cpu_ns", series);
    let noticed = median(&mut answer, "noticed", noticed);
    let rebuilt = median(&mut answer, "rebuilt", rebuilt);
    let resumed = median(&mut answer, "resumed", resumed);
    let all = noticed + rebuilt + resumed;
    answer.fact("recovery_cpu_ns", all).fact("rounds", ROUNDS);
    let text = format!("work continues {} after a fault", tegra_profile::unit::time(all));
    Ok(answer.judged(all < 2e9, text))
}

/// Checks that another channel group of the process continues.
pub(super) fn bystander() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let mut other = Context::new(&rig.space, Options::default())?;
    let queue = other.add_queue(Engine::Copy, 64)?;
    let to = Mailbox::new(&rig.space, 4096)?;
    let work = |other: &mut Context| -> Result<f64, Error> {
        let ((), ns) = timed(|| -> Result<(), Error> {
            let ticket = other.submit(queue, &[], Wake::Quiet)?;
            Ok(other.wait(ticket, TIMEOUT)?)
        })?;
        Ok(ns)
    };
    work(&mut other)?;
    let before = work(&mut other)?;
    let lost = rig.copier.copy(&mut rig.context, nowhere()?, to.address(), 64)?;
    let during = work(&mut other);
    let fault = rig.context.wait(lost, TIMEOUT);
    let after = work(&mut other);
    let mut answer = Answer::new();
    answer
        .fact("faulted", matches!(fault, Err(tegra::Error::Fault(_))))
        .fact("before_cpu_ns", before)
        .fact("goes_on", during.is_ok() && after.is_ok());
    if let (Ok(during), Ok(after)) = (&during, &after) {
        answer.fact("during_cpu_ns", *during).fact("after_cpu_ns", *after);
    }
    let text = match (&during, &after) {
        (Ok(_), Ok(_)) => "another group of channels continues undisturbed".to_owned(),
        (Err(error), _) | (_, Err(error)) => format!("another group of channels fails: {error}"),
    };
    let undisturbed = during.is_ok() && after.is_ok();
    Ok(answer.judged(undisturbed, text))
}

/// A channel that waits for a semaphore without release, and is closed.
pub(super) fn hang() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let gate = Mailbox::new(&rig.space, 4096)?;
    let mut stream = PushBuffer::<class::Copy>::new();
    stream.acquire(Acquire::new(gate.at(0)?, Payload::Long(1), Condition::Reached)?);
    let stuck = rig.copier.submit(&mut rig.context, &stream)?;
    let patience = Duration::from_millis(100);
    match rig.context.wait(stuck, patience) {
        Err(tegra::Error::Stalled { .. }) => {}
        Err(error) => return Err(error.into()),
        Ok(()) => {
            return Err(Error::Implausible("a closed semaphore does not stop a channel".into()));
        }
    }
    let ((), rebuilt) = timed(|| rig.context.rebuild())?;
    let copy = rig.copy;
    let ((), resumed) = timed(|| -> Result<(), Error> {
        let ticket = rig.context.submit(copy, &[], Wake::Quiet)?;
        Ok(rig.context.wait(ticket, TIMEOUT)?)
    })?;
    // Releases the semaphore, so that nothing waits for it any more.
    gate.store_u64(0, 1)?;
    let mut answer = Answer::new();
    answer.fact("rebuilt_cpu_ns", rebuilt).fact("resumed_cpu_ns", resumed);
    let text = format!(
        "a channel that hangs is replaced in {}",
        tegra_profile::unit::time(rebuilt + resumed)
    );
    Ok(answer.judged(rebuilt + resumed < 2e9, text))
}
