//! Contract of the device interface on every available device: reference, CPU, the simulated Orin
//! (which intercepts this process's system calls), and a real GPU if there is one.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a test may panic")]

use device::cpu::Isa;
use device::{
    BLOCK, Data, Device, Error, Instance, MAX_SUBMISSIONS, Part, Prepared, RING_STEPS, Request,
    STAGED_WRITES, Ticket, named,
};
use model::{KvLayout, Model};
use orind_testing::data;
use orind_testing::program::{again, said};
use orind_testing::session;
use plan::{Bucket, Outputs};
use tegra_sim_preload as _;

#[path = "../src/contract.rs"]
mod contract;

#[test]
fn every_device_satisfies_the_contract() {
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

const LAYOUT: KvLayout = KvLayout { slots: 3, context: 300, ring: None };
/// Rows of a prompt's step.
const CHUNK: usize = 30;

/// Logits of a sequence's rows for a range of positions, in chunks, then one by one.
fn logits(s: &mut session::Session, slot: i32, positions: std::ops::Range<i32>) -> Vec<Vec<f32>> {
    let token = |position: i32| (position * 37 + 11) % 128;
    let rows: Vec<_> = positions.map(|at| (token(at), at, slot)).collect();
    let (chunks, rest) = rows.as_chunks::<CHUNK>();
    let steps =
        chunks.iter().map(|chunk| (0, &chunk[..])).chain(rest.chunks(1).map(|row| (1, row)));
    let mut all = Vec::new();
    for (plan, rows) in steps {
        s.load(plan, rows);
        s.run(plan, 1);
        all.push(s.logits(plan));
    }
    all
}

/// A sequence has the same bits in any blocks, including shared ones.
#[test]
fn positions_follow_the_block_table() {
    let model = Model::open(data("architectures/llama.gguf")).unwrap();
    let buckets =
        [Bucket::prefill(CHUNK, LAYOUT.context, Outputs::Last), Bucket::decode(1, LAYOUT.context)];
    for name in ["cpu", "nv"] {
        let device = named(name, "auto", 1).unwrap();
        let mut s = session::Session::new(&*device, &model, LAYOUT, &buckets);
        let want = logits(&mut s, 1, 0..153);
        assert_eq!(s.instance.blocks(), 9);
        s.instance.map(1, &[8, 2, 5]).unwrap();
        assert!(logits(&mut s, 1, 0..153) == want, "{name}: blocks here and there");
        // Another slot shares the first block, and has a copy of the second.
        s.instance.copy_part(Part::Block(2), Part::Block(4)).unwrap();
        s.instance.map(0, &[8, 4]).unwrap();
        assert!(logits(&mut s, 0, 150..153) == want[5..], "{name}: a block that two have");
        // Behind a slot's blocks nothing is written and nothing is visible.
        let mut held = vec![0; s.instance.part_bytes(Part::Block(2)).unwrap()];
        let mut blocks = |s: &mut session::Session| -> Vec<Vec<u8>> {
            let read = |block| {
                s.instance.read_part(Part::Block(block), &mut held).unwrap();
                held.clone()
            };
            (0..9).map(read).collect()
        };
        let before = blocks(&mut s);
        let [beyond, nowhere] = [&[8][..], &[]].map(|blocks| {
            s.instance.map(2, blocks).unwrap();
            logits(&mut s, 2, 128..131)
        });
        assert!(beyond == nowhere, "{name}: a position in no block");
        assert!(blocks(&mut s) == before, "{name}");
        assert!(beyond != logits(&mut s, 1, 128..131), "{name}: a position in a block");
    }
}

/// Prints the tokens of four submissions in flight at once. The parent process injects faults.
#[test]
#[ignore = "run by the next test, in a process of its own"]
fn pipelined_on_the_simulated_orin() {
    let nv = named("nv", "auto", 0).unwrap();
    let (tokens, rebuilds) = contract::pipelined(&*nv);
    assert_eq!(tokens, contract::PIPELINED);
    println!("rebuilds: {rebuilds}.");
}

/// Copies slots and prints the number of channel rebuilds.
#[test]
#[ignore = "run by the next test, in a process of its own"]
fn slots_on_the_simulated_orin() {
    let nv = named("nv", "auto", 0).unwrap();
    let rebuilds = contract::parts_are_read_written_and_copied_while_idle(&*nv);
    println!("rebuilds: {rebuilds}.");
}

/// A fault while slots are copied: the copy is repeated.
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

/// A fault between submissions with staged writes: steps are repeated with their own inputs.
#[test]
fn faults_repeat_steps_with_their_own_writes() {
    // One fault each in the submissions, and in the channel's set-up before them.
    let mut rebuilds = 0;
    for at in 1..13 {
        let mut command = again(module_path!(), "pipelined_on_the_simulated_orin");
        let text = said(command.env("TEGRA_SIM_FAULTS", format!("mmu-fault@{at}")));
        rebuilds += usize::from(text.contains("rebuilds: 1."));
    }
    assert!(rebuilds > 8, "{rebuilds} of 12 faults were met");
}
