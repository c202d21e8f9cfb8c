//! The contract of the seam over every device that can be used here: the reference, the CPU, the
//! simulated Orin, which answers this process's system calls, and a real GPU where there is one.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use device::cpu::Isa;
use device::{
    Data, Device, Error, Instance, MAX_SUBMISSIONS, Part, Prepared, RING_STEPS, Request,
    SLOT_BLOCK, STAGED_WRITES, Ticket, named,
};
use orind_testing::program::{again, said};
use tegra_sim_preload as _;

#[path = "../src/contract.rs"]
mod contract;

#[test]
fn every_device_keeps_the_contract() {
    let others = device::NAMES.into_iter().filter(|name| *name != "cpu").map(|name| (name, "auto"));
    for (name, isa) in others.chain(Isa::available().map(|isa| ("cpu", isa.name()))) {
        println!("{name} {isa}");
        match named(name, isa, 2) {
            Ok(device) => contract::check(&*device),
            Err(reason) => {
                println!("{name}: skipped, {reason}");
                assert_eq!(name, "cuda", "{reason}");
            }
        }
    }
}

/// Prints the tokens of four submissions under way at once. The parent says which faults there are.
#[test]
#[ignore = "run by the next test, in a process of its own"]
fn pipelined_on_the_simulated_orin() {
    let nv = named("nv", "auto", 0).unwrap();
    let (tokens, rebuilds) = contract::pipelined(&*nv);
    assert_eq!(tokens, contract::PIPELINED);
    println!("rebuilds: {rebuilds}.");
}

/// Moves slots and says how often the channels were rebuilt.
#[test]
#[ignore = "run by the next test, in a process of its own"]
fn slots_on_the_simulated_orin() {
    let nv = named("nv", "auto", 0).unwrap();
    let rebuilds = contract::parts_of_slots_are_read_and_written_at_rest(&*nv);
    println!("rebuilds: {rebuilds}.");
}

/// A fault while slots are moved: the copy is made again.
#[test]
fn faults_repeat_copies_of_slots() {
    let mut rebuilds = 0;
    for at in [2, 4, 7, 11, 12] {
        let mut command = again(module_path!(), "slots_on_the_simulated_orin");
        let text = said(command.env("TEGRA_SIM_FAULTS", format!("mmu-fault@{at}")));
        rebuilds += usize::from(text.contains("rebuilds: 1."));
    }
    assert!(rebuilds > 3, "{rebuilds} of 5 faults were met");
}

/// A fault between submissions that were written for while they were under way: steps are repeated
/// with the inputs that were theirs.
#[test]
fn faults_repeat_steps_with_their_own_writes() {
    // Of the submissions, and of the channel's set-up before them, one each.
    let mut rebuilds = 0;
    for at in 1..13 {
        let mut command = again(module_path!(), "pipelined_on_the_simulated_orin");
        let text = said(command.env("TEGRA_SIM_FAULTS", format!("mmu-fault@{at}")));
        rebuilds += usize::from(text.contains("rebuilds: 1."));
    }
    assert!(rebuilds > 8, "{rebuilds} of 12 faults were met");
}
