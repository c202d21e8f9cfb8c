//! Monitoring during a measurement, on a thread of its own.
//!
//! The thread takes a reading every [`Watch::PERIOD`], avoids the processor of the measured thread,
//! and stores sums and extremes instead of samples. Energy is stored as a curve over time, so that
//! the joules of any interval can be computed later.

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

/// Minimum, mean and maximum of the readings.
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

    /// Distance of the minimum below the maximum, as a fraction of the maximum.
    #[must_use]
    pub fn movement(&self) -> f64 {
        if self.max > 0.0 { (self.max - self.min) / self.max } else { 0.0 }
    }
}

/// Readings between [`Watch::start`] and [`Watch::finish`].
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Recording {
    /// GPU clock while the measured work ran, in hertz.
    pub gpu_hz: Option<Range>,
    /// Memory clock in hertz (its cap, if the clock itself is not readable).
    pub memory_hz: Option<Range>,
    /// Clock of the fastest cluster of cores, in hertz.
    pub cpu_hz: Option<Range>,
    /// Allowed maximum of GPU and CPU clock in hertz, over the whole time.
    pub allowed_hz: [Option<Range>; 2],
    /// Power in watts, over the whole time.
    pub watts: Option<Range>,
    /// Temperature of the hottest zone, over the whole time.
    pub celsius: Option<Range>,
    /// Alarms that were active at any time.
    pub alarms: BTreeSet<String>,
    /// True if power rails are integrated, false for the processor's own counter; the first sample
    /// decides.
    by_rails: Option<bool>,
    /// Joules since the start, in time order.
    energy: Vec<(Instant, f64)>,
}

impl Recording {
    /// Joules between two moments. `None` without a meter, or outside the recording.
    #[must_use]
    pub fn joules(&self, from: Instant, to: Instant) -> Option<f64> {
        Some(self.at(to)? - self.at(from)?).filter(|joules| joules.is_finite())
    }

    /// Energy at a moment, interpolated linearly between samples.
    fn at(&self, moment: Instant) -> Option<f64> {
        let after = self.energy.partition_point(|(at, _)| *at < moment);
        let (t1, e1) = *self.energy.get(after)?;
        let (t0, e0) = *self.energy.get(after.checked_sub(1)?)?;
        let span = (t1 - t0).as_secs_f64();
        let part = if span > 0.0 { (moment - t0).as_secs_f64() / span } else { 1.0 };
        Some(e0 + (e1 - e0) * part)
    }

    /// Adds a sample. Integrates rail power linearly between samples; uses the processor's counter
    /// only if there is no rail.
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
                // The meter was missing, so the energy of this interval, and every sum over it, is
                // unknown.
                _ => Some(f64::NAN),
            }
        } else {
            sample.joules
        };
        *last = watts.map(|watts| (at, watts));
        self.energy.extend(energy.map(|joules| (at, joules)));
    }
}

/// A monitoring thread; stops when dropped.
#[derive(Debug)]
pub struct Watch {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<Recording>>,
    busy: Arc<AtomicBool>,
}

impl Watch {
    /// Interval between readings. The monitors average their rails over a similar time.
    pub const PERIOD: Duration = Duration::from_millis(200);

    /// Starts monitoring; returns after the first reading. The measured thread must call this.
    ///
    /// # Errors
    /// If no thread can be created.
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
                // A reading during which work started or stopped counts as neither busy nor idle.
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

    /// Marks whether the measured work is running; clocks are recorded only while it is.
    pub fn busy(&self, busy: bool) {
        self.busy.store(busy, Ordering::Relaxed);
    }

    /// Takes a last reading and returns the recording.
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

/// Moves this thread off a processor, if it may run on others.
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
        // If that fails, the scheduler decides.
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
    fn joules_are_the_integral_of_watts() {
        let start = Instant::now();
        let at = |ms| start + Duration::from_millis(ms);
        let mut recording = Recording::default();
        let mut last = None;
        // 10 W, then a ramp to 30 W within a second, then 30 W.
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
    fn a_gap_in_the_readings_leaves_the_energy_unknown() {
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
