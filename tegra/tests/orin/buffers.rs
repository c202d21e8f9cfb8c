//! Buffers of every type and size, valid and invalid accesses, and reuse of addresses.

use nix::errno::Errno;
use orind_testing::random::Random;
use tegra::Error;
use tegra::address::GpuAddress;
use tegra::buffer::{Filling, Loading, Mailbox, Scratch};
use tegra::context::Options;
use tegra::orin::Orin;
use tegra::space::{self, Access, AddressSpace, L2};

use crate::support::{Copies, alone, count, space, space_with};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const LOCAL: u64 = 0xfd_0000_0000;
const SHARED: u64 = 0xfe_0000_0000;

#[test]
fn buffers_from_4_kib_to_1_gib_are_accessible() {
    alone(|| {
        let mut copies = Copies::new();
        let probe = copies.mailbox(16);
        for bytes in [4 * KIB, 64 * KIB, MIB, 16 * MIB + 4 * KIB, 64 * MIB, GIB] {
            let scratch = Scratch::new(&copies.space, bytes).unwrap();
            assert_eq!(scratch.bytes(), bytes);
            // The first and last bytes are accessible.
            for offset in [0, bytes - 16] {
                let pattern = (bytes + offset).to_ne_bytes();
                probe.write(0, &pattern).unwrap();
                let place = scratch.address().offset(offset).unwrap();
                copies.copy(probe.address(), place, 8);
                probe.write(0, &[0; 8]).unwrap();
                copies.copy(place, probe.address(), 8);
                let mut back = [0; 8];
                probe.read(0, &mut back).unwrap();
                assert_eq!(back, pattern, "{bytes} bytes, offset {offset}");
            }
        }
    });
}

#[test]
fn sizes_round_up_to_pages_and_zero_is_refused() {
    alone(|| {
        let space = space();
        assert_eq!(Mailbox::new(&space, 1).unwrap().bytes(), 4 * KIB);
        assert_eq!(Scratch::new(&space, 4 * KIB + 1).unwrap().bytes(), 8 * KIB);
        assert!(matches!(Filling::new(&space, 0), Err(Error::Empty { .. })));
        for absurd in [u64::MAX, 1 << 50] {
            let error = Scratch::new(&space, absurd).unwrap_err();
            assert!(matches!(error, Error::OutOfMemory { .. }), "{error:?}");
        }
    });
}

#[test]
fn cpu_and_gpu_read_sealed_weights() {
    for l2 in [L2::Volatile, L2::Cached] {
        alone(|| weights_in(l2));
    }
}

fn weights_in(l2: L2) {
    let mut copies = Copies::within(space_with(l2), Options::default());
    let content = Random(0x3e16).bytes(10_000);
    let mut filling = Filling::new(&copies.space, content.len() as u64).unwrap();
    let before = copies.space.usage();
    filling.as_mut_slice()[..content.len()].copy_from_slice(&content);
    let weights = filling.seal().unwrap();
    assert_eq!(copies.space.usage().buffers, before.buffers + 1, "an address once sealed");
    let target = copies.mailbox(weights.bytes());
    copies.copy(weights.address(), target.address(), content.len() as u64);
    let mut seen = vec![0; content.len()];
    target.read(0, &mut seen).unwrap();
    assert!(seen == content && weights.as_slice()[..content.len()] == content);
    // Reopened, written again and sealed again.
    let mut filling = weights.reopen();
    assert_eq!(copies.space.usage().buffers, before.buffers + 1, "only the target");
    filling.as_mut_slice()[0] ^= 0xff;
    let weights = filling.seal().unwrap();
    copies.copy(weights.address(), target.address(), 1);
    target.read(0, &mut seen[..1]).unwrap();
    assert_eq!(seen[0], content[0] ^ 0xff);
}

/// For a fault report: lists every mapping and reads its memory through a second CPU mapping.
#[test]
fn every_mapping_is_listed_and_readable() {
    alone(|| {
        let options = space::Options { sealed: Access::Read, ..space::Options::default() };
        let space = AddressSpace::with(&Orin::open().unwrap(), options).unwrap();
        let mut copies = Copies::within(space.clone(), Options::default());
        let mut filling = Filling::new(&space, 5 * KIB).unwrap();
        let content = Random(0x10ad).bytes(5 * KIB as usize);
        filling.as_mut_slice()[..content.len()].copy_from_slice(&content);
        let known = space.mappings().len();
        let weights = filling.seal().unwrap();
        let scratch = Scratch::new(&space, 8 * KIB).unwrap();
        copies.copy(weights.address(), scratch.address(), content.len() as u64);
        let find = |address: GpuAddress| {
            let mut all = space.mappings().into_iter();
            all.find(|mapping| mapping.address == address).unwrap()
        };
        for (address, what, writable) in
            [(weights.address(), "weights", false), (scratch.address(), "scratch", true)]
        {
            let mapping = find(address);
            assert_eq!((mapping.what(), mapping.writable), (what, writable));
            assert_eq!((mapping.bytes, mapping.cacheable), (8 * KIB, false));
            // Unaligned offsets, too.
            let mut seen = vec![0; 1000];
            mapping.view().unwrap().read(4 * KIB + 3, &mut seen[..700]).unwrap();
            assert!(seen[..700] == content[4 * KIB as usize + 3..][..700], "{what}");
            assert!(matches!(
                mapping.view().unwrap().read(8 * KIB - 999, &mut seen),
                Err(Error::Range { .. })
            ));
        }
        assert_eq!(space.mappings().len(), known + 2);
        drop((weights, scratch));
        assert_eq!(space.mappings().len(), known);
    });
}

#[test]
fn a_pool_places_and_reads_back_tensors() {
    alone(|| {
        let space = space();
        let mut random = Random(0x9001);
        let mut loading = Loading::new(&space, 3 * MIB);
        let mut tensors = Vec::new();
        for _ in 0..100 {
            let alignment = 1 << (random.bits() % 13);
            let bytes = 1 + random.bits() % 100_000;
            let fill = random.bits() as u8;
            let (placement, place) = loading.tensor(bytes, alignment).unwrap();
            assert_eq!(place.len() as u64, bytes);
            place.fill(fill);
            tensors.push((placement, alignment, fill));
        }
        assert!(loading.tensor(1, 3).is_err() && loading.tensor(1, 8192).is_err());
        assert!(loading.tensor(0, 1).is_err());
        let pool = loading.seal().unwrap();
        let mut ranges = Vec::new();
        for (placement, alignment, fill) in tensors {
            let address = pool.address(placement).unwrap().get();
            assert!(address.is_multiple_of(alignment));
            assert!(pool.bytes(placement).unwrap().iter().all(|byte| *byte == fill));
            ranges.push(address..address + placement.bytes());
        }
        ranges.sort_by_key(|range| range.start);
        assert!(ranges.windows(2).all(|pair| pair[0].end <= pair[1].start), "tensors overlap");
        let other = Loading::new(&space, 0).seal().unwrap();
        let (foreign, _) = Loading::new(&space, MIB).tensor(1, 1).map(|(at, _)| (at, ())).unwrap();
        assert_eq!(other.address(foreign), None);
    });
}

#[test]
fn mailboxes_check_every_access() {
    alone(|| {
        let mailbox = Mailbox::new(&space(), 4 * KIB).unwrap();
        mailbox.store_u64(4088, 7).unwrap();
        assert_eq!(mailbox.load_u64(4088).unwrap(), 7);
        assert_eq!(mailbox.load_u32(4088).unwrap(), 7);
        assert!(matches!(mailbox.load_u32(2), Err(Error::Misaligned { offset: 2, alignment: 4 })));
        assert!(matches!(mailbox.store_u64(4, 0), Err(Error::Misaligned { .. })));
        assert!(matches!(mailbox.load_u32(4096), Err(Error::Range { .. })));
        assert!(matches!(mailbox.write(4090, &[0; 7]), Err(Error::Range { .. })));
        assert!(matches!(mailbox.read(u64::MAX, &mut [0; 2]), Err(Error::Range { .. })));
        assert!(matches!(mailbox.write_words(4092, &[0; 2]), Err(Error::Range { .. })));
        assert!(mailbox.at(4095).is_ok() && mailbox.at(4096).is_err());
        // Any offset and length, against a plain array.
        let mut random = Random(0xb0b);
        let mut model = vec![0; 4096];
        mailbox.write(0, &model).unwrap();
        for _ in 0..200 {
            let start = random.below(4000);
            let bytes = random.below(90).min(4096 - start);
            let data = random.bytes(bytes);
            mailbox.write(start as u64, &data).unwrap();
            model[start..start + bytes].copy_from_slice(&data);
            let start = random.below(4000);
            let mut back = vec![0; random.below(90)];
            mailbox.read(start as u64, &mut back).unwrap();
            assert_eq!(back, model[start..start + back.len()]);
        }
    });
}

#[test]
fn cpu_and_gpu_see_each_others_writes() {
    for l2 in [L2::Volatile, L2::Cached] {
        alone(|| coherence_in(l2));
    }
}

fn coherence_in(l2: L2) {
    let mut copies = Copies::within(space_with(l2), Options::default());
    let (from, to) = (copies.mailbox(MIB), copies.mailbox(MIB));
    let scratch = Scratch::new(&copies.space, MIB).unwrap();
    for round in 0..20u64 {
        let value = 0x0101_0101_0101_0101 * (round + 1);
        for offset in (0..MIB).step_by(4096) {
            from.store_u64(offset, value + offset).unwrap();
        }
        copies.copy(from.address(), scratch.address(), MIB);
        copies.copy(scratch.address(), to.address(), MIB);
        for offset in (0..MIB).step_by(4096) {
            assert_eq!(to.load_u64(offset).unwrap(), value + offset, "round {round}");
        }
    }
    let seen = scratch.snapshot().unwrap();
    assert_eq!(seen.len() as u64, MIB);
    assert_eq!(seen[4096..4104], (0x1414_1414_1414_1414u64 + 4096).to_ne_bytes());
}

/// Addresses are reused: far more buffers are mapped over time than there are addresses for.
#[test]
fn months_of_maps_do_not_exhaust_addresses() {
    alone(|| {
        let space = space();
        let lasting = Mailbox::new(&space, MIB).unwrap();
        let cycles = count(20_000, 1_000_000);
        let mut random = Random(0x3a7);
        let mut live = Vec::new();
        for cycle in 0..cycles {
            // Some overlap, of many size classes; a gibibyte of addresses now and then.
            let bytes = match random.bits() % 1000 {
                0 => 256 * MIB,
                size => (1 + size % 64) * 4 * KIB,
            };
            let buffer = Scratch::new(&space, bytes).unwrap();
            let (start, end) = (buffer.address().get(), buffer.address().get() + buffer.bytes());
            for window in [LOCAL, SHARED] {
                assert!(end <= window || start >= window + GIB, "cycle {cycle}: {start:#x}");
            }
            assert!(0x20_0000 <= start && end <= 0xff_0000_0000, "cycle {cycle}: {start:#x}");
            live.push(buffer);
            if live.len() > 8 {
                live.swap_remove(random.below(8));
            }
        }
        assert_eq!(space.usage().buffers, live.len() as u64 + 1);
        drop(live);
        assert_eq!(space.usage().buffers, 1);
        assert_eq!(space.usage().bytes, lasting.bytes());
        // Afterwards there is still space for the largest.
        let large = Scratch::new(&space, GIB).unwrap();
        assert_eq!(large.bytes(), GIB);
    });
}

/// The driver never places a buffer in a window, even when little else is free.
#[test]
fn windows_stay_free() {
    alone(|| {
        let orin = Orin::open().unwrap();
        let space = AddressSpace::new(&orin, L2::Volatile).unwrap();
        let mut buffers = Vec::new();
        for _ in 0..2000 {
            buffers.push(Scratch::new(&space, 4 * KIB).unwrap());
        }
        for buffer in &buffers {
            let start = buffer.address().get();
            let inside = [LOCAL, SHARED].iter().any(|at| (*at..at + GIB).contains(&start));
            assert!(!inside, "{start:#x}");
        }
        assert_eq!(space.usage().bytes, 2000 * 4 * KIB);
    });
}

#[test]
fn buffers_keep_the_device_open() {
    alone(|| {
        // Buffers keep the device open, in any order of dropping.
        let orin = Orin::open().unwrap();
        let space = AddressSpace::new(&orin, L2::Volatile).unwrap();
        let buffer = Scratch::new(&space, MIB).unwrap();
        drop((orin, space));
        assert_eq!(buffer.snapshot().unwrap().len() as u64, MIB);
        assert_ne!(Errno::last(), Errno::EBADF);
    });
}
