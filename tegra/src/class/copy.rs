//! The copy engine. Class `0xc7b5`, header `clc7b5.h`.
//!
//! Pitch-linear copies between virtual addresses only; block-linear layouts and physical addresses
//! are left out.

class! {
    for Copy;

    methods {
        NOP = 0x100, "Does nothing.";
        SET_SEMAPHORE_A = 0x240, "Semaphore address, bits 48:32.";
        SET_SEMAPHORE_B = 0x244, "Semaphore address, low word.";
        SET_SEMAPHORE_PAYLOAD = 0x248, "Payload, low word.";
        SET_SEMAPHORE_PAYLOAD_UPPER = 0x24c, "Payload, high word.";
        LAUNCH_DMA = 0x300, "Starts a transfer, a semaphore release, or both.";
        OFFSET_IN_UPPER = 0x400, "Source, bits 48:32.";
        OFFSET_IN_LOWER = 0x404, "Source, low word.";
        OFFSET_OUT_UPPER = 0x408, "Destination, bits 48:32.";
        OFFSET_OUT_LOWER = 0x40c, "Destination, low word.";
        PITCH_IN = 0x410, "Bytes from one source line to the next.";
        PITCH_OUT = 0x414, "Bytes from one destination line to the next.";
        LINE_LENGTH_IN = 0x418, "Bytes of a line; elements when remapping.";
        LINE_COUNT = 0x41c, "Lines of a multi-line transfer.";
        SET_REMAP_CONST_A = 0x700, "First fill constant.";
        SET_REMAP_CONST_B = 0x704, "Second fill constant.";
        SET_REMAP_COMPONENTS = 0x708, "Sources of each component of a written element.";
    }

    words {
        offset_upper of "OFFSET_IN_UPPER", "Data of the upper half of any address." {
            UPPER = 16:0, "Bits 48:32.";
        }

        launch_dma of "LAUNCH_DMA", "Data of [`LAUNCH_DMA`]." {
            DATA_TRANSFER_TYPE: super::Transfer = 1:0, "[`super::Transfer`].";
            FLUSH_ENABLE: bool = 2:2, "Make the writes visible to the system before the semaphore.";
            SEMAPHORE_TYPE: super::SemaphoreType = 4:3, "[`super::SemaphoreType`].";
            INTERRUPT_TYPE: super::Interrupt = 6:5, "[`super::Interrupt`].";
            SRC_MEMORY_LAYOUT: super::SourceLayout = 7:7, "[`super::SourceLayout`].";
            DST_MEMORY_LAYOUT: super::DestinationLayout = 8:8, "[`super::DestinationLayout`].";
            MULTI_LINE_ENABLE: bool = 9:9, "Use pitches and line count.";
            REMAP_ENABLE: bool = 10:10, "Build elements according to [`super::SET_REMAP_COMPONENTS`].";
            SEMAPHORE_PAYLOAD_SIZE: bool = 27:27, "64-bit semaphore payload.";
        }

        remap of "SET_REMAP_COMPONENTS", "Data of [`SET_REMAP_COMPONENTS`]." {
            DST_X: super::RemapSource = 2:0, "Source of the first component.";
            DST_Y: super::RemapSource = 6:4, "Source of the second component.";
            DST_Z: super::RemapSource = 10:8, "Source of the third component.";
            DST_W: super::RemapSource = 14:12, "Source of the fourth component.";
            COMPONENT_SIZE: super::ComponentSize = 17:16, "Bytes of a component, less one.";
            NUM_SRC_COMPONENTS = 21:20, "Components read, less one.";
            NUM_DST_COMPONENTS = 25:24, "Components written, less one.";
        }
    }

    values {
        Transfer of "LAUNCH_DMA_DATA_TRANSFER_TYPE",
            "Order of a transfer and the previous one." {
            None = 0, "NONE", "No transfer.";
            Pipelined = 1, "PIPELINED", "May overlap the previous transfer.";
            NonPipelined = 2, "NON_PIPELINED", "Waits for the previous transfer.";
        }

        SemaphoreType of "LAUNCH_DMA_SEMAPHORE_TYPE", "Semaphore release at the end." {
            None = 0, "NONE", "Nothing.";
            NoTimestamp = 1, "RELEASE_SEMAPHORE_NO_TIMESTAMP", "The payload alone.";
            WithTimestamp = 2, "RELEASE_SEMAPHORE_WITH_TIMESTAMP",
                "Payload and timestamp, 16 bytes.";
        }

        Interrupt of "LAUNCH_DMA_INTERRUPT_TYPE", "Interrupt at the end." {
            None = 0, "NONE", "None.";
            Blocking = 1, "BLOCKING", "Stops the engine until it is handled.";
            NonBlocking = 2, "NON_BLOCKING", "Wakes waiters.";
        }

        SourceLayout of "LAUNCH_DMA_SRC_MEMORY_LAYOUT", "Memory layout of the source." {
            Pitch = 1, "PITCH", "Lines of bytes.";
        }

        DestinationLayout of "LAUNCH_DMA_DST_MEMORY_LAYOUT", "Memory layout of the destination." {
            Pitch = 1, "PITCH", "Lines of bytes.";
        }

        RemapSource of "SET_REMAP_COMPONENTS_DST_X", "Source of a written component." {
            ConstA = 4, "CONST_A", "[`SET_REMAP_CONST_A`].";
            ConstB = 5, "CONST_B", "[`SET_REMAP_CONST_B`].";
        }

        ComponentSize of "SET_REMAP_COMPONENTS_COMPONENT_SIZE", "Bytes of a component." {
            One = 0, "ONE", "1 byte.";
            Two = 1, "TWO", "2 bytes.";
            Four = 3, "FOUR", "4 bytes.";
        }
    }
}
