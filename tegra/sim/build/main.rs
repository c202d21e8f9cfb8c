//! What is made before the crate is compiled: the tables of classes, and the library that the program carries.

#![expect(clippy::print_stdout, reason = "this is how a build script speaks to cargo")]

mod carried;
mod classes;

use std::env;
use std::error::Error;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    let out = PathBuf::from(env::var("OUT_DIR")?);
    classes::write(&out)?;
    carried::write(&out)
}
