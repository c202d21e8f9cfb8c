//! Failures of bring-up steps.

use tegra::address::AddressError;
use tegra::pushbuffer::OperationError;
use tegra::qmd::QmdError;

/// The expected and the actual result of a failed step.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// A driver refused a request, or work faulted or did not complete.
    #[error(transparent)]
    Gpu(#[from] tegra::Error),
    #[error(transparent)]
    Launch(#[from] QmdError),
    /// Machine code that cannot be launched.
    #[error("kernel {name}: {problem}")]
    Kernel { name: String, problem: String },
    #[error("the driver opened the channel and closed it again")]
    Closed,
    #[error("the driver returned the doorbell token 0: expected the channel id, which is not 0")]
    Token,
    #[error("a release wrote {found:#x}: expected {expected:#x}")]
    Release { expected: u64, found: u64 },
    #[error(
        "a release is stamped {stamp} ns: expected at least {earliest} ns, the stamp of the previous one"
    )]
    Time { earliest: u64, stamp: u64 },
    #[error(
        "{wrong} of {words} words of the probe are wrong, the first in {part}: word {at} is \
         {found:#010x}, expected {expected:#010x}"
    )]
    Probe { wrong: usize, words: usize, part: &'static str, at: usize, found: u32, expected: u32 },
    /// A chain whose first launches ran in order, and the others did not.
    #[error("the chain stopped after {done} of {launches} launches{}", because(.cause.as_ref()))]
    Stopped { done: u32, launches: u32, cause: Option<tegra::Error> },
    #[error(
        "launch {launch} of {launches} wrote {found:#010x}, expected {expected:#010x}: it ran before \
         its predecessor, or did not see the predecessor's word"
    )]
    Order { launch: u32, launches: u32, found: u32, expected: u32 },
    #[error(
        "round {round}: {blocks} blocks left {counter} in the counter, expected 0: the last \
         of them was not detected"
    )]
    Counter { round: u32, blocks: u32, counter: u32 },
    #[error(
        "round {round}: the last of {blocks} blocks combined all writes to {found:#010x}, expected \
         {expected:#010x}"
    )]
    Mark { round: u32, blocks: u32, found: u32, expected: u32 },
    #[error(
        "round {round}: {way} of block {block} summed to {found:#010x}, expected {expected:#010x}: the GPU \
         does not see the CPU's writes"
    )]
    ForGpu { round: u32, way: &'static str, block: usize, found: u32, expected: u32 },
    #[error(
        "round {round}: the CPU reads {found:#010x} at word {at}, expected {expected:#010x}: it does not \
         see the GPU's writes"
    )]
    ForCpu { round: u32, at: usize, found: u32, expected: u32 },
    /// Only launches that do not invalidate L1 themselves fail.
    #[error("with the stream's invalidate but without the launch's own: {0}")]
    StreamAlone(Box<Failure>),
}

fn because(cause: Option<&tegra::Error>) -> String {
    cause.map_or_else(
        || ": the GPU reported the rest as done".to_owned(),
        |error| format!(": {error}"),
    )
}

impl From<AddressError> for Failure {
    fn from(error: AddressError) -> Self {
        Self::Gpu(error.into())
    }
}

impl From<OperationError> for Failure {
    fn from(error: OperationError) -> Self {
        Self::Gpu(error.into())
    }
}
