//! The host unit: channel methods, push-buffer headers, ring entries and the USERD page.
//!
//! Class `0xc76f`, header `clc76f.h`. Meanings are from the PBDMA and RAM manuals of GA100.

class! {
    for Host;

    methods {
        /// Binds a class to the subchannel. Address 0 belongs to the engine, not to the host unit.
        SET_OBJECT = 0x00;
        /// Raises an error on purpose.
        ILLEGAL = 0x04;
        /// Does nothing.
        NOP = 0x08;
        /// Raises an interrupt that does not stop the channel: it wakes waiters.
        NON_STALL_INTERRUPT = 0x20;
        /// First of four words of a memory operation; all four are sent.
        MEM_OP_A = 0x28;
        /// Second word of a memory operation.
        MEM_OP_B = 0x2c;
        /// Third word of a memory operation.
        MEM_OP_C = 0x30;
        /// Fourth word of a memory operation: executes it.
        MEM_OP_D = 0x34;
        /// Waits for idle, then stores a value in the USERD page.
        SET_REFERENCE = 0x50;
        /// Semaphore address, bits 31:2.
        SEM_ADDR_LO = 0x5c;
        /// Semaphore address, bits 39:32.
        SEM_ADDR_HI = 0x60;
        /// Payload, low word.
        SEM_PAYLOAD_LO = 0x64;
        /// Payload, high word.
        SEM_PAYLOAD_HI = 0x68;
        /// Executes a semaphore operation.
        SEM_EXECUTE = 0x6c;
        /// Waits for the engine that got the last engine method.
        WFI = 0x78;
        /// Gives the rest of the time slice away.
        YIELD = 0x80;
    }

    words {
        /// Data of [`SET_OBJECT`].
        set_object of "SET_OBJECT" {
            /// The class number.
            NVCLASS = 15:0;
            /// The engine; 0.
            ENGINE = 20:16;
        }

        /// Data of [`MEM_OP_C`].
        mem_op_c of "MEM_OP_C" {
            /// [`super::MembarType`], for a membar.
            MEMBAR_TYPE: super::MembarType = 2:0;
        }

        /// Data of [`MEM_OP_D`].
        mem_op_d of "MEM_OP_D" {
            /// [`super::MemOp`].
            OPERATION: super::MemOp = 31:27;
        }

        /// Data of [`SEM_ADDR_LO`].
        sem_addr_lo of "SEM_ADDR_LO" {
            /// Address bits 31:2, in place.
            OFFSET = 31:2;
        }

        /// Data of [`SEM_ADDR_HI`].
        sem_addr_hi of "SEM_ADDR_HI" {
            /// Address bits 39:32.
            OFFSET = 7:0;
        }

        /// Data of [`SEM_EXECUTE`].
        sem_execute of "SEM_EXECUTE" {
            /// [`super::SemOperation`].
            OPERATION: super::SemOperation = 2:0;
            /// After a failed acquire, let another TSG run.
            ACQUIRE_SWITCH_TSG: bool = 12:12;
            /// Before a release, wait for idle and make all writes visible to the system.
            RELEASE_WFI: bool = 20:20;
            /// 64 bits instead of 32.
            PAYLOAD_SIZE: bool = 24:24;
            /// Write the GPU's nanosecond timer behind the payload, before it.
            RELEASE_TIMESTAMP: bool = 25:25;
            /// Which reduction.
            REDUCTION = 30:27;
            /// 0 signed, 1 unsigned.
            REDUCTION_FORMAT = 31:31;
        }

        /// Data of [`WFI`].
        wfi of "WFI" {
            /// [`super::WfiScope`].
            SCOPE: super::WfiScope = 0:0;
        }

        /// Low word of a ring entry.
        gp_entry0 of "GP_ENTRY0" {
            /// Fetch only if the subdevice mask matches.
            FETCH: bool = 0:0;
            /// Address bits 31:2, in place.
            GET = 31:2;
        }

        /// High word of a ring entry.
        gp_entry1 of "GP_ENTRY1" {
            /// Address bits 39:32.
            GET_HI = 7:0;
            /// A subroutine, whose progress TOP_LEVEL_GET does not report.
            LEVEL: bool = 9:9;
            /// Words; 0 makes the entry a control entry.
            LENGTH = 30:10;
            /// Wait until the segment before has been processed.
            SYNC: bool = 31:31;
            /// What a control entry does.
            OPCODE = 7:0;
        }

        /// A push-buffer header.
        dma of "DMA" {
            /// [`super::SecOp`].
            SEC_OP: super::SecOp = 31:29;
            /// With [`super::SecOp::UseTertiary`]: which of four; 0 with a zero count is a NOP.
            TERT_OP = 17:16;
            /// Data words that follow.
            METHOD_COUNT = 28:16;
            /// The data of an immediate method.
            IMMD_DATA = 28:16;
            /// Subchannel.
            METHOD_SUBCHANNEL = 15:13;
            /// Method address in words.
            METHOD_ADDRESS = 11:0;
        }
    }

    values {
        /// What a push-buffer header does.
        SecOp of "DMA_SEC_OP" {
            /// Subdevice masks; all zero is a NOP word.
            UseTertiary = 0, "GRP0_USE_TERT";
            /// Consecutive methods.
            Incrementing = 1, "INC_METHOD";
            /// One method, again and again.
            NonIncrementing = 3, "NON_INC_METHOD";
            /// One method, its data in the header.
            Immediate = 4, "IMMD_DATA_METHOD";
            /// One method, then the next one again and again.
            IncrementOnce = 5, "ONE_INC";
            /// The rest of the segment is not looked at.
            EndSegment = 7, "END_PB_SEGMENT";
        }

        /// Semaphore operations.
        SemOperation of "SEM_EXECUTE_OPERATION" {
            /// Wait until memory equals the payload.
            Acquire = 0, "ACQUIRE";
            /// Write the payload.
            Release = 1, "RELEASE";
            /// Wait until memory is at least the payload, unsigned.
            AcquireStrictGeq = 2, "ACQ_STRICT_GEQ";
            /// Wait until memory minus payload, signed, is not negative.
            AcquireCircularGeq = 3, "ACQ_CIRC_GEQ";
            /// Wait until memory and payload share a bit.
            AcquireAnd = 4, "ACQ_AND";
            /// Wait until a bit is clear in both.
            AcquireNor = 5, "ACQ_NOR";
            /// Combine memory and payload.
            Reduction = 6, "REDUCTION";
        }

        /// Memory operations an ordinary channel may use.
        MemOp of "MEM_OP_D_OPERATION" {
            /// Order earlier writes.
            Membar = 0x05, "MEMBAR";
            /// Drop clean L2 lines of system memory.
            L2SysmemInvalidate = 0x0e, "L2_SYSMEM_INVALIDATE";
            /// Write dirty L2 lines back.
            L2FlushDirty = 0x10, "L2_FLUSH_DIRTY";
        }

        /// How far a membar reaches.
        MembarType of "MEM_OP_C_MEMBAR_TYPE" {
            /// CPU and other devices.
            System = 0, "SYS_MEMBAR";
            /// The GPU.
            Gpu = 1, "MEMBAR";
        }

        /// What a WFI waits for.
        WfiScope of "WFI_SCOPE" {
            /// This subcontext.
            CurrentVeid = 0, "CURRENT_VEID";
            /// Every subcontext.
            All = 1, "ALL";
        }
    }
}

/// Method addresses below this one are executed by the host unit, [`SET_OBJECT`] excepted. Manual.
pub const METHODS_END: u32 = 0x100;

/// The USERD page, of which the host unit uses 512 bytes. Offsets in bytes; header.
pub mod userd {
    /// Index that the GPU will fetch next, written back late: "at least this far".
    pub const GP_GET: usize = 0x88;
    /// Index behind the last valid entry, written by the CPU.
    pub const GP_PUT: usize = 0x8c;
    /// The stream word that the GPU will process next, bits 31:0, written back late.
    pub const GET: usize = 0x44;
    /// Bits 39:32 of [`GET`].
    pub const GET_HI: usize = 0x60;
    /// Last value of SET_REFERENCE.
    pub const REFERENCE: usize = 0x48;
    /// Bytes that the host unit uses.
    pub const SIZE: usize = 0x200;
}
