//! A daemon that runs GGUF language models on NVIDIA Jetson Orin by driving the GPU itself, with a CPU device
//! as the embedded default; `ARCHITECTURE.md` describes its parts.

pub mod bench;
mod chain;
pub mod cli;
pub mod compare;
pub mod config;
pub mod control;
pub mod daemon;
pub mod doctor;
pub mod engine;
pub mod lanes;
pub mod networks;
pub mod parity;
pub mod quality;
pub mod stages;
mod wording;
