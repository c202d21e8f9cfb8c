//! Estimate of a step's time on the Orin of a first-contact profile, for `orinctl plan`. Weights
//! and KV cache are read once at the measured bandwidth, launches are separated by the measured
//! gap, nothing overlaps, and arithmetic is free. The estimate is close for memory-bound decode
//! steps and too low for compute-bound prefill chunks.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use tegra_profile::facts::{self, Fact};
use tegra_profile::{Profile, unit};

use super::error::Error;
use super::text;
use plan::{Bucket, Cost};

/// Streaming multiprocessors of an Orin with all of them enabled.
const ORIN_SMS: u32 = 16;
/// Ring entries of a step: its command stream and its semaphore release.
const ENTRIES: f64 = 2.0;

pub(super) struct Machine {
    profile: Profile,
    file: String,
}

/// Estimated cost of a step; times in nanoseconds.
#[derive(Debug, Serialize)]
pub(super) struct Estimate {
    profile: String,
    machine: String,
    /// Bytes of weights and KV cache that are read.
    bytes: u64,
    /// Read bandwidth in bytes per second.
    bytes_per_second: f64,
    rate_from: &'static str,
    memory_ns: f64,
    launches: usize,
    /// Sum of the gaps between launches; `None` if the profile has no measurement.
    gaps_ns: Option<f64>,
    /// Time from the doorbell to the first launch, plus the release at the end.
    submission_ns: Option<f64>,
    step_ns: f64,
    tokens_per_second: f64,
    /// True if the estimate is only an upper bound of the speed, because the step is probably
    /// compute-bound.
    at_most: bool,
}

impl Machine {
    pub(super) fn read(file: &Path) -> Result<Self, Error> {
        let profile = Profile::read(file).map_err(tegra_probe::Error::from)?;
        Ok(Self { profile, file: file.display().to_string() })
    }

    /// Number of multiprocessors in the profile.
    pub(super) fn sms(machine: Option<&Self>) -> u32 {
        machine.and_then(|machine| machine.profile.machine.sms).unwrap_or(ORIN_SMS)
    }

    fn fact(&self, fact: Fact) -> Result<Option<f64>, Error> {
        fact.read(&self.profile).map_err(|error| Error::Usage(format!("{}: {error}", self.file)))
    }

    /// Returns the kernels' read bandwidth in bytes per second, and its source.
    fn rate(&self) -> Result<(f64, &'static str), Error> {
        if let Some(rate) = self.fact(facts::READ_RATE)? {
            return Ok((rate * 1e9, "a read kernel"));
        }
        // A copy both reads and writes.
        if let Some(rate) = self.fact(facts::COPY_RATE)? {
            return Ok((
                2.0 * rate * 1e9,
                "the copy engine (reads plus writes); no kernel was timed",
            ));
        }
        let experiment = facts::READ_RATE.experiment;
        Err(Error::Usage(format!(
            "{} contains no bandwidth: `orinctl first-contact --only {experiment}` measures it",
            self.file
        )))
    }

    /// Estimates a plan with this cost and number of launches.
    pub(super) fn estimate(
        &self,
        cost: &Cost,
        launches: usize,
        bucket: &Bucket,
    ) -> Result<Estimate, Error> {
        let (rate, rate_from) = self.rate()?;
        let bytes = cost.weight_bytes + cost.state_bytes;
        let memory_ns = bytes as f64 / rate * 1e9;
        let gap = self.fact(facts::DEPENDENT)?;
        let gaps_ns = gap.map(|gap| gap * launches.saturating_sub(1) as f64);
        let parts = [facts::DOORBELL, facts::LAUNCH, facts::RELEASE];
        let parts = parts.into_iter().map(|fact| self.fact(fact)).collect::<Result<Vec<_>, _>>()?;
        let parts: Option<f64> = parts.into_iter().sum();
        let entry = self.fact(facts::ENTRY)?;
        let submission_ns = parts.zip(entry).map(|(parts, entry)| parts + ENTRIES * entry);
        let step_ns = memory_ns + gaps_ns.unwrap_or(0.0) + submission_ns.unwrap_or(0.0);
        let tokens = (bucket.batch * bucket.chunk) as f64;
        let machine = &self.profile.machine;
        let board = match (&machine.model, machine.simulated) {
            (_, true) => "a simulated Orin",
            (Some(board), false) => board,
            (None, false) => "an Orin",
        };
        let sms = machine.sms.map(|sms| format!("{sms} SMs"));
        let state: Vec<String> = machine.power_mode.iter().cloned().chain(sms).collect();
        let state =
            if state.is_empty() { String::new() } else { format!(" ({})", state.join(", ")) };
        Ok(Estimate {
            profile: self.file.clone(),
            machine: format!("{board}{state}"),
            bytes,
            bytes_per_second: rate,
            rate_from,
            memory_ns,
            launches,
            gaps_ns,
            submission_ns,
            step_ns,
            tokens_per_second: tokens / (step_ns.max(1.0) / 1e9),
            at_most: bucket.chunk > 1,
        })
    }
}

impl Estimate {
    pub(super) fn table(&self) -> String {
        let row = |name: &str, time: Option<f64>, what: String| {
            let time = time.map_or_else(|| "not measured".into(), unit::time);
            vec![format!("  {name}"), time, what]
        };
        let (size, rate) = (text::bytes(self.bytes), self.bytes_per_second / 1e9);
        let memory = format!("{size} at {rate:.1} GB/s, measured by {}", self.rate_from);
        let gaps = format!("between {}, measured", self.launches);
        let rows = [
            row("memory", Some(self.memory_ns), memory),
            row("gaps of launches", self.gaps_ns, gaps),
            row("submission", self.submission_ns, "doorbell, first launch, release".into()),
        ];
        let mut out = format!("\nEstimate for {}, from {}:\n", self.machine, self.profile);
        out.push_str(&text::columns(&rows, &[1]));
        let (at_most, why) = if self.at_most {
            ("at most ", "; arithmetic, which bounds prefill, is not included")
        } else {
            ("", "; nothing was run, and arithmetic is not included")
        };
        let (time, speed) = (unit::time(self.step_ns), self.tokens_per_second);
        let _ = writeln!(out, "  {time} a step, {at_most}{speed:.1} tok/s{why}");
        out
    }
}
