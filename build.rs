//! Tells the program which commit it is built from, as `ORIND_COMMIT`, and which reference it holds engines against,
//! as `ORIND_REFERENCE`. Whoever builds without git can set the first; with neither there is no commit.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest as _, Sha256};

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

/// What the reference's answers follow from: how a model becomes a graph, how that is planned and interpreted, who
/// asks, and the libraries' versions.
const REFERENCE: [&str; 6] = [
    "Cargo.lock",
    "crates/device/src/plan_buffers.rs",
    "crates/device/src/reference",
    "crates/model/src",
    "crates/plan/src",
    "src/parity",
];

fn main() {
    for path in REFERENCE {
        println!("cargo::rerun-if-changed={path}");
    }
    println!("cargo::rustc-env=ORIND_REFERENCE={}", digest(&REFERENCE));
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

/// SHA-256 of files and of all that is in folders, with their names.
fn digest(paths: &[&str]) -> String {
    let mut digest = Sha256::new();
    let mut left: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
    left.sort();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            left.extend(entries.flatten().map(|entry| entry.path()));
            left.sort();
        } else {
            let text = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            digest.update(format!("{}\n{}\n", path.display(), text.len()));
            digest.update(text);
        }
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// What git says, in one piece; `None` where it does not run or fails.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.args(["--no-optional-locks", "-C"]).arg(root).args(arguments);
    let output = command.output().ok()?;
    let said = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| said.trim().to_owned())
}
