//! First light: what a device must have shown on this machine before a model's weights are read, and
//! the mode that it then runs in.
//!
//! Owns the words: stages, modes, and how a device offers its proofs. What a stage does belongs to
//! the device; what is remembered of it, and [`Stage::Model`], to the engine.

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Device, Result};

/// What is proven, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stage {
    /// A channel opens, and all that the driver places lies below 2^40.
    Channel,
    /// An empty release arrives, with its timestamp.
    Release,
    /// The event wakes a sleeper.
    Event,
    /// One launch gives the right integers.
    Launch,
    /// Chains of launches run in order, to their end.
    Order,
    /// The last block of a launch is found by counting.
    Atomics,
    /// The GPU sees what the CPU writes, and the other way round.
    Handover,
    /// A tiny model gives the CPU's tokens.
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

/// How many launches the hardware is given at once, most first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Chains {
    /// One chain a step, of a second at most.
    Full,
    /// Chains of at most 32 launches and about 50 ms, so that others on the GPU get their turn.
    Split,
    /// Each launch by itself.
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

    /// The next rung down.
    #[must_use]
    pub const fn lower(self) -> Option<Self> {
        match self {
            Self::Full => Some(Self::Split),
            Self::Split => Some(Self::Serial),
            Self::Serial => None,
        }
    }
}

/// What ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WakeBy {
    /// The GPU's interrupt.
    Event,
    /// A look at memory each millisecond.
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

/// How weights and code are mapped for the GPU.
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

/// Where the GPU's addresses end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Range {
    /// So far below 2^40 that the driver's own addresses lie below it too.
    #[default]
    Short,
    /// As in all programs that were seen to run on an Orin.
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

/// How a device is used. What has been proven may be used; the default needs the least proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Mode {
    pub chains: Chains,
    /// Most launches of a chain.
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

/// What is told while stages run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note<'a> {
    Begins(Stage),
    Passed(Stage),
    /// The stage failed in a way that a lower mode does without; why.
    Degraded(Stage, &'a str),
}

/// A device that can be proven.
pub trait FirstLight {
    /// For which hardware and driver proofs hold.
    fn key(&self) -> String;

    /// Runs the stages that mean something on the device, but [`Stage::Model`]; each is told before it
    /// begins and after it has ended. Gives the mode that they allow, `wanted` at most; none of a device that
    /// has no modes.
    ///
    /// # Errors
    /// [`crate::Error::Lost`] with the stage in its reason when there is no mode without it; what `note`
    /// fails with, at once.
    fn prove(
        &self,
        wanted: Mode,
        note: &mut dyn FnMut(Note<'_>) -> Result<()>,
    ) -> Result<Option<Mode>>;

    /// The same device, which opens instances in this mode.
    fn in_mode(&self, mode: Mode) -> Arc<dyn Device>;
}
