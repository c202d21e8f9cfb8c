//! `tegra`: the Jetson Orin GPU without CUDA: the drivers' interface and the command front end.
//!
//! The arrows inside run one way. [`abi`] names what the kernel takes and [`class`] what the
//! hardware reads; [`address`] is the 40-bit address; [`pushbuffer`] and [`qmd`] build command
//! streams and launch descriptions from them, with [`local_memory`] for the threads' stacks; and
//! [`queue`] hands streams to the GPU and tells what has completed.
//!
//! The crate knows nothing of models or kernels. Facts are sourced where they stand: "header" is an
//! L4T uapi header or one of NVIDIA's class headers, "manual" a public register manual of the same
//! family, "seen on hardware" and "proven" an observation on a Jetson AGX Orin with L4T r36.4.4,
//! "inferred" a conclusion nobody has tested on a device yet.

pub mod abi;
pub mod address;
pub mod class;
pub mod local_memory;
pub mod pushbuffer;
pub mod qmd;
pub mod queue;
