//! Experiment that searches for the largest single buffer; each buffer is freed immediately.

use tegra::buffer::Scratch;
use tegra::orin::Orin;
use tegra::space::{AddressSpace, L2};
use tegra_profile::facts;

use super::answer::{Answer, timed};
use super::error::Error;

/// Minimum memory left to the rest of the system.
const SPARE: u64 = 4 << 30;
/// The first size, and the precision of the limit.
const FIRST: u64 = 64 << 20;

pub(super) fn largest() -> Result<Answer, Error> {
    // If the system runs out of memory, the kernel kills this process first.
    let _ = std::fs::write("/proc/self/oom_score_adj", "1000");
    let space = AddressSpace::new(&Orin::open()?, L2::Volatile)?;
    let memory = space.orin().memory()?;
    let available = available().unwrap_or(memory.free).min(memory.free);
    let cap = available.saturating_sub(SPARE.max(memory.total / 8)) / FIRST * FIRST;
    let mut answer = Answer::new();
    answer
        .fact(facts::MEMORY.name, memory.total)
        .fact("free_bytes", memory.free)
        .fact("asked_at_most_bytes", cap);
    if cap < FIRST {
        return Err(Error::Implausible(format!(
            "only {} MiB are free: nothing is allocated",
            available >> 20
        )));
    }
    let mut tried = Vec::new();
    let mut given = |bytes: u64| -> Result<bool, Error> {
        let result = timed(|| Scratch::new(&space, bytes).map(drop));
        match result {
            Ok(((), ns)) => {
                tried.push((bytes, ns));
                Ok(true)
            }
            Err(tegra::Error::OutOfMemory { .. }) => Ok(false),
            Err(error) => Err(error.into()),
        }
    };
    // The common case first: no limit below the largest permitted size.
    let refused = !given(cap)?;
    let (mut low, mut high) = if refused { (0, cap) } else { (cap, cap) };
    while high - low > FIRST.max(low / 32) {
        let middle = (low + high) / 2 / FIRST * FIRST;
        let middle = middle.max(low + FIRST).min(high);
        if middle == high {
            break;
        }
        if given(middle)? { low = middle } else { high = middle }
    }
    answer.fact(facts::LARGEST.name, low).fact(facts::LARGEST_IS_LIMIT, refused);
    let series = |what: fn(&(u64, f64)) -> f64| tried.iter().map(what).collect::<Vec<_>>();
    answer.samples.insert("given_bytes".into(), series(|(bytes, _)| *bytes as f64));
    answer.samples.insert("given_cpu_ns".into(), series(|(_, ns)| *ns));
    let gib = low as f64 / (1u64 << 30) as f64;
    let text = if refused {
        format!("{gib:.1} GiB in one piece, more is refused although it is free")
    } else {
        format!("{gib:.1} GiB in one piece, the largest size tried")
    };
    Ok(answer.judged(!refused, text))
}

/// Memory available without swapping, according to the kernel.
pub(super) fn available() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1024)
}
