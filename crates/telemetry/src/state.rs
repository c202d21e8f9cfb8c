//! State of a machine as plain data, in SI units. Absent values are `None`.

use std::fmt;

use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Board name in the device tree; `None` on a PC.
    pub board: Option<String>,
    /// True for a Jetson Orin (SoC T234).
    pub orin: bool,
    pub release: Option<Release>,
    pub drivers: Drivers,
    pub power_mode: Option<PowerMode>,
    pub gpu: Option<Gpu>,
    /// Memory; on an Orin, CPU and GPU share it.
    pub memory: Memory,
    /// Values that change all the time.
    pub now: Sample,
    /// Values that should exist and could not be read.
    pub unread: Vec<Unread>,
}

impl State {
    /// Peak memory bandwidth in bytes per second at the allowed clock: LPDDR5 with 256 data pins on
    /// an AGX Orin, 128 on Orin NX and Nano (64 on the Nano with 4 GB), two bits per clock and pin.
    /// Sources: the data sheets of the modules; 3199 MHz yield the published 204.8 GB/s.
    #[must_use]
    pub fn pin_rate(&self) -> Option<f64> {
        const GIB: u64 = 1 << 30;
        let clock = self.now.memory_clock.as_ref()?;
        let hz = clock.now_hz.or(clock.max_hz)?;
        let pins = match self.board.as_deref()? {
            board if board.contains("AGX Orin") => 256.0,
            board if board.contains("Nano") && self.memory.total? < 5 * GIB => 64.0,
            board if board.contains("Orin") => 128.0,
            _ => return None,
        };
        Some(hz as f64 * 2.0 * pins / 8.0)
    }
}

/// A release of Jetson Linux (L4T): R36.4.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Release {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl Release {
    /// True from R36.4.7 until R36.5: large single allocations of GPU memory fail even if memory is
    /// free. Sources: ggml-org/llama.cpp discussion 16706 and pull request 23732.
    #[must_use]
    pub fn limits_allocations(self) -> bool {
        Self { major: 36, minor: 4, patch: 7 } <= self
            && self < Self { major: 36, minor: 5, patch: 0 }
    }

    /// True for releases whose driver interface is supported: R36.4.
    #[must_use]
    pub const fn is_supported(self) -> bool {
        self.major == 36 && self.minor == 4
    }

    /// CUDA version of the release's driver. Source: NVIDIA's release notes of JetPack.
    #[must_use]
    pub const fn cuda(self) -> Option<(u32, u32)> {
        match (self.major, self.minor) {
            (35, _) => Some((11, 4)),
            (36, 2 | 3) => Some((12, 2)),
            (36, 4 | 5) => Some((12, 6)),
            _ => None,
        }
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "R{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drivers {
    /// Kernel release.
    pub kernel: Option<String>,
    /// True if the Orin's GPU driver is loaded.
    pub nvgpu: bool,
    /// Version of the desktop GPU driver, if it is loaded.
    pub nvidia: Option<String>,
    pub cuda_toolkit: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PowerMode {
    pub id: u32,
    /// Name: `MAXN`, `MODE_30W`.
    pub name: Option<String>,
    /// Number of the mode without limits, `MAXN`.
    pub unlimited: Option<u32>,
    /// Number of the default mode at boot.
    pub default: Option<u32>,
}

impl PowerMode {
    /// True in the mode without limits; `None` if the modes have no names.
    #[must_use]
    pub fn is_unlimited(&self) -> Option<bool> {
        self.unlimited.map(|id| id == self.id)
    }
}

impl fmt::Display for PowerMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.name {
            Some(name) => write!(f, "{name} (mode {})", self.id),
            None => write!(f, "mode {}", self.id),
        }
    }
}

/// Active parts of an Orin's GPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Gpu {
    /// Texture processing clusters (TPCs) that the power mode gates off, one bit each.
    pub gated_mask: Option<u32>,
    pub tpcs: Option<u32>,
    /// TPCs of the module, by its data sheet.
    pub of_tpcs: Option<u32>,
}

impl Gpu {
    /// Streaming multiprocessors in use: two per TPC.
    #[must_use]
    pub fn sms(&self) -> Option<u32> {
        Some(self.tpcs? * 2)
    }
}

/// Memory of the machine, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Memory {
    pub total: Option<u64>,
    /// Unused, not even as page cache.
    pub free: Option<u64>,
    /// Available without swapping.
    pub available: Option<u64>,
    /// Reserved for devices that need contiguous memory.
    pub cma_total: Option<u64>,
    /// Free part of the CMA reserve. GPU memory is not allocated from it.
    pub cma_free: Option<u64>,
    /// Used by buffers of the GPU and the video units.
    pub nvmap: Option<u64>,
    /// Estimated largest single buffer that the GPU driver can allocate.
    pub largest_buffer: Option<u64>,
    /// Largest run of physically contiguous free memory in the page allocator's lists.
    pub largest_contiguous: Option<u64>,
    pub swaps: Vec<Swap>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swap {
    pub device: SwapDevice,
    pub bytes: u64,
    /// Bytes in use.
    pub used: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SwapDevice {
    Zram,
    /// Soldered eMMC, which wears out.
    Emmc,
    /// SD card, which wears out sooner.
    SdCard,
    Other,
}

/// Values that change all the time.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    pub gpu_clock: Option<Clock>,
    /// Busy fraction of the GPU, 0 to 1.
    pub gpu_load: Option<f64>,
    /// Clock of the memory controller (EMC).
    pub memory_clock: Option<Clock>,
    /// Processor cores that share a clock.
    pub clusters: Vec<Cluster>,
    pub zones: Vec<Zone>,
    /// Signs of throttling.
    pub alarms: Vec<Alarm>,
    pub rails: Vec<Rail>,
    /// Energy counted since an arbitrary start, on processors with RAPL counters.
    pub joules: Option<f64>,
}

impl Sample {
    /// Total power: the rail that feeds all others if there is one, else the sum.
    #[must_use]
    pub fn watts(&self) -> Option<f64> {
        let all = self.rails.iter().find(|rail| rail.all);
        all.map(|rail| rail.watts).or_else(|| {
            (!self.rails.is_empty()).then(|| self.rails.iter().map(|rail| rail.watts).sum())
        })
    }

    #[must_use]
    pub fn hottest(&self) -> Option<&Zone> {
        self.zones.iter().max_by(|a, b| a.celsius.total_cmp(&b.celsius))
    }
}

/// A clock: its current value, and its range.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clock {
    pub now_hz: Option<u64>,
    pub min_hz: Option<u64>,
    pub max_hz: Option<u64>,
    /// Hardware maximum.
    pub hardware_max_hz: Option<u64>,
    /// Policy within the range.
    pub governor: Option<String>,
}

impl Clock {
    /// True if the range is a single value, so that the clock does not follow the load.
    #[must_use]
    pub fn is_pinned(&self) -> Option<bool> {
        Some(self.min_hz? == self.max_hz?)
    }
}

/// Processor cores that share a clock.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// CPU numbers, as the kernel lists them.
    pub cpus: String,
    pub clock: Clock,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Zone {
    /// `cpu`, `gpu`, `tj`.
    pub name: String,
    pub celsius: f64,
    /// Temperature at which clocks are lowered.
    pub throttles_at: Option<f64>,
}

/// A sign of throttling.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Alarm {
    pub name: String,
    pub active: bool,
    /// Occurrences since boot, if counted.
    pub count: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rail {
    /// The board's label: `VDD_GPU_SOC`.
    pub name: String,
    pub watts: f64,
    /// True for the rail that feeds all others.
    pub all: bool,
}

/// A value that should exist and could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unread {
    /// The value.
    pub what: String,
    pub path: String,
    pub reason: String,
}
