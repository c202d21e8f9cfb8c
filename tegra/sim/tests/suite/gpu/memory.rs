//! Page tables: ranges, pieces, rights, and fault types.

use std::collections::BTreeMap;
use std::sync::Arc;

use proptest::prelude::*;
use tegra_sim::gpu::{Access, MapAccess, MapError, MapFlags, Mmu, MmuFaultKind};
use tegra_sim::memory::DmaBuf;

use super::rig::{Rig, copying};

const PAGE: u64 = 4096;

#[test]
fn faults_are_named() {
    let mmu = Mmu::new();
    let memory = DmaBuf::new(PAGE).unwrap();
    let flags = MapFlags { access: MapAccess::ReadOnly, ..MapFlags::default() };
    mmu.map(0x20_0000, Arc::clone(&memory), 0, PAGE, flags).unwrap();
    let unmapped = MapFlags { unmapped_pte: true, ..MapFlags::default() };
    mmu.map(0x20_2000, memory, 0, PAGE, unmapped).unwrap();
    let kind =
        |va, bytes, access| mmu.resolve(va, bytes, access).map(drop).map_err(|f| (f.va, f.kind));
    assert_eq!(kind(0x20_0ffc, 4, Access::Read), Ok(()));
    assert_eq!(kind(0x20_0ffd, 4, Access::Read), Err((0x20_1000, MmuFaultKind::InvalidPte)));
    assert_eq!(kind(0x20_0000, 4, Access::Write), Err((0x20_0000, MmuFaultKind::WriteToReadOnly)));
    assert_eq!(kind(0x20_0000, 4, Access::Atomic), Err((0x20_0000, MmuFaultKind::WriteToReadOnly)));
    assert_eq!(kind(0x20_2000, 4, Access::Read), Err((0x20_2000, MmuFaultKind::InvalidPte)));
    assert!(mmu.has_unmapped_pte(0x20_2fff) && !mmu.has_unmapped_pte(0x20_0000));
    assert_eq!(kind(0, 4, Access::Read), Err((0, MmuFaultKind::InvalidPde)));
    assert_eq!(kind(u64::MAX, 4, Access::Read), Err((u64::MAX, MmuFaultKind::LimitViolation)));
    assert_eq!(mmu.first_mapped(0x10_0000, 0x10_0000), None);
    assert_eq!(mmu.first_mapped(0x20_0800, 0x10_0000), Some(0x20_0800));
    assert_eq!(mmu.first_mapped(0x20_1000, 0x10_0000), Some(0x20_2000));
}

#[test]
fn wrong_mappings_are_refused() {
    let mmu = Mmu::new();
    let memory = DmaBuf::new(2 * PAGE).unwrap();
    let map =
        |va, offset, bytes| mmu.map(va, Arc::clone(&memory), offset, bytes, MapFlags::default());
    assert!(matches!(map(1, 0, PAGE), Err(MapError::Misaligned { what: "address", .. })));
    assert!(matches!(map(PAGE, 1, PAGE), Err(MapError::Misaligned { what: "offset", .. })));
    assert!(matches!(map(PAGE, 0, 5), Err(MapError::Misaligned { what: "length", .. })));
    assert!(matches!(map(PAGE, 0, 0), Err(MapError::OutsideBuffer { .. })));
    assert!(matches!(map(PAGE, PAGE, 2 * PAGE), Err(MapError::OutsideBuffer { .. })));
    assert!(matches!(map((1 << 49) - PAGE, 0, 2 * PAGE), Err(MapError::NotFree { .. })));
    map(PAGE, 0, 2 * PAGE).unwrap();
    assert!(matches!(map(2 * PAGE, 0, PAGE), Err(MapError::NotFree { .. })));
    map(3 * PAGE, 0, PAGE).unwrap();
}

/// The copy engine's fault on an entry that exists but is not valid: the driver repairs it.
#[test]
fn copies_survive_unmapped_entries() {
    let rig = Rig::new(1);
    let from = rig.buffer(PAGE);
    from.write(0, &[1; 64]);
    let to = rig.mapped(PAGE, MapFlags { unmapped_pte: true, ..MapFlags::default() });
    rig.submit(&mut rig.channel(), &copying(from.at(0), to.at(0), 64));
    rig.assert_clean();
    assert!(rig.driver.errors.lock().is_empty());
}

proptest! {
    /// Random maps and unmaps against a table of single pages.
    #[test]
    fn translations_equal_a_table_of_pages(
        steps in prop::collection::vec((any::<bool>(), 0..40u64, 1..12u64, 0..8u64), 1..40),
    ) {
        let mmu = Mmu::new();
        let memory = DmaBuf::new(20 * PAGE).unwrap();
        let mut pages = BTreeMap::new();
        for (map, at, count, offset) in steps {
            let range = at..at + count;
            if map {
                let free = range.clone().all(|page| !pages.contains_key(&page));
                let result = mmu.map(
                    at * PAGE,
                    Arc::clone(&memory),
                    offset * PAGE,
                    count * PAGE,
                    MapFlags::default(),
                );
                prop_assert_eq!(result.is_ok(), free);
                if free {
                    pages.extend(range.map(|page| (page, page - at + offset)));
                }
            } else {
                mmu.unmap(at * PAGE, count * PAGE);
                pages.retain(|page, _| !range.contains(page));
            }
            for page in 0..60 {
                let found = mmu.resolve(page * PAGE + 5, 10, Access::Write).ok();
                let found = found.map(|pieces| (pieces.len(), pieces[0].offset, pieces[0].bytes));
                let expected = pages.get(&page).map(|page| (1, page * PAGE + 5, 10));
                prop_assert_eq!(found, expected);
            }
        }
    }
}
