//! dma-bufs and user memory through their public interfaces.

use std::os::fd::AsRawFd;

use proptest::prelude::*;
use tegra_sim::driver::user;
use tegra_sim::memory::{Caching, DmaBuf, MemoryError, Pages, Ram};

#[test]
fn a_buffer_is_rounded_to_pages_and_zeroed() {
    let buffer = DmaBuf::new(1).unwrap();
    assert_eq!(buffer.bytes(), 4096);
    let mut bytes = [1; 16];
    buffer.read(4080, &mut bytes).unwrap();
    assert_eq!(bytes, [0; 16]);
    assert!(DmaBuf::new(0).is_err());
    assert!(DmaBuf::new(u64::MAX).is_err());
    assert_ne!(DmaBuf::new(1).unwrap().inode(), buffer.inode());
}

#[test]
fn accesses_beyond_the_buffer_or_misaligned_are_refused() {
    let buffer = DmaBuf::new(4096).unwrap();
    let beyond = MemoryError::OutOfRange { offset: 4093, len: 4, bytes: 4096 };
    assert_eq!(buffer.read(4093, &mut [0; 4]), Err(beyond));
    assert_eq!(buffer.write(u64::MAX, &[1]), buffer.read(u64::MAX, &mut [0]));
    assert_eq!(buffer.load_u32(4096).unwrap_err(), buffer.store_u32(4096, 1).unwrap_err());
    assert_eq!(buffer.load_u64(4), Err(MemoryError::Misaligned { offset: 4, align: 8 }));
    assert_eq!(buffer.load_u32(2), Err(MemoryError::Misaligned { offset: 2, align: 4 }));
}

#[test]
fn reading_does_not_count_as_writing() {
    let buffer = DmaBuf::new(1 << 20).unwrap();
    buffer.read(0, &mut vec![0; 1 << 20]).unwrap();
    assert_eq!((buffer.load_u32(8).unwrap(), buffer.load_u64(8192).unwrap()), (0, 0));
    assert!(!buffer.ever_written(0, 1 << 20));
    buffer.write(3 * 4096 + 7, &[1]).unwrap();
    assert!(buffer.ever_written(0, 1 << 20) && buffer.ever_written(3 * 4096, 1));
    assert!(!buffer.ever_written(0, 3 * 4096) && !buffer.ever_written(4 * 4096, 1 << 19));
}

#[test]
fn every_mapping_of_the_fd_sees_the_same_pages() {
    let buffer = DmaBuf::new(8192).unwrap();
    // SAFETY: a new mapping of a file that stays open; unmapped below.
    unsafe {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let file = buffer.open().unwrap();
        let fd = file.as_raw_fd();
        let map = libc::mmap(std::ptr::null_mut(), 8192, prot, libc::MAP_SHARED, fd, 0);
        assert_ne!(map, libc::MAP_FAILED);
        let words = map.cast::<u32>();
        words.add(1024).write_volatile(0xcafe);
        assert_eq!(buffer.load_u32(4096).unwrap(), 0xcafe);
        buffer.store_u64(16, 7).unwrap();
        assert_eq!(words.add(4).read_volatile(), 7);
        assert_eq!(libc::ftruncate(fd, 0), -1, "the program cannot shrink what the GPU uses");
        libc::munmap(map, 8192);
    }
    assert_eq!(buffer.update_u32(4096, |old| old + 1).unwrap(), 0xcafe);
    assert_eq!(buffer.update_u64(16, |old| old * 2).unwrap(), 7);
    assert_eq!((buffer.load_u32(4096).unwrap(), buffer.load_u64(16).unwrap()), (0xcaff, 14));
}

#[test]
fn pages_are_given_once_and_their_charge_returns() {
    let ram = Ram::new(8192);
    let pages = |charge| Pages { caching: Caching::WriteCombined, read_only: false, charge };
    let buffer = DmaBuf::new(4096).unwrap();
    assert_eq!(buffer.caching(), None);
    buffer.allocate(pages(ram.charge(4096))).unwrap();
    assert!(buffer.allocate(pages(None)).is_err());
    assert_eq!(buffer.caching(), Some(Caching::WriteCombined));
    assert_eq!((ram.free(), ram.total()), (4096, 8192));
    assert!(ram.charge(4097).is_none() && ram.charge(u64::MAX).is_none());
    drop(buffer);
    assert_eq!(ram.free(), 8192);
}

#[test]
fn lent_pages_are_the_programs_own_until_it_takes_them_away() {
    // SAFETY: a private mapping of our own, accessed by the kernel on our behalf only.
    let va = unsafe {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 8192, prot, flags, -1, 0) as u64
    };
    let buffer = DmaBuf::over_user_pages(va, 8192).unwrap();
    user::write(va + 4096, &7u32.to_le_bytes()).unwrap();
    assert_eq!(buffer.load_u32(4096).unwrap(), 7);
    assert_eq!(buffer.update_u32(4096, |old| old + 1).unwrap(), 7);
    assert_eq!(user::read_array::<4>(va + 4096).unwrap(), [8, 0, 0, 0]);
    // SAFETY: the mapping made above. It is not unmapped: another test's could take its place.
    unsafe { libc::mprotect(va as *mut libc::c_void, 8192, libc::PROT_NONE) };
    assert_eq!(buffer.load_u32(4096), Err(MemoryError::LentPageGone { va: va + 4096 }));
}

#[test]
fn bad_addresses_of_the_program_are_reported() {
    for address in [0, 1, 4095, 1 << 47, u64::MAX - 3, u64::MAX] {
        assert!(user::read(address, &mut [0; 4]).is_err(), "{address:#x}");
        assert!(user::write(address, &[0; 4]).is_err(), "{address:#x}");
    }
    let big = vec![0x5a_u8; 200_001];
    let mut back = vec![0; big.len()];
    user::read(big.as_ptr() as u64, &mut back).unwrap();
    assert_eq!(big, back);
    assert!(user::read(0, &mut []).is_ok(), "no byte is no fault");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Any sequence of writes and reads equals the same on a plain vector.
    #[test]
    fn a_buffer_is_a_vector_of_bytes(
        writes in proptest::collection::vec((0u64..16400, proptest::collection::vec(any::<u8>(), 0..300)), 1..20),
        reads in proptest::collection::vec((0u64..16400, 0usize..5000), 1..20),
    ) {
        let buffer = DmaBuf::new(16384).unwrap();
        let mut model = vec![0u8; 16384];
        for (at, data) in &writes {
            let fits = *at as usize + data.len() <= model.len();
            prop_assert_eq!(buffer.write(*at, data).is_ok(), fits);
            if fits {
                model[*at as usize..*at as usize + data.len()].copy_from_slice(data);
            }
        }
        for (at, len) in &reads {
            let mut out = vec![0xee; *len];
            let fits = *at as usize + len <= model.len();
            prop_assert_eq!(buffer.read(*at, &mut out).is_ok(), fits);
            if fits {
                prop_assert_eq!(&out, &model[*at as usize..*at as usize + len]);
            }
        }
    }
}
