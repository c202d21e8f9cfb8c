//! `tegra`: the Jetson Orin GPU without CUDA: the drivers' interface and the command front end.
//!
//! Modules depend on each other in one direction. The pure modules work without a GPU: [`abi`]
//! names the ioctls and [`class`] the methods of the hardware; [`address`] is the 40-bit address;
//! [`pushbuffer`] and [`qmd`] encode command streams and launch descriptors from them, with
//! [`local_memory`] for the threads' stacks; [`queue`] does the bookkeeping of a ring.
//!
//! The wrappers own what they name: [`orin`] opens the nodes; [`space`] is an address space and
//! [`buffer`] the memory in it; [`channel`] creates channels in the one order that works, with
//! their [`doorbell`]; [`context`] runs queues over them, waits, and recovers from faults;
//! [`mod@copy`] moves memory with the copy engine. [`error`] lists the failures, [`fault`]
//! describes a dead GPU channel.
//!
//! The crate is independent of models and kernels. Each fact has its source next to it: "header" is
//! an L4T uapi header or one of NVIDIA's class headers, "manual" a public register manual of the
//! same family, "seen on hardware" and "proven" an observation on a Jetson AGX Orin with L4T
//! r36.4.4, "inferred" a conclusion that has not been tested on a device yet.

#![warn(missing_docs)]

pub mod abi;
pub mod address;
mod barrier;
pub mod buffer;
pub mod channel;
pub mod class;
pub mod context;
pub mod copy;
mod cpu_map;
pub mod doorbell;
pub mod error;
pub mod fault;
pub mod local_memory;
mod memory;
mod node;
pub mod orin;
pub mod pushbuffer;
pub mod qmd;
pub mod queue;
pub mod space;

pub use error::Error;
