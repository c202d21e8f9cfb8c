//! The copy engine. Class `0xc7b5`, header `clc7b5.h`.
//!
//! Pitch-linear copies between virtual addresses only; block-linear layouts and physical addresses
//! are left out.

class! {
    for Copy;

    methods {
        /// Does nothing.
        NOP = 0x100;
        /// Semaphore address, bits 48:32.
        SET_SEMAPHORE_A = 0x240;
        /// Semaphore address, low word.
        SET_SEMAPHORE_B = 0x244;
        /// Payload, low word.
        SET_SEMAPHORE_PAYLOAD = 0x248;
        /// Payload, high word.
        SET_SEMAPHORE_PAYLOAD_UPPER = 0x24c;
        /// Starts a transfer, a semaphore release, or both.
        LAUNCH_DMA = 0x300;
        /// Source, bits 48:32.
        OFFSET_IN_UPPER = 0x400;
        /// Source, low word.
        OFFSET_IN_LOWER = 0x404;
        /// Destination, bits 48:32.
        OFFSET_OUT_UPPER = 0x408;
        /// Destination, low word.
        OFFSET_OUT_LOWER = 0x40c;
        /// Bytes from one source line to the next.
        PITCH_IN = 0x410;
        /// Bytes from one destination line to the next.
        PITCH_OUT = 0x414;
        /// Bytes of a line; elements when remapping.
        LINE_LENGTH_IN = 0x418;
        /// Lines of a multi-line transfer.
        LINE_COUNT = 0x41c;
        /// First fill constant.
        SET_REMAP_CONST_A = 0x700;
        /// Second fill constant.
        SET_REMAP_CONST_B = 0x704;
        /// What each component of a written element is made of.
        SET_REMAP_COMPONENTS = 0x708;
    }

    words {
        /// Data of the upper half of any address.
        offset_upper of "OFFSET_IN_UPPER" {
            /// Bits 48:32.
            UPPER = 16:0;
        }

        /// Data of [`LAUNCH_DMA`].
        launch_dma of "LAUNCH_DMA" {
            /// [`super::Transfer`].
            DATA_TRANSFER_TYPE: super::Transfer = 1:0;
            /// Make the writes visible to the system before the semaphore.
            FLUSH_ENABLE: bool = 2:2;
            /// [`super::SemaphoreType`].
            SEMAPHORE_TYPE: super::SemaphoreType = 4:3;
            /// [`super::Interrupt`].
            INTERRUPT_TYPE: super::Interrupt = 6:5;
            /// [`super::SourceLayout`].
            SRC_MEMORY_LAYOUT: super::SourceLayout = 7:7;
            /// [`super::DestinationLayout`].
            DST_MEMORY_LAYOUT: super::DestinationLayout = 8:8;
            /// Use pitches and line count.
            MULTI_LINE_ENABLE: bool = 9:9;
            /// Build elements as [`super::SET_REMAP_COMPONENTS`] says.
            REMAP_ENABLE: bool = 10:10;
            /// 64-bit semaphore payload.
            SEMAPHORE_PAYLOAD_SIZE: bool = 27:27;
        }

        /// Data of [`SET_REMAP_COMPONENTS`].
        remap of "SET_REMAP_COMPONENTS" {
            /// What the first component is: [`super::RemapSource`].
            DST_X: super::RemapSource = 2:0;
            /// What the second component is.
            DST_Y: super::RemapSource = 6:4;
            /// What the third component is.
            DST_Z: super::RemapSource = 10:8;
            /// What the fourth component is.
            DST_W: super::RemapSource = 14:12;
            /// Bytes of a component, less one.
            COMPONENT_SIZE: super::ComponentSize = 17:16;
            /// Components read, less one.
            NUM_SRC_COMPONENTS = 21:20;
            /// Components written, less one.
            NUM_DST_COMPONENTS = 25:24;
        }
    }

    values {
        /// How a transfer is ordered after the one before.
        Transfer of "LAUNCH_DMA_DATA_TRANSFER_TYPE" {
            /// No transfer.
            None = 0, "NONE";
            /// May overlap the transfer before.
            Pipelined = 1, "PIPELINED";
            /// Waits for the transfer before.
            NonPipelined = 2, "NON_PIPELINED";
        }

        /// What is released at the end.
        SemaphoreType of "LAUNCH_DMA_SEMAPHORE_TYPE" {
            /// Nothing.
            None = 0, "NONE";
            /// The payload alone.
            NoTimestamp = 1, "RELEASE_SEMAPHORE_NO_TIMESTAMP";
            /// Payload and timestamp, 16 bytes.
            WithTimestamp = 2, "RELEASE_SEMAPHORE_WITH_TIMESTAMP";
        }

        /// Which interrupt is raised at the end.
        Interrupt of "LAUNCH_DMA_INTERRUPT_TYPE" {
            /// None.
            None = 0, "NONE";
            /// One that stops the engine until it is handled.
            Blocking = 1, "BLOCKING";
            /// One that wakes waiters.
            NonBlocking = 2, "NON_BLOCKING";
        }

        /// Memory layout of the source.
        SourceLayout of "LAUNCH_DMA_SRC_MEMORY_LAYOUT" {
            /// Lines of bytes.
            Pitch = 1, "PITCH";
        }

        /// Memory layout of the destination.
        DestinationLayout of "LAUNCH_DMA_DST_MEMORY_LAYOUT" {
            /// Lines of bytes.
            Pitch = 1, "PITCH";
        }

        /// What a written component is made of.
        RemapSource of "SET_REMAP_COMPONENTS_DST_X" {
            /// [`SET_REMAP_CONST_A`].
            ConstA = 4, "CONST_A";
            /// [`SET_REMAP_CONST_B`].
            ConstB = 5, "CONST_B";
        }

        /// Bytes of a component.
        ComponentSize of "SET_REMAP_COMPONENTS_COMPONENT_SIZE" {
            /// 1 byte.
            One = 0, "ONE";
            /// 2 bytes.
            Two = 1, "TWO";
            /// 4 bytes.
            Four = 3, "FOUR";
        }
    }
}
