//! `/dev/nvgpu/igpu0/ctrl`: the GPU as a whole. Header: `nvgpu-ctrl.h`, magic `G`.
//!
//! Creates address spaces, TSGs and channels as new fds, and reports the GPU's characteristics. An
//! mmap of the same fd is the doorbell page, see [`crate::class::usermode`]. Any request powers the
//! GPU on; the first after it was gated takes about 100 ms.

layouts! {
    /// Arguments of [`GET_CHARACTERISTICS`].
    pub struct GetCharacteristics = "nvgpu_gpu_get_characteristics", size 16 {
        0 => gpu_characteristics_buf_size: u64,
            "In: bytes of the buffer. Out: bytes available.";
        8 => gpu_characteristics_buf_addr: u64,
            "In: CPU address of a [`Characteristics`]. A shorter buffer gets a truncated copy.";
    }

    /// Result of GET_CHARACTERISTICS. Comments quote values of an Orin AGX where they help.
    #[expect(non_snake_case, reason = "fields carry the header's names")]
    pub struct Characteristics = "nvgpu_gpu_characteristics", size 328 {
        0 => arch: u32, "Architecture, `0x170`.";
        4 => r#impl: u32, "Implementation, `0xb`.";
        8 => rev: u32, "Revision, `0xa1`.";
        12 => num_gpc: u32, "GPCs that are powered: 1 or 2 with the power mode.";
        16 => numa_domain_id: i32, "NUMA domain, -1.";
        24 => L2_cache_size: u64, "Bytes of L2, 4 MiB.";
        32 => on_board_video_memory_size: u64, "0: no dedicated memory.";
        40 => num_tpc_per_gpc: u32, "TPCs of each GPC, 4.";
        44 => bus_type: u32, "Bus, 32 for AXI.";
        48 => big_page_size: u32, "Big page size, 0: none.";
        52 => compression_page_size: u32, "Granule of compression.";
        56 => pde_coverage_bit_count: u32,
            "47 is reported; the allocator's granule is 21 bits. Not to be used.";
        60 => available_big_page_sizes: u32, "Big page sizes as a bit mask, 0.";
        64 => flags: u64, "Capabilities of the driver: the `FLAG_` constants.";
        72 => twod_class: u32, "2D class.";
        76 => threed_class: u32, "3D class.";
        80 => compute_class: u32, "Compute class, see [`crate::class::ClassId`].";
        84 => gpfifo_class: u32, "Channel class.";
        88 => inline_to_memory_class: u32, "Inline-to-memory class.";
        92 => dma_copy_class: u32, "Copy class.";
        96 => gpc_mask: u32, "Powered GPCs as a bit mask.";
        100 => sm_arch_sm_version: u32, "SM version, `0x807` for 8.7.";
        104 => sm_arch_spa_version: u32, "SPA version, `0x806`.";
        108 => sm_arch_warp_count: u32, "Warps of a TPC (2 SMs of 48), not of an SM.";
        112 => gpu_ioctl_nr_last: i16, "Last request number of the ctrl node.";
        114 => tsg_ioctl_nr_last: i16, "Last request number of a TSG.";
        116 => dbg_gpu_ioctl_nr_last: i16, "Last request number of the debugger node.";
        118 => ioctl_channel_nr_last: i16, "Last request number of a channel.";
        120 => as_ioctl_nr_last: i16, "Last request number of an address space.";
        122 => gpu_va_bit_count: u8, "Bits of a GPU address, 40.";
        123 => reserved: u8, "Reserved.";
        124 => max_fbps_count: u32, "Frame-buffer partitions at most.";
        128 => fbp_en_mask: u32, "Frame-buffer partitions that are on.";
        132 => emc_en_mask: u32, "Memory controllers that are on.";
        136 => max_ltc_per_fbp: u32, "L2 caches of a partition at most.";
        140 => max_lts_per_ltc: u32, "L2 slices of a cache at most.";
        144 => max_tex_per_tpc: u32, "Texture units of a TPC at most.";
        148 => max_gpc_count: u32, "GPCs of the whole chip.";
        152 => rop_l2_en_mask_DEPRECATED: [u32; 2], "Not filled any more.";
        160 => chipname: [u8; 8], "Chip name, NUL-padded: `ga10b`.";
        168 => gr_compbit_store_base_hw: u64, "Base of the compression store.";
        176 => gr_gobs_per_comptagline_per_slice: u32, "Compression geometry.";
        180 => num_ltc: u32, "L2 caches.";
        184 => lts_per_ltc: u32, "Slices of each L2 cache.";
        188 => cbc_cache_line_size: u32, "Compression geometry.";
        192 => cbc_comptags_per_line: u32, "Compression geometry.";
        196 => map_buffer_batch_limit: u32, "Maps of one batched call at most, 256.";
        200 => max_freq: u64, "Highest GPU clock, Hz.";
        208 => graphics_preemption_mode_flags: u32, "Graphics preemption modes, a bit mask.";
        212 => compute_preemption_mode_flags: u32, "Compute preemption modes, a bit mask.";
        216 => default_graphics_preempt_mode: u32, "Graphics preemption mode of a new channel.";
        220 => default_compute_preempt_mode: u32, "Compute preemption mode of a new channel.";
        224 => local_video_memory_size: u64, "0 on an Orin.";
        232 => pci_vendor_id: u16, "PCI identity, 0 on an Orin.";
        234 => pci_device_id: u16, "PCI identity.";
        236 => pci_subsystem_vendor_id: u16, "PCI identity.";
        238 => pci_subsystem_device_id: u16, "PCI identity.";
        240 => pci_class: u16, "PCI identity.";
        242 => pci_revision: u8, "PCI identity.";
        243 => vbios_oem_version: u8, "Firmware identity.";
        244 => vbios_version: u32, "Firmware identity.";
        248 => reg_ops_limit: u32, "Register operations of one debugger call at most.";
        252 => reserved1: u32, "Reserved.";
        256 => event_ioctl_nr_last: i16, "Last request number of an event fd.";
        258 => pad: u16, "Padding.";
        260 => max_css_buffer_size: u32, "Profiler buffer limit.";
        264 => ctxsw_ioctl_nr_last: i16, "Last request number of the context-switch trace node.";
        266 => prof_ioctl_nr_last: i16, "Last request number of a profiler.";
        268 => nvs_ioctl_nr_last: i16, "Last request number of the scheduler node.";
        270 => reserved2: [u8; 2], "Reserved.";
        272 => max_ctxsw_ring_buffer_size: u32, "Trace ring limit.";
        276 => reserved3: u32, "Reserved.";
        280 => per_device_identifier: u64, "Serial number of this chip.";
        288 => num_ppc_per_gpc: u32, "PPCs of each GPC.";
        292 => max_veid_count_per_tsg: u32, "Subcontexts of a TSG at most, 64.";
        296 => num_sub_partition_per_fbpa: u32, "0 on an Orin.";
        300 => gpu_instance_id: u32, "Instance of a partitioned GPU.";
        304 => gr_instance_id: u32, "Instance of a partitioned GPU.";
        308 => max_gpfifo_entries: u32, "GPFIFO entries of a channel at most.";
        312 => max_dbg_tsg_timeslice: u32, "Debugger limit.";
        316 => reserved5: u32, "Padding before the last field.";
        320 => device_instance_id: u64, "Instance number of the device.";
    }
}

/// [`Characteristics::flags`]: the GPU snoops the CPU's caches.
pub const FLAG_IO_COHERENCE: u64 = 1 << 20;
/// [`Characteristics::flags`]: TSGs have subcontexts.
pub const FLAG_TSG_SUBCONTEXTS: u64 = 1 << 22;
/// [`Characteristics::flags`]: channels may be driven through their own ring and doorbell.
pub const FLAG_USERMODE_SUBMIT: u64 = 1 << 30;

/// [`AllocAs::flags`]: one range for all page sizes, the mode in use.
pub const AS_UNIFIED_VA: u32 = 1 << 1;

layouts! {
    /// Arguments of [`ALLOC_AS`].
    pub struct AllocAs = "nvgpu_alloc_as_args", size 64 {
        0 => big_page_size: u32, "In: 0 on an Orin, which has no big pages.";
        4 => as_fd: i32, "Out: fd of the address space.";
        8 => flags: u32, "In: [`AS_UNIFIED_VA`].";
        12 => reserved: u32, "Reserved.";
        16 => va_range_start: u64, "In: first address for buffers, a multiple of 2 MiB, not 0.";
        24 => va_range_end: u64,
            "In: end of that range, at most `0xff_0000_0000`: the driver's 4 GiB above it stay below 2^40.";
        32 => va_range_split: u64, "In: 0 with [`AS_UNIFIED_VA`].";
        40 => padding: [u32; 6], "Reserved.";
    }

    /// Arguments of [`OPEN_TSG`]. All zero for an unshared TSG. 8 bytes in r35.6.
    pub struct OpenTsg = "nvgpu_gpu_open_tsg_args", size 24 {
        0 => tsg_fd: u32, "Out: fd of the TSG.";
        4 => flags: u32, "In: 1 to share an existing TSG.";
        8 => source_device_instance_id: u64, "In: of the TSG's owner.";
        16 => share_token: u64, "In: of the TSG's owner.";
    }

    /// Arguments of [`OPEN_CHANNEL`]: 4 bytes, not the 16 that the header's older unions suggest.
    pub struct OpenChannel = "nvgpu_gpu_open_channel_args", size 4 {
        0 => channel_fd: i32,
            "In: runlist id, -1 for the graphics runlist. Out: fd of the channel.";
    }

    /// Arguments of [`FLUSH_L2`]: one byte of flags, then padding, packed.
    pub struct FlushL2 = "nvgpu_gpu_l2_fb_args", size 5 {
        0 => l2_flush: u8,
            "Bit 0 flush L2, bit 1 invalidate it (only with a flush), bit 2 flush the frame buffer.";
        1 => reserved: [u8; 4], "Reserved.";
    }
}

/// [`FlushL2::l2_flush`]: write dirty lines back.
pub const L2_FLUSH: u8 = 1 << 0;
/// [`FlushL2::l2_flush`]: drop lines; needs [`L2_FLUSH`] too.
pub const L2_INVALIDATE: u8 = 1 << 1;
/// [`FlushL2::l2_flush`]: push writes out to memory.
pub const FB_FLUSH: u8 = 1 << 2;

layouts! {
    /// Arguments of [`NUM_VSMS`].
    pub struct NumVsms = "nvgpu_gpu_num_vsms", size 8 {
        0 => num_vsms: u32,
            "Out: SMs that are powered, 8 or 16 on an Orin AGX with the power mode.";
        4 => reserved: u32, "Reserved.";
    }

    /// Arguments of [`GET_GPU_TIME`].
    pub struct GetGpuTime = "nvgpu_gpu_get_gpu_time_args", size 16 {
        0 => gpu_timestamp: u64, "Out: nanoseconds of the timer that semaphore releases stamp.";
        8 => reserved: u64, "Reserved.";
    }

    /// One pair of [`GetCpuTimeCorrelationInfo`].
    pub struct TimeSample = "nvgpu_gpu_get_cpu_time_correlation_sample", size 16 {
        0 => cpu_timestamp: u64, "CPU time, in the unit of the requested source.";
        8 => gpu_timestamp: u64, "GPU time, nanoseconds.";
    }
}

/// [`GetCpuTimeCorrelationInfo::source_id`]: the CPU's counter.
pub const TIME_SOURCE_COUNTER: u32 = 1;
/// [`GetCpuTimeCorrelationInfo::source_id`]: the system's time, nanoseconds.
pub const TIME_SOURCE_SYSTEM: u32 = 2;

layouts! {
    /// Arguments of [`GET_CPU_TIME_CORRELATION_INFO`].
    pub struct GetCpuTimeCorrelationInfo = "nvgpu_gpu_get_cpu_time_correlation_info_args", size 264 {
        0 => samples: [TimeSample; 16], "Out: pairs read together.";
        256 => count: u32, "In: number of pairs.";
        260 => source_id: u32, "In: [`TIME_SOURCE_COUNTER`] or [`TIME_SOURCE_SYSTEM`].";
    }

    /// Arguments of [`GET_ENGINE_INFO`].
    pub struct GetEngineInfo = "nvgpu_gpu_get_engine_info_args", size 16 {
        0 => engine_info_buf_size: u32, "In: bytes of the buffer. Out: bytes available.";
        4 => reserved: u32, "Reserved.";
        8 => engine_info_buf_addr: u64, "In: CPU address of [`EngineInfo`] items.";
    }

    /// One engine as GET_ENGINE_INFO lists it.
    pub struct EngineInfo = "nvgpu_gpu_get_engine_info_item", size 16 {
        0 => engine_id: u32,
            "0 graphics and compute, 1 its copy engine, 2 asynchronous copy, 5 and up video.";
        4 => engine_instance: u32, "Instance among engines of its kind.";
        8 => runlist_id: i32, "The runlist to pass to OPEN_CHANNEL.";
        12 => reserved: u32, "Reserved.";
    }

    /// Arguments of [`GET_TPC_MASKS`].
    pub struct GetTpcMasks = "nvgpu_gpu_get_tpc_masks_args", size 16 {
        0 => mask_buf_size: u32, "In: bytes of the buffer. Out: bytes available.";
        4 => reserved: u32, "Reserved.";
        8 => mask_buf_addr: u64, "In: CPU address of one 32-bit mask for each GPC.";
    }

    /// Arguments of [`GET_FBP_L2_MASKS`].
    pub struct GetFbpL2Masks = "nvgpu_gpu_get_fbp_l2_masks_args", size 16 {
        0 => mask_buf_size: u32, "In: bytes of the buffer. Out: bytes available.";
        4 => reserved: u32, "Reserved.";
        8 => mask_buf_addr: u64,
            "In: CPU address of one 32-bit mask for each frame-buffer partition.";
    }

    /// Arguments of [`VSMS_MAPPING`].
    pub struct VsmsMapping = "nvgpu_gpu_vsms_mapping", size 8 {
        0 => vsms_map_buf_addr: u64,
            "In: CPU address of as many [`VsmEntry`] items as [`NUM_VSMS`] counts.";
    }

    /// Position of one SM. 2 bytes in r35.6.
    pub struct VsmEntry = "nvgpu_gpu_vsms_mapping_entry", size 6 {
        0 => gpc_logical_index: u8, "Logical GPC.";
        1 => gpc_virtual_index: u8, "Virtual GPC.";
        2 => tpc_local_logical_index: u8, "TPC within its GPC.";
        3 => tpc_global_logical_index: u8, "TPC within the GPU.";
        4 => sm_local_id: u8, "SM within its TPC.";
        5 => tpc_migratable_index: u8, "Migratable TPC.";
    }

    /// Arguments of [`GET_GPC_LOCAL_TO_PHYSICAL_MAP`].
    pub struct GetGpcPhysicalMap = "nvgpu_gpu_get_gpc_physical_map_args", size 16 {
        0 => map_buf_size: u32, "In: 4 bytes for each powered GPC, exactly.";
        4 => reserved: u32, "Reserved.";
        8 => physical_gpc_buf_addr: u64,
            "In: CPU address of one 32-bit index for each powered GPC.";
    }

    /// Arguments of [`GET_GPC_LOCAL_TO_LOGICAL_MAP`].
    pub struct GetGpcLogicalMap = "nvgpu_gpu_get_gpc_logical_map_args", size 16 {
        0 => map_buf_size: u32, "In: 4 bytes for each powered GPC, exactly.";
        4 => reserved: u32, "Reserved.";
        8 => logical_gpc_buf_addr: u64, "In: CPU address of one 32-bit index for each powered GPC.";
    }
}

/// A clock domain: memory.
pub const CLOCK_MEMORY: u32 = 0;
/// A clock domain: the GPU's core.
pub const CLOCK_GPC: u32 = 1;
/// [`ClkGetInfo::clk_type`]: the requested frequency.
pub const CLOCK_TARGET: u16 = 1;
/// [`ClkGetInfo::clk_type`]: the frequency that the PLL is set to.
pub const CLOCK_ACTUAL: u16 = 2;
/// [`ClkGetInfo::clk_type`]: the frequency that the hardware counts.
pub const CLOCK_EFFECTIVE: u16 = 3;

layouts! {
    /// Arguments of [`CLK_GET_RANGE`].
    pub struct ClkGetRange = "nvgpu_gpu_clk_range_args", size 16 {
        0 => flags: u32, "In: 0 for all domains.";
        4 => pad0: u16, "Padding.";
        6 => num_entries: u16, "In: items of the buffer, 0 to query their number. Out: items.";
        8 => clk_range_entries: u64, "In: CPU address of [`ClkRange`] items.";
    }

    /// The range of one clock domain.
    pub struct ClkRange = "nvgpu_gpu_clk_range", size 24 {
        0 => flags: u32, "Not used.";
        4 => clk_domain: u32, "[`CLOCK_MEMORY`] or [`CLOCK_GPC`].";
        8 => min_hz: u64, "Lowest, Hz.";
        16 => max_hz: u64, "Highest, Hz.";
    }

    /// Arguments of [`CLK_GET_VF_POINTS`].
    pub struct ClkGetVfPoints = "nvgpu_gpu_clk_vf_points_args", size 24 {
        0 => flags: u32, "In: 0.";
        4 => clk_domain: u32, "In: [`CLOCK_MEMORY`] or [`CLOCK_GPC`].";
        8 => max_entries: u16,
            "In: items of the buffer, 0 to query the maximum. Out then: that number.";
        10 => num_entries: u16, "Out: items written.";
        12 => reserved: u32, "Reserved.";
        16 => clk_vf_point_entries: u64, "In: CPU address of [`ClkVfPoint`] items.";
    }

    /// One frequency that a domain can have.
    pub struct ClkVfPoint = "nvgpu_gpu_clk_vf_point", size 8 {
        0 => freq_hz: u64, "Hz.";
    }

    /// Arguments of [`CLK_GET_INFO`].
    pub struct ClkGetInfo = "nvgpu_gpu_clk_get_info_args", size 16 {
        0 => flags: u32, "In: 0 for all domains.";
        4 => clk_type: u16, "In: one of the `CLOCK_` types.";
        6 => num_entries: u16, "In: items of the buffer, 0 to query their number. Out: items.";
        8 => clk_info_entries: u64, "In: CPU address of [`ClkInfo`] items.";
    }

    /// The frequency of one clock domain.
    pub struct ClkInfo = "nvgpu_gpu_clk_info", size 16 {
        0 => flags: u16, "Not used.";
        2 => clk_type: u16, "The requested type.";
        4 => clk_domain: u32, "[`CLOCK_MEMORY`] or [`CLOCK_GPC`].";
        8 => freq_hz: u64, "Hz.";
    }
}

requests! {
    magic b'G';
    /// Reports the GPU's characteristics through a nested buffer. `EINVAL`: the GPU cannot be
    /// powered on.
    GET_CHARACTERISTICS = readwrite 5 GetCharacteristics, "NVGPU_GPU_IOCTL_GET_CHARACTERISTICS";
    /// Creates an address space. `EINVAL`: a big page size, a start or end that is 0 or no multiple
    /// of 2 MiB, an empty range, a split. `ENOMEM`: range too large.
    ALLOC_AS = readwrite 8 AllocAs, "NVGPU_GPU_IOCTL_ALLOC_AS";
    /// Creates a TSG. `EINVAL`: share fields without the share flag. `ENOMEM`: none is free.
    OPEN_TSG = readwrite 9 OpenTsg, "NVGPU_GPU_IOCTL_OPEN_TSG";
    /// Reports the powered TPCs of each GPC, through a nested buffer.
    GET_TPC_MASKS = readwrite 10 GetTpcMasks, "NVGPU_GPU_IOCTL_GET_TPC_MASKS";
    /// Creates a channel. `EINVAL`: no such runlist; below -1 is a kernel assertion and must never
    /// be sent. `ENOMEM`: all 512 channels are in use. `EMFILE`.
    OPEN_CHANNEL = readwrite 11 OpenChannel, "NVGPU_GPU_IOCTL_OPEN_CHANNEL";
    /// Flushes or invalidates L2. `EINVAL`: no flush bit, or an invalidate without a flush.
    FLUSH_L2 = readwrite 12 FlushL2, "NVGPU_GPU_IOCTL_FLUSH_L2";
    /// Counts the SMs: the right source for their number.
    NUM_VSMS = readwrite 18 NumVsms, "NVGPU_GPU_IOCTL_NUM_VSMS";
    /// Reports the position of each SM, through a nested buffer.
    VSMS_MAPPING = readwrite 19 VsmsMapping, "NVGPU_GPU_IOCTL_VSMS_MAPPING";
    /// Reads pairs of CPU and GPU time. `EINVAL`: count above 16, unknown source. `ENOMEM`.
    GET_CPU_TIME_CORRELATION_INFO = readwrite 24 GetCpuTimeCorrelationInfo,
        "NVGPU_GPU_IOCTL_GET_CPU_TIME_CORRELATION_INFO";
    /// Reads the GPU timer. `EBUSY`: its high word changed in three tries.
    GET_GPU_TIME = readwrite 25 GetGpuTime, "NVGPU_GPU_IOCTL_GET_GPU_TIME";
    /// Lists engines and their runlists through a nested buffer.
    GET_ENGINE_INFO = readwrite 26 GetEngineInfo, "NVGPU_GPU_IOCTL_GET_ENGINE_INFO";
    /// Lists the range of each clock domain. `EINVAL`: flags, fewer items than domains, no clock
    /// control.
    CLK_GET_RANGE = readwrite 28 ClkGetRange, "NVGPU_GPU_IOCTL_CLK_GET_RANGE";
    /// Lists the frequencies of a clock domain. `EINVAL`: flags, domain, too few items.
    CLK_GET_VF_POINTS = readwrite 29 ClkGetVfPoints, "NVGPU_GPU_IOCTL_CLK_GET_VF_POINTS";
    /// Reads the frequency of each clock domain. `EINVAL`: flags, type, too few items.
    CLK_GET_INFO = readwrite 30 ClkGetInfo, "NVGPU_GPU_IOCTL_CLK_GET_INFO";
    /// Reports the enabled L2 slices of each frame-buffer partition, through a nested buffer.
    GET_FBP_L2_MASKS = readwrite 38 GetFbpL2Masks, "NVGPU_GPU_IOCTL_GET_FBP_L2_MASKS";
    /// Reports the physical index of each powered GPC. `EINVAL`: size of the buffer.
    GET_GPC_LOCAL_TO_PHYSICAL_MAP = readwrite 43 GetGpcPhysicalMap,
        "NVGPU_GPU_IOCTL_GET_GPC_LOCAL_TO_PHYSICAL_MAP";
    /// Reports the logical index of each powered GPC. `EINVAL`: size of the buffer.
    GET_GPC_LOCAL_TO_LOGICAL_MAP = readwrite 44 GetGpcLogicalMap,
        "NVGPU_GPU_IOCTL_GET_GPC_LOCAL_TO_LOGICAL_MAP";
}
