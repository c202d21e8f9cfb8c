//! Every refusal of the drivers, one row each: the request and its errno.
//!
//! Each row runs on its own device. At the end every refusal in the simulator's table must have
//! been met by a row, except those that cannot be provoked.

use std::collections::BTreeSet;

use tegra::abi::address_space::{
    AllocSpace, FreeSpace, MAP_ACCESS_READ_WRITE, MAP_FIXED_OFFSET, MapBufferEx,
};
use tegra::abi::{address_space, channel, ctrl, nvmap, tsg};
use tegra_sim::driver::{Answer, ERRNOS, Errno, Node};

use super::bench::{Bench, RANGE, Ready, bytes, whole};

struct Row {
    name: &'static str,
    expected: Result<i32, Errno>,
    run: fn(&Bench) -> Answer,
}

macro_rules! rows {
    ($( $name:literal => $expected:expr, $run:expr; )*) => {
        &[ $( Row { name: $name, expected: $expected, run: $run }, )* ]
    };
}

/// An address that the program may name but not access.
const NOWHERE: u64 = 0x1000;

fn ioctl(bench: &Bench, file: tegra_sim::driver::FileId, request: u32, arg: u64) -> Answer {
    bench.orin.ioctl(file, request, arg)
}

/// An ioctl by number, with the bytes of `args`.
fn with<T>(b: &Bench, file: tegra_sim::driver::FileId, request: u32, args: &T) -> Answer {
    ioctl(b, file, request, std::ptr::from_ref(args) as u64)
}

fn nvmap_rows() -> &'static [Row] {
    rows! {
        "wrong magic" => Err(Errno::ENOTTY), |b| ioctl(b, b.nvmap, 0xc008_4f01, NOWHERE);
        "number beyond the last" => Err(Errno::ENOTTY), |b| ioctl(b, b.nvmap, 0xc008_4eff, NOWHERE);
        "right number, wrong size" => Err(Errno::ENOTTY), |b| ioctl(b, b.nvmap, 0xc010_4e01, NOWHERE);
        "an address of the kernel's" => Err(Errno::EFAULT), |b| ioctl(b, b.nvmap, 0xc008_4e01, 1 << 63);
        "a bad pointer" => Err(Errno::EFAULT), |b| ioctl(b, b.nvmap, 0xc008_4e01, NOWHERE);
        "PARAM" => Err(Errno::ENOTTY), |b| b.raw(b.nvmap, "NVMAP_IOC_PARAM", &mut [0; 16]);
        "GET_ID" => Err(Errno::ENOTTY), |b| b.raw(b.nvmap, "NVMAP_IOC_GET_ID", &mut [0; 8]);
        "FROM_ID" => Err(Errno::ENOTTY), |b| b.raw(b.nvmap, "NVMAP_IOC_FROM_ID", &mut [0; 8]);
        "CREATE: size 0" => Err(Errno::EINVAL), |b| b.raw(b.nvmap, "NVMAP_IOC_CREATE", &mut [0; 8]);
        "CREATE_64: size 0" => Err(Errno::EINVAL), |b| b.raw(b.nvmap, "NVMAP_IOC_CREATE_64", &mut [0; 8]);
        "CREATE_64: more than can be" => Err(Errno::ENOMEM), |b| b.raw(b.nvmap, "NVMAP_IOC_CREATE_64", &mut [0xff; 8]);
        "GET_FD: unknown handle, no fd" => Err(Errno::EBADF), |b| get_fd(b, 0x7fff_0000);
        "GET_FD: unknown handle, another fd" => Err(Errno::EINVAL), |b| get_fd(b, b.tsg() as u32);
        "GET_FD: a dma-buf's fd is duplicated" => Ok(0), |b| get_fd(b, b.buffer(4096).1 as u32);
        "GET_FD: table full" => Err(Errno::EMFILE), |b| { let handle = b.handle(1); b.fds.limit(0); get_fd(b, handle) };
        "FROM_FD: closed" => Err(Errno::EBADF), |b| from_fd(b, 4999);
        "FROM_FD: another file" => Err(Errno::EINVAL), |b| from_fd(b, b.tsg());
        "ALLOC: handle 0" => Err(Errno::EINVAL), |b| alloc(b, 0, 1 << 30, 4096, 0);
        "ALLOC: unknown handle" => Err(Errno::EINVAL), |b| alloc(b, 77, 1 << 30, 4096, 0);
        "ALLOC: alignment no power of two" => Err(Errno::EINVAL), |b| alloc(b, b.handle(1), 1 << 30, 4097, 0);
        "ALLOC: NUMA node -2" => Err(Errno::EINVAL), |b| alloc(b, b.handle(1), 1 << 30, 0, -2);
        "ALLOC: NUMA node too high" => Err(Errno::EINVAL), |b| alloc(b, b.handle(1), 1 << 30, 0, 1000);
        "ALLOC: NUMA node -1" => Ok(0), |b| alloc(b, b.handle(1), 1 << 30, 0, -1);
        "ALLOC: heap 0" => Err(Errno::ENOMEM), |b| alloc(b, b.handle(1), 0, 0, 0);
        "ALLOC: absent heap GENERIC" => Err(Errno::ENOMEM), |b| alloc(b, b.handle(1), 1, 0, 0);
        "ALLOC: absent heap GPU" => Err(Errno::ENOMEM), |b| alloc(b, b.handle(1), 1 << 3, 0, 0);
        "ALLOC: absent heap TSEC" => Err(Errno::ENOMEM), |b| alloc(b, b.handle(1), 1 << 27, 0, 0);
        "ALLOC: SYSMEM" => Err(Errno::ENOMEM), |b| alloc(b, b.handle(1), 1 << 31, 0, 0);
        "ALLOC: above all of RAM" => Err(Errno::ENOMEM), |b| alloc(b, b.handle(1 << 38), 1 << 30, 0, 0);
        "ALLOC: twice" => Err(Errno::EEXIST), |b| { let handle = b.handle(1); b.alloc(handle); alloc(b, handle, 1 << 30, 0, 0) };
        "ALLOC: IVM mixed" => Err(Errno::EINVAL), |b| alloc(b, b.handle(1), 1 << 30 | 1 << 1, 0, 0);
        "ALLOC: VIDMEM mixed" => Err(Errno::EINVAL), |b| alloc(b, b.handle(1), 1 << 30 | 1 << 26, 0, 0);
        "ALLOC: no memory left" => Err(Errno::ENOMEM), |b| { let handles = [b.handle(40 << 30), b.handle(40 << 30)]; alloc(b, handles[0], 1 << 30, 0, 0)?; alloc(b, handles[1], 1 << 30, 0, 0) };
        "FREE: 0" => Ok(0), |b| ioctl(b, b.nvmap, nvmap::FREE, 0);
        "FREE: unknown" => Ok(0), |b| ioctl(b, b.nvmap, nvmap::FREE, 0x8888_8888);
        "FREE: beyond 32 bits" => Ok(0), |b| ioctl(b, b.nvmap, nvmap::FREE, u64::MAX);
        "FROM_VA: unaligned" => Err(Errno::EINVAL), |b| from_va(b, NOWHERE + 1, 4096, 0);
        "FROM_VA: no mapping" => Err(Errno::EINVAL), |b| from_va(b, NOWHERE, 4096, 0);
        "FROM_VA: more than is accessible" => Err(Errno::EINVAL), |b| from_va(b, pages(), 8192, 0);
        "FROM_VA: above all of RAM" => Err(Errno::ENOMEM), |b| from_va(b, pages(), 1 << 40, 0);
        "FROM_VA: read-only pages, writable handle" => Err(Errno::EINVAL), |b| from_va(b, read_only_pages(), 4096, 0);
        "FROM_VA: read-only pages, read-only handle" => Ok(0), |b| from_va(b, read_only_pages(), 4096, 1 << 9);
        "FROM_VA: an odd size is rounded" => Ok(0), |b| from_va(b, pages(), 1, 0);
        "READ: address 0" => Err(Errno::EINVAL), |b| copy(b, "NVMAP_IOC_READ", b.buffer(4096).0, 0, [0, 4, 4, 4, 1]);
        "READ: count 0" => Err(Errno::EINVAL), |b| copy(b, "NVMAP_IOC_READ", b.buffer(4096).0, NOWHERE, [0, 4, 4, 4, 0]);
        "READ: unknown handle" => Err(Errno::EINVAL), |b| copy(b, "NVMAP_IOC_READ", 7, NOWHERE, [0, 4, 4, 4, 1]);
        "READ: handle without pages" => Err(Errno::EPERM), |b| copy(b, "NVMAP_IOC_READ", b.handle(4096), NOWHERE, [0, 4, 4, 4, 1]);
        "READ: out of range" => Err(Errno::EINVAL), |b| copy(b, "NVMAP_IOC_READ", b.buffer(4096).0, NOWHERE, [4094, 4, 4, 4, 1]);
        "READ: strides overflow" => Err(Errno::EINVAL), |b| copy(b, "NVMAP_IOC_READ", b.buffer(4096).0, NOWHERE, [1, 4, u64::MAX, 8, 3]);
        "READ: a bad pointer" => Err(Errno::EINTR), |b| copy(b, "NVMAP_IOC_READ", b.buffer(4096).0, NOWHERE, [0, 4, 4, 4, 1]);
        "WRITE: read-only handle" => Err(Errno::EPERM), |b| copy(b, "NVMAP_IOC_WRITE", read_only_handle(b), NOWHERE, [0, 4, 4, 4, 1]);
        "CACHE: address 0" => Err(Errno::EINVAL), |b| cache(b, b.buffer(4096).0, 0, 0);
        "CACHE: op 3" => Err(Errno::EINVAL), |b| cache(b, b.buffer(4096).0, pages(), 3);
        "CACHE: unknown handle" => Err(Errno::EINVAL), |b| cache(b, 7, pages(), 0);
        "CACHE: no dma-buf's mapping" => Err(Errno::EADDRNOTAVAIL), |b| cache(b, b.buffer(4096).0, pages(), 0);
        "CACHE: another handle's mapping" => Err(Errno::EFAULT), |b| cache(b, b.buffer(4096).0, mapped(b, b.buffer(4096).1), 0);
        "CACHE: its own mapping" => Ok(0), |b| { let (handle, fd) = b.buffer(4096); cache(b, handle, mapped(b, fd), 2) };
        "CACHE_LIST: none" => Err(Errno::EINVAL), |b| cache_list(b, &[], None);
        "CACHE_LIST: null arrays" => Err(Errno::EINVAL), |b| cache_list(b, &[7], Some(0));
        "CACHE_LIST: unknown handle" => Err(Errno::EINVAL), |b| cache_list(b, &[7], None);
        "CACHE_LIST: without pages" => Err(Errno::EPERM), |b| cache_list(b, &[b.handle(1)], None);
        "CACHE_LIST: bad pointers" => Err(Errno::EFAULT), |b| cache_list(b, &[7], Some(NOWHERE));
        "CACHE_LIST: too many" => Err(Errno::ENOMEM), |b| cache_list(b, &[7; 70_000], None);
        "CACHE_LIST" => Ok(0), |b| cache_list(b, &[b.buffer(4096).0], None);
        "GUP_TEST: no such handle" => Err(Errno::EINVAL), |b| b.raw(b.nvmap, "NVMAP_IOC_GUP_TEST", &mut bytes::<16>(&[(0, pages(), 8), (8, 7, 4)]));
        "GUP_TEST: its own mapping" => Ok(0), |b| { let (handle, fd) = b.buffer(4096); b.raw(b.nvmap, "NVMAP_IOC_GUP_TEST", &mut bytes::<16>(&[(0, mapped(b, fd), 8), (8, handle.into(), 4)])) };
        "SET_TAG_LABEL: a bad pointer" => Err(Errno::EFAULT), |b| b.raw(b.nvmap, "NVMAP_IOC_SET_TAG_LABEL", &mut bytes::<16>(&[(0, 9, 4), (4, 4, 4), (8, NOWHERE, 8)]));
        "GET_AVAILABLE_HEAPS: a bad pointer" => Err(Errno::EINVAL), |b| ioctl(b, b.nvmap, 0x8008_4e19, NOWHERE);
        "GET_HEAP_SIZE: absent" => Err(Errno::ENODEV), |b| b.raw(b.nvmap, "NVMAP_IOC_GET_HEAP_SIZE", &mut bytes::<16>(&[(0, 1, 4)]));
        "GET_HEAP_SIZE: VPR" => Ok(0), |b| b.raw(b.nvmap, "NVMAP_IOC_GET_HEAP_SIZE", &mut bytes::<16>(&[(0, 1 << 28, 4)]));
        "QUERY_HEAP_PARAMS: absent" => Err(Errno::ENODEV), |b| b.raw(b.nvmap, "NVMAP_IOC_QUERY_HEAP_PARAMS", &mut bytes::<48>(&[(0, 1, 4)]));
        "PARAMETERS: unknown handle" => Err(Errno::ENODEV), |b| b.raw(b.nvmap, "NVMAP_IOC_PARAMETERS", &mut [0; 72]);
        "DUP_HANDLE: unknown" => Err(Errno::EINVAL), |b| dup(b, 7, 0);
        "DUP_HANDLE: without pages" => Err(Errno::EINVAL), |b| dup(b, b.handle(1), 0);
        "DUP_HANDLE: writable of a read-only one" => Err(Errno::EPERM), |b| dup(b, read_only_handle(b), 0);
        "DUP_HANDLE: read-only" => Ok(0), |b| dup(b, b.buffer(1).0, 1 << 9);
        "GET_FD_FOR_RANGE_FROM_LIST" => Err(Errno::EINVAL), |b| b.raw(b.nvmap, "NVMAP_IOC_GET_FD_FOR_RANGE_FROM_LIST", &mut [0; 40]);
        "mmap of the node" => Err(Errno::EPERM), |b| b.orin.mmap(b.nvmap, 4096, 0).map(|_| 0);
        "mmap without pages" => Err(Errno::EPERM), |b| mmap(b, b.fd_of(b.handle(4096)), 4096, 0);
        "mmap of VPR" => Err(Errno::EPERM), |b| { let handle = b.handle(4096); alloc(b, handle, 1 << 28, 0, 0)?; mmap(b, b.fd_of(handle), 4096, 0) };
        "mmap beyond the buffer" => Err(Errno::EINVAL), |b| mmap(b, b.buffer(8192).1, 8192, 4096);
        "mmap of read-only lent pages" => Err(Errno::EPERM), |b| mmap(b, b.fd_of(read_only_handle(b)), 4096, 0);
        "mmap" => Ok(0), |b| mmap(b, b.buffer(8192).1, 4096, 4096);
    }
}

fn get_fd(b: &Bench, handle: u32) -> Answer {
    b.call(b.nvmap, nvmap::GET_FD, &mut nvmap::HandleFd { fd: 0, handle })
}

fn from_fd(b: &Bench, fd: i32) -> Answer {
    b.call(b.nvmap, nvmap::FROM_FD, &mut nvmap::HandleFd { fd, handle: 0 })
}

fn alloc(b: &Bench, handle: u32, heap_mask: u32, align: u32, numa_nid: i32) -> Answer {
    let mut args = nvmap::Alloc { handle, heap_mask, flags: 0x900_0001, align, numa_nid };
    b.call(b.nvmap, nvmap::ALLOC, &mut args)
}

fn from_va(b: &Bench, va: u64, size64: u64, flags: u32) -> Answer {
    b.call(b.nvmap, nvmap::FROM_VA, &mut nvmap::FromVa { va, size: 0, flags, size64 })
}

fn copy(b: &Bench, name: &str, handle: u32, address: u64, rest: [u64; 5]) -> Answer {
    let [offset, element, stride, user, count] = rest;
    let mut args = bytes::<56>(&[
        (0, address, 8),
        (8, handle.into(), 4),
        (16, offset, 8),
        (24, element, 8),
        (32, stride, 8),
        (40, user, 8),
        (48, count, 8),
    ]);
    b.raw(b.nvmap, name, &mut args)
}

fn cache(b: &Bench, handle: u32, addr: u64, op: u64) -> Answer {
    let fields = [(0, addr, 8), (8, handle.into(), 4), (16, 64, 8), (24, op, 4)];
    b.raw(b.nvmap, "NVMAP_IOC_CACHE_64", &mut bytes::<32>(&fields))
}

fn cache_list(b: &Bench, handles: &[u32], at: Option<u64>) -> Answer {
    let numbers = vec![0u64; handles.len() + 1];
    let array = at.unwrap_or(numbers.as_ptr() as u64);
    let ids = at.unwrap_or(handles.as_ptr() as u64);
    let count = handles.len() as u64;
    let fields = [(0, ids, 8), (8, array, 8), (16, array, 8), (24, count, 4)];
    b.raw(b.nvmap, "NVMAP_IOC_CACHE_LIST", &mut bytes::<32>(&fields))
}

fn dup(b: &Bench, handle: u32, access: u64) -> Answer {
    let fields = [(0, handle.into(), 4), (4, access, 4)];
    b.raw(b.nvmap, "NVMAP_IOC_DUP_HANDLE", &mut bytes::<12>(&fields))
}

fn mmap(b: &Bench, fd: i32, len: u64, offset: u64) -> Answer {
    let prot = libc::PROT_READ | libc::PROT_WRITE;
    b.orin.check_dma_buf_mmap(&b.dma_buf(fd), len, prot, offset).map(|()| 0)
}

/// One page of our own between two inaccessible ones. Never unmapped: the address stays ours.
fn own_page(prot: i32) -> u64 {
    // SAFETY: new private mappings only.
    unsafe {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        let three = libc::mmap(std::ptr::null_mut(), 3 * 4096, libc::PROT_NONE, flags, -1, 0);
        let page = three.byte_add(4096);
        assert_eq!(libc::mprotect(page, 4096, prot), 0);
        page as u64
    }
}

fn pages() -> u64 {
    own_page(libc::PROT_READ | libc::PROT_WRITE)
}

fn read_only_pages() -> u64 {
    own_page(libc::PROT_READ)
}

fn read_only_handle(b: &Bench) -> u32 {
    let (va, flags) = (read_only_pages(), 1 << 9);
    let mut from = nvmap::FromVa { va, size: 4096, flags, size64: 0 };
    b.call(b.nvmap, nvmap::FROM_VA, &mut from).unwrap();
    from.handle()
}

/// A CPU mapping of a dma-buf, never unmapped.
fn mapped(b: &Bench, fd: i32) -> u64 {
    use std::os::fd::AsRawFd;
    let buffer = b.dma_buf(fd);
    // SAFETY: a new mapping of an open file.
    unsafe {
        let prot = libc::PROT_READ | libc::PROT_WRITE;
        let memfd = buffer.open().unwrap();
        let fd = memfd.as_raw_fd();
        libc::mmap(std::ptr::null_mut(), 4096, prot, libc::MAP_SHARED, fd, 0) as u64
    }
}

fn ctrl_rows() -> &'static [Row] {
    rows! {
        "wrong magic" => Err(Errno::EINVAL), |b| ioctl(b, b.ctrl, 0xc010_4105, NOWHERE);
        "number 0" => Err(Errno::EINVAL), |b| ioctl(b, b.ctrl, 0xc010_4700, NOWHERE);
        "number beyond the last" => Err(Errno::EINVAL), |b| ioctl(b, b.ctrl, 0xc010_472d, NOWHERE);
        "size above the largest" => Err(Errno::EINVAL), |b| ioctl(b, b.ctrl, 0xc109_4718, NOWHERE);
        "right number, wrong size" => Err(Errno::ENOTTY), |b| with(b, b.ctrl, 0xc018_4705, &[0u8; 24]);
        "right number, wrong direction" => Err(Errno::ENOTTY), |b| with(b, b.ctrl, 0x4010_4705, &[0u8; 24]);
        "a bad pointer in" => Err(Errno::EFAULT), |b| ioctl(b, b.ctrl, 0xc010_4705, NOWHERE);
        "a bad pointer out gives the bytes left" => Ok(4), |b| ioctl(b, b.ctrl, 0x8004_4701, NOWHERE);
        "ALLOC_AS: big pages" => Err(Errno::EINVAL), |b| alloc_as(b, |a| a.big_page_size = 0x1_0000);
        "ALLOC_AS: start 0" => Err(Errno::EINVAL), |b| alloc_as(b, |a| a.va_range_start = 0);
        "ALLOC_AS: end 0" => Err(Errno::EINVAL), |b| alloc_as(b, |a| a.va_range_end = 0);
        "ALLOC_AS: start unaligned" => Err(Errno::EINVAL), |b| alloc_as(b, |a| a.va_range_start += 0x1_0000);
        "ALLOC_AS: end unaligned" => Err(Errno::EINVAL), |b| alloc_as(b, |a| a.va_range_end -= 4096);
        "ALLOC_AS: start not below end" => Err(Errno::EINVAL), |b| alloc_as(b, |a| a.va_range_start = a.va_range_end);
        "ALLOC_AS: a split" => Err(Errno::EINVAL), |b| alloc_as(b, |a| a.va_range_split = 1 << 30);
        "ALLOC_AS: aligned to the characteristics' 47 bits" => Err(Errno::ENOMEM), |b| alloc_as(b, |a| (a.va_range_start, a.va_range_end) = (1 << 47, 1 << 49));
        "ALLOC_AS: beyond 2^49" => Err(Errno::ENOMEM), |b| alloc_as(b, |a| a.va_range_end = 1 << 49);
        "ALLOC_AS: at the end of everything" => Err(Errno::ENOMEM), |b| alloc_as(b, |a| a.va_range_end = u64::MAX << 21);
        "ALLOC_AS: table full" => Err(Errno::EMFILE), |b| { b.fds.limit(0); alloc_as(b, |_| {}) };
        "OPEN_TSG: an instance id" => Err(Errno::EINVAL), |b| b.call(b.ctrl, ctrl::OPEN_TSG, &mut ctrl::OpenTsg { source_device_instance_id: 1, ..ctrl::OpenTsg::default() });
        "OPEN_TSG: a token" => Err(Errno::EINVAL), |b| b.call(b.ctrl, ctrl::OPEN_TSG, &mut ctrl::OpenTsg { share_token: 1, ..ctrl::OpenTsg::default() });
        "OPEN_TSG: all in use" => Err(Errno::ENOMEM), |b| { for _ in 0..512 { b.tsg(); } b.call(b.ctrl, ctrl::OPEN_TSG, &mut ctrl::OpenTsg::default()) };
        "OPEN_CHANNEL: no such runlist" => Err(Errno::EINVAL), |b| b.open_channel(99);
        "OPEN_CHANNEL: below -1" => Err(Errno::EINVAL), |b| b.open_channel(-2);
        "OPEN_CHANNEL: 16 bytes" => Err(Errno::ENOTTY), |b| with(b, b.ctrl, 0xc010_470b, &[0u8; 16]);
        "OPEN_CHANNEL: all in use" => Err(Errno::ENOMEM), |b| { for _ in 0..512 { b.channel(); } b.open_channel(-1) };
        "OPEN_CHANNEL: table full" => Err(Errno::EMFILE), |b| { b.fds.limit(0); b.open_channel(-1) };
        "GET_CHARACTERISTICS: a bad buffer" => Ok(328), |b| b.call(b.ctrl, ctrl::GET_CHARACTERISTICS, &mut ctrl::GetCharacteristics { gpu_characteristics_buf_size: 328, gpu_characteristics_buf_addr: NOWHERE });
        "FLUSH_L2: nothing" => Err(Errno::EINVAL), |b| b.call(b.ctrl, ctrl::FLUSH_L2, &mut ctrl::FlushL2::default());
        "FLUSH_L2: invalidate alone" => Err(Errno::EINVAL), |b| flush(b, ctrl::L2_INVALIDATE);
        "FLUSH_L2: invalidate with the frame buffer" => Err(Errno::EINVAL), |b| flush(b, ctrl::L2_INVALIDATE | ctrl::FB_FLUSH);
        "FLUSH_L2: frame buffer" => Ok(0), |b| flush(b, ctrl::FB_FLUSH);
        "FLUSH_L2: flush and invalidate" => Ok(0), |b| flush(b, ctrl::L2_FLUSH | ctrl::L2_INVALIDATE);
        "SET_DETERMINISTIC_OPTS: too many" => Err(Errno::EINVAL), |b| railgating(b, &[0; 513], 1);
        "SET_DETERMINISTIC_OPTS: no channel" => Err(Errno::EINVAL), |b| railgating(b, &[4999], 1);
        "SET_DETERMINISTIC_OPTS: not deterministic" => Err(Errno::EINVAL), |b| railgating(b, &[b.channel()], 1);
        "SET_DETERMINISTIC_OPTS: both flags" => Err(Errno::EINVAL), |b| railgating(b, &[b.running().channel], 3);
        "SET_DETERMINISTIC_OPTS" => Ok(0), |b| railgating(b, &[b.running().channel], 1);
        "SET_DETERMINISTIC_OPTS: a bad array" => Err(Errno::EFAULT), |b| b.raw(b.ctrl, "NVGPU_GPU_IOCTL_SET_DETERMINISTIC_OPTS", &mut bytes::<16>(&[(0, 1, 4), (4, 1, 4), (8, NOWHERE, 8)]));
        "GET_CPU_TIME_CORRELATION_INFO: count" => Err(Errno::EINVAL), |b| correlation(b, 17, 1);
        "GET_CPU_TIME_CORRELATION_INFO: source" => Err(Errno::EINVAL), |b| correlation(b, 1, 3);
        "GET_CPU_TIME_CORRELATION_INFO" => Ok(0), |b| correlation(b, 16, 2);
        "GET_GPC_LOCAL_TO_PHYSICAL_MAP: size" => Err(Errno::EINVAL), |b| b.raw(b.ctrl, "NVGPU_GPU_IOCTL_GET_GPC_LOCAL_TO_PHYSICAL_MAP", &mut bytes::<16>(&[(0, 8, 4)]));
        "REGISTER_BUFFER: too large" => Err(Errno::EINVAL), |b| register(b, b.buffer(1).1, 257, 0, 0);
        "REGISTER_BUFFER: comptags 3" => Err(Errno::EINVAL), |b| register(b, b.buffer(1).1, 0, 3, 0);
        "REGISTER_BUFFER: closed fd" => Err(Errno::EBADF), |b| register(b, 4999, 0, 0, 0);
        "REGISTER_BUFFER: no dma-buf" => Err(Errno::EINVAL), |b| register(b, b.tsg(), 0, 0, 0);
        "REGISTER_BUFFER: twice" => Err(Errno::EINVAL), |b| { let (_, fd) = b.buffer(1); register(b, fd, 0, 0, 2)?; register(b, fd, 0, 0, 0) };
        "REGISTER_BUFFER: comptags required" => Err(Errno::ENOMEM), |b| register(b, b.buffer(1).1, 0, 2, 0);
        "CLK_GET_RANGE: flags" => Err(Errno::EINVAL), |b| b.raw(b.ctrl, "NVGPU_GPU_IOCTL_CLK_GET_RANGE", &mut bytes::<16>(&[(0, 2, 4), (6, 1, 2)]));
        "CLK_GET_VF_POINTS: flags" => Err(Errno::EINVAL), |b| b.raw(b.ctrl, "NVGPU_GPU_IOCTL_CLK_GET_VF_POINTS", &mut bytes::<24>(&[(0, 1, 4), (4, 1, 4)]));
        "CLK_GET_VF_POINTS: domain" => Err(Errno::EINVAL), |b| b.raw(b.ctrl, "NVGPU_GPU_IOCTL_CLK_GET_VF_POINTS", &mut [0; 24]);
        "CLK_GET_VF_POINTS: too few" => Err(Errno::EINVAL), |b| b.raw(b.ctrl, "NVGPU_GPU_IOCTL_CLK_GET_VF_POINTS", &mut bytes::<24>(&[(4, 1, 4), (8, 2, 2)]));
        "CLK_SET_INFO" => Err(Errno::EINVAL), |b| b.raw(b.ctrl, "NVGPU_GPU_IOCTL_CLK_SET_INFO", &mut [0; 24]);
        "GET_VOLTAGE" => Err(Errno::EINVAL), |b| b.raw(b.ctrl, "NVGPU_GPU_IOCTL_GET_VOLTAGE", &mut [0; 16]);
        "GET_TEMPERATURE" => Err(Errno::EINVAL), |b| b.raw(b.ctrl, "NVGPU_GPU_IOCTL_GET_TEMPERATURE", &mut [0; 16]);
        "GET_EVENT_FD" => Err(Errno::EINVAL), |b| b.raw(b.ctrl, "NVGPU_GPU_IOCTL_GET_EVENT_FD", &mut [0; 8]);
        "SET_SM_DEBUG_MODE" => Err(Errno::EINVAL), |b| b.raw(b.ctrl, "NVGPU_GPU_IOCTL_SET_SM_DEBUG_MODE", &mut [0; 16]);
        "second mmap" => Err(Errno::EBUSY), |b| { b.orin.mmap(b.ctrl, 4096, 0)?; b.orin.mmap(b.ctrl, 1 << 20, 0).map(|_| 0) };
        "mmap after unmap" => Ok(0), |b| { b.orin.mmap(b.ctrl, 4096, 0)?; b.orin.unmapped(b.ctrl); b.orin.mmap(b.ctrl, 4096, 0).map(|_| 0) };
        "mmap above 64 KiB" => Err(Errno::EINVAL), |b| b.orin.mmap(b.ctrl, 0x1_1000, 0).map(|_| 0);
        "mmap with an offset" => Err(Errno::EINVAL), |b| b.orin.mmap(b.ctrl, 4096, 4096).map(|_| 0);
        "mmap of a TSG" => Err(Errno::ENODEV), |b| b.orin.mmap(b.file(b.tsg()), 4096, 0).map(|_| 0);
        "open of root's" => Err(Errno::EACCES), |b| b.orin.open(Node::Prof).map(|_| 0);
        "open of as" => Err(Errno::EINVAL), |b| b.orin.open(Node::As).map(|_| 0);
        "open of channel, all in use" => Err(Errno::ENOMEM), |b| { for _ in 0..512 { b.channel(); } b.orin.open(Node::Channel).map(|_| 0) };
        "open of tsg, all in use" => Err(Errno::ENOMEM), |b| { for _ in 0..512 { b.tsg(); } b.orin.open(Node::Tsg).map(|_| 0) };
        "a closed description" => Err(Errno::EBADF), |b| ioctl(b, tegra_sim::driver::FileId(999), 0, 0);
        "a node without ioctls" => Err(Errno::ENOTTY), |b| ioctl(b, b.orin.open(Node::Power)?, 0, 0);
    }
}

fn alloc_as(b: &Bench, change: fn(&mut ctrl::AllocAs)) -> Answer {
    let (va_range_start, va_range_end) = RANGE;
    let flags = ctrl::AS_UNIFIED_VA;
    let mut args =
        ctrl::AllocAs { flags, va_range_start, va_range_end, ..ctrl::AllocAs::default() };
    change(&mut args);
    b.call(b.ctrl, ctrl::ALLOC_AS, &mut args)
}

fn flush(b: &Bench, l2_flush: u8) -> Answer {
    b.call(b.ctrl, ctrl::FLUSH_L2, &mut ctrl::FlushL2 { l2_flush, ..ctrl::FlushL2::default() })
}

fn railgating(b: &Bench, fds: &[i32], flags: u64) -> Answer {
    let fields = [(0, fds.len() as u64, 4), (4, flags, 4), (8, fds.as_ptr() as u64, 8)];
    b.raw(b.ctrl, "NVGPU_GPU_IOCTL_SET_DETERMINISTIC_OPTS", &mut bytes::<16>(&fields))
}

fn correlation(b: &Bench, count: u32, source_id: u32) -> Answer {
    let mut args = ctrl::GetCpuTimeCorrelationInfo { count, source_id, ..Default::default() };
    b.call(b.ctrl, ctrl::GET_CPU_TIME_CORRELATION_INFO, &mut args)
}

fn register(b: &Bench, fd: i32, size: u64, comptags: u64, flags: u64) -> Answer {
    let fields = [(0, fd as u64, 4), (4, comptags, 1), (8, 0, 8), (16, size, 4), (20, flags, 4)];
    b.raw(b.ctrl, "NVGPU_GPU_IOCTL_REGISTER_BUFFER", &mut bytes::<24>(&fields))
}

fn space_rows() -> &'static [Row] {
    rows! {
        "BIND_CHANNEL: no channel" => Err(Errno::EINVAL), |b| b.bind_space(b.space(), b.tsg());
        "BIND_CHANNEL: closed fd" => Err(Errno::EINVAL), |b| b.bind_space(b.space(), 4999);
        "BIND_CHANNEL: twice" => Err(Errno::EINVAL), |b| { let (space, channel) = (b.space(), b.channel()); b.bind_space(space, channel)?; b.bind_space(space, channel) };
        "a bad pointer out" => Err(Errno::EFAULT), |b| ioctl(b, b.file(b.space()), 0x8010_410c, NOWHERE);
        "ALLOC_SPACE: page size" => Err(Errno::EINVAL), |b| alloc_space(b, |a| a.page_size = 0x1_0000);
        "ALLOC_SPACE: page size 0" => Err(Errno::EINVAL), |b| alloc_space(b, |a| a.page_size = 0);
        "ALLOC_SPACE: unaligned" => Err(Errno::ENOMEM), |b| alloc_space(b, |a| a.o_a += 8);
        "ALLOC_SPACE: below the range" => Err(Errno::ENOMEM), |b| alloc_space(b, |a| a.o_a = 0x1000);
        "ALLOC_SPACE: above the range" => Err(Errno::ENOMEM), |b| alloc_space(b, |a| a.o_a = RANGE.1);
        "ALLOC_SPACE: no pages" => Err(Errno::ENOMEM), |b| alloc_space(b, |a| a.pages = 0);
        "ALLOC_SPACE: more pages than bytes can count" => Err(Errno::ENOMEM), |b| alloc_space(b, |a| a.pages = 1 << 52);
        "ALLOC_SPACE: no room" => Err(Errno::ENOMEM), |b| alloc_space(b, |a| (a.flags, a.pages) = (0, 1 << 40));
        "ALLOC_SPACE: overlapping" => Err(Errno::ENOMEM), |b| { let space = b.space(); b.area(space, 0x1000_0000, 16, false)?; b.area(space, 0x1000_8000, 16, false).map(|_| 0) };
        "ALLOC_SPACE: over a buffer" => Err(Errno::ENOMEM), |b| { let space = b.space(); let va = b.map(space, &mut whole(b.buffer(1).1))?; b.area(space, va, 1, false).map(|_| 0) };
        "FREE_SPACE: unknown" => Ok(0), |b| b.call(b.file(b.space()), address_space::FREE_SPACE, &mut FreeSpace::default());
        "MAP_BUFFER_EX: closed fd" => Err(Errno::EBADF), |b| map(b, |m| m.dmabuf_fd = 4999);
        "MAP_BUFFER_EX: fd -1" => Err(Errno::EBADF), |b| map(b, |m| m.dmabuf_fd = u32::MAX);
        "MAP_BUFFER_EX: no dma-buf" => Err(Errno::EINVAL), |b| { let fd = b.tsg(); b.map(b.space(), &mut whole(fd)).map(|_| 0) };
        "MAP_BUFFER_EX: offset unless fixed" => Err(Errno::EINVAL), |b| map(b, |m| m.offset = 0x100_0000);
        "MAP_BUFFER_EX: buffer offset unless fixed" => Err(Errno::EINVAL), |b| map(b, |m| m.buffer_offset = 4096);
        "MAP_BUFFER_EX: size unless fixed" => Err(Errno::EINVAL), |b| map(b, |m| m.mapping_size = 4096);
        "MAP_BUFFER_EX: access 3" => Err(Errno::EINVAL), |b| map(b, |m| m.flags = 3 << 10);
        "MAP_BUFFER_EX: TEGRA_RAW" => Err(Errno::EINVAL), |b| map(b, |m| m.flags = 1 << 12);
        "MAP_BUFFER_EX: unknown flag 2" => Err(Errno::EINVAL), |b| map(b, |m| m.flags = 2);
        "MAP_BUFFER_EX: unknown flag 0x100" => Err(Errno::EINVAL), |b| map(b, |m| m.flags = 0x100);
        "MAP_BUFFER_EX: unknown flag 0x80000000" => Err(Errno::EINVAL), |b| map(b, |m| m.flags = 1 << 31);
        "MAP_BUFFER_EX: every other flag" => Ok(0), |b| map(b, |m| m.flags = 4 | 0x20 | 0x40 | 0x80 | 0x200 | 1 << 10);
        "MAP_BUFFER_EX: without pages" => Err(Errno::ENOMEM), |b| b.map(b.space(), &mut whole(b.fd_of(b.handle(1)))).map(|_| 0);
        "MAP_BUFFER_EX: writable of read-only" => Err(Errno::EINVAL), |b| b.map(b.space(), &mut MapBufferEx { flags: MAP_ACCESS_READ_WRITE, ..whole(b.fd_of(read_only_handle(b))) }).map(|_| 0);
        "MAP_BUFFER_EX: default access of read-only" => Ok(0), |b| b.map(b.space(), &mut whole(b.fd_of(read_only_handle(b)))).map(|_| 0);
        "MAP_BUFFER_EX: no kind" => Err(Errno::ENOMEM), |b| map(b, |m| m.incompr_kind = -1);
        "MAP_BUFFER_EX: kind above 255" => Err(Errno::ENOMEM), |b| map(b, |m| m.incompr_kind = 256);
        "MAP_BUFFER_EX: compressed kind alone" => Err(Errno::EINVAL), |b| map(b, |m| (m.compr_kind, m.incompr_kind) = (6, -1));
        "MAP_BUFFER_EX: no addresses" => Err(Errno::ENOMEM), |b| { let space = b.alloc_as(0x20_0000, 0x40_0000)?; b.map(space, &mut whole(b.buffer(4 << 20).1)).map(|_| 0) };
        "MAP_BUFFER_EX: fixed without area" => Err(Errno::EINVAL), |b| map(b, |m| (m.flags, m.offset) = (MAP_FIXED_OFFSET, 0x100_0000));
        "MAP_BUFFER_EX: fixed at 0" => Err(Errno::EINVAL), |b| map(b, |m| m.flags = MAP_FIXED_OFFSET);
        "MAP_BUFFER_EX: fixed, unaligned" => Err(Errno::EINVAL), |b| fixed(b, |m| m.offset += 8);
        "MAP_BUFFER_EX: fixed, beyond the area" => Err(Errno::EINVAL), |b| fixed(b, |m| m.offset += 15 * 4096);
        "MAP_BUFFER_EX: fixed, beyond the buffer" => Err(Errno::EINVAL), |b| fixed(b, |m| m.mapping_size = 3 * 4096);
        "MAP_BUFFER_EX: fixed, offset beyond the buffer" => Err(Errno::EINVAL), |b| fixed(b, |m| m.buffer_offset = 3 * 4096);
        "MAP_BUFFER_EX: fixed, offset with the whole size" => Err(Errno::EINVAL), |b| fixed(b, |m| m.buffer_offset = 4096);
        "MAP_BUFFER_EX: fixed, size and offset overflow" => Err(Errno::EINVAL), |b| fixed(b, |m| (m.buffer_offset, m.mapping_size) = (u64::MAX - 4095, 8192));
        "MAP_BUFFER_EX: fixed" => Ok(0), |b| fixed(b, |_| {});
        "UNMAP_BUFFER: unknown" => Ok(0), |b| b.unmap(b.space(), 0x1234_5000);
        "MAP_BUFFER_BATCH: 257 unmaps" => Err(Errno::EINVAL), |b| b.raw(b.file(b.space()), "NVGPU_AS_IOCTL_MAP_BUFFER_BATCH", &mut bytes::<32>(&[(16, 257, 4)]));
        "MAP_BUFFER_BATCH: 257 maps" => Err(Errno::EINVAL), |b| b.raw(b.file(b.space()), "NVGPU_AS_IOCTL_MAP_BUFFER_BATCH", &mut bytes::<32>(&[(20, 257, 4)]));
        "MAP_BUFFER_BATCH: a bad array" => Err(Errno::EFAULT), |b| b.raw(b.file(b.space()), "NVGPU_AS_IOCTL_MAP_BUFFER_BATCH", &mut bytes::<32>(&[(8, NOWHERE, 8), (20, 1, 4)]));
        "MAPPING_MODIFY: unknown address" => Err(Errno::EINVAL), |b| modify(b, [0, 0, 4096, 0x1000]);
        "MAPPING_MODIFY: unaligned" => Err(Errno::EINVAL), |b| modify(b, [0, 8, 4096, 0]);
        "MAPPING_MODIFY: out of range" => Err(Errno::EINVAL), |b| modify(b, [0, 4096, 8192, 0]);
        "MAPPING_MODIFY: no kinds" => Err(Errno::EINVAL), |b| modify(b, [0xffff_ffff, 0, 4096, 0]);
        "MAPPING_MODIFY" => Ok(0), |b| modify(b, [0xffff, 4096, 4096, 0]);
        "REMAP: not sparse" => Err(Errno::EINVAL), |b| remap(b, false, 0, |_| {});
        "REMAP: two page sizes" => Err(Errno::EINVAL), |b| remap(b, true, 0, |op| op[0] |= 1 << 16);
        "REMAP: big pages" => Err(Errno::EINVAL), |b| remap(b, true, 0, |op| op[0] = 1 << 16);
        "REMAP: no pages" => Err(Errno::EINVAL), |b| remap(b, true, 0, |op| op[8] = 0);
        "REMAP: range outside the buffer" => Err(Errno::EINVAL), |b| remap(b, true, 0, |op| op[4] = 2);
        "REMAP: range outside the area" => Err(Errno::EINVAL), |b| remap(b, true, 16, |_| {});
        "REMAP: no dma-buf" => Err(Errno::EINVAL), |b| remap(b, true, 0, |op| op[2] = 4999);
        "REMAP: without pages" => Err(Errno::ENOMEM), |b| { let fd = b.fd_of(b.handle(8192)); remap_fd(b, true, 0, fd, |_| {}) };
        "REMAP: read-only buffer" => Err(Errno::EINVAL), |b| { let fd = b.fd_of(read_only_handle(b)); remap_fd(b, true, 0, fd, |op| op[8] = 1) };
        "REMAP: a bad array" => Err(Errno::EFAULT), |b| b.raw(b.file(b.space()), "NVGPU_AS_IOCTL_REMAP", &mut bytes::<16>(&[(0, NOWHERE, 8), (8, 1, 4)]));
        "REMAP: too many" => Err(Errno::ENOMEM), |b| b.raw(b.file(b.space()), "NVGPU_AS_IOCTL_REMAP", &mut bytes::<16>(&[(8, u64::MAX, 4)]));
        "REMAP" => Ok(0), |b| remap(b, true, 0, |_| {});
        "GET_BUFFER_COMPBITS_INFO" => Err(Errno::ENOTTY), |b| b.raw(b.file(b.space()), "NVGPU_AS_IOCTL_GET_BUFFER_COMPBITS_INFO", &mut [0; 32]);
        "MAP_BUFFER_COMPBITS" => Err(Errno::ENOTTY), |b| b.raw(b.file(b.space()), "NVGPU_AS_IOCTL_MAP_BUFFER_COMPBITS", &mut [0; 40]);
        "GET_VA_REGIONS: a bad buffer" => Err(Errno::EFAULT), |b| b.call(b.file(b.space()), address_space::GET_VA_REGIONS, &mut address_space::GetVaRegions { buf_addr: NOWHERE, buf_size: 24, reserved: 0 });
    }
}

fn alloc_space(b: &Bench, change: fn(&mut AllocSpace)) -> Answer {
    let mut args = AllocSpace {
        pages: 16,
        page_size: 4096,
        flags: address_space::SPACE_FIXED_OFFSET,
        o_a: 0x1000_0000,
        padding: [0; 2],
    };
    change(&mut args);
    b.call(b.file(b.space()), address_space::ALLOC_SPACE, &mut args)
}

fn map(b: &Bench, change: fn(&mut MapBufferEx)) -> Answer {
    let mut args = whole(b.buffer(8192).1);
    change(&mut args);
    b.map(b.space(), &mut args).map(|_| 0)
}

/// A fixed map of two pages in an area of sixteen.
fn fixed(b: &Bench, change: fn(&mut MapBufferEx)) -> Answer {
    let space = b.space();
    let offset = b.area(space, 0, 16, false).unwrap();
    let mut args = MapBufferEx { flags: MAP_FIXED_OFFSET, offset, ..whole(b.buffer(8192).1) };
    change(&mut args);
    b.map(space, &mut args).map(|_| 0)
}

/// Kinds, buffer offset, size; the address is added to that of a mapping of two pages.
fn modify(b: &Bench, [kinds, offset, size, by]: [u64; 4]) -> Answer {
    let space = b.space();
    let va = b.map(space, &mut whole(b.buffer(8192).1)).unwrap() + by;
    let fields = [(0, kinds, 4), (8, offset, 8), (16, size, 8), (24, va, 8)];
    b.raw(b.file(space), "NVGPU_AS_IOCTL_MAPPING_MODIFY", &mut bytes::<32>(&fields))
}

fn remap(b: &Bench, sparse: bool, page: u64, change: fn(&mut [u64; 9])) -> Answer {
    let (_, fd) = b.buffer(8192);
    remap_fd(b, sparse, page, fd, change)
}

/// One operation on two pages of an area of sixteen: words are flags, kinds, fd, -, buffer page,
/// -, area page, -, pages.
fn remap_fd(b: &Bench, sparse: bool, page: u64, fd: i32, change: fn(&mut [u64; 9])) -> Answer {
    let space = b.space();
    let first = b.area(space, 0, 16, sparse).unwrap() / 4096 + page;
    let mut op = [1 << 15, 0xffff, fd as u64, 0, 0, 0, first, 0, 2];
    change(&mut op);
    let op = bytes::<40>(&[
        (0, op[0], 4),
        (4, op[1], 4),
        (8, op[2], 4),
        (16, op[4], 8),
        (24, op[6], 8),
        (32, op[8], 8),
    ]);
    let fields = [(0, op.as_ptr() as u64, 8), (8, 1, 4)];
    b.raw(b.file(space), "NVGPU_AS_IOCTL_REMAP", &mut bytes::<16>(&fields))
}

fn tsg_rows() -> &'static [Row] {
    rows! {
        "CREATE_SUBCONTEXT: type 2" => Err(Errno::EINVAL), |b| b.subcontext(b.tsg(), 2, b.space()).map(|_| 0);
        "CREATE_SUBCONTEXT: no address space" => Err(Errno::EINVAL), |b| { let tsg = b.tsg(); b.subcontext(tsg, 1, tsg).map(|_| 0) };
        "CREATE_SUBCONTEXT: second synchronous" => Err(Errno::ENOSPC), |b| { let (tsg, space) = (b.tsg(), b.space()); b.subcontext(tsg, 0, space)?; b.subcontext(tsg, 0, space).map(|_| 0) };
        "DELETE_SUBCONTEXT: 64" => Err(Errno::EINVAL), |b| delete(b, b.tsg(), 64);
        "DELETE_SUBCONTEXT: bound" => Err(Errno::EINVAL), |b| { let ready = b.ready(); delete(b, ready.tsg, ready.veid) };
        "DELETE_SUBCONTEXT: not allocated" => Ok(0), |b| delete(b, b.tsg(), 9);
        "BIND_CHANNEL_EX: subcontext 64" => Err(Errno::EINVAL), |b| { let (channel, space) = (b.channel(), b.space()); b.bind_space(space, channel)?; b.bind_tsg(b.tsg(), channel, 64) };
        "BIND_CHANNEL_EX: subcontext not created" => Err(Errno::EINVAL), |b| { let (channel, space) = (b.channel(), b.space()); b.bind_space(space, channel)?; b.bind_tsg(b.tsg(), channel, 1) };
        "BIND_CHANNEL_EX: no channel" => Err(Errno::EINVAL), |b| b.bind_tsg(b.tsg(), 4999, 0);
        "BIND_CHANNEL_EX: before the address space" => Err(Errno::EINVAL), |b| { let (tsg, space) = (b.tsg(), b.space()); let veid = b.subcontext(tsg, 1, space)?; b.bind_tsg(tsg, b.channel(), veid) };
        "BIND_CHANNEL: before the address space" => Err(Errno::EINVAL), |b| bind(b, b.tsg(), b.channel());
        "BIND_CHANNEL: synchronous subcontext left over" => Err(Errno::ENOSPC), |b| { let tsg = b.tsg(); bind(b, tsg, b.channel()).unwrap_err(); bind(b, tsg, b.channel()) };
        "BIND_CHANNEL_EX: another address space" => Err(Errno::EINVAL), |b| { let (tsg, channel) = (b.tsg(), b.channel()); let veid = b.subcontext(tsg, 1, b.space())?; b.bind_space(b.space(), channel)?; b.bind_tsg(tsg, channel, veid) };
        "BIND_CHANNEL_EX: twice" => Err(Errno::EINVAL), |b| { let ready = b.ready(); b.bind_tsg(ready.tsg, ready.channel, ready.veid) };
        "BIND_CHANNEL_EX: another runlist" => Err(Errno::EINVAL), |b| { let ready = b.ready(); let channel = b.open_channel(1)?; b.bind_space(ready.space, channel)?; b.bind_tsg(ready.tsg, channel, ready.veid) };
        "BIND_CHANNEL_EX: 129 channels" => Err(Errno::EINVAL), |b| { let ready = b.ready(); for _ in 0..127 { sibling(b, &ready)?; } sibling(b, &ready) };
        "BIND_CHANNEL: the default subcontext" => Ok(0), |b| { let channel = b.channel(); b.bind_space(b.space(), channel)?; bind(b, b.tsg(), channel) };
        "UNBIND_CHANNEL: of another TSG" => Err(Errno::EINVAL), |b| { let mut fd = b.ready().channel.to_le_bytes(); b.raw(b.file(b.tsg()), "NVGPU_TSG_IOCTL_UNBIND_CHANNEL", &mut fd) };
        "UNBIND_CHANNEL: no channel" => Err(Errno::EINVAL), |b| b.raw(b.file(b.tsg()), "NVGPU_TSG_IOCTL_UNBIND_CHANNEL", &mut (-1i32).to_le_bytes());
        "SET_TIMESLICE: 999" => Err(Errno::EINVAL), |b| timeslice(b, 999);
        "SET_TIMESLICE: 50001" => Err(Errno::EINVAL), |b| timeslice(b, 50_001);
        "SET_RUNLIST_INTERLEAVE: 3" => Err(Errno::EINVAL), |b| interleave(b, 3);
        "SET_RUNLIST_INTERLEAVE: 2" => Ok(0), |b| interleave(b, 2);
        "EVENT_ID_CTRL: event 6" => Err(Errno::EINVAL), |b| event(b, 1, 6);
        "EVENT_ID_CTRL: command 0" => Err(Errno::EINVAL), |b| event(b, 0, 2);
        "EVENT_ID_CTRL: table full" => Err(Errno::EMFILE), |b| { let tsg = b.tsg(); b.fds.limit(0); let result = b.call(b.file(tsg), tsg::EVENT_ID_CTRL, &mut tsg::EventIdCtrl { cmd: 1, event_id: 2, event_fd: 0, padding: 0 }); assert_eq!(b.orin.live().events, 0); result };
        "READ_SINGLE_SM_ERROR_STATE: no such SM" => Err(Errno::EINVAL), |b| sm_error(b, 8, NOWHERE, 24);
        "READ_SINGLE_SM_ERROR_STATE: a bad buffer" => Ok(24), |b| sm_error(b, 7, NOWHERE, 100);
        "READ_SINGLE_SM_ERROR_STATE: no buffer" => Ok(0), |b| sm_error(b, 7, NOWHERE, 0);
        "SET_L2_MAX_WAYS_EVICT_LAST: 17" => Err(Errno::EINVAL), |b| with(b, b.file(b.tsg()), 0x4008_540d, &17u64);
        "SET_L2_MAX_WAYS_EVICT_LAST: 16" => Ok(0), |b| with(b, b.file(b.tsg()), 0x4008_540d, &16u64);
        "SET_L2_SECTOR_PROMOTION: 3" => Err(Errno::EINVAL), |b| b.raw(b.file(b.tsg()), "NVGPU_TSG_IOCTL_SET_L2_SECTOR_PROMOTION", &mut bytes::<8>(&[(0, 3, 4)]));
        "BIND_SCHEDULING_DOMAIN: reserved" => Err(Errno::EINVAL), |b| b.raw(b.file(b.tsg()), "NVGPU_TSG_IOCTL_BIND_SCHEDULING_DOMAIN", &mut bytes::<32>(&[(24, 1, 8)]));
        "BIND_SCHEDULING_DOMAIN: no domain" => Err(Errno::ENOENT), |b| b.raw(b.file(b.tsg()), "NVGPU_TSG_IOCTL_BIND_SCHEDULING_DOMAIN", &mut [0; 32]);
        "READ_ALL_SM_ERROR_STATES" => Err(Errno::ENOTTY), |b| b.raw(b.file(b.tsg()), "NVGPU_TSG_IOCTL_READ_ALL_SM_ERROR_STATES", &mut [0; 24]);
        "GET_SHARE_TOKEN" => Err(Errno::EINVAL), |b| b.raw(b.file(b.tsg()), "NVGPU_TSG_IOCTL_GET_SHARE_TOKEN", &mut [0; 24]);
        "ENABLE, DISABLE, PREEMPT" => Ok(0), |b| { let tsg = b.file(b.running().tsg); ["ENABLE", "DISABLE", "PREEMPT"].into_iter().try_fold(0, |_, name| b.raw(tsg, &format!("NVGPU_IOCTL_TSG_{name}"), &mut [])) };
    }
}

fn bind(b: &Bench, tsg: i32, channel: i32) -> Answer {
    b.raw(b.file(tsg), "NVGPU_TSG_IOCTL_BIND_CHANNEL", &mut channel.to_le_bytes())
}

fn sibling(b: &Bench, ready: &Ready) -> Answer {
    let channel = b.channel();
    b.bind_space(ready.space, channel)?;
    b.bind_tsg(ready.tsg, channel, ready.veid)
}

fn delete(b: &Bench, tsg: i32, veid: u32) -> Answer {
    let mut args = tsg::DeleteSubcontext { veid, reserved: 0 };
    b.call(b.file(tsg), tsg::DELETE_SUBCONTEXT, &mut args)
}

fn timeslice(b: &Bench, timeslice_us: u32) -> Answer {
    let mut args = tsg::Timeslice { timeslice_us, reserved: 0 };
    b.call(b.file(b.tsg()), tsg::SET_TIMESLICE, &mut args)
}

fn interleave(b: &Bench, level: u32) -> Answer {
    let mut args = tsg::RunlistInterleave { level, reserved: 0 };
    b.call(b.file(b.tsg()), tsg::SET_RUNLIST_INTERLEAVE, &mut args)
}

fn event(b: &Bench, cmd: u32, event_id: u32) -> Answer {
    let mut args = tsg::EventIdCtrl { cmd, event_id, event_fd: 0, padding: 0 };
    b.call(b.file(b.tsg()), tsg::EVENT_ID_CTRL, &mut args)
}

fn sm_error(b: &Bench, sm_id: u32, record_mem: u64, record_size: u64) -> Answer {
    let mut args = tsg::ReadSingleSmErrorState { sm_id, reserved: 0, record_mem, record_size };
    b.call(b.file(b.tsg()), tsg::READ_SINGLE_SM_ERROR_STATE, &mut args)
}

fn channel_rows() -> &'static [Row] {
    rows! {
        "SETUP_BIND: one entry" => Err(Errno::EINVAL), |b| setup(b, |s| s.num_gpfifo_entries = 1);
        "SETUP_BIND: no power of two" => Err(Errno::EINVAL), |b| setup(b, |s| s.num_gpfifo_entries = 1000);
        "SETUP_BIND: too many entries" => Err(Errno::EINVAL), |b| setup(b, |s| s.num_gpfifo_entries = 1 << 29);
        "SETUP_BIND: two entries in kernel mode" => Err(Errno::EINVAL), |b| setup(b, |s| (s.num_gpfifo_entries, s.flags) = (2, 0));
        "SETUP_BIND: two entries" => Ok(0), |b| setup(b, |s| s.num_gpfifo_entries = 2);
        "SETUP_BIND: entries are looked at first" => Err(Errno::EINVAL), |b| b.setup(b.channel(), &mut channel::SetupBind::default());
        "SETUP_BIND: no address space" => Err(Errno::EINVAL), |b| { let ready = b.ready(); b.setup(b.channel(), &mut ready.request()) };
        "SETUP_BIND: no TSG" => Err(Errno::EINVAL), |b| { let (ready, channel) = (b.ready(), b.channel()); b.bind_space(ready.space, channel)?; b.setup(channel, &mut ready.request()) };
        "SETUP_BIND: twice" => Err(Errno::EEXIST), |b| { let ready = b.running(); b.setup(ready.channel, &mut ready.request()) };
        "SETUP_BIND: deterministic with the watchdog on" => Err(Errno::EINVAL), |b| { let ready = b.ready(); b.watchdog(ready.channel, 2)?; b.setup(ready.channel, &mut ready.request()) };
        "SETUP_BIND: usermode without deterministic" => Err(Errno::EINVAL), |b| setup(b, |s| s.flags = channel::BIND_USERMODE);
        "SETUP_BIND: ring fd 0" => Err(Errno::EINVAL), |b| setup(b, |s| s.gpfifo_dmabuf_fd = 0);
        "SETUP_BIND: USERD fd 0" => Err(Errno::EINVAL), |b| setup(b, |s| s.userd_dmabuf_fd = 0);
        "SETUP_BIND: ring offset" => Err(Errno::EINVAL), |b| setup(b, |s| s.gpfifo_dmabuf_offset = 4096);
        "SETUP_BIND: USERD offset" => Err(Errno::EINVAL), |b| setup(b, |s| s.userd_dmabuf_offset = 512);
        "SETUP_BIND: ring fd closed" => Err(Errno::EBADF), |b| setup(b, |s| s.gpfifo_dmabuf_fd = 4999);
        "SETUP_BIND: USERD fd closed" => Err(Errno::EBADF), |b| setup(b, |s| s.userd_dmabuf_fd = 4999);
        "SETUP_BIND: ring fd no dma-buf" => Err(Errno::EINVAL), |b| { let ready = b.ready(); b.setup(ready.channel, &mut Ready { ring: ready.tsg, ..ready }.request()) };
        "SETUP_BIND: ring too small" => Err(Errno::EINVAL), |b| setup(b, |s| s.num_gpfifo_entries = 2048);
        "SETUP_BIND: ring without pages" => Err(Errno::ENOMEM), |b| { let (ready, ring) = (b.ready(), b.fd_of(b.handle(8192))); b.setup(ready.channel, &mut Ready { ring, ..ready }.request()) };
        "SETUP_BIND: right after a wrong one" => Ok(0), |b| { let ready = b.ready(); b.setup(ready.channel, &mut Ready { userd: 4999, ..ready }.request()).unwrap_err(); b.setup(ready.channel, &mut ready.request()) };
        "SETUP_BIND: no memory for a kernel-mode ring" => Err(Errno::ENOMEM), |b| { let ready = b.ready(); b.alloc(b.handle(62_000 << 20)); b.setup(ready.channel, &mut channel::SetupBind { num_gpfifo_entries: 1 << 28, ..channel::SetupBind::default() }) };
        "ALLOC_GPFIFO_EX" => Ok(0), |b| b.raw(b.file(b.ready().channel), "NVGPU_IOCTL_CHANNEL_ALLOC_GPFIFO_EX", &mut bytes::<32>(&[(0, 8, 4)]));
        "ALLOC_OBJ_CTX: no address space" => Err(Errno::EINVAL), |b| b.object(b.channel(), 0xc7c0);
        "ALLOC_OBJ_CTX: no TSG" => Err(Errno::EINVAL), |b| { let channel = b.channel(); b.bind_space(b.space(), channel)?; b.object(channel, 0xc7c0) };
        "ALLOC_OBJ_CTX: unknown class" => Err(Errno::EINVAL), |b| b.object(b.ready().channel, 0xc8c0);
        "ALLOC_OBJ_CTX: graphics in an asynchronous subcontext" => Err(Errno::EINVAL), |b| b.object(b.ready().channel, 0xc797);
        "ALLOC_OBJ_CTX: before SETUP_BIND" => Ok(0), |b| b.object(b.ready().channel, 0xc7c0);
        "ALLOC_OBJ_CTX: Turing compute" => Ok(0), |b| b.object(b.ready().channel, 0xc5c0);
        "ALLOC_OBJ_CTX: the channel class" => Ok(0), |b| b.object(b.ready().channel, 0xc76f);
        "WDT: status 0" => Err(Errno::EINVAL), |b| b.watchdog(b.channel(), 0);
        "WDT: status 3" => Err(Errno::EINVAL), |b| b.watchdog(b.channel(), 3);
        "WDT: on, deterministic" => Err(Errno::EINVAL), |b| b.watchdog(b.running().channel, 2);
        "WDT: off, deterministic" => Ok(0), |b| b.watchdog(b.running().channel, 1);
        "SUBMIT_GPFIFO: unserviceable" => Err(Errno::ETIMEDOUT), |b| submit(b, b.channel(), 1, 0);
        "SUBMIT_GPFIFO: usermode channel" => Err(Errno::EINVAL), |b| submit(b, b.running().channel, 1, 0);
        "SUBMIT_GPFIFO: before SETUP_BIND" => Err(Errno::ENOMEM), |b| submit(b, b.ready().channel, 1, 0);
        "SUBMIT_GPFIFO: wrong size" => Err(Errno::ENOTTY), |b| with(b, b.file(b.running().channel), 0xc020_486b, &[0u8; 32]);
        "SUBMIT_GPFIFO: more than the ring" => Err(Errno::ENOMEM), |b| submit(b, kernel_mode(b), 6, 0);
        "SUBMIT_GPFIFO: fences" => Err(Errno::EINVAL), |b| submit(b, kernel_mode(b), 1, 2);
        "SUBMIT_GPFIFO: bad entries" => Err(Errno::EFAULT), |b| submit(b, kernel_mode(b), 1, 0);
        "SUBMIT_GPFIFO: full" => Err(Errno::EAGAIN), |b| { let channel = kernel_mode(b); b.raw(b.file(channel), "NVGPU_IOCTL_CHANNEL_DISABLE", &mut [])?; let entries = [0u64; 5]; let send = || b.raw(b.file(channel), "NVGPU_IOCTL_CHANNEL_SUBMIT_GPFIFO", &mut bytes::<24>(&[(0, entries.as_ptr() as u64, 8), (8, 5, 4)])); send()?; send() };
        "WAIT: unserviceable" => Err(Errno::ETIMEDOUT), |b| wait(b, b.channel(), 1, 4999, 0);
        "WAIT: type 2" => Err(Errno::EINVAL), |b| wait(b, b.ready().channel, 2, b.buffer(1).1, 0);
        "WAIT: unaligned" => Err(Errno::EINVAL), |b| wait(b, b.ready().channel, 1, b.buffer(1).1, 2);
        "WAIT: beyond the buffer" => Err(Errno::EINVAL), |b| wait(b, b.ready().channel, 1, b.buffer(1).1, 4096);
        "WAIT: no dma-buf" => Err(Errno::EINVAL), |b| wait(b, b.ready().channel, 1, 4999, 0);
        "WAIT: without pages" => Err(Errno::EINVAL), |b| wait(b, b.ready().channel, 1, b.fd_of(b.handle(1)), 0);
        "WAIT: notifier beyond the buffer" => Err(Errno::EINVAL), |b| wait(b, b.ready().channel, 0, b.buffer(1).1, 4084);
        "WAIT: notifier without pages" => Err(Errno::ENOMEM), |b| wait(b, b.ready().channel, 0, b.fd_of(b.handle(1)), 0);
        "WAIT: semaphore in time" => Err(Errno::ETIMEDOUT), |b| wait(b, b.ready().channel, 1, b.buffer(1).1, 0);
        "WAIT: notifier in time" => Err(Errno::EINTR), |b| { let (_, fd) = b.buffer(1); b.dma_buf(fd).write(14, &[1]).unwrap(); wait(b, b.ready().channel, 0, fd, 0) };
        "SET_ERROR_NOTIFIER: mem 0" => Err(Errno::EINVAL), |b| notifier(b, b.channel(), 0, 0);
        "SET_ERROR_NOTIFIER: no dma-buf" => Err(Errno::EINVAL), |b| notifier(b, b.channel(), 4999, 0);
        "SET_ERROR_NOTIFIER: beyond the buffer" => Err(Errno::EINVAL), |b| notifier(b, b.channel(), b.buffer(1).1, 4084);
        "SET_ERROR_NOTIFIER: offset overflows" => Err(Errno::EINVAL), |b| notifier(b, b.channel(), b.buffer(1).1, u64::MAX - 7);
        "SET_ERROR_NOTIFIER: without pages" => Err(Errno::ENOMEM), |b| notifier(b, b.channel(), b.fd_of(b.handle(1)), 0);
        "SET_ERROR_NOTIFIER: at the very end" => Ok(0), |b| notifier(b, b.channel(), b.buffer(1).1, 4080);
        "SET_PREEMPTION_MODE: no object" => Err(Errno::EINVAL), |b| preemption(b, b.ready().channel, 0, 2);
        "SET_PREEMPTION_MODE: unknown" => Err(Errno::EINVAL), |b| preemption(b, b.running().channel, 0, 8);
        "SET_PREEMPTION_MODE: GFXP with CILP" => Err(Errno::EINVAL), |b| preemption(b, b.running().channel, 2, 4);
        "SET_PREEMPTION_MODE: lower than now" => Err(Errno::EINVAL), |b| { let channel = b.running().channel; preemption(b, channel, 0, 4)?; preemption(b, channel, 0, 2) };
        "SET_PREEMPTION_MODE: as it is" => Ok(0), |b| preemption(b, b.running().channel, 1, 1);
        "SET_PREEMPTION_MODE: CTA" => Ok(0), |b| preemption(b, b.running().channel, 1, 2);
        "SET_BOOSTED_CTX" => Err(Errno::EINVAL), |b| b.raw(b.file(b.channel()), "NVGPU_IOCTL_CHANNEL_SET_BOOSTED_CTX", &mut [0; 8]);
        "ZCULL_BIND" => Err(Errno::EINVAL), |b| b.raw(b.file(b.channel()), "NVGPU_IOCTL_CHANNEL_ZCULL_BIND", &mut [0; 16]);
        "GET_USER_SYNCPOINT: no address space" => Err(Errno::EINVAL), |b| syncpoint(b, b.channel());
        "GET_USER_SYNCPOINT: no address" => Err(Errno::ENOMEM), |b| { let ready = b.ready(); fill(b, &ready); syncpoint(b, ready.channel) };
        "SETUP_BIND: no address for the ring" => Err(Errno::ENOMEM), |b| { let ready = b.ready(); fill(b, &ready); b.setup(ready.channel, &mut ready.request()) };
        "GET_SYNC_RO_MAP: no address" => Err(Errno::ENOMEM), |b| { let ready = b.ready(); fill(b, &ready); b.call(b.file(ready.space), address_space::GET_SYNC_RO_MAP, &mut address_space::GetSyncRoMap::default()) };
        "RESCHEDULE_RUNLIST" => Err(Errno::EPERM), |b| b.raw(b.file(b.channel()), "NVGPU_IOCTL_CHANNEL_RESCHEDULE_RUNLIST", &mut [0; 4]);
        "PREEMPT: no TSG" => Err(Errno::EINVAL), |b| b.raw(b.file(b.channel()), "NVGPU_IOCTL_CHANNEL_PREEMPT", &mut []);
        "ENABLE, DISABLE, FORCE_RESET: no TSG" => Ok(0), |b| { let channel = b.file(b.channel()); ["ENABLE", "DISABLE", "FORCE_RESET"].into_iter().try_fold(0, |_, name| b.raw(channel, &format!("NVGPU_IOCTL_CHANNEL_{name}"), &mut [])) };
        "EVENT_ID_CTRL" => Err(Errno::ENOTTY), |b| b.raw(b.file(b.channel()), "NVGPU_IOCTL_CHANNEL_EVENT_ID_CTRL", &mut [0; 16]);
        "SET_RUNLIST_INTERLEAVE" => Err(Errno::ENOTTY), |b| b.raw(b.file(b.channel()), "NVGPU_IOCTL_CHANNEL_SET_RUNLIST_INTERLEAVE", &mut [0; 8]);
        "SET_NVMAP_FD" => Ok(0), |b| b.raw(b.file(b.channel()), "NVGPU_IOCTL_CHANNEL_SET_NVMAP_FD", &mut [0; 4]);
        "SET_TIMEOUT" => Ok(0), |b| b.raw(b.file(b.channel()), "NVGPU_IOCTL_CHANNEL_SET_TIMEOUT", &mut [0; 4]);
    }
}

fn setup(b: &Bench, change: fn(&mut channel::SetupBind)) -> Answer {
    let ready = b.ready();
    let mut args = ready.request();
    change(&mut args);
    let before = args;
    let result = b.setup(ready.channel, &mut args);
    assert!(result.is_ok() || args == before, "a refused call leaves its fields alone");
    result
}

fn kernel_mode(b: &Bench) -> i32 {
    let ready = b.ready();
    let mut args = channel::SetupBind { num_gpfifo_entries: 8, ..channel::SetupBind::default() };
    b.setup(ready.channel, &mut args).unwrap();
    ready.channel
}

fn submit(b: &Bench, channel: i32, count: u64, flags: u64) -> Answer {
    let mut args = bytes::<24>(&[(0, NOWHERE, 8), (8, count, 4), (12, flags, 4)]);
    b.raw(b.file(channel), "NVGPU_IOCTL_CHANNEL_SUBMIT_GPFIFO", &mut args)
}

fn wait(b: &Bench, channel: i32, kind: u64, fd: i32, offset: u64) -> Answer {
    let fields = [(0, kind, 4), (4, 1, 4), (8, fd as u64, 4), (12, offset, 4), (16, 5, 4)];
    b.raw(b.file(channel), "NVGPU_IOCTL_CHANNEL_WAIT", &mut bytes::<24>(&fields))
}

fn notifier(b: &Bench, channel: i32, mem: i32, offset: u64) -> Answer {
    let mut args = channel::SetErrorNotifier { offset, size: 16, mem: mem as u32, padding: 0 };
    b.call(b.file(channel), channel::SET_ERROR_NOTIFIER, &mut args)
}

fn preemption(b: &Bench, channel: i32, graphics: u32, compute: u32) -> Answer {
    let mut args =
        channel::PreemptionMode { graphics_preempt_mode: graphics, compute_preempt_mode: compute };
    b.call(b.file(channel), channel::SET_PREEMPTION_MODE, &mut args)
}

fn syncpoint(b: &Bench, channel: i32) -> Answer {
    let mut args = channel::GetUserSyncpoint::default();
    b.call(b.file(channel), channel::GET_USER_SYNCPOINT, &mut args)
}

/// Takes the whole of the driver's own range with one ring.
fn fill(b: &Bench, ready: &Ready) {
    let channel = b.channel();
    b.bind(channel, ready.space, ready.tsg, ready.veid);
    let (_, ring) = b.buffer(4 << 30);
    b.setup(channel, &mut Ready { ring, ..*ready }.request()).unwrap();
}

#[test]
fn every_refusal_has_a_row_and_the_errno_of_the_driver() {
    let nodes = [
        ("nvmap", nvmap_rows()),
        ("ctrl", ctrl_rows()),
        ("as", space_rows()),
        ("tsg", tsg_rows()),
        ("channel", channel_rows()),
    ];
    let (mut wrong, mut met) = (Vec::new(), BTreeSet::new());
    for (node, rows) in nodes {
        for row in rows {
            let bench = Bench::new();
            let result = (row.run)(&bench);
            if let Err(refused) = result {
                met.insert(refused.to_string());
            }
            let got = result.map_err(|refused| refused.errno);
            if got != row.expected {
                let why = result.err().map(ToString::to_string).unwrap_or_default();
                wrong.push(format!("{node} {}: {got:?}, not {:?}; {why}", row.name, row.expected));
            }
            bench.close_all();
            let live = bench.orin.live();
            if (live.channels, live.tsgs, live.address_spaces, live.mappings) != (0, 0, 0, 0) {
                wrong.push(format!("{node} {}: leaks {live:?}", row.name));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    // Memory and eventfds that run out for real; races of close and ioctl; faults during a wait
    // for a notifier.
    let unreachable = ["no memory for the event", "being closed", "a fault during a wait"];
    let missed: Vec<_> = ERRNOS
        .iter()
        .filter(|refused| !["injected", "release"].contains(&refused.node))
        .map(ToString::to_string)
        .filter(|line| !met.contains(line))
        .filter(|line| !unreachable.iter().any(|why| line.contains(why)))
        .filter(|line| !line.contains("FROM_VA: no memory for the handle"))
        .collect();
    assert!(missed.is_empty(), "never met:\n{}", missed.join("\n"));
}

#[test]
fn the_table_names_each_refusal_once_and_where_it_is_decided() {
    let lines: BTreeSet<String> = ERRNOS.iter().map(ToString::to_string).collect();
    assert_eq!(lines.len(), ERRNOS.len());
    for refused in ERRNOS.iter() {
        assert!(refused.source.contains(['.', ' ']), "{refused}");
        assert!(!refused.condition.is_empty() && !refused.call.is_empty(), "{refused}");
    }
}
