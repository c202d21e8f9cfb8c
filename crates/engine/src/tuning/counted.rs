//! What a simulated Orin counts, as a clock: the records of launches in its trace. A count says how much work a
//! launch is, not how long it takes, and is never used on hardware.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde::Deserialize;

use super::bench::Stopwatch;
use device::tune::Clock;

/// The simulator's variable that names the file.
const TRACE: &str = "TEGRA_SIM_TRACE";

/// Kinds of instructions that are told apart.
const KINDS: [&str; 6] = ["integer", "dot", "float", "shared", "global", "control"];

#[derive(Debug, thiserror::Error)]
#[error(
    "nothing counts here: {TRACE} names no file; run under `tegra-sim run --trace FILE -- ...`, or measure"
)]
pub struct Uncounted;

/// What launches did, by name.
pub type Counts = BTreeMap<&'static str, u64>;

/// Reads what the simulator writes of the launches between start and stop.
#[derive(Debug)]
pub struct Counted {
    trace: PathBuf,
    at: u64,
    /// What the latest sample consists of.
    pub last: Counts,
}

/// A line of the trace, as far as it is about work.
#[derive(Deserialize)]
struct Event {
    work: Option<Work>,
}

#[derive(Deserialize)]
struct Work {
    sectors: u64,
    bank_conflicts: u64,
    instructions: BTreeMap<String, Issued>,
}

#[derive(Deserialize)]
struct Issued {
    warps: u64,
}

impl Counted {
    /// A clock for the simulator that this process runs on.
    pub fn new() -> Result<Self, Uncounted> {
        let trace = std::env::var_os(TRACE).ok_or(Uncounted)?.into();
        Ok(Self { trace, at: 0, last: Counts::new() })
    }

    fn read(&self) -> io::Result<Counts> {
        let mut file = File::open(&self.trace)?;
        file.seek(SeekFrom::Start(self.at))?;
        let mut text = String::new();
        file.read_to_string(&mut text)?;
        let mut counts = Counts::new();
        for line in text.lines() {
            let event: Event = serde_json::from_str(line)?;
            let Some(work) = event.work else { continue };
            *counts.entry("sectors").or_default() += work.sectors;
            *counts.entry("bank_conflicts").or_default() += work.bank_conflicts;
            for (kind, Issued { warps }) in work.instructions {
                *counts.entry("instructions").or_default() += warps;
                if let Some(name) = KINDS.into_iter().find(|name| *name == kind) {
                    *counts.entry(name).or_default() += warps;
                }
            }
        }
        Ok(counts)
    }
}

impl Stopwatch for Counted {
    fn start(&mut self) {
        self.at = std::fs::metadata(&self.trace).map_or(0, |file| file.len());
    }

    fn stop(&mut self) -> Result<f64, String> {
        let path = self.trace.display();
        self.last = self.read().map_err(|error| format!("{path}: {error}"))?;
        // An issue slot for every instruction of a warp, every sector and every pass over a bank. Sectors
        // and not cache misses, which differ a little with the order of the blocks.
        let parts = ["instructions", "sectors", "bank_conflicts"];
        let cost: u64 = parts.iter().filter_map(|name| self.last.get(name)).sum();
        if cost == 0 {
            return Err(format!("{path} says of no launch: is this device simulated?"));
        }
        Ok(cost as f64)
    }

    fn clock(&self) -> Clock {
        Clock::Counted
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn only_launches_between_start_and_stop_count() {
        let trace = tempfile::NamedTempFile::new().unwrap();
        let mut file = trace.reopen().unwrap();
        let mut launch = |dot: u64| {
            let work = r#"{"sectors":3,"bank_conflicts":5,"instructions":{"dot":{"warps":"#;
            writeln!(file, "{{\"work\":{work}{dot}}},\"other\":{{\"warps\":1}}}}}}}}").unwrap();
        };
        launch(1000);
        let mut counted = Counted { trace: trace.path().to_owned(), at: 0, last: Counts::new() };
        counted.start();
        assert!(counted.stop().unwrap_err().contains("no launch"));
        launch(20);
        launch(400);
        assert_eq!(counted.stop(), Ok(438.0));
        let expected =
            [("sectors", 6), ("bank_conflicts", 10), ("instructions", 422), ("dot", 420)];
        assert_eq!(counted.last, expected.into());
    }
}
