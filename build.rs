//! Tells the program which commit it is built from, as `ORIND_COMMIT`. Whoever builds without git can set
//! the variable; with neither there is no commit.

use std::path::{Path, PathBuf};
use std::process::Command;

/// What the program is compiled from. Other files can change without another program.
const SOURCES: [&str; 13] = [
    "Cargo.toml",
    "Cargo.lock",
    "build.rs",
    "src",
    "crates/device/src",
    "crates/model/src",
    "crates/plan/src",
    "crates/telemetry/src",
    "kernels/prebuilt",
    "kernels/src",
    "tegra/src",
    "tegra/probe/src",
    "tegra/profile/src",
];

fn main() {
    println!("cargo::rerun-if-env-changed=ORIND_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("ORIND_COMMIT").is_some() {
        return;
    }
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    // Sources unpacked within somebody else's repository have no commit.
    if git(&root, &["rev-parse", "--show-prefix"]).is_none_or(|prefix| !prefix.is_empty()) {
        return;
    }
    let Some(commit) = git(&root, &["rev-parse", "HEAD"]) else { return };
    // Where a commit, a checkout and a rebase leave a trace. What is not there must not be watched.
    let branch = git(&root, &["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let path = git(&root, &["rev-parse", "--git-path", name]).map(|path| root.join(path));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    for path in SOURCES {
        println!("cargo::rerun-if-changed={path}");
    }
    let status = [&["status", "--porcelain", "--"], &SOURCES[..]].concat();
    let dirty = git(&root, &status).is_none_or(|changed| !changed.is_empty());
    println!("cargo::rustc-env=ORIND_COMMIT={commit}{}", if dirty { "-dirty" } else { "" });
}

/// What git says, in one piece; `None` where it does not run or fails.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.args(["--no-optional-locks", "-C"]).arg(root).args(arguments);
    let output = command.output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| said.trim().to_owned())
}
