//! `orinctl parity --ops`: compares tensor operations of devices with PyTorch's results.

use std::fmt::Write as _;

use serde::Serialize;

use super::args;
use super::error::Error;
use super::terminal::Terminal;
use super::text;
use parity::ops::{self, Counts, Tally};

pub(super) fn run(args: &args::Parity, terminal: &Terminal) -> Result<(), Error> {
    let ops = ops::all()?;
    let live = terminal.spinner();
    let mut devices = Vec::new();
    for name in &args.devices {
        let threads = args.threads.unwrap_or(0);
        devices.push(match super::device::open(name, "auto", threads) {
            Ok(device) => {
                live.message(format!("{} operations on {name}", ops.len()));
                let tally = ops::run(&ops, &*device).map_err(|e| Error::parity(&e.into()))?;
                Tested { name: name.clone(), tally: Some(tally), reason: None }
            }
            Err(reason) => Tested { name: name.clone(), tally: None, reason: Some(reason) },
        });
    }
    drop(live);
    let failed: Vec<&str> = devices.iter().filter(|d| d.failed()).map(|d| &*d.name).collect();
    let verdict = match &failed[..] {
        [] if devices.iter().all(|device| device.tally.is_none()) => {
            Err(Error::Parity("no device is usable here".into()))
        }
        [] => Ok(()),
        names => Err(Error::Parity(format!("{} beyond the tolerance", names.join(", ")))),
    };
    let document = Document { cases: ops.len(), devices };
    text::show(&document, args.json, Document::table)?;
    verdict
}

#[derive(Serialize)]
struct Document {
    cases: usize,
    devices: Vec<Tested>,
}

#[derive(Serialize)]
struct Tested {
    name: String,
    tally: Option<Tally>,
    /// Reason why the device could not be opened.
    reason: Option<String>,
}

impl Tested {
    fn failed(&self) -> bool {
        self.tally.as_ref().is_some_and(|tally| !tally.failures.is_empty())
    }
}

impl Document {
    /// Formats a row per category and a column per device: passed / skipped / failed.
    fn table(&self) -> String {
        let tested = || self.devices.iter().filter_map(|d| Some((&d.name, d.tally.as_ref()?)));
        let mut rows =
            vec![std::iter::once(String::new()).chain(tested().map(|(n, _)| n.clone())).collect()];
        let cell =
            |counts: Counts| format!("{} / {} / {}", counts.passed, counts.skipped, counts.failed);
        let categories = tested().next().map(|(_, tally)| tally.categories.keys().copied());
        for category in categories.into_iter().flatten() {
            let of =
                |tally: &Tally| cell(tally.categories.get(category).copied().unwrap_or_default());
            rows.push(
                std::iter::once(category.to_owned()).chain(tested().map(|(_, t)| of(t))).collect(),
            );
        }
        let all = |tally: &Tally| {
            tally.categories.values().fold(Counts::default(), |a, b| Counts {
                passed: a.passed + b.passed,
                skipped: a.skipped + b.skipped,
                failed: a.failed + b.failed,
            })
        };
        rows.push(
            std::iter::once("all".to_owned()).chain(tested().map(|(_, t)| cell(all(t)))).collect(),
        );
        let right: Vec<usize> = (1..=tested().count()).collect();
        let mut out = format!("{} operations: passed / skipped / failed\n\n", self.cases);
        out.push_str(&text::table(&rows, &right));
        // Writing to a string cannot fail.
        for device in &self.devices {
            if let Some(reason) = &device.reason {
                let _ = writeln!(out, "\n{}: not usable, {reason}", device.name);
            }
            for failure in device.tally.iter().flat_map(|tally| &tally.failures) {
                let _ = writeln!(out, "\n{}: FAILED {failure}", device.name);
            }
        }
        out
    }
}
