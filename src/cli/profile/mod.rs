//! `orinctl profile`: times the steps of a decoded token against the memory bandwidth, or of a
//! prompt chunk with their operations. Needs only the model file. `trace` writes one execution for
//! Perfetto.

mod trace;

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use serde::Serialize;

use super::args;
use super::device::chosen;
use super::error::Error;
use super::plan::{open, place};
use super::terminal::Terminal;
use super::text;
use bench::Meter;
use device::{Data, Device, Info, Instance, Prepared, Profile, Request};
use model::{KvLayout, Model, ports};
use plan::{Bucket, Class, Outputs, Plan, fuse};
use tegra_probe::runner;
use trace::Trace;

/// Tokens decoded before timing starts.
const WARM_UP: u32 = 4;

/// Maximum number of positions of a profile.
const CONTEXT: usize = 1 << 20;

pub(super) fn run(args: &args::Profile, terminal: &Terminal) -> Result<(), Error> {
    let tokens = args.prompt.unwrap_or(args.tokens.max(WARM_UP) + 1);
    let context = args.depth.saturating_add(tokens as usize);
    if context > CONTEXT {
        return Err(Error::Usage(format!("{context} positions, at most {CONTEXT} are supported")));
    }
    let device = chosen(&args.backend, args.threads, args.cpu_isa.as_deref())?;
    let model = open(&args.model, terminal)?;
    let layout = KvLayout { slots: 1, context, ring: None };
    let bucket = args.prompt.map_or(Bucket::decode(1, context), |n| {
        Bucket::prefill(n as usize, context, Outputs::Last)
    });
    let plan = fuse(&model.plan(layout, bucket)?, device.fusions());
    let (mut instance, prepared) = load(&model, layout, &plan, &*device, terminal)?;
    // A simulated GPU has its own clock, so the host's clock cannot measure bandwidth.
    let simulated = device.info().name == "nv" && runner::this_machine().simulated;
    let mut meter = match simulated {
        true => None,
        false => Some(Meter::of_device(&*device, &|| {})?),
    };
    let live = terminal.spinner();
    live.message("measuring the memory bandwidth");
    meter.iter_mut().for_each(Meter::measure);
    drop(live);
    let live = terminal.steps();
    let warm_up = args.prompt.map_or(WARM_UP, |_| 1);
    let mut profiles = Vec::with_capacity(args.tokens as usize);
    for (what, count) in [("warming up", warm_up), ("timing", args.tokens)] {
        profiles.clear();
        for i in 0..count {
            live.set(u64::from(i), u64::from(count), what);
            // A chunk always starts at the same position, a token one further each time.
            let depth = args.depth + if args.prompt.is_some() { 0 } else { i as usize };
            begin(&mut *instance, &plan, prepared, depth)?;
            profiles.push(instance.profile(prepared)?);
        }
    }
    drop(live);
    meter.iter_mut().for_each(Meter::measure);
    let bandwidth = meter.map_or(0.0, |meter| meter.roof().bytes_per_second);
    let document = Document::new(args, &device.info(), &plan, &profiles, bandwidth);
    if let (Some(file), Some(last)) = (&args.trace, profiles.last()) {
        let what = format!("{} on {}", args.model, document.device);
        let trace = serde_json::to_vec(&Trace::new(&what, &plan, last));
        trace
            .map_err(io::Error::from)
            .and_then(|trace| std::fs::write(file, trace))
            .map_err(|source| Error::Write { file: file.clone(), source })?;
    }
    text::show(&document, args.json, Document::table)
}

/// Loads the model and prepares its plan.
fn load(
    model: &Model,
    layout: KvLayout,
    plan: &Plan,
    device: &dyn Device,
    terminal: &Terminal,
) -> Result<(Box<dyn Instance>, Prepared), Error> {
    let weights: Vec<_> = model.weights().cloned().collect();
    let (states, plans) = (model.states(layout), std::slice::from_ref(plan));
    let mut instance =
        device.open(&Request { weights: &weights, states: &states, plans, choices: None })?;
    let (live, done) = (terminal.bytes(), AtomicU64::new(0));
    let progress = |bytes| {
        let done = done.fetch_add(bytes, Ordering::Relaxed) + bytes;
        live.set(done, model.weight_bytes(), "loading");
    };
    for weight in &weights {
        let name = &weight.name;
        let read = |at, bytes: &mut [u8]| Ok(model.read_weight(name, at, bytes)?);
        instance.upload(name, &read, &progress)?;
    }
    let prepared = instance.prepare(plan)?;
    Ok((instance, prepared))
}

/// Prepares greedy decode or a prompt chunk after `depth` tokens.
fn begin(
    instance: &mut dyn Instance,
    plan: &Plan,
    prepared: Prepared,
    depth: usize,
) -> Result<(), Error> {
    let rows = plan.bucket.rows();
    let position = |row: usize| i32::try_from(depth + row).unwrap_or(i32::MAX);
    let (tokens, slots) = (vec![1; rows], vec![0; rows]);
    let positions: Vec<i32> = (0..rows).map(position).collect();
    let inputs = [
        (ports::TOKENS, Data::I32(&tokens)),
        (ports::POSITIONS, Data::I32(&positions)),
        (ports::SLOTS, Data::I32(&slots)),
        (ports::LOGIT_ROWS, Data::I32(&[i32::try_from(rows).unwrap_or(i32::MAX) - 1])),
        (ports::TEMPERATURE, Data::F32(&[0.0])),
    ];
    for (name, data) in inputs {
        if let Some(mailbox) = plan.find(Class::Mailbox, name) {
            instance.write(prepared, mailbox, 0, data)?;
        }
    }
    Ok(())
}

/// Output of `--json`.
#[derive(Debug, Serialize)]
struct Document {
    model: String,
    backend: &'static str,
    device: String,
    depth: usize,
    tokens: u32,
    /// Length of the timed prompt chunk; `None` if a token was timed.
    prompt: Option<u32>,
    /// Read bandwidth of the device in bytes per second, the best of the passes before and after; 0
    /// if not measured.
    bandwidth: f64,
    /// Seconds of one token or chunk, summed over its parts.
    seconds: f64,
    /// True if the parts were serialised to be timed.
    serialised: bool,
    /// Seconds of one token or chunk without timing its parts.
    whole_seconds: f64,
    steps: Vec<Line>,
}

/// Steps of one kind, summed over all layers, in one token or chunk.
#[derive(Debug, Default, Serialize)]
struct Line {
    step: String,
    op: String,
    count: usize,
    /// Bytes of weights and KV cache that the steps read and write.
    bytes: u64,
    operations: u64,
    seconds: f64,
    /// Kernels that the steps were lowered to.
    kernels: BTreeMap<String, Kernel>,
    bytes_per_second: f64,
    operations_per_second: f64,
    /// `None` without a bandwidth.
    of_bandwidth: Option<f64>,
    of_token: f64,
}

/// Launches of one kernel, or calls of one CPU kernel, in the steps of a line.
#[derive(Debug, Default, Serialize)]
struct Kernel {
    count: usize,
    seconds: f64,
}

impl Document {
    fn new(
        args: &args::Profile,
        device: &Info,
        plan: &Plan,
        profiles: &[Profile],
        bandwidth: f64,
    ) -> Self {
        let times = profiles.len().max(1);
        let mut steps: Vec<Line> = Vec::new();
        let mut lines = Vec::with_capacity(plan.steps.len());
        for step in &plan.steps {
            let (name, op) = (place(&step.label).1, step.op.name());
            let bytes = step.cost.weight_bytes + step.cost.state_bytes;
            let known = steps.iter().position(|line| line.step == name && line.op == op);
            let at = known.unwrap_or(steps.len());
            if known.is_none() {
                steps.push(Line { step: name.to_owned(), op, ..Line::default() });
            }
            let line = &mut steps[at];
            line.count += 1;
            line.bytes += bytes;
            line.operations += step.cost.flops;
            lines.push(at);
        }
        for (i, profile) in profiles.iter().enumerate() {
            for timing in &profile.timings {
                let line = &mut steps[lines[timing.step]];
                let seconds = timing.nanoseconds as f64 / 1e9 / times as f64;
                line.seconds += seconds;
                let kernel = line.kernels.entry(timing.kernel.clone()).or_default();
                kernel.seconds += seconds;
                kernel.count += usize::from(i == 0);
            }
        }
        let seconds: f64 = steps.iter().map(|line| line.seconds).sum();
        for line in &mut steps {
            line.bytes_per_second = line.bytes as f64 / line.seconds.max(1e-9);
            line.operations_per_second = line.operations as f64 / line.seconds.max(1e-9);
            line.of_bandwidth = (bandwidth > 0.0).then(|| line.bytes_per_second / bandwidth);
            line.of_token = line.seconds / seconds.max(1e-9);
        }
        let whole: f64 = profiles.iter().map(|profile| profile.whole.as_secs_f64()).sum();
        Self {
            model: args.model.clone(),
            backend: device.name,
            device: device.description.clone(),
            depth: args.depth,
            tokens: args.tokens,
            prompt: args.prompt,
            bandwidth,
            seconds,
            serialised: profiles.iter().any(|profile| profile.serialised),
            whole_seconds: whole / times as f64,
            steps,
        }
    }

    fn table(&self) -> String {
        let heads = [
            "step",
            "op",
            "count",
            "bytes each",
            "us each",
            "GB/s",
            "% of bandwidth",
            "Gop/s",
            if self.prompt.is_some() { "% of chunk" } else { "% of token" },
        ];
        let mut rows = vec![heads.map(str::to_owned).to_vec()];
        for line in &self.steps {
            let read = line.bytes > 0;
            let some = |text: String| if read { text } else { String::new() };
            rows.push(vec![
                line.step.clone(),
                line.op.clone(),
                line.count.to_string(),
                some(text::bytes(line.bytes / line.count as u64)),
                format!("{:.1}", line.seconds * 1e6 / line.count as f64),
                some(format!("{:.1}", line.bytes_per_second / 1e9)),
                some(line.of_bandwidth.map_or("-".into(), |part| format!("{:.0}", 100.0 * part))),
                format!("{:.0}", line.operations_per_second / 1e9),
                format!("{:.1}", 100.0 * line.of_token),
            ]);
        }
        let what = match self.prompt {
            Some(n) => format!("{} chunks of {n} tokens", self.tokens),
            None => format!("{} tokens", self.tokens),
        };
        let mut out = format!(
            "{} on {}: {what} after {}, mean of each step\n\n",
            self.model, self.device, self.depth
        );
        out.push_str(&text::table(&rows, &[2, 3, 4, 5, 6, 7, 8]));
        let ms = |seconds: f64| 1e3 * seconds;
        if let Some(n) = self.prompt {
            let operations: u64 = self.steps.iter().map(|line| line.operations).sum();
            let _ = writeln!(
                out,
                "\n{:.1} ms a chunk, {:.1} tokens/s: {:.0} Gop/s",
                ms(self.seconds),
                f64::from(n) / self.seconds.max(1e-9),
                operations as f64 / self.seconds.max(1e-9) / 1e9
            );
        } else {
            let bytes: u64 = self.steps.iter().map(|line| line.bytes).sum();
            let speed = bytes as f64 / self.seconds.max(1e-9);
            let (time, bytes) = (ms(self.seconds), text::bytes(bytes));
            let _ = write!(out, "\n{time:.2} ms a token: {bytes} at {:.1} GB/s", speed / 1e9);
            if self.bandwidth > 0.0 {
                let (part, measured) = (100.0 * speed / self.bandwidth, self.bandwidth / 1e9);
                let _ = write!(out, ", {part:.0} % of the measured {measured:.1} GB/s");
            }
            out.push('\n');
        }
        let serialised = if self.serialised { ", which serialises the launches" } else { "" };
        let whole = ms(self.whole_seconds);
        let _ = writeln!(out, "{whole:.2} ms without timing{serialised}");
        out
    }
}
