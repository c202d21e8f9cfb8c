//! The kernel interface, compared with tables that a C compiler extracted from the L4T headers.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::fd::AsFd;

use super::table::rows;
use nix::errno::Errno;
use tegra::abi::{Layout, address_space, channel, ctrl, nvmap, tsg};

const RELEASE: &str = "r36.4.3";

/// Name, offset and size of each field of a C structure, and its own size.
#[derive(Default)]
struct CStruct {
    size: usize,
    fields: BTreeMap<String, (usize, usize)>,
}

fn structs(release: &str) -> BTreeMap<String, CStruct> {
    let mut structs = BTreeMap::<String, CStruct>::new();
    for [rel, _header, name, field, offset, size] in rows(include_str!("../data/structs.csv")) {
        if rel != release {
            continue;
        }
        let entry = structs.entry(name.to_owned()).or_default();
        let (offset, size) = (offset.parse().expect("offset"), size.parse().expect("size"));
        if field.is_empty() {
            entry.size = size;
        } else {
            entry.fields.insert(field.to_owned(), (offset, size));
        }
    }
    structs
}

fn nodes() -> [&'static [(&'static str, u32, Layout)]; 5] {
    [nvmap::REQUESTS, ctrl::REQUESTS, address_space::REQUESTS, tsg::REQUESTS, channel::REQUESTS]
}

fn assert_same(ours: &Layout, theirs: &BTreeMap<String, CStruct>) {
    let c = theirs.get(ours.name).unwrap_or_else(|| panic!("no struct {}", ours.name));
    assert_eq!(ours.size, c.size, "size of {}", ours.name);
    for (name, offset, size) in ours.fields {
        let name = name.trim_start_matches("r#");
        assert_eq!(Some(&(*offset, *size)), c.fields.get(name), "{}.{name}", ours.name);
    }
    // Our fields must cover every field of the header.
    for (name, (offset, size)) in &c.fields {
        let covered = (*offset..offset + size)
            .all(|byte| ours.fields.iter().any(|(_, at, len)| (*at..at + len).contains(&byte)));
        assert!(covered, "{}.{name} is not covered", ours.name);
    }
}

#[test]
fn requests_and_arguments_equal_the_headers() {
    let theirs: BTreeMap<_, _> = rows::<6>(include_str!("../data/ioctls.csv"))
        .into_iter()
        .filter(|[rel, ..]| *rel == RELEASE)
        .map(|[_, _, name, code, size, args]| (name, (code, size, args)))
        .collect();
    let structs = structs(RELEASE);
    let mut seen = 0;
    for (name, code, layout) in nodes().into_iter().flatten() {
        let (their_code, their_size, their_struct) = theirs[name];
        assert_eq!(format!("{code:#010x}"), their_code, "{name}");
        assert_eq!(layout.size.to_string(), their_size, "{name}");
        assert_eq!(layout.name, their_struct, "{name}");
        assert_same(layout, &structs);
        seen += 1;
    }
    assert_eq!(seen, 51);
    let commands = [channel::COMMANDS, tsg::COMMANDS].concat();
    assert_eq!(commands.len(), 7);
    for command in commands {
        let (code, size, _) = theirs[command.name()];
        assert_eq!((format!("{:#010x}", command.code()).as_str(), "0"), (code, size));
    }
    assert_eq!(format!("{:#010x}", nvmap::FREE), theirs["NVMAP_IOC_FREE"].0);
}

#[test]
fn nested_records_equal_the_headers() {
    let structs = structs(RELEASE);
    for layout in [
        ctrl::Characteristics::LAYOUT,
        ctrl::TimeSample::LAYOUT,
        ctrl::EngineInfo::LAYOUT,
        ctrl::VsmEntry::LAYOUT,
        ctrl::ClkRange::LAYOUT,
        ctrl::ClkVfPoint::LAYOUT,
        ctrl::ClkInfo::LAYOUT,
        address_space::VaRegion::LAYOUT,
        tsg::SmErrorState::LAYOUT,
        channel::Notification::LAYOUT,
    ] {
        assert_same(&layout, &structs);
    }
}

/// Exactly the differences that the module documentation names.
#[test]
fn r35_differs_as_documented() {
    let old: BTreeMap<_, _> = rows::<6>(include_str!("../data/ioctls.csv"))
        .into_iter()
        .filter(|[rel, ..]| *rel == "r35.6")
        .map(|[_, _, name, _, size, _]| (name, size))
        .collect();
    let ours: Vec<_> = nodes()
        .into_iter()
        .flatten()
        .filter_map(|(name, ..)| old.get_key_value(name))
        .map(|(name, size)| (*name, *size))
        .collect();
    assert_eq!(ours, [("NVGPU_GPU_IOCTL_OPEN_TSG", "8"), ("NVGPU_IOCTL_CHANNEL_SETUP_BIND", "80")]);
    assert_eq!(structs("r35.6")["nvgpu_gpu_characteristics"].size, 312);
}

#[test]
fn the_kernel_writes_handles_over_the_size() {
    let args = nvmap::Create64 { size64: 0x1_8000_0d3f };
    assert_eq!(args.handle(), 0x8000_0d3f);
    let args = nvmap::FromVa { size64: 0x8000_0d40, ..Default::default() };
    assert_eq!(args.handle(), 0x8000_0d40);
}

#[test]
fn allocation_flags_encode_caching_and_tag() {
    use nvmap::Caching;
    assert_eq!(nvmap::alloc_flags(Caching::WriteCombined, 0x0900), 0x0900_0001);
    assert_eq!(nvmap::alloc_flags(Caching::InnerCacheable, 0xffff), 0xffff_0002);
}

/// Flags and codes that are plain numbers.
#[test]
fn constants_equal_the_headers() {
    use channel::ErrorCode;
    use nvmap::Caching;
    let theirs: BTreeMap<_, _> = rows::<4>(include_str!("../data/constants.csv"))
        .into_iter()
        .map(|[_, _, name, value]| (name, value.parse::<u64>().unwrap()))
        .collect();
    let access = |how: &str| {
        theirs[&*format!("NVGPU_AS_MAP_BUFFER_ACCESS_{how}")]
            << theirs["NVGPU_AS_MAP_BUFFER_FLAGS_ACCESS_BITMASK_OFFSET"]
    };
    assert_eq!(u64::from(address_space::MAP_ACCESS_READ_ONLY), access("READ_ONLY"));
    assert_eq!(u64::from(address_space::MAP_ACCESS_READ_WRITE), access("READ_WRITE"));
    let plain: &[(&str, u64)] = &[
        ("NVGPU_GPU_FLAGS_SUPPORT_IO_COHERENCE", ctrl::FLAG_IO_COHERENCE),
        ("NVGPU_GPU_FLAGS_SUPPORT_TSG_SUBCONTEXTS", ctrl::FLAG_TSG_SUBCONTEXTS),
        ("NVGPU_GPU_FLAGS_SUPPORT_USERMODE_SUBMIT", ctrl::FLAG_USERMODE_SUBMIT),
        ("NVGPU_GPU_IOCTL_ALLOC_AS_FLAGS_UNIFIED_VA", ctrl::AS_UNIFIED_VA.into()),
        ("NVGPU_AS_ALLOC_SPACE_FLAGS_FIXED_OFFSET", address_space::SPACE_FIXED_OFFSET.into()),
        ("NVGPU_AS_ALLOC_SPACE_FLAGS_SPARSE", address_space::SPACE_SPARSE.into()),
        ("NVGPU_AS_MAP_BUFFER_FLAGS_FIXED_OFFSET", address_space::MAP_FIXED_OFFSET.into()),
        ("NVGPU_AS_MAP_BUFFER_FLAGS_CACHEABLE", address_space::MAP_CACHEABLE.into()),
        ("NVGPU_TSG_SUBCONTEXT_TYPE_SYNC", tsg::SUBCONTEXT_SYNC.into()),
        ("NVGPU_TSG_SUBCONTEXT_TYPE_ASYNC", tsg::SUBCONTEXT_ASYNC.into()),
        ("NVGPU_IOCTL_CHANNEL_EVENT_ID_BLOCKING_SYNC", tsg::EVENT_BLOCKING_SYNC.into()),
        ("NVGPU_IOCTL_CHANNEL_EVENT_ID_CMD_ENABLE", tsg::EVENT_ENABLE.into()),
        ("NVGPU_CHANNEL_SETUP_BIND_FLAGS_DETERMINISTIC", channel::BIND_DETERMINISTIC.into()),
        ("NVGPU_CHANNEL_SETUP_BIND_FLAGS_USERMODE_SUPPORT", channel::BIND_USERMODE.into()),
        ("NVGPU_GPU_CLK_DOMAIN_MCLK", ctrl::CLOCK_MEMORY.into()),
        ("NVGPU_GPU_CLK_DOMAIN_GPCCLK", ctrl::CLOCK_GPC.into()),
        ("NVGPU_GPU_CLK_TYPE_TARGET", ctrl::CLOCK_TARGET.into()),
        ("NVGPU_GPU_CLK_TYPE_ACTUAL", ctrl::CLOCK_ACTUAL.into()),
        ("NVGPU_GPU_CLK_TYPE_EFFECTIVE", ctrl::CLOCK_EFFECTIVE.into()),
        ("NVGPU_WAIT_TYPE_NOTIFIER", channel::WAIT_NOTIFIER.into()),
        ("NVGPU_WAIT_TYPE_SEMAPHORE", channel::WAIT_SEMAPHORE.into()),
        ("NVGPU_IOCTL_CHANNEL_DISABLE_WDT", channel::WDT_DISABLE.into()),
        ("NVGPU_GRAPHICS_PREEMPTION_MODE_WFI", channel::GRAPHICS_PREEMPTION_WFI.into()),
        ("NVGPU_COMPUTE_PREEMPTION_MODE_WFI", channel::COMPUTE_PREEMPTION_WFI.into()),
        ("NVGPU_COMPUTE_PREEMPTION_MODE_CTA", channel::COMPUTE_PREEMPTION_CTA.into()),
        ("NVGPU_COMPUTE_PREEMPTION_MODE_CILP", channel::COMPUTE_PREEMPTION_CILP.into()),
        ("NVMAP_HEAP_IOVMM", nvmap::HEAP_IOVMM.into()),
        ("NVMAP_HANDLE_UNCACHEABLE", Caching::Uncached as u64),
        ("NVMAP_HANDLE_WRITE_COMBINE", Caching::WriteCombined as u64),
        ("NVMAP_HANDLE_INNER_CACHEABLE", Caching::InnerCacheable as u64),
        ("NVMAP_HANDLE_CACHEABLE", Caching::Cacheable as u64),
        ("NVMAP_HANDLE_ZEROED_PAGES", nvmap::FLAG_ZEROED.into()),
        ("NVMAP_HANDLE_RO", nvmap::FLAG_READ_ONLY.into()),
    ];
    for (name, ours) in plain {
        assert_eq!(*ours, theirs[name], "{name}");
    }
    let codes = [
        ("FIFO_ERROR_IDLE_TIMEOUT", ErrorCode::IdleTimeout),
        ("GR_ERROR_SW_METHOD", ErrorCode::SoftwareMethod),
        ("GR_EXCEPTION", ErrorCode::GrException),
        ("GR_SEMAPHORE_TIMEOUT", ErrorCode::SemaphoreTimeout),
        ("GR_ILLEGAL_NOTIFY", ErrorCode::IllegalNotify),
        ("FIFO_ERROR_MMU_ERR_FLT", ErrorCode::MmuFault),
        ("PBDMA_ERROR", ErrorCode::Pbdma),
        ("FECS_ERR_UNIMP_FIRMWARE_METHOD", ErrorCode::FecsUnimplemented),
        ("RESETCHANNEL_VERIF_ERROR", ErrorCode::Reset),
        ("PBDMA_PUSHBUFFER_CRC_MISMATCH", ErrorCode::PbdmaCrc),
    ];
    for (name, ours) in codes {
        let code = theirs[&*format!("NVGPU_CHANNEL_{name}")] as u32;
        assert_eq!(ErrorCode::from_info32(code), ours, "{name}");
    }
    assert_eq!(ErrorCode::from_info32(99), ErrorCode::Other(99));
}

/// A device that does not know a request returns the same errno as a Tegra node for an unknown one.
#[test]
fn an_unknown_request_is_enotty() {
    let null = File::open("/dev/null").unwrap();
    let mut args = ctrl::GetGpuTime { gpu_timestamp: 7, reserved: 0 };
    // User-mode emulation passes known requests on, and has its own errno for others.
    let refused =
        if orind_testing::program::runner().is_empty() { Errno::ENOTTY } else { Errno::ENOSYS };
    // SAFETY: /dev/null has no requests and reads nothing.
    let result = unsafe { ctrl::GET_GPU_TIME.call(null.as_fd(), &mut args) };
    assert_eq!(result, Err(refused));
    assert_eq!(args.gpu_timestamp, 7);
    // SAFETY: as above.
    let result = unsafe { nvmap::free(null.as_fd(), 0x8000_0001) };
    assert_eq!(result, Err(refused));
}
