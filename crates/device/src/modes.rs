//! Bring-up steps of first light, and operating modes of a device.
//!
//! A device implements the steps; the engine stores results and runs [`Stage::Model`].

use std::fmt;

use serde::{Deserialize, Serialize};

/// Bring-up steps, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// A channel opens, and all of the driver's addresses are below 2^40.
    Channel,
    /// An empty release arrives, with its timestamp.
    Release,
    /// The event wakes a waiting thread.
    Event,
    /// One launch computes the right integers.
    Launch,
    /// QMD chains run in order, to their end.
    Order,
    /// Counting finds the last block of a launch.
    Atomics,
    /// The GPU sees the CPU's writes, and the CPU the GPU's.
    Handover,
    /// A tiny model samples the same tokens as on the CPU.
    Model,
}

impl Stage {
    pub const ALL: [Self; 8] = [
        Self::Channel,
        Self::Release,
        Self::Event,
        Self::Launch,
        Self::Order,
        Self::Atomics,
        Self::Handover,
        Self::Model,
    ];

    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::Release => "release",
            Self::Event => "event",
            Self::Launch => "launch",
            Self::Order => "order",
            Self::Atomics => "atomics",
            Self::Handover => "handover",
            Self::Model => "model",
        }
    }
}

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Number of launches that the hardware is given at once, most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Chains {
    /// One QMD chain per step, of at most a second.
    Full,
    /// QMD chains of at most 32 launches and about 50 ms, so that other programs on the GPU get
    /// their turn.
    Split,
    /// Each launch alone.
    Serial,
}

impl Chains {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Full => "full",
            Self::Split => "split",
            Self::Serial => "serial",
        }
    }

    /// Next mode to fall back to.
    #[must_use]
    pub const fn lower(self) -> Option<Self> {
        match self {
            Self::Full => Some(Self::Split),
            Self::Split => Some(Self::Serial),
            Self::Serial => None,
        }
    }
}

/// Way in which a wait ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WakeBy {
    /// The GPU's interrupt.
    Event,
    /// Polls memory every millisecond.
    Poll,
}

impl WakeBy {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Event => "event",
            Self::Poll => "poll",
        }
    }
}

/// GPU mapping of weights and code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Maps {
    #[serde(rename = "ro")]
    ReadOnly,
    #[serde(rename = "rw")]
    ReadWrite,
}

impl Maps {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::ReadOnly => "ro",
            Self::ReadWrite => "rw",
        }
    }
}

/// Upper limit of GPU addresses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Range {
    /// Low enough that the driver's own addresses are below 2^40 too.
    #[default]
    Short,
    /// The range of all programs that are known to run on an Orin.
    Proven,
}

impl Range {
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Short => "short",
            Self::Proven => "proven",
        }
    }
}

/// Operating mode of a device. The default needs the fewest proofs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mode {
    pub chains: Chains,
    /// Most launches of a QMD chain.
    pub longest: u32,
    pub wake: WakeBy,
    pub maps: Maps,
    #[serde(default)]
    pub range: Range,
}

impl Default for Mode {
    fn default() -> Self {
        let (wake, maps, range) = (WakeBy::Event, Maps::ReadWrite, Range::Short);
        Self { chains: Chains::Split, longest: 32, wake, maps, range }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { chains, longest, wake, maps, range } = self;
        write!(f, "{}, wake {}, maps {}", chains.name(), wake.name(), maps.name())?;
        write!(f, ", range {}", range.name())?;
        match chains {
            Chains::Serial => Ok(()),
            Chains::Full | Chains::Split => write!(f, ", chains to {longest}"),
        }
    }
}

/// Progress of the bring-up steps.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note<'a> {
    Begins(Stage),
    Passed(Stage),
    /// The step failed, and a lower mode works without it; with the reason.
    Degraded(Stage, &'a str),
}
