//! What of a profile a daemon can use on the machine that it was made on. Whether it is that machine
//! is [`super::Machine::difference`]'s to say.

use std::fmt;

use super::facts::{EVENT, Flag, LARGEST, LARGEST_IS_LIMIT, LONGEST_CHAIN, READ_ONLY};
use super::facts::{OutOfBounds, SWITCH_TIMEOUT};
use super::{Profile, Value, Verdict};

/// The name under which a daemon looks for a profile in its state directory.
pub const FILE_NAME: &str = "first-contact.json";

/// What experiments have shown; `None` of what was not tried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Proven {
    /// Whether the GPU reads and executes through read-only mappings.
    pub read_only_maps: Option<bool>,
    /// Launches of the longest chain whose results were right.
    pub longest_chain: Option<u32>,
    /// Whether the event wakes a sleeper in time.
    pub event: Option<bool>,
    /// Whether the driver takes another limit for context switches.
    pub switch_timeout: Option<bool>,
    /// Bytes of the largest buffer, where the driver refused a larger one that there was memory for.
    pub largest_buffer: Option<u64>,
}

impl Profile {
    /// What it shows of its machine.
    ///
    /// # Errors
    /// [`OutOfBounds`] for a number that cannot be true.
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

    /// An answer that is yes or no. An experiment that was tried and gave none has shown nothing to
    /// rely on: no.
    fn shown(&self, flag: Flag) -> Option<bool> {
        let record = self.experiment(flag.experiment)?;
        let tried = record.verdict != Verdict::Skipped;
        tried.then(|| record.facts.get(flag.name) == Some(&Value::Flag(true)))
    }
}

impl fmt::Display for Proven {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let told = |shown: Option<bool>, yes: &str, no: &str| {
            shown.map(|shown| if shown { yes } else { no }.to_owned())
        };
        let parts = [
            told(self.read_only_maps, "read-only maps work", "read-only maps do not work"),
            self.longest_chain.map(|launches| format!("chains to {launches} launches")),
            told(self.event, "the event wakes", "the event does not wake"),
            told(self.switch_timeout, "the switch limit can be set", "the switch limit is fixed"),
            self.largest_buffer.map(|bytes| format!("buffers to {} MiB", bytes >> 20)),
        ];
        let parts: Vec<String> = parts.into_iter().flatten().collect();
        match parts.is_empty() {
            true => f.write_str("nothing that can be used"),
            false => f.write_str(&parts.join(", ")),
        }
    }
}
