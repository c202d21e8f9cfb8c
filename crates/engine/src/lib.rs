//! Sequences, slots, batching, sampling policy: what joins a model and a device. One engine thread owns the
//! device. The rest of the program talks to it through a [`Handle`]: commands go in over a channel, each
//! request gets its own stream of [`Event`]s back. Nothing here knows HTTP, and devices know nothing of it.

mod admission;
mod backend;
mod bandwidth;
mod constraint;
mod core;
mod devices;
mod drafter;
mod drafts;
mod first_light;
mod gbnf;
mod handle;
mod heartbeat;
mod infill;
mod load;
mod loader;
mod logprobs;
mod lookup;
mod plans;
mod prefixes;
mod provenance;
mod request;
mod scheduler;
mod sequence;
mod shaping;
mod slots;
mod stall;
#[cfg(test)]
mod tests;
pub mod tuning;

pub use self::admission::{Admission, Served};
pub use self::bandwidth::GpuBandwidth;
pub use self::constraint::{Constraint, Grammar, Grammars};
pub use self::core::Core;
pub use self::devices::DeviceHealth;
pub use self::first_light::Light;
pub use self::shaping::{Dry, DynamicTemperature, Mirostat, Shaping, Xtc};
pub use device::cpu::pool::at_most_processors;
pub use handle::{Handle, Settings};
pub use infill::Infill;
pub use load::{Text, check, inspect};
pub use prefixes::{PrefixCounts, PrefixStore};
pub use provenance::Provenance;
pub use request::{
    AdapterInfo, AdapterSpec, DeviceInfo, DeviceMemory, Event, FinishReason, Finished,
    GenerateError, LoadError, LoadEvent, LoadSpec, Loading, Logprob, ModelInfo, Request, Scales,
    Snapshot, State, TokenEvent, TokenLogprobs,
};
