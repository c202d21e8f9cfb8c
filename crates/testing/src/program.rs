//! Programs of this build, and this test program again, for tests that need a process of their own.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::OnceLock;
use std::time::SystemTime;

/// Command prefix for programs of this build: the emulator, if they are for another processor.
pub fn runner() -> Vec<OsString> {
    const RUNNER: &str = "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER";
    let runner = std::env::var(RUNNER).ok().filter(|_| cfg!(target_arch = "aarch64"));
    runner.iter().flat_map(|runner| runner.split_whitespace()).map(Into::into).collect()
}

/// A program of this build, as words of a command line.
pub fn words(program: impl AsRef<OsStr>) -> Vec<OsString> {
    let mut words = runner();
    words.push(program.as_ref().to_owned());
    words
}

/// A program of this build.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let words = words(program);
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// Runs one test of this program in a process of its own: `again(module_path!(), "name")`. The test
/// is `#[ignore]`d, so that it does not run otherwise.
pub fn again(module: &str, test: &str) -> Command {
    // Test names start below the crate name.
    let name = match module.split_once("::") {
        Some((_, module)) => format!("{module}::{test}"),
        None => test.to_owned(),
    };
    let mut command = command(std::env::current_exe().unwrap());
    command.args([name.as_str(), "--exact", "--ignored", "--nocapture"]);
    command
}

/// Exit code, output and errors of a command.
pub fn outcome(command: &mut Command) -> (Option<i32>, String, String) {
    let output = command.output().unwrap();
    (output.status.code(), stdout(&output), stderr(&output))
}

/// Output of a command that must succeed.
pub fn said(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let said = stdout(&output);
    // The end of a long error output names the cause.
    let errors = stderr(&output);
    let begin = errors.rmatch_indices('\n').nth(40).map_or(0, |(at, _)| at);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{said}\n{}",
        output.status,
        &errors[begin..]
    );
    said
}

pub fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Cargo's output folder: `target/debug` or similar.
pub fn built() -> PathBuf {
    std::env::current_exe().unwrap().ancestors().nth(2).unwrap().to_owned()
}

/// The simulator's library, for `LD_PRELOAD`.
pub fn preload_library() -> PathBuf {
    let library = built().join("deps/libtegra_sim_preload.so");
    assert!(library.is_file(), "cargo builds {} along with the tests", library.display());
    library
}

/// `tegra-sim`. Cargo builds it only when it tests the whole workspace; otherwise, or if it is
/// older than its library, it is built here.
pub fn tegra_sim() -> Command {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    let program = BUILT.get_or_init(|| {
        let program = built().join("tegra-sim");
        let library = |path: &Path| {
            let name = path.file_name().unwrap().to_string_lossy();
            name.starts_with("libtegra_sim-") && name.ends_with(".rlib")
        };
        let files = fs::read_dir(built().join("deps")).unwrap().map(|file| file.unwrap().path());
        let newest = files.filter(|path| library(path)).filter_map(|path| written(&path)).max();
        if written(&program) < newest {
            let mut build = Command::new(env!("CARGO"));
            build.args(["build", "--quiet", "-p", "tegra-sim", "--bin", "tegra-sim"]);
            // `target/debug`, or `target/TRIPLE/debug` if a target is set.
            let triple = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
            let mut folder = built().parent().unwrap().to_owned();
            if folder.ends_with(&triple) {
                folder.pop();
                build.args(["--target", &triple]);
            }
            build.arg("--target-dir").arg(folder);
            if !cfg!(debug_assertions) {
                build.arg("--release");
            }
            assert!(build.status().unwrap().success(), "tegra-sim is built");
        }
        program
    });
    let mut command = command(program);
    command.env("TEGRA_SIM_PRELOAD", preload_library());
    command
}

fn written(path: &Path) -> Option<SystemTime> {
    fs::metadata(path).ok()?.modified().ok()
}
