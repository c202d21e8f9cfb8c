//! `orinctl verify`: checks the records of a file and prints what is wrong or missing.

use std::fmt::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;

use serde::Serialize;

use super::args;
use super::error::Error;
use super::{gate, text};
use analysis::{Damaged, Findings};

#[derive(Serialize)]
struct Document {
    file: PathBuf,
    records: Vec<Record>,
    damaged: Vec<Damaged>,
}

#[derive(Serialize)]
struct Record {
    line: usize,
    date: String,
    model: String,
    device: String,
    #[serde(flatten)]
    findings: Findings,
}

/// Checks every record, prints the findings, and returns the exit code of the worst one.
pub(super) fn run(args: &args::Verify) -> Result<ExitCode, Error> {
    let file = gate::records_file(args.file.as_deref());
    let records = analysis::read(&file)?;
    let one = |(line, report): &(usize, bench::Report)| Record {
        line: *line,
        date: report.manifest.date.clone(),
        model: report.manifest.model.id.clone(),
        device: report.manifest.device.clone(),
        findings: analysis::verify(report),
    };
    let document = Document {
        file,
        records: records.reports.iter().map(one).collect(),
        damaged: records.damaged,
    };
    text::show(&document, args.json, Document::table)?;
    let wrong = document.records.iter().any(|record| !record.findings.wrong.is_empty());
    let missing = document.records.iter().any(|record| !record.findings.missing.is_empty());
    Ok(ExitCode::from(if wrong || !document.damaged.is_empty() || document.records.is_empty() {
        1
    } else if missing {
        2
    } else {
        0
    }))
}

impl Document {
    fn table(&self) -> String {
        let mut out = String::new();
        let file = self.file.display();
        for Record { line, date, model, device, findings } in &self.records {
            let _ = writeln!(out, "{file}, line {line}: {model} on {device}, {date}");
            for wrong in &findings.wrong {
                let _ = writeln!(out, "    WRONG    {wrong}");
            }
            for missing in &findings.missing {
                let _ = writeln!(out, "    missing  {missing}");
            }
        }
        for Damaged { line, why } in &self.damaged {
            let _ = writeln!(out, "{file}, line {line}: DAMAGED, skipped: {why}");
        }
        let whole = self.records.iter().filter(|r| r.findings == Findings::default()).count();
        let (records, damaged) = (self.records.len(), self.damaged.len());
        let _ = writeln!(
            out,
            "{whole} of {records} records are complete and agree with their samples; {damaged} damaged lines"
        );
        out
    }
}
