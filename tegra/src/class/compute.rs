//! The compute engine. Class `0xc7c0`, header `clc7c0.h`.
//!
//! What launching kernels needs; graphics, textures and profiling are left out.

class! {
    for Compute;

    methods {
        /// Waits until the engine is idle.
        WAIT_FOR_IDLE = 0x0110;
        /// Bytes of an inline upload's line.
        LINE_LENGTH_IN = 0x0180;
        /// Lines of an inline upload.
        LINE_COUNT = 0x0184;
        /// Destination of an inline upload, bits 48:32.
        OFFSET_OUT_UPPER = 0x0188;
        /// Destination of an inline upload, low word.
        OFFSET_OUT = 0x018c;
        /// Starts an inline upload, whose data follow.
        LAUNCH_DMA = 0x01b0;
        /// Takes one word of an inline upload.
        LOAD_INLINE_DATA = 0x01b4;
        /// Waits for idle, then invalidates shader caches.
        INVALIDATE_SHADER_CACHES = 0x021c;
        /// Where shared memory appears in the generic address space, bits 48:32.
        SET_SHADER_SHARED_MEMORY_WINDOW_A = 0x02a0;
        /// Where shared memory appears, low word.
        SET_SHADER_SHARED_MEMORY_WINDOW_B = 0x02a4;
        /// Names a QMD: its address shifted right by 8.
        SEND_PCAS_A = 0x02b4;
        /// Does something with the named QMD.
        SEND_SIGNALING_PCAS2_B = 0x02c0;
        /// Bytes of local memory for each TPC, bits 39:32.
        SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A = 0x02e4;
        /// Bytes of local memory for each TPC, low word.
        SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_B = 0x02e8;
        /// SMs that may use local memory.
        SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C = 0x02ec;
        /// Backing store of local memory, bits 48:32.
        SET_SHADER_LOCAL_MEMORY_A = 0x0790;
        /// Backing store of local memory, low word.
        SET_SHADER_LOCAL_MEMORY_B = 0x0794;
        /// Where local memory appears in the generic address space, bits 48:32.
        SET_SHADER_LOCAL_MEMORY_WINDOW_A = 0x07b0;
        /// Where local memory appears, low word.
        SET_SHADER_LOCAL_MEMORY_WINDOW_B = 0x07b4;
        /// Invalidates shader caches at once.
        INVALIDATE_SHADER_CACHES_NO_WFI = 0x1698;
    }

    words {
        /// Data of [`LAUNCH_DMA`].
        launch_dma of "LAUNCH_DMA" {
            /// [`super::DestinationLayout`].
            DST_MEMORY_LAYOUT: super::DestinationLayout = 0:0;
            /// What happens at the end: [`super::Completion`].
            COMPLETION_TYPE: super::Completion = 5:4;
            /// Leave out the system membar at the end.
            SYSMEMBAR_DISABLE: bool = 6:6;
        }

        /// Data of [`INVALIDATE_SHADER_CACHES`].
        invalidate_shader_caches of "INVALIDATE_SHADER_CACHES" {
            /// Instructions.
            INSTRUCTION: bool = 0:0;
            /// Global data in L1.
            DATA: bool = 4:4;
            /// Constants.
            CONSTANT: bool = 12:12;
        }

        /// Data of [`INVALIDATE_SHADER_CACHES_NO_WFI`].
        invalidate_shader_caches_no_wfi of "INVALIDATE_SHADER_CACHES_NO_WFI" {
            /// Instructions.
            INSTRUCTION: bool = 0:0;
            /// Global data in L1.
            GLOBAL_DATA: bool = 4:4;
            /// Constants.
            CONSTANT: bool = 12:12;
        }

        /// Data of the upper half of the shared-memory window's address.
        shared_window of "SET_SHADER_SHARED_MEMORY_WINDOW_A" {
            /// Bits 48:32.
            BASE_ADDRESS_UPPER = 16:0;
        }

        /// Data of [`SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A`].
        non_throttled_a of "SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_A" {
            /// Bits 39:32.
            SIZE_UPPER = 7:0;
        }

        /// Data of [`SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C`].
        non_throttled_c of "SET_SHADER_LOCAL_MEMORY_NON_THROTTLED_C" {
            /// SMs, a limit.
            MAX_SM_COUNT = 8:0;
        }

        /// Data of [`SEND_SIGNALING_PCAS2_B`].
        send_signaling_pcas2_b of "SEND_SIGNALING_PCAS2_B" {
            /// [`super::PcasAction`].
            PCAS_ACTION: super::PcasAction = 3:0;
        }
    }

    values {
        /// Memory layout of an inline upload's destination.
        DestinationLayout of "LAUNCH_DMA_DST_MEMORY_LAYOUT" {
            /// Lines of bytes.
            Pitch = 1, "PITCH";
        }

        /// What an inline upload does at its end.
        Completion of "LAUNCH_DMA_COMPLETION_TYPE" {
            /// Nothing.
            FlushDisable = 0, "FLUSH_DISABLE";
            /// A flush.
            FlushOnly = 1, "FLUSH_ONLY";
            /// A semaphore release.
            ReleaseSemaphore = 2, "RELEASE_SEMAPHORE";
        }

        /// What is done with a QMD.
        PcasAction of "SEND_SIGNALING_PCAS2_B_PCAS_ACTION" {
            /// Nothing.
            Nop = 0x0, "NOP";
            /// Forget a cached copy.
            Invalidate = 0x1, "INVALIDATE";
            /// Run it.
            Schedule = 0x2, "SCHEDULE";
            /// Forget a cached copy, copy, run it.
            InvalidateCopySchedule = 0x3, "INVALIDATE_COPY_SCHEDULE";
            /// Count one dependency down.
            DecrementDependence = 0x7, "DECREMENT_DEPENDENCE";
            /// Fetch it.
            Prefetch = 0x8, "PREFETCH";
            /// Fetch it and run it: the proven launch.
            PrefetchSchedule = 0x9, "PREFETCH_SCHEDULE";
        }
    }
}
