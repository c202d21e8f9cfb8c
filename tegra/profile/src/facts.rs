//! The facts that programs read from a profile, each defined once: experiments write them under
//! these names, models of the GPU read them.
//!
//! A profile may lack any of them: the experiment may have failed or been left out. Values are
//! untrusted: [`Fact::read`] only returns values that hardware could have.

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
    /// Returns the fact's value, if the profile has one.
    ///
    /// # Errors
    /// [`OutOfBounds`] for an impossible value.
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

/// The experiment that reads the GPU's characteristics.
pub const CHARACTERISTICS: &str = "characteristics";
/// In [`CHARACTERISTICS`]: the driver's whole record, in hexadecimal.
pub const RECORD: &str = "record";
/// The experiment that lists the engines.
pub const ENGINES: &str = "engines";
/// In [`ENGINES`]: the list, as `ID.INSTANCE@RUNLIST` separated by spaces.
pub const ENGINE_LIST: &str = "engines";

const SECOND: f64 = 1e9;

/// From the store to the doorbell until the timestamp of the channel's first release.
pub const DOORBELL: Fact =
    time("doorbell-latency", "doorbell_ns", "from the doorbell to the host unit", 0.1 * SECOND);
/// A semaphore release of the host unit.
pub const RELEASE: Fact =
    time("submission-cost", "release_ns", "a semaphore release of the host unit", 0.01 * SECOND);
/// A ring entry, without the work of its stream.
pub const ENTRY: Fact = time("submission-cost", "entry_ns", "a ring entry", 0.01 * SECOND);
/// A launch of an empty kernel, started by the host unit.
pub const LAUNCH: Fact = time("launch-latency", "launch_ns", "a launch", 0.01 * SECOND);
/// A launch that completion of another starts.
pub const DEPENDENT: Fact =
    time("dependent-launch", "dependent_ns", "a launch that another starts", 0.01 * SECOND);
/// Fixed cost of a copy.
pub const COPY_START: Fact =
    time("copy-bandwidth", "copy_start_ns", "a copy of no length", 0.01 * SECOND);
/// Bandwidth of the copy engine, in 10^9 bytes a second.
pub const COPY_RATE: Fact = Fact {
    experiment: "copy-bandwidth",
    name: "volatile_gb_per_s",
    meaning: "the copy engine's rate",
    least: 0.01,
    most: 1000.0,
};
/// Bandwidth of a reading kernel, in 10^9 bytes a second.
pub const READ_RATE: Fact = Fact {
    experiment: "kernel-bandwidth",
    name: "volatile_gb_per_s",
    meaning: "a kernel's rate of reading",
    least: 0.01,
    most: 1000.0,
};
/// The first compute object of the system, for which the driver builds the golden context.
pub const GOLDEN: Fact = time(
    "bring-up",
    "first_compute_object_cpu_ns",
    "the first compute object of a process",
    100.0 * SECOND,
);
/// System memory that nvmap reports.
pub const MEMORY: Fact = Fact {
    experiment: "largest-allocation",
    name: "total_bytes",
    meaning: "memory for buffers",
    least: (64u64 << 20) as f64,
    most: (1u64 << 40) as f64,
};
/// The largest successful allocation.
pub const LARGEST: Fact = Fact {
    experiment: "largest-allocation",
    name: "largest_bytes",
    meaning: "the largest single allocation",
    least: 4096.0,
    most: (1u64 << 40) as f64,
};
/// Launches of the longest chain with right results. Like the flags below it is not one of
/// [`FACTS`]: [`super::Proven`] uses it.
pub const LONGEST_CHAIN: Fact = Fact {
    experiment: "first-light-order",
    name: "longest",
    meaning: "the longest chain of launches",
    least: 0.0,
    most: (1u64 << 20) as f64,
};

/// A yes-or-no answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Flag {
    pub experiment: &'static str,
    pub name: &'static str,
}

/// The GPU reads and executes through read-only mappings.
pub const READ_ONLY: Flag = Flag { experiment: "read-only-maps", name: "works" };
/// The event wakes a sleeper in time.
pub const EVENT: Flag = Flag { experiment: "first-light-event", name: "woken" };
/// The driver accepts another limit for context switches.
pub const SWITCH_TIMEOUT: Flag = Flag { experiment: "switch-timeout", name: "taken" };

/// [`LARGEST`] is a limit of the driver, not only the end of the search.
pub const LARGEST_IS_LIMIT: &str = "refused_beyond";

/// All facts that are single numbers and that a simulated Orin has too.
pub const FACTS: [Fact; 11] = [
    DOORBELL, RELEASE, ENTRY, LAUNCH, DEPENDENT, COPY_START, COPY_RATE, READ_RATE, GOLDEN, MEMORY,
    LARGEST,
];
