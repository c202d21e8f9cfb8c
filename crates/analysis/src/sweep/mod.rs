//! Sweeps: every combination of the varied settings is a point, measured once per round. A
//! [`Sweep`] is the definition, [`Log`] the file of measurements from which it resumes, [`rows()`]
//! the evaluation.

mod format;
mod log;
mod rows;

use serde::{Deserialize, Serialize};

pub use format::{csv, markdown, table};
pub use log::{Error, Log};
pub use rows::{COLLAPSED, Found, Row, rows};

use bench::Test;
use bench::shuffle;

/// Definition of a sweep; measurements of different definitions cannot be combined.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sweep {
    pub version: String,
    /// Commit of the build.
    pub commit: Option<String>,
    pub processor: Option<String>,
    /// Number of usable cores, the basis of fair shares.
    pub cores: usize,
    /// `None` uses the daemon's choice.
    pub backend: Option<String>,
    pub cpu_isa: Option<String>,
    pub weights: Vec<Weights>,
    /// `None` uses the daemon's default.
    pub threads: Vec<Option<usize>>,
    /// `None` uses the stored choice or the heuristic.
    pub threads_per_row: Vec<Option<u32>>,
    /// Number of other threads that spin.
    pub neighbours: Vec<u32>,
    /// Percentage of the cores' time; 100 means no quota.
    pub quotas: Vec<u32>,
    pub tests: Vec<Test>,
    pub seed: u64,
}

/// A model in one weight type.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Weights {
    /// Model name on the command line.
    pub model: String,
    /// Requested type; otherwise the model's own.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// Path or name that the daemon loads.
    pub load: String,
    /// Size of the file, and its modification time in nanoseconds since 1970: they identify the
    /// file. `None` for synthetic models, which their name determines.
    pub bytes: Option<u64>,
    pub modified: Option<u64>,
}

/// Settings that need their own load.
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

/// One combination of settings and test.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Point {
    pub setting: Setting,
    pub test: Test,
}

impl Sweep {
    /// Returns all settings with their weights, the last axis varying fastest.
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

    /// Returns all points in the order of the axes.
    pub fn points(&self) -> Vec<Point> {
        let of = |setting: Setting| {
            self.tests.iter().map(move |&test| Point { setting: setting.clone(), test })
        };
        self.settings().into_iter().flat_map(|(setting, _)| of(setting)).collect()
    }

    /// Order of a round (counted from 1): settings in random order by the seed, tests in random
    /// order within each.
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

    /// Number of slots of every load: the same for all, so that only the varied settings vary.
    pub fn slots(&self) -> usize {
        self.tests.iter().map(|test| test.batch as usize).max().unwrap_or(1)
    }

    /// Context length of each slot.
    pub fn context(&self) -> usize {
        let longest = self.tests.iter().map(Test::context).max().unwrap_or(1);
        usize::try_from(longest).unwrap_or(usize::MAX).next_multiple_of(64)
    }
}

#[cfg(test)]
mod tests;
