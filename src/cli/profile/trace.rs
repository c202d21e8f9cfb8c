//! One execution as a trace file in the Trace Event Format, which ui.perfetto.dev and
//! `chrome://tracing` open: a track of the plan's steps above one of what they became.
//!
//! Only durations were measured. Parts are laid end to end in the order in which they ran, so that a
//! slice's begin is the sum of the durations before it.

use serde::Serialize;
use serde_json::{Value, json};

use device::Profile;
use plan::Plan;

/// The only process, and its tracks.
const PROCESS: u32 = 1;
const STEPS: u32 = 1;
const PARTS: u32 = 2;

/// A trace file.
#[derive(Debug, Serialize)]
pub(super) struct Trace {
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
    #[serde(rename = "otherData")]
    about: Value,
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

/// One event. Times are in microseconds.
#[derive(Debug, Serialize)]
struct Event {
    name: String,
    #[serde(rename = "cat", skip_serializing_if = "Option::is_none")]
    category: Option<&'static str>,
    /// `X`: a slice; `M`: the name of a process or track.
    #[serde(rename = "ph")]
    phase: &'static str,
    #[serde(rename = "ts", skip_serializing_if = "Option::is_none")]
    begin: Option<f64>,
    #[serde(rename = "dur", skip_serializing_if = "Option::is_none")]
    duration: Option<f64>,
    pid: u32,
    tid: u32,
    args: Value,
}

impl Trace {
    /// The execution's trace; `what` was executed, and on which device.
    pub(super) fn new(what: &str, plan: &Plan, profile: &Profile) -> Self {
        let mut events = vec![
            Event::name("process_name", STEPS, what),
            Event::name("thread_name", STEPS, "steps"),
            Event::name("thread_name", PARTS, "kernels and stages"),
        ];
        let mut at = 0;
        for parts in profile.timings.chunk_by(|a, b| a.step == b.step) {
            let step = &plan.steps[parts[0].step];
            let whole = parts.iter().map(|part| part.nanoseconds).sum();
            let args = json!({
                "step": parts[0].step,
                "op": step.op.name(),
                "weight bytes": step.cost.weight_bytes,
                "state bytes": step.cost.state_bytes,
                "operations": step.cost.flops,
            });
            events.push(Event::slice("step", &parts[0].label, STEPS, at, whole, args));
            for part in parts {
                let (args, time) = (json!({ "label": part.label }), part.nanoseconds);
                events.push(Event::slice("kernel", &part.kernel, PARTS, at, time, args));
                at += time;
            }
        }
        let about = json!({
            "serialised": profile.serialised,
            "microseconds as always": microseconds(profile.whole.as_nanos() as u64),
        });
        Self { unit: "ns", about, events }
    }
}

impl Event {
    fn name(of: &str, tid: u32, name: &str) -> Self {
        Self {
            name: of.to_owned(),
            category: None,
            phase: "M",
            begin: None,
            duration: None,
            pid: PROCESS,
            tid,
            args: json!({ "name": name }),
        }
    }

    fn slice(
        category: &'static str,
        name: &str,
        tid: u32,
        begin: u64,
        nanoseconds: u64,
        args: Value,
    ) -> Self {
        Self {
            name: name.to_owned(),
            category: Some(category),
            phase: "X",
            begin: Some(microseconds(begin)),
            duration: Some(microseconds(nanoseconds)),
            pid: PROCESS,
            tid,
            args,
        }
    }
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}
