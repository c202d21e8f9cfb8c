//! The driver interface, the command front end and the queue, without a device.

#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test may panic, and reports skips"
)]

mod abi;
mod absent;
mod class;
mod ordering_aarch64;
mod port;
mod probe;
mod pushbuffer;
mod qmd;
mod queue;
mod queue_model;
mod table;

use tegra::address::GpuAddress;

fn at(address: u64) -> GpuAddress {
    GpuAddress::new(address).expect("address below 2^40")
}
