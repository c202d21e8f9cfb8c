//! Cycle counts of a simulated Orin as a clock, from the launch records of its trace. A count measures work,
//! not time, and is never used on hardware.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::PathBuf;

use serde::Deserialize;

use super::bench::Stopwatch;
use device::tune::Clock;

/// Environment variable of the simulator with the path of its trace.
const TRACE: &str = "TEGRA_SIM_TRACE";

/// Kinds of instructions that are counted.
const KINDS: [&str; 6] = ["integer", "dot", "float", "shared", "global", "control"];

#[derive(Debug, thiserror::Error)]
#[error(
    "nothing counts here: {TRACE} names no file; run under `tegra-sim run --trace FILE -- ...`, or measure"
)]
pub struct Uncounted;

/// Totals of launches by name.
pub type Counts = BTreeMap<&'static str, u64>;

/// Reads the launches that the simulator writes between start and stop.
#[derive(Debug)]
pub struct Counted {
    trace: PathBuf,
    at: u64,
    /// Totals of the latest sample.
    pub last: Counts,
}

/// The fields of a trace line that concern work.
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
    /// Opens the trace of the simulator that this process runs on.
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
        // One issue slot for each instruction of a warp, each sector and each pass over a bank. Counts
        // sectors instead of cache misses, which depend slightly on the order of blocks.
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
