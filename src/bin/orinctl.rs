//! `orinctl`: the client.
fn main() {}
