//! `orinctl status`: formats the daemon's status.

use std::fmt::Write as _;
use std::time::Duration;

use super::args::{self, Connection};
use super::error::Error;
use super::{machine, text};
use api::{Device, DeviceHealth, LoadAt, Loading, Model, Requests, Resident, State, Status};
use device::Activity;
use device::tune::report::{Searching, Used};
use realtime::control_loops::{self, LoopState};

pub(super) async fn run(connection: &Connection, args: &args::Json) -> Result<(), Error> {
    let client = connection.client()?;
    let status = client.status().await?;
    let daemon = client.daemon.to_string();
    text::show(&status, args.json, |status| text::columns(&lines(status, &daemon), &[]))
}

fn lines(status: &Status, daemon: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: String| rows.push(vec![name.to_owned(), value]);
    let uptime = Duration::from_secs_f64(status.uptime_s.clamp(0.0, 1e12));
    let (Status { version, pid, .. }, up) = (status, text::duration(uptime));
    row("daemon", format!("orind {version}, process {pid}, up {up}, on {daemon}"));
    row("state", state(&status.state));
    if let Some(Loading { model, progress }) = &status.loading {
        row(
            "loading",
            format!("{model}, {:.0} %, in addition to the served one", progress * 100.0),
        );
    }
    if let Some(model) = &status.model {
        row("model", describe(model));
        let threads = match model.device.threads {
            0 => String::new(),
            threads => format!(", {threads} threads"),
        };
        let Device { name, description, reason, .. } = &model.device;
        row("device", format!("{name}: {description}{threads} ({reason})"));
        row("slots", format!("{} of {} tokens each", model.slots, model.context));
        if let Some(draft) = &model.draft {
            row("drafts", format!("draft model {draft}"));
        }
        if !model.adapters.is_empty() {
            let each = model.adapters.iter();
            let each = each.map(|adapter| format!("{} at {}", adapter.name, adapter.scale));
            row("adapters", each.collect::<Vec<_>>().join(", "));
        }
        let memory = &model.memory;
        let [weights, kv, other] = [memory.weights, memory.kv, memory.activations].map(text::bytes);
        let code = memory.code.map(|code| format!(", machine code {}", text::bytes(code)));
        let code = code.unwrap_or_default();
        row("reserved", format!("weights {weights}, KV cache {kv}, activations {other}{code}"));
        row("tuning", tuning(&model.tuning, status.searching.as_ref()));
    }
    for one in &status.residents {
        row("beside", resident(one));
    }
    let memory = &status.memory;
    let optional = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), text::bytes);
    let [now, peak, available] =
        [memory.resident, memory.peak_resident, memory.available].map(optional);
    row("memory", format!("{now} resident, {peak} at most, {available} available"));
    let requests = &status.requests;
    row("requests", format!("{} running, {}", requests.active, others(requests)));
    let Requests { prompt_tokens, cached_tokens, completion_tokens, steps, .. } = requests;
    row(
        "tokens",
        format!(
            "{prompt_tokens} prompt tokens ({cached_tokens} more from the cache), \
             {completion_tokens} generated, in {steps} steps"
        ),
    );
    if let Some(gpu) = &requests.gpu {
        let Activity { submits, rebuilds, .. } = *gpu;
        let each = |n: u64| n as f64 / submits.max(1) as f64;
        row(
            "gpu",
            format!(
                "{:.0} launches, 1 submit and {:.0} doorbell a step; {submits} steps, {rebuilds} rebuilds",
                each(gpu.launches),
                each(gpu.doorbells)
            ),
        );
    }
    for lane in &status.lanes {
        row("lane", self::lane(lane));
    }
    for device in &status.devices {
        row("health", health(device));
    }
    rows.extend(machine::rows(&status.machine));
    rows
}

/// Formats an additional model and its activity.
pub(super) fn resident(one: &Resident) -> String {
    let Resident { name, load, state, model, requests, unused_s } = one;
    let Some(model) = model else {
        return match (state, load) {
            (State::Empty { last_error: None }, Some(LoadAt::Request)) => {
                format!("{name}: loads on its first request")
            }
            (state, _) => format!("{name}: {}", self::state(state)),
        };
    };
    let memory = model.memory.weights + model.memory.kv + model.memory.activations;
    let unused = text::duration(Duration::from_secs_f64(unused_s.clamp(0.0, 1e12)));
    let doing = match requests.active + requests.queued {
        0 => format!("last request {unused} ago"),
        _ => format!("{} running, {} waiting", requests.active, requests.queued),
    };
    let (device, memory) = (&model.device.name, text::bytes(memory));
    format!("{} on {device}, {memory} reserved, {doing}", describe(model))
}

/// Formats a control loop's state and its deadline statistics.
pub(super) fn lane(lane: &control_loops::Status) -> String {
    let control_loops::Status { name, backend, rate_hz, deadline_s, met, missed, .. } = lane;
    let state = match (lane.state, lane.held_by) {
        (LoopState::Preparing, _) => "is being prepared".into(),
        (LoopState::Failed, _) => "cannot be used".into(),
        (LoopState::Ready, None) => "waits for a client".into(),
        (LoopState::Ready, Some(process)) => format!("serves process {process}"),
    };
    let us = |seconds: f64| format!("{:.0} us", seconds * 1e6);
    let mut parts = vec![format!("{name} on {backend} {state}")];
    parts.push(format!("{rate_hz} Hz, deadline {}", us(*deadline_s)));
    parts.extend(
        lane.behind_s.map(|most| format!("waits for others on the GPU for at most {}", us(most))),
    );
    if let (Some(p50), Some(p999), Some(worst)) = (lane.p50_s, lane.p999_s, lane.worst_s) {
        let [p50, p999, worst] = [p50, p999, worst].map(us);
        parts
            .push(format!("{met} in time, {missed} late (p50 {p50}, p99.9 {p999}, worst {worst})"));
    }
    let odd = [(lane.skipped, "skipped"), (lane.failed, "failed")];
    parts.extend(odd.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what}")));
    parts.extend(lane.notes.iter().cloned());
    parts.join("; ")
}

/// Formats a device's health, if it is more than working.
fn health(device: &DeviceHealth) -> String {
    let DeviceHealth { name, mode, notes, losses, disabled, .. } = device;
    let mut parts: Vec<String> = mode.iter().map(ToString::to_string).collect();
    parts.extend(notes.iter().cloned());
    if *losses > 0 {
        parts.push(format!("lost {losses} times"));
    }
    parts.extend(disabled.iter().map(|why| format!("not used: {why}")));
    format!("{name}: {}", parts.join("; "))
}

/// Formats the requests that are not being served.
pub(super) fn others(requests: &Requests) -> String {
    let Requests { queued, queue_limit, finished, failed, refused, .. } = requests;
    format!(
        "{queued} of {queue_limit} waiting, {finished} finished, {failed} failed, {refused} refused"
    )
}

/// Formats the tuned kernel choices in use, and the state of the idle-time search.
fn tuning(used: &Used, searching: Option<&Searching>) -> String {
    let mut text = match (&used.file, &used.damaged) {
        (None, _) => "off".to_owned(),
        (Some(file), Some(why)) => format!("{} is not used: {why}", file.display()),
        (Some(file), None) => {
            let Used { used, current, stale, ignored, .. } = used;
            let from = file.display();
            format!(
                "{used} of {current} entries in use, {stale} stale, {ignored} ignored, from {from}"
            )
        }
    };
    if used.possible > 0 {
        let _ = write!(text, "; {} cases set by hand", used.possible);
    }
    if let Some(Searching { cases, done, faster, .. }) = searching {
        let _ = write!(text, "; idle-time search: {done} of {cases} cases, {faster} faster");
    }
    text
}

fn state(state: &State) -> String {
    match state {
        State::Empty { last_error: None } => {
            "no model is loaded; `orinctl load MODEL` loads one".into()
        }
        State::Empty { last_error: Some(error) } => {
            format!("no model is loaded; the last load failed: {}", error.message)
        }
        State::Loading { model, progress } => {
            format!("loading {model}, {:.0} %", progress * 100.0)
        }
        State::Ready => "ready".into(),
        State::Exclusive { what } => format!("{what} has the device; requests wait"),
        State::Stopping => "stopping".into(),
    }
}

pub(super) fn describe(model: &Model) -> String {
    format!(
        "{}: {} {}, {} parameters, {}{}",
        model.id,
        model.architecture,
        model.file_type,
        text::count(model.parameters),
        text::bytes(model.bytes),
        if model.synthetic { ", synthetic: random weights" } else { "" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use device::first_light::Mode;

    #[test]
    fn device_health_fits_on_one_line() {
        let lost = DeviceHealth { name: "nv".into(), losses: 2, ..DeviceHealth::default() };
        let mode = DeviceHealth {
            mode: Some(Mode::default()),
            notes: vec!["faults: went down from full".into()],
            ..lost.clone()
        };
        let line = "nv: split, wake event, maps rw, range short, chains to 32; faults: went down from full; lost 2 times";
        assert_eq!(health(&mode), line);
        let disabled = DeviceHealth { disabled: Some("it is dark".into()), losses: 0, ..lost };
        assert_eq!(health(&disabled), "nv: not used: it is dark");
    }
}
