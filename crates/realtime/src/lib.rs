//! ONNX networks in the daemon: control loops with deadlines, and sessions for HTTP clients.
//!
//! Clients step [`control_loops`] through shared memory; HTTP requests run [`sessions`]. `onnx`
//! interprets the files. Independent of language models.

pub mod control_loops;
pub mod sessions;
