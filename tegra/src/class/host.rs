//! The host unit: channel methods, push-buffer headers, ring entries and the USERD page.
//!
//! Class `0xc76f`, header `clc76f.h`. Meanings are from the PBDMA and RAM manuals of GA100.

class! {
    for Host;

    methods {
        SET_OBJECT = 0x00,
            "Binds a class to the subchannel. Address 0 belongs to the engine, not to the host unit.";
        ILLEGAL = 0x04, "Raises an error on purpose.";
        NOP = 0x08, "Does nothing.";
        NON_STALL_INTERRUPT = 0x20,
            "Raises an interrupt that does not stop the channel: it wakes waiters.";
        MEM_OP_A = 0x28, "First of four words of a memory operation; all four are sent.";
        MEM_OP_B = 0x2c, "Second word of a memory operation.";
        MEM_OP_C = 0x30, "Third word of a memory operation.";
        MEM_OP_D = 0x34, "Fourth word of a memory operation: executes it.";
        SET_REFERENCE = 0x50, "Waits for idle, then stores a value in the USERD page.";
        SEM_ADDR_LO = 0x5c, "Semaphore address, bits 31:2.";
        SEM_ADDR_HI = 0x60, "Semaphore address, bits 39:32.";
        SEM_PAYLOAD_LO = 0x64, "Payload, low word.";
        SEM_PAYLOAD_HI = 0x68, "Payload, high word.";
        SEM_EXECUTE = 0x6c, "Executes a semaphore operation.";
        WFI = 0x78, "Waits for the engine that got the last engine method.";
        YIELD = 0x80, "Yields the rest of the time slice.";
    }

    words {
        set_object of "SET_OBJECT", "Data of [`SET_OBJECT`]." {
            NVCLASS = 15:0, "The class number.";
            ENGINE = 20:16, "The engine; 0.";
        }

        mem_op_c of "MEM_OP_C", "Data of [`MEM_OP_C`]." {
            MEMBAR_TYPE: super::MembarType = 2:0, "[`super::MembarType`], for a membar.";
        }

        mem_op_d of "MEM_OP_D", "Data of [`MEM_OP_D`]." {
            OPERATION: super::MemOp = 31:27, "[`super::MemOp`].";
        }

        sem_addr_lo of "SEM_ADDR_LO", "Data of [`SEM_ADDR_LO`]." {
            OFFSET = 31:2, "Address bits 31:2, in place.";
        }

        sem_addr_hi of "SEM_ADDR_HI", "Data of [`SEM_ADDR_HI`]." {
            OFFSET = 7:0, "Address bits 39:32.";
        }

        sem_execute of "SEM_EXECUTE", "Data of [`SEM_EXECUTE`]." {
            OPERATION: super::SemOperation = 2:0, "[`super::SemOperation`].";
            ACQUIRE_SWITCH_TSG: bool = 12:12, "After a failed acquire, let another TSG run.";
            RELEASE_WFI: bool = 20:20,
                "Before a release, wait for idle and make all writes visible to the system.";
            PAYLOAD_SIZE: bool = 24:24, "64 bits instead of 32.";
            RELEASE_TIMESTAMP: bool = 25:25,
                "Write the GPU's nanosecond timer behind the payload, before it.";
            REDUCTION = 30:27, "Which reduction.";
            REDUCTION_FORMAT = 31:31, "0 signed, 1 unsigned.";
        }

        wfi of "WFI", "Data of [`WFI`]." {
            SCOPE: super::WfiScope = 0:0, "[`super::WfiScope`].";
        }

        gp_entry0 of "GP_ENTRY0", "Low word of a ring entry." {
            FETCH: bool = 0:0, "Fetch only if the subdevice mask matches.";
            GET = 31:2, "Address bits 31:2, in place.";
        }

        gp_entry1 of "GP_ENTRY1", "High word of a ring entry." {
            GET_HI = 7:0, "Address bits 39:32.";
            LEVEL: bool = 9:9, "A subroutine, whose progress TOP_LEVEL_GET does not report.";
            LENGTH = 30:10, "Words; 0 makes the entry a control entry.";
            SYNC: bool = 31:31, "Wait until the previous segment has been processed.";
            OPCODE = 7:0, "Operation of a control entry.";
        }

        dma of "DMA", "A push-buffer header." {
            SEC_OP: super::SecOp = 31:29, "[`super::SecOp`].";
            TERT_OP = 17:16,
                "With [`super::SecOp::UseTertiary`]: one of four; 0 with a zero count is a NOP.";
            METHOD_COUNT = 28:16, "Data words that follow.";
            IMMD_DATA = 28:16, "The data of an immediate method.";
            METHOD_SUBCHANNEL = 15:13, "Subchannel.";
            METHOD_ADDRESS = 11:0, "Method address in words.";
        }
    }

    values {
        SecOp of "DMA_SEC_OP", "Operation of a push-buffer header." {
            UseTertiary = 0, "GRP0_USE_TERT", "Subdevice masks; all zero is a NOP word.";
            Incrementing = 1, "INC_METHOD", "Consecutive methods.";
            NonIncrementing = 3, "NON_INC_METHOD", "Every word to the same method.";
            Immediate = 4, "IMMD_DATA_METHOD", "One method, its data in the header.";
            IncrementOnce = 5, "ONE_INC", "The first word to one method, all others to the next.";
            EndSegment = 7, "END_PB_SEGMENT", "Ends the segment; the rest is ignored.";
        }

        SemOperation of "SEM_EXECUTE_OPERATION", "Semaphore operations." {
            Acquire = 0, "ACQUIRE", "Wait until memory equals the payload.";
            Release = 1, "RELEASE", "Write the payload.";
            AcquireStrictGeq = 2, "ACQ_STRICT_GEQ",
                "Wait until memory is at least the payload, unsigned.";
            AcquireCircularGeq = 3, "ACQ_CIRC_GEQ",
                "Wait until memory minus payload, signed, is not negative.";
            AcquireAnd = 4, "ACQ_AND", "Wait until memory and payload share a bit.";
            AcquireNor = 5, "ACQ_NOR", "Wait until a bit is clear in both.";
            Reduction = 6, "REDUCTION", "Combine memory and payload.";
        }

        MemOp of "MEM_OP_D_OPERATION", "Memory operations an ordinary channel may use." {
            Membar = 0x05, "MEMBAR", "Order earlier writes.";
            L2SysmemInvalidate = 0x0e, "L2_SYSMEM_INVALIDATE",
                "Drop clean L2 lines of system memory.";
            L2FlushDirty = 0x10, "L2_FLUSH_DIRTY", "Write dirty L2 lines back.";
        }

        MembarType of "MEM_OP_C_MEMBAR_TYPE", "Scope of a membar." {
            System = 0, "SYS_MEMBAR", "CPU and other devices.";
            Gpu = 1, "MEMBAR", "The GPU.";
        }

        WfiScope of "WFI_SCOPE", "Scope of a WFI." {
            CurrentVeid = 0, "CURRENT_VEID", "This subcontext.";
            All = 1, "ALL", "Every subcontext.";
        }
    }
}

/// The host unit executes methods below this address, except [`SET_OBJECT`]. Manual.
pub const METHODS_END: u32 = 0x100;

/// The USERD page, of which the host unit uses 512 bytes. Offsets in bytes; header.
pub mod userd {
    /// Index of the next entry to fetch, written back late: a lower bound.
    pub const GP_GET: usize = 0x88;
    /// Index after the last valid entry, written by the CPU.
    pub const GP_PUT: usize = 0x8c;
    /// Address of the next stream word to process, bits 31:0, written back late.
    pub const GET: usize = 0x44;
    /// Bits 39:32 of [`GET`].
    pub const GET_HI: usize = 0x60;
    /// Last value of SET_REFERENCE.
    pub const REFERENCE: usize = 0x48;
    /// Bytes that the host unit uses.
    pub const SIZE: usize = 0x200;
}
