//! Facts about the machine before and after the tests; changes nothing.

use std::fs;

use super::report::Machine;

/// Measurement that starts before the first test.
pub(super) struct MachineWatch {
    mhz: Option<f64>,
    own: Option<f64>,
    all: Option<Ticks>,
}

/// Processor time since boot, in clock ticks.
#[derive(Clone, Copy)]
struct Ticks {
    busy: f64,
    total: f64,
}

impl MachineWatch {
    pub(super) fn start() -> Self {
        Self { mhz: mhz(), own: own_ticks(), all: all_ticks() }
    }

    pub(super) fn finish(&self) -> Machine {
        Machine {
            mhz: self.mhz.zip(mhz()).map(|(before, after)| [before, after]),
            taken_by_others: self.taken_by_others(),
            ..Machine::this()
        }
    }

    fn taken_by_others(&self) -> Option<f64> {
        let (before, after) = (self.all?, all_ticks()?);
        let own = own_ticks()? - self.own?;
        let total = after.total - before.total;
        let others = after.busy - before.busy - own;
        (total > 0.0).then(|| (others / total).clamp(0.0, 1.0))
    }
}

impl Machine {
    /// Describes this machine, except for facts that need time to observe.
    pub fn this() -> Self {
        let text = |path: &str| Some(fs::read_to_string(path).ok()?.trim().to_owned());
        Self {
            processor: processor(),
            kernel: text("/proc/sys/kernel/osrelease"),
            cores: std::thread::available_parallelism().map_or(0, std::num::NonZero::get),
            affinity: affinity(),
            governor: text("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
            mhz: None,
            taken_by_others: None,
        }
    }
}

/// CPUs that this thread may run on.
fn affinity() -> Option<String> {
    let status = fs::read_to_string("/proc/thread-self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    Some(line.trim().to_owned())
}

fn processor() -> Option<String> {
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

/// Clock of the first core in MHz, from cpufreq or `/proc/cpuinfo`.
fn mhz() -> Option<f64> {
    if let Ok(khz) = fs::read_to_string("/sys/devices/system/cpu/cpu0/cpufreq/scaling_cur_freq") {
        return Some(khz.trim().parse::<f64>().ok()? / 1e3);
    }
    let text = fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = text.lines().find(|line| line.starts_with("cpu MHz"))?;
    line.split_once(':')?.1.trim().parse().ok()
}

/// User and system time of this process (fields 14 and 15 of `/proc/self/stat`).
fn own_ticks() -> Option<f64> {
    let stat = fs::read_to_string("/proc/self/stat").ok()?;
    // The second field is the name in parentheses and may contain anything.
    let fields: Vec<&str> = stat.rsplit_once(')')?.1.split_whitespace().collect();
    Some(fields.get(11)?.parse::<f64>().ok()? + fields.get(12)?.parse::<f64>().ok()?)
}

/// The first line of `/proc/stat`: user, nice, system, idle, iowait, irq, softirq, steal. Guest
/// time, which follows, is part of user time.
fn all_ticks() -> Option<Ticks> {
    let stat = fs::read_to_string("/proc/stat").ok()?;
    let fields: Vec<f64> = stat
        .lines()
        .next()?
        .strip_prefix("cpu ")?
        .split_whitespace()
        .take(8)
        .map_while(|field| field.parse().ok())
        .collect();
    let total = fields.iter().sum();
    let idle = fields.get(3)? + fields.get(4)?;
    Some(Ticks { busy: total - idle, total })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn own_cpu_time_is_not_attributed_to_others() {
        let watch = MachineWatch::start();
        let before = own_ticks().unwrap();
        let mut x = 1u64;
        while own_ticks().unwrap() - before < 5.0 {
            x = std::hint::black_box(x.wrapping_mul(3));
        }
        let machine = watch.finish();
        assert!(machine.cores > 0 && machine.affinity.is_some_and(|cores| !cores.is_empty()));
        let (all, others) = (watch.all.unwrap(), machine.taken_by_others.unwrap());
        let total = all_ticks().unwrap().total - all.total;
        // This test alone used at least 5 ticks (one of slack for rounding), which are not others'.
        assert!(others * total <= total - 4.0, "{others} of {total}");
    }
}
