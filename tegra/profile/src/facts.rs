//! The facts that programs look for in a profile, each named once: the experiments write them under
//! these names, models of the GPU read them.
//!
//! A profile may lack any of them: its experiment may have failed or been left out. What is there
//! may still be nonsense, since files come from anywhere: [`Fact::read`] gives only what lies within
//! the bounds of what hardware could do.

use super::{Profile, Value};

/// A number that a model of the GPU can use.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fact {
    pub experiment: &'static str,
    pub name: &'static str,
    pub meaning: &'static str,
    pub least: f64,
    pub most: f64,
}

/// A fact with a value beyond its bounds.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("{}.{} is {found}, outside {} to {}", fact.experiment, fact.name, fact.least, fact.most)]
pub struct OutOfBounds {
    pub fact: Fact,
    pub found: String,
}

impl Fact {
    /// Its value, if the profile has one.
    ///
    /// # Errors
    /// [`OutOfBounds`] for a value that cannot be true.
    pub fn read(&self, profile: &Profile) -> Result<Option<f64>, OutOfBounds> {
        let Some(value) = profile.fact(self.experiment, self.name) else { return Ok(None) };
        match value.number().filter(|number| (self.least..=self.most).contains(number)) {
            Some(number) => Ok(Some(number)),
            None => Err(OutOfBounds { fact: *self, found: shown(value) }),
        }
    }
}

fn shown(value: &Value) -> String {
    match value {
        Value::Text(text) => format!("{:?}", text.chars().take(40).collect::<String>()),
        other => super::unit::show("", other),
    }
}

const fn time(
    experiment: &'static str,
    name: &'static str,
    meaning: &'static str,
    most: f64,
) -> Fact {
    Fact { experiment, name, meaning, least: 0.0, most }
}

/// The experiment that asks what the GPU is.
pub const CHARACTERISTICS: &str = "characteristics";
/// In [`CHARACTERISTICS`]: the driver's whole record, as hexadecimal digits.
pub const RECORD: &str = "record";
/// The experiment that asks which engines there are.
pub const ENGINES: &str = "engines";
/// In [`ENGINES`]: the list, as `ID.INSTANCE@RUNLIST` with spaces between.
pub const ENGINE_LIST: &str = "engines";

const SECOND: f64 = 1e9;

/// From the store to the doorbell until the host unit stamps the channel's first release.
pub const DOORBELL: Fact =
    time("doorbell-latency", "doorbell_ns", "from the doorbell to the host unit", 0.1 * SECOND);
/// A semaphore release of the host unit.
pub const RELEASE: Fact =
    time("submission-cost", "release_ns", "a semaphore release of the host unit", 0.01 * SECOND);
/// A ring entry, without what its stream does.
pub const ENTRY: Fact = time("submission-cost", "entry_ns", "a ring entry", 0.01 * SECOND);
/// A launch that the host unit starts, of a kernel that does nothing.
pub const LAUNCH: Fact = time("launch-latency", "launch_ns", "a launch", 0.01 * SECOND);
/// A launch that completion of another starts.
pub const DEPENDENT: Fact =
    time("dependent-launch", "dependent_ns", "a launch that another starts", 0.01 * SECOND);
/// What a copy takes however short it is.
pub const COPY_START: Fact =
    time("copy-bandwidth", "copy_start_ns", "a copy of no length", 0.01 * SECOND);
/// Bytes that the copy engine copies in a second, in units of 10^9.
pub const COPY_RATE: Fact = Fact {
    experiment: "copy-bandwidth",
    name: "volatile_gb_per_s",
    meaning: "the copy engine's rate",
    least: 0.01,
    most: 1000.0,
};
/// Bytes that a kernel reads in a second, in units of 10^9.
pub const READ_RATE: Fact = Fact {
    experiment: "kernel-bandwidth",
    name: "volatile_gb_per_s",
    meaning: "a kernel's rate of reading",
    least: 0.01,
    most: 1000.0,
};
/// The first compute object of the system, which makes the driver build the golden context.
pub const GOLDEN: Fact = time(
    "bring-up",
    "first_compute_object_cpu_ns",
    "the first compute object of a process",
    100.0 * SECOND,
);
/// Memory of the system that nvmap counts.
pub const MEMORY: Fact = Fact {
    experiment: "largest-allocation",
    name: "total_bytes",
    meaning: "memory for buffers",
    least: (64u64 << 20) as f64,
    most: (1u64 << 40) as f64,
};
/// The largest allocation that was given.
pub const LARGEST: Fact = Fact {
    experiment: "largest-allocation",
    name: "largest_bytes",
    meaning: "the largest single allocation",
    least: 4096.0,
    most: (1u64 << 40) as f64,
};
/// Launches of the longest chain whose results were right. Like the flags below not one of [`FACTS`]:
/// it is for [`super::Proven`].
pub const LONGEST_CHAIN: Fact = Fact {
    experiment: "first-light-order",
    name: "longest",
    meaning: "the longest chain of launches",
    least: 0.0,
    most: (1u64 << 20) as f64,
};

/// An answer that is yes or no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    pub experiment: &'static str,
    pub name: &'static str,
}

/// Whether the GPU reads and executes through read-only mappings.
pub const READ_ONLY: Flag = Flag { experiment: "read-only-maps", name: "works" };
/// Whether the event wakes a sleeper in time.
pub const EVENT: Flag = Flag { experiment: "first-light-event", name: "woken" };
/// Whether the driver takes another limit for context switches.
pub const SWITCH_TIMEOUT: Flag = Flag { experiment: "switch-timeout", name: "taken" };

/// Whether [`LARGEST`] is what was refused beyond, and not only where asking stopped.
pub const LARGEST_IS_LIMIT: &str = "refused_beyond";

/// All facts that are single numbers and that a simulated Orin gives too.
pub const FACTS: [Fact; 11] = [
    DOORBELL, RELEASE, ENTRY, LAUNCH, DEPENDENT, COPY_START, COPY_RATE, READ_RATE, GOLDEN, MEMORY,
    LARGEST,
];
