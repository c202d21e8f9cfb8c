//! Every intrinsic of this program's kernels is inlined.
//!
//! Functions with a target feature are inlined only into functions that have it. A closure that the compiler does not
//! inline into its kernel has none, so each intrinsic in it becomes a call with operands in memory: attention once
//! lost three quarters of its speed that way, with the right results.

use std::collections::{BTreeMap, BTreeSet};

use object::{Object, ObjectSection, ObjectSymbol, SymbolKind};

/// True for the mangled name of an intrinsic of a vector unit. Detection of features also calls `_xgetbv`.
fn is_intrinsic(name: &str) -> bool {
    let vectors = ["_mm_", "_mm256_", "_mm512_", "neon"];
    name.contains("core_arch") && vectors.iter().any(|part| name.contains(part))
}

/// Target of the direct call or jump that begins at `code`, which is at this address.
#[cfg(target_arch = "x86_64")]
fn target(code: &[u8], address: u64) -> Option<u64> {
    let (&[0xE8 | 0xE9, a, b, c, d], _) = code.split_first_chunk()? else { return None };
    let distance = i32::from_le_bytes([a, b, c, d]);
    Some(address.wrapping_add(5).wrapping_add_signed(distance.into()))
}

/// Target of the direct call or jump that begins at `code`, which is at this address.
#[cfg(target_arch = "aarch64")]
fn target(code: &[u8], address: u64) -> Option<u64> {
    let word = u32::from_le_bytes(*code.first_chunk()?);
    let branch = address.is_multiple_of(4) && word & 0x7C00_0000 == 0x1400_0000;
    // 26 bits with a sign, in words.
    let distance = (word << 6).cast_signed() >> 4;
    branch.then(|| address.wrapping_add_signed(distance.into()))
}

#[test]
fn no_kernel_calls_an_intrinsic() {
    let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
    let program = object::File::parse(program.as_slice()).unwrap();
    let functions: BTreeMap<u64, &str> = program
        .symbols()
        .filter(|symbol| symbol.kind() == SymbolKind::Text)
        .filter_map(|symbol| Some((symbol.address(), symbol.name().ok()?)))
        .collect();
    assert!(functions.values().any(|name| name.contains("attention")), "no symbols");
    let mut calls = BTreeSet::new();
    for section in program.sections().filter(|section| section.name() == Ok(".text")) {
        let code = section.data().unwrap();
        // An offset inside another instruction hardly ever looks like a jump to the very start of an intrinsic.
        for at in 0..code.len() {
            let address = section.address() + at as u64;
            let Some(callee) = target(&code[at..], address).and_then(|to| functions.get(&to))
            else {
                continue;
            };
            let Some((_, caller)) = functions.range(..=address).next_back() else { continue };
            if is_intrinsic(callee) && !caller.contains("core_arch") {
                calls.insert(format!("{caller} calls {callee}"));
            }
        }
    }
    let calls = Vec::from_iter(calls).join("\n");
    assert!(
        calls.is_empty(),
        "functions without the instruction set; write out the closure or mark it as inline:\n{calls}"
    );
}
