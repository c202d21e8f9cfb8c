//! `orinctl first-contact`: runs the experiments of the hardware probe on an Orin and writes the
//! answers to a file. Needs no daemon and no model.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tegra_profile::{Experiment as Record, Profile, Verdict};

use super::args;
use super::error::Error;
use super::terminal::{Live, Terminal};
use super::text;
use tegra_probe::runner::{self, Choice, Progress, Run};
use tegra_probe::{EXPERIMENTS, Risk};

pub(super) fn run(args: &args::FirstContact, terminal: &Terminal) -> Result<(), Error> {
    let mut choices = runner::choose(&args.only, &args.skip).map_err(|error| usage(&error))?;
    if args.list {
        return text::print(&list());
    }
    runner::look_for_orin().map_err(|error| Error::NoOrin { error: Box::new(error) })?;
    let mut profile = runner::begin();
    let simulated = profile.machine.simulated;
    announce(&mut choices, args.yes || simulated, terminal)?;

    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    ctrlc::set_handler(move || stopping.store(true, Ordering::Relaxed))
        .map_err(|e| Error::Setup { what: "handling Ctrl-C", source: std::io::Error::other(e) })?;
    let limit = args.time_limit.map(|seconds| Duration::from_secs_f64(seconds.min(86400.0)));
    let run = Run { choices: &choices, file: &args.output, limit, stop: &stop };
    let live = terminal.steps();
    let total = choices.iter().filter(|choice| choice.left_out.is_none()).count() as u64;
    let mut done = 0;
    run.make(&mut profile, |progress| match progress {
        Progress::Begins(experiment) => live.set(done, total, experiment.name),
        Progress::Ended(record) if record.verdict != Verdict::Skipped => {
            done += 1;
            live.set(done, total, record.name.clone());
            tell(record, &live, terminal);
        }
        Progress::Ended(_) => {}
    })?;
    drop(live);
    if args.json {
        let mut json = profile.to_json().map_err(tegra_probe::Error::from)?;
        json.push('\n');
        text::print(&json)?;
    } else {
        text::print(&table(&profile))?;
    }
    terminal.say(&format!("written to {}", args.output.display()));
    if stop.load(Ordering::Relaxed) {
        return Err(Error::Interrupted);
    }
    Ok(())
}

fn usage(error: &tegra_probe::Error) -> Error {
    Error::Usage(format!("{error}; `orinctl first-contact --list` shows all"))
}

/// Says which experiments break something on purpose, and asks once where somebody can answer.
fn announce(choices: &mut [Choice], agreed: bool, terminal: &Terminal) -> Result<(), Error> {
    let risky = |choice: &Choice| match choice.experiment.risk {
        Risk::Risky(what) if choice.left_out.is_none() => Some((choice.experiment.name, what)),
        _ => None,
    };
    let rows: Vec<Vec<String>> = choices
        .iter()
        .filter_map(risky)
        .map(|(name, what)| vec![format!("  {name}"), what.to_owned()])
        .collect();
    if rows.is_empty() || agreed {
        return Ok(());
    }
    terminal.say("At the end come experiments that do on purpose what programs should not:");
    terminal.say(text::columns(&rows, &[]).trim_end());
    let reason = if std::io::stdin().is_terminal() {
        let _ = write!(std::io::stderr(), "Make these too? [y/N] ");
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line)?;
        if matches!(line.trim(), "y" | "Y" | "yes") {
            return Ok(());
        }
        "not agreed to"
    } else {
        terminal.say("They are left out, since nobody can be asked: --yes makes them too.");
        "not agreed to: --yes makes it"
    };
    for choice in choices.iter_mut() {
        if risky(choice).is_some() {
            choice.left_out = Some(reason.into());
        }
    }
    Ok(())
}

fn list() -> String {
    let mut rows = vec![["EXPERIMENT", "RISK", "QUESTION"].map(str::to_owned).to_vec()];
    rows.extend(EXPERIMENTS.iter().map(|experiment| {
        let risk = match experiment.risk {
            Risk::Harmless => "none",
            Risk::Risky(what) => what,
        };
        vec![experiment.name.into(), risk.into(), experiment.question.into()]
    }));
    text::columns(&rows, &[])
}

/// One line as soon as an answer is there.
fn tell(record: &Record, live: &Live, terminal: &Terminal) {
    let line = format!("{:<24}  {:<9}  {}", record.name, record.verdict.name(), said(record));
    live.say(terminal, &line);
}

/// The answer, or why there is none, on one line.
fn said(record: &Record) -> String {
    let text = match &record.error {
        Some(error) if record.answer.is_empty() => error,
        _ => &record.answer,
    };
    // Last words come behind a line feed; their first line says most.
    let mut lines = text.lines().filter(|line| !line.trim().is_empty());
    let first = lines.next().unwrap_or_default();
    match lines.next() {
        Some(words) => format!("{first} {}", words.trim()),
        None => first.to_owned(),
    }
}

fn table(profile: &Profile) -> String {
    let mut rows = vec![["EXPERIMENT", "VERDICT", "TIME", "ANSWER"].map(str::to_owned).to_vec()];
    for record in &profile.experiments {
        let time = match record.verdict {
            Verdict::Skipped => String::new(),
            _ => format!("{:.1} s", record.seconds),
        };
        rows.push(vec![record.name.clone(), record.verdict.name().into(), time, said(record)]);
    }
    let tally: Vec<String> = runner::tally(profile)
        .iter()
        .map(|(verdict, count)| format!("{count} {verdict}"))
        .collect();
    let machine = &profile.machine;
    let unknown = || "unknown".to_owned();
    let board = if machine.simulated {
        "a simulated Orin".to_owned()
    } else {
        machine.model.clone().unwrap_or_else(unknown)
    };
    format!(
        "{}\n{board}, L4T {}, {} SMs: {}\n",
        text::columns(&rows, &[2]),
        machine.l4t.clone().unwrap_or_else(unknown),
        machine.sms.map_or_else(unknown, |sms| sms.to_string()),
        tally.join(", "),
    )
}
