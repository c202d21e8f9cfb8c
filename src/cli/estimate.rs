//! How long a step takes on the Orin that a profile of first contact was made on: an estimate for `plan`.
//! Weights and KV cache are read once at the rate at which a kernel read memory, launches follow each other
//! after the gap that was measured, nothing overlaps, and arithmetic costs nothing. So a decode step of few
//! sequences, which memory bounds, is near it; a prefill chunk, which arithmetic bounds, is slower.

use std::fmt::Write as _;
use std::path::Path;

use serde::Serialize;
use tegra_profile::facts::{self, Fact};
use tegra_profile::{Profile, unit};

use super::error::Error;
use super::text;
use plan::{Bucket, Cost};

/// Streaming multiprocessors of an Orin with all of them on.
const ORIN_SMS: u32 = 16;
/// Ring entries of a step: its stream and its release.
const ENTRIES: f64 = 2.0;

pub(super) struct Machine {
    profile: Profile,
    file: String,
}

/// What a step takes. Times in nanoseconds.
#[derive(Debug, Serialize)]
pub(super) struct Estimate {
    profile: String,
    machine: String,
    /// Bytes of weights and KV cache.
    bytes: u64,
    /// Bytes per second that they are read with.
    bytes_per_second: f64,
    rate_from: &'static str,
    memory_ns: f64,
    launches: usize,
    /// From one launch to the next, all of them; none where the profile lacks it.
    gaps_ns: Option<f64>,
    /// From the doorbell to the first launch, and the release at the end.
    submission_ns: Option<f64>,
    step_ns: f64,
    tokens_per_second: f64,
    /// Arithmetic, which is not in it, is likely what bounds the step.
    at_most: bool,
}

impl Machine {
    pub(super) fn read(file: &Path) -> Result<Self, Error> {
        let profile = Profile::read(file).map_err(tegra_probe::Error::from)?;
        Ok(Self { profile, file: file.display().to_string() })
    }

    /// Multiprocessors: those of the profile.
    pub(super) fn sms(machine: Option<&Self>) -> u32 {
        machine.and_then(|machine| machine.profile.machine.sms).unwrap_or(ORIN_SMS)
    }

    fn fact(&self, fact: Fact) -> Result<Option<f64>, Error> {
        fact.read(&self.profile).map_err(|error| Error::Usage(format!("{}: {error}", self.file)))
    }

    /// Bytes per second at which kernels read, and whose word that is.
    fn rate(&self) -> Result<(f64, &'static str), Error> {
        if let Some(rate) = self.fact(facts::READ_RATE)? {
            return Ok((rate * 1e9, "a kernel that reads"));
        }
        // A copy reads and writes.
        if let Some(rate) = self.fact(facts::COPY_RATE)? {
            return Ok((2.0 * rate * 1e9, "the copy engine, both ways; no kernel was timed"));
        }
        let experiment = facts::READ_RATE.experiment;
        Err(Error::Usage(format!(
            "{} has no bandwidth: `orinctl first-contact --only {experiment}` measures it",
            self.file
        )))
    }

    /// The estimate for a plan of that cost and so many launches.
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
        let memory = format!("{size} at {rate:.1} GB/s, as measured by {}", self.rate_from);
        let gaps = format!("between {}, as measured", self.launches);
        let rows = [
            row("memory", Some(self.memory_ns), memory),
            row("gaps of launches", self.gaps_ns, gaps),
            row("submission", self.submission_ns, "doorbell, first launch, release".into()),
        ];
        let mut out = format!("\nAn estimate for {}, by {}:\n", self.machine, self.profile);
        out.push_str(&text::columns(&rows, &[1]));
        let (at_most, why) = if self.at_most {
            ("at most ", "; arithmetic, which bounds prefill, is not in it")
        } else {
            ("", "; nothing was run, and arithmetic is not in it")
        };
        let (time, speed) = (unit::time(self.step_ns), self.tokens_per_second);
        let _ = writeln!(out, "  {time} a step, {at_most}{speed:.1} tok/s{why}");
        out
    }
}
