//! `orind`: a daemon that runs GGUF language models on NVIDIA Jetson Orin by driving the GPU
//! itself, with a CPU device as the embedded default.
//!
//! The rooms of the house and the direction of the arrows between them are described in
//! `ARCHITECTURE.md`. Both binaries, `orind` and `orinctl`, are thin doors to this library.

pub mod bench;
mod chain;
pub mod cli;
pub mod config;
pub mod control;
pub mod daemon;
pub mod doctor;
pub mod engine;
pub mod parity;
