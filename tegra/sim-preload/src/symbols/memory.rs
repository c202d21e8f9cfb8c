//! `mmap`, `munmap` and `msync`: doorbell pages, refusals, and the limits of a dma-buf's mapping.

use std::ffi::{c_int, c_void};
use std::fs;

use libc::{MAP_FAILED, size_t};
use tegra_sim::driver::FileId;

use crate::doorbell::{self, MapError};
use crate::files::Known;
use crate::message;
use crate::real::{self, fail, set_errno};
use crate::world::{self, World};

/// Name of a dma-buf's memory in `/proc/self/maps`.
const DMA_BUF: &str = "/memfd:nvmap";

struct Request {
    address: *mut c_void,
    bytes: size_t,
    protection: c_int,
    flags: c_int,
    fd: c_int,
    offset: i64,
}

impl Request {
    fn pass_on(&self) -> *mut c_void {
        let Self { address, bytes, protection, flags, fd, offset } = *self;
        // SAFETY: the arguments are the caller's.
        unsafe { real::mmap(address, bytes, protection, flags, fd, offset) }
    }

    /// `None` if the mapping does not concern the simulator.
    fn simulated(&self, world: &World) -> Option<*mut c_void> {
        match world.files.find(self.fd)? {
            Known::DmaBuf(buffer) => {
                let (bytes, offset) = (self.bytes as u64, self.offset as u64);
                let orin = &world.orin;
                if let Err(refusal) =
                    orin.check_dma_buf_mmap(&buffer, bytes, self.protection, offset)
                {
                    return Some(refuse(refusal.errno.code()));
                }
                let mapping = self.pass_on();
                if mapping != MAP_FAILED {
                    // SAFETY: the mapping was just made. nvmap's are not inherited either.
                    unsafe { libc::madvise(mapping, self.bytes, libc::MADV_DONTFORK) };
                }
                Some(mapping)
            }
            Known::Node(file, _) | Known::Object(file) => Some(self.of_file(world, file)),
            Known::Event(_) => Some(refuse(libc::ENODEV)),
        }
    }

    fn of_file(&self, world: &World, file: FileId) -> *mut c_void {
        let (bytes, offset) = (self.bytes as u64, self.offset as u64);
        let answer = world.orin.mmap(file, bytes, offset);
        let bytes = match answer {
            Ok(bytes) => bytes as usize,
            Err(refusal) => return refuse(refusal.errno.code()),
        };
        let Some(held) = world.files.mapped(self.fd) else { return refuse(libc::EBADF) };
        match doorbell::map(self.address, bytes, self.flags, held) {
            Ok(page) => page,
            Err((why, held)) => {
                world.orin.unmapped(file);
                world.files.unmapped(&held);
                refuse(match why {
                    MapError::Errno(errno) => errno,
                    MapError::Full => {
                        message::print("too many doorbell pages are mapped at once");
                        libc::ENOMEM
                    }
                })
            }
        }
    }
}

fn refuse(errno: c_int) -> *mut c_void {
    set_errno(errno);
    MAP_FAILED
}

fn map(request: &Request) -> *mut c_void {
    let of_a_file = request.fd >= 0 && request.flags & libc::MAP_ANONYMOUS == 0;
    let simulated = of_a_file.then(|| world::with(|world| request.simulated(world)).flatten());
    simulated.flatten().unwrap_or_else(|| {
        let mapping = request.pass_on();
        replaced(request, mapping);
        mapping
    })
}

/// A fixed mapping may have replaced a doorbell page.
fn replaced(request: &Request, mapping: *mut c_void) {
    if request.flags & libc::MAP_FIXED != 0 && mapping != MAP_FAILED {
        unmapped(mapping as usize, request.bytes);
    }
}

fn unmapped(address: usize, bytes: usize) {
    let Some(gone) = doorbell::unmap(address, bytes) else { return };
    world::with(|world| {
        for mapped in gone.released {
            if let Some(file) = world.files.file_of(&mapped) {
                world.orin.unmapped(file);
            }
            world.files.unmapped(&mapped);
        }
    });
}

macro_rules! interpose {
    ($($name:ident)+) => {
        $(
            #[unsafe(no_mangle)]
            pub(super) unsafe extern "C" fn $name(
                address: *mut c_void,
                bytes: size_t,
                protection: c_int,
                flags: c_int,
                fd: c_int,
                offset: i64,
            ) -> *mut c_void {
                map(&Request { address, bytes, protection, flags, fd, offset })
            }
        )+
    };
}

interpose! { mmap mmap64 }

/// A dma-buf has no `fsync`, so the kernel refuses to sync a mapping of one; a memory file has one.
#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn msync(address: *mut c_void, bytes: size_t, flags: c_int) -> c_int {
    let of_a_dma_buf = || {
        fs::read_to_string("/proc/self/maps").is_ok_and(|maps| {
            maps.lines().any(|line| line.contains(DMA_BUF) && contains(line, address as usize))
        })
    };
    if flags & libc::MS_SYNC != 0 && world::with(|_| of_a_dma_buf()) == Some(true) {
        return fail(libc::EINVAL);
    }
    // SAFETY: the arguments are the caller's.
    unsafe { real::msync(address, bytes, flags) }
}

/// Returns `true` if an address is in the range that begins a line of `/proc/self/maps`.
fn contains(line: &str, address: usize) -> bool {
    let number = |text| usize::from_str_radix(text, 16).ok();
    let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
    range.is_some_and(|(start, end)| {
        number(start).is_some_and(|start| start <= address)
            && number(end).is_some_and(|end| address < end)
    })
}

#[unsafe(no_mangle)]
pub(super) unsafe extern "C" fn munmap(address: *mut c_void, bytes: size_t) -> c_int {
    // SAFETY: the arguments are the caller's.
    let result = unsafe { real::munmap(address, bytes) };
    if result == 0 {
        unmapped(address as usize, bytes);
    }
    result
}
