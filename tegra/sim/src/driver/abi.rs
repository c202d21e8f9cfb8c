//! Ioctl requests of every node, from the headers of r36.4: names, codes, and the members of their
//! arguments that the simulator accesses.

use super::dispatch::Request;

pub(super) mod nvmap {
    use crate::driver::dispatch::requests;

    requests! { b'N';
        CREATE = iowr 0, 8 { 0 => SIZE: u32, 4 => HANDLE: u32 };
        CREATE_64 = iowr 1, 8 { 0 => SIZE64: u64, 0 => HANDLE64: u32 };
        FROM_ID = iowr 2, 8;
        ALLOC = iow 3, 20 {
            0 => HANDLE: u32, 4 => HEAP_MASK: u32, 8 => FLAGS: u32, 12 => ALIGN: u32,
            16 => NUMA_NID: i32,
        };
        FREE = io 4;
        WRITE = iow 6, 56 {
            0 => ADDR: u64, 8 => HANDLE: u32, 16 => OFFSET: u64, 24 => ELEM_SIZE: u64,
            32 => HMEM_STRIDE: u64, 40 => USER_STRIDE: u64, 48 => COUNT: u64,
        };
        READ = iow 7, 56;
        CACHE = iow 12, 24 { 0 => ADDR: u64, 8 => HANDLE: u32, 12 => LEN: u32, 16 => OP: i32 };
        CACHE_64 = iow 12, 32 { 16 => LEN: u64, 24 => OP: i32 };
        GET_ID = iowr 13, 8;
        GET_FD = iowr 15, 8 { 0 => FD: i32, 4 => HANDLE: u32 };
        FROM_FD = iowr 16, 8 { 0 => FD: i32, 4 => HANDLE: u32 };
        CACHE_LIST = iow 17, 32 {
            0 => HANDLES: u64, 8 => OFFSETS: u64, 16 => SIZES: u64, 24 => NR: u32, 28 => OP: u32,
        };
        GET_IVM_HEAPS = ior 21, 4;
        FROM_VA = iowr 22, 24 {
            0 => VA: u64, 8 => SIZE: u32, 12 => FLAGS: u32, 16 => HANDLE: u32, 16 => SIZE64: u64,
        };
        GUP_TEST = iowr 23, 16 { 0 => VA: u64, 8 => HANDLE: u32, 12 => RESULT: u32 };
        SET_TAG_LABEL = iow 24, 16 { 4 => LEN: u32, 8 => ADDR: u64 };
        GET_AVAILABLE_HEAPS = ior 25, 8;
        GET_HEAP_SIZE = ior 26, 16 { 0 => HEAP: u32, 8 => SIZE: u64 };
        PARAMETERS = ior 27, 72 {
            0 => CONTIG: u8, 8 => HANDLE: u32, 12 => HEAP_NUMBER: u32, 16 => ACCESS_FLAGS: u32,
            24 => HEAP: u64, 32 => ALIGN: u64, 40 => COHERENCY: u64, 48 => SIZE: u64, 56 => OFFSET: u64,
            64 => SERIAL_ID: u64,
        };
        GET_SCIIPCID = ior 103, 32;
        HANDLE_FROM_SCIIPCID = ior 104, 32;
        QUERY_HEAP_PARAMS = ior 105, 48 {
            0 => HEAP_MASK: u32, 16 => TOTAL: u64, 24 => FREE: u64, 32 => LARGEST_FREE_BLOCK: u64,
            40 => GRANULE_SIZE: u32,
        };
        DUP_HANDLE = iowr 106, 12 { 0 => HANDLE: u32, 4 => ACCESS_FLAGS: u32, 8 => DUP_HANDLE: u32 };
        GET_FD_FOR_RANGE_FROM_LIST = ior 107, 40;
    }
}

pub(super) mod ctrl {
    use crate::driver::dispatch::requests;

    requests! { b'G';
        OPEN_CHANNEL = iowr 11, 4 { 0 => RUNLIST_ID: i32, 0 => CHANNEL_FD: i32 };
        ZCULL_GET_CTX_SIZE = ior 1, 4 { 0 => SIZE: u32 };
        ZCULL_GET_INFO = ior 2, 40;
        GET_CHARACTERISTICS = iowr 5, 16 {
            0 => GPU_CHARACTERISTICS_BUF_SIZE: u64, 8 => GPU_CHARACTERISTICS_BUF_ADDR: u64,
        };
        ALLOC_AS = iowr 8, 64 {
            0 => BIG_PAGE_SIZE: u32, 4 => AS_FD: i32, 16 => VA_RANGE_START: u64,
            24 => VA_RANGE_END: u64, 32 => VA_RANGE_SPLIT: u64,
        };
        OPEN_TSG = iowr 9, 24 {
            0 => TSG_FD: i32, 4 => FLAGS: u32, 8 => SOURCE_DEVICE_INSTANCE_ID: u64,
            16 => SHARE_TOKEN: u64,
        };
        GET_TPC_MASKS = iowr 10, 16 { 0 => MASK_BUF_SIZE: u32, 8 => MASK_BUF_ADDR: u64 };
        FLUSH_L2 = iowr 12, 5 { 0 => L2_FLUSH: u8 };
        SET_MMUDEBUG_MODE = iowr 14, 8;
        SET_SM_DEBUG_MODE = iowr 15, 16;
        WAIT_FOR_PAUSE = iowr 16, 8;
        GET_TPC_EXCEPTION_EN_STATUS = iowr 17, 8 { 0 => TPC_EXCEPTION_EN_SM_MASK: u64 };
        NUM_VSMS = iowr 18, 8 { 0 => NUM_VSMS: u32 };
        VSMS_MAPPING = iowr 19, 8 { 0 => VSMS_MAP_BUF_ADDR: u64 };
        RESUME_FROM_PAUSE = io 21;
        TRIGGER_SUSPEND = io 22;
        CLEAR_SM_ERRORS = io 23;
        GET_CPU_TIME_CORRELATION_INFO = iowr 24, 264 { 256 => COUNT: u32, 260 => SOURCE_ID: u32 };
        GET_GPU_TIME = iowr 25, 16 { 0 => GPU_TIMESTAMP: u64 };
        GET_ENGINE_INFO = iowr 26, 16 {
            0 => ENGINE_INFO_BUF_SIZE: u32, 8 => ENGINE_INFO_BUF_ADDR: u64,
        };
        CLK_GET_RANGE = iowr 28, 16 {
            0 => FLAGS: u32, 6 => NUM_ENTRIES: u16, 8 => CLK_RANGE_ENTRIES: u64,
        };
        CLK_GET_VF_POINTS = iowr 29, 24 {
            0 => FLAGS: u32, 4 => CLK_DOMAIN: u32, 8 => MAX_ENTRIES: u16, 10 => NUM_ENTRIES: u16,
            16 => CLK_VF_POINT_ENTRIES: u64,
        };
        CLK_GET_INFO = iowr 30, 16 {
            0 => FLAGS: u32, 4 => CLK_TYPE: u16, 6 => NUM_ENTRIES: u16, 8 => CLK_INFO_ENTRIES: u64,
        };
        CLK_SET_INFO = iowr 31, 24;
        GET_EVENT_FD = iowr 32, 8;
        GET_VOLTAGE = iowr 34, 16;
        GET_CURRENT = iowr 35, 16;
        GET_POWER = iowr 36, 16;
        GET_TEMPERATURE = iowr 37, 16;
        GET_FBP_L2_MASKS = iowr 38, 16 { 0 => MASK_BUF_SIZE: u32, 8 => MASK_BUF_ADDR: u64 };
        SET_THERM_ALERT_LIMIT = iowr 39, 16;
        SET_DETERMINISTIC_OPTS = iowr 40, 16 {
            0 => NUM_CHANNELS: u32, 4 => FLAGS: u32, 8 => CHANNELS: u64,
        };
        REGISTER_BUFFER = iowr 41, 24 {
            0 => DMABUF_FD: i32, 4 => COMPTAGS_ALLOC_CONTROL: u8, 8 => METADATA_ADDR: u64,
            16 => METADATA_SIZE: u32, 20 => FLAGS: u32,
        };
        GET_BUFFER_INFO = iowr 42, 24 {
            0 => IN_DMABUF_FD: i32, 4 => IN_METADATA_SIZE: u32, 8 => IN_METADATA_ADDR: u64,
            0 => OUT_FLAGS: u64, 8 => OUT_METADATA_SIZE: u32, 12 => OUT_RESERVED: u32,
            16 => OUT_SIZE: u64,
        };
        GET_GPC_LOCAL_TO_PHYSICAL_MAP = iowr 43, 16 {
            0 => MAP_BUF_SIZE: u32, 8 => PHYSICAL_GPC_BUF_ADDR: u64,
        };
        GET_GPC_LOCAL_TO_LOGICAL_MAP = iowr 44, 16;
    }
}

pub(super) mod address_space {
    use crate::driver::dispatch::requests;

    requests! { b'A';
        BIND_CHANNEL = iowr 1, 4 { 0 => CHANNEL_FD: i32 };
        FREE_SPACE = iowr 3, 32 { 0 => OFFSET: u64 };
        UNMAP_BUFFER = iowr 5, 8 { 0 => OFFSET: u64 };
        ALLOC_SPACE = iowr 6, 32 {
            0 => PAGES: u64, 8 => PAGE_SIZE: u32, 12 => FLAGS: u32, 16 => OFFSET: u64,
        };
        MAP_BUFFER_EX = iowr 7, 40 {
            0 => FLAGS: u32, 4 => COMPR_KIND: i16, 6 => INCOMPR_KIND: i16, 8 => DMABUF_FD: i32,
            16 => BUFFER_OFFSET: u64, 24 => MAPPING_SIZE: u64, 32 => OFFSET: u64,
        };
        GET_VA_REGIONS = iowr 8, 16 { 0 => BUF_ADDR: u64, 8 => BUF_SIZE: u32 };
        MAP_BUFFER_BATCH = iowr 11, 32 {
            0 => UNMAPS: u64, 8 => MAPS: u64, 16 => NUM_UNMAPS: u32, 20 => NUM_MAPS: u32,
        };
        GET_SYNC_RO_MAP = ior 12, 16 {
            0 => BASE_GPUVA: u64, 8 => SYNC_SIZE: u32, 12 => NUM_SYNCPOINTS: u32,
        };
        MAPPING_MODIFY = iowr 13, 32 {
            2 => INCOMPR_KIND: i16, 8 => BUFFER_OFFSET: u64, 16 => BUFFER_SIZE: u64,
            24 => MAP_ADDRESS: u64,
        };
        REMAP = iowr 14, 16 { 0 => OPS: u64, 8 => NUM_OPS: u32 };
    }
}

pub(super) mod tsg {
    use crate::driver::dispatch::requests;

    requests! { b'T';
        BIND_CHANNEL = iow 1, 4 { 0 => CHANNEL_FD: i32 };
        UNBIND_CHANNEL = iow 2, 4 { 0 => CHANNEL_FD: i32 };
        ENABLE = io 3;
        DISABLE = io 4;
        PREEMPT = io 5;
        EVENT_ID_CTRL = iowr 7, 16 { 0 => CMD: u32, 4 => EVENT_ID: u32, 8 => EVENT_FD: i32 };
        SET_RUNLIST_INTERLEAVE = iow 8, 8 { 0 => LEVEL: u32 };
        SET_TIMESLICE = iow 9, 8 { 0 => TIMESLICE_US: u32 };
        GET_TIMESLICE = ior 10, 8 { 0 => TIMESLICE_US: u32 };
        BIND_CHANNEL_EX = iowr 11, 24 { 0 => CHANNEL_FD: i32, 4 => SUBCONTEXT_ID: u32 };
        READ_SINGLE_SM_ERROR_STATE = iowr 12, 24 {
            0 => SM_ID: u32, 8 => RECORD_MEM: u64, 16 => RECORD_SIZE: u64,
        };
        SET_L2_MAX_WAYS_EVICT_LAST = iow 13, 8 { 0 => MAX_WAYS: u32 };
        GET_L2_MAX_WAYS_EVICT_LAST = ior 14, 8 { 0 => MAX_WAYS: u32 };
        SET_L2_SECTOR_PROMOTION = iow 15, 8 { 0 => PROMOTION_FLAG: u32 };
        BIND_SCHEDULING_DOMAIN = iow 16, 32;
        CREATE_SUBCONTEXT = iowr 18, 16 { 0 => TYPE: u32, 4 => AS_FD: i32, 8 => VEID: u32 };
        DELETE_SUBCONTEXT = iow 19, 8 { 0 => VEID: u32 };
        GET_SHARE_TOKEN = iowr 20, 24;
        REVOKE_SHARE_TOKEN = iow 21, 24;
    }
}

pub(super) mod channel {
    use crate::driver::dispatch::requests;

    requests! { b'H';
        SET_NVMAP_FD = iow 5, 4;
        SET_TIMEOUT = iow 11, 4 { 0 => TIMEOUT: u32 };
        GET_TIMEDOUT = ior 12, 4 { 0 => VALUE: u32 };
        SET_TIMEOUT_EX = iowr 18, 8 { 0 => TIMEOUT: u32 };
        WAIT = iowr 102, 24 {
            0 => TYPE: u32, 4 => TIMEOUT: i32, 8 => DMABUF_FD: i32, 12 => OFFSET: u32,
            16 => PAYLOAD: u32,
        };
        SUBMIT_GPFIFO = iowr 107, 24 { 0 => GPFIFO: u64, 8 => NUM_ENTRIES: u32, 12 => FLAGS: u32 };
        ALLOC_OBJ_CTX = iowr 108, 16 { 0 => CLASS_NUM: u32, 4 => FLAGS: u32 };
        ZCULL_BIND = iowr 110, 16;
        SET_ERROR_NOTIFIER = iowr 111, 24 { 0 => OFFSET: u64, 16 => MEM: i32 };
        OPEN = ior 112, 4 { 0 => CHANNEL_FD: i32 };
        ENABLE = io 113;
        DISABLE = io 114;
        PREEMPT = io 115;
        FORCE_RESET = io 116;
        WDT = iow 119, 8 { 0 => WDT_STATUS: u32 };
        SET_PREEMPTION_MODE = iow 122, 8 {
            0 => GRAPHICS_PREEMPT_MODE: u32, 4 => COMPUTE_PREEMPT_MODE: u32,
        };
        ALLOC_GPFIFO_EX = iow 123, 32 { 0 => NUM_ENTRIES: u32, 8 => FLAGS: u32 };
        SET_BOOSTED_CTX = iow 124, 8;
        GET_USER_SYNCPOINT = ior 126, 16 {
            0 => GPU_VA: u64, 8 => SYNCPOINT_ID: u32, 12 => SYNCPOINT_MAX: u32,
        };
        RESCHEDULE_RUNLIST = iow 127, 4;
        SETUP_BIND = iowr 128, 104 {
            0 => NUM_GPFIFO_ENTRIES: u32, 8 => FLAGS: u32, 12 => USERD_DMABUF_FD: i32,
            16 => GPFIFO_DMABUF_FD: i32, 20 => WORK_SUBMIT_TOKEN: u32, 24 => USERD_DMABUF_OFFSET: u64,
            32 => GPFIFO_DMABUF_OFFSET: u64, 40 => GPFIFO_GPU_VA: u64, 48 => USERD_GPU_VA: u64,
            56 => USERMODE_MMIO_GPU_VA: u64,
        };
    }
}

/// Iterates over every supported request, with its node.
pub fn requests() -> impl Iterator<Item = (&'static str, &'static Request)> {
    [
        ("nvmap", nvmap::REQUESTS),
        ("ctrl", ctrl::REQUESTS),
        ("as", address_space::REQUESTS),
        ("tsg", tsg::REQUESTS),
        ("channel", channel::REQUESTS),
    ]
    .into_iter()
    .flat_map(|(node, requests)| requests.iter().map(move |request| (node, request)))
}
