//! The compute engine. Class `0xc7c0`, header `clc7c0.h`.
//!
//! Only the methods that launch kernels; graphics, textures and profiling are left out.

class! {
    for Compute;

    methods {
        WAIT_FOR_IDLE = 0x0110, "Waits until the engine is idle.";
        LINE_LENGTH_IN = 0x0180, "Bytes of an inline upload's line.";
        LINE_COUNT = 0x0184, "Lines of an inline upload.";
        OFFSET_OUT_UPPER = 0x0188, "Destination of an inline upload, bits 48:32.";
        OFFSET_OUT = 0x018c, "Destination of an inline upload, low word.";
        LAUNCH_DMA = 0x01b0, "Starts an inline upload, whose data follow.";
        LOAD_INLINE_DATA = 0x01b4, "One word of an inline upload.";
        INVALIDATE_SHADER_CACHES = 0x021c, "Waits for idle, then invalidates shader caches.";
        SET_SHADER_SHARED_MEMORY_WINDOW_A = 0x02a0,
            "Shared-memory window in the generic address space, bits 48:32.";
        SET_SHADER_SHARED_MEMORY_WINDOW_B = 0x02a4, "Shared-memory window, low word.";
        SEND_PCAS_A = 0x02b4, "Selects a QMD: its address shifted right by 8.";
        SEND_SIGNALING_PCAS2_B = 0x02c0, "Applies an action to the selected QMD.";
        SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A = 0x02e4,
            "Bytes of local memory for each TPC, bits 39:32.";
        SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_B = 0x02e8,
            "Bytes of local memory for each TPC, low word.";
        SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C = 0x02ec, "SMs that may use local memory.";
        SET_SHADER_LOCAL_MEMORY_A = 0x0790, "Backing store of local memory, bits 48:32.";
        SET_SHADER_LOCAL_MEMORY_B = 0x0794, "Backing store of local memory, low word.";
        SET_SHADER_LOCAL_MEMORY_WINDOW_A = 0x07b0,
            "Local-memory window in the generic address space, bits 48:32.";
        SET_SHADER_LOCAL_MEMORY_WINDOW_B = 0x07b4, "Local-memory window, low word.";
        INVALIDATE_SHADER_CACHES_NO_WFI = 0x1698, "Invalidates shader caches at once.";
    }

    words {
        launch_dma of "LAUNCH_DMA", "Data of [`LAUNCH_DMA`]." {
            DST_MEMORY_LAYOUT: super::DestinationLayout = 0:0, "[`super::DestinationLayout`].";
            COMPLETION_TYPE: super::Completion = 5:4,
                "Action at the end: [`super::Completion`].";
            SYSMEMBAR_DISABLE: bool = 6:6, "Leave out the system membar at the end.";
        }

        invalidate_shader_caches of "INVALIDATE_SHADER_CACHES",
            "Data of [`INVALIDATE_SHADER_CACHES`]." {
            INSTRUCTION: bool = 0:0, "Instructions.";
            DATA: bool = 4:4, "Global data in L1.";
            CONSTANT: bool = 12:12, "Constants.";
        }

        invalidate_shader_caches_no_wfi of "INVALIDATE_SHADER_CACHES_NO_WFI",
            "Data of [`INVALIDATE_SHADER_CACHES_NO_WFI`]." {
            INSTRUCTION: bool = 0:0, "Instructions.";
            GLOBAL_DATA: bool = 4:4, "Global data in L1.";
            CONSTANT: bool = 12:12, "Constants.";
        }

        shared_window of "SET_SHADER_SHARED_MEMORY_WINDOW_A",
            "Data of the upper half of the shared-memory window's address." {
            BASE_ADDRESS_UPPER = 16:0, "Bits 48:32.";
        }

        non_throttled_a of "SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A",
            "Data of [`SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A`]." {
            SIZE_UPPER = 7:0, "Bits 39:32.";
        }

        non_throttled_c of "SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C",
            "Data of [`SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C`]." {
            MAX_SM_COUNT = 8:0, "SMs, a limit.";
        }

        send_signaling_pcas2_b of "SEND_SIGNALING_PCAS2_B", "Data of [`SEND_SIGNALING_PCAS2_B`]." {
            PCAS_ACTION: super::PcasAction = 3:0, "[`super::PcasAction`].";
        }
    }

    values {
        DestinationLayout of "LAUNCH_DMA_DST_MEMORY_LAYOUT",
            "Memory layout of an inline upload's destination." {
            Pitch = 1, "PITCH", "Lines of bytes.";
        }

        Completion of "LAUNCH_DMA_COMPLETION_TYPE", "Action at the end of an inline upload." {
            FlushDisable = 0, "FLUSH_DISABLE", "Nothing.";
            FlushOnly = 1, "FLUSH_ONLY", "A flush.";
            ReleaseSemaphore = 2, "RELEASE_SEMAPHORE", "A semaphore release.";
        }

        PcasAction of "SEND_SIGNALING_PCAS2_B_PCAS_ACTION", "Actions on a QMD." {
            Nop = 0x0, "NOP", "Nothing.";
            Invalidate = 0x1, "INVALIDATE", "Invalidate the cached copy.";
            Schedule = 0x2, "SCHEDULE", "Run it.";
            InvalidateCopySchedule = 0x3, "INVALIDATE_COPY_SCHEDULE",
                "Invalidate the cached copy, copy, run it.";
            DecrementDependence = 0x7, "DECREMENT_DEPENDENCE", "Decrement the dependence counter.";
            Prefetch = 0x8, "PREFETCH", "Fetch it.";
            PrefetchSchedule = 0x9, "PREFETCH_SCHEDULE", "Fetch it and run it: the proven launch.";
        }
    }
}
