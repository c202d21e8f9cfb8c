//! Channels, their groups, and the order of their creation.
//!
//! A [`Tsg`] is a group of channels that is scheduled, and torn down by a fault, as a unit. Its
//! [`Subcontext`] ties it to an address space. A [`ChannelBuilder`] creates a channel;
//! each of its states has only the driver's next step, so a wrong order does not compile:
//!
//! ```no_run
//! # use tegra::{channel::{ChannelBuilder, RingMemory, Tsg}, orin::Orin, pushbuffer::Engine};
//! # use tegra::space::{AddressSpace, L2};
//! # fn main() -> Result<(), tegra::error::Error> {
//! let orin = Orin::open()?;
//! let space = AddressSpace::new(&orin, L2::Volatile)?;
//! let group = Tsg::open(&orin)?.subcontext(&space)?;
//! let ring = RingMemory::new(&orin, 1024)?;
//! let channel = ChannelBuilder::open(&orin)?
//!     .bind_space(&group)?
//!     .bind_group()?
//!     .disable_watchdog()?
//!     .set_up(ring)?
//!     .allocate_object(Engine::Compute)?;
//! # Ok(()) }
//! ```
//!
//! The group before the address space:
//! ```compile_fail,E0599
//! # fn f(orin: &tegra::orin::Orin) -> Result<(), tegra::error::Error> {
//! tegra::channel::ChannelBuilder::open(orin)?.bind_group()?;
//! # Ok(()) }
//! ```
//! The address space twice:
//! ```compile_fail,E0599
//! # use tegra::{channel::{ChannelBuilder, Subcontext}, orin::Orin};
//! # fn f(orin: &Orin, group: &Subcontext) -> Result<(), tegra::error::Error> {
//! ChannelBuilder::open(orin)?.bind_space(group)?.bind_space(group)?;
//! # Ok(()) }
//! ```
//! The ring while the watchdog runs:
//! ```compile_fail,E0599
//! # use tegra::{channel::{ChannelBuilder, RingMemory, Subcontext}, orin::Orin};
//! # fn f(orin: &Orin, group: &Subcontext, ring: RingMemory) -> Result<(), tegra::error::Error> {
//! ChannelBuilder::open(orin)?.bind_space(group)?.bind_group()?.set_up(ring)?;
//! # Ok(()) }
//! ```
//! The object before the ring:
//! ```compile_fail,E0599
//! # use tegra::{channel::{ChannelBuilder, Subcontext}, orin::Orin, pushbuffer::Engine};
//! # fn f(orin: &Orin, group: &Subcontext) -> Result<(), tegra::error::Error> {
//! ChannelBuilder::open(orin)?.bind_space(group)?.bind_group()?.disable_watchdog()?
//!     .allocate_object(Engine::Copy)?;
//! # Ok(()) }
//! ```
//! One ring for two channels:
//! ```compile_fail,E0382
//! # use tegra::channel::{ChannelBuilder, RingMemory, state::Unwatched};
//! # fn f(a: ChannelBuilder<Unwatched>, b: ChannelBuilder<Unwatched>, ring: RingMemory)
//! # -> Result<(), tegra::error::Error> {
//! a.set_up(ring)?;
//! b.set_up(ring)?;
//! # Ok(()) }
//! ```
//!
//! Owns fds and their memory. Queues, waiting and recovery belong to [`crate::context`].

mod builder;
mod event;
mod group;
mod notifier;
mod ring_memory;

pub use builder::{Channel, ChannelBuilder, Syncpoint, state};
pub use event::Event;
pub use group::{Interleave, Preemption, Subcontext, Tsg};
pub use notifier::{Notice, Notifier};
pub use ring_memory::RingMemory;
