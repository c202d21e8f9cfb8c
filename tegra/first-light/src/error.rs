//! Why a stage failed.

use tegra::address::AddressError;
use tegra::pushbuffer::OperationError;
use tegra::qmd::QmdError;

/// What was expected, and what came.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    /// A driver or the GPU refused, or work faulted or never ended.
    #[error(transparent)]
    Gpu(#[from] tegra::Error),
    #[error(transparent)]
    Launch(#[from] QmdError),
    /// Machine code that cannot be launched.
    #[error("kernel {name}: {problem}")]
    Kernel { name: String, problem: String },
    #[error("the driver opened the channel but tells of none: it was closed again")]
    Closed,
    #[error("the driver gave the doorbell token 0: expected the channel's number, which is not 0")]
    Token,
    #[error("a release wrote {found:#x}: expected {expected:#x}")]
    Release { expected: u64, found: u64 },
    #[error(
        "a release is stamped {stamp} ns: expected a time from {earliest} ns on, that of the one before"
    )]
    Time { earliest: u64, stamp: u64 },
    #[error(
        "{wrong} of {words} words of the probe are wrong, the first after {part}: word {at} is \
         {found:#010x}, expected {expected:#010x}"
    )]
    Probe { wrong: usize, words: usize, part: &'static str, at: usize, found: u32, expected: u32 },
    /// A chain whose first launches ran, in their order, and the others did not.
    #[error("the chain stopped after {done} of {launches} launches{}", because(.cause.as_ref()))]
    Stopped { done: u32, launches: u32, cause: Option<tegra::Error> },
    #[error(
        "launch {launch} of {launches} wrote {found:#010x}, expected {expected:#010x}: it ran before the \
         one that it follows, or did not see what that one wrote"
    )]
    Order { launch: u32, launches: u32, found: u32, expected: u32 },
    #[error(
        "round {round}: {blocks} blocks counted up and left {counter} in the counter, expected 0: the last \
         of them was not found"
    )]
    Counter { round: u32, blocks: u32, counter: u32 },
    #[error(
        "round {round}: the last of {blocks} blocks made {found:#010x} of what all wrote, expected \
         {expected:#010x}"
    )]
    Mark { round: u32, blocks: u32, found: u32, expected: u32 },
    #[error(
        "round {round}: {way} of block {block} came to {found:#010x}, expected {expected:#010x}: the GPU \
         does not see what the CPU wrote"
    )]
    ForGpu { round: u32, way: &'static str, block: usize, found: u32, expected: u32 },
    #[error(
        "round {round}: the CPU reads {found:#010x} at word {at}, expected {expected:#010x}: it does not \
         see what the GPU wrote"
    )]
    ForCpu { round: u32, at: usize, found: u32, expected: u32 },
    /// Launches that drop L1 themselves pass.
    #[error("without a launch's own invalidate, behind that of the stream alone, {0}")]
    StreamAlone(Box<Failure>),
}

fn because(cause: Option<&tegra::Error>) -> String {
    cause
        .map_or_else(|| ": the GPU took the rest for done".to_owned(), |error| format!(": {error}"))
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
