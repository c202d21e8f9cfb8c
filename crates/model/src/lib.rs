//! Language models: GGUF files, tokenizers and chat templates, hyperparameters and weights, and the graph of one
//! step.
//!
//! Independent of devices: a model's plans map token ids to logits and sampled ids.

#![forbid(unsafe_code)]

mod adapter;
mod architecture;
mod decoder;
mod error;
pub mod gguf;
pub mod hyper;
mod layout;
pub mod mix;
mod model;
mod pieces;
mod pooling;
pub mod ports;
pub mod quantise;
pub mod synthetic;
pub mod tokenizer;
mod weights;

pub use adapter::Adapter;
pub use architecture::Architecture;
pub use error::{AdapterError, Error, MAX_ADAPTERS, Result};
pub use hyper::Hyperparameters;
pub use layout::{KvLayout, MIN_NEXTN_ROWS};
pub use model::Model;
pub use pooling::Pooling;
