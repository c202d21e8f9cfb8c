//! `orinctl first-contact`: runs the experiments of the hardware probe on an Orin and writes the
//! answers to a file, without daemon or model.

use std::io::{BufRead, IsTerminal, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tegra_profile::{Experiment as Record, Profile, Verdict};

use super::args;
use super::error::Error;
use super::terminal::{Live, Terminal};
use super::text;
use tegra_probe::runner::{self, Choice, Progress, Run, Wanted};
use tegra_probe::{EXPERIMENTS, Risk};

pub(super) fn run(args: &args::FirstContact, terminal: &Terminal) -> Result<(), Error> {
    let wanted = Wanted { only: &args.only, also: &args.risky, skip: &args.skip };
    let mut choices = wanted.choose().map_err(|error| usage(&error))?;
    if args.list {
        return text::page(&list());
    }
    runner::look_for_orin().map_err(|error| Error::NoOrin { error: Box::new(error) })?;
    let (mut profile, file) = match &args.resume {
        Some(file) => (runner::resume(file, &mut choices)?, file),
        None => (runner::begin(&args.output)?, &args.output),
    };
    let simulated = profile.machine.simulated;
    announce(&mut choices, args.yes || simulated, terminal)?;
    let forbidden = |choice: &&Choice| choice.experiment.forbidden && choice.left_out.is_none();
    for choice in choices.iter().filter(forbidden).filter(|_| simulated) {
        let name = choice.experiment.name;
        terminal.print_line(&format!(
            "`{name}` breaks a rule on purpose: a simulated Orin ends it, so its crash is expected."
        ));
    }

    let stop = Arc::new(AtomicBool::new(false));
    let stopping = Arc::clone(&stop);
    ctrlc::set_handler(move || stopping.store(true, Ordering::Relaxed))
        .map_err(|e| Error::Setup { what: "handling Ctrl-C", source: std::io::Error::other(e) })?;
    let limit = args.time_limit.map(|seconds| Duration::from_secs_f64(seconds.min(86400.0)));
    let run = Run { choices: &choices, file, limit, stop: &stop };
    let live = terminal.steps();
    let total = choices.iter().filter(|choice| choice.left_out.is_none()).count() as u64;
    let mut done = 0;
    run.make(&mut profile, |progress| match progress {
        Progress::Begins(experiment) => live.set(done, total, experiment.name),
        Progress::Ended(record) => {
            done += 1;
            live.set(done, total, record.name.clone());
            report(record, simulated, &live, terminal);
        }
    })?;
    drop(live);
    if args.json {
        let mut json = profile.to_json().map_err(tegra_probe::Error::from)?;
        json.push('\n');
        text::json_text(&json)?;
    } else {
        text::page(&table(&profile))?;
    }
    terminal.print_line(&format!("written to {}", file.display()));
    if stop.load(Ordering::Relaxed) {
        return Err(Error::Interrupted);
    }
    Ok(())
}

fn usage(error: &tegra_probe::Error) -> Error {
    Error::Usage(format!("{error}; `orinctl first-contact --list` lists all"))
}

/// Prints which experiments may do harm and their known risks. Asks for consent once, if there is a
/// terminal, for those not named on the command line.
fn announce(choices: &mut [Choice], agreed: bool, terminal: &Terminal) -> Result<(), Error> {
    let harm = |choice: &Choice| match choice.experiment.risk {
        Risk::Risky(what) | Risk::Dangerous(what) if choice.left_out.is_none() => Some(what),
        _ => None,
    };
    let show = |choices: &[Choice], named: bool| {
        let chosen = choices.iter().filter(|choice| choice.named == named);
        let row = |choice: &Choice| {
            Some(vec![format!("  {}", choice.experiment.name), harm(choice)?.to_owned()])
        };
        text::columns(&chosen.filter_map(row).collect::<Vec<_>>(), &[]).trim_end().to_owned()
    };
    let named = show(choices, true);
    if !named.is_empty() {
        terminal.print_line("Requested by name:");
        terminal.print_line(&named);
    }
    let risky = show(choices, false);
    if risky.is_empty() || agreed {
        return Ok(());
    }
    terminal.print_line("The last experiments do on purpose what programs should not do:");
    terminal.print_line(&risky);
    let reason = if std::io::stdin().is_terminal() {
        let _ = write!(std::io::stderr(), "Run these too? [y/N] ");
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line)?;
        if matches!(line.trim(), "y" | "Y" | "yes") {
            return Ok(());
        }
        "declined"
    } else {
        terminal.print_line(
            "They are skipped because there is no terminal to ask; --yes runs them too.",
        );
        "needs consent: --yes runs it"
    };
    for choice in choices.iter_mut() {
        if harm(choice).is_some() && !choice.named {
            choice.left_out = Some(reason.into());
        }
    }
    Ok(())
}

fn list() -> String {
    let mut rows = vec![["EXPERIMENT", "QUESTION", "RISK"].map(str::to_owned).to_vec()];
    rows.extend(EXPERIMENTS.iter().map(|experiment| {
        let risk = match experiment.risk {
            Risk::Harmless => "none".into(),
            Risk::Risky(what) => format!("risky: {what}"),
            Risk::Dangerous(known) => format!("dangerous, runs only by name: {known}"),
        };
        vec![experiment.name.into(), experiment.question.into(), risk]
    }));
    text::table(&rows, &[])
}

/// Prints one line per answer as soon as it arrives.
fn report(record: &Record, simulated: bool, live: &Live, terminal: &Terminal) {
    let (name, verdict) = (&record.name, record.verdict.name());
    let line = format!("{name:<24}  {verdict:<9}  {}", summary(record, simulated));
    live.print_line(terminal, &line);
}

/// Returns whether a simulated Orin ended the experiment as expected.
fn is_rightly_ended(record: &Record, simulated: bool) -> bool {
    let is_it = |experiment: &&tegra_probe::Experiment| experiment.name == record.name;
    let forbidden = EXPERIMENTS.iter().find(is_it).is_some_and(|experiment| experiment.forbidden);
    simulated && forbidden && record.verdict == Verdict::Crashed
}

/// Formats the answer, or the reason for its absence, on one line.
fn summary(record: &Record, simulated: bool) -> String {
    if is_rightly_ended(record, simulated) {
        return "as expected: a simulated Orin ends programs that break this rule".into();
    }
    let text = match &record.error {
        Some(error) if record.answer.is_empty() => error,
        _ => &record.answer,
    };
    // The error output follows a line feed; its first line is the most informative one.
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
        rows.push(vec![
            record.name.clone(),
            record.verdict.name().into(),
            time,
            summary(record, profile.machine.simulated),
        ]);
    }
    let machine = &profile.machine;
    let ended = |record: &&Record| is_rightly_ended(record, machine.simulated);
    let ended = profile.experiments.iter().filter(ended).count();
    let tally: Vec<String> = runner::tally(profile)
        .iter()
        .map(|(verdict, count)| match *verdict == Verdict::Crashed.name() && ended > 0 {
            true => format!("{count} {verdict}, {ended} of them as expected"),
            false => format!("{count} {verdict}"),
        })
        .collect();
    let unknown = || "unknown".to_owned();
    let board = if machine.simulated {
        "a simulated Orin".to_owned()
    } else {
        machine.model.clone().unwrap_or_else(unknown)
    };
    let log = match machine.driver_log.as_deref() {
        None | Some("read") => String::new(),
        Some(why) => {
            format!("The drivers' log lines are missing: {why}. `sudo dmesg` shows them.\n")
        }
    };
    format!(
        "{}\n{board}, L4T {}, {} SMs: {}\n{log}",
        text::table(&rows, &[2]),
        machine.l4t.clone().unwrap_or_else(unknown),
        machine.sms.map_or_else(unknown, |sms| sms.to_string()),
        tally.join(", "),
    )
}
