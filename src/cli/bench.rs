//! `orinctl bench`.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use super::args::{self, Connection, ModelChoice};
use super::error::Error;
use super::gate::{self, Against, Baseline};
use super::session::{Room, Session};
use super::terminal::Terminal;
use super::text;
use analysis::Gate;
use analysis::statistics::Summary;
use api::client::Client;
use api::{CompletionRequest, Prompt};
use bench::{ColdStart, FirstToken, Progress, Report, Spec};

/// Prompt length of the cold-start test; short, so that prompt evaluation does not dominate.
const COLD_PROMPT: u32 = 8;
/// Prompt length and number of requests of the time-to-first-token test: a short question.
const FIRST_PROMPT: u32 = 128;
const FIRST_REPETITIONS: usize = 5;
/// Seconds of the budget reserved for everything but the tests: time to first token, stopping.
const RESERVE: f64 = 12.0;

pub(super) async fn run(
    connection: &Connection,
    args: &args::Bench,
    terminal: &Terminal,
) -> Result<ExitCode, Error> {
    let result = measure_and_report(connection, args, terminal).await;
    if args.against.is_some() {
        result.map_err(|error| Error::Gate(Box::new(error)))
    } else {
        result
    }
}

/// Measures, saves the record if requested, and prints the report and verdict.
async fn measure_and_report(
    connection: &Connection,
    args: &args::Bench,
    terminal: &Terminal,
) -> Result<ExitCode, Error> {
    let mut spec = spec(args);
    spec.check().map_err(|error| Error::Usage(error.to_string()))?;
    let (report, gate) = match &Against::find(args, terminal)? {
        None => (measure_alone(connection, args, spec, None, terminal).await?, None),
        Some(Against::Program(program)) => {
            let [before, now] = gate::in_turn(program, spec, args, terminal).await?;
            let gate = Gate::of_pairs(&before, &now, args.threshold);
            (now, Some(gate))
        }
        Some(Against::Record(baseline)) => {
            baseline.fill(&mut spec);
            let now = measure_alone(connection, args, spec, Some(&**baseline), terminal).await?;
            let gate = baseline.judge(&now, args.threshold);
            (now, Some(gate))
        }
    };
    if args.save {
        let path = gate::records_file(args.records.records.as_deref());
        analysis::append(&path, &report)?;
        terminal.print_line(&format!("saved in {}", path.display()));
    }
    if let Some(gate) = gate {
        return gate::show(&gate.map_err(Error::Unlike)?, &report, args.format.json);
    }
    print(&report, &args.format)?;
    if report.invalid.is_empty() {
        Ok(ExitCode::SUCCESS)
    } else {
        Err(Error::InvalidRun(report.invalid.join("; ")))
    }
}

/// Measures the loaded model, or a model in a private daemon.
async fn measure_alone(
    connection: &Connection,
    args: &args::Bench,
    mut spec: Spec,
    baseline: Option<&Baseline>,
    terminal: &Terminal,
) -> Result<Report, Error> {
    let begin = Instant::now();
    let first_prompt = FIRST_PROMPT.min(spec.context().saturating_sub(1)).max(1);
    let room = Room {
        slots: spec.slots() as usize,
        context: Some((spec.context() as usize).next_multiple_of(64)),
    };
    let room = baseline.map_or(room, |baseline| baseline.room(room));

    let mut session = Session::open(connection, &args.model, room, terminal).await?;
    if session.beside {
        return Err(Error::Usage(format!(
            "bench measures the daemon's first model, but {} is an additional one; --private measures it alone",
            session.model.id
        )));
    }
    if session.synthesised {
        // A start that created the model's file does not represent later starts: start again.
        let file = ModelChoice { private: true, ..args.model.clone() };
        drop(session);
        session = Session::private(&file, room, terminal).await?;
    }
    if let Some(baseline) = baseline {
        baseline.expect(&session)?;
    }
    let cold_start = match &session.private {
        Some(private) => {
            first_token(&session.client, COLD_PROMPT, 0).await?;
            Some(ColdStart {
                socket_seconds: private.socket_after.as_secs_f64(),
                loaded_seconds: session.loaded_after.unwrap_or_default().as_secs_f64(),
                first_token_seconds: private.started.elapsed().as_secs_f64(),
                prompt_tokens: COLD_PROMPT,
            })
        }
        None => None,
    };

    let left = args.budget - RESERVE - begin.elapsed().as_secs_f64();
    spec.budget_seconds = left.max(0.0);
    let mut report = measure(&session.client, &spec, args, terminal).await?;
    let mut seconds = Vec::new();
    {
        let live = terminal.spinner();
        live.message("time to first token");
        for repetition in 0..FIRST_REPETITIONS {
            // Every prompt is new, so that the prefix cache is not measured.
            let seed = 1 + repetition as u32;
            seconds.push(first_token(&session.client, first_prompt, seed).await?.as_secs_f64());
            let late = begin.elapsed().as_secs_f64() > args.budget;
            if late && seconds.len() >= 2 {
                break;
            }
        }
    }
    report.first_token =
        Summary::of(seconds).map(|seconds| FirstToken { prompt_tokens: first_prompt, seconds });
    report.cold_start = cold_start;
    drop(session);
    Ok(report)
}

fn spec(args: &args::Bench) -> Spec {
    Spec {
        prompts: args.prompts.clone(),
        generate: args.generate.clone(),
        depths: args.depths.clone(),
        batches: args.batches.clone(),
        repetitions: args.repetitions,
        warmup: args.warmup,
        budget_seconds: args.budget,
        seed: args.seed,
        roof: true,
    }
}

async fn measure(
    client: &Client,
    spec: &Spec,
    args: &args::Bench,
    terminal: &Terminal,
) -> Result<Report, Error> {
    let live = terminal.steps();
    let quiet = args.format.json || args.format.csv;
    let on_progress = |progress: Progress| match progress {
        Progress::Probe => live.set(0, 1, "probing"),
        Progress::Roof => live.set(0, 1, "measuring memory bandwidth"),
        Progress::Chosen { tests, repetitions, estimated_seconds } => {
            if !quiet {
                let tests = tests.join(", ");
                let line = format!(
                    "running {tests}: {repetitions} repetitions, about {estimated_seconds:.0} s"
                );
                live.print_line(terminal, &line);
            }
        }
        Progress::Test { test, repetition, repetitions, done, total, tokens_per_second } => {
            let which = match repetition {
                0 => "warm-up".to_owned(),
                n => format!("{n}/{repetitions}"),
            };
            let speed = tokens_per_second.map_or_else(String::new, |s| format!(", {s:.2} tok/s"));
            live.set(done.into(), total.into(), format!("{test} {which}{speed}"));
        }
    };
    Ok(client.bench(spec, on_progress).await?)
}

/// Sends a prompt of random token ids and waits for the first token.
async fn first_token(client: &Client, tokens: u32, seed: u32) -> Result<Duration, Error> {
    // Every vocabulary has more entries than this. The prompts are distinct and avoid most special
    // tokens.
    let id = |i: u32| (i.wrapping_mul(2_654_435_761) ^ seed.wrapping_mul(40_503)) % 200 + 3;
    let request = CompletionRequest {
        prompt: Prompt::Ids((0..tokens).map(id).collect()),
        max_tokens: Some(1),
        temperature: Some(0.0),
        ignore_eos: Some(true),
        ..CompletionRequest::default()
    };
    let sent = Instant::now();
    let mut stream = client.completions(&request).await?;
    let mut first = None;
    while stream.next().await?.is_some() {
        first.get_or_insert_with(|| sent.elapsed());
    }
    Ok(first.unwrap_or_else(|| sent.elapsed()))
}

fn print(report: &Report, format: &args::Format) -> Result<(), Error> {
    match format {
        args::Format { csv: true, .. } => text::print(&analysis::csv(report)),
        args::Format { markdown: true, .. } => text::print(&analysis::markdown(report)),
        _ => text::show(report, format.json, analysis::table),
    }
}
