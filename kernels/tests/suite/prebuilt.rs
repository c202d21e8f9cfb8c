//! Tests that `prebuilt/` matches the sources and is usable.
//!
//! No compiler needed: after a source change, run `cargo run -p orind-kernels -- build`.

use orind_kernels::catalogue::launch::SHARED_LIMIT;
use orind_kernels::catalogue::{Kernel, Unit};
use orind_kernels::cubin::Cubin;
use orind_kernels::source::{self, Compiled, HEADERS, OPTIONS, Target};
use orind_kernels::{occupancy, params, prebuilt};
use sha2::{Digest as _, Sha256};

#[test]
fn the_manifest_matches_the_sources() {
    let manifest = prebuilt::manifest().unwrap();
    assert_eq!(manifest.sources, source::hash(), "sources changed: build the kernels again");
    assert_eq!(manifest.options, OPTIONS);
    assert!(manifest.compiler.starts_with("NVRTC 12.6."), "{}", manifest.compiler);
}

#[test]
fn the_checked_in_header_is_what_the_definitions_generate() {
    let (_, header) = HEADERS.iter().find(|(name, _)| *name == "params.cuh").unwrap();
    assert_eq!(*header, params::header(), "run `cargo run -p orind-kernels -- header`");
}

/// Source hashes ignore everything behind `//`, so no string may contain it, and comments have no
/// other form.
#[test]
fn comments_of_cuda_sources_are_line_comments() {
    for (name, text) in HEADERS {
        for line in text.lines() {
            let comment = line.find("//").unwrap_or(line.len());
            assert!(!line.contains("/*"), "{name}: {line}");
            assert!(line[..comment].matches('"').count().is_multiple_of(2), "{name}: {line}");
        }
    }
}

#[test]
fn every_file_matches_the_manifest() {
    let manifest = prebuilt::manifest().unwrap();
    for unit in Unit::all() {
        for target in Target::ALL {
            let name = target.file(unit);
            let bytes = prebuilt::file(unit, target).expect("missing: build the kernels");
            let stated = &manifest.files[&name];
            assert_eq!(stated.bytes, bytes.len(), "{name}");
            assert_eq!(stated.sha256, source::hex(&Sha256::digest(&bytes)), "{name}");
            assert_eq!(stated.unit, source::unit_hash(unit, target), "{name}: build again");
        }
    }
    assert_eq!(prebuilt::files().count(), manifest.files.len() + 1, "files and the manifest");
    let total: usize = prebuilt::files().map(|(_, bytes)| bytes.len()).sum();
    assert!(total <= 6 << 20, "{total} bytes");
}

/// Every kernel's parameter block has the size and offset that launches use.
#[test]
fn cubins_contain_the_catalogue() {
    for (target, sm, params) in [(Target::Sm87, 87, 0x160), (Target::Sm90, 90, 0x210)] {
        for unit in Unit::all() {
            let file = prebuilt::file(unit, target).unwrap();
            let cubin = Cubin::parse(&file).unwrap();
            assert_eq!(cubin.sm, sm);
            // No unit has globals, so only code and parameters need addresses.
            assert_eq!(cubin.relocations, []);
            assert_eq!((cubin.global_bytes, cubin.global_init, cubin.constants3), (0, None, None));
            let expected = source::compiled(unit, target);
            for Compiled { symbol: name, threads, params_bytes, .. } in &expected {
                let found = cubin.kernel(name).unwrap();
                assert_eq!(found.params_offset, params, "{name}");
                assert_eq!(found.params_bytes as usize, *params_bytes, "{name}");
                assert_eq!(found.params.len(), 1, "{name}");
                assert_eq!(found.params[0].size as usize, *params_bytes, "{name}");
                assert_eq!(found.max_threads, Some([*threads, 1, 1]), "{name}");
                assert!((1..=255).contains(&found.registers), "{name}: {}", found.registers);
                let blocks = occupancy::blocks_per_sm(*threads, found.registers, 0);
                assert!(blocks > 0, "{name} does not fit an SM");
            }
            // Units include each other's headers, but no kernel is in two of them.
            assert_eq!(cubin.kernels.len(), expected.len(), "{}", unit.name());
        }
    }
}

/// On sm_90 launches may begin while the previous one runs: each kernel waits before it accesses
/// memory.
#[test]
fn kernels_of_sm_90_wait_before_their_first_access() {
    /// `ACQBULK` (the SASS of `griddepcontrol.wait`), unconditional (bits 12 to 15); the opcode is
    /// the lowest 12 bits.
    const WAIT: u64 = 0x782e;
    /// Opcodes that access memory written by other launches: LD, LDG, ST, STG, ATOM, ATOMG, RED,
    /// CCTL, LDGSTS.
    const ACCESSES: [u64; 9] = [0x980, 0x981, 0x985, 0x986, 0x38a, 0x3a8, 0x98e, 0x98f, 0xfae];
    let mut kernels = 0;
    for unit in Unit::all() {
        let file = prebuilt::file(unit, Target::Sm90).unwrap();
        for kernel in Cubin::parse(&file).unwrap().kernels {
            let code = kernel.code.as_chunks::<16>().0;
            let word = |i: &[u8; 16]| u64::from_le_bytes(*i.first_chunk().unwrap());
            let waits = code.iter().position(|i| word(i) & 0xffff == WAIT);
            let looks = code.iter().position(|i| ACCESSES.contains(&(word(i) & 0xfff)));
            let name = &kernel.name;
            assert!(waits.is_some_and(|waits| looks.is_none_or(|looks| waits < looks)), "{name}");
            kernels += usize::from(looks.is_some());
        }
    }
    assert!(kernels > 200, "{kernels} kernels look at memory");
}

#[test]
fn no_kernel_spills() {
    let manifest = prebuilt::manifest().unwrap();
    for unit in Unit::all() {
        let compiled = source::compiled(unit, Target::Sm87);
        for Compiled { symbol: name, has_stack, .. } in &compiled {
            let usage = manifest.kernels[name];
            assert_eq!((usage.spill_stores, usage.spill_loads), (0, 0), "{name} spills");
            assert_eq!(usage.stack > 0, *has_stack, "{name} keeps {} bytes of stack", usage.stack);
        }
        let on_purpose = compiled.iter().any(|kernel| kernel.has_stack);
        for target in Target::ALL {
            let name = target.file(unit);
            let file = &manifest.files[&name];
            assert!(file.spilled == 0 || on_purpose, "{name}: {}", file.spilled);
        }
    }
}

/// The manifest's resources of a kernel equal the cubin's.
#[test]
fn the_manifest_matches_the_cubins() {
    let manifest = prebuilt::manifest().unwrap();
    let mut kernels = 0;
    for unit in Unit::all() {
        let file = prebuilt::file(unit, Target::Sm87).unwrap();
        let cubin = Cubin::parse(&file).unwrap();
        for Compiled { symbol, .. } in source::compiled(unit, Target::Sm87) {
            let (found, usage) = (cubin.kernel(&symbol).unwrap(), manifest.kernels[&symbol]);
            kernels += 1;
            assert_eq!(usage.registers, found.registers);
            assert_eq!(usage.shared, found.shared_bytes);
            assert_eq!(usage.stack, found.stack_bytes);
            assert_eq!(usage.code, found.code.len());
        }
    }
    assert_eq!(manifest.kernels.len(), kernels);
}

/// Blocks may use 100 KiB of shared memory, 1 KiB of which is reserved.
#[test]
fn static_shared_memory_of_projections_fits() {
    let manifest = prebuilt::manifest().unwrap();
    for kernel in Kernel::all() {
        if matches!(kernel, Kernel::Project { .. } | Kernel::Experts(_)) {
            let own = manifest.kernels[&kernel.symbol()].shared;
            assert!(own + u64::from(SHARED_LIMIT) <= 99 << 10, "{}: {own}", kernel.symbol());
        }
    }
}

#[test]
fn names_are_unique() {
    let compiled = |unit| source::compiled(unit, Target::Sm87);
    let mut names: Vec<String> =
        Unit::all().flat_map(compiled).map(|kernel| kernel.symbol).collect();
    let count = names.len();
    names.sort();
    names.dedup();
    assert_eq!(names.len(), count);
}

/// A checkout that is moved, or shares its target folder, must not read another checkout's files.
#[test]
fn the_generated_file_list_contains_no_absolute_path() {
    let list = include_str!(concat!(env!("OUT_DIR"), "/prebuilt.rs"));
    assert!(list.contains("manifest.json") && !list.contains(env!("CARGO_MANIFEST_DIR")), "{list}");
}
