//! A TSG fd, from [`super::ctrl::OPEN_TSG`]: a group of channels scheduled and torn down together.
//! Header: `nvgpu.h`, magic `T`.

/// [`CreateSubcontext::type`]: the subcontext that may be used with graphics.
pub const SUBCONTEXT_SYNC: u32 = 0;
/// [`CreateSubcontext::type`]: compute only; ids start at 1.
pub const SUBCONTEXT_ASYNC: u32 = 1;
/// [`EventIdCtrl::cmd`]: enable, the only command.
pub const EVENT_ENABLE: u32 = 1;
/// [`EventIdCtrl::event_id`]: a non-stalling interrupt arrived.
pub const EVENT_BLOCKING_SYNC: u32 = 2;

layouts! {
    /// Arguments of [`BIND_CHANNEL_EX`].
    pub struct BindChannelEx = "nvgpu_tsg_bind_channel_ex_args", size 24 {
        0 => channel_fd: i32, "In: the channel's fd.";
        4 => subcontext_id: u32, "In: [`CreateSubcontext::veid`].";
        8 => reserved: [u8; 16], "Reserved.";
    }

    /// Arguments of [`CREATE_SUBCONTEXT`]. Not in r35.6.
    pub struct CreateSubcontext = "nvgpu_tsg_create_subcontext_args", size 16 {
        0 => r#type: u32, "In: [`SUBCONTEXT_SYNC`] or [`SUBCONTEXT_ASYNC`].";
        4 => as_fd: i32, "In: the address space's fd.";
        8 => veid: u32, "Out: id of the subcontext.";
        12 => reserved: u32, "Reserved.";
    }

    /// Arguments of [`DELETE_SUBCONTEXT`]. Not in r35.6.
    pub struct DeleteSubcontext = "nvgpu_tsg_delete_subcontext_args", size 8 {
        0 => veid: u32, "In: id of the subcontext.";
        4 => reserved: u32, "Reserved.";
    }

    /// Arguments of [`EVENT_ID_CTRL`].
    pub struct EventIdCtrl = "nvgpu_event_id_ctrl_args", size 16 {
        0 => cmd: u32, "In: [`EVENT_ENABLE`].";
        4 => event_id: u32, "In: [`EVENT_BLOCKING_SYNC`] or another of the six.";
        8 => event_fd: i32, "Out: an fd to poll; the event stays latched until a poll clears it.";
        12 => padding: u32, "Reserved.";
    }

    /// Arguments of [`SET_RUNLIST_INTERLEAVE`].
    pub struct RunlistInterleave = "nvgpu_runlist_interleave_args", size 8 {
        0 => level: u32, "In: 0 low, 1 medium, 2 high.";
        4 => reserved: u32, "Reserved.";
    }

    /// Arguments of [`SET_TIMESLICE`] and [`GET_TIMESLICE`].
    pub struct Timeslice = "nvgpu_timeslice_args", size 8 {
        0 => timeslice_us: u32, "Microseconds, 1000 to 50000; 1024 by default.";
        4 => reserved: u32, "Reserved.";
    }

    /// Arguments of [`READ_SINGLE_SM_ERROR_STATE`].
    pub struct ReadSingleSmErrorState = "nvgpu_tsg_read_single_sm_error_state_args", size 24 {
        0 => sm_id: u32, "In: number of the SM.";
        4 => reserved: u32, "Reserved.";
        8 => record_mem: u64, "In: CPU address of an [`SmErrorState`].";
        16 => record_size: u64, "In: its bytes.";
    }

    /// Exception record of an SM.
    pub struct SmErrorState = "nvgpu_tsg_sm_error_state_record", size 24 {
        0 => global_esr: u32, "SM-wide status: bit 2 several warps, bits 4 and 5 breakpoints.";
        4 => warp_esr: u32, "Warp status; the low 16 bits are the error code.";
        8 => warp_esr_pc: u64, "Address of the instruction.";
        16 => global_esr_report_mask: u32, "Mask of the reported SM-wide conditions.";
        20 => warp_esr_report_mask: u32, "Mask of the reported warp conditions.";
    }
}

requests! {
    magic b'T';
    /// Returns an fd for events of this TSG; a new one at every call. `EINVAL`: id 6 or above,
    /// unknown command.
    EVENT_ID_CTRL = readwrite 7 EventIdCtrl, "NVGPU_IOCTL_TSG_EVENT_ID_CTRL";
    /// Sets how often the TSG appears in the runlist. `EINVAL`: level above 2.
    SET_RUNLIST_INTERLEAVE = write 8 RunlistInterleave, "NVGPU_IOCTL_TSG_SET_RUNLIST_INTERLEAVE";
    /// Sets the time slice. `EINVAL`: outside 1000 to 50000.
    SET_TIMESLICE = write 9 Timeslice, "NVGPU_IOCTL_TSG_SET_TIMESLICE";
    /// Reads the time slice.
    GET_TIMESLICE = read 10 Timeslice, "NVGPU_IOCTL_TSG_GET_TIMESLICE";
    /// Adds a channel to the group, after its address space is bound. `EINVAL`: unknown subcontext,
    /// its address space differs, already bound, another runlist, above 128 channels. `EPERM`: a
    /// control client owns the scheduler.
    BIND_CHANNEL_EX = readwrite 11 BindChannelEx, "NVGPU_TSG_IOCTL_BIND_CHANNEL_EX";
    /// Reads an SM's error record through a nested buffer. `EINVAL`: no such SM.
    READ_SINGLE_SM_ERROR_STATE = readwrite 12 ReadSingleSmErrorState,
        "NVGPU_TSG_IOCTL_READ_SINGLE_SM_ERROR_STATE";
    /// Creates a subcontext for an address space. `EINVAL`: type above 1, bad fd. `ENOSPC`: no free
    /// id.
    CREATE_SUBCONTEXT = readwrite 18 CreateSubcontext, "NVGPU_TSG_IOCTL_CREATE_SUBCONTEXT";
    /// Deletes a subcontext. `EINVAL`: id 64 or above, channels still bound.
    DELETE_SUBCONTEXT = write 19 DeleteSubcontext, "NVGPU_TSG_IOCTL_DELETE_SUBCONTEXT";
}

commands! {
    magic b'T';
    /// Schedules the TSG's channels; SETUP_BIND does that already.
    ENABLE = 3, "NVGPU_IOCTL_TSG_ENABLE";
    /// Removes the TSG's channels from the hardware's schedule.
    DISABLE = 4, "NVGPU_IOCTL_TSG_DISABLE";
    /// Switches the TSG out.
    PREEMPT = 5, "NVGPU_IOCTL_TSG_PREEMPT";
}
