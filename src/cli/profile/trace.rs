//! Writes one execution in the Trace Event Format for ui.perfetto.dev and `chrome://tracing`: a
//! track of plan steps above a track of their kernels. Only durations are measured, so events are
//! placed end to end in execution order.

use serde::Serialize;
use serde_json::{Value, json};

use device::Profile;
use plan::Plan;

/// The only process, and its tracks.
const PROCESS: u32 = 1;
const STEPS: u32 = 1;
const PARTS: u32 = 2;

#[derive(Debug, Serialize)]
pub(super) struct Trace {
    #[serde(rename = "displayTimeUnit")]
    unit: &'static str,
    #[serde(rename = "otherData")]
    about: Value,
    #[serde(rename = "traceEvents")]
    events: Vec<Event>,
}

/// One event; times in microseconds.
#[derive(Debug, Default, Serialize)]
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
    /// Creates the trace of an execution; `what` names the model and device.
    pub(super) fn new(what: &str, plan: &Plan, profile: &Profile) -> Self {
        let mut events = vec![
            Event::name("process_name", STEPS, what),
            Event::name("thread_name", STEPS, "steps"),
            Event::name("thread_name", PARTS, "kernels"),
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
            "microseconds without timing": microseconds(profile.whole.as_nanos() as u64),
        });
        Self { unit: "ns", about, events }
    }
}

impl Event {
    fn name(of: &str, tid: u32, name: &str) -> Self {
        Self {
            name: of.to_owned(),
            phase: "M",
            pid: PROCESS,
            tid,
            args: json!({ "name": name }),
            ..Self::default()
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

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use device::Timing;
    use plan::graph::Graph;
    use plan::{Binary, Bucket, Class, DType, Outputs};

    use super::*;

    /// Two steps, the second with two launches.
    fn trace() -> Value {
        let mut g = Graph::new();
        let x = g.source(Class::Mailbox, "x", DType::F32, &[1, 8]).unwrap();
        for label in ["first", "second"] {
            g.at(label);
            let y = g.binary(Binary::Add, x, x).unwrap();
            g.output(label, y);
        }
        let bucket = Bucket { batch: 1, chunk: 1, context: 1, outputs: Outputs::None };
        let plan = g.lower(bucket).unwrap();
        let timing = |step: usize, kernel: &str, nanoseconds| Timing {
            step,
            label: plan.steps[step].label.clone(),
            kernel: kernel.into(),
            nanoseconds,
        };
        let timings = vec![timing(0, "add", 1500), timing(1, "add", 250), timing(1, "merge", 50)];
        let profile = Profile { timings, serialised: true, whole: Duration::from_nanos(1700) };
        let text = serde_json::to_string(&Trace::new("model on device", &plan, &profile)).unwrap();
        serde_json::from_str(&text).unwrap()
    }

    #[test]
    fn slices_of_both_tracks_are_contiguous_and_add_up() {
        let trace = trace();
        let events = trace["traceEvents"].as_array().unwrap();
        let track = |tid: u32| -> Vec<(&str, f64, f64)> {
            let slices = events.iter().filter(|e| e["ph"] == "X" && e["tid"] == tid);
            let number = |event: &Value, field: &str| event[field].as_f64().unwrap();
            slices
                .map(|e| (e["name"].as_str().unwrap(), number(e, "ts"), number(e, "dur")))
                .collect()
        };
        assert_eq!(track(STEPS), [("first", 0.0, 1.5), ("second", 1.5, 0.3)]);
        assert_eq!(track(PARTS), [("add", 0.0, 1.5), ("add", 1.5, 0.25), ("merge", 1.75, 0.05)]);
        assert_eq!(trace["otherData"]["microseconds without timing"], 1.7);
        assert_eq!(trace["otherData"]["serialised"], true);
    }

    /// Requirements of the Trace Event Format: phase, process and track in every event, begin and
    /// duration of slices, names of tracks in `args`.
    #[test]
    fn every_event_has_the_fields_of_its_phase() {
        let trace = trace();
        assert_eq!(trace["displayTimeUnit"], "ns");
        for event in trace["traceEvents"].as_array().unwrap() {
            assert!(event["pid"].is_u64() && event["tid"].is_u64() && event["name"].is_string());
            match event["ph"].as_str().unwrap() {
                "X" => assert!(event["ts"].is_f64() && event["dur"].is_f64(), "{event}"),
                "M" => assert!(event["args"]["name"].is_string() && event["ts"].is_null()),
                other => panic!("{other}"),
            }
        }
    }
}
