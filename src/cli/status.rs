//! `orinctl status`.

use std::fmt::Write as _;
use std::time::Duration;

use super::args::{self, Connection};
use super::error::Error;
use super::{machine, text};
use crate::control::api::{Model, State, Status};
use device::tune::report::{Searching, Used};

pub(super) async fn run(connection: &Connection, args: &args::Status) -> Result<(), Error> {
    let client = connection.client()?;
    let status = client.status().await?;
    if args.json {
        text::print_json(&status)?;
    } else {
        let lines = lines(&status, &client.daemon().to_string());
        text::print(&text::columns(&lines, &[]))?;
    }
    Ok(())
}

fn lines(status: &Status, daemon: &str) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: String| rows.push(vec![name.to_owned(), value]);
    let uptime = Duration::from_secs_f64(status.uptime_s.clamp(0.0, 1e12));
    row(
        "daemon",
        format!(
            "orind {}, process {}, up {}, on {daemon}",
            status.version,
            status.pid,
            text::duration(uptime)
        ),
    );
    row("state", state(&status.state));
    if let Some(model) = &status.model {
        row("model", describe(model));
        let threads = match model.device.threads {
            0 => String::new(),
            threads => format!(", {threads} threads"),
        };
        row(
            "device",
            format!(
                "{}: {}{threads} ({})",
                model.device.name, model.device.description, model.device.reason
            ),
        );
        row("slots", format!("{} of {} tokens each", model.slots, model.context));
        let memory = &model.memory;
        row(
            "reserved",
            format!(
                "weights {}, KV cache {}, activations {}",
                text::bytes(memory.weights),
                text::bytes(memory.kv),
                text::bytes(memory.activations)
            ),
        );
        row("tuning", tuning(&model.tuning, status.searching.as_ref()));
    }
    let memory = &status.memory;
    let optional = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), text::bytes);
    row(
        "memory",
        format!(
            "{} resident, {} at most, {} available",
            optional(memory.resident),
            optional(memory.peak_resident),
            optional(memory.available)
        ),
    );
    let requests = &status.requests;
    row(
        "requests",
        format!(
            "{} running, {} of {} waiting, {} finished, {} failed",
            requests.active,
            requests.queued,
            requests.queue_limit,
            requests.finished,
            requests.failed
        ),
    );
    row(
        "tokens",
        format!(
            "{} of prompts, {} generated, in {} steps",
            requests.prompt_tokens, requests.completion_tokens, requests.steps
        ),
    );
    if let Some(gpu) = &requests.gpu {
        let each = |n: u64| n as f64 / gpu.submits.max(1) as f64;
        row(
            "gpu",
            format!(
                "{:.0} launches, 1 submit and {:.0} doorbell a step; {} steps, {} rebuilds",
                each(gpu.launches),
                each(gpu.doorbells),
                gpu.submits,
                gpu.rebuilds
            ),
        );
    }
    rows.extend(machine::rows(&status.machine));
    rows
}

/// Which choices of kernels are in use, and what becomes of the search for better ones.
fn tuning(used: &Used, searching: Option<&Searching>) -> String {
    let mut text = match (&used.file, &used.damaged) {
        (None, _) => "off".to_owned(),
        (Some(file), Some(why)) => format!("nothing of {} is used: {why}", file.display()),
        (Some(file), None) => {
            format!(
                "{} of {} entries in use, {} stale, {} ignored, from {}",
                used.used,
                used.current,
                used.stale,
                used.ignored,
                file.display()
            )
        }
    };
    if used.possible > 0 {
        let _ = write!(text, "; {} cases set by hand", used.possible);
    }
    if let Some(Searching { cases, done, faster, .. }) = searching {
        let _ = write!(text, "; in idle time {done} of {cases} cases searched, {faster} faster");
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

/// A loaded model in one line.
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
