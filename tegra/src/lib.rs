//! `tegra`: the Jetson Orin GPU without CUDA: the drivers' interface and the command front end.
//!
//! The arrows inside run one way. Pure, and usable without a GPU: [`abi`] names what the kernel
//! takes and [`class`] what the hardware reads; [`address`] is the 40-bit address; [`pushbuffer`]
//! and [`qmd`] build command streams and launch descriptions from them, with [`local_memory`] for
//! the threads' stacks; [`queue`] keeps the books of a ring.
//!
//! On them stand the wrappers, which own what they name: [`orin`] opens the nodes; [`space`] is an
//! address space and [`buffer`] the memory in it; [`channel`] brings channels up in the one order
//! that works, with the [`doorbell`] to ring; [`context`] runs queues over them, waits, and recovers
//! from faults; [`mod@copy`] moves memory with the copy engine. What can go wrong is an [`error`], what a
//! dead GPU leaves behind a [`fault`].
//!
//! The crate knows nothing of models or kernels. Facts are sourced where they stand: "header" is an
//! L4T uapi header or one of NVIDIA's class headers, "manual" a public register manual of the same
//! family, "seen on hardware" and "proven" an observation on a Jetson AGX Orin with L4T r36.4.4,
//! "inferred" a conclusion nobody has tested on a device yet.

#![warn(missing_docs)]

pub mod abi;
pub mod address;
mod barrier;
pub mod buffer;
pub mod channel;
pub mod class;
pub mod context;
pub mod copy;
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
