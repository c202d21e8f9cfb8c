//! The GPU as a whole: opens its nodes and queries its properties.
//!
//! Owns the fds of `/dev/nvmap` and the ctrl node for as long as anything made from them lives.

use std::os::fd::AsFd;
use std::sync::Arc;

use nix::libc;
use parking_lot::Mutex;

use crate::abi::ctrl::{self, Characteristics, EngineInfo, TimeSample};
use crate::abi::nvmap;
use crate::class::ClassId;
use crate::doorbell::Doorbell;
use crate::error::{Error, Node};
use crate::node::NodeFd;

/// An open Orin. Clones share the same fds.
#[derive(Clone, Debug)]
pub struct Orin(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    nvmap: NodeFd,
    ctrl: NodeFd,
    characteristics: Characteristics,
    sms: u32,
    doorbell: Mutex<Option<Arc<Doorbell>>>,
}

/// The range and the current frequency of a clock, Hz.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Clock {
    /// [`ctrl::CLOCK_MEMORY`] or [`ctrl::CLOCK_GPC`].
    pub domain: u32,
    /// Lowest.
    pub min_hz: u64,
    /// Highest.
    pub max_hz: u64,
    /// Actual frequency of the hardware, if the driver reports it.
    pub now_hz: Option<u64>,
    /// The selectable frequencies.
    pub points_hz: Vec<u64>,
}

/// Bytes of memory that buffers are allocated from: all of the system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryInfo {
    /// Total.
    pub total: u64,
    /// Free now.
    pub free: u64,
    /// Carveouts, as heap bits; without ordinary memory.
    pub carveouts: u64,
}

impl Orin {
    /// Opens the nodes, powers the GPU on and queries its characteristics.
    ///
    /// # Errors
    /// [`Error::Open`] without the nodes or permission to open them, [`Error::Request`] when a
    /// driver differs from L4T r36, [`Error::Unsupported`] for another GPU.
    pub fn open() -> Result<Self, Error> {
        let nvmap = NodeFd::open(Node::Nvmap, libc::O_SYNC | libc::O_CLOEXEC)?;
        let ctrl = NodeFd::open(Node::Ctrl, libc::O_CLOEXEC)?;
        let characteristics = characteristics(&ctrl)?;
        check(&characteristics)?;
        let mut sms = ctrl::NumVsms::default();
        ctrl.call(ctrl::NUM_VSMS, &mut sms)?;
        let doorbell = Mutex::new(None);
        let inner = Inner { nvmap, ctrl, characteristics, sms: sms.num_vsms, doorbell };
        Ok(Self(Arc::new(inner)))
    }

    pub(crate) fn nvmap(&self) -> &NodeFd {
        &self.0.nvmap
    }

    pub(crate) fn ctrl(&self) -> &NodeFd {
        &self.0.ctrl
    }

    /// The driver's report when the GPU was opened.
    #[must_use]
    pub fn characteristics(&self) -> &Characteristics {
        &self.0.characteristics
    }

    /// SMs that are powered: 8 or 16 on an Orin AGX with the power mode.
    #[must_use]
    pub fn sms(&self) -> u32 {
        self.0.sms
    }

    /// TPCs that are powered.
    #[must_use]
    pub fn tpcs(&self) -> u32 {
        self.0.characteristics.num_gpc * self.0.characteristics.num_tpc_per_gpc
    }

    /// The chip's name, `ga10b`.
    #[must_use]
    pub fn chip(&self) -> String {
        let name = self.0.characteristics.chipname;
        let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
        String::from_utf8_lossy(&name[..end]).into_owned()
    }

    /// The doorbell page: one mapping for any number of channels.
    pub fn doorbell(&self) -> Result<Arc<Doorbell>, Error> {
        let mut place = self.0.doorbell.lock();
        if let Some(doorbell) = place.as_ref() {
            return Ok(Arc::clone(doorbell));
        }
        let doorbell = Arc::new(Doorbell::map(self.0.ctrl.as_fd())?);
        *place = Some(Arc::clone(&doorbell));
        Ok(doorbell)
    }

    /// Nanoseconds of the timer that semaphore releases stamp. `EBUSY` when the timer could not be
    /// read consistently.
    pub fn gpu_time(&self) -> Result<u64, Error> {
        let mut time = ctrl::GetGpuTime::default();
        self.0.ctrl.call(ctrl::GET_GPU_TIME, &mut time)?;
        Ok(time.gpu_timestamp)
    }

    /// A pair of system time and GPU time, in nanoseconds.
    pub fn time_pair(&self) -> Result<TimeSample, Error> {
        let mut info = ctrl::GetCpuTimeCorrelationInfo {
            count: 1,
            source_id: ctrl::TIME_SOURCE_SYSTEM,
            ..Default::default()
        };
        self.0.ctrl.call(ctrl::GET_CPU_TIME_CORRELATION_INFO, &mut info)?;
        Ok(info.samples[0])
    }

    /// The engines and their runlists.
    pub fn engines(&self) -> Result<Vec<EngineInfo>, Error> {
        let mut args = ctrl::GetEngineInfo::default();
        // SAFETY: a size of 0 names no memory; the driver reports the size that it has.
        unsafe { self.0.ctrl.call_nested(ctrl::GET_ENGINE_INFO, &mut args)? };
        let count = args.engine_info_buf_size as usize / size_of::<EngineInfo>();
        let mut engines = vec![EngineInfo::default(); count];
        args.engine_info_buf_addr = engines.as_mut_ptr() as u64;
        args.engine_info_buf_size = size_of_val(&*engines) as u32;
        // SAFETY: address and size are those of `engines`, plain numbers, which outlives the call.
        unsafe { self.0.ctrl.call_nested(ctrl::GET_ENGINE_INFO, &mut args)? };
        engines.truncate(args.engine_info_buf_size as usize / size_of::<EngineInfo>());
        Ok(engines)
    }

    /// The powered TPCs of each GPC, a bit mask each.
    pub fn tpc_masks(&self) -> Result<Vec<u32>, Error> {
        let mut masks = vec![0u32; self.highest_gpc()];
        let mut args = ctrl::GetTpcMasks {
            mask_buf_size: size_of_val(&*masks) as u32,
            mask_buf_addr: masks.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: address and size are those of `masks`, which outlives the call.
        unsafe { self.0.ctrl.call_nested(ctrl::GET_TPC_MASKS, &mut args)? };
        Ok(masks)
    }

    /// The L2 slices of each frame-buffer partition, a bit mask each.
    pub fn l2_masks(&self) -> Result<Vec<u32>, Error> {
        let mut masks = vec![0u32; self.0.characteristics.max_fbps_count as usize];
        let mut args = ctrl::GetFbpL2Masks {
            mask_buf_size: size_of_val(&*masks) as u32,
            mask_buf_addr: masks.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: address and size are those of `masks`, which outlives the call.
        unsafe { self.0.ctrl.call_nested(ctrl::GET_FBP_L2_MASKS, &mut args)? };
        Ok(masks)
    }

    /// Position of each SM.
    pub fn sm_map(&self) -> Result<Vec<ctrl::VsmEntry>, Error> {
        let mut map = vec![ctrl::VsmEntry::default(); self.0.sms as usize];
        let mut args = ctrl::VsmsMapping { vsms_map_buf_addr: map.as_mut_ptr() as u64 };
        // SAFETY: the driver writes as many items as NUM_VSMS counted, which `map` has room for.
        unsafe { self.0.ctrl.call_nested(ctrl::VSMS_MAPPING, &mut args)? };
        Ok(map)
    }

    /// The physical index of each powered GPC.
    pub fn physical_gpcs(&self) -> Result<Vec<u32>, Error> {
        let mut map = vec![0u32; self.0.characteristics.gpc_mask.count_ones() as usize];
        let mut args = ctrl::GetGpcPhysicalMap {
            map_buf_size: size_of_val(&*map) as u32,
            physical_gpc_buf_addr: map.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: address and size are those of `map`, which outlives the call.
        unsafe { self.0.ctrl.call_nested(ctrl::GET_GPC_LOCAL_TO_PHYSICAL_MAP, &mut args)? };
        Ok(map)
    }

    /// The driver's clock domains. `EINVAL` if the driver has no clock control.
    pub fn clocks(&self) -> Result<Vec<Clock>, Error> {
        let mut args = ctrl::ClkGetRange::default();
        // SAFETY: no entries, so no memory is named.
        unsafe { self.0.ctrl.call_nested(ctrl::CLK_GET_RANGE, &mut args)? };
        let mut ranges = vec![ctrl::ClkRange::default(); args.num_entries.into()];
        args.clk_range_entries = ranges.as_mut_ptr() as u64;
        // SAFETY: `ranges` has the requested number of entries.
        unsafe { self.0.ctrl.call_nested(ctrl::CLK_GET_RANGE, &mut args)? };
        let now = self.clock_rates(ranges.len() as u16).unwrap_or_default();
        ranges
            .into_iter()
            .map(|range| {
                let now = now.iter().find(|info| info.clk_domain == range.clk_domain);
                Ok(Clock {
                    domain: range.clk_domain,
                    min_hz: range.min_hz,
                    max_hz: range.max_hz,
                    now_hz: now.map(|info| info.freq_hz),
                    points_hz: self.clock_points(range.clk_domain)?,
                })
            })
            .collect()
    }

    fn clock_rates(&self, domains: u16) -> Result<Vec<ctrl::ClkInfo>, Error> {
        let mut rates = vec![ctrl::ClkInfo::default(); domains.into()];
        let mut args = ctrl::ClkGetInfo {
            clk_type: ctrl::CLOCK_EFFECTIVE,
            num_entries: domains,
            clk_info_entries: rates.as_mut_ptr() as u64,
            ..Default::default()
        };
        // SAFETY: `rates` has the requested number of entries.
        unsafe { self.0.ctrl.call_nested(ctrl::CLK_GET_INFO, &mut args)? };
        rates.truncate(args.num_entries.into());
        Ok(rates)
    }

    fn clock_points(&self, clk_domain: u32) -> Result<Vec<u64>, Error> {
        let mut args = ctrl::ClkGetVfPoints { clk_domain, ..Default::default() };
        // SAFETY: no entries, so no memory is named.
        unsafe { self.0.ctrl.call_nested(ctrl::CLK_GET_VF_POINTS, &mut args)? };
        let mut points = vec![ctrl::ClkVfPoint::default(); args.max_entries.into()];
        args.clk_vf_point_entries = points.as_mut_ptr() as u64;
        // SAFETY: `points` has the requested number of entries.
        unsafe { self.0.ctrl.call_nested(ctrl::CLK_GET_VF_POINTS, &mut args)? };
        points.truncate(args.num_entries.into());
        Ok(points.into_iter().map(|point| point.freq_hz).collect())
    }

    /// The memory that buffers are allocated from.
    pub fn memory(&self) -> Result<MemoryInfo, Error> {
        let mut heap =
            nvmap::QueryHeapParams { heap_mask: nvmap::HEAP_IOVMM, ..Default::default() };
        self.0.nvmap.call(nvmap::QUERY_HEAP_PARAMS, &mut heap)?;
        let mut carveouts = nvmap::AvailableHeaps::default();
        self.0.nvmap.call(nvmap::GET_AVAILABLE_HEAPS, &mut carveouts)?;
        Ok(MemoryInfo { total: heap.total, free: heap.free, carveouts: carveouts.heaps })
    }

    /// GPCs up to the highest powered one: masks have an item for each.
    fn highest_gpc(&self) -> usize {
        (u32::BITS - self.0.characteristics.gpc_mask.leading_zeros()) as usize
    }
}

fn characteristics(ctrl: &NodeFd) -> Result<Characteristics, Error> {
    let mut characteristics = Characteristics::default();
    let mut args = ctrl::GetCharacteristics {
        gpu_characteristics_buf_size: size_of::<Characteristics>() as u64,
        gpu_characteristics_buf_addr: (&raw mut characteristics) as u64,
    };
    // SAFETY: address and size are those of `characteristics`, plain numbers, which outlives the
    // call.
    unsafe { ctrl.call_nested(ctrl::GET_CHARACTERISTICS, &mut args)? };
    let known = args.gpu_characteristics_buf_size;
    if known < size_of::<Characteristics>() as u64 {
        return Err(Error::Unsupported {
            what: "the driver's characteristics record",
            found: format!("{known} bytes"),
            expected: "328 bytes as in L4T r36",
        });
    }
    Ok(characteristics)
}

fn check(found: &Characteristics) -> Result<(), Error> {
    let classes = [
        ("compute class", found.compute_class, ClassId::Compute, "0xc7c0"),
        ("copy class", found.dma_copy_class, ClassId::Copy, "0xc7b5"),
        ("channel class", found.gpfifo_class, ClassId::Host, "0xc76f"),
    ];
    for (what, found, needed, expected) in classes {
        if found != needed as u32 {
            return Err(Error::Unsupported { what, found: format!("{found:#x}"), expected });
        }
    }
    let flags = [
        ("I/O coherence", ctrl::FLAG_IO_COHERENCE),
        ("TSG subcontexts", ctrl::FLAG_TSG_SUBCONTEXTS),
        ("submission from user mode", ctrl::FLAG_USERMODE_SUBMIT),
    ];
    for (what, flag) in flags {
        if found.flags & flag == 0 {
            return Err(Error::Unsupported { what, found: "missing".into(), expected: "present" });
        }
    }
    Ok(())
}
