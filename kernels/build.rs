//! Generates the list of files in `prebuilt/` that the library embeds.

use std::fmt::Write as _;
use std::path::Path;

fn main() -> std::io::Result<()> {
    let variable = |name: &str| std::env::var(name).map_err(std::io::Error::other);
    let folder = Path::new(&variable("CARGO_MANIFEST_DIR")?).join("prebuilt");
    println!("cargo::rerun-if-changed=prebuilt");
    let mut files = Vec::new();
    if folder.is_dir() {
        for entry in std::fs::read_dir(&folder)? {
            files.push(entry?.file_name().to_string_lossy().into_owned());
        }
    }
    files.sort();
    let mut list = format!("static FILES: [File; {}] = [\n", files.len());
    for file in &files {
        // Through `env!`, so that a list from another checkout is recompiled.
        let path = format!("/prebuilt/{file}");
        let bytes = format!("include_bytes!(concat!(env!(\"CARGO_MANIFEST_DIR\"), {path:?}))");
        writeln!(list, "    File::new({file:?}, {bytes}),").map_err(std::io::Error::other)?;
    }
    list.push_str("];\n");
    std::fs::write(Path::new(&variable("OUT_DIR")?).join("prebuilt.rs"), list)
}
