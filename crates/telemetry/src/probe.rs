//! Probe of a machine: discovers its files once, then reads them on demand.

use parking_lot::Mutex;

use super::rails::{self, CounterSource, Counters, RailSource};
use super::root::Root;
use super::state::{Sample, State, Unread};
use super::thermal::{self, AlarmSource, ZoneSource};
use super::users::Users;
use super::{board, frequencies, power_mode, unified};

/// The files of one machine. Shared between threads. A read takes about ten system calls per value
/// and, on an Orin, some milliseconds in all for the monitors' I2C bus.
#[derive(Debug)]
pub struct Probe {
    root: Root,
    orin: bool,
    gpu: Option<String>,
    clusters: Vec<String>,
    zones: Vec<ZoneSource>,
    alarms: Vec<AlarmSource>,
    rails: Vec<RailSource>,
    counters: Vec<CounterSource>,
    counted: Mutex<Counters>,
    /// Files that discovery did not find.
    unread: Vec<Unread>,
}

impl Probe {
    #[must_use]
    pub fn new(root: Root) -> Self {
        let mut unread = Vec::new();
        let counters = rails::find_counters(&root, &mut unread);
        Self {
            orin: board::is_orin(&root),
            gpu: frequencies::find_gpu(&root),
            clusters: frequencies::find_clusters(&root),
            zones: thermal::find_zones(&root),
            alarms: thermal::find_alarms(&root),
            rails: rails::find(&root),
            counters,
            counted: Mutex::default(),
            unread,
            root,
        }
    }

    #[must_use]
    pub const fn root(&self) -> &Root {
        &self.root
    }

    #[must_use]
    pub const fn is_orin(&self) -> bool {
        self.orin
    }

    /// Current values of everything that changes.
    #[must_use]
    pub fn sample(&self) -> Sample {
        self.sample_with(&mut Vec::new())
    }

    fn sample_with(&self, notes: &mut Vec<Unread>) -> Sample {
        let root = &self.root;
        let gpu = self.gpu.as_deref();
        let mut alarms: Vec<_> =
            self.alarms.iter().filter_map(|alarm| thermal::alarm(root, alarm)).collect();
        alarms.extend(self.rails.iter().filter_map(|rail| rails::alarm(root, rail)));
        let mut counted = self.counted.lock();
        Sample {
            gpu_clock: gpu.map(|entry| frequencies::gpu(root, entry)),
            gpu_load: gpu.and_then(|entry| frequencies::gpu_load(root, entry)),
            memory_clock: if self.orin { frequencies::memory(root, notes) } else { None },
            clusters: self.clusters.iter().filter_map(|c| frequencies::cluster(root, c)).collect(),
            zones: self.zones.iter().filter_map(|zone| thermal::zone(root, zone)).collect(),
            alarms,
            rails: self.rails.iter().filter_map(|rail| rails::rail(root, rail)).collect(),
            joules: counted.read(root, &self.counters),
        }
    }

    #[must_use]
    pub fn state(&self) -> State {
        let root = &self.root;
        let mut unread = self.unread.clone();
        let board = board::name(root);
        let mut release = None;
        let mut mode = None;
        let mut gpu = None;
        let mut note = |what: &str, path: &str| {
            let reason = "nothing like it was found".into();
            unread.push(Unread { what: what.into(), path: path.into(), reason });
        };
        if self.orin && self.gpu.is_none() {
            note("GPU clock", "/sys/class/devfreq");
        }
        if self.orin && self.rails.is_empty() {
            note("power", "/sys/bus/i2c/devices");
        }
        if self.orin {
            release = board::release(root, &mut unread);
            mode = power_mode::power_mode(root, &mut unread);
        }
        let memory = unified::memory(root, release);
        if let (true, Some(entry)) = (self.orin, &self.gpu) {
            let name = board.as_deref().unwrap_or_default();
            gpu = Some(frequencies::size(root, entry, name, memory.total, &mut unread));
        }
        State {
            board,
            orin: self.orin,
            release,
            drivers: board::drivers(root),
            power_mode: mode,
            gpu,
            memory,
            now: self.sample_with(&mut unread),
            unread,
        }
    }

    /// Number of the power mode.
    #[must_use]
    pub fn power_mode(&self) -> Option<u32> {
        if !self.orin {
            return None;
        }
        power_mode::power_mode(&self.root, &mut Vec::new()).map(|mode| mode.id)
    }

    /// Other processes that have the GPU open, without those in `except`.
    #[must_use]
    pub fn gpu_users(&self, except: &[u32]) -> Users {
        Users::look(&self.root, except)
    }
}
