//! The order of calls that is proven on hardware, and the results of each.

use tegra::abi::{channel, ctrl, tsg};
use tegra_sim::driver::{Errno, Live, Node, Request, requests};
use tegra_sim::finding::Rule;

use super::bench::{Bench, RANGE, bytes, code, errno, whole};

#[test]
fn the_proven_order_gives_what_hardware_gave() {
    let bench = Bench::new();
    // 3: the proven range, which hardware accepts.
    let space = bench.alloc_as(0x20_0000, 0xff_ffe0_0000).unwrap();
    // 4: both windows, before any map.
    assert_eq!(bench.area(space, 0xfd_0000_0000, 0x4_0000, false).unwrap(), 0xfd_0000_0000);
    assert_eq!(bench.area(space, 0xfe_0000_0000, 0x4_0000, false).unwrap(), 0xfe_0000_0000);
    let tsg = bench.tsg();
    assert_eq!(bench.subcontext(tsg, tsg::SUBCONTEXT_ASYNC, space).unwrap(), 1);
    let mut tokens = Vec::new();
    let mut handles = Vec::new();
    for class in [0xc7c0, 0xc7b5] {
        let ((ring_handle, ring), (userd_handle, userd)) = (bench.buffer(8192), bench.buffer(4096));
        handles.extend([ring_handle, userd_handle]);
        let channel = bench.channel();
        bench.bind(channel, space, tsg, 1);
        let mut setup = channel::SetupBind {
            num_gpfifo_entries: 1024,
            flags: 0xa,
            userd_dmabuf_fd: userd,
            gpfifo_dmabuf_fd: ring,
            gpfifo_gpu_va: 9,
            userd_gpu_va: 9,
            usermode_mmio_gpu_va: 9,
            ..channel::SetupBind::default()
        };
        bench.setup(channel, &mut setup).unwrap();
        tokens.push(setup.work_submit_token);
        let addresses = (setup.gpfifo_gpu_va, setup.userd_gpu_va, setup.usermode_mmio_gpu_va);
        assert_eq!(addresses, (0, 0, 0));
        bench.object(channel, class).unwrap();
        let mut timedout = channel::GetTimedout { value: 7 };
        bench.call(bench.file(channel), channel::GET_TIMEDOUT, &mut timedout).unwrap();
        assert_eq!(timedout.value, 0);
    }
    assert_eq!(tokens, [511, 510]);
    assert!(handles.iter().all(|handle| *handle >= 0x7fff_ffff), "{handles:x?}");
    assert!(handles.windows(2).all(|pair| pair[1] == pair[0] + 1), "{handles:x?}");
    // 16: the doorbell page.
    assert_eq!(bench.orin.mmap(bench.ctrl, 0x1_0000, 0), Ok(0x1_0000));
    bench.orin.gpu().drain();
    let found = bench.findings.take();
    assert!(found.iter().all(|found| found.rule == Rule::DriverBeyondHost), "{found:?}");
    assert_eq!(found.len(), 2, "a note for each channel, as the driver's log has a warning");
    handles.iter().for_each(|handle| bench.free(*handle));
    bench.close_all();
    assert_eq!(bench.orin.live(), Live::default());
}

#[test]
fn channel_ids_are_handed_out_from_the_top_and_the_last_freed_first() {
    let bench = Bench::new();
    let token = |channel: i32, ready: &super::bench::Ready| {
        let veid = bench.subcontext(ready.tsg, tsg::SUBCONTEXT_ASYNC, ready.space).unwrap();
        bench.bind(channel, ready.space, ready.tsg, veid);
        let mut setup = ready.request();
        bench.setup(channel, &mut setup).unwrap();
        setup.work_submit_token
    };
    let ready = bench.ready();
    let mut setup = ready.request();
    bench.setup(ready.channel, &mut setup).unwrap();
    assert_eq!(setup.work_submit_token, 511);
    let (second, third) = (bench.channel(), bench.channel());
    assert_eq!(token(third, &ready), 509);
    bench.close(second);
    bench.close(third);
    assert_eq!(token(bench.channel(), &ready), 509);
    assert_eq!(token(bench.channel(), &ready), 510);
}

#[test]
fn a_copy_runlist_shows_in_the_token() {
    let bench = Bench::new();
    let ready = bench.ready();
    let channel = bench.open_channel(1).unwrap();
    let other = bench.tsg();
    let veid = bench.subcontext(other, tsg::SUBCONTEXT_ASYNC, ready.space).unwrap();
    bench.bind(channel, ready.space, other, veid);
    let mut setup = ready.request();
    bench.setup(channel, &mut setup).unwrap();
    assert_eq!(setup.work_submit_token, 1 << 16 | 510);
}

#[test]
fn the_timeslice_is_kept_and_starts_at_its_default() {
    let bench = Bench::new();
    let tsg = bench.tsg();
    let file = bench.file(tsg);
    let read = || bench.ask(file, tsg::GET_TIMESLICE, tsg::Timeslice::default()).timeslice_us;
    assert_eq!(read(), 1024);
    for us in [1000, 50_000] {
        bench.ask(file, tsg::SET_TIMESLICE, tsg::Timeslice { timeslice_us: us, reserved: 0 });
        assert_eq!(read(), us);
    }
}

#[test]
fn asynchronous_subcontexts_fall_back_to_the_synchronous_one() {
    let bench = Bench::new();
    let (space, tsg) = (bench.space(), bench.tsg());
    let ids: Vec<u32> =
        (0..64).map(|_| bench.subcontext(tsg, tsg::SUBCONTEXT_ASYNC, space).unwrap()).collect();
    assert_eq!(ids, (1..64).chain([0]).collect::<Vec<_>>());
    for kind in [tsg::SUBCONTEXT_ASYNC, tsg::SUBCONTEXT_SYNC] {
        assert_eq!(errno(bench.subcontext(tsg, kind, space)), Err(Errno::ENOSPC));
    }
    let mut delete = tsg::DeleteSubcontext { veid: 17, reserved: 0 };
    bench.call(bench.file(tsg), tsg::DELETE_SUBCONTEXT, &mut delete).unwrap();
    assert_eq!(bench.subcontext(tsg, tsg::SUBCONTEXT_ASYNC, space).unwrap(), 17);
}

#[test]
fn kernel_mode_submission_reaches_the_ring() {
    let bench = Bench::new();
    let ready = bench.ready();
    let mut setup = channel::SetupBind { num_gpfifo_entries: 8, ..channel::SetupBind::default() };
    bench.setup(ready.channel, &mut setup).unwrap();
    assert_eq!(setup.work_submit_token, 0);
    let (_, fd) = bench.buffer(4096);
    let va = bench.map(ready.space, &mut whole(fd)).unwrap();
    // A 32-bit release of 5 with WFI to the page's start, itself in the page's middle.
    let words: [u32; 6] = [0x2005_0017, va as u32, (va >> 32) as u32, 5, 0, 0x0010_0001];
    let body: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let memory = bench.dma_buf(fd);
    memory.write(2048, &body).unwrap();
    let entry = ((va + 2048) | 6 << 42 | 1 << 41).to_le_bytes();
    for round in 0..20 {
        memory.store_u32(0, 0).unwrap();
        let mut submit = bytes::<24>(&[(0, entry.as_ptr() as u64, 8), (8, 1, 4)]);
        let channel = bench.file(ready.channel);
        bench.raw(channel, "NVGPU_IOCTL_CHANNEL_SUBMIT_GPFIFO", &mut submit).unwrap();
        bench.orin.gpu().drain();
        assert_eq!(memory.load_u32(0).unwrap(), 5, "round {round}");
    }
}

#[test]
fn a_ring_above_forty_bits_is_found_and_never_fetched() {
    let bench = Bench::new();
    // Only 2 MiB of the driver's own range lie below 2^40 here.
    let space = bench.alloc_as(0x20_0000, 0xff_ffe0_0000).unwrap();
    let tsg = bench.tsg();
    let veid = bench.subcontext(tsg, tsg::SUBCONTEXT_ASYNC, space).unwrap();
    let channel = bench.channel();
    bench.bind(channel, space, tsg, veid);
    let ((_, ring), (_, userd)) = (bench.buffer(3 << 20), bench.buffer(4096));
    let mut setup = channel::SetupBind {
        num_gpfifo_entries: 1024,
        flags: 0xa,
        userd_dmabuf_fd: userd,
        gpfifo_dmabuf_fd: ring,
        ..channel::SetupBind::default()
    };
    bench.setup(channel, &mut setup).unwrap();
    bench.dma_buf(ring).store_u64(0, 0).unwrap();
    let userd = bench.dma_buf(userd);
    userd.store_u32(0x8c, 1).unwrap();
    bench.orin.gpu().doorbell(setup.work_submit_token);
    bench.orin.gpu().drain();
    assert_eq!(userd.load_u32(0x88).unwrap(), 0, "GP_GET moved");
    let [found] = &bench.findings.take()[..] else { panic!("one finding") };
    assert_eq!(found.rule, Rule::RingBeyondHost);
    for part in [
        "0x300000 bytes at 0xffffe00000",
        "ends at 0x10000100000",
        "froze",
        "0xff00000000 or below",
    ] {
        assert!(found.message.contains(part), "no {part:?} in {}", found.message);
    }
}

/// The advice of the finding suffices: the same ring in an address space that ends lower, or a
/// small ring here.
#[test]
fn a_ring_within_forty_bits_is_no_finding() {
    for (end, bytes) in [(0xff_0000_0000, 3 << 20), (0xff_ffe0_0000, 2 << 20)] {
        let bench = Bench::new();
        let (space, tsg) = (bench.alloc_as(0x20_0000, end).unwrap(), bench.tsg());
        let veid = bench.subcontext(tsg, tsg::SUBCONTEXT_ASYNC, space).unwrap();
        let channel = bench.channel();
        bench.bind(channel, space, tsg, veid);
        let ((_, ring), (_, userd)) = (bench.buffer(bytes), bench.buffer(4096));
        let mut setup = channel::SetupBind {
            num_gpfifo_entries: 1024,
            flags: 0xa,
            userd_dmabuf_fd: userd,
            gpfifo_dmabuf_fd: ring,
            ..channel::SetupBind::default()
        };
        bench.setup(channel, &mut setup).unwrap();
        bench.orin.gpu().drain();
        let rules: Vec<Rule> = bench.findings.take().iter().map(|found| found.rule).collect();
        let warned = end > 0xff_0000_0000;
        assert_eq!(rules, if warned { vec![Rule::DriverBeyondHost] } else { vec![] }, "{end:#x}");
    }
}

#[test]
fn nodes_open_for_group_video_alone() {
    let bench = Bench::new();
    let cases = [
        ("/dev/nvmap", Some(Ok(())), 0o660),
        ("/dev/nvgpu/igpu0/ctrl", Some(Ok(())), 0o660),
        ("/dev/nvhost-ctrl-gpu", Some(Ok(())), 0o660),
        ("/dev/nvgpu/igpu0/as", Some(Err(Errno::EINVAL)), 0o660),
        ("/dev/nvgpu/igpu0/channel", Some(Ok(())), 0o660),
        ("/dev/nvhost-gpu", Some(Ok(())), 0o660),
        ("/dev/nvgpu/igpu0/tsg", Some(Ok(())), 0o660),
        ("/dev/nvgpu/igpu0/power", Some(Ok(())), 0o660),
        ("/dev/nvgpu/igpu0/nvsched", Some(Ok(())), 0o640),
        ("/dev/nvgpu/igpu0/sched", Some(Err(Errno::EACCES)), 0o660),
        ("/dev/nvgpu/igpu0/dbg", Some(Err(Errno::EACCES)), 0o600),
        ("/dev/nvhost-prof-gpu", Some(Err(Errno::EACCES)), 0o600),
        ("/dev/host1x-fence", Some(Ok(())), 0o660),
        ("/dev/nvhost-channel-gpu", None, 0),
        ("/dev/nvgpu/igpu1/ctrl", None, 0),
        ("/dev/nvgpu", None, 0),
        ("/dev/null", None, 0),
    ];
    for (path, expected, mode) in cases {
        let node = Node::at(path);
        assert_eq!(node.map_or(0, Node::mode), mode, "{path}");
        let opened = node.map(|node| errno(bench.orin.open(node)).map(drop));
        assert_eq!(opened, expected, "{path}");
    }
}

#[test]
fn numbers_equal_the_headers() {
    let prefixes = [
        ("nvmap", "NVMAP_IOC_"),
        ("ctrl", "NVGPU_GPU_IOCTL_"),
        ("as", "NVGPU_AS_IOCTL_"),
        ("tsg", "NVGPU_TSG_IOCTL_"),
        ("channel", "NVGPU_IOCTL_CHANNEL_"),
    ];
    // The header names the oldest of the TSG's differently, and the table lacks two.
    let old = [
        "ENABLE",
        "DISABLE",
        "PREEMPT",
        "EVENT_ID_CTRL",
        "SET_RUNLIST_INTERLEAVE",
        "SET_TIMESLICE",
        "GET_TIMESLICE",
    ];
    let missing =
        [("SET_L2_MAX_WAYS_EVICT_LAST", 0x4008_540d), ("GET_L2_MAX_WAYS_EVICT_LAST", 0x8008_540e)];
    let mut seen = 0;
    let table = |text: &'static str| text.lines().map(|line| line.split(',').collect::<Vec<_>>());
    let mut members = 0;
    for (node, Request { name, code: own, members: layout }) in requests() {
        seen += 1;
        if let Some((_, request)) = missing.iter().find(|(known, _)| known == name) {
            assert_eq!(own, request, "{node} {name}");
            continue;
        }
        let (_, prefix) = prefixes.iter().find(|(known, _)| *known == node).unwrap();
        let prefix = if node == "tsg" && old.contains(name) { "NVGPU_IOCTL_TSG_" } else { prefix };
        let theirs = format!("{prefix}{name}");
        assert_eq!(code(&theirs), *own, "{node} {name}");
        let row = table(include_str!("../../../../tests/data/ioctls.csv"))
            .find(|row| row[0] == "r36.4.3" && row[2] == theirs)
            .unwrap();
        // Members of unions are named with or without the union's name.
        let fields: Vec<_> = table(include_str!("../../../../tests/data/structs.csv"))
            .filter(|field| field[0] == "r36.4.3" && field[2] == row[5] && !field[3].is_empty())
            .collect();
        for (member, offset, size) in layout.iter().filter(|_| !fields.is_empty()) {
            let found = fields.iter().any(|field| {
                let path = field[3].to_uppercase();
                let same =
                    path.replace('.', "_") == *member || path.rsplit('.').next() == Some(member);
                same && field[4] == offset.to_string() && field[5] == size.to_string()
            });
            assert!(found, "{node} {name}: {member} at {offset}, {size} bytes");
            members += 1;
        }
    }
    assert!(members > 100, "{members}");
    assert!(seen > 100, "{seen}");
}

#[test]
fn only_the_range_that_was_asked_for_is_the_programs() {
    let bench = Bench::new();
    let space = bench.file(bench.space());
    let mut region = [0xee_u8; 24];
    let mut args = tegra::abi::address_space::GetVaRegions {
        buf_addr: region.as_mut_ptr() as u64,
        buf_size: 24,
        reserved: 0,
    };
    bench.call(space, tegra::abi::address_space::GET_VA_REGIONS, &mut args).unwrap();
    let pages = (RANGE.1 - RANGE.0) / 4096;
    assert_eq!(region, bytes::<24>(&[(0, RANGE.0, 8), (8, 4096, 4), (16, pages, 8)]));
    let mut none = tegra::abi::address_space::GetVaRegions { buf_size: 23, ..args };
    none.buf_addr = 0;
    bench.call(space, tegra::abi::address_space::GET_VA_REGIONS, &mut none).unwrap();
    assert_eq!(none.buf_size, 24);
}

#[test]
fn gpu_time_moves_in_steps_of_the_timer() {
    let bench = Bench::new();
    let read =
        || bench.ask(bench.ctrl, ctrl::GET_GPU_TIME, ctrl::GetGpuTime::default()).gpu_timestamp;
    let (first, second) = (read(), read());
    assert!(second > first && first % 32 == 0 && second % 32 == 0, "{first} {second}");
}

#[test]
fn the_first_compute_object_of_a_process_takes_a_second() {
    let bench = Bench::new();
    let ready = bench.ready();
    let cost = |class| {
        let before = bench.orin.gpu().time_ns();
        bench.object(ready.channel, class).unwrap();
        bench.orin.gpu().time_ns() - before
    };
    assert!(cost(0xc7b5) < 1_000_000);
    assert!(cost(0xc7c0) > 1_000_000_000);
    assert!(cost(0xc7c0) < 1_000_000);
}

#[test]
fn ids_of_handles_count_up_even_when_earlier_ones_are_free() {
    let bench = Bench::new();
    let kept = bench.handle(4096);
    let mut last = kept;
    for _ in 0..2000 {
        let next = bench.handle(4096);
        assert_eq!(next, last + 1);
        bench.free(next);
        last = next;
    }
}
