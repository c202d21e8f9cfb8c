//! `orinctl bench --against`: finds the record or build to compare with, measures two builds
//! alternately, and prints the verdict.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde::Serialize;

use super::args;
use super::error::Error;
use super::session::{DEFAULT_MODEL, Room, Session};
use super::terminal::Terminal;
use super::text;
use analysis::{Difference, Gate, Records, Verdict};
use bench::{self, Kind, Manifest, Progress, Report, Spec};
use config::Backend;

/// Default test for alternating runs: short, because it is repeated often.
const PROMPT: u32 = 128;
const GENERATE: u32 = 64;
/// Number of process starts of each build: the luck of one process must not affect most pairs.
const BLOCKS: u32 = 4;

/// Target of the comparison.
pub(super) enum Against {
    /// Another build of this program.
    Program(PathBuf),
    Record(Box<Baseline>),
}

/// A record, together with all other records of its file.
pub(super) struct Baseline {
    pub(super) before: Report,
    history: Vec<Report>,
}

/// Returns the record file: the one named, or the default in the state directory.
pub(super) fn records_file(named: Option<&Path>) -> PathBuf {
    let own = || config::client_state_dir(analysis::FILE).join(analysis::FILE);
    named.map_or_else(own, Path::to_owned)
}

/// Reads records and reports damaged lines.
pub(super) fn read(path: &Path, terminal: &Terminal) -> Result<Records, Error> {
    let records = match analysis::read(path) {
        Err(analysis::RecordError::Io { source, .. })
            if source.kind() == io::ErrorKind::NotFound =>
        {
            let path = path.display();
            return Err(Error::NoRecord(format!("no records in {path}")));
        }
        records => records?,
    };
    for damaged in &records.damaged {
        let (path, line) = (path.display(), damaged.line);
        terminal
            .print_line(&format!("{path}, line {line}: not a record, skipped: {}", damaged.why));
    }
    Ok(records)
}

impl Against {
    /// Resolves `--against`: `last`, a file, or a commit.
    pub(super) fn find(args: &args::Bench, terminal: &Terminal) -> Result<Option<Self>, Error> {
        let Some(what) = &args.against else { return Ok(None) };
        let path = Path::new(what);
        if what != "last" && path.is_file() {
            if is_program(path)? {
                return Ok(Some(Self::Program(path.canonicalize()?)));
            }
            let records = read(path, terminal)?;
            return Baseline::choose(args, records, |_| true).map(Some);
        }
        let records = read(&records_file(args.records.records.as_deref()), terminal)?;
        let commit = |report: &Report| {
            let commit = report.manifest.commit.as_deref();
            what == "last" || commit.is_some_and(|commit| commit.starts_with(what.as_str()))
        };
        Baseline::choose(args, records, commit).map(Some)
    }
}

fn is_program(path: &Path) -> Result<bool, Error> {
    let mut start = [0; 4];
    let read = File::open(path)?.read(&mut start)?;
    Ok(start[..read] == *b"\x7fELF" || start[..read].starts_with(b"#!"))
}

impl Baseline {
    /// Chooses the latest valid matching record, of the model, device and threads on the command
    /// line if there is one.
    fn choose(
        args: &args::Bench,
        records: Records,
        meant: impl Fn(&Report) -> bool,
    ) -> Result<Against, Error> {
        let path = records.path.display().to_string();
        let history: Vec<Report> = records.reports.into_iter().map(|(_, report)| report).collect();
        let choice = &args.model;
        let alike = |report: &&Report| {
            let m = &report.manifest;
            let model = choice.model.as_deref().map(id);
            model.is_none_or(|id| id.eq_ignore_ascii_case(&m.model.id))
                && choice.backend.is_none_or(|b| b == Backend::Auto || b.to_string() == m.device)
                && choice.threads.is_none_or(|threads| threads == m.threads)
        };
        let valid = || history.iter().rev().filter(|r| r.invalid.is_empty() && meant(r));
        let found = valid().find(alike).or_else(|| valid().next()).cloned();
        let before = found.ok_or_else(|| {
            let what = args.against.as_deref().unwrap_or("last");
            Error::NoRecord(format!(
                "{path} has no valid record for --against {what} among its {}",
                history.len()
            ))
        })?;
        Ok(Against::Record(Box::new(Self { before, history })))
    }

    /// Uses the record's tests and number of repetitions if the command line names none.
    pub(super) fn fill(&self, spec: &mut Spec) {
        let manifest = &self.before.manifest;
        if spec.prompts.is_none() && spec.generate.is_none() {
            let lengths = |kind| {
                let mut all: Vec<u32> = Vec::new();
                for row in self.before.rows.iter().filter(|row| row.test.kind == kind) {
                    if !all.contains(&row.test.tokens) {
                        all.push(row.test.tokens);
                    }
                }
                Some(all)
            };
            spec.prompts = lengths(Kind::Prefill);
            spec.generate = lengths(Kind::Decode);
            spec.depths.clone_from(&manifest.spec.depths);
            spec.batches.clone_from(&manifest.spec.batches);
        }
        spec.repetitions = spec.repetitions.or(Some(manifest.repetitions));
    }

    /// Uses the record's context and slots if they are large enough.
    pub(super) fn room(&self, room: Room) -> Room {
        let context = self.before.manifest.context;
        Room { context: room.context.map(|needed| needed.max(context)), ..room }
    }

    /// Rejects known differences before anything is measured.
    pub(super) fn expect(&self, session: &Session) -> Result<(), Error> {
        let before = &self.before.manifest;
        let loaded = &session.model;
        let mut now = Manifest {
            device: loaded.device.name.clone(),
            device_description: loaded.device.description.clone(),
            threads: loaded.device.threads,
            context: loaded.context,
            ..before.clone()
        };
        now.model.id.clone_from(&loaded.id);
        now.model.file_type.clone_from(&loaded.file_type);
        now.model.bytes = loaded.bytes;
        if session.private.is_some() {
            now.debug_build = cfg!(debug_assertions);
        }
        match analysis::differences(before, &now) {
            none if none.is_empty() => Ok(()),
            some => Err(Error::Unlike(some)),
        }
    }

    pub(super) fn judge(&self, now: &Report, threshold: f64) -> Result<Gate, Vec<Difference>> {
        let history: Vec<&Report> = self.history.iter().collect();
        Gate::of_record(&self.before, now, &history, threshold)
    }
}

/// Returns the id of a model that is named so on the command line.
fn id(model: &str) -> String {
    let stem = || Path::new(model).file_stem().map(|stem| stem.to_string_lossy().into_owned());
    let named = if model.starts_with("synthetic:") { None } else { stem() };
    named.unwrap_or_else(|| model.to_owned())
}

/// Measures another build and this one in alternating order, round by round: `[the other, this]`.
pub(super) async fn in_turn(
    program: &Path,
    mut spec: Spec,
    args: &args::Bench,
    terminal: &Terminal,
) -> Result<[Report; 2], Error> {
    if spec.prompts.is_none() && spec.generate.is_none() {
        spec.generate = Some(vec![GENERATE]);
        spec.prompts = Some(vec![PROMPT]);
    }
    spec.prompts.get_or_insert_default();
    spec.generate.get_or_insert_default();
    spec.repetitions = spec.repetitions.or(Some(1));
    spec.roof = false;
    let context = Some((spec.context() as usize).next_multiple_of(64));
    let room = Room { slots: spec.slots() as usize, context };
    let model = args.model.model.as_deref().unwrap_or(DEFAULT_MODEL);
    terminal.print_line(&format!(
        "measuring {} and this build alternately with {model}, {} pairs",
        program.display(),
        args.pairs
    ));
    let mut reports: [Option<Report>; 2] = [None, None];
    let mut processes = None;
    let block = args.pairs.div_ceil(BLOCKS);
    for round in 0..args.pairs {
        // Stop the previous daemons first: their memory may be needed.
        if round % block == 0 {
            drop(processes.take());
        }
        let [other, own] = match &mut processes {
            Some(processes) => processes,
            none => none.insert([
                Session::of(program, &args.model, room, terminal).await?,
                Session::private(&args.model, room, terminal).await?,
            ]),
        };
        let live = terminal.steps();
        live.set(round.into(), args.pairs.into(), format!("pair {} of {}", round + 1, args.pairs));
        spec.warmup = if round % block == 0 { args.warmup } else { 0 };
        // Alternate the order: the second build meets a warmer machine.
        let clients = [&other.client, &own.client];
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for which in order {
            let report: Report = clients[which].bench(&spec, |_: Progress| {}).await?;
            match &mut reports[which] {
                Some(all) => all.add(report),
                none => *none = Some(report),
            }
        }
    }
    let [Some(before), Some(now)] = reports else {
        return Err(Error::Usage("--pairs needs at least one pair".into()));
    };
    Ok([before, now])
}

#[derive(Serialize)]
struct Document<'a> {
    gate: &'a Gate,
    report: &'a Report,
}

/// Prints the verdict and returns its exit code.
pub(super) fn show(gate: &Gate, report: &Report, json: bool) -> Result<ExitCode, Error> {
    text::show(&Document { gate, report }, json, |document| {
        format!("{}\n{}", analysis::table(report), table(document.gate))
    })?;
    Ok(ExitCode::from(match gate.verdict {
        Verdict::Faster | Verdict::Same => 0,
        Verdict::Slower => 1,
        Verdict::CannotTell => 2,
        Verdict::Invalid => 3,
    }))
}

const fn word(verdict: Verdict) -> &'static str {
    match verdict {
        Verdict::Faster => "faster",
        Verdict::Same => "same",
        Verdict::Slower => "SLOWER",
        Verdict::CannotTell => "cannot tell",
        Verdict::Invalid => "INVALID",
    }
}

fn table(gate: &Gate) -> String {
    let heads = ["test", "before", "now", "now/before", "interval", "verdict"].map(str::to_owned);
    let mut rows = vec![heads.to_vec()];
    for row in &gate.rows {
        let interval = row.interval.map_or_else(
            || "?".to_owned(),
            |i| format!("{:.3} to {:.3} ({:.1} %)", i.low, i.high, 100.0 * i.confidence),
        );
        rows.push(vec![
            row.name.clone(),
            format!("{:.2}", row.before),
            format!("{:.2}", row.now),
            format!("{:.3}", row.ratio),
            interval,
            word(row.verdict).to_owned(),
        ]);
    }
    let commit = gate.before.commit.as_deref().unwrap_or("no commit");
    let percent = 100.0 * gate.threshold;
    let mut text = format!(
        "Against orind {} ({commit}) of {}, threshold {percent} %\n\n{}\n{}\nNoise: {}.\n",
        gate.before.version,
        gate.before.date,
        text::table(&rows, &[1, 2, 3]),
        analysis::RULE,
        gate.noise
    );
    for reason in &gate.invalid {
        text.push_str(&format!("INVALID: {reason}\n"));
    }
    text.push_str(&format!("Verdict: {}{}\n", word(gate.verdict), advice(gate)));
    text
}

fn advice(gate: &Gate) -> String {
    let slower = |row: &&analysis::TestVerdict| row.verdict == Verdict::Slower;
    match gate.verdict {
        Verdict::Slower => {
            let by = |row: &analysis::TestVerdict| {
                format!("{} by {:.1} %", row.name, 100.0 * (1.0 - row.ratio))
            };
            let rows: Vec<String> = gate.rows.iter().filter(slower).map(by).collect();
            format!(", {}", rows.join(", "))
        }
        Verdict::CannotTell => {
            "; a quieter machine, more repetitions (-r), or pairs with the other build \
             (--against PROGRAM --pairs N) make the interval narrower"
                .into()
        }
        Verdict::Faster | Verdict::Same | Verdict::Invalid => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_ids_match_those_of_a_load() {
        assert_eq!(id("synthetic:qwen3-0.6b:q8_0"), "synthetic:qwen3-0.6b:q8_0");
        assert_eq!(id("/models/llama-3.2-1b-q6_k.gguf"), "llama-3.2-1b-q6_k");
    }

    #[test]
    fn programs_and_record_files_are_told_apart() {
        assert!(is_program(Path::new("/proc/self/exe")).unwrap());
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        for (text, program) in [("#!/bin/sh\n", true), ("{\"format\": 1}", false), ("", false)] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(is_program(&path).unwrap(), program, "{text}");
        }
    }
}
