//! `orinctl history`: prints the series of speeds in the record file.

use super::args;
use super::error::Error;
use super::terminal::Terminal;
use super::{gate, text};
use analysis::Series;

pub(super) fn run(args: &args::History, terminal: &Terminal) -> Result<(), Error> {
    let records = gate::read(&gate::records_file(args.records.records.as_deref()), terminal)?;
    let mut series = Series::of(records.reports.iter().map(|(_, report)| report));
    series.retain(|series| {
        args.model.as_ref().is_none_or(|text| series.model.contains(text.as_str()))
            && args.device.as_ref().is_none_or(|device| series.device == *device)
            && args.test.as_ref().is_none_or(|test| series.test == *test)
    });
    if series.is_empty() {
        let (path, count) = (records.path.display(), records.reports.len());
        return Err(Error::NoRecord(format!("none of the {count} records in {path} matches")));
    }
    text::show(&series, args.json, |series| {
        let one = |series: &Series| {
            let points = if args.plot { series.plot() } else { series.list() };
            format!("{}\n{points}", series.title())
        };
        series.iter().map(one).collect::<Vec<_>>().join("\n")
    })
}
