//! Error of running a model on a device.

use device::Error;

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Device(#[from] Error),
    #[error("the model's graph")]
    Model(#[from] plan::graph::Error),
    /// A prompt that exceeds the context.
    #[error(
        "a prompt of {tokens} tokens and {steps} steps exceed the context of {context} positions"
    )]
    Long {
        tokens: usize,
        steps: usize,
        /// Trained context of the model, at most 4096.
        context: usize,
    },
}
