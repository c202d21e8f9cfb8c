//! Every wrong order and value that the wrappers cannot express, with the driver's errno.

use std::os::fd::{AsFd, AsRawFd};

use nix::errno::Errno;
use nix::libc;
use tegra::abi::{address_space, channel, ctrl};

use crate::raw::{Nodes, Parts, call, object, set_up};
use crate::support::alone;

const EINVAL: Result<(), Errno> = Err(Errno::EINVAL);

#[test]
fn invalid_address_spaces_are_refused() {
    alone(|| {
        let nodes = Nodes::open();
        let good = Nodes::space_args();
        let wrong = [
            ("big pages", ctrl::AllocAs { big_page_size: 65_536, ..good }),
            ("start 0", ctrl::AllocAs { va_range_start: 0, ..good }),
            ("end 0", ctrl::AllocAs { va_range_end: 0, ..good }),
            ("start unaligned", ctrl::AllocAs { va_range_start: 0x10_0000, ..good }),
            ("end unaligned", ctrl::AllocAs { va_range_end: 0xff_0010_0000, ..good }),
            ("empty", ctrl::AllocAs { va_range_start: good.va_range_end, ..good }),
            ("split", ctrl::AllocAs { va_range_split: 0x80_0000_0000, ..good }),
        ];
        for (what, args) in wrong {
            let mut after = args;
            assert_eq!(call(nodes.ctrl.as_fd(), ctrl::ALLOC_AS, &mut after), EINVAL, "{what}");
            assert_eq!(after, args, "{what}: nothing is written on failure");
        }
    });
}

#[test]
fn invalid_areas_and_maps_are_refused() {
    alone(|| {
        use address_space::{ALLOC_SPACE, AllocSpace, MAP_BUFFER_EX, MapBufferEx};
        const WINDOW: u64 = 0xfd_0000_0000;
        let parts = Parts::new();
        let space = parts.space.as_fd();
        let memory = parts.nodes.memory(8192);
        let area = AllocSpace {
            pages: 16,
            page_size: 4096,
            flags: address_space::SPACE_FIXED_OFFSET,
            o_a: WINDOW,
            ..Default::default()
        };
        let map = MapBufferEx {
            compr_kind: address_space::KIND_INVALID,
            incompr_kind: address_space::KIND_PITCH,
            dmabuf_fd: memory.fd.as_raw_fd() as u32,
            page_size: 4096,
            ..Default::default()
        };
        let fixed = MapBufferEx { flags: address_space::MAP_FIXED_OFFSET, offset: WINDOW, ..map };
        let try_map = |mut args| call(space, MAP_BUFFER_EX, &mut args);
        let try_area = |mut args| call(space, ALLOC_SPACE, &mut args);
        assert_eq!(try_map(fixed), EINVAL, "fixed without an area");
        assert_eq!(try_area(AllocSpace { page_size: 65_536, ..area }), EINVAL);
        assert_eq!(try_area(AllocSpace { o_a: WINDOW + 1, ..area }), Err(Errno::ENOMEM));
        assert_eq!(try_area(AllocSpace { o_a: 0xff_0000_0000, ..area }), Err(Errno::ENOMEM));
        assert_eq!(try_area(area), Ok(()));
        assert_eq!(try_area(area), Err(Errno::ENOMEM), "used already");
        assert_eq!(try_map(fixed), Ok(()));
        assert_eq!(try_map(fixed), Ok(()), "the same again counts one reference more");
        let other = parts.nodes.memory(4096);
        let overlapping = MapBufferEx { dmabuf_fd: other.fd.as_raw_fd() as u32, ..fixed };
        assert_eq!(try_map(overlapping), EINVAL, "overlap");
        for (what, wrong) in [
            ("unaligned", MapBufferEx { offset: WINDOW + 0x8001, ..fixed }),
            ("outside", MapBufferEx { offset: WINDOW + (15 << 12), ..fixed }),
            ("unknown flag", MapBufferEx { flags: 1 << 20, ..map }),
            ("access 3", MapBufferEx { flags: 3 << 10, ..map }),
            ("offset", MapBufferEx { buffer_offset: 4096, ..map }),
            ("size", MapBufferEx { mapping_size: 4096, ..map }),
            ("beyond", MapBufferEx { mapping_size: 1 << 20, offset: WINDOW + 0x8000, ..fixed }),
        ] {
            assert_eq!(try_map(wrong), EINVAL, "{what}");
        }
        let no_kind = MapBufferEx { incompr_kind: address_space::KIND_INVALID, ..map };
        assert_eq!(try_map(no_kind), Err(Errno::ENOMEM));
        // The same buffer has one address and counts references.
        let third = parts.nodes.memory(4096);
        let map = MapBufferEx { dmabuf_fd: third.fd.as_raw_fd() as u32, ..map };
        let (mut first, mut second) = (map, map);
        assert_eq!(call(space, MAP_BUFFER_EX, &mut first), Ok(()));
        assert_eq!(call(space, MAP_BUFFER_EX, &mut second), Ok(()));
        assert_eq!(first.offset, second.offset);
        for offset in [first.offset, first.offset, first.offset, WINDOW, WINDOW, 0x1234] {
            let mut args = address_space::UnmapBuffer { offset };
            assert_eq!(call(space, address_space::UNMAP_BUFFER, &mut args), Ok(()));
        }
    });
}

#[test]
fn wrong_binding_orders_are_refused() {
    alone(|| {
        let parts = Parts::new();
        let channel = parts.nodes.channel();
        assert_eq!(parts.bind_group(&channel), EINVAL, "the group before the address space");
        assert_eq!(parts.bind_space(&channel), Ok(()));
        assert_eq!(parts.bind_space(&channel), EINVAL, "the address space twice");
        assert_eq!(parts.bind_group(&channel), Ok(()));
        assert_eq!(parts.bind_group(&channel), EINVAL, "the group twice");
    });
}

#[test]
fn wrong_set_up_orders_and_values_are_refused() {
    alone(|| {
        use channel::{BIND_DETERMINISTIC, BIND_USERMODE, SETUP_BIND, SetupBind};
        let parts = Parts::new();
        let (ring, userd) = (parts.nodes.memory(4096), parts.nodes.memory(4096));
        let good = set_up(&ring, &userd);
        let set = |channel: &std::os::fd::OwnedFd, mut args: SetupBind| {
            call(channel.as_fd(), SETUP_BIND, &mut args)
        };
        let channel = parts.nodes.channel();
        assert_eq!(set(&channel, good), EINVAL, "no address space");
        parts.bind_space(&channel).unwrap();
        assert_eq!(set(&channel, good), EINVAL, "no group");
        parts.bind_group(&channel).unwrap();
        assert_eq!(set(&channel, good), EINVAL, "the watchdog runs");
        for status in [0, 3] {
            assert_eq!(parts.watchdog(&channel, status), EINVAL, "watchdog {status}");
        }
        parts.watchdog(&channel, channel::WDT_DISABLE).unwrap();
        for (what, wrong) in [
            ("usermode alone", SetupBind { flags: BIND_USERMODE, ..good }),
            ("one entry", SetupBind { num_gpfifo_entries: 1, ..good }),
            ("no entries", SetupBind { num_gpfifo_entries: 0, ..good }),
            ("not a power of two", SetupBind { num_gpfifo_entries: 500, ..good }),
            ("a ring too small", SetupBind { num_gpfifo_entries: 1024, ..good }),
            ("ring fd 0", SetupBind { gpfifo_dmabuf_fd: 0, ..good }),
            ("USERD fd 0", SetupBind { userd_dmabuf_fd: 0, ..good }),
            ("ring offset", SetupBind { gpfifo_dmabuf_offset: 8, ..good }),
            ("USERD offset", SetupBind { userd_dmabuf_offset: 512, ..good }),
        ] {
            assert_eq!(set(&channel, wrong), EINVAL, "{what}");
        }
        assert_eq!(good.flags, BIND_DETERMINISTIC | BIND_USERMODE);
        assert_eq!(set(&channel, good), Ok(()));
        assert_eq!(set(&channel, good), Err(Errno::EEXIST), "twice");
        const ENABLE: u32 = 2;
        assert_eq!(parts.watchdog(&channel, ENABLE), EINVAL, "on a deterministic channel");
    });
}

#[test]
fn objects_need_an_address_space_and_a_known_class() {
    alone(|| {
        let parts = Parts::new();
        let channel = parts.nodes.channel();
        assert_eq!(object(&channel, 0xc7c0), EINVAL, "no address space");
        parts.bind_space(&channel).unwrap();
        assert_eq!(object(&channel, 0xc7c0), EINVAL, "no group");
        parts.bind_group(&channel).unwrap();
        assert_eq!(object(&channel, 0x1234), EINVAL, "an unknown class");
        assert_eq!(object(&channel, 0xc7c0), Ok(()), "before the ring is accepted");
        assert_eq!(object(&parts.bound(), 0xc7b5), Ok(()));
    });
}

#[test]
fn unknown_requests_are_refused() {
    alone(|| {
        let parts = Parts::new();
        let (ring, userd) = (parts.nodes.memory(4096), parts.nodes.memory(4096));
        let channel = parts.bound();
        call(channel.as_fd(), channel::SETUP_BIND, &mut set_up(&ring, &userd)).unwrap();
        let enter = |fd: i32, request: u32| {
            let mut args = [0u64; 16];
            // SAFETY: the buffer is as large as any argument.
            let result = unsafe { libc::ioctl(fd, request.into(), args.as_mut_ptr()) };
            Errno::result(result).map(drop)
        };
        let (ctrl, channel) = (parts.nodes.ctrl.as_raw_fd(), channel.as_raw_fd());
        // OPEN_CHANNEL with the 16 bytes of older headers.
        assert_eq!(enter(ctrl, 0xc010_470b), Err(Errno::ENOTTY));
        // SUBMIT_GPFIFO, which is for kernel-managed rings; then with a wrong size.
        assert_eq!(enter(channel, 0xc018_486b), EINVAL);
        assert_eq!(enter(channel, 0xc020_486b), Err(Errno::ENOTTY));
        // EVENT_ID_CTRL belongs to the group in this release.
        assert_eq!(enter(channel, 0xc010_4875), Err(Errno::ENOTTY));
        // nvmap's PARAM is in the header only.
        assert_eq!(enter(parts.nodes.nvmap.as_raw_fd(), 0xc010_4e08), Err(Errno::ENOTTY));
        // Another node's magic.
        assert_eq!(enter(ctrl, 0xc018_486b), EINVAL);
    });
}

#[test]
fn invalid_memory_handles_are_refused() {
    alone(|| {
        let nodes = Nodes::open();
        let handle = nodes.create(4096);
        assert!(handle >= 0x8000_0000 - 1, "{handle:#x}");
        assert_eq!(nodes.alloc(handle, 0), Ok(()), "tag 0 only logs a warning");
        assert_eq!(nodes.alloc(handle, 0x0900), Err(Errno::EEXIST));
        assert_eq!(nodes.alloc(0, 0x0900), EINVAL);
        assert_eq!(nodes.alloc(0x1234, 0x0900), EINVAL);
        let mut empty = tegra::abi::nvmap::Create64 { size64: 0 };
        let create = tegra::abi::nvmap::CREATE_64;
        assert_eq!(call(nodes.nvmap.as_fd(), create, &mut empty), EINVAL);
        for handle in [handle, 0, 0x1234] {
            // SAFETY: the fd is that of nvmap.
            assert_eq!(unsafe { tegra::abi::nvmap::free(nodes.nvmap.as_fd(), handle) }, Ok(()));
        }
    });
}

#[test]
fn the_doorbell_page_is_mapped_once_per_ctrl_fd() {
    alone(|| {
        const PAGE: usize = 0x1_0000;
        let nodes = Nodes::open();
        assert_eq!(nodes.map_ctrl(PAGE * 2, 0), Err(Errno::EINVAL), "too long");
        assert_eq!(nodes.map_ctrl(PAGE, 4096), Err(Errno::EINVAL), "an offset");
        let base = nodes.map_ctrl(PAGE, 0).unwrap();
        assert_eq!(nodes.map_ctrl(PAGE, 0), Err(Errno::EBUSY), "twice");
        // SAFETY: the mapping made above, which is not in use.
        assert_eq!(unsafe { libc::munmap(base as *mut _, PAGE) }, 0);
        // Another open file has its own page.
        let other = Nodes::open();
        let base = other.map_ctrl(PAGE, 0).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { libc::munmap(base as *mut _, PAGE) }, 0);
    });
}
