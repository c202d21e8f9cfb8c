//! Evaluation of a sweep: median and interval of each point, and the share of its fair share of the
//! machine that it used.

use serde::Serialize;

use super::{Log, Point, Setting};
use crate::statistics::{CONFIDENCE, Interval, Summary};

/// Fraction of the fair share below which a point has collapsed: waiting costs more than the
/// neighbours take.
pub const COLLAPSED: f64 = 0.5;

/// Result of a sweep.
#[derive(Debug, Serialize)]
pub struct Found<'a> {
    pub file: String,
    pub sweep: &'a super::Sweep,
    /// Requested number of rounds.
    pub rounds: u32,
    /// Ended by Ctrl-C.
    pub interrupted: bool,
    /// Description of the device; empty if nothing was measured.
    pub device: String,
    pub rows: Vec<Row>,
    /// Reasons of invalid measurements, which are in no row.
    pub invalid: Vec<&'a str>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub point: Point,
    /// Name in llama-bench's notation.
    pub name: String,
    /// Threads used; 0 for a GPU.
    pub threads_used: usize,
    pub tokens_per_second: Summary,
    /// Interval of the median.
    pub interval: Option<Interval>,
    /// Fair share of the cores, 0 to 1.
    pub fair_share: Option<f64>,
    /// Speed relative to the fair share of the same test alone with the most threads.
    pub of_fair_share: Option<f64>,
}

impl<'a> Found<'a> {
    pub fn of(log: &'a Log, rounds: u32, interrupted: bool) -> Self {
        let first = log.measured.first();
        Self {
            file: log.path.display().to_string(),
            sweep: log.sweep(),
            rounds,
            interrupted,
            device: first
                .map_or_else(String::new, |m| m.report.manifest.device_description.clone()),
            rows: rows(log),
            invalid: log.invalid().collect(),
        }
    }
}

/// Returns a row for each measured point, in the order of the axes.
pub fn rows(log: &Log) -> Vec<Row> {
    let cores = log.sweep().cores;
    let mut rows: Vec<Row> = log.sweep().points().into_iter().filter_map(|p| row(log, p)).collect();
    for row in &mut rows {
        row.fair_share = fair_share(&row.point.setting, row.threads_used, cores);
    }
    let shares: Vec<Option<f64>> = rows.iter().map(|row| of_fair_share(row, &rows)).collect();
    for (row, share) in rows.iter_mut().zip(shares) {
        row.of_fair_share = share;
    }
    rows
}

fn row(log: &Log, point: Point) -> Option<Row> {
    let mut measured: Vec<_> = log.valid(&point).collect();
    measured.sort_by_key(|measured| measured.round);
    let speed = |report: &bench::Report| Some(report.rows.first()?.tokens_per_second.median);
    let samples: Vec<f64> = measured.iter().filter_map(|m| speed(&m.report)).collect();
    Some(Row {
        name: point.test.to_string(),
        threads_used: measured.first()?.report.manifest.threads,
        interval: Interval::of_median(&samples, CONFIDENCE),
        tokens_per_second: Summary::of(samples)?,
        fair_share: None,
        of_fair_share: None,
        point,
    })
}

/// Each core's time is divided evenly among its runnable threads; a quota is an upper limit.
fn fair_share(setting: &Setting, threads: usize, cores: usize) -> Option<f64> {
    if threads == 0 || cores == 0 {
        return None;
    }
    let (threads, cores) = (threads as f64, cores as f64);
    let wanted = threads + f64::from(setting.neighbours);
    let divided = threads.min(cores * threads / wanted) / cores;
    Some(divided.min(f64::from(setting.quota) / 100.0))
}

fn of_fair_share(row: &Row, all: &[Row]) -> Option<f64> {
    let alone = |other: &&Row| {
        let (a, b) = (&row.point.setting, &other.point.setting);
        b.neighbours == 0
            && b.quota == 100
            && (&a.model, &a.kind, a.threads_per_row) == (&b.model, &b.kind, b.threads_per_row)
            && other.point.test == row.point.test
    };
    let base = all.iter().rev().filter(alone).max_by_key(|other| other.threads_used)?;
    let worth = |row: &Row| Some(row.tokens_per_second.median / row.fair_share?);
    Some(worth(row)? / worth(base)?)
}
