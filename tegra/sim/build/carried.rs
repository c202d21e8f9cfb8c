//! The preload library, built for the program to carry: `cargo install` installs programs and no libraries.
//!
//! The library's crate depends on this one, so cargo cannot order the two: cargo is started once more, for the
//! library alone. That doubles a build. A program that is not optimised, as in tests, carries nothing and takes
//! the library that cargo puts beside it; `TEGRA_SIM_CARRY` says otherwise.

use std::env;
use std::error::Error;
use std::fs;
use std::path::Path;
use std::process::Command;

/// `yes` or `no`. The build for the library is told `no`.
const CARRY: &str = "TEGRA_SIM_CARRY";
/// What the library is made of. None of it is there when nobody builds one: then there is nothing to watch.
const SOURCES: [&str; 6] =
    ["../../Cargo.lock", "../bundle", "../profile", "../sass/src", "../sim-preload/src", "src"];

/// Writes `carried.so`: the library, or nothing.
pub(crate) fn write(out: &Path) -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-env-changed={CARRY}");
    let carry = match env::var(CARRY).as_deref() {
        Ok("yes") => true,
        Ok("no") => false,
        Ok(other) => return Err(format!("{CARRY} is {other:?}; it is yes or no").into()),
        Err(_) => env::var("PROFILE")? == "release",
    };
    let library = if carry { fs::read(build(out)?)? } else { Vec::new() };
    fs::write(out.join("carried.so"), library)?;
    Ok(())
}

/// Builds the library for the same target, with the flags that cargo was given, into a folder of its own: the
/// one that cargo is building in is locked.
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
    // Nothing of it is debugged, and lines would be half of the program's size.
    cargo
        .env("CARGO_PROFILE_RELEASE_DEBUG", "false")
        .env("CARGO_PROFILE_RELEASE_STRIP", "debuginfo");
    // What clippy puts around the compiler.
    cargo.env_remove("RUSTC_WORKSPACE_WRAPPER");
    let status = cargo.status().map_err(|error| format!("{cargo:?}: {error}"))?;
    if !status.success() {
        return Err(
            format!("{cargo:?}: {status}; with {CARRY}=no the program carries no library").into()
        );
    }
    Ok(folder.join(target).join("release/libtegra_sim_preload.so"))
}
