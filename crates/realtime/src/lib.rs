//! Networks of ONNX files in the daemon: control loops with a deadline, and sessions for HTTP clients.
//!
//! [`control_loops`] are networks that a client steps through shared memory, [`sessions`] those that HTTP requests run.
//! The meaning of a file is `onnx`'s; nothing here knows of language models.

pub mod control_loops;
pub mod sessions;
