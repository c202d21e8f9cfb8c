//! Addresses of buffers as observed on hardware, and the rules of areas and mappings.

use proptest::prelude::*;
use tegra::abi::address_space::{
    FREE_SPACE, FreeSpace, MAP_ACCESS_READ_ONLY, MAP_CACHEABLE, MAP_FIXED_OFFSET, MapBufferEx,
};
use tegra_sim::driver::Errno;

use super::bench::{Bench, bytes, errno, whole};

#[test]
fn first_maps_land_where_they_were_seen_on_hardware() {
    let bench = Bench::new();
    let space = bench.alloc_as(0x20_0000, 0xff_ffe0_0000).unwrap();
    let golden = [
        (4 << 10, 0xff_ffa0_0000),
        (1 << 20, 0xff_ffb0_0000),
        (16 << 20, 0xff_fe20_0000),
        (64 << 20, 0xff_f820_0000),
    ];
    for (size, va) in golden {
        let (_, fd) = bench.buffer(size);
        assert_eq!(bench.map(space, &mut whole(fd)).unwrap(), va, "{size:#x}");
    }
}

#[test]
fn the_same_map_gives_the_same_address_and_one_more_reference() {
    let bench = Bench::new();
    let space = bench.space();
    let (_, fd) = bench.buffer(8192);
    let va = bench.map(space, &mut whole(fd)).unwrap();
    assert_eq!(bench.map(space, &mut whole(fd)).unwrap(), va);
    let again = bench.fd_of(bench.handle_of(fd));
    assert_eq!(bench.map(space, &mut whole(again)).unwrap(), va, "another fd, the same buffer");
    let mut cached = MapBufferEx { flags: MAP_CACHEABLE, ..whole(fd) };
    assert_ne!(bench.map(space, &mut cached).unwrap(), va);
    let mut compressed = MapBufferEx { compr_kind: 6, ..whole(fd) };
    assert_ne!(bench.map(space, &mut compressed).unwrap(), va);
    assert_eq!(bench.orin.live().mappings, 3);
    for left in [3, 3, 2] {
        bench.unmap(space, va).unwrap();
        assert_eq!(bench.orin.live().mappings, left);
    }
    bench.unmap(space, va).unwrap();
    assert_ne!(bench.map(space, &mut whole(fd)).unwrap(), cached.offset);
}

impl Bench {
    /// The handle that FROM_FD gives.
    fn handle_of(&self, fd: i32) -> u32 {
        let mut args = tegra::abi::nvmap::HandleFd { fd, handle: 0 };
        self.call(self.nvmap, tegra::abi::nvmap::FROM_FD, &mut args).unwrap();
        args.handle
    }
}

#[test]
fn areas_contain_fixed_maps_and_free_them() {
    let bench = Bench::new();
    let space = bench.space();
    let at = 0x12_3450_0000;
    assert_eq!(bench.area(space, at, 16, false).unwrap(), at);
    let (_, fd) = bench.buffer(16384);
    let fixed = |va, offset, bytes| MapBufferEx {
        flags: MAP_FIXED_OFFSET,
        offset: va,
        buffer_offset: offset,
        mapping_size: bytes,
        ..whole(fd)
    };
    assert_eq!(bench.map(space, &mut fixed(at, 0, 0)).unwrap(), at);
    assert_eq!(bench.map(space, &mut fixed(at, 0, 0)).unwrap(), at, "the same again");
    assert_eq!(bench.map(space, &mut fixed(at + 0x4000, 4096, 8192)).unwrap(), at + 0x4000);
    assert_eq!(errno(bench.map(space, &mut fixed(at + 0x5000, 0, 4096))), Err(Errno::EINVAL));
    assert_eq!(bench.orin.live().mappings, 2);
    let mut free = FreeSpace { offset: at + 0x1000, pages: 16, ..FreeSpace::default() };
    bench.call(bench.file(space), FREE_SPACE, &mut free).unwrap();
    assert_eq!(bench.orin.live().mappings, 1, "one was mapped twice");
    bench.unmap(space, at).unwrap();
    assert_eq!(bench.orin.live().mappings, 0);
    assert_eq!(bench.area(space, at, 16, false).unwrap(), at, "the area is free again");
}

#[test]
fn remap_moves_pages_in_and_out_of_a_sparse_area() {
    let bench = Bench::new();
    let space = bench.space();
    let at = bench.area(space, 0, 16, true).unwrap();
    let (_, fd) = bench.buffer(8 * 4096);
    let op = |fd: i32, from: u64, page: u64, pages: u64| {
        let kinds = if fd == 0 { u64::from(u32::MAX) } else { 0xffff };
        let first = at / 4096 + page;
        bytes::<40>(&[
            (0, 1 << 15, 4),
            (4, kinds, 4),
            (8, fd as u64, 4),
            (16, from, 8),
            (24, first, 8),
            (32, pages, 8),
        ])
    };
    let remap = |ops: &[[u8; 40]]| {
        let mut args = bytes::<16>(&[(0, ops.as_ptr() as u64, 8), (8, ops.len() as u64, 4)]);
        let result = bench.raw(bench.file(space), "NVGPU_AS_IOCTL_REMAP", &mut args);
        (errno(result), u32::from_le_bytes(args[8..12].try_into().unwrap()))
    };
    assert_eq!(remap(&[op(fd, 2, 4, 3), op(fd, 0, 4, 1), op(0, 0, 6, 1)]), (Ok(0), 3));
    // Nothing of a list is done when one of it is wrong, and the count says so.
    assert_eq!(remap(&[op(0, 0, 4, 1), op(fd, 0, 14, 3)]), (Err(Errno::EINVAL), 0));
    assert_eq!(remap(&[op(fd, 6, 0, 3)]), (Err(Errno::EINVAL), 0));
    assert_eq!(remap(&[op(fd, 0, 0, 0)]), (Err(Errno::EINVAL), 0));
    assert_eq!(remap(&[]), (Ok(0), 0));
}

#[test]
fn batches_unmap_first_and_map_then() {
    let bench = Bench::new();
    let space = bench.space();
    let fds = [bench.buffer(4096).1, bench.buffer(4096).1];
    let va = bench.map(space, &mut whole(fds[0])).unwrap();
    let unmaps = [va];
    let maps = [whole(fds[0]), whole(fds[1])];
    let batch = |maps: &[MapBufferEx]| {
        let mut args = bytes::<32>(&[
            (0, unmaps.as_ptr() as u64, 8),
            (8, maps.as_ptr() as u64, 8),
            (16, 1, 4),
            (20, maps.len() as u64, 4),
        ]);
        bench.raw(bench.file(space), "NVGPU_AS_IOCTL_MAP_BUFFER_BATCH", &mut args)
    };
    batch(&maps).unwrap();
    assert_eq!(bench.orin.live().mappings, 2);
    let wrong = [whole(fds[0]), MapBufferEx { flags: 3 << 10, ..whole(fds[1]) }];
    assert_eq!(errno(batch(&wrong)), Err(Errno::EINVAL));
}

#[test]
fn syncpoints_have_one_window_and_an_address_each() {
    let bench = Bench::new();
    let ready = bench.running();
    let window = || {
        let mut args = tegra::abi::address_space::GetSyncRoMap::default();
        let space = bench.file(ready.space);
        bench.call(space, tegra::abi::address_space::GET_SYNC_RO_MAP, &mut args).unwrap();
        args
    };
    let syncpoint = || {
        let mut args = tegra::abi::channel::GetUserSyncpoint::default();
        let channel = bench.file(ready.channel);
        bench.call(channel, tegra::abi::channel::GET_USER_SYNCPOINT, &mut args).unwrap();
        args
    };
    let first = syncpoint();
    assert_eq!((first.syncpoint_id, first.syncpoint_max), (17, 30_000));
    assert_eq!(syncpoint(), first);
    assert_eq!(window(), window());
    let end = super::bench::RANGE.1;
    assert!(first.gpu_va >= end && window().base_gpuva >= end);
    assert!(first.gpu_va.is_multiple_of(0x1_0000));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Live mappings never overlap each other or a reserved area, whatever is mapped and unmapped.
    #[test]
    fn mappings_never_overlap(steps in proptest::collection::vec((0usize..24, 1u64..200, any::<bool>()), 1..60)) {
        let bench = Bench::new();
        let space = bench.alloc_as(0x20_0000, 0x1000_0000).unwrap();
        let window = (0x800_0000, 0x100_0000);
        bench.area(space, window.0, window.1 / 4096, false).unwrap();
        let mut live: Vec<Option<(u64, u64)>> = vec![None; 24];
        for (slot, pages, cached) in steps {
            if let Some((va, _)) = live[slot].take() {
                bench.unmap(space, va).unwrap();
                continue;
            }
            let (handle, fd) = bench.buffer(pages * 4096);
            let mut map = whole(fd);
            map.flags = if cached { MAP_CACHEABLE } else { MAP_ACCESS_READ_ONLY };
            match bench.map(space, &mut map) {
                Ok(va) => {
                    let new = (va, va + pages * 4096);
                    let windows = (window.0, window.0 + window.1);
                    for old in live.iter().flatten().chain([&windows]) {
                        prop_assert!(new.1 <= old.0 || old.1 <= new.0, "{:x?} {:x?}", new, old);
                    }
                    live[slot] = Some(new);
                }
                Err(refused) => prop_assert_eq!(refused.errno, Errno::ENOMEM),
            }
            bench.close(fd);
            bench.free(handle);
        }
        for (va, _) in live.into_iter().flatten() {
            bench.unmap(space, va).unwrap();
        }
        let after = bench.orin.live();
        prop_assert_eq!((after.mappings, after.dma_bufs, after.handles), (0, 0, 0));
        let (_, fd) = bench.buffer(0x400_0000);
        prop_assert!(bench.map(space, &mut whole(fd)).is_ok(), "freed space is whole again");
    }
}
