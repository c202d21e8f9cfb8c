//! The part of a profile that a daemon uses on the machine that made it.
//! [`super::Machine::difference`] checks that it is that machine.

use std::fmt;

use super::facts::{EVENT, Flag, LARGEST, LARGEST_IS_LIMIT, LONGEST_CHAIN, READ_ONLY};
use super::facts::{OutOfBounds, SWITCH_TIMEOUT};
use super::{Profile, Value, Verdict};

/// The profile's file name in a daemon's state directory.
pub const FILE_NAME: &str = "first-contact.json";

/// Results of experiments; `None` if not tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proven {
    /// The GPU reads and executes through read-only mappings.
    pub read_only_maps: Option<bool>,
    /// Launches of the longest chain with right results.
    pub longest_chain: Option<u32>,
    /// The event wakes a sleeper in time.
    pub event: Option<bool>,
    /// The driver accepts another limit for context switches.
    pub switch_timeout: Option<bool>,
    /// Bytes of the largest buffer, if the driver refused a larger one although memory was free.
    pub largest_buffer: Option<u64>,
}

impl Profile {
    /// Extracts the results for a daemon.
    ///
    /// # Errors
    /// [`OutOfBounds`] for an impossible number.
    pub fn proven(&self) -> Result<Proven, OutOfBounds> {
        let limited = self.fact(LARGEST.experiment, LARGEST_IS_LIMIT) == Some(&Value::Flag(true));
        let largest = LARGEST.read(self)?.filter(|_| limited);
        Ok(Proven {
            read_only_maps: self.shown(READ_ONLY),
            longest_chain: LONGEST_CHAIN.read(self)?.map(|launches| launches as u32),
            event: self.shown(EVENT),
            switch_timeout: self.shown(SWITCH_TIMEOUT),
            largest_buffer: largest.map(|bytes| bytes as u64),
        })
    }

    /// A yes-or-no answer. An experiment that ran without an answer counts as no.
    fn shown(&self, flag: Flag) -> Option<bool> {
        let record = self.experiment(flag.experiment)?;
        let tried = record.verdict != Verdict::Skipped;
        tried.then(|| record.facts.get(flag.name) == Some(&Value::Flag(true)))
    }
}

impl fmt::Display for Proven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |shown: Option<bool>, yes: &str, no: &str| {
            shown.map(|shown| if shown { yes } else { no }.to_owned())
        };
        let parts = [
            text(self.read_only_maps, "read-only maps work", "read-only maps do not work"),
            self.longest_chain.map(|launches| format!("chains to {launches} launches")),
            text(self.event, "the event wakes", "the event does not wake"),
            text(self.switch_timeout, "the switch limit can be set", "the switch limit is fixed"),
            self.largest_buffer.map(|bytes| format!("buffers to {} MiB", bytes >> 20)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => f.write_str("nothing usable"),
            false => f.write_str(&parts.join(", ")),
        }
    }
}
