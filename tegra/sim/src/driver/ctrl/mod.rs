//! `/dev/nvgpu/igpu0/ctrl`: GPU-wide requests, and creation of address spaces, TSGs and channels.
//! Magic `G`. An mmap of the fd maps the doorbell page.

pub(super) mod buffer;
pub(super) mod clocks;
pub(super) mod facts;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::abi::ctrl::*;
use super::address_space::{AddressSpace, BadRange, Range};
use super::channel::Channel;
use super::device::{CHANNELS, Device};
use super::dispatch::{Args, BAD_NESTED, Done, Handled, Rules};
use super::errno::Answer;
use super::errno::{Refused, refusals};
use super::release::SHORT_RANGE;
use super::tsg::Tsg;
use crate::user;

refusals! { "ctrl";
    BIG_PAGES = "ALLOC_AS", EINVAL, "a big_page_size other than 0: there are no big pages",
        "common/mm/as.c:gk20a_vm_alloc_share";
    RANGE = "ALLOC_AS", EINVAL, "start or end 0 or no multiple of 2 MiB, start not below end",
        "common/mm/as.c:gk20a_vm_alloc_share";
    SPLIT = "ALLOC_AS", EINVAL, "a split", "common/mm/as.c:gk20a_vm_alloc_share";
    TOO_LARGE = "ALLOC_AS", ENOMEM, "end and the driver's 4 GiB above it exceed 2^49",
        "common/mm/vm.c:nvgpu_vm_init_attributes";
    NO_FD = "ALLOC_AS, OPEN_TSG, OPEN_CHANNEL", EMFILE, "the fd table is full",
        "os/linux/ioctl_ctrl.c, os/linux/ioctl_channel.c (get_unused_fd_flags)";
    SHARE = "OPEN_TSG", EINVAL,
        "an instance id or token without the share flag; with it, one that is 0 or unknown",
        "os/linux/ioctl_ctrl.c:gk20a_ctrl_open_tsg";
    NO_TSG = "OPEN_TSG", ENOMEM, "all TSGs are in use", "os/linux/ioctl_tsg.c:nvgpu_ioctl_tsg_open";
    RUNLIST = "OPEN_CHANNEL", EINVAL, "no such runlist (below -1 the driver crashes)",
        "os/linux/ioctl_channel.c:__gk20a_channel_open";
    NO_CHANNEL = "OPEN_CHANNEL", ENOMEM, "all 512 channels are in use",
        "os/linux/ioctl_channel.c:__gk20a_channel_open";
    FLUSH = "FLUSH_L2", EINVAL, "neither flush bit, or an invalidate without an L2 flush",
        "os/linux/ioctl_ctrl.c:nvgpu_gpu_ioctl_l2_fb_ops";
    RAILGATING = "SET_DETERMINISTIC_OPTS", EINVAL,
        "above 512 channels, an fd that is no deterministic channel, or both flags",
        "os/linux/ioctl_ctrl.c:nvgpu_gpu_set_deterministic_opts";
    MAPPED = "mmap", EBUSY, "the fd is mapped already", "os/linux/ioctl_ctrl.c:gk20a_ctrl_dev_mmap";
    MAP_RANGE = "mmap", EINVAL, "more than 64 KiB, or an offset",
        "os/linux/ioctl_ctrl.c:gk20a_ctrl_dev_mmap";
    DEBUGGER = "SET_MMUDEBUG_MODE, SET_SM_DEBUG_MODE, WAIT_FOR_PAUSE", EINVAL,
        "debugging; it is not simulated", "not the driver's answer";
}

const RULES: Rules = Rules::of(REQUESTS);

/// Runlist argument of OPEN_CHANNEL for graphics.
pub(super) const GRAPHICS_RUNLIST: i32 = -1;
/// Largest size of the doorbell mapping in bytes.
const DOORBELL_BYTES: u64 = 0x1_0000;

/// Object that an ioctl opens.
pub(super) enum Opened {
    Space(Arc<AddressSpace>),
    Tsg(Arc<Tsg>),
    Channel(Arc<Channel>),
}

/// Table of file descriptions: opens new ones and finds channels.
pub(super) trait Files {
    /// Installs an fd for an opened object; closes the object if the table is full.
    fn open(&self, opened: Opened) -> Result<i32, NoFd>;
    /// Returns the channel of an fd.
    fn channel(&self, fd: i32) -> Option<Arc<Channel>>;
}

/// The fd table is full.
#[derive(Clone, Copy, Debug)]
pub(super) struct NoFd;

/// An open description of the node.
#[derive(Debug, Default)]
pub(super) struct Ctrl {
    mapped: AtomicBool,
}

impl Ctrl {
    /// Maps the doorbell page, once. Source: os/linux/ioctl_ctrl.c:gk20a_ctrl_dev_mmap.
    pub(super) fn mmap(&self, bytes: u64, offset: u64) -> Result<u64, Refused> {
        if self.mapped.load(Ordering::Acquire) {
            return Err(&MAPPED);
        }
        if bytes > DOORBELL_BYTES || offset != 0 {
            return Err(&MAP_RANGE);
        }
        if self.mapped.swap(true, Ordering::AcqRel) { Err(&MAPPED) } else { Ok(bytes) }
    }

    /// Records that the doorbell page was unmapped.
    pub(super) fn unmapped(&self) {
        self.mapped.store(false, Ordering::Release);
    }
}

/// Executes one request.
pub(super) fn ioctl(device: &Arc<Device>, request: u32, arg: u64, files: &dyn Files) -> Answer {
    RULES.dispatch(request, arg, |args| {
        match request {
            GET_CHARACTERISTICS => return facts::characteristics(device, args),
            ALLOC_AS => {
                let range = range(args)?;
                let end = args.get(ALLOC_AS::VA_RANGE_END);
                if device.quirks.short_range_refused && end != PROVEN_END {
                    return Err(&SHORT_RANGE);
                }
                let space = AddressSpace::new(device, range);
                args.set(ALLOC_AS::AS_FD, files.open(Opened::Space(space)).map_err(|NoFd| &NO_FD)?);
            }
            OPEN_TSG => {
                use OPEN_TSG::{FLAGS, SHARE_TOKEN, SOURCE_DEVICE_INSTANCE_ID};
                let source = args.get(SOURCE_DEVICE_INSTANCE_ID);
                if args.get(FLAGS) & 1 != 0 || source != 0 || args.get(SHARE_TOKEN) != 0 {
                    return Err(&SHARE);
                }
                let tsg = Tsg::new(device).ok_or(&NO_TSG)?;
                args.set(OPEN_TSG::TSG_FD, files.open(Opened::Tsg(tsg)).map_err(|NoFd| &NO_FD)?);
            }
            OPEN_CHANNEL => {
                let fd = open_channel(device, args.get(OPEN_CHANNEL::RUNLIST_ID), files)?;
                args.set(OPEN_CHANNEL::CHANNEL_FD, fd);
            }
            FLUSH_L2 => {
                // Three one-bit fields: l2_flush, l2_invalidate, fb_flush.
                let flags = args.get(FLUSH_L2::L2_FLUSH);
                let (l2, invalidate, fb) = (flags & 1 != 0, flags & 2 != 0, flags & 4 != 0);
                if !l2 && (!fb || invalidate) {
                    return Err(&FLUSH);
                }
                if invalidate {
                    device.gpu.invalidate_l2();
                }
            }
            SET_MMUDEBUG_MODE | SET_SM_DEBUG_MODE | WAIT_FOR_PAUSE => return Err(&DEBUGGER),
            // No SM is ever paused, and every SM exception tears down its TSG.
            RESUME_FROM_PAUSE | TRIGGER_SUSPEND | CLEAR_SM_ERRORS => {}
            GET_GPU_TIME => args.set(GET_GPU_TIME::GPU_TIMESTAMP, device.gpu.time_ns()),
            GET_CPU_TIME_CORRELATION_INFO => return facts::time_samples(device, args),
            SET_DETERMINISTIC_OPTS => return railgating(args, files),
            REGISTER_BUFFER => return buffer::register(device, args),
            GET_BUFFER_INFO => return buffer::info(device, args),
            CLK_GET_RANGE => return clocks::range(args),
            CLK_GET_VF_POINTS => return clocks::points(args),
            CLK_GET_INFO => return clocks::info(args),
            CLK_SET_INFO
            | GET_EVENT_FD
            | GET_VOLTAGE
            | GET_CURRENT
            | GET_POWER
            | GET_TEMPERATURE
            | SET_THERM_ALERT_LIMIT => return Err(clocks::unsupported(request == CLK_SET_INFO)),
            _ => return facts::answer(device, request, args),
        }
        Ok(Done::Ok)
    })
}

/// Opens a channel; runlist -1 is graphics.
pub(super) fn open_channel(
    device: &Arc<Device>,
    runlist: i32,
    files: &dyn Files,
) -> Result<i32, Refused> {
    let runlist = match runlist {
        GRAPHICS_RUNLIST => 0,
        other => {
            let is_one = |id: &u32| facts::runlists(device).any(|runlist| runlist == *id);
            u32::try_from(other).ok().filter(is_one).ok_or(&RUNLIST)?
        }
    };
    let channel = Channel::new(device, runlist).ok_or(&NO_CHANNEL)?;
    files.open(Opened::Channel(channel)).map_err(|NoFd| &NO_FD as Refused)
}

/// End of the address space of every program that was seen to run on an Orin.
const PROVEN_END: u64 = 0xff_ffe0_0000;

fn range(args: &Args) -> Result<Range, Refused> {
    if args.get(ALLOC_AS::BIG_PAGE_SIZE) != 0 {
        return Err(&BIG_PAGES);
    }
    let range = Range::new(args.get(ALLOC_AS::VA_RANGE_START), args.get(ALLOC_AS::VA_RANGE_END));
    match range {
        Err(BadRange::Misshapen) => Err(&RANGE),
        _ if args.get(ALLOC_AS::VA_RANGE_SPLIT) != 0 => Err(&SPLIT),
        Err(BadRange::TooLarge) => Err(&TOO_LARGE),
        Ok(range) => Ok(range),
    }
}

/// Only checks, because the simulated GPU never powers off. On failure, the number of processed
/// channels is not reported. Source: os/linux/ioctl_ctrl.c:nvgpu_gpu_set_deterministic_opts.
fn railgating(args: &Args, files: &dyn Files) -> Handled {
    const ALLOW: u32 = 1;
    const DISALLOW: u32 = 2;
    use SET_DETERMINISTIC_OPTS::{CHANNELS as ARRAY, FLAGS, NUM_CHANNELS};
    let (count, flags, address) = (args.get(NUM_CHANNELS), args.get(FLAGS), args.get(ARRAY));
    if count > u32::from(CHANNELS) {
        return Err(&RAILGATING);
    }
    for i in 0..u64::from(count) {
        let fd = user::read_array(address.wrapping_add(4 * i)).map_err(|_| &BAD_NESTED)?;
        let channel = files.channel(i32::from_le_bytes(fd)).ok_or(&RAILGATING)?;
        let both = flags & (ALLOW | DISALLOW) == ALLOW | DISALLOW;
        if both || !channel.deterministic() {
            return Err(&RAILGATING);
        }
    }
    Ok(Done::Ok)
}
