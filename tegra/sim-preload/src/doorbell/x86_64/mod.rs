//! Loads and stores of x86-64: [`decode`] reads one instruction, [`execute`] carries it out, and
//! on such a machine [`context`] is the stopped thread that the signal handler is given.

#[cfg(target_arch = "x86_64")]
pub(super) mod context;
mod decode;
mod execute;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub(super) use decode::prepare;
use execute::execute;
