//! `orinctl compare`: runs this build and other engines in turn on one model file, and prints the
//! comparison.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, File};
use std::io::Read as _;
use std::path::Path;
use std::process::Stdio;
use std::sync::Arc;

use sha2::{Digest as _, Sha256};
use tokio::sync::Notify;

use super::args;
use super::error::Error;
use super::gate;
use super::plan::open;
use super::terminal::Terminal;
use super::text;
use analysis::Series;
use api::client::private::OWN;
use bench::Test;
use compare::{
    self, Answer, AnswerCache, Comparison, Judge, Kernels, Peer, Progress, Run, Settings, TOP,
    Workload, random,
};
use model::tokenizer::{Tokenizer, Vocabulary};
use model::{Model, mix, synthetic};
use parity::model::{Task, Trace};
use telemetry::{Probe, Root};

/// Prompts whose answers are compared with the reference: count, length, and tokens decoded after
/// each. The reference is slow.
const JUDGED: u32 = 3;
const LENGTH: u32 = 6;
const STEPS: u32 = 4;

pub(super) async fn run(
    args: &args::Compare,
    terminal: &Terminal,
    interrupted: Arc<Notify>,
) -> Result<(), Error> {
    if args.explain {
        return text::print(&compare::explain());
    }
    if let Some(file) = &args.html {
        writable(file)?;
    }
    if let Some(file) = &args.from {
        let text = fs::read(file).map_err(|e| Error::Usage(format!("{}: {e}", file.display())))?;
        let found = Comparison::from_json(&text).map_err(|e| {
            Error::Usage(format!(
                "{}: not the output of `orinctl compare --json`: {e}",
                file.display()
            ))
        })?;
        return report(&found, args);
    }
    let settings = Settings {
        llama_cpp: args.llama_cpp.clone(),
        python: args.python.clone(),
        compile: !args.pytorch_no_compile,
        half: !args.pytorch_no_half,
    };
    let mut peers = vec![Peer::own()];
    for name in &args.with {
        peers.push(Peer::parse(name, &settings).map_err(compare::Error::from)?);
    }
    let prepared = {
        let (args, terminal) = (args.clone(), *terminal);
        super::blocking(&interrupted, move || prepare(&args, &terminal)).await?
    };
    let Prepared { work, reference, texts } = prepared;
    let judge = Judge { reference: &reference, id: &|text| texts.get(text).copied() };
    let how = Run {
        rounds: args.rounds,
        fair: !args.no_fair,
        allow: args.allow.iter().cloned().collect::<BTreeSet<_>>(),
    };
    let live = terminal.steps();
    let on_progress = |progress: Progress<'_>| match progress {
        Progress::Lost { peer, why } => live.print_line(terminal, &format!("{peer}: {why}")),
        Progress::Judging { peer } => live.set(0, 1, format!("{peer}: answering the test prompts")),
        Progress::Round { peer, round, rounds, done, total } => {
            live.set(done, total, format!("round {round}/{rounds}: {peer}"));
        }
    };
    let probe = Arc::new(Probe::new(Root::system()));
    let mut found =
        compare::run(work, peers, &how, &judge, &probe, &interrupted, on_progress).await?;
    drop(live);
    found.history = history(args, &found.work, terminal);
    if args.html.is_some() && !found.interrupted {
        tokio::select! {
            timed = kernels(&found.work) => match timed {
                Ok(timed) => found.kernels = Some(timed),
                Err(why) => terminal.print_line(&format!("no roofline: cannot time the steps: {why}")),
            },
            () = interrupted.notified() => found.interrupted = true,
        }
    }
    report(&found, args)?;
    if found.interrupted { Err(Error::Interrupted) } else { Ok(()) }
}

/// Inputs of a comparison, prepared before any engine runs.
struct Prepared {
    work: Workload,
    reference: Vec<Answer>,
    /// Token ids by text, for servers that report no ids; empty if the model has no vocabulary.
    texts: HashMap<String, u32>,
}

/// Creates the model if it is synthetic, hashes it and computes the reference answers; takes
/// minutes for a large model.
fn prepare(args: &args::Compare, terminal: &Terminal) -> Result<Prepared, Error> {
    let model = open(&args.model, terminal)?;
    let work = workload(args, &model, terminal)?;
    let reference =
        if args.no_reference { Vec::new() } else { reference(&model, &work, terminal)? };
    Ok(Prepared { work, reference, texts: texts(&model) })
}

/// Prints the comparison and writes its page.
fn report(found: &Comparison, args: &args::Compare) -> Result<(), Error> {
    let written = args.html.as_deref().map_or(Ok(()), |file| write(found, file));
    print(found, &args.format)?;
    written?;
    // An interrupted comparison is marked as such in its own output.
    if found.invalid.is_empty() || found.interrupted {
        return Ok(());
    }
    Err(Error::InvalidRun(found.invalid.join("; ")))
}

/// Returns the records of this model on this device; without any, the list is empty.
fn history(args: &args::Compare, work: &Workload, terminal: &Terminal) -> Vec<Series> {
    let file = gate::records_file(args.records.records.as_deref());
    if !file.is_file() && args.records.records.is_none() {
        return Vec::new();
    }
    let records = match gate::read(&file, terminal) {
        Ok(records) => records,
        Err(error) => {
            terminal.print_line(&format!("no history: {}", errors::one_line(&error)));
            return Vec::new();
        }
    };
    let mut all = Series::of(records.reports.iter().map(|(_, report)| report));
    all.retain(|series| {
        let model = series.sha256.as_ref().is_some_and(|hash| work.sha256.starts_with(hash));
        model && series.device == work.device
    });
    all
}

/// Number of tokens to time step by step.
const TIMED: &str = "16";

/// Times this build's decode steps in a separate process.
async fn kernels(work: &Workload) -> Result<Kernels, String> {
    let mut command = tokio::process::Command::new(OWN);
    command.arg0("orinctl").arg("profile").arg(&work.model);
    command.args(["--backend", &work.device, "-n", TIMED, "--json"]);
    if work.device == "cpu" {
        command.args(["-t", &work.threads.to_string()]);
    }
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await;
    let output = output.map_err(|e| e.to_string())?;
    if !output.status.success() {
        let errors = String::from_utf8_lossy(&output.stderr);
        return Err(errors.lines().next_back().unwrap_or("it failed without a message").to_owned());
    }
    serde_json::from_slice(&output.stdout).map_err(|e| e.to_string())
}

fn print(found: &Comparison, format: &args::Format) -> Result<(), Error> {
    match format {
        args::Format { csv: true, .. } => text::print(&compare::csv(found)),
        args::Format { markdown: true, .. } => text::print(&compare::markdown(found)),
        _ => text::show(found, format.json, compare::table),
    }
}

/// Rejects an unwritable page before hours of measuring.
fn writable(file: &Path) -> Result<(), Error> {
    let usage = |why: String| Err(Error::Usage(format!("--html {}: {why}", file.display())));
    let folder = folder(file);
    if file.is_dir() || file.file_name().is_none() {
        return usage("is a folder; name a file in it".into());
    }
    if !folder.is_dir() {
        return usage(format!("the folder {} does not exist; create it first", folder.display()));
    }
    if let Err(why) = nix::unistd::access(folder, nix::unistd::AccessFlags::W_OK) {
        return usage(format!("the folder {} cannot be written to: {why}", folder.display()));
    }
    Ok(())
}

fn folder(file: &Path) -> &Path {
    let parent = file.parent().unwrap_or(Path::new(""));
    if parent.as_os_str().is_empty() { Path::new(".") } else { parent }
}

fn write(found: &Comparison, file: &Path) -> Result<(), Error> {
    let written =
        compare::page(found).and_then(|page| compare::write_atomically(file, page.as_bytes()));
    written.map_err(|source| Error::Write { file: file.to_owned(), source })
}

fn workload(args: &args::Compare, model: &Model, terminal: &Terminal) -> Result<Workload, Error> {
    let tests = Test::all(&args.prompts, &args.generate, &args.depths, &args.batches);
    if tests.is_empty() {
        return Err(Error::Usage("nothing to measure: give -p or -n a length above 0".into()));
    }
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let file = model.gguf().path().to_owned();
    let vocabulary = model.hyperparameters().vocabulary;
    let judged = (0..JUDGED).map(|i| random(vocabulary, LENGTH, args.seed, 900_000 + i)).collect();
    let work = Workload {
        sha256: sha256(&file, terminal)?,
        model: file,
        file_type: mix::name_of(model.gguf()).to_owned(),
        vocabulary,
        tests,
        device: args.backend.to_string(),
        threads: args.threads.unwrap_or(cores),
        seed: args.seed,
        prompt: args.first_prompt,
        stream: args.stream,
        judged,
        steps: STEPS,
    };
    let context = model.hyperparameters().context as u64;
    if work.context() > context {
        return Err(Error::Usage(format!(
            "the tests need {} tokens of context, the model has {context}",
            work.context()
        )));
    }
    Ok(work)
}

fn texts(model: &Model) -> HashMap<String, u32> {
    let vocabulary = Vocabulary::from_metadata(model.gguf().metadata()).ok();
    let Some(tokenizer) = vocabulary.and_then(|v| Tokenizer::new(v).ok()) else {
        return HashMap::new();
    };
    let ids = 0..tokenizer.vocab_size() as u32;
    ids.filter_map(|id| Some((tokenizer.token_text(id)?.into_owned(), id))).collect()
}

fn sha256(file: &Path, terminal: &Terminal) -> Result<String, Error> {
    let live = terminal.bytes();
    let mut from = File::open(file)?;
    let total = from.metadata()?.len();
    let (mut digest, mut done) = (Sha256::new(), 0);
    let mut buffer = vec![0; 1 << 20];
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            return Ok(digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect());
        }
        digest.update(&buffer[..n]);
        done += n as u64;
        live.set(done, total, "SHA-256 of the model");
    }
}

/// Returns the reference answers from the cache, or computes and caches them.
fn reference(model: &Model, work: &Workload, terminal: &Terminal) -> Result<Vec<Answer>, Error> {
    // Stored next to the cached synthetic models.
    let kept = AnswerCache::of(work, &synthetic::default_cache_dir().with_file_name("reference"));
    match kept.read() {
        Ok(Some(answers)) => return Ok(answers),
        Ok(None) => {}
        Err(damaged) => {
            terminal.print_line(&format!("{damaged}; computing the reference answers again"));
        }
    }
    let answers = computed(model, work, terminal)?;
    if let Err(why) = kept.write(&answers) {
        terminal.print_line(&format!("cannot cache the reference answers: {why}"));
    }
    Ok(answers)
}

fn computed(model: &Model, work: &Workload, terminal: &Terminal) -> Result<Vec<Answer>, Error> {
    let live = terminal.spinner();
    live.message("computing reference answers (slow on large models; --no-reference skips them)");
    let device = super::device::open("reference", "auto", work.threads).map_err(Error::Usage)?;
    let task = Task { model, prompts: &work.judged, steps: work.steps as usize - 1 };
    let trace =
        Trace::record(&*device, &task, None).map_err(|e| Error::Parity(errors::one_line(&e)))?;
    let answer = |steps: &Vec<Vec<f32>>| {
        let top: Vec<Vec<(u32, f64)>> = steps.iter().map(|logits| best(logits)).collect();
        Answer { tokens: top.iter().map(|best| best[0].0).collect(), top }
    };
    Ok(trace.logits().iter().map(answer).collect())
}

/// Returns the most likely tokens of a row of logits.
fn best(logits: &[f32]) -> Vec<(u32, f64)> {
    let most = logits.iter().fold(f32::NEG_INFINITY, |a, &b| a.max(b));
    let sum: f64 = logits.iter().map(|&l| f64::from(l - most).exp()).sum();
    let mut ids: Vec<u32> = (0..logits.len() as u32).collect();
    ids.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]).then(a.cmp(&b)));
    let log = |id: u32| f64::from(logits[id as usize] - most) - sum.ln();
    ids.into_iter().take(TOP as usize).map(|id| (id, log(id))).collect()
}
