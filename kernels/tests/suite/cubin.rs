//! Tests of the cubin parser on real files, and on files damaged in every way: it may reject them
//! but must not panic.

use orind_kernels::catalogue::Unit;
use orind_kernels::cubin::{Cubin, Error};
use orind_kernels::prebuilt;
use orind_kernels::source::Target;
use proptest::prelude::*;

fn rows(target: Target) -> Vec<u8> {
    prebuilt::file(Unit::Rows, target).unwrap()
}

#[test]
fn a_known_kernel_is_parsed() {
    let file = rows(Target::Sm87);
    let cubin = Cubin::parse(&file).unwrap();
    let names: Vec<&str> = cubin.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    for name in ["gather", "rms_norm", "add", "swiglu"] {
        assert!(names.contains(&name), "{names:?}");
    }
    let kernel = cubin.kernel("rms_norm").unwrap();
    assert_eq!(kernel.barriers, 1, "one __syncthreads");
    assert_eq!(kernel.shared_bytes, 32, "eight partial sums");
    assert_eq!(kernel.constants0.len(), 0x160 + 40);
    assert!(kernel.constants0.iter().all(|&byte| byte == 0));
    assert_eq!(kernel.align, 128);
    assert_eq!(cubin.kernel("gather").unwrap().barriers, 0);
    assert!(cubin.kernel("no such kernel").is_none());
}

#[test]
fn other_files_are_rejected_with_a_reason() {
    assert!(matches!(Cubin::parse(b""), Err(Error::Elf(_))));
    assert!(matches!(Cubin::parse(b"\x7fELF"), Err(Error::Elf(_))));
    let mut bytes = rows(Target::Sm87);
    bytes[18] = 62;
    assert!(matches!(Cubin::parse(&bytes), Err(Error::Machine { machine: 62 })));
    let mut bytes = rows(Target::Sm87);
    bytes[8] = 9;
    assert!(matches!(Cubin::parse(&bytes), Err(Error::Abi { version: 9, .. })));
}

#[test]
fn truncated_files_do_not_panic() {
    let bytes = &rows(Target::Sm87);
    let whole = Cubin::parse(bytes).unwrap();
    for end in (0..bytes.len()).step_by(7) {
        // Debug sections may be missing at the end.
        if let Ok(cubin) = Cubin::parse(&bytes[..end]) {
            assert_eq!(cubin.kernels, whole.kernels);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// A few bytes changed anywhere.
    #[test]
    fn damaged_files_do_not_panic(
        places in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        sm90 in any::<bool>(),
    ) {
        let mut bytes = rows(if sm90 { Target::Sm90 } else { Target::Sm87 });
        for (at, value) in places {
            let at = at.index(bytes.len());
            bytes[at] = value;
        }
        let _ = Cubin::parse(&bytes);
    }

    /// Tables that refer to everything else: the header, and one section's entry.
    #[test]
    fn damaged_tables_do_not_panic(
        header in any::<bool>(),
        field in 0..16usize,
        section in any::<prop::sample::Index>(),
        value in any::<u64>(),
        small in any::<bool>(),
    ) {
        let mut bytes = rows(Target::Sm87);
        let table = u64::from_le_bytes(bytes[40..48].try_into().unwrap()) as usize;
        let count = usize::from(u16::from_le_bytes([bytes[60], bytes[61]]));
        let at = if header { 4 * field } else { table + 64 * section.index(count) + 4 * field };
        let value = if small { value % 64 } else { value };
        let bytes_at = (at + 8).min(bytes.len());
        let width = bytes_at - at;
        bytes[at..bytes_at].copy_from_slice(&value.to_le_bytes()[..width]);
        let _ = Cubin::parse(&bytes);
    }
}
