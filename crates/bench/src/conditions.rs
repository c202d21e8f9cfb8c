//! State of the machine around and during the tests. If it changed, the run is marked invalid with
//! the reasons.

use std::sync::Arc;

use serde::{Deserialize, Serialize};

use telemetry::{Probe, Range, Recording, State, Users, Watch};

/// Fraction by which a clock may vary: less than one step of any clock table.
const STEADY: f64 = 0.02;
/// Fraction of GPU utilisation before the tests that still counts as idle.
const IDLE: f64 = 0.05;

/// State of the machine before, during and after the tests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Conditions {
    pub before: State,
    pub after: State,
    /// Other visible processes that had the GPU open before the tests.
    pub gpu_users_before: Users,
    pub gpu_users_after: Users,
    /// GPU clock during the tests, in hertz.
    pub gpu_hz: Option<Range>,
    /// Memory clock during the tests, or its cap, in hertz.
    pub memory_hz: Option<Range>,
    /// Clock of the fastest cores during the tests, in hertz.
    pub cpu_hz: Option<Range>,
    /// Power, in watts.
    pub watts: Option<Range>,
    /// Highest temperature, in degrees Celsius.
    pub celsius: Option<Range>,
    /// Alarms that were active at any time.
    pub alarms: Vec<String>,
}

/// Observes the machine from before the tests until after.
pub struct Observer {
    probe: Arc<Probe>,
    before: State,
    users: Users,
    /// `None` if the system refused a thread; then nothing between start and end is observed.
    watch: Option<Watch>,
}

impl Observer {
    pub fn start(probe: &Arc<Probe>) -> Self {
        Self {
            before: probe.state(),
            users: probe.gpu_users(&[std::process::id()]),
            watch: Watch::start(Arc::clone(probe)).ok(),
            probe: Arc::clone(probe),
        }
    }

    /// Records whether a test is being timed.
    pub fn busy(&self, busy: bool) {
        if let Some(watch) = &self.watch {
            watch.busy(busy);
        }
    }

    /// Takes the final sample. `device` is the short name of the measured device.
    pub fn finish(self, device: &str) -> (Conditions, Recording, Vec<String>) {
        let recording = self.watch.map(Watch::finish).unwrap_or_default();
        let conditions = Conditions {
            before: self.before,
            after: self.probe.state(),
            gpu_users_before: self.users,
            gpu_users_after: self.probe.gpu_users(&[std::process::id()]),
            gpu_hz: recording.gpu_hz,
            memory_hz: recording.memory_hz,
            cpu_hz: recording.cpu_hz,
            watts: recording.watts,
            celsius: recording.celsius,
            alarms: recording.alarms.iter().cloned().collect(),
        };
        let invalid = conditions.invalid(recording.allowed_hz, device);
        (conditions, recording, invalid)
    }
}

impl Conditions {
    /// Merges the observations of a later run.
    pub(super) fn add(&mut self, later: Self) {
        let both = |all: &mut Option<Range>, later: Option<Range>| {
            *all = match (*all, later) {
                (Some(a), Some(b)) => {
                    let samples = a.samples + b.samples;
                    let sum = a.mean * a.samples as f64 + b.mean * b.samples as f64;
                    let (min, max) = (a.min.min(b.min), a.max.max(b.max));
                    Some(Range { min, max, mean: sum / samples.max(1) as f64, samples })
                }
                (one, other) => one.or(other),
            };
        };
        both(&mut self.gpu_hz, later.gpu_hz);
        both(&mut self.memory_hz, later.memory_hz);
        both(&mut self.cpu_hz, later.cpu_hz);
        both(&mut self.watts, later.watts);
        both(&mut self.celsius, later.celsius);
        self.after = later.after;
        self.gpu_users_after = later.gpu_users_after;
        let new = later.alarms.into_iter().filter(|alarm| !self.alarms.contains(alarm));
        let new: Vec<String> = new.collect();
        self.alarms.extend(new);
    }

    /// Returns reasons why the run is invalid, given the allowed ranges of GPU and CPU clocks;
    /// empty if nothing changed.
    fn invalid(&self, allowed: [Option<Range>; 2], device: &str) -> Vec<String> {
        let on_gpu = ["nv", "cuda"].contains(&device);
        let mut reasons = Vec::new();
        let mode = |state: &State| state.power_mode.as_ref().map(ToString::to_string);
        if let (Some(before), Some(after)) = (mode(&self.before), mode(&self.after))
            && before != after
        {
            reasons.push(format!("the power mode changed from {before} to {after}"));
        }
        let mut moved = |what: &str, range: Option<Range>| {
            if let Some(range) = range.filter(|range| range.movement() > STEADY) {
                let (low, high) = (range.min / 1e6, range.max / 1e6);
                reasons.push(format!("{what} moved between {low:.0} and {high:.0} MHz"));
            }
        };
        let [gpu_limit, cpu_limit] = allowed;
        moved("the limit of the processor's clock", cpu_limit);
        // A PC's clocks follow the load within milliseconds, which does not invalidate a run.
        if self.before.orin {
            moved("the memory clock", self.memory_hz);
            if on_gpu {
                moved("the limit of the GPU clock", gpu_limit);
                moved("the GPU clock", self.gpu_hz);
            } else {
                moved("the processor's clock", self.cpu_hz);
            }
        }
        reasons.extend(self.alarms.iter().map(|alarm| format!("throttled: {alarm}")));
        for alarm in &self.after.now.alarms {
            let earlier = self.before.now.alarms.iter().find(|before| before.name == alarm.name);
            let counts = earlier.and_then(|before| before.count).zip(alarm.count);
            if let Some((before, after)) = counts.filter(|(before, after)| after > before) {
                reasons.push(format!("throttled: {} {} times", alarm.name, after - before));
            }
        }
        if on_gpu {
            reasons.extend(self.gpu_sharing());
        }
        reasons
    }

    /// Other GPU users: the GPU was busy before the tests, or a process opened or closed it
    /// meanwhile. An idle desktop that has it open does not count.
    fn gpu_sharing(&self) -> Option<String> {
        let names = |users: &Users| {
            let names: Vec<String> = users
                .processes
                .iter()
                .map(|user| format!("{} ({})", user.name, user.pid))
                .collect();
            if names.is_empty() { "no visible process".to_owned() } else { names.join(", ") }
        };
        let (before, after) = (&self.gpu_users_before, &self.gpu_users_after);
        if let Some(load) = self.before.now.gpu_load.filter(|load| *load > IDLE) {
            let who = names(before);
            return Some(format!("others used the GPU: {:.0} % busy, by {who}", load * 100.0));
        }
        (before.processes != after.processes).then(|| {
            format!("users of the GPU changed: {} before, {} after", names(before), names(after))
        })
    }

    /// Summarises the observations in one line; `None` if the machine reported nothing.
    pub fn summary(&self) -> Option<String> {
        let mhz = |name: &str, range: Option<Range>| {
            let Range { min, max, .. } = range?;
            let (min, max) = (min / 1e6, max / 1e6);
            Some(if max - min < 1.0 {
                format!("{name} {max:.0} MHz")
            } else {
                format!("{name} {min:.0} to {max:.0} MHz")
            })
        };
        let sms = self.before.gpu.and_then(|gpu| gpu.sms());
        let orin = self.before.orin;
        let parts = [
            self.before.power_mode.as_ref().map(ToString::to_string),
            sms.map(|sms| format!("{sms} SMs")),
            mhz("GPU", self.gpu_hz),
            mhz("memory", self.memory_hz),
            mhz("CPU", self.cpu_hz).filter(|_| orin),
            self.watts.map(|watts| format!("{:.1} W ({:.1} at most)", watts.mean, watts.max)),
            self.celsius.filter(|_| orin).map(|c| format!("{:.0} °C at most", c.max)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use telemetry::{Alarm, PowerMode, User};

    fn steady(hz: f64) -> Option<Range> {
        Some(Range { min: hz, mean: hz, max: hz, samples: 9 })
    }

    fn orin() -> Conditions {
        let mode =
            PowerMode { id: 0, name: Some("MAXN".into()), unlimited: Some(0), default: None };
        let mut state = State { orin: true, power_mode: Some(mode), ..State::default() };
        state.now.alarms =
            vec![Alarm { name: "under-voltage (OC1)".into(), active: false, count: Some(4) }];
        Conditions {
            before: state.clone(),
            after: state,
            gpu_hz: steady(1.3e9),
            memory_hz: steady(3.199e9),
            cpu_hz: Some(Range { min: 0.7e9, mean: 1e9, max: 2.2e9, samples: 9 }),
            ..Conditions::default()
        }
    }

    fn reasons(change: impl FnOnce(&mut Conditions)) -> Vec<String> {
        let mut conditions = orin();
        change(&mut conditions);
        conditions.invalid([steady(1.3e9), steady(2.2e9)], "nv")
    }

    #[test]
    fn an_unchanged_machine_is_valid() {
        assert_eq!(reasons(|_| ()), [""; 0]);
    }

    #[test]
    fn changes_are_named() {
        let moved = Some(Range { min: 0.612e9, mean: 1e9, max: 1.3e9, samples: 9 });
        let gpu = "the GPU clock moved between 612 and 1300 MHz";
        assert_eq!(reasons(|c| c.gpu_hz = moved), [gpu]);
        let mode = PowerMode { id: 2, name: None, unlimited: None, default: None };
        assert_eq!(
            reasons(|c| c.after.power_mode = Some(mode)),
            ["the power mode changed from MAXN (mode 0) to mode 2"]
        );
        assert_eq!(
            reasons(|c| c.after.now.alarms[0].count = Some(6)),
            ["throttled: under-voltage (OC1) 2 times"]
        );
        let alarms = vec!["gpu-throttle-alert".to_owned()];
        assert_eq!(reasons(|c| c.alarms = alarms), ["throttled: gpu-throttle-alert"]);
        let limit = orin().invalid([moved, steady(2.2e9)], "nv");
        assert_eq!(limit, ["the limit of the GPU clock moved between 612 and 1300 MHz"]);
        // A CPU run depends on the CPU's clock, not on the GPU's.
        let mut conditions = orin();
        conditions.gpu_hz = moved;
        let found = conditions.invalid([moved, steady(2.2e9)], "cpu");
        assert_eq!(found, ["the processor's clock moved between 700 and 2200 MHz"]);
    }

    #[test]
    fn other_gpu_users_count_if_they_use_it() {
        let desktop = User { pid: 700, name: "gnome-shell".into() };
        let other = User { pid: 800, name: "ollama".into() };
        let only = |users: &[&User]| Users {
            processes: users.iter().map(|user| (*user).clone()).collect(),
            hidden: 0,
        };
        let idle = reasons(|c| {
            c.gpu_users_before = only(&[&desktop]);
            c.gpu_users_after = only(&[&desktop]);
        });
        assert_eq!(idle, [""; 0]);
        let busy = reasons(|c| {
            c.before.now.gpu_load = Some(0.42);
            c.gpu_users_before = only(&[&desktop]);
        });
        assert_eq!(busy, ["others used the GPU: 42 % busy, by gnome-shell (700)"]);
        let came = reasons(|c| c.gpu_users_after = only(&[&other]));
        assert_eq!(
            came,
            ["users of the GPU changed: no visible process before, ollama (800) after"]
        );
    }

    #[test]
    fn pc_clocks_may_follow_the_load() {
        let mut conditions = orin();
        conditions.before.orin = false;
        assert_eq!(conditions.invalid([None, steady(4.7e9)], "cpu"), [""; 0]);
        assert_eq!(Conditions::default().summary(), None);
    }
}
