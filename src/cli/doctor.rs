//! `orinctl doctor`: runs the checks of the `doctor` crate and prints the findings.

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::process::ExitCode;

use super::args::{self, Connection};
use super::error::Error;
use super::text;
use api::client::Client;
use config::Config;
use device::Kernels;
use device::bring_up;
use device::tune::Declared;
use doctor::{Facts, Finding, Report, Verdict, examine, worst};
use errors::printable;
use telemetry::{Probe, Root};

/// Gathers facts, prints the findings, and returns the exit code of the worst one.
pub(super) async fn run(connection: &Connection, args: &args::Doctor) -> Result<ExitCode, Error> {
    if connection.is_remote() {
        let text = "doctor checks the machine that it runs on; run it there without --tcp";
        return Err(Error::Usage(text.into()));
    }
    let config = match &args.config {
        Some(path) => Config::read(path),
        None => {
            let state_dir = config::client_state_dir(bring_up::FILE);
            Ok(Config { state_dir, ..Config::default() })
        }
    };
    let config = config.and_then(|config| config.check().map(|()| config));
    let config = config.map_err(|error| error.to_string());
    if args.retry_gpu {
        let config = config.as_ref().map_err(|error| Error::Usage(error.clone()))?;
        forget(&config.state_dir)?;
    }
    let socket = connection.socket.clone().unwrap_or_else(config::client_socket);
    // Without a daemon, the other checks still run.
    let status = Client::new(&socket).status().await.ok();
    let (model, devices) = status.map(|status| (status.model, status.devices)).unwrap_or_default();
    let loaded = model.map(|model| model.id);
    let mut facts = Facts::gather(&Probe::new(Root::system()), config, &socket, loaded);
    facts.left = devices.into_iter().filter_map(|d| Some((d.name, d.disabled?))).collect();
    facts.check_tuning(&|key| {
        Kernels::find(key).map(|kernels| Box::new(kernels) as Box<dyn Declared>)
    });
    let findings = examine(&facts);
    let worst = worst(&findings);
    let report = Report::new(&facts, findings);
    if let Some(path) = &args.report {
        let shareable = report.shareable().map_err(std::io::Error::from)?;
        std::fs::write(path, shareable)
            .map_err(|source| Error::Write { file: path.clone(), source })?;
    }
    let plain = std::env::var_os("NO_COLOR").is_some_and(|value| !value.is_empty());
    let colour = std::io::stdout().is_terminal() && !plain;
    if args.json {
        text::json(&report)?;
    } else {
        text::painted_page(&listing(&report.findings, colour))?;
    }
    Ok(ExitCode::from(match worst {
        Verdict::Failure => 4,
        Verdict::Warning => 3,
        Verdict::Note | Verdict::Ok | Verdict::NotApplicable => 0,
    }))
}

/// Clears the records that disable devices, and prints which.
fn forget(state_dir: &Path) -> Result<(), Error> {
    let about = bring_up::forget(state_dir)?;
    let told = match &about[..] {
        [] => format!("no device records in {}", state_dir.display()),
        about => format!(
            "cleared; the next load tests it again: {}; a daemon that lost a device while running \
             must be restarted",
            about.join(", ")
        ),
    };
    std::io::stderr().write_all((printable::line(&told) + "\n").as_bytes()).map_err(Error::from)
}

/// Formats problems first with their fixes, then the rest in short.
fn listing(findings: &[Finding], colour: bool) -> String {
    let mut text = String::new();
    let mut sorted: Vec<&Finding> = findings.iter().collect();
    sorted.sort_by_key(|finding| std::cmp::Reverse(finding.verdict));
    for finding in sorted.iter().filter(|finding| finding.verdict != Verdict::NotApplicable) {
        let (word, paint) = match finding.verdict {
            Verdict::Failure => ("FAILURE", "\x1b[1;31m"),
            Verdict::Warning => ("warning", "\x1b[33m"),
            Verdict::Note => ("note", ""),
            Verdict::Ok | Verdict::NotApplicable => ("ok", ""),
        };
        let (on, off) = if colour && !paint.is_empty() { (paint, "\x1b[0m") } else { ("", "") };
        text.push_str(&format!(
            "{on}{word:<8}{off} {:<17} {}\n",
            finding.check,
            printable::line(&finding.found)
        ));
        for (name, line) in [("why", &finding.why), ("fix", &finding.fix)] {
            if let Some(line) = line {
                text.push_str(&format!("         {name:<17} {}\n", printable::line(line)));
            }
        }
    }
    let absent: Vec<&str> = findings
        .iter()
        .filter(|finding| finding.verdict == Verdict::NotApplicable)
        .map(|finding| finding.check.as_str())
        .collect();
    if !absent.is_empty() {
        text.push_str(&format!("Not applicable here: {}.\n", absent.join(", ")));
    }
    text
}
