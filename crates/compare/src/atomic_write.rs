//! Atomic replacement of a file.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

/// Writes `text` to `file` atomically, replacing existing contents.
pub fn write_atomically(file: &Path, text: &[u8]) -> io::Result<()> {
    let name = file.file_name().unwrap_or_default().to_string_lossy();
    let temporary = file.with_file_name(format!(".{name}.{}", std::process::id()));
    let written = File::create_new(&temporary).and_then(|mut to| {
        to.write_all(text)?;
        to.sync_all()?;
        fs::rename(&temporary, file)
    });
    written.inspect_err(|_| {
        let _ = fs::remove_file(&temporary);
    })
}
