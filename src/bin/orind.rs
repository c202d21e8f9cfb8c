//! `orind`: the daemon.
fn main() {}
