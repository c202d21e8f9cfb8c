//! Calibration of the simulator with the profile of a real Orin.
//!
//! A profile can replace the times of the virtual clock, the engines, the driver's record and
//! memory limits. Everything else in it describes parts that the simulator does not model;
//! [`Calibration::unused`] lists it.

use std::path::Path;

use tegra_profile::facts::{self, Fact, OutOfBounds};
use tegra_profile::{Profile, Value, Verdict, unit};

use crate::gpu::{Latency, SMS, TICK};

/// Profile of the simulator itself, from `tegra-sim run -- orinctl first-contact`, without CPU
/// times and raw series. A test compares it with the simulator.
pub const SIMULATED: &str = include_str!("simulated.json");

/// Size of the driver's record.
const RECORD_BYTES: usize = 328;
/// Ticks that reading the timer adds between the CPU's read and the doorbell.
const READ_TICKS: u64 = 16;
/// Number of methods of a release and of a copy, whose time the clock adds.
const RELEASE_METHODS: u64 = 5;
const COPY_METHODS: u64 = 8;
/// First bytes of the record of the modelled chip: architecture and implementation.
const CHIP: [u8; 8] = [0x70, 1, 0, 0, 0xb, 0, 0, 0];
/// Offsets in the record: number of powered GPCs, TPCs of each, mask of GPCs.
const GPCS: usize = 12;
const TPCS: usize = 40;
const GPC_MASK: usize = 96;
/// Largest number of engines in a list.
const MOST_ENGINES: usize = 32;
/// Number of runlists of the modelled host.
pub(crate) const RUNLISTS: u32 = 8;

/// An engine: kind, instance, runlist.
pub type Engine = [u32; 3];

/// Powered parts of the chip.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub gpcs: u32,
    /// Powered TPCs of each GPC, at most four.
    pub tpcs_of_gpc: u32,
}

impl Shape {
    /// Number of GPCs of the chip.
    pub const MOST_GPCS: u32 = 2;
    /// Number of TPCs of a GPC.
    pub const MOST_TPCS: u32 = 4;
    pub const SMS_OF_TPC: u32 = 2;

    /// Number of powered SMs.
    pub const fn sms(self) -> u32 {
        self.gpcs * self.tpcs_of_gpc * Self::SMS_OF_TPC
    }
}

impl Default for Shape {
    /// Shape of an Orin AGX 64 GB in its 30 W mode, which powers one of two GPCs.
    fn default() -> Self {
        Self { gpcs: 1, tpcs_of_gpc: 4 }
    }
}

const _: () = assert!(SMS == Shape { gpcs: 1, tpcs_of_gpc: 4 }.sms());

/// Facts of a profile that replace those of the simulated drivers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Hardware {
    /// The driver's record of GPU characteristics.
    pub record: Option<Vec<u8>>,
    /// Engines with their runlists.
    pub engines: Option<Vec<Engine>>,
    /// Memory for buffers in bytes.
    pub memory: Option<u64>,
    /// Largest allocation in bytes.
    pub largest: Option<u64>,
    /// Duration of the first compute object in nanoseconds.
    pub golden_ns: Option<u64>,
}

impl Hardware {
    /// Returns the powered parts that the record states.
    pub fn shape(&self) -> Shape {
        let read =
            |record: &Vec<u8>| Shape { gpcs: word(record, GPCS), tpcs_of_gpc: word(record, TPCS) };
        self.record.as_ref().map_or_else(Shape::default, read)
    }
}

/// A profile as the simulator uses it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Calibration {
    /// Times of the virtual clock.
    pub latency: Latency,
    /// Facts of the drivers.
    pub hardware: Hardware,
    /// Facts that are used: description and value.
    pub taken: Vec<(String, String)>,
    /// Experiments without a counterpart in the simulator.
    pub unused: Vec<String>,
}

/// Error of using a profile.
#[derive(Debug, thiserror::Error)]
pub enum ProfileError {
    #[error("profile {0}")]
    File(#[from] tegra_profile::Error),
    /// A value is out of bounds.
    #[error("profile: {0}")]
    Value(#[from] OutOfBounds),
    /// The driver's record or the list of engines is invalid.
    #[error("profile: {experiment}.{fact} {what}")]
    List {
        experiment: &'static str,
        fact: &'static str,
        /// Description of the error.
        what: String,
    },
}

impl Calibration {
    /// Reads a file.
    pub fn read(path: &Path) -> Result<Self, ProfileError> {
        Self::of(&Profile::read(path)?)
    }

    /// Extracts the facts that the simulator uses. [`ProfileError`] for impossible values.
    pub fn of(profile: &Profile) -> Result<Self, ProfileError> {
        let mut all = Self::default();
        all.take_times(profile)?;
        all.take_limits(profile)?;
        all.take_lists(profile)?;
        let known: Vec<&str> = facts::FACTS
            .iter()
            .map(|fact| fact.experiment)
            .chain([facts::CHARACTERISTICS, facts::ENGINES])
            .collect();
        let answers = profile.experiments.iter().filter(|experiment| {
            matches!(experiment.verdict, Verdict::Expected | Verdict::Differs | Verdict::Measured)
        });
        let unknown = answers.filter(|experiment| !known.contains(&experiment.name.as_str()));
        all.unused.extend(unknown.map(|experiment| experiment.name.clone()));
        Ok(all)
    }

    /// Reads a fact within bounds and records it as used.
    fn fact(&mut self, profile: &Profile, fact: Fact) -> Result<Option<f64>, ProfileError> {
        let value = fact.read(profile)?;
        if let Some(value) = value {
            let shown = unit::show(fact.name, &value.into());
            self.taken.push((fact.meaning.to_owned(), shown));
        }
        Ok(value)
    }

    /// Reads a duration as ticks; at least one, so that time advances.
    fn ticks(&mut self, profile: &Profile, fact: Fact) -> Result<Option<u64>, ProfileError> {
        let ns = self.fact(profile, fact)?;
        Ok(ns.map(|ns| ((ns / TICK as f64).round() as u64).max(1)))
    }

    fn take_times(&mut self, profile: &Profile) -> Result<(), ProfileError> {
        let mut latency = self.latency;
        if let Some(entry) = self.ticks(profile, facts::ENTRY)? {
            latency.entry = entry;
        }
        if let Some(release) = self.ticks(profile, facts::RELEASE)? {
            // The measurement of a release includes its methods.
            let methods = RELEASE_METHODS * latency.method;
            if release > methods {
                latency.release = release - methods;
            } else {
                (latency.method, latency.release) = (0, release);
            }
        }
        if let Some(reaction) = self.ticks(profile, facts::DOORBELL)? {
            let rest =
                READ_TICKS + latency.entry + RELEASE_METHODS * latency.method + latency.release;
            latency.doorbell = reaction.saturating_sub(rest).max(1);
        }
        if let Some(launch) = self.ticks(profile, facts::LAUNCH)? {
            latency.launch = launch;
        }
        if let Some(dependent) = self.ticks(profile, facts::DEPENDENT)? {
            latency.dependent = dependent;
        }
        if let Some(start) = self.ticks(profile, facts::COPY_START)? {
            latency.copy_start = start.saturating_sub(COPY_METHODS * latency.method).max(1);
        }
        if let Some(rate) = self.fact(profile, facts::COPY_RATE)? {
            // 10^9 bytes per second are one byte per nanosecond.
            latency.copy_bytes = ((rate * TICK as f64).round() as u64).max(1);
        }
        if let Some(rate) = self.fact(profile, facts::READ_RATE)? {
            latency.kernel_bytes = ((rate * TICK as f64).round() as u64).max(1);
        }
        self.latency = latency;
        Ok(())
    }

    fn take_limits(&mut self, profile: &Profile) -> Result<(), ProfileError> {
        self.hardware.golden_ns = self.fact(profile, facts::GOLDEN)?.map(|ns| ns as u64);
        self.hardware.memory = self.fact(profile, facts::MEMORY)?.map(|bytes| bytes as u64);
        // Use the largest size only if a larger one was refused.
        let refused = profile.fact(facts::LARGEST.experiment, facts::LARGEST_IS_LIMIT);
        if refused == Some(&true.into()) {
            self.hardware.largest = self.fact(profile, facts::LARGEST)?.map(|bytes| bytes as u64);
        }
        Ok(())
    }

    fn take_lists(&mut self, profile: &Profile) -> Result<(), ProfileError> {
        let text = |experiment, fact| profile.fact(experiment, fact).and_then(Value::text);
        if let Some(list) = text(facts::ENGINES, facts::ENGINE_LIST) {
            self.hardware.engines = Some(engines(list)?);
            self.taken.push(("engines".into(), list.to_owned()));
        }
        if let Some(digits) = text(facts::CHARACTERISTICS, facts::RECORD) {
            self.hardware.record = Some(record(digits)?);
            let sms = self.hardware.shape().sms();
            self.taken.push(("the driver's record".into(), format!("with {sms} SMs")));
        }
        Ok(())
    }
}

fn word(record: &[u8], at: usize) -> u32 {
    let bytes = record.get(at..at + 4).and_then(|bytes| bytes.first_chunk());
    bytes.map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

fn record(digits: &str) -> Result<Vec<u8>, ProfileError> {
    let bad = |what: String| ProfileError::List {
        experiment: facts::CHARACTERISTICS,
        fact: facts::RECORD,
        what,
    };
    let (pairs, rest) = digits.as_bytes().as_chunks::<2>();
    let bytes: Option<Vec<u8>> = pairs
        .iter()
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).ok()?, 16).ok())
        .collect();
    let bytes = bytes.filter(|_| rest.is_empty()).ok_or_else(|| bad("is no hexadecimal".into()))?;
    if bytes.len() != RECORD_BYTES {
        return Err(bad(format!("has {} bytes, not {RECORD_BYTES}", bytes.len())));
    }
    if !bytes.starts_with(&CHIP) {
        return Err(bad("is of another chip than GA10B".into()));
    }
    let (gpcs, tpcs, mask) = (word(&bytes, GPCS), word(&bytes, TPCS), word(&bytes, GPC_MASK));
    let fits = (1..=Shape::MOST_GPCS).contains(&gpcs)
        && (1..=Shape::MOST_TPCS).contains(&tpcs)
        && mask < 1 << Shape::MOST_GPCS
        && mask.count_ones() == gpcs;
    if !fits {
        return Err(bad(format!(
            "has {gpcs} GPCs, mask {mask:#x}, of {tpcs} TPCs: a GA10B has {} of {}",
            Shape::MOST_GPCS,
            Shape::MOST_TPCS
        )));
    }
    Ok(bytes)
}

fn engines(list: &str) -> Result<Vec<Engine>, ProfileError> {
    let bad = |what: String| ProfileError::List {
        experiment: facts::ENGINES,
        fact: facts::ENGINE_LIST,
        what,
    };
    let mut engines = Vec::new();
    for item in list.split_whitespace() {
        let engine = item.split_once('@').and_then(|(engine, runlist)| {
            let (kind, instance) = engine.split_once('.')?;
            Some([kind.parse().ok()?, instance.parse().ok()?, runlist.parse().ok()?])
        });
        let shown: String = item.chars().take(40).collect();
        let engine: Engine =
            engine.ok_or_else(|| bad(format!("has {shown:?}, not KIND.INSTANCE@RUNLIST")))?;
        if engine[2] >= RUNLISTS {
            return Err(bad(format!("has runlist {}, above {}", engine[2], RUNLISTS - 1)));
        }
        if engines.len() == MOST_ENGINES {
            return Err(bad(format!("has more than {MOST_ENGINES} engines")));
        }
        engines.push(engine);
    }
    if !engines.iter().any(|[kind, _, runlist]| (*kind, *runlist) == (0, 0)) {
        return Err(bad("lacks the graphics engine on runlist 0".into()));
    }
    Ok(engines)
}
