//! Loads and stores of x86-64: [`decode`] decodes one instruction, [`execute`] executes it. On an
//! x86-64 host, [`context`] is the stopped thread of the signal handler.

#[cfg(target_arch = "x86_64")]
pub(super) mod context;
mod decode;
mod execute;
#[cfg(test)]
mod tests;

#[cfg(target_arch = "x86_64")]
pub(super) use decode::prepare;
use execute::execute;
