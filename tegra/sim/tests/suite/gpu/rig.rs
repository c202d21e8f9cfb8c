//! A GPU with memory and channels, as a program and its driver would have set them up.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tegra::address::{GpuAddress, QmdAddress};
use tegra::local_memory::{LocalMemory, LocalMemorySize};
use tegra::pushbuffer::{Condition, Entry, Payload, PushBuffer, Release, Shape, Transfer, Windows};
use tegra::qmd::{ConstantBank, Launch, Program};
use tegra_sim::config::{Checks, Config, Injection};
use tegra_sim::finding::{Collector, Fault, Finding, Rule};
use tegra_sim::gpu::{ChannelSetup, Events, Gpu, GpuConfig, MapFlags, Mmu, SWITCH_LIMIT_MS, TsgId};
use tegra_sim::memory::DmaBuf;
use tegra_sim::trace::Trace;

pub(crate) const COMPUTE: u32 = 0xc7c0;
pub(crate) const COPY: u32 = 0xc7b5;
pub(crate) const LOCAL: u64 = 0xfd_0000_0000;
pub(crate) const SHARED: u64 = 0xfe_0000_0000;

pub(crate) fn at(address: u64) -> GpuAddress {
    GpuAddress::new(address).unwrap()
}

/// Events that the driver received.
#[derive(Default)]
pub(crate) struct Driver {
    pub(crate) errors: Mutex<Vec<(TsgId, u32, Fault)>>,
    pub(crate) interrupts: Mutex<u32>,
}

impl Events for Driver {
    fn channel_error(&self, tsg: TsgId, code: u32, detail: &Fault) {
        self.errors.lock().push((tsg, code, detail.clone()));
    }

    fn non_stall_interrupt(&self) {
        *self.interrupts.lock() += 1;
    }
}

pub(crate) struct Rig {
    pub(crate) gpu: Arc<Gpu>,
    pub(crate) mmu: Arc<Mmu>,
    pub(crate) driver: Arc<Driver>,
    pub(crate) trace: Trace,
    findings: Arc<Collector>,
    next_va: Mutex<u64>,
    next_id: Mutex<u16>,
}

/// A buffer and where the GPU has it.
#[derive(Clone)]
pub(crate) struct Buffer {
    pub(crate) memory: Arc<DmaBuf>,
    pub(crate) va: u64,
}

impl Buffer {
    pub(crate) fn at(&self, offset: u64) -> GpuAddress {
        at(self.va + offset)
    }

    pub(crate) fn write(&self, offset: u64, data: &[u8]) {
        self.memory.write(offset, data).unwrap();
    }

    pub(crate) fn read(&self, offset: u64, bytes: usize) -> Vec<u8> {
        let mut data = vec![0; bytes];
        self.memory.read(offset, &mut data).unwrap();
        data
    }

    pub(crate) fn word(&self, offset: u64) -> u32 {
        self.memory.load_u32(offset).unwrap()
    }

    pub(crate) fn long(&self, offset: u64) -> u64 {
        self.memory.load_u64(offset).unwrap()
    }
}

impl Rig {
    pub(crate) fn new(seed: u64) -> Self {
        Self::with(seed, "", Duration::from_secs(1000))
    }

    /// A GPU with failures to produce, and its limit for deadlocks.
    pub(crate) fn with(seed: u64, faults: &str, deadlock_timeout: Duration) -> Self {
        Self::with_bundles(seed, faults, deadlock_timeout, None)
    }

    /// The same, and a directory for bundles.
    pub(crate) fn with_bundles(
        seed: u64,
        faults: &str,
        deadlock_timeout: Duration,
        bundles: Option<&Path>,
    ) -> Self {
        Self::of(&[("TEGRA_SIM_FAULTS", faults)], seed, deadlock_timeout, bundles)
    }

    /// A GPU with defects.
    pub(crate) fn on_machine(seed: u64, words: &str) -> Self {
        Self::of(&[("TEGRA_SIM_MACHINE", words)], seed, Duration::from_secs(1000), None)
    }

    /// A GPU that a desktop uses too.
    pub(crate) fn with_desktop() -> Self {
        Self::of(&[("TEGRA_SIM_DESKTOP", "1")], 1, Duration::from_secs(1000), None)
    }

    fn of(
        variables: &[(&str, &str)],
        seed: u64,
        deadlock_timeout: Duration,
        bundles: Option<&Path>,
    ) -> Self {
        let get = |name: &str| {
            variables.iter().find(|(key, _)| *key == name).map(|(_, value)| (*value).to_owned())
        };
        let config = Config { seed, ..Config::from_variables(get).unwrap() };
        let findings = Arc::new(Collector::default());
        let trace = Trace::to_memory();
        let injection = Arc::new(Injection::new(&config));
        let config = GpuConfig {
            // Long enough that only `drain` ends it.
            hold: Duration::from_secs(1000),
            deadlock_timeout,
            bundles: bundles.map(Path::to_owned),
            checks: Checks::Race,
            reporter: Arc::clone(&findings) as Arc<_>,
            ..GpuConfig::new(&config, trace.clone(), injection)
        };
        let driver = Arc::new(Driver::default());
        let gpu = Gpu::new(config, Arc::clone(&driver) as Arc<_>).unwrap();
        let (next_va, next_id) = (Mutex::new(0x20_0000), Mutex::new(511));
        Self { gpu, mmu: Arc::new(Mmu::new()), driver, trace, findings, next_va, next_id }
    }

    pub(crate) fn buffer(&self, bytes: u64) -> Buffer {
        self.mapped(bytes, MapFlags::default())
    }

    pub(crate) fn mapped(&self, bytes: u64, flags: MapFlags) -> Buffer {
        let memory = DmaBuf::new(bytes).unwrap();
        let mut next = self.next_va.lock();
        let va = *next;
        // A page between buffers stays unmapped.
        *next += memory.bytes() + 4096;
        self.mmu.map(va, Arc::clone(&memory), 0, memory.bytes(), flags).unwrap();
        Buffer { memory, va }
    }

    /// A channel in a TSG of its own that may bind both engines.
    pub(crate) fn channel(&self) -> Channel {
        self.channel_in(self.gpu.open_tsg(), 64)
    }

    pub(crate) fn channel_in(&self, tsg: TsgId, entries: u32) -> Channel {
        self.channel_by(tsg, entries, true)
    }

    /// A channel to which the program submits itself, or through the driver.
    pub(crate) fn channel_by(&self, tsg: TsgId, entries: u32, usermode: bool) -> Channel {
        let mut next = self.next_id.lock();
        let id = *next;
        *next -= 1;
        let ring = DmaBuf::new(u64::from(entries) * 8).unwrap();
        let userd = DmaBuf::new(4096).unwrap();
        self.gpu
            .open_channel(ChannelSetup {
                id,
                token: id.into(),
                tsg,
                veid: 0,
                ring: Arc::clone(&ring),
                entries,
                userd: Arc::clone(&userd),
                mmu: Arc::clone(&self.mmu),
                usermode,
                switch_limit_ms: SWITCH_LIMIT_MS,
            })
            .unwrap();
        self.gpu.alloc_object(id, COMPUTE);
        self.gpu.alloc_object(id, COPY);
        Channel { id, tsg, ring, userd, entries, put: 0, gpu: Arc::clone(&self.gpu) }
    }

    /// A stream in memory of its own.
    pub(crate) fn stream(&self, words: &[u32]) -> Stream {
        let buffer = self.buffer(words.len() as u64 * 4);
        let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
        buffer.write(0, &bytes);
        Stream { entry: Entry::new(buffer.at(0), words.len()).unwrap(), buffer }
    }

    /// Puts words on a channel's ring and rings.
    pub(crate) fn submit(&self, channel: &mut Channel, words: &[u32]) -> Stream {
        let stream = self.stream(words);
        channel.push(stream.entry.encode());
        channel.ring();
        stream
    }

    /// Runs words on a channel of their own, which find nothing.
    #[track_caller]
    pub(crate) fn run(&self, words: &[u32]) {
        self.submit(&mut self.channel(), words);
        self.assert_clean();
    }

    /// Waits for rest, and gives the findings so far.
    pub(crate) fn findings(&self) -> Vec<Finding> {
        self.gpu.drain();
        self.findings.take()
    }

    /// The rules that were broken so far.
    pub(crate) fn rules(&self) -> Vec<Rule> {
        self.findings().iter().map(|finding| finding.rule).collect()
    }

    #[track_caller]
    pub(crate) fn assert_clean(&self) {
        assert_eq!(self.findings(), []);
    }

    #[track_caller]
    pub(crate) fn assert_found(&self, rule: Rule) {
        let findings = self.findings();
        assert!(findings.iter().any(|finding| finding.rule == rule), "no {rule}: {findings:#?}");
    }

    /// The fault that the driver was told of.
    #[track_caller]
    pub(crate) fn fault(&self) -> (u32, Rule) {
        self.gpu.drain();
        let errors = self.driver.errors.lock();
        assert_eq!(errors.len(), 1, "{errors:?}");
        (errors[0].1, errors[0].2.finding.rule)
    }
}

pub(crate) struct Stream {
    pub(crate) entry: Entry,
    pub(crate) buffer: Buffer,
}

pub(crate) struct Channel {
    pub(crate) id: u16,
    pub(crate) tsg: TsgId,
    pub(crate) ring: Arc<DmaBuf>,
    pub(crate) userd: Arc<DmaBuf>,
    pub(crate) entries: u32,
    pub(crate) put: u32,
    pub(crate) gpu: Arc<Gpu>,
}

impl Channel {
    /// Writes an entry and moves GP_PUT, without ringing.
    pub(crate) fn push(&mut self, entry: u64) {
        self.ring.store_u64(u64::from(self.put) * 8, entry).unwrap();
        self.put = (self.put + 1) % self.entries;
        self.userd.store_u32(0x8c, self.put).unwrap();
    }

    pub(crate) fn ring(&self) {
        self.gpu.doorbell(self.id.into());
    }

    pub(crate) fn gp_get(&self) -> u32 {
        self.userd.load_u32(0x88).unwrap()
    }
}

pub(crate) fn release(at: GpuAddress, value: u64) -> Release {
    Release::new(at, Payload::Long(value)).unwrap().with_timestamp().unwrap()
}

pub(crate) fn acquire(at: GpuAddress, value: u64) -> tegra::pushbuffer::Acquire {
    tegra::pushbuffer::Acquire::new(at, Payload::Long(value), Condition::Reached).unwrap()
}

pub(crate) fn copy(from: GpuAddress, to: GpuAddress, bytes: u32) -> Transfer {
    Transfer::new(from, to, Shape::Linear { bytes }).unwrap()
}

pub(crate) fn copy_stream() -> PushBuffer<tegra::class::Copy> {
    let mut stream = PushBuffer::<tegra::class::Copy>::new();
    stream.bind();
    stream
}

/// A stream with one copy.
pub(crate) fn copying(from: GpuAddress, to: GpuAddress, bytes: u32) -> Vec<u32> {
    let mut stream = copy_stream();
    stream.transfer(copy(from, to, bytes));
    stream.into_words()
}

/// Bind, windows and local memory: what comes before a launch.
pub(crate) fn compute_stream() -> PushBuffer<tegra::class::Compute> {
    let mut stream = PushBuffer::<tegra::class::Compute>::new();
    stream.bind().set_windows(Windows::new(at(LOCAL), at(SHARED)).unwrap());
    let size = LocalMemorySize::new(0, 4).unwrap();
    stream.set_local_memory(LocalMemory::new(at(0x10_0000_0000), size.per_tpc).unwrap());
    stream
}

/// A program that does nothing, its constants, and a QMD.
pub(crate) struct Kernel {
    pub(crate) code: Buffer,
    pub(crate) constants: Buffer,
    pub(crate) qmd: Buffer,
    pub(crate) launch: Launch,
}

impl Kernel {
    pub(crate) fn new(rig: &Rig) -> Self {
        let (code, constants) = (rig.buffer(8192), rig.buffer(4096));
        let qmd = rig.buffer(4096);
        code.write(0, &[0x5a; 512]);
        constants.write(0, &[1; 0x180]);
        let program = Program {
            address: code.at(0),
            code_bytes: 512,
            registers: 16,
            barriers: 0,
            local_bytes: 0x240,
        };
        let mut launch = Launch::new(program, [4, 1, 1], [64, 1, 1]);
        launch.constants[0] =
            Some(ConstantBank { address: constants.at(0), bytes: 0x180, invalidate: true });
        let kernel = Self { code, constants, qmd, launch };
        kernel.store(0, &kernel.launch);
        kernel
    }

    /// Stores a launch as a QMD at slot `index`.
    pub(crate) fn store(&self, index: u64, launch: &Launch) {
        let qmd = launch.encode().unwrap();
        let bytes: Vec<u8> = qmd.words().iter().flat_map(|word| word.to_le_bytes()).collect();
        self.qmd.write(index * 256, &bytes);
    }

    /// A stream that launches slot 0.
    pub(crate) fn stream(&self) -> Vec<u32> {
        let mut stream = compute_stream();
        stream.launch(self.at(0));
        stream.into_words()
    }

    pub(crate) fn at(&self, index: u64) -> QmdAddress {
        QmdAddress::new(self.qmd.at(index * 256)).unwrap()
    }
}
