//! First light through CUDA: results, counting and memory visibility of launches. The driver
//! manages channels, events and QMD chains itself, so the device has no modes.

use std::sync::Arc;

use orind_kernels::catalogue::Unit;
use orind_kernels::first_light::{
    ATOMICS_BLOCKS, ATOMICS_THREADS, AtomicsParams, HANDOVER_THREADS, HandoverParams, Kernel,
    OrderParams, PROBE_GRID, WAYS, copied, mark, next, part, probe, probe_words, sums,
};
use orind_kernels::params::IntoBytes;
use orind_kernels::prebuilt;

use super::driver::{Call, Function, Graph, MemoryKind, Module, Stream};
use super::fault::Fault;
use super::gpu::{Gpu, Memory, Owned};
use super::{Cuda, DEVICE, code};
use crate::FirstLight;
use crate::modes::{Mode, Note, Stage};
use crate::{Device, Error, Result, Scope};

/// Launches of a graph, about as many as a model's step has.
const LAUNCHES: u32 = 256;
const ROUNDS: u32 = 64;
/// Words handed over per round: 64 KiB.
const WORDS: u32 = 16 << 10;

/// A stream with the self-test kernels.
struct Trial {
    gpu: Arc<Gpu>,
    _module: Owned<Module>,
    /// In the order of [`Kernel::ALL`]. Resolved once: a driver may load a kernel on the first
    /// request, which is not allowed during graph capture.
    functions: Vec<Function>,
    stream: Owned<Stream>,
}

/// A bring-up step.
type Work = fn(&Trial) -> Result<(), Failure>;

/// Failure of a bring-up step: of the driver, or a wrong result.
enum Failure {
    Seam(Error),
    Wrong(String),
}

impl From<Fault> for Failure {
    fn from(fault: Fault) -> Self {
        Self::Seam(fault.at_the_seam())
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Seam(error)
    }
}

/// Compares words; `what` describes an index.
fn same(found: &[u32], expected: &[u32], what: impl Fn(usize) -> String) -> Result<(), Failure> {
    match found.iter().zip(expected).position(|(found, expected)| found != expected) {
        None => Ok(()),
        Some(at) => {
            let (found, expected) = (found[at], expected[at]);
            let place = what(at);
            Err(Failure::Wrong(format!("{place} is {found:#010x}, expected {expected:#010x}")))
        }
    }
}

impl Trial {
    fn new(gpu: &Arc<Gpu>) -> Result<Self> {
        let target = code::target(gpu.capability);
        let Some(mut image) = prebuilt::file(Unit::FirstLight, target) else {
            let what = format!("{}: not built", target.file(Unit::FirstLight));
            return Err(Error::Unsupported { device: DEVICE, what });
        };
        // PTX is NUL-terminated text.
        image.push(0);
        Self::load(gpu, &image).map_err(Fault::at_the_seam)
    }

    fn load(gpu: &Arc<Gpu>, image: &[u8]) -> Result<Self, Fault> {
        let module = Owned::new(gpu, |driver| driver.load(image))?;
        let driver = gpu.enter()?;
        let function = |kernel: Kernel| driver.function(module.get(), kernel.symbol());
        let functions = Kernel::ALL.into_iter().map(function).collect::<Result<_, _>>()?;
        let stream = Owned::new(gpu, |driver| driver.create_stream())?;
        Ok(Self { gpu: Arc::clone(gpu), _module: module, functions, stream })
    }

    fn memory(&self, words: u32) -> Result<Memory> {
        Memory::new(&self.gpu, MemoryKind::Device, 4 * u64::from(words))
    }

    fn launch(&self, kernel: Kernel, grid: [u32; 3], params: &[u8]) -> Result<(), Fault> {
        self.launch_as(kernel, grid, params, false)
    }

    fn launch_as(
        &self,
        kernel: Kernel,
        grid: [u32; 3],
        params: &[u8],
        programmatic: bool,
    ) -> Result<(), Fault> {
        let call = Call {
            function: self.functions[kernel as usize],
            grid,
            block: kernel.block(),
            shared_bytes: kernel.dynamic_shared(),
            params,
            programmatic,
        };
        // SAFETY: the parameters are the kernel's own, and every caller owns the memory that they
        // refer to until it has read the launch's results from it.
        unsafe { self.gpu.enter()?.launch(&call, self.stream.get()) }
    }

    fn write(&self, memory: &Memory, words: &[u32]) -> Result<(), Fault> {
        let bytes = size_of_val(words).min(memory.bytes() as usize);
        let driver = self.gpu.enter()?;
        // SAFETY: both have this length, and the words do not change until the copy is done.
        unsafe {
            driver.copy_in(memory.address(), words.as_ptr().cast(), bytes, self.stream.get())?;
        }
        driver.synchronize(self.stream.get())
    }

    /// Reads all words after everything that is queued.
    fn read(&self, memory: &Memory) -> Result<Vec<u32>, Fault> {
        let mut words = vec![0u32; memory.bytes() as usize / 4];
        let driver = self.gpu.enter()?;
        let (to, bytes) = (words.as_mut_ptr().cast(), size_of_val(&*words));
        // SAFETY: the vector has the copy's length, and the copy is done before it is read.
        unsafe { driver.copy_out(to, memory.address(), bytes, self.stream.get())? };
        driver.synchronize(self.stream.get())?;
        Ok(words)
    }

    /// One launch with every kind of work, compared bit for bit.
    fn single(&self) -> Result<(), Failure> {
        let expected = probe_words();
        let out = self.memory(expected.len() as u32)?;
        self.write(&out, &expected.map(|word| !word))?;
        self.launch(Kernel::Probe, PROBE_GRID, probe(out.address()).as_bytes())?;
        same(&self.read(&out)?, &expected, |at| {
            format!("word {at} of the probe, after {},", part(at))
        })
    }

    /// A graph in which each launch continues from the previous one's result.
    fn order(&self) -> Result<(), Failure> {
        const FIRST: u32 = 0x5eed_0001;
        let mut expected = vec![FIRST];
        for index in 1..=LAUNCHES {
            expected.push(next(expected[index as usize - 1], index));
        }
        let out = self.memory(expected.len() as u32)?;
        let graph: Owned<Graph> = Owned::new(&self.gpu, |driver| {
            driver.begin_capture(self.stream.get())?;
            let queued = (1..=LAUNCHES).try_for_each(|index| {
                let params = OrderParams { out: out.address(), index, reserved: 0 };
                let early = index > 1 && self.gpu.programmatic();
                self.launch_as(Kernel::Order, [self.gpu.sms, 1, 1], params.as_bytes(), early)
            });
            // Also after a failure: the stream must not stay in capture mode.
            let graph = driver.end_capture(self.stream.get())?;
            queued.map(|()| graph).or_else(|fault| {
                driver.destroy_graph(graph)?;
                Err(fault)
            })
        })?;
        let mut before: Vec<u32> = expected.iter().map(|word| !word).collect();
        before[0] = FIRST;
        self.write(&out, &before)?;
        self.gpu.enter()?.launch_graph(graph.get(), self.stream.get())?;
        same(&self.read(&out)?, &expected, |at| format!("the word of launch {at} of {LAUNCHES}"))
    }

    /// Blocks count, and the last one sums what all others wrote; 64 times.
    fn atomics(&self) -> Result<(), Failure> {
        let (blocks, threads) = (ATOMICS_BLOCKS, ATOMICS_THREADS);
        let (counter, parts) = (self.memory(1)?, self.memory(blocks * threads)?);
        let marks = self.memory(threads)?;
        self.write(&counter, &[0])?;
        for round in 0..ROUNDS {
            let params = AtomicsParams {
                counter: counter.address(),
                parts: parts.address(),
                marks: marks.address(),
                round,
                reserved: 0,
            };
            self.launch(Kernel::Atomics, [blocks, 1, 1], params.as_bytes())?;
            let what = |_| format!("the counter of {blocks} blocks, after round {round},");
            same(&self.read(&counter)?, &[0], what)?;
            let expected: Vec<u32> = (0..threads).map(|thread| mark(round, thread)).collect();
            let what = |at| format!("mark {at} of round {round}");
            same(&self.read(&marks)?, &expected, what)?;
        }
        Ok(())
    }

    /// The CPU rewrites 64 KiB and a parameter, every SM reads them with each kind of load, and the
    /// CPU reads the results; 64 times.
    fn handover(&self) -> Result<(), Failure> {
        let blocks = self.gpu.sms.max(1);
        let (words, copy) = (self.memory(WORDS)?, self.memory(WORDS)?);
        let all = self.memory(blocks * WAYS.len() as u32 * HANDOVER_THREADS)?;
        for round in 0..ROUNDS {
            let pattern =
                |word: u32| (round << 20 | word).wrapping_add(1).wrapping_mul(0x9e37_79b1);
            let given: Vec<u32> = (0..WORDS).map(pattern).collect();
            let key = pattern(WORDS);
            self.write(&words, &given)?;
            let params = HandoverParams {
                words: words.address(),
                copy: copy.address(),
                sums: all.address(),
                count: WORDS,
                key,
            };
            self.launch(Kernel::Handover, [blocks, 1, 1], params.as_bytes())?;
            let right = sums(&given, key).repeat(blocks as usize * WAYS.len());
            let way = |at: usize| WAYS[at / HANDOVER_THREADS as usize % WAYS.len()];
            let what = |at| format!("a sum of round {round} by {}", way(at));
            same(&self.read(&all)?, &right, what)?;
            let right: Vec<u32> = given.iter().map(|word| copied(*word, key)).collect();
            let what = |at| format!("word {at} of what the GPU wrote in round {round}");
            same(&self.read(&copy)?, &right, what)?;
        }
        Ok(())
    }
}

impl FirstLight for Cuda {
    fn key(&self) -> String {
        let version = self.gpu.driver.version().unwrap_or(0);
        format!("{}, CUDA driver {version}", self.info().description)
    }

    fn prove(&self, _: Mode, note: &mut dyn FnMut(Note<'_>) -> Result<()>) -> Result<Option<Mode>> {
        let trial = Trial::new(&self.gpu)?;
        let stages: [(Stage, Work); 4] = [
            (Stage::Launch, Trial::single),
            (Stage::Order, Trial::order),
            (Stage::Atomics, Trial::atomics),
            (Stage::Handover, Trial::handover),
        ];
        for (stage, run) in stages {
            note(Note::Begins(stage))?;
            run(&trial).map_err(|failure| match failure {
                Failure::Seam(error) => error,
                Failure::Wrong(what) => Error::Lost {
                    scope: Scope::Device,
                    rebuildable: false,
                    reason: format!("first light, stage {stage}: {what}"),
                    source: None,
                },
            })?;
            note(Note::Passed(stage))?;
        }
        Ok(None)
    }

    fn in_mode(&self, _: Mode) -> Arc<dyn Device> {
        Arc::new(self.clone())
    }
}
