//! Synthetic models: seeded random GGUF files with the shapes, vocabulary sizes and tensor types of real models, for
//! machines without a model or a network.
//!
//! `synthetic:NAME:TYPE` names one. [`Spec::generate`] writes its file to a cache on first use. A name always
//! generates the same file, on any number of cores.
//!
//! The weights of large models are uniform noise, scaled so that activations keep an ordinary size; their text means
//! nothing. The tiny Llama and Qwen3 models follow a planted rule (`planted`) and have a clear most likely token at
//! every step. Each weight is a function of the seed, the tensor's name and its index, and is stored with
//! [`plan::quant::quantise`]. So all types of a model have the same weights up to rounding.
//!
//! The vocabularies are generated too, because real ones are not ours to distribute.

mod build;
mod cache;
mod planted;
mod random;
mod shape;
mod spec;
#[cfg(test)]
mod tests;
mod vocabulary;

pub use cache::{default_cache_dir, default_id, is_missing, locate, locate_while, resolve};
pub use random::SEED;
pub use spec::{Error, PREFIX, Spec, VERSION, VERSION_KEY, is_synthetic, names};
