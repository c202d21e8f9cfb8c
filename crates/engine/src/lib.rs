//! Inference engine: slots, batching, prefix cache and speculative decoding of one model on one device.
//!
//! One engine thread owns the device. Other threads use a [`Handle`]: commands are sent over a channel, and each
//! request receives a stream of [`Event`]s. The engine is independent of HTTP.

mod admission;
mod auto_context;
mod backend;
mod bandwidth;
mod bench_session;
mod command;
mod devices;
mod draft_model;
mod drafts;
mod events;
mod first_light;
mod handle;
mod heartbeat;
mod idle_tuning;
mod infill;
mod load;
mod loaded_model;
mod loader;
mod logprobs;
mod model_files;
mod placement;
mod prefix_files;
mod prompt_lookup;
mod provenance;
mod request;
mod runner;
mod scheduler;
mod sequence;
mod shared;
mod slots;
mod stall;
#[cfg(test)]
mod tests;
mod text;
pub mod tuning;

pub use admission::Admission;
pub use bandwidth::GpuBandwidth;
pub use bench_session::BenchSession;
pub use device::cpu::pool::at_most_processors;
pub use devices::DeviceHealth;
pub use events::Events;
pub use handle::{Handle, Settings};
pub use infill::Infill;
pub use load::check;
pub use model_files::inspect;
pub use provenance::Provenance;
pub use request::{
    AdapterInfo, AdapterSpec, DeviceInfo, DeviceMemory, Event, FinishReason, Finished,
    GenerateError, Light, LoadError, LoadEvent, LoadSpec, Loading, Logprob, ModelInfo,
    PrefixCounts, PrefixStore, Request, Scales, Snapshot, State, TokenEvent, TokenLogprobs,
};
pub use runner::ModelRunner;
pub use sampling::{
    Constraint, Dry, DynamicTemperature, Grammar, Grammars, LogitsProcessors, Mirostat, Xtc,
    unenforced,
};
pub use shared::Served;
pub use text::Text;
