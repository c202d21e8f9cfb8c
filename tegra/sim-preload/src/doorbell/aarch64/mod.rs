//! Loads and stores of A64: [`decode`] reads one instruction, [`execute`] carries it out, and on
//! such a machine [`context`] is the stopped thread that the signal handler is given.

#[cfg(target_arch = "aarch64")]
pub(super) mod context;
mod decode;
mod execute;
#[cfg(test)]
mod tests;

use decode::decode;
use execute::execute;
