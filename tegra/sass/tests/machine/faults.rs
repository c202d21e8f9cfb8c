//! Faults of kernels and their names.

use sass::check::{Checks, Found};
use sass::fault::{Fault, FaultKind};
use sass::memory::{Access, MemoryFault};

use crate::support::Arg::{Int, Pointer};
use crate::support::{Arena, Call, kernel};

/// Runs a kernel on one buffer with a number; returns the fault, or the stored words.
fn attempt(name: &str, threads: u32, n: i32, checks: Checks) -> Result<Vec<u32>, Box<Fault>> {
    let kernel = kernel("faults", name);
    let mut memory = Arena::default();
    let o = memory.words(&[3; 128]);
    let mut call = Call::new(&kernel, 1, threads);
    call.options.checks = checks;
    call.try_run(&memory, &[Pointer(o), Int(n)])?;
    Ok(memory.read(o))
}

fn fault(name: &str, threads: u32, n: i32) -> Box<Fault> {
    attempt(name, threads, n, Checks::ALL).unwrap_err()
}

#[test]
fn misaligned_accesses() {
    assert!(attempt("misaligned", 1, 8, Checks::NONE).is_ok());
    let found = attempt("misaligned", 1, 6, Checks::NONE).unwrap_err();
    assert!(matches!(found.kind, FaultKind::Misaligned { bytes: 4, address } if address % 4 == 2));
    assert!(found.instruction.starts_with("STG.E"), "{found}");
    assert_eq!((found.kernel.as_str(), found.block, found.lane), ("misaligned", [0; 3], 0));
    let kernel = kernel("faults", "vector");
    let mut memory = Arena::default();
    let args = [Pointer(memory.zeros(16)), Int(8), Pointer(memory.zeros(4))];
    let found = Call::new(&kernel, 1, 1).try_run(&memory, &args).unwrap_err();
    assert!(matches!(found.kind, FaultKind::Misaligned { bytes: 16, .. }), "{found}");
}

#[test]
fn accesses_out_of_bounds() {
    assert!(attempt("shared_bounds", 32, 31, Checks::NONE).is_ok());
    let found = attempt("shared_bounds", 32, 32, Checks::NONE).unwrap_err();
    let expected = FaultKind::Shared { address: 128, bytes: 4, limit: 128 };
    assert_eq!(found.kind, expected);
    assert!(attempt("shared_bounds", 32, -1, Checks::NONE).is_err());
    assert!(attempt("local_bounds", 1, 15, Checks::NONE).is_ok());
    let found = attempt("local_bounds", 1, 0x2000, Checks::NONE).unwrap_err();
    assert!(matches!(found.kind, FaultKind::Local { .. }), "{found}");
    assert!(attempt("bank", 1, 15, Checks::NONE).is_ok());
    for index in [16, -1] {
        let found = attempt("bank", 1, index, Checks::NONE).unwrap_err();
        assert!(matches!(found.kind, FaultKind::Constant { bank: 3, limit: 64, .. }), "{found}");
    }
}

/// The argument at 0x168 selects a word of the table in bank 3, so all of that bank may be read; of
/// bank 0 the code uses only the arguments.
#[test]
fn constants_that_code_can_read() {
    let program = kernel("faults", "bank").program;
    let of = |bank| {
        let named = program.constants().iter().filter(move |(named, _)| *named == bank);
        named.map(|(_, range)| range.clone()).collect::<Vec<_>>()
    };
    let first = of(0);
    assert!(first.iter().any(|range| range.start == 0x168), "{first:x?}");
    assert_eq!(first.iter().map(|range| range.end).max(), Some(0x16c), "{first:x?}");
    assert_eq!(of(3), std::slice::from_ref(&(0..u32::MAX)));
}

#[test]
fn unmapped_memory() {
    let kernel = kernel("faults", "misaligned");
    let found =
        Call::new(&kernel, 1, 1).try_run(&Arena::default(), &[Pointer(0x10), Int(0)]).unwrap_err();
    let expected = MemoryFault::Unmapped { address: 0x10, access: Access::Write };
    assert_eq!(found.kind, FaultKind::Memory(expected));
    // Just past the end of a buffer.
    let mut memory = Arena::default();
    let o = memory.zeros(16);
    let call = Call::new(&kernel, 1, 1);
    assert!(call.try_run(&memory, &[Pointer(o), Int(60)]).is_ok());
    assert!(call.try_run(&memory, &[Pointer(o), Int(64)]).is_err());
}

#[test]
fn barriers_that_cannot_open() {
    assert!(attempt("divergent", 64, 32, Checks::NONE).is_ok(), "whole warps may go elsewhere");
    assert!(attempt("divergent", 64, 64, Checks::NONE).is_ok());
    let found = attempt("divergent", 64, 40, Checks::NONE);
    // Lanes 40 to 63 wait at a different barrier instruction; the compiler may or may not have
    // merged the two.
    if let Err(found) = found {
        assert!(matches!(found.kind, FaultKind::DivergentBarrier { .. }), "{found}");
    }
    assert!(attempt("deadlock", 96, 3, Checks::NONE).is_ok());
    let found = attempt("deadlock", 96, 2, Checks::NONE).unwrap_err();
    assert_eq!(found.kind, FaultKind::Deadlock { waiting: 2 });
}

#[test]
fn races_on_shared_memory() {
    assert!(attempt("race", 64, 1, Checks::ALL).is_ok());
    let found = attempt("race", 64, 0, Checks { definedness: false, races: true }).unwrap_err();
    assert!(matches!(found.kind, FaultKind::Race { .. }), "{found}");
    assert!(attempt("race", 64, 0, Checks::NONE).is_ok(), "nothing looks for it");
}

/// Findings that hardware would not notice are reported once per instruction, and the launch
/// continues.
#[test]
fn a_launch_continues_after_a_reported_finding() {
    for (name, argument, instruction) in [("unset", 50, "STG"), ("race", 0, "LDS")] {
        let found = Found::default();
        let kernel = kernel("faults", name);
        let mut memory = Arena::default();
        let words = memory.words(&[3; 256]);
        let mut call = Call::new(&kernel, 4, 64);
        call.options.found = Some(&found);
        let counters = call.run(&memory, &[Pointer(words), Int(argument)]);
        assert_eq!(counters.blocks, 4, "{name}");
        let told = found.take();
        assert!(told.iter().any(|fault| fault.instruction.contains(instruction)), "{told:?}");
        let mut places: Vec<usize> = told.iter().map(|fault| fault.offset).collect();
        places.sort_unstable();
        places.dedup();
        assert_eq!(places.len(), told.len(), "{name}: an instruction is told of once");
        assert!(found.take().is_empty());
    }
}

#[test]
fn uninitialised_values_are_reported() {
    let missing = |found: &Fault| matches!(found.kind, FaultKind::Uninitialised { .. });
    assert!(attempt("unset", 64, 64, Checks::ALL).is_ok());
    let found = fault("unset", 64, 50);
    assert!(missing(&found) && found.warp == 1 && found.lane == 18, "{found}");
    assert!(found.instruction.contains("STG"), "{found}");
    let found = fault("unset_way", 64, 50);
    assert!(missing(&found), "{found}");
    let found = fault("unset_address", 64, 50);
    assert!(missing(&found), "{found}");
    assert!(attempt("unset", 64, 50, Checks::NONE).is_ok(), "nothing looks for it");
}

#[test]
fn shared_memory_is_undefined_until_its_copy_is_waited_for() {
    let kernel = kernel("faults", "unwaited");
    for (wait, good) in [(1, true), (0, false)] {
        let mut memory = Arena::default();
        let (g, o) = (memory.words(&[7; 32]), memory.zeros(32));
        let result =
            Call::new(&kernel, 1, 32).try_run(&memory, &[Pointer(g), Pointer(o), Int(wait)]);
        assert_eq!(result.is_ok(), good);
        if good {
            assert_eq!(memory.read(o), [7; 32]);
        }
    }
}

#[test]
fn traps_illegal_instructions_and_time() {
    let kernel_traps = kernel("control", "traps");
    let mut memory = Arena::default();
    let mut input = vec![1; 32];
    input[5] = 7;
    let (a, o) = (memory.words(&input), memory.zeros(32));
    Call::new(&kernel_traps, 1, 32).run(&memory, &[Pointer(a), Pointer(o)]);
    assert_eq!(memory.read(o).iter().sum::<u32>(), 31, "lane 5 has left");
    input[9] = u32::MAX;
    let a = memory.words(&input);
    let found =
        Call::new(&kernel_traps, 1, 32).try_run(&memory, &[Pointer(a), Pointer(o)]).unwrap_err();
    assert_eq!((found.kind, found.lane), (FaultKind::Trap, 9));

    let forever = kernel("faults", "forever");
    let mut call = Call::new(&forever, 1, 32);
    call.options.limit = 100_000;
    let p = memory.zeros(1);
    let found = call.try_run(&memory, &[Pointer(p)]).unwrap_err();
    assert!(matches!(found.kind, FaultKind::Timeout { .. }), "{found}");
}
