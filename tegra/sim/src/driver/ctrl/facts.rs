//! Characteristics of the GPU that the control node reports.
//!
//! The values are those of an Orin AGX 64 GB in its 30 W mode, which powers one of two GPCs. Fields
//! that no public source names are 0, and the list of copy engines is a guess.

use crate::driver::abi::ctrl::{
    GET_CHARACTERISTICS, GET_CPU_TIME_CORRELATION_INFO, GET_ENGINE_INFO, GET_FBP_L2_MASKS,
    GET_GPC_LOCAL_TO_LOGICAL_MAP, GET_GPC_LOCAL_TO_PHYSICAL_MAP, GET_TPC_EXCEPTION_EN_STATUS,
    GET_TPC_MASKS, NUM_VSMS, VSMS_MAPPING, ZCULL_GET_CTX_SIZE, ZCULL_GET_INFO,
};
use crate::driver::device::Device;
use crate::driver::dispatch::{Args, BAD_NESTED, Done, Handled, UNKNOWN, copy_out, layout};
use crate::driver::errno::refusals;
use crate::profile::{Engine, Shape};
use crate::user;

refusals! { "ctrl";
    SAMPLES = "GET_CPU_TIME_CORRELATION_INFO", EINVAL, "count above 16, or an unknown source",
        "os/linux/ioctl_ctrl.c:nvgpu_gpu_get_cpu_time_correlation_info";
    GPC_MAP = "GET_GPC_LOCAL_TO_PHYSICAL_MAP, GET_GPC_LOCAL_TO_LOGICAL_MAP", EINVAL,
        "a buffer that has not 4 bytes for each GPC",
        "os/linux/ioctl_ctrl.c:gk20a_ctrl_get_gpc_local_to_physical_map";
}

/// Default number of powered GPCs and of TPCs in each.
const OWN: Shape = Shape { gpcs: 1, tpcs_of_gpc: 4 };
const FBPS: u32 = 2;
/// Maximum GPU clock in Hz.
pub(super) const MAX_HZ: u64 = 1_300_000_000;
const FLAGS: u64 = 0x01bf_5fff_7f5d_035d;

/// Size of `nvgpu_gpu_characteristics`.
const CHARACTERISTICS: usize = 328;

/// Non-zero 32-bit fields, by offset.
const WORDS: &[(usize, u32)] = &[
    (0, 0x170),                // arch
    (4, 0xb),                  // impl
    (8, 0xa1),                 // rev
    (12, OWN.gpcs),            // num_gpc
    (16, u32::MAX),            // numa_domain_id: -1
    (40, OWN.tpcs_of_gpc),     // num_tpc_per_gpc
    (44, 32),                  // bus_type: AXI
    (52, 0x1_0000),            // compression_page_size
    (56, 47),                  // pde_coverage_bit_count
    (72, 0x902d),              // twod_class
    (76, 0xc797),              // threed_class
    (80, 0xc7c0),              // compute_class
    (84, 0xc76f),              // gpfifo_class
    (88, 0xa140),              // inline_to_memory_class
    (92, 0xc7b5),              // dma_copy_class
    (96, (1 << OWN.gpcs) - 1), // gpc_mask
    (100, 0x807),              // sm_arch_sm_version
    (104, 0x806),              // sm_arch_spa_version
    (108, 96),                 // sm_arch_warp_count: warps of a TPC
    (124, FBPS),               // max_fbps_count
    (128, (1 << FBPS) - 1),    // fbp_en_mask
    (136, 1),                  // max_ltc_per_fbp
    (140, 4),                  // max_lts_per_ltc
    (148, Shape::MOST_GPCS),   // max_gpc_count
    (180, 2),                  // num_ltc
    (184, 4),                  // lts_per_ltc
    (196, 256),                // map_buffer_batch_limit
    (208, 3),                  // graphics_preemption_mode_flags
    (212, 7),                  // compute_preemption_mode_flags
    (216, 1),                  // default_graphics_preempt_mode
    (220, 1),                  // default_compute_preempt_mode
    (292, 64),                 // max_veid_count_per_tsg
    (308, 0x1000_0000),        // max_gpfifo_entries
];

/// 16-bit fields, by offset: the last request numbers of gpu, tsg, dbg, channel and as.
const HALVES: &[(usize, u16)] = &[(112, 44), (114, 21), (116, 33), (118, 128), (120, 14)];

fn record() -> [u8; CHARACTERISTICS] {
    let mut record = [0; CHARACTERISTICS];
    for (at, word) in WORDS {
        record[*at..at + 4].copy_from_slice(&word.to_le_bytes());
    }
    for (at, half) in HALVES {
        record[*at..at + 2].copy_from_slice(&half.to_le_bytes());
    }
    for (at, double) in [(24, 4 << 20), (64, FLAGS), (200, MAX_HZ)] {
        record[at..at + 8].copy_from_slice(&double.to_le_bytes());
    }
    record[122] = 40; // gpu_va_bit_count
    record[160..165].copy_from_slice(b"ga10b");
    record
}

/// A shorter buffer receives the start of the record; the reported size is the driver's.
pub(super) fn characteristics(device: &Device, args: &mut Args) -> Handled {
    use GET_CHARACTERISTICS::{GPU_CHARACTERISTICS_BUF_ADDR, GPU_CHARACTERISTICS_BUF_SIZE};
    let record = device.hardware.record.clone().unwrap_or_else(|| record().to_vec());
    let record = device.release.record(record);
    let (room, address) =
        (args.get(GPU_CHARACTERISTICS_BUF_SIZE), args.get(GPU_CHARACTERISTICS_BUF_ADDR));
    sized(room, address, &record, |size| args.set(GPU_CHARACTERISTICS_BUF_SIZE, size))
}

/// Copies as much of `data` as fits, and reports its full size through `tell`.
fn sized(room: u64, address: u64, data: &[u8], tell: impl FnOnce(u64)) -> Handled {
    let bytes = room.min(data.len() as u64) as usize;
    let done = copy_out(address, &data[..bytes])?;
    if done == Done::Ok {
        tell(data.len() as u64);
    }
    Ok(done)
}

fn words(words: &[u32]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Executes requests that only report facts.
pub(super) fn answer(device: &Device, request: u32, args: &mut Args) -> Handled {
    let shape = device.hardware.shape();
    match request {
        ZCULL_GET_CTX_SIZE => args.set(ZCULL_GET_CTX_SIZE::SIZE, 164_352),
        // Graphics is not simulated: all fields are 0.
        ZCULL_GET_INFO => {}
        GET_TPC_MASKS => {
            use GET_TPC_MASKS::{MASK_BUF_ADDR, MASK_BUF_SIZE};
            let mut masks = [0; Shape::MOST_GPCS as usize];
            masks[..shape.gpcs as usize].fill((1 << shape.tpcs_of_gpc) - 1);
            let (room, address) = (u64::from(args.get(MASK_BUF_SIZE)), args.get(MASK_BUF_ADDR));
            return sized(room, address, &words(&masks), |size| {
                args.set(MASK_BUF_SIZE, size as u32);
            });
        }
        GET_FBP_L2_MASKS => {
            use GET_FBP_L2_MASKS::{MASK_BUF_ADDR, MASK_BUF_SIZE};
            let (room, address) = (u64::from(args.get(MASK_BUF_SIZE)), args.get(MASK_BUF_ADDR));
            let masks = words(&[1; FBPS as usize]);
            return sized(room, address, &masks, |size| args.set(MASK_BUF_SIZE, size as u32));
        }
        GET_TPC_EXCEPTION_EN_STATUS => {
            args.set(GET_TPC_EXCEPTION_EN_STATUS::TPC_EXCEPTION_EN_SM_MASK, 0);
        }
        NUM_VSMS => args.set(NUM_VSMS::NUM_VSMS, shape.sms()),
        VSMS_MAPPING => return copy_out(args.get(VSMS_MAPPING::VSMS_MAP_BUF_ADDR), &sm_map(shape)),
        GET_ENGINE_INFO => return list_engines(device, args),
        GET_GPC_LOCAL_TO_PHYSICAL_MAP | GET_GPC_LOCAL_TO_LOGICAL_MAP => {
            // Both have the same members.
            use GET_GPC_LOCAL_TO_PHYSICAL_MAP::{MAP_BUF_SIZE, PHYSICAL_GPC_BUF_ADDR};
            if args.get(MAP_BUF_SIZE) != 4 * shape.gpcs {
                return Err(&GPC_MAP);
            }
            let map: Vec<u32> = (0..shape.gpcs).collect();
            user::write(args.get(PHYSICAL_GPC_BUF_ADDR), &words(&map)).map_err(|_| &BAD_NESTED)?;
        }
        _ => return Err(&UNKNOWN),
    }
    Ok(Done::Ok)
}

/// Six bytes for each SM: logical and virtual GPC, TPC in the GPC and overall, SM in the TPC, and
/// the TPC again.
fn sm_map(shape: Shape) -> Vec<u8> {
    (0..shape.sms() as u8)
        .flat_map(|sm| {
            let (tpc, local) = (sm / Shape::SMS_OF_TPC as u8, sm % Shape::SMS_OF_TPC as u8);
            let (gpc, in_gpc) = (tpc / shape.tpcs_of_gpc as u8, tpc % shape.tpcs_of_gpc as u8);
            [gpc, gpc, in_gpc, tpc, local, in_gpc]
        })
        .collect()
}

/// Invented engines: kind, instance, runlist.
const OWN_ENGINES: [Engine; 5] =
    [[GRAPHICS, 0, 0], [GRAPHICS_COPY, 0, 0], [GRAPHICS_COPY, 1, 0], [COPY, 2, 1], [COPY, 3, 2]];
const GRAPHICS: u32 = 0;
const GRAPHICS_COPY: u32 = 1;
const COPY: u32 = 2;

fn engines(device: &Device) -> &[Engine] {
    device.hardware.engines.as_deref().unwrap_or(&OWN_ENGINES)
}

pub(super) fn runlists(device: &Device) -> impl Iterator<Item = u32> {
    engines(device).iter().map(|[_, _, runlist]| *runlist)
}

fn list_engines(device: &Device, args: &mut Args) -> Handled {
    use GET_ENGINE_INFO::{ENGINE_INFO_BUF_ADDR, ENGINE_INFO_BUF_SIZE};
    const ITEM: usize = 16;
    let engines = engines(device);
    let room = args.get(ENGINE_INFO_BUF_SIZE) as usize / ITEM;
    let listed: Vec<u8> = engines
        .iter()
        .take(room)
        .flat_map(|[id, instance, runlist]| words(&[*id, *instance, *runlist, 0]))
        .collect();
    let done = copy_out(args.get(ENGINE_INFO_BUF_ADDR), &listed)?;
    if done == Done::Ok {
        args.set(ENGINE_INFO_BUF_SIZE, (engines.len() * ITEM) as u32);
    }
    Ok(done)
}

layout! { SAMPLE, 16 { 0 => CPU_TIMESTAMP: u64, 8 => GPU_TIMESTAMP: u64 } }

/// Reports pairs of CPU and GPU time. Both CPU clocks follow the GPU's, the only clock of the
/// simulator.
pub(super) fn time_samples(device: &Device, args: &mut Args) -> Handled {
    const MOST: u32 = 16;
    const TSC: u32 = 1;
    const OS_TIME: u32 = 2;
    let (count, source) = (
        args.get(GET_CPU_TIME_CORRELATION_INFO::COUNT),
        args.get(GET_CPU_TIME_CORRELATION_INFO::SOURCE_ID),
    );
    if count > MOST || !matches!(source, TSC | OS_TIME) {
        return Err(&SAMPLES);
    }
    for i in 0..count as usize {
        let gpu = device.gpu.time_ns();
        // The counter runs at 31.25 MHz, like the timer: one step every 32 ns.
        let cpu = if source == TSC { gpu / 32 } else { gpu };
        args.set_element(i, SAMPLE::BYTES, SAMPLE::CPU_TIMESTAMP, cpu);
        args.set_element(i, SAMPLE::BYTES, SAMPLE::GPU_TIMESTAMP, gpu);
    }
    Ok(Done::Ok)
}
