//! A channel fd, from [`super::ctrl::OPEN_CHANNEL`]: one hardware queue. Header: `nvgpu.h`, magic
//! `H`.
//!
//! The driver serialises calls on one channel. While a channel is being closed every call returns
//! `ETIMEDOUT`.

/// [`SetupBind::flags`]: no driver work at submit; the GPU stays powered while the channel is open.
/// Needs the watchdog off.
pub const BIND_DETERMINISTIC: u32 = 1 << 1;
/// [`SetupBind::flags`]: the process writes ring, GP_PUT and doorbell itself. Needs
/// [`BIND_DETERMINISTIC`].
pub const BIND_USERMODE: u32 = 1 << 3;

/// [`Wdt::wdt_status`]: watchdog off.
pub const WDT_DISABLE: u32 = 1;

/// [`PreemptionMode::compute_preempt_mode`]: a kernel runs to its end. The default.
pub const COMPUTE_PREEMPTION_WFI: u32 = 1 << 0;
/// [`PreemptionMode::compute_preempt_mode`]: between blocks.
pub const COMPUTE_PREEMPTION_CTA: u32 = 1 << 1;
/// [`PreemptionMode::compute_preempt_mode`]: in the middle of a kernel.
pub const COMPUTE_PREEMPTION_CILP: u32 = 1 << 2;
/// [`PreemptionMode::graphics_preempt_mode`]: between draws. The default.
pub const GRAPHICS_PREEMPTION_WFI: u32 = 1 << 0;

/// [`Notification::status`] once an error is recorded; written last.
pub const NOTIFICATION_SET: u16 = 0xffff;

layouts! {
    /// Arguments of [`SET_TIMEOUT`].
    pub struct SetTimeout = "nvgpu_set_timeout_args", size 4 {
        0 => timeout: u32, "In: milliseconds that a context switch may take; 3000 at first.";
    }

    /// Arguments of [`GET_TIMEDOUT`].
    pub struct GetTimedout = "nvgpu_get_param_args", size 4 {
        0 => value: u32, "Out: 1 when the channel is unserviceable, for ever.";
    }
}

/// [`Wait::type`]: wait for a notifier record.
pub const WAIT_NOTIFIER: u32 = 0;
/// [`Wait::type`]: wait until a word of memory equals a value.
pub const WAIT_SEMAPHORE: u32 = 1;

layouts! {
    /// Arguments of [`WAIT`].
    pub struct Wait = "nvgpu_wait_args", size 24 {
        0 => r#type: u32, "In: [`WAIT_NOTIFIER`] or [`WAIT_SEMAPHORE`].";
        4 => timeout: u32, "In: milliseconds, 0 for ever.";
        8 => condition: [u32; 4],
            "In: for a semaphore the dma-buf's fd, the offset of the word, its value, 0.";
    }

    /// Arguments of [`ALLOC_OBJ_CTX`].
    pub struct AllocObjCtx = "nvgpu_alloc_obj_ctx_args", size 16 {
        0 => class_num: u32, "In: [`crate::class::ClassId`].";
        4 => flags: u32, "In: preemption flags, 0.";
        8 => obj_id: u64, "Out: 0.";
    }

    /// Arguments of [`SET_ERROR_NOTIFIER`].
    pub struct SetErrorNotifier = "nvgpu_set_error_notifier", size 24 {
        0 => offset: u64, "In: offset of the [`Notification`] in the dma-buf.";
        8 => size: u64, "In: its bytes.";
        16 => mem: u32, "In: fd of the dma-buf.";
        20 => padding: u32, "Reserved.";
    }

    /// The record that a fault writes.
    pub struct Notification = "nvgpu_notification", size 16 {
        0 => time_stamp: [u32; 2], "Wall-clock nanoseconds, low word first.";
        8 => info32: u32, "Error code; see [`ErrorCode`].";
        12 => info16: u16, "Details of the error.";
        14 => status: u16, "[`NOTIFICATION_SET`] once the rest is valid.";
    }
}

/// Declares the error codes: name, number, message, documentation.
macro_rules! error_codes {
    ($( $Code:ident = $number:literal, $text:literal, $doc:literal; )+) => {
        /// Error in [`Notification::info32`].
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum ErrorCode {
            $( #[doc = $doc] $Code, )+
            /// Any other code.
            Other(u32),
        }

        impl std::fmt::Display for ErrorCode {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                match self {
                    $( Self::$Code => f.write_str(concat!($text, " (", $number, ")")), )+
                    Self::Other(code) => write!(f, "unknown error ({code})"),
                }
            }
        }

        impl ErrorCode {
            /// Reads [`Notification::info32`].
            #[must_use]
            pub const fn from_info32(info32: u32) -> Self {
                match info32 {
                    $( $number => Self::$Code, )+
                    other => Self::Other(other),
                }
            }

            /// The number that the driver writes.
            #[must_use]
            pub const fn number(self) -> u32 {
                match self {
                    $( Self::$Code => $number, )+
                    Self::Other(code) => code,
                }
            }
        }
    };
}

error_codes! {
    IdleTimeout = 8, "context switch timed out",
        "8: a context switch or preemption took too long, or the watchdog expired.";
    SoftwareMethod = 12, "software method failed", "12: a software method failed.";
    GrException = 13, "exception of the graphics engine",
        "13: an exception of the graphics engine: SM, scheduler, bad method data.";
    SemaphoreTimeout = 24, "semaphore acquire timed out",
        "24: a semaphore acquire timed out; with the watchdog only.";
    IllegalNotify = 25, "unknown method", "25: an unknown method.";
    MmuFault = 31, "address fault", "31: an address fault.";
    Pbdma = 32, "malformed stream, or an error of the copy engine",
        "32: a malformed push buffer, or any copy-engine error.";
    FecsUnimplemented = 37, "unimplemented firmware method", "37: an unimplemented firmware method.";
    Reset = 43, "reset on request", "43: the channel was reset on request.";
    PbdmaCrc = 80, "stream checksum differs", "80: a push-buffer checksum differs.";
}

layouts! {
    /// Arguments of [`WDT`].
    pub struct Wdt = "nvgpu_channel_wdt_args", size 8 {
        0 => wdt_status: u32, "In: [`WDT_DISABLE`].";
        4 => timeout_ms: u32, "In: milliseconds when a timeout is set.";
    }

    /// Arguments of [`SET_PREEMPTION_MODE`].
    pub struct PreemptionMode = "nvgpu_preemption_mode_args", size 8 {
        0 => graphics_preempt_mode: u32, "In: [`GRAPHICS_PREEMPTION_WFI`].";
        4 => compute_preempt_mode: u32, "In: one of the `COMPUTE_PREEMPTION_` modes.";
    }

    /// Arguments of [`GET_USER_SYNCPOINT`].
    pub struct GetUserSyncpoint = "nvgpu_get_user_syncpoint_args", size 16 {
        0 => gpu_va: u64, "Out: GPU address; a semaphore release to it increments the syncpoint.";
        8 => syncpoint_id: u32, "Out: its id.";
        12 => syncpoint_max: u32, "Out: its present maximum.";
    }

    /// Arguments of [`SETUP_BIND`]. 80 bytes in r35.6, without the three GPU addresses.
    pub struct SetupBind = "nvgpu_channel_setup_bind_args", size 104 {
        0 => num_gpfifo_entries: u32, "In: ring entries, a power of two, at least 2.";
        4 => num_inflight_jobs: u32, "In: 0.";
        8 => flags: u32, "In: [`BIND_DETERMINISTIC`] and [`BIND_USERMODE`].";
        12 => userd_dmabuf_fd: i32,
            "In: dma-buf of the USERD page, see [`crate::class::host::userd`].";
        16 => gpfifo_dmabuf_fd: i32,
            "In: dma-buf of the ring, at least a page and 8 bytes an entry.";
        20 => work_submit_token: u32, "Out: the token to store to the doorbell.";
        24 => userd_dmabuf_offset: u64, "In: 0.";
        32 => gpfifo_dmabuf_offset: u64, "In: 0.";
        40 => gpfifo_gpu_va: u64, "Out: 0 on an Orin.";
        48 => userd_gpu_va: u64, "Out: 0 on an Orin.";
        56 => usermode_mmio_gpu_va: u64, "Out: 0 on an Orin.";
        64 => reserved: [u32; 9], "Reserved.";
    }
}

requests! {
    magic b'H';
    /// Sets the context-switch limit.
    SET_TIMEOUT = write 11 SetTimeout, "NVGPU_IOCTL_CHANNEL_SET_TIMEOUT";
    /// Reports whether a fault has made the channel unserviceable.
    GET_TIMEDOUT = read 12 GetTimedout, "NVGPU_IOCTL_CHANNEL_GET_TIMEDOUT";
    /// Sleeps until memory equals a value: equality only, so unfit for a timeline that runs on.
    /// `EINVAL`: type, fd, an offset that is unaligned or beyond the buffer. `ETIMEDOUT`: the
    /// timeout expired, or the channel was unserviceable already. A fault during the wait ends it
    /// with success: call [`GET_TIMEDOUT`]. `EINTR`.
    WAIT = readwrite 102 Wait, "NVGPU_IOCTL_CHANNEL_WAIT";
    /// Allocates an engine object for the channel; the first compute object of a process takes
    /// about a second. `EINVAL`: no address space, no TSG, unknown class.
    ALLOC_OBJ_CTX = readwrite 108 AllocObjCtx, "NVGPU_IOCTL_CHANNEL_ALLOC_OBJ_CTX";
    /// Sets the memory in which faults are recorded; zeroes the record. `EINVAL`: bad fd (the
    /// previous notifier is dropped all the same), fd 0, beyond the buffer. `ENOMEM`.
    SET_ERROR_NOTIFIER = readwrite 111 SetErrorNotifier, "NVGPU_IOCTL_CHANNEL_SET_ERROR_NOTIFIER";
    /// Sets the watchdog. `EINVAL`: status 0 or 3, on for a deterministic channel.
    WDT = write 119 Wdt, "NVGPU_IOCTL_CHANNEL_WDT";
    /// Sets where the GPU may preempt. `EINVAL`: no engine object yet, unknown mode.
    SET_PREEMPTION_MODE = write 122 PreemptionMode, "NVGPU_IOCTL_CHANNEL_SET_PREEMPTION_MODE";
    /// Allocates a syncpoint for the channel.
    GET_USER_SYNCPOINT = read 126 GetUserSyncpoint, "NVGPU_IOCTL_CHANNEL_GET_USER_SYNCPOINT";
    /// Sets up the channel's ring and makes the channel runnable; once. Needs the address space,
    /// the TSG and the watchdog off. `EEXIST`: done already. `EINVAL`: entries, order, flags,
    /// buffers.
    SETUP_BIND = readwrite 128 SetupBind, "NVGPU_IOCTL_CHANNEL_SETUP_BIND";
}

commands! {
    magic b'H';
    /// Schedules the channel; SETUP_BIND does that already.
    ENABLE = 113, "NVGPU_IOCTL_CHANNEL_ENABLE";
    /// Removes the channel from the hardware's schedule.
    DISABLE = 114, "NVGPU_IOCTL_CHANNEL_DISABLE";
    /// Switches the channel's TSG out. `EINVAL`: no TSG.
    PREEMPT = 115, "NVGPU_IOCTL_CHANNEL_PREEMPT";
    /// Tears the channel's TSG down as a fault would, with [`ErrorCode::Reset`].
    FORCE_RESET = 116, "NVGPU_IOCTL_CHANNEL_FORCE_RESET";
}
