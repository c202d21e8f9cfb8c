//! What follows from the measurements of a sweep: a median and its interval for each point, and how much of its
//! fair share of the machine it made use of.

use serde::Serialize;

use super::{Log, Point, Setting};
use crate::statistics::{CONFIDENCE, Interval, Summary};

/// Below this part of its fair share a point has collapsed: waiting costs it more than its neighbours take.
pub const COLLAPSED: f64 = 0.5;

/// The whole result.
#[derive(Debug, Serialize)]
pub struct Found<'a> {
    pub file: String,
    pub sweep: &'a super::Sweep,
    /// Rounds that were asked for.
    pub rounds: u32,
    /// Ended by Ctrl-C.
    pub interrupted: bool,
    /// The device, in words; empty where nothing was measured.
    pub device: String,
    pub rows: Vec<Row>,
    /// Measurements that are in no row, since the machine changed during them: why.
    pub invalid: Vec<&'a str>,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    #[serde(flatten)]
    pub point: Point,
    /// Its name, as llama-bench writes it.
    pub name: String,
    /// Threads that were used; 0 for a GPU.
    pub threads_used: usize,
    pub tokens_per_second: Summary,
    /// Of the median.
    pub interval: Option<Interval>,
    /// The share of the cores that is its due, 0 to 1.
    pub fair_share: Option<f64>,
    /// Its speed over that which the share is worth: of the same test with the most threads, alone.
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

/// A row for each point that was measured, in the order of the axes.
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

/// Each core's time is divided evenly among the threads that want it, and a quota is the most there is.
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
