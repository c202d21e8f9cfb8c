//! Programs of this build as cargo would start them: through its runner where they are for another
//! processor and emulated.

use std::ffi::{OsStr, OsString};
use std::process::Command;

/// The words in front of a program, where there are any.
pub(crate) fn runner() -> Vec<OsString> {
    const RUNNER: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER";
    let runner = std::env::var(RUNNER).ok().filter(|_| cfg!(target_arch = "aarch64"));
    runner.iter().flat_map(|runner| runner.split_whitespace()).map(Into::into).collect()
}

/// A program of this build.
pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    let mut words = runner();
    words.push(program.as_ref().to_owned());
    let mut command = Command::new(words.remove(0));
    command.args(words);
    command
}
