//! Characteristics of the device, field by field as observed on hardware.

use tegra::abi::{ctrl, nvmap};

use super::bench::{Bench, bytes};

fn characteristics(bench: &Bench) -> ctrl::Characteristics {
    let mut record = ctrl::Characteristics::default();
    let mut args = ctrl::GetCharacteristics {
        gpu_characteristics_buf_size: size_of::<ctrl::Characteristics>() as u64,
        gpu_characteristics_buf_addr: &raw mut record as u64,
    };
    bench.call(bench.ctrl, ctrl::GET_CHARACTERISTICS, &mut args).unwrap();
    assert_eq!(args.gpu_characteristics_buf_size, 328);
    record
}

#[test]
fn the_record_is_that_of_an_orin_in_its_30_w_mode() {
    let got = characteristics(&Bench::new());
    assert_eq!((got.arch, got.r#impl, got.rev), (0x170, 0xb, 0xa1));
    assert_eq!((got.num_gpc, got.gpc_mask, got.num_tpc_per_gpc), (1, 1, 4));
    assert_eq!((got.numa_domain_id, got.bus_type, got.L2_cache_size), (-1, 32, 4_194_304));
    assert_eq!((got.big_page_size, got.available_big_page_sizes), (0, 0));
    assert_eq!((got.compression_page_size, got.pde_coverage_bit_count), (0x1_0000, 47));
    assert_eq!((got.gpu_va_bit_count, &got.chipname), (40, b"ga10b\0\0\0"));
    let classes = [got.twod_class, got.threed_class, got.compute_class, got.gpfifo_class];
    assert_eq!(classes, [0x902d, 0xc797, 0xc7c0, 0xc76f]);
    assert_eq!((got.inline_to_memory_class, got.dma_copy_class), (0xa140, 0xc7b5));
    assert_eq!((got.sm_arch_sm_version, got.sm_arch_spa_version), (0x807, 0x806));
    assert_eq!((got.sm_arch_warp_count, got.flags), (96, 0x01bf_5fff_7f5d_035d));
    let last = [
        got.gpu_ioctl_nr_last,
        got.tsg_ioctl_nr_last,
        got.dbg_gpu_ioctl_nr_last,
        got.ioctl_channel_nr_last,
        got.as_ioctl_nr_last,
    ];
    assert_eq!(last, [44, 21, 33, 128, 14]);
    assert_eq!((got.max_freq, got.map_buffer_batch_limit), (1_300_000_000, 256));
    assert_eq!((got.max_gpfifo_entries, got.max_veid_count_per_tsg), (268_435_456, 64));
    assert_eq!((got.max_fbps_count, got.fbp_en_mask, got.num_ltc), (2, 3, 2));
    let modes = (got.graphics_preemption_mode_flags, got.compute_preemption_mode_flags);
    assert_eq!(modes, (3, 7));
}

#[test]
fn a_short_buffer_gets_the_beginning_and_none_gets_the_size() {
    let bench = Bench::new();
    let mut short = [0xee_u8; 12];
    let mut args = ctrl::GetCharacteristics {
        gpu_characteristics_buf_size: 8,
        gpu_characteristics_buf_addr: short.as_mut_ptr() as u64,
    };
    bench.call(bench.ctrl, ctrl::GET_CHARACTERISTICS, &mut args).unwrap();
    assert_eq!(short, [0x70, 1, 0, 0, 0xb, 0, 0, 0, 0xee, 0xee, 0xee, 0xee]);
    let none =
        bench.ask(bench.ctrl, ctrl::GET_CHARACTERISTICS, ctrl::GetCharacteristics::default());
    assert_eq!(none.gpu_characteristics_buf_size, 328);
}

#[test]
fn every_way_to_count_sms_agrees() {
    let bench = Bench::new();
    let record = characteristics(&bench);
    let sms = bench.ask(bench.ctrl, ctrl::NUM_VSMS, ctrl::NumVsms::default());
    assert_eq!(sms.num_vsms, record.num_gpc * record.num_tpc_per_gpc * 2);
    let mut map = vec![0xee_u8; 6 * sms.num_vsms as usize];
    let mut args = bytes::<8>(&[(0, map.as_mut_ptr() as u64, 8)]);
    bench.raw(bench.ctrl, "NVGPU_GPU_IOCTL_VSMS_MAPPING", &mut args).unwrap();
    assert_eq!(map[..12], [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]);
    assert_eq!(map[6 * 7..], [0, 0, 3, 3, 1, 3]);
    let mut masks = [9u32; 2];
    let mut args = bytes::<16>(&[(0, 8, 4), (8, masks.as_mut_ptr() as u64, 8)]);
    bench.raw(bench.ctrl, "NVGPU_GPU_IOCTL_GET_TPC_MASKS", &mut args).unwrap();
    assert_eq!(masks, [0xf, 0]);
}

#[test]
fn heaps_are_reported_without_the_one_to_use() {
    let bench = Bench::new();
    let heaps =
        bench.ask(bench.nvmap, nvmap::GET_AVAILABLE_HEAPS, nvmap::AvailableHeaps::default());
    assert_eq!(heaps.heaps, 0x1000_0004);
    let query = || {
        let mut args =
            nvmap::QueryHeapParams { heap_mask: 1 << 30, ..nvmap::QueryHeapParams::default() };
        bench.call(bench.nvmap, nvmap::QUERY_HEAP_PARAMS, &mut args).unwrap();
        args
    };
    let before = query();
    assert!(before.free == before.total && before.total > 60 << 30, "{before:?}");
    assert_eq!((before.granule_size, before.largest_free_block), (4096, 4096));
    let (handle, fd) = bench.buffer(5 << 20);
    assert_eq!(query().free, before.free - (5 << 20));
    bench.free(handle);
    bench.close(fd);
    assert_eq!(query(), before);
}

#[test]
fn parameters_tell_what_alloc_decided() {
    let bench = Bench::new();
    let handle = bench.handle(10_000);
    let ask = || {
        let mut args = nvmap::Parameters { handle, ..nvmap::Parameters::default() };
        bench.call(bench.nvmap, nvmap::PARAMETERS, &mut args).unwrap();
        args
    };
    let before = ask();
    assert_eq!((before.heap, before.size, before.contig), (0, 12_288, 0));
    bench.alloc(handle);
    let after = ask();
    assert_eq!((after.heap, after.align, after.coherency), (1 << 30, 4096, 1));
}

#[test]
fn clocks_and_engines_are_listed() {
    let bench = Bench::new();
    let mut count = bytes::<24>(&[(4, 1, 4)]);
    bench.raw(bench.ctrl, "NVGPU_GPU_IOCTL_CLK_GET_VF_POINTS", &mut count).unwrap();
    let points = u16::from_le_bytes([count[8], count[9]]);
    let mut list = vec![0u64; usize::from(points)];
    let room = u64::from(points);
    let mut args = bytes::<24>(&[(4, 1, 4), (8, room, 2), (16, list.as_mut_ptr() as u64, 8)]);
    bench.raw(bench.ctrl, "NVGPU_GPU_IOCTL_CLK_GET_VF_POINTS", &mut args).unwrap();
    assert!(list.is_sorted() && list.last() == Some(&1_300_000_000), "{list:?}");
    let mut range = [0u64; 3];
    let mut args = bytes::<16>(&[(6, 1, 2), (8, range.as_mut_ptr() as u64, 8)]);
    bench.raw(bench.ctrl, "NVGPU_GPU_IOCTL_CLK_GET_RANGE", &mut args).unwrap();
    assert_eq!(range, [1 << 32, list[0], 1_300_000_000]);
    let mut now = [0u64; 2];
    let mut args = bytes::<16>(&[(4, 2, 2), (6, 1, 2), (8, now.as_mut_ptr() as u64, 8)]);
    bench.raw(bench.ctrl, "NVGPU_GPU_IOCTL_CLK_GET_INFO", &mut args).unwrap();
    assert!(list.contains(&now[1]), "{now:x?}");

    let mut engines = [ctrl::EngineInfo::default(); 16];
    let mut args = ctrl::GetEngineInfo {
        engine_info_buf_size: size_of_val(&engines) as u32,
        reserved: 0,
        engine_info_buf_addr: engines.as_mut_ptr() as u64,
    };
    bench.call(bench.ctrl, ctrl::GET_ENGINE_INFO, &mut args).unwrap();
    let listed = &engines[..args.engine_info_buf_size as usize / 16];
    assert_eq!((listed[0].engine_id, listed[0].runlist_id), (0, 0));
    for engine in listed {
        assert!(bench.open_channel(engine.runlist_id).is_ok(), "{engine:?}");
    }
}

#[test]
fn metadata_of_a_buffer_is_kept_and_protected() {
    let bench = Bench::new();
    let (_, fd) = bench.buffer(4096);
    let blob = *b"tiles";
    let register = |flags: u64| {
        let mut args = bytes::<24>(&[
            (0, fd as u64, 4),
            (8, blob.as_ptr() as u64, 8),
            (16, blob.len() as u64, 4),
            (20, flags, 4),
        ]);
        bench.raw(bench.ctrl, "NVGPU_GPU_IOCTL_REGISTER_BUFFER", &mut args)
    };
    let info = |room: u64, to: *mut u8| {
        let mut args = bytes::<24>(&[(0, fd as u64, 4), (4, room, 4), (8, to as u64, 8)]);
        bench.raw(bench.ctrl, "NVGPU_GPU_IOCTL_GET_BUFFER_INFO", &mut args).unwrap();
        args
    };
    assert_eq!(info(0, std::ptr::null_mut()), bytes::<24>(&[(16, 4096, 8)]));
    register(2).unwrap();
    assert!(register(2).is_err(), "without MODIFY");
    register(4).unwrap();
    assert!(register(4).is_err(), "the second time was not MUTABLE");
    let mut back = [0; 8];
    assert_eq!(info(3, back.as_mut_ptr()), bytes::<24>(&[(0, 1, 8), (8, 5, 4), (16, 4096, 8)]));
    assert_eq!(back, *b"til\0\0\0\0\0");
}
