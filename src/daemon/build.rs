//! Sets `ORIND_COMMIT` to the commit of the sources. A build without git can set it from outside;
//! otherwise it is empty.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Sources of the program; other files can change without changing the program.
const SOURCES: [&str; 6] =
    ["Cargo.toml", "Cargo.lock", "src", "crates", "kernels/prebuilt", "kernels/src"];

fn main() {
    println!("cargo::rerun-if-env-changed=ORIND_COMMIT");
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var_os("ORIND_COMMIT").is_some() {
        return;
    }
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    // Sources inside another repository have no commit of their own.
    if git(&root, &["rev-parse", "--show-prefix"]).is_none_or(|prefix| !prefix.is_empty()) {
        return;
    }
    let Some(commit) = git(&root, &["rev-parse", "HEAD"]) else { return };
    // A commit, a checkout and a rebase each change one of these files. Cargo must not watch a path
    // that does not exist.
    let branch = git(&root, &["symbolic-ref", "--quiet", "HEAD"]);
    for name in ["HEAD", "logs/HEAD", "packed-refs"].into_iter().chain(branch.as_deref()) {
        let path = git(&root, &["rev-parse", "--git-path", name]).map(|path| root.join(path));
        if let Some(path) = path.filter(|path| path.exists()) {
            println!("cargo::rerun-if-changed={}", path.display());
        }
    }
    for path in SOURCES {
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
    let status = [&["status", "--porcelain", "--"], &SOURCES[..]].concat();
    let dirty = git(&root, &status).is_none_or(|changed| !changed.is_empty());
    println!("cargo::rustc-env=ORIND_COMMIT={commit}{}", if dirty { "-dirty" } else { "" });
}

/// Returns the trimmed output of git, or `None` if git fails.
fn git(root: &Path, arguments: &[&str]) -> Option<String> {
    let mut command = Command::new("git");
    command.args(["--no-optional-locks", "-C"]).arg(root).args(arguments);
    let output = command.output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    output.status.success().then(|| text.trim().to_owned())
}
