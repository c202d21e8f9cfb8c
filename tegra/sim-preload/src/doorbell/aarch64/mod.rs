//! Loads and stores of A64: [`decode`] decodes one instruction, [`execute`] executes it. On an
//! aarch64 host, [`context`] is the stopped thread of the signal handler.

#[cfg(target_arch = "aarch64")]
pub(super) mod context;
mod decode;
mod execute;
#[cfg(test)]
mod tests;

use decode::decode;
use execute::execute;
