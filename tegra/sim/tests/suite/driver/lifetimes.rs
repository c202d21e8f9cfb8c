//! Lifetimes of objects, and leak checks.

use tegra::abi::nvmap;
use tegra_sim::config::Config;
use tegra_sim::driver::{Errno, Live, Node};

use super::bench::{Bench, bytes, errno, whole};

#[test]
fn a_gpu_mapping_keeps_memory_without_handle_and_fd() {
    let bench = Bench::new();
    let space = bench.space();
    let (handle, fd) = bench.buffer(4096);
    let memory = bench.weak(fd);
    let va = bench.map(space, &mut whole(fd)).unwrap();
    bench.free(handle);
    bench.close(fd);
    assert!(memory.upgrade().is_some());
    let live = bench.orin.live();
    assert_eq!((live.handles, live.dma_bufs, live.mappings), (0, 1, 1));
    bench.unmap(space, va).unwrap();
    assert!(memory.upgrade().is_none());
    assert_eq!(bench.orin.live().dma_bufs, 0);
}

#[test]
fn an_address_space_lives_as_long_as_a_channel_is_bound_to_it() {
    let bench = Bench::new();
    let ready = bench.running();
    let (handle, fd) = bench.buffer(4096);
    bench.map(ready.space, &mut whole(fd)).unwrap();
    bench.close(ready.space);
    bench.close(ready.tsg);
    let live = bench.orin.live();
    assert_eq!((live.address_spaces, live.tsgs, live.mappings), (1, 1, 1));
    bench.close(ready.channel);
    let live = bench.orin.live();
    assert_eq!((live.address_spaces, live.tsgs, live.mappings, live.channels), (0, 0, 0, 0));
    bench.free(handle);
    bench.close_all();
    assert_eq!(bench.orin.live(), Live::default());
}

#[test]
fn an_event_does_not_keep_its_tsg() {
    let bench = Bench::new();
    let tsg = bench.tsg();
    let mut event = tegra::abi::tsg::EventIdCtrl { cmd: 1, event_id: 2, event_fd: 0, padding: 0 };
    bench.call(bench.file(tsg), tegra::abi::tsg::EVENT_ID_CTRL, &mut event).unwrap();
    bench.close(tsg);
    assert_eq!((bench.orin.live().tsgs, bench.orin.live().events), (0, 1));
    bench.close(event.event_fd);
    assert_eq!(bench.orin.live(), Live { files: 2, ..Live::default() });
}

#[test]
fn the_handle_table_is_the_processes_and_ends_with_the_last_open() {
    let bench = Bench::new();
    let handle = bench.handle(4096);
    let second = bench.orin.open(Node::Nvmap).unwrap();
    let get = bench.ask(second, nvmap::GET_FD, nvmap::HandleFd { fd: 0, handle });
    bench.orin.close(bench.nvmap);
    assert_eq!(bench.orin.live().handles, 1);
    bench.orin.close(second);
    assert_eq!(bench.orin.live().handles, 0);
    assert_eq!(bench.orin.live().dma_bufs, 1, "the fd keeps it");
    bench.close(get.fd);
    assert_eq!(bench.orin.live().dma_bufs, 0);
}

#[test]
fn a_hundred_thousand_maps_leave_nothing() {
    let bench = Bench::new();
    let space = bench.space();
    let sizes = [4096, 3 << 20, 1 << 20, 64 << 10, 20 << 20];
    let fds = sizes.map(|size| bench.buffer(size).1);
    let mut firsts = Vec::new();
    for round in 0..20_000 {
        let addresses = fds.map(|fd| bench.map(space, &mut whole(fd)).unwrap());
        if round < 2 {
            firsts.push(addresses);
        }
        for va in addresses {
            bench.unmap(space, va).unwrap();
        }
    }
    assert_eq!(bench.orin.live().mappings, 0);
    let last = fds.map(|fd| bench.map(space, &mut whole(fd)).unwrap());
    assert!(firsts.contains(&last), "addresses wander: {firsts:x?} {last:x?}");
    bench.close_all();
}

#[test]
fn every_id_comes_back_after_use() {
    let bench = Bench::new();
    for _ in 0..3 {
        let channels: Vec<i32> = (0..512).map(|_| bench.channel()).collect();
        assert_eq!(errno(bench.open_channel(-1)), Err(Errno::ENOMEM));
        channels.into_iter().for_each(|fd| bench.close(fd));
        let tsgs: Vec<i32> = (0..512).map(|_| bench.tsg()).collect();
        tsgs.into_iter().for_each(|fd| bench.close(fd));
    }
    assert_eq!(bench.orin.live(), Live { files: 2, ..Live::default() });
}

#[test]
fn memory_runs_out_where_the_configuration_says() {
    let config = Config { memory: Some(1 << 20), ..Config::default() };
    let bench = Bench::with(&config);
    let (first, fd) = bench.buffer(768 << 10);
    let alloc = |handle| errno(bench.try_alloc(handle));
    let second = bench.handle(512 << 10);
    assert_eq!(alloc(second), Err(Errno::ENOMEM));
    assert_eq!(alloc(bench.handle(2 << 20)), Err(Errno::ENOMEM), "more than there is");
    bench.free(first);
    assert_eq!(alloc(second), Err(Errno::ENOMEM), "the fd keeps the pages");
    bench.close(fd);
    assert_eq!(alloc(second), Ok(0));
}

#[test]
fn requests_fail_when_the_configuration_wants_it() {
    let faults = "ioctl:CREATE_64:ENOMEM@2,ioctl:ALLOC:EINTR@1/1,ioctl:*:EAGAIN@9";
    let config = Config::from_variables(|name| (name == "TEGRA_SIM_FAULTS").then(|| faults.into()));
    let bench = Bench::with(&config.unwrap());
    let create = || {
        let mut args = nvmap::Create64 { size64: 4096 };
        errno(bench.call(bench.nvmap, nvmap::CREATE_64, &mut args)).map(|_| args.handle())
    };
    let handle = create().unwrap();
    assert_eq!(create(), Err(Errno::ENOMEM));
    assert!(create().is_ok());
    for _ in 0..3 {
        assert_eq!(errno(bench.try_alloc(handle)), Err(Errno::EINTR));
    }
    let all: Vec<_> = (0..4).map(|_| create().is_ok()).collect();
    assert_eq!(all, [true, true, false, true], "the ninth request of all");
}

#[test]
fn lent_pages_serve_the_gpu_where_they_are() {
    let bench = Bench::new();
    let space = bench.space();
    // SAFETY: a private mapping of our own, accessed by the kernel on our behalf only.
    let va = unsafe {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        libc::mmap(std::ptr::null_mut(), 8192, prot, flags, -1, 0) as u64
    };
    let mut from = nvmap::FromVa { va, size: 8192, flags: 2, size64: 0 };
    bench.call(bench.nvmap, nvmap::FROM_VA, &mut from).unwrap();
    let fd = bench.fd_of(from.handle());
    assert!(bench.map(space, &mut whole(fd)).is_ok());
    let memory = bench.dma_buf(fd);
    memory.store_u32(4096, 77).unwrap();
    let mut back = [0; 4];
    tegra_sim::driver::user::read(va + 4096, &mut back).unwrap();
    assert_eq!(back, 77u32.to_le_bytes());
    assert_eq!(errno(bench.try_alloc(from.handle())), Err(Errno::EEXIST));
    // SAFETY: the mapping made above. It is not unmapped: another test's could take its place.
    unsafe { libc::mprotect(va as *mut libc::c_void, 8192, libc::PROT_NONE) };
    assert!(memory.load_u32(4096).is_err());
}

#[test]
fn read_and_write_move_elements_and_count_bytes() {
    let bench = Bench::new();
    let (handle, fd) = bench.buffer(4096);
    let source: Vec<u8> = (0..32).collect();
    let copy = |name: &str, at: *const u8, offset: u64, strides: (u64, u64), count: u64| {
        let mut args = bytes::<56>(&[
            (0, at as u64, 8),
            (8, handle.into(), 4),
            (16, offset, 8),
            (24, 4, 8),
            (32, strides.0, 8),
            (40, strides.1, 8),
            (48, count, 8),
        ]);
        let result = errno(bench.raw(bench.nvmap, name, &mut args));
        (result, u64::from_le_bytes(args[48..].try_into().unwrap()))
    };
    // Every eighth four bytes of the handle from every fourth of ours.
    assert_eq!(copy("NVMAP_IOC_WRITE", source.as_ptr(), 16, (8, 4), 8), (Ok(0), 32));
    let mut got = [0; 16];
    bench.dma_buf(fd).read(16, &mut got).unwrap();
    assert_eq!(got, [0, 1, 2, 3, 0, 0, 0, 0, 4, 5, 6, 7, 0, 0, 0, 0]);
    let mut back = [0u8; 32];
    assert_eq!(copy("NVMAP_IOC_READ", back.as_mut_ptr(), 16, (8, 4), 8), (Ok(0), 32));
    assert_eq!(back[..], source[..]);
    let (gone, left) = copy("NVMAP_IOC_READ", std::ptr::without_provenance(4096), 0, (4, 4), 2);
    assert_eq!((gone, left), (Err(Errno::EINTR), 4));
}
