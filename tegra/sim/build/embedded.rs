//! Builds the preload library to embed it in the program, because `cargo install` installs programs
//! but no libraries.
//!
//! The library's crate depends on this one, so cargo cannot order the two; a second cargo process
//! builds the library. That doubles the build time. A program built without optimisation, as in
//! tests, embeds nothing and uses the library that cargo puts next to it. `TEGRA_SIM_CARRY`
//! overrides this.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

/// `yes` or `no`; the build of the library itself runs with `no`.
const CARRY: &str = "TEGRA_SIM_CARRY";
/// Sources of the library. They are absent from a published package, which then has nothing to
/// watch.
const SOURCES: [&str; 6] =
    ["../../Cargo.lock", "../bundle", "../profile", "../sass/src", "../sim-preload/src", "src"];

/// Writes `embedded.so`: the library, or an empty file.
pub(crate) fn write(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed={CARRY}");
    let carry = match env::var(CARRY).as_deref() {
        Ok("yes") => true,
        Ok("no") => false,
        Ok(other) => return Err(format!("{CARRY} is {other:?}; it is yes or no").into()),
        Err(_) => env::var("PROFILE")? == "release",
    };
    let library = if carry { fs::read(build(out)?)? } else { Vec::new() };
    fs::write(out.join("embedded.so"), library)?;
    Ok(())
}

/// Builds the library for the same target and with the same flags, in a separate target folder
/// because cargo has locked its own.
fn build(out: &Path) -> Result<std::path::PathBuf, Box<dyn Error>> {
    for source in SOURCES {
        println!("cargo::rerun-if-changed={source}");
    }
    let (target, folder) = (env::var("TARGET")?, out.join("preload"));
    let mut cargo = Command::new(env::var("CARGO")?);
    cargo.args([
        "build",
        "--release",
        "--locked",
        "--lib",
        "--manifest-path",
        "../sim-preload/Cargo.toml",
    ]);
    cargo.arg("--target").arg(&target).arg("--target-dir").arg(&folder);
    cargo.env(CARRY, "no");
    // Omits debug information, which would be half of the program's size.
    cargo
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    // Set by clippy.
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
    let status = cargo.status().map_err(|error| format!("{cargo:?}: {error}"))?;
    if !status.success() {
        return Err(
            format!("{cargo:?}: {status}; with {CARRY}=no the program carries no library").into()
        );
    }
    Ok(folder.join(target).join("release/libtegra_sim_preload.so"))
}
