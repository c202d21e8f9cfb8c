//! Sweeps: every combination of what may be varied is a point, measured once in each round. A [`Sweep`] is what
//! was asked for and of what; [`Log`] its file, which holds what was measured and from which it goes on;
//! [`rows()`] what follows from that.

mod format;
mod log;
mod rows;

use serde::{Deserialize, Serialize};

pub use format::{csv, markdown, table};
pub use log::{Error, Log};
pub use rows::{COLLAPSED, Found, Row, rows};

use bench::Test;
use bench::shuffle;

/// What is measured, and on what: measurements of two sweeps that differ in it do not belong together.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    pub version: String,
    /// Commit of the build.
    pub commit: Option<String>,
    pub processor: Option<String>,
    /// Cores that may be used: a fair share is a share of them.
    pub cores: usize,
    /// What a daemon chooses where it is `None`.
    pub backend: Option<String>,
    pub cpu_isa: Option<String>,
    pub weights: Vec<Weights>,
    /// `None` leaves it to the daemon.
    pub threads: Vec<Option<usize>>,
    /// `None` leaves it to what is remembered, or to the heuristic.
    pub threads_per_row: Vec<Option<u32>>,
    /// Threads beside it that spin.
    pub neighbours: Vec<u32>,
    /// Percent of the cores' time; 100 is no quota.
    pub quotas: Vec<u32>,
    pub tests: Vec<Test>,
    pub seed: u64,
}

/// A model in a type of weights.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights {
    /// As it was asked for.
    pub model: String,
    /// Type that was asked for; else the model's own.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// What a daemon loads.
    pub load: String,
    /// Bytes of the file, and when it was changed, in nanoseconds since 1970: what tells another file of the same
    /// name. `None` of synthetic models, which are a function of their name.
    pub bytes: Option<u64>,
    pub modified: Option<u64>,
}

/// What takes a load of its own.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    pub model: String,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub threads: Option<usize>,
    pub threads_per_row: Option<u32>,
    pub neighbours: u32,
    pub quota: u32,
}

/// One combination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    pub setting: Setting,
    pub test: Test,
}

impl Sweep {
    /// All settings, the last axis fastest, each with what is loaded for it.
    pub fn settings(&self) -> Vec<(Setting, &Weights)> {
        let mut all = Vec::new();
        for weights in &self.weights {
            for &threads in &self.threads {
                for &threads_per_row in &self.threads_per_row {
                    for &neighbours in &self.neighbours {
                        for &quota in &self.quotas {
                            let (model, kind) = (weights.model.clone(), weights.kind.clone());
                            let setting = Setting {
                                model,
                                kind,
                                threads,
                                threads_per_row,
                                neighbours,
                                quota,
                            };
                            all.push((setting, weights));
                        }
                    }
                }
            }
        }
        all
    }

    /// All points, in the order of the axes.
    pub fn points(&self) -> Vec<Point> {
        let of = |setting: Setting| {
            self.tests.iter().map(move |&test| Point { setting: setting.clone(), test })
        };
        self.settings().into_iter().flat_map(|(setting, _)| of(setting)).collect()
    }

    /// The order of a round, counted from 1: settings in a random order by the seed, and within each its tests.
    pub fn round(&self, round: u32) -> Vec<(Setting, &Weights, Vec<Test>)> {
        let mut settings = self.settings();
        shuffle(&mut settings, self.seed, [round, 0]);
        let tests = |place| {
            let mut tests = self.tests.clone();
            shuffle(&mut tests, self.seed, [round, 1 + place]);
            tests
        };
        let all = (0u32..).zip(settings);
        all.map(|(place, (setting, weights))| (setting, weights, tests(place))).collect()
    }

    /// Sequences that a load must have room for: the same for all, so that only what is varied varies.
    pub fn slots(&self) -> usize {
        self.tests.iter().map(|test| test.batch as usize).max().unwrap_or(1)
    }

    /// Tokens that each must have room for.
    pub fn context(&self) -> usize {
        let longest = self.tests.iter().map(Test::context).max().unwrap_or(1);
        usize::try_from(longest).unwrap_or(usize::MAX).next_multiple_of(64)
    }
}

#[cfg(test)]
mod tests;
