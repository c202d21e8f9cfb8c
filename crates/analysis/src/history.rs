//! Speed history: the records of each combination of model, device, thread count and test, oldest
//! first. Changes that exceed the noise are marked.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};

use bench::Report;

/// Width of the plot in columns.
const WIDTH: usize = 24;

/// Series of one model, device, number of threads and test.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    pub model: String,
    /// First digits of the file's SHA-256: another file with the same name is another series.
    pub sha256: Option<String>,
    pub device: String,
    pub threads: usize,
    pub test: String,
    pub points: Vec<Point>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    pub date: String,
    pub commit: Option<String>,
    /// Median in tokens per second.
    pub median: f64,
    pub spread: Option<f64>,
    /// Change from the previous point as a fraction; only if larger than both spreads together.
    pub change: Option<f64>,
    /// The machine changed during the run: the point is shown but not compared.
    pub invalid: bool,
}

impl Series {
    /// Groups reports into series, in order of appearance.
    pub fn of<'a>(reports: impl IntoIterator<Item = &'a Report>) -> Vec<Self> {
        let mut all: Vec<Self> = Vec::new();
        for report in reports {
            let manifest = &report.manifest;
            let sha256 = manifest.provenance.as_ref().and_then(|p| p.model_sha256.as_ref());
            for row in &report.rows {
                let series = Self {
                    model: manifest.model.id.clone(),
                    sha256: sha256.map(|hash| hash.chars().take(8).collect()),
                    device: manifest.device.clone(),
                    threads: manifest.threads,
                    test: row.name.clone(),
                    points: Vec::new(),
                };
                let at = all.iter().position(|known| known.is_the_same(&series));
                let at = at.unwrap_or_else(|| {
                    all.push(series);
                    all.len() - 1
                });
                all[at].add(Point {
                    date: manifest.date.clone(),
                    commit: manifest.commit.clone(),
                    median: row.tokens_per_second.median,
                    spread: row.tokens_per_second.spread,
                    change: None,
                    invalid: !report.invalid.is_empty(),
                });
            }
        }
        all
    }

    fn is_the_same(&self, other: &Self) -> bool {
        let key = |s: &Self| {
            (s.model.clone(), s.sha256.clone(), s.device.clone(), s.threads, s.test.clone())
        };
        key(self) == key(other)
    }

    fn add(&mut self, point: Point) {
        let before = self.points.iter().rev().find(|before| !before.invalid);
        let change = before.filter(|_| !point.invalid).and_then(|before| {
            let relative = |point: &Point| Some(point.spread? / point.median);
            let reach = relative(before)?.hypot(relative(&point)?);
            let ratio = point.median / before.median;
            (ratio.ln().abs() > reach).then_some(ratio - 1.0)
        });
        self.points.push(Point { change, ..point });
    }

    pub fn title(&self) -> String {
        let sha256 = self.sha256.as_ref().map(|hash| format!(" ({hash})")).unwrap_or_default();
        let threads = match self.threads {
            0 => String::new(),
            threads => format!(", {threads} threads"),
        };
        format!("{}{sha256} on {}{threads}: {}, tok/s", self.model, self.device, self.test)
    }

    /// Formats a line per record, with the intervals drawn on one scale.
    pub fn plot(&self) -> String {
        let edge = |sign: f64| {
            self.points.iter().map(move |point| point.median + sign * point.spread.unwrap_or(0.0))
        };
        let low = edge(-1.0).fold(f64::INFINITY, f64::min);
        let high = edge(1.0).fold(f64::NEG_INFINITY, f64::max);
        let scale = (high - low).max(f64::MIN_POSITIVE);
        let column = |value: f64| {
            (((value - low) / scale * (WIDTH - 1) as f64).round() as usize).min(WIDTH - 1)
        };
        let mut text = format!("{:27}{low:<12.2}{high:>12.2}\n", "");
        for point in &self.points {
            let spread = point.spread.unwrap_or(0.0);
            let mut cells = [' '; WIDTH];
            cells[column(point.median - spread)..=column(point.median + spread)].fill('─');
            cells[column(point.median)] = if point.invalid { '?' } else { '●' };
            let drawn: String = cells.iter().collect();
            let _ =
                writeln!(text, "{} {:<9} {drawn} {}", point.when(), point.build(), point.summary());
        }
        text
    }

    /// Formats only the numbers.
    pub fn list(&self) -> String {
        self.points.iter().fold(String::new(), |mut text, point| {
            let _ = writeln!(text, "{} {:<9} {}", point.when(), point.build(), point.summary());
            text
        })
    }
}

impl Point {
    /// Day and minute, UTC.
    fn when(&self) -> String {
        format!("{:<16}", self.date.replace('T', " ").chars().take(16).collect::<String>())
    }

    /// Abbreviated commit; `+` marks modified sources.
    fn build(&self) -> String {
        let Some(commit) = &self.commit else { return "?".into() };
        let clean = commit.strip_suffix("-dirty");
        let short: String = clean.unwrap_or(commit).chars().take(8).collect();
        format!("{short}{}", if clean.is_some() { "+" } else { "" })
    }

    fn summary(&self) -> String {
        let spread = self.spread.map_or_else(|| "?".to_owned(), |spread| format!("{spread:.2}"));
        let mut text = format!("{:.2} ± {spread}", self.median);
        if self.invalid {
            text.push_str("  INVALID");
        }
        if let Some(change) = self.change {
            let _ = write!(text, "  {:+.1} %", 100.0 * change);
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::report;
    use crate::statistics::Summary;

    fn run(commit: &str, speed: f64) -> Report {
        let mut report = report();
        report.manifest.commit = Some(commit.into());
        report.rows[0].tokens_per_second =
            Summary::of(vec![speed, 1.01 * speed, 0.99 * speed, speed, speed]).unwrap();
        report
    }

    #[test]
    fn changes_beyond_the_noise_show_their_commit() {
        let mut broken = run("dddd", 10.0);
        broken.invalid.push("throttled".into());
        let mut other = run("eeee", 50.0);
        other.manifest.threads = 8;
        let all = [
            run("aaaaaaaaaaaa", 100.0),
            run("bbbb-dirty", 101.0),
            run("cccc", 120.0),
            broken,
            other,
            run("ffff", 119.0),
        ];
        let series = Series::of(&all);
        assert_eq!(series.len(), 4, "two tests, two numbers of threads");
        let points = &series[0].points;
        let changes: Vec<bool> = points.iter().map(|point| point.change.is_some()).collect();
        assert_eq!(changes, [false, false, true, false, false]);
        let plot = series[0].plot();
        let lines: Vec<&str> = plot.lines().collect();
        assert_eq!(lines.len(), 6);
        assert!(lines[1].contains("aaaaaaaa ") && lines[2].contains("bbbb+ "), "{plot}");
        assert!(lines[3].contains("+18.8 %") && lines[3].contains('●'), "{plot}");
        assert!(lines[4].contains('?') && lines[4].contains("INVALID"), "{plot}");
        assert!(series[2].title().contains("8 threads: pp512"), "{}", series[2].title());
        assert!(series[0].list().contains("120.00 ± 2."), "{}", series[0].list());
    }

    #[test]
    fn one_record_is_a_series() {
        let series = Series::of(&[run("a", 100.0)]);
        assert!(series[1].plot().contains("20.00 ± ?"), "{}", series[1].plot());
    }
}
