//! Power management of the idle GPU: time until power-down, and the cost of the next use.

use std::path::Path;
use std::time::{Duration, Instant};

use tegra::queue::Wake;

use super::answer::{Answer, timed};
use super::error::Error;
use super::rig::{Rig, TIMEOUT};

/// Longer than the driver's delay before it cuts the power, half a second.
const IDLE: Duration = Duration::from_millis(1500);
/// The kernel's power state of the GPU, on L4T r36.
const STATUS: &str = "/sys/devices/platform/17000000.gpu/power/runtime_status";

/// Closes the channels, pauses, and submits again.
pub(super) fn idle() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let mut answer = Answer::new();
    let ((), close) = timed(|| rig.context.close())?;
    answer.fact("close_cpu_ns", close);
    let watched = watch(Path::new(STATUS), IDLE);
    match &watched {
        Some((status, after)) => {
            answer.fact("status", status.as_str());
            answer.fact("status_after_cpu_ns", after.as_nanos() as f64);
        }
        None => {
            std::thread::sleep(IDLE);
            answer.fact("status", "not told");
        }
    }
    let copy = rig.copy;
    let ((), open) = timed(|| rig.context.open())?;
    let ((), first) = timed(|| -> Result<(), Error> {
        let ticket = rig.context.submit(copy, &[], Wake::Quiet)?;
        Ok(rig.context.wait(ticket, TIMEOUT)?)
    })?;
    // Reopens at once, to measure the cost without a power-up.
    rig.context.close()?;
    let ((), warm) = timed(|| rig.context.open())?;
    answer
        .fact("reopen_cpu_ns", open)
        .fact("first_work_cpu_ns", first)
        .fact("warm_reopen_cpu_ns", warm);
    let status = watched.map_or("its power state is not reported".to_owned(), |(status, _)| {
        format!("the kernel reports {status}")
    });
    let text = format!(
        "closed and idle {status}; open again in {}, in {} when still warm",
        tegra_profile::unit::time(open),
        tegra_profile::unit::time(warm)
    );
    Ok(answer.measured(text))
}

/// The last state that the kernel reports within `time`, and when it first appeared.
fn watch(status: &Path, time: Duration) -> Option<(String, Duration)> {
    let read = || Some(std::fs::read_to_string(status).ok()?.trim().to_owned());
    let started = Instant::now();
    let mut last = (read()?, Duration::ZERO);
    while started.elapsed() < time {
        std::thread::sleep(Duration::from_millis(20));
        match read() {
            Some(now) if now != last.0 => last = (now, started.elapsed()),
            Some(_) => {}
            None => return None,
        }
    }
    Some(last)
}

/// Reads the doorbell page when nothing keeps the GPU powered. If the page is unmapped the process dies
/// of `SIGBUS`, which is the result.
pub(super) fn doorbell_page() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let doorbell = rig.space.orin().doorbell()?;
    let before = doorbell.time();
    rig.context.close()?;
    std::thread::sleep(IDLE);
    let after = doorbell.time();
    let mut answer = Answer::new();
    answer.fact("readable", true).fact("passed_ns", after.saturating_sub(before));
    Ok(answer.measured("the page can be read without an open channel"))
}
