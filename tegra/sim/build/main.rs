//! Build script: generates the class tables and builds the embedded preload library.

#![expect(clippy::print_stdout, reason = "this is how a build script speaks to cargo")]

mod classes;
mod embedded;

use std::env;
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    classes::write(&out)?;
    embedded::write(&out)
}
