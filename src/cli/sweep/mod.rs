//! `orinctl sweep`: measures every combination of models, types, threads and other axes in rounds,
//! into a file from which the same command resumes.

mod contention;
mod weights;

use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;

use super::args;
use super::error::Error;
use super::session;
use super::terminal::{Live, Terminal};
use super::text;
use analysis::sweep::{Found, Log, Point, Setting, Sweep, Weights, csv, markdown, table};
use api::LoadRequest;
use api::client::private::{self, Private};
use bench::{Kind, Machine, Progress, Report, Spec, Test};
use contention::{CpuQuota, SpinningThreads};
use device::tune::report::Mode;

/// Tuning parameter of `--threads-per-row`.
const THREADS_PER_ROW: &str = "threads_per_row";

pub(super) async fn run(
    args: &args::Sweep,
    terminal: &Terminal,
    interrupted: Arc<Notify>,
) -> Result<(), Error> {
    let tests = tests(args)?;
    if args.quotas.iter().any(|&quota| quota < 100) {
        // Fail before hours of measuring.
        CpuQuota::of(99).map_err(Error::Usage)?;
    }
    let weights = weights::all(args, terminal, &interrupted).await?;
    let sweep = sweep(args, tests, weights);
    let path = match &args.out {
        Some(path) => path.clone(),
        None => default_file(&sweep)?,
    };
    let log = Log::open(&path, sweep)?;
    if log.dropped > 0 {
        let dropped = log.dropped;
        terminal.print_line(&format!(
            "{}: dropped an incomplete last line of {dropped} bytes",
            path.display()
        ));
    }
    let mut course = SweepRun { args, terminal, log, live: terminal.steps() };
    let done = tokio::select! {
        done = course.all() => done,
        () = interrupted.notified() => Err(Error::Interrupted),
    };
    let SweepRun { log, live, .. } = course;
    drop(live);
    let stopped = matches!(done, Err(Error::Interrupted));
    if !stopped {
        done?;
    }
    let found = Found::of(&log, args.rounds, stopped);
    match &args.format {
        args::Format { csv: true, .. } => text::print(&csv(&found))?,
        args::Format { markdown: true, .. } => text::print(&markdown(&found))?,
        _ => text::show(&found, args.format.json, table)?,
    }
    match found.invalid.first() {
        _ if stopped => Err(Error::Interrupted),
        Some(why) => Err(Error::InvalidRun((*why).to_owned())),
        None => Ok(()),
    }
}

fn tests(args: &args::Sweep) -> Result<Vec<Test>, Error> {
    let spec = Spec {
        prompts: Some(args.prompts.clone()),
        generate: Some(args.generate.clone()),
        depths: args.depths.clone(),
        batches: args.batches.clone(),
        ..Spec::default()
    };
    spec.check().map_err(|error| Error::Usage(error.to_string()))?;
    Ok(Test::all(&args.prompts, &args.generate, &args.depths, &args.batches))
}

fn sweep(args: &args::Sweep, tests: Vec<Test>, weights: Vec<Weights>) -> Sweep {
    let machine = Machine::this();
    Sweep {
        version: env!("CARGO_PKG_VERSION").into(),
        commit: daemon::COMMIT.map(Into::into),
        processor: machine.processor,
        cores: machine.cores,
        backend: args.backend.map(|backend| backend.to_string()),
        cpu_isa: args.cpu_isa.map(|isa| isa.to_string()),
        weights,
        threads: axis(&args.threads),
        threads_per_row: axis(&args.threads_per_row),
        neighbours: distinct(&args.neighbours),
        quotas: distinct(&args.quotas),
        tests,
        seed: args.seed,
    }
}

/// Distinct values of an option; a single `None` if the option is absent.
fn axis<T: Copy + PartialEq>(values: &[T]) -> Vec<Option<T>> {
    let values: Vec<Option<T>> = distinct(values).into_iter().map(Some).collect();
    if values.is_empty() { vec![None] } else { values }
}

fn distinct<T: Copy + PartialEq>(values: &[T]) -> Vec<T> {
    let mut distinct = Vec::new();
    for &value in values {
        if !distinct.contains(&value) {
            distinct.push(value);
        }
    }
    distinct
}

/// Returns a file per sweep, so that the same command finds its own file again.
fn default_file(sweep: &Sweep) -> Result<std::path::PathBuf, Error> {
    let whole = serde_json::to_vec(sweep).map_err(std::io::Error::from)?;
    let hash: String = Sha256::digest(whole).iter().take(6).map(|b| format!("{b:02x}")).collect();
    let name = format!("sweep-{hash}.jsonl");
    Ok(config::client_state_dir(&name).join(name))
}

/// State of a running sweep.
struct SweepRun<'a> {
    args: &'a args::Sweep,
    terminal: &'a Terminal,
    log: Log,
    live: Live,
}

impl SweepRun<'_> {
    async fn all(&mut self) -> Result<(), Error> {
        let sweep = self.log.sweep().clone();
        let points = sweep.points();
        let total = points.len() as u64 * u64::from(self.args.rounds);
        let known = |round| points.iter().filter(|point| self.log.has(round, point)).count() as u64;
        let mut done: u64 = (1..=self.args.rounds).map(known).sum();
        let file = self.log.path.display();
        let line = match done {
            0 => format!("{total} measurements, into {file}"),
            done if done == total => {
                format!("all {total} measurements are in {file}; use another --out to repeat them")
            }
            done => format!("{done} of {total} measurements are in {file}: continuing"),
        };
        self.live.print_line(self.terminal, &line);
        for round in 1..=self.args.rounds {
            for (setting, weights, mut tests) in sweep.round(round) {
                let point = |test| Point { setting: setting.clone(), test };
                tests.retain(|&test| !self.log.has(round, &point(test)));
                if !tests.is_empty() {
                    let place = (round, &mut done, total);
                    self.setting(&sweep, &setting, weights, &tests, place).await?;
                }
            }
        }
        Ok(())
    }

    /// Measures the tests of a setting in their own daemon.
    async fn setting(
        &mut self,
        sweep: &Sweep,
        setting: &Setting,
        weights: &Weights,
        tests: &[Test],
        (round, done, total): (u32, &mut u64, u64),
    ) -> Result<(), Error> {
        let where_ = label(sweep, setting);
        let rounds = self.args.rounds;
        self.live.set(*done, total, format!("round {round}/{rounds}: {where_} loading"));
        // Dropped after its daemon. A control group competes as a whole with everything outside, so
        // either all daemons run in a group or none, and they differ only in the quota.
        let grouped = sweep.quotas != [100];
        let quota = grouped.then(|| CpuQuota::of(setting.quota)).transpose();
        let quota = quota.map_err(Error::Usage)?;
        let mut private = Private::start(private::OWN.as_ref()).await?;
        if let Some(quota) = &quota {
            quota.take(private.id()).map_err(Error::Usage)?;
        }
        let force = setting.threads_per_row.map(|value| (THREADS_PER_ROW.to_owned(), value));
        let request = LoadRequest {
            model: session::absolute(&weights.load)?,
            backend: self.args.backend,
            slots: Some(sweep.slots()),
            context: Some(sweep.context()),
            threads: setting.threads,
            cpu_isa: self.args.cpu_isa,
            // Stored tuning choices would be compared with forced ones.
            tune: force.is_some().then_some(Mode::Off),
            force: force.into_iter().collect(),
            ..LoadRequest::default()
        };
        let (model, _) = session::load_in(&mut private, &request, self.terminal).await?;
        if let Some(value) = setting.threads_per_row.filter(|_| model.tuning.possible == 0) {
            return Err(Error::Usage(format!(
                "--threads-per-row {value}: no kernel of {} supports it for {}; GPUs support 8, 16, 32 or 64; \
                 omit it, or choose another device with --backend",
                model.device.description, model.id
            )));
        }
        let spinning = SpinningThreads::of(setting.neighbours);
        for &test in tests {
            self.live.set(*done, total, format!("round {round}/{rounds}: {where_} {test}"));
            let report: Report =
                private.client.bench(&spec(sweep, test, round), |_: Progress| {}).await?;
            let point = Point { setting: setting.clone(), test };
            if let Some(why) = report.invalid.first() {
                let line = format!("round {round}: {where_} {test} is INVALID: {why}");
                self.live.print_line(self.terminal, &line);
            }
            self.log.add(round, point, report)?;
            *done += 1;
        }
        drop(spinning);
        Ok(())
    }
}

/// Spec of one test, run once after one untimed run.
fn spec(sweep: &Sweep, test: Test, round: u32) -> Spec {
    let (prompts, generate) = match test.kind {
        Kind::Prefill => (vec![test.tokens], Vec::new()),
        Kind::Decode => (Vec::new(), vec![test.tokens]),
    };
    Spec {
        prompts: Some(prompts),
        generate: Some(generate),
        depths: vec![test.depth],
        batches: vec![test.batch],
        repetitions: Some(1),
        roof: false,
        seed: sweep.seed.wrapping_add(round.into()),
        ..Spec::default()
    }
}

/// Describes the setting for the progress line.
fn label(sweep: &Sweep, setting: &Setting) -> String {
    let mut parts = Vec::new();
    if sweep.weights.len() > 1 {
        let kind = setting.kind.as_ref().map_or_else(String::new, |kind| format!(" {kind}"));
        parts.push(format!("{}{kind}", setting.model));
    }
    if let Some(threads) = setting.threads {
        parts.push(format!("{threads} threads"));
    }
    if let Some(value) = setting.threads_per_row {
        parts.push(format!("{value} threads per row"));
    }
    if setting.neighbours > 0 {
        parts.push(format!("{} neighbours", setting.neighbours));
    }
    if setting.quota < 100 {
        parts.push(format!("quota {} %", setting.quota));
    }
    parts.join(", ")
}
