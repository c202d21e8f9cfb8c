//! Sets `ORIND_REFERENCE` to a hash of the sources that determine the reference answers.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest as _, Sha256};

/// Sources that determine the reference answers: model graphs, planning, interpretation, the
/// prompts, and the versions of libraries.
const REFERENCE: [&str; 6] = [
    "Cargo.lock",
    "crates/device/src/plan_buffers.rs",
    "crates/device/src/reference",
    "crates/model/src",
    "crates/parity/src",
    "crates/plan/src",
];

fn main() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    for path in REFERENCE {
        println!("cargo::rerun-if-changed={}", root.join(path).display());
    }
    println!("cargo::rustc-env=ORIND_REFERENCE={}", digest(&root));
}

/// SHA-256 of all files of [`REFERENCE`], including their names.
fn digest(root: &Path) -> String {
    let mut digest = Sha256::new();
    let mut left: Vec<PathBuf> = REFERENCE.iter().map(|path| root.join(path)).collect();
    left.sort();
    while let Some(path) = left.pop() {
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            left.extend(entries.flatten().map(|entry| entry.path()));
            left.sort();
        } else {
            let text = fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
            let name = path.strip_prefix(root).unwrap_or(&path);
            digest.update(format!("{}\n{}\n", name.display(), text.len()));
            digest.update(text);
        }
    }
    digest.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}
