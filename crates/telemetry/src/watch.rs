//! Watches a machine while something is measured, from a thread of its own.
//!
//! The thread reads [`Watch::PERIOD`] apart, keeps off the processor that the measured thread runs
//! on, and keeps sums and extremes rather than samples. Energy is a curve over time, so that the
//! joules of any interval can be told afterwards.

use std::collections::BTreeSet;
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::probe::Probe;
use super::state::Sample;

/// Least, mean and largest of what was seen.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Range {
    pub min: f64,
    pub mean: f64,
    pub max: f64,
    pub samples: u32,
}

impl Range {
    fn add(range: &mut Option<Self>, value: Option<f64>) {
        let Some(value) = value else { return };
        let range = range.get_or_insert(Self { min: value, mean: value, max: value, samples: 0 });
        range.samples += 1;
        range.min = range.min.min(value);
        range.max = range.max.max(value);
        range.mean += (value - range.mean) / f64::from(range.samples);
    }

    /// Part of the largest by which the least lies below it.
    #[must_use]
    pub fn movement(&self) -> f64 {
        if self.max > 0.0 { (self.max - self.min) / self.max } else { 0.0 }
    }
}

/// What was seen between [`Watch::start`] and [`Watch::finish`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// GPU clock while the measured work ran, in hertz.
    pub gpu_hz: Option<Range>,
    /// Memory clock (its cap, where the clock itself is not told), in hertz.
    pub memory_hz: Option<Range>,
    /// Clock of the fastest cluster of cores, in hertz.
    pub cpu_hz: Option<Range>,
    /// Most that GPU and cores were allowed, in hertz, all the time.
    pub allowed_hz: [Option<Range>; 2],
    /// Power, in watts, all the time.
    pub watts: Option<Range>,
    /// The hottest zone, all the time.
    pub celsius: Option<Range>,
    /// Alarms that were active at some time.
    pub alarms: BTreeSet<String>,
    /// Power is integrated, or the processor's own counter is taken: the first sample decides.
    by_rails: Option<bool>,
    /// Joules since the start, in the order of time.
    energy: Vec<(Instant, f64)>,
}

impl Recording {
    /// Joules between two moments. `None` without a meter, and outside of what was watched.
    #[must_use]
    pub fn joules(&self, from: Instant, to: Instant) -> Option<f64> {
        Some(self.at(to)? - self.at(from)?).filter(|joules| joules.is_finite())
    }

    /// The curve at a moment, on a straight line between the samples around it.
    fn at(&self, moment: Instant) -> Option<f64> {
        let after = self.energy.partition_point(|(at, _)| *at < moment);
        let (t1, e1) = *self.energy.get(after)?;
        let (t0, e0) = *self.energy.get(after.checked_sub(1)?)?;
        let span = (t1 - t0).as_secs_f64();
        let part = if span > 0.0 { (moment - t0).as_secs_f64() / span } else { 1.0 };
        Some(e0 + (e1 - e0) * part)
    }

    /// Takes in a sample. Power between two samples is a straight line; a processor's own counter
    /// is taken as it is, and counts only where no rail is there.
    fn add(&mut self, at: Instant, sample: &Sample, busy: bool, last: &mut Option<(Instant, f64)>) {
        let hz = |hz: Option<u64>| hz.map(|hz| hz as f64);
        let fastest = |pick: fn(&super::Clock) -> Option<u64>| {
            sample.clusters.iter().filter_map(|cluster| pick(&cluster.clock)).max()
        };
        if busy {
            let gpu = sample.gpu_clock.as_ref().and_then(|clock| clock.now_hz);
            Range::add(&mut self.gpu_hz, hz(gpu));
            let memory = sample.memory_clock.as_ref();
            Range::add(&mut self.memory_hz, hz(memory.and_then(|c| c.now_hz.or(c.max_hz))));
            Range::add(&mut self.cpu_hz, hz(fastest(|clock| clock.now_hz)));
        }
        let gpu = sample.gpu_clock.as_ref().and_then(|clock| clock.max_hz);
        Range::add(&mut self.allowed_hz[0], hz(gpu));
        Range::add(&mut self.allowed_hz[1], hz(fastest(|clock| clock.max_hz)));
        Range::add(&mut self.celsius, sample.hottest().map(|zone| zone.celsius));
        self.alarms.extend(sample.alarms.iter().filter(|a| a.active).map(|a| a.name.clone()));
        let watts = sample.watts();
        Range::add(&mut self.watts, watts);
        let energy = if *self.by_rails.get_or_insert(watts.is_some()) {
            match (watts, *last, self.energy.last()) {
                (Some(_), None, None) => Some(0.0),
                (Some(now), Some((before, power)), Some((_, joules))) => {
                    Some(joules + (now + power) / 2.0 * (at - before).as_secs_f64())
                }
                // The meter was away: what was spent meanwhile is unknown, and so is any sum over it.
                _ => Some(f64::NAN),
            }
        } else {
            sample.joules
        };
        *last = watts.map(|watts| (at, watts));
        self.energy.extend(energy.map(|joules| (at, joules)));
    }
}

/// A thread that watches. Dropping it ends it.
#[derive(Debug)]
pub struct Watch {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<Recording>>,
    busy: Arc<AtomicBool>,
}

impl Watch {
    /// Between two readings: five a second. Rails are averaged by their monitors over about as long.
    pub const PERIOD: Duration = Duration::from_millis(200);

    /// Begins to watch; returns after the first reading. Called by the thread that will be
    /// measured.
    ///
    /// # Errors
    /// When the system refuses a thread.
    pub fn start(probe: Arc<Probe>) -> io::Result<Self> {
        let (stop, stopped) = mpsc::channel::<()>();
        let (ready, begun) = mpsc::channel::<()>();
        let busy = Arc::new(AtomicBool::new(false));
        let working = Arc::clone(&busy);
        let measured = sched_getcpu().ok();
        let thread = std::thread::Builder::new().name("telemetry".into()).spawn(move || {
            keep_off(measured);
            let mut recording = Recording::default();
            let mut last = None;
            let mut read = |recording: &mut Recording| {
                // Work that began or ended meanwhile makes the reading neither.
                let before = working.load(Ordering::Relaxed);
                let sample = probe.sample();
                let busy = before && working.load(Ordering::Relaxed);
                recording.add(Instant::now(), &sample, busy, &mut last);
            };
            read(&mut recording);
            let _ = ready.send(());
            while stopped.recv_timeout(Self::PERIOD) == Err(mpsc::RecvTimeoutError::Timeout) {
                read(&mut recording);
            }
            read(&mut recording);
            recording
        })?;
        let _ = begun.recv();
        Ok(Self { stop: Some(stop), thread: Some(thread), busy })
    }

    /// Tells whether the measured work is running: only then its clocks count.
    pub fn busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// Reads once more and says what was seen.
    #[must_use]
    pub fn finish(mut self) -> Recording {
        self.end().unwrap_or_default()
    }

    fn end(&mut self) -> Option<Recording> {
        drop(self.stop.take());
        self.thread.take()?.join().ok()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let _ = self.end();
    }
}

/// Leaves a processor to others, where this thread may use another one.
fn keep_off(cpu: Option<usize>) {
    let this = Pid::from_raw(0);
    let (Some(cpu), Ok(allowed)) = (cpu, sched_getaffinity(this)) else { return };
    let mut rest = CpuSet::new();
    let mut any = false;
    for other in (0..CpuSet::count()).filter(|other| *other != cpu) {
        if allowed.is_set(other) == Ok(true) {
            any |= rest.set(other).is_ok();
        }
    }
    if any {
        // Where the system refuses, the scheduler decides.
        let _ = sched_setaffinity(this, &rest);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Rail;

    fn watts(watts: f64) -> Sample {
        let rail = Rail { name: "VDD_IN".into(), watts, all: true };
        Sample { rails: vec![rail], ..Sample::default() }
    }

    #[test]
    fn joules_are_the_area_under_the_watts() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut recording = Recording::default();
        let mut last = None;
        // 10 W, then up to 30 W within a second, then 30 W.
        for (ms, power) in [(0, 10.0), (1000, 10.0), (2000, 30.0), (4000, 30.0)] {
            recording.add(at(ms), &watts(power), true, &mut last);
        }
        let joules = |from, to| recording.joules(at(from), at(to)).unwrap();
        assert!((joules(1, 1000) - 9.99).abs() < 1e-9);
        assert!((joules(1, 4000) - (9.99 + 20.0 + 60.0)).abs() < 1e-9);
        assert!((joules(3000, 3500) - 15.0).abs() < 1e-9);
        assert_eq!(recording.joules(at(3000), at(4001)), None);
        let seen = recording.watts.unwrap();
        assert_eq!((seen.min, seen.mean, seen.max, seen.samples), (10.0, 20.0, 30.0, 4));
    }

    #[test]
    fn a_gap_of_the_meter_leaves_no_energy_behind() {
        let start = Instant::now();
        let mut recording = Recording::default();
        let mut last = None;
        for (second, sample) in [watts(10.0), Sample::default(), watts(10.0)].iter().enumerate() {
            let at = start + Duration::from_secs(second as u64);
            recording.add(at, sample, true, &mut last);
        }
        let from = start + Duration::from_millis(1);
        assert_eq!(recording.joules(from, start + Duration::from_secs(2)), None);
    }
}
