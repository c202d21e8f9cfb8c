//! Fake CUDA driver: no GPU, but streams that run only when waited for, memory with gaps between
//! allocations, and kernels executed from their sm_87 machine code.
//!
//! It is as lazy as a GPU may be: queued work runs when it is waited for, on the contents that
//! pinned memory has then. Any call can be made to fail.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use orind_kernels::cubin::Cubin;
use orind_testing::machine::{self, Shape};
use parking_lot::{Mutex, MutexGuard};
use sass::memory::{Access, Memory, MemoryFault, Region};

use super::super::driver::{
    Attribute, Call, Context, Driver, Event, Function, Graph, MemoryKind, MemoryPlace, Module,
    Stream,
};
use super::super::fault::{Code, Fault, Result};

/// Distance between addresses of GPU allocations.
const APART: u64 = 1 << 32;

#[derive(Clone)]
pub(super) struct FakeGpu {
    pub(super) name: &'static str,
    pub(super) capability: (i32, i32),
    pub(super) integrated: bool,
    pub(super) mode: i32,
    pub(super) bytes: u64,
}

pub(super) const ORIN: FakeGpu =
    FakeGpu { name: "Orin", capability: (8, 7), integrated: false, mode: 0, bytes: 1 << 30 };

#[derive(Clone)]
enum Work {
    Copy {
        to: u64,
        bytes: Vec<u8>,
    },
    /// From pinned memory, with its contents at the time of the copy.
    CopyPinned {
        to: u64,
        from: usize,
        bytes: usize,
    },
    CopyOut {
        to: usize,
        from: u64,
        bytes: usize,
    },
    CopyInside {
        to: u64,
        from: u64,
        bytes: u64,
    },
    Clear {
        at: u64,
        bytes: u64,
    },
    Launch {
        function: u64,
        grid: [u32; 3],
        block: [u32; 3],
        shared: u32,
        params: Vec<u8>,
    },
    Record(u64),
}

#[derive(Default)]
struct State {
    log: Vec<&'static str>,
    /// Index of the call that fails, and its result.
    fail: Option<(usize, u32)>,
    /// Result of every call after a kernel fault.
    lost: Option<u32>,
    next: u64,
    launched: u64,
    live: HashMap<u64, &'static str>,
    memory: Allocations,
    pinned: BTreeMap<usize, usize>,
    used: u64,
    queues: HashMap<u64, VecDeque<Work>>,
    capture: Option<(u64, Vec<Work>)>,
    graphs: HashMap<u64, Vec<Work>>,
    modules: HashMap<u64, Vec<u8>>,
    functions: HashMap<u64, (u64, String)>,
    shared: HashMap<u64, u32>,
    /// Streams of recorded events that have not happened yet.
    events: HashMap<u64, u64>,
    current: Option<u64>,
}

pub(super) struct Fake {
    pub(super) version: i32,
    pub(super) init: u32,
    pub(super) gpus: Vec<FakeGpu>,
    /// Result of opening a context.
    pub(super) context: u32,
    /// Index of the kernel launch that faults.
    pub(super) fatal: Option<u64>,
    /// Index of the kernel launch that does nothing.
    pub(super) skipped: Option<u64>,
    state: Mutex<State>,
}

/// Words by start address.
type Allocations = BTreeMap<u64, Arc<[AtomicU32]>>;

struct Seen<'a>(&'a Allocations);

impl Memory for Seen<'_> {
    fn region(&self, address: u64, access: Access) -> Result<Region<'_>, MemoryFault> {
        match self.0.range(..=address).next_back() {
            Some((&start, words)) if address < start + 4 * words.len() as u64 => {
                Ok(Region { start, words, writable: true, marks: None })
            }
            _ => Err(MemoryFault::Unmapped { address, access }),
        }
    }
}

impl Fake {
    pub(super) fn new(gpus: &[FakeGpu]) -> Self {
        Self {
            version: 12_060,
            init: 0,
            gpus: gpus.to_vec(),
            context: 0,
            fatal: None,
            skipped: None,
            state: Mutex::default(),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Makes a call fail, counted from now.
    pub(super) fn fail_after(&self, calls: usize, code: u32) {
        let mut state = self.state();
        state.fail = Some((state.log.len() + calls, code));
    }

    pub(super) fn calls(&self, name: &str) -> usize {
        self.state().log.iter().filter(|call| **call == name).count()
    }

    pub(super) fn all_calls(&self) -> usize {
        self.state().log.len()
    }

    /// Handles that were not released.
    pub(super) fn leaks(&self) -> Vec<&'static str> {
        self.state().live.values().copied().collect()
    }

    pub(super) fn peek(&self, address: u64, bytes: usize) -> Vec<u8> {
        read(&self.state().memory, address, bytes).unwrap()
    }

    fn call(&self, name: &'static str) -> Result<MutexGuard<'_, State>> {
        let mut state = self.state();
        let number = state.log.len();
        state.log.push(name);
        if let Some(code) = state.lost {
            return Err(Fault::new(name, Code(code)));
        }
        match state.fail {
            Some((at, code)) if at == number => {
                if code == Code::ILLEGAL_ADDRESS.0 {
                    state.lost = Some(code);
                }
                Err(Fault::new(name, Code(code)))
            }
            _ => Ok(state),
        }
    }

    fn inside(&self, name: &'static str) -> Result<MutexGuard<'_, State>> {
        let state = self.call(name)?;
        assert!(state.current.is_some_and(|context| state.live.contains_key(&context)), "{name}");
        Ok(state)
    }

    fn queue(&self, name: &'static str, stream: Stream, work: Work) -> Result {
        let mut state = self.inside(name)?;
        assert_eq!(state.live.get(&stream.0), Some(&"stream"), "{name}");
        match &mut state.capture {
            Some((captured, recorded)) if *captured == stream.0 => recorded.push(work),
            _ => state.queues.entry(stream.0).or_default().push_back(work),
        }
        Ok(())
    }

    /// Runs queued work, up to an event if given.
    fn drain(&self, stream: u64, until: Option<u64>) -> Result {
        loop {
            let work = self.state().queues.entry(stream).or_default().pop_front();
            let Some(work) = work else { return Ok(()) };
            let recorded = if let Work::Record(event) = work { Some(event) } else { None };
            if let Err(code) = self.perform(work) {
                let mut state = self.state();
                state.lost = Some(code);
                state.queues.clear();
                return Err(Fault::new("drain", Code(code)));
            }
            if recorded.is_some() && recorded == until {
                return Ok(());
            }
        }
    }

    fn perform(&self, work: Work) -> Result<(), u32> {
        let mut state = self.state();
        let state = &mut *state;
        let bad = Code::ILLEGAL_ADDRESS.0;
        match work {
            Work::Copy { to, bytes } => write(&state.memory, to, &bytes).ok_or(bad),
            Work::CopyPinned { to, from, bytes } => {
                let from = from as *const u8;
                // SAFETY: the test's pinned memory lives until it is freed, which needs no queue.
                let bytes = unsafe { std::slice::from_raw_parts(from, bytes) };
                write(&state.memory, to, bytes).ok_or(bad)
            }
            Work::CopyOut { to, from, bytes } => {
                let found = read(&state.memory, from, bytes).ok_or(bad)?;
                // SAFETY: the code that queued the copy keeps its destination alive.
                unsafe { std::ptr::copy_nonoverlapping(found.as_ptr(), to as *mut u8, bytes) };
                Ok(())
            }
            Work::CopyInside { to, from, bytes } => {
                let copied = read(&state.memory, from, bytes as usize).ok_or(bad)?;
                write(&state.memory, to, &copied).ok_or(bad)
            }
            Work::Clear { at, bytes } => {
                write(&state.memory, at, &vec![0; bytes as usize]).ok_or(bad)
            }
            Work::Record(event) => {
                state.events.remove(&event);
                Ok(())
            }
            Work::Launch { function, grid, block, shared, params } => {
                state.launched += 1;
                if self.fatal == Some(state.launched) {
                    return Err(bad);
                }
                if self.skipped == Some(state.launched) {
                    return Ok(());
                }
                let (module, name) = &state.functions[&function];
                let shape = Shape { grid, block, shared };
                execute(&state.modules[module], name, shape, &params, &state.memory);
                Ok(())
            }
        }
    }

    fn make(&self, name: &'static str, what: &'static str) -> Result<u64> {
        let mut state = self.call(name)?;
        state.next += 1;
        let handle = state.next;
        state.live.insert(handle, what);
        Ok(handle)
    }

    fn give_back(&self, name: &'static str, handle: u64, what: &str) -> Result {
        // A lost context can still be destroyed.
        let result = self.call(name).map(drop);
        let mut state = self.state();
        assert_eq!(state.live.remove(&handle), Some(what).map(|w| w as &str), "{name}");
        result
    }
}

fn read(memory: &Allocations, at: u64, bytes: usize) -> Option<Vec<u8>> {
    let (start, words) = memory.range(..=at).next_back()?;
    let skip = (at - start) as usize;
    let all: Vec<u8> = words.iter().flat_map(|w| w.load(Relaxed).to_le_bytes()).collect();
    all.get(skip..skip + bytes).map(<[u8]>::to_vec)
}

fn write(memory: &Allocations, at: u64, bytes: &[u8]) -> Option<()> {
    let (start, words) = memory.range(..=at).next_back()?;
    let skip = (at - start) as usize;
    if skip + bytes.len() > 4 * words.len() {
        return None;
    }
    for (i, byte) in bytes.iter().enumerate() {
        let (word, shift) = (&words[(skip + i) / 4], (skip + i) % 4 * 8);
        let rest = word.load(Relaxed) & !(0xff << shift);
        word.store(rest | u32::from(*byte) << shift, Relaxed);
    }
    Some(())
}

fn execute(image: &[u8], name: &str, shape: Shape, params: &[u8], memory: &Allocations) {
    let cubin = Cubin::parse(&image[..image.len() - 1]).unwrap();
    let found = cubin.kernel(name).unwrap_or_else(|| panic!("{name} is not in the module"));
    let done = machine::execute(found, shape, params, &Seen(memory), 0);
    done.unwrap_or_else(|fault| panic!("{name}: {fault}"));
}

impl Driver for Fake {
    fn version(&self) -> Result<i32> {
        self.call("version").map(|_| self.version)
    }

    fn init(&self) -> Result {
        drop(self.call("init")?);
        if self.init == 0 { Ok(()) } else { Err(Fault::new("cuInit", Code(self.init))) }
    }

    fn devices(&self) -> Result<i32> {
        self.call("devices").map(|_| self.gpus.len() as i32)
    }

    fn name(&self, device: i32) -> Result<String> {
        self.call("name").map(|_| self.gpus[device as usize].name.into())
    }

    fn attribute(&self, device: i32, attribute: Attribute) -> Result<i32> {
        drop(self.call("attribute")?);
        let gpu = &self.gpus[device as usize];
        Ok(match attribute {
            Attribute::Major => gpu.capability.0,
            Attribute::Minor => gpu.capability.1,
            Attribute::Multiprocessors => 4,
            Attribute::Integrated => i32::from(gpu.integrated),
            Attribute::ComputeMode => gpu.mode,
            Attribute::ClockRate => 1_300_500,
        })
    }

    fn create_context(&self, _: i32) -> Result<Context> {
        if self.context != 0 {
            return Err(Fault::new("cuCtxCreate_v2", Code(self.context)));
        }
        self.make("create_context", "context").map(Context)
    }

    fn destroy_context(&self, context: Context) -> Result {
        let result = self.give_back("destroy_context", context.0, "context");
        // A new context is not lost.
        self.state().lost = None;
        result
    }

    fn enter(&self, context: Context) -> Result {
        self.call("enter")?.current = Some(context.0);
        Ok(())
    }

    fn memory(&self) -> Result<(u64, u64)> {
        let total = self.gpus[0].bytes;
        self.inside("memory").map(|state| (total - state.used, total))
    }

    fn alloc(&self, kind: MemoryKind, bytes: u64) -> Result<MemoryPlace> {
        let mut state = self.inside("alloc")?;
        if kind == MemoryKind::Device && state.used + bytes > self.gpus[0].bytes {
            return Err(Fault::new("cuMemAlloc_v2", Code::OUT_OF_MEMORY));
        }
        // Uninitialised memory is not zero.
        let words: Arc<[AtomicU32]> =
            (0..bytes.div_ceil(4)).map(|_| AtomicU32::new(0x7fc0_dead)).collect();
        state.next += 1;
        let place = match kind {
            MemoryKind::Device => MemoryPlace { address: APART * state.next, host: 0 },
            MemoryKind::Pinned | MemoryKind::Managed => {
                let host = words.as_ptr().expose_provenance();
                state.pinned.insert(host, 4 * words.len());
                MemoryPlace { address: host as u64, host }
            }
        };
        if kind == MemoryKind::Device {
            state.used += 4 * words.len() as u64;
        }
        state.live.insert(place.address, kind.name());
        state.memory.insert(place.address, words);
        Ok(place)
    }

    fn free(&self, kind: MemoryKind, place: MemoryPlace) -> Result {
        let result = self.give_back("free", place.address, kind.name());
        let mut state = self.state();
        let words = state.memory.remove(&place.address).unwrap();
        state.pinned.remove(&place.host);
        if kind == MemoryKind::Device {
            state.used -= 4 * words.len() as u64;
        }
        result
    }

    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Stream) -> Result {
        let at = from.expose_provenance();
        let pinned = |state: &State| {
            let found = state.pinned.range(..=at).next_back();
            found.is_some_and(|(start, len)| at + bytes <= start + len)
        };
        let work = if pinned(&self.state()) {
            Work::CopyPinned { to, from: at, bytes }
        } else {
            // SAFETY: promised by the caller.
            Work::Copy { to, bytes: unsafe { std::slice::from_raw_parts(from, bytes) }.to_vec() }
        };
        self.queue("copy_in", stream, work)
    }

    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Stream) -> Result {
        let to = to.expose_provenance();
        self.queue("copy_out", stream, Work::CopyOut { to, from, bytes })
    }

    fn clear(&self, at: u64, bytes: u64, stream: Stream) -> Result {
        self.queue("clear", stream, Work::Clear { at, bytes })
    }

    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result {
        self.queue("copy", stream, Work::CopyInside { to, from, bytes })
    }

    fn load(&self, image: &[u8]) -> Result<Module> {
        drop(self.inside("load")?);
        assert_eq!(image.last(), Some(&0), "PTX ends at a zero");
        let module = self.make("load", "module")?;
        self.state().modules.insert(module, image.to_vec());
        Ok(Module(module))
    }

    fn unload(&self, module: Module) -> Result {
        self.give_back("unload", module.0, "module")
    }

    fn function(&self, module: Module, name: &str) -> Result<Function> {
        let mut state = self.inside("function")?;
        state.next += 1;
        let function = state.next;
        state.functions.insert(function, (module.0, name.into()));
        Ok(Function(function))
    }

    fn allow_shared(&self, function: Function, bytes: u32) -> Result {
        self.inside("allow_shared")?.shared.insert(function.0, bytes);
        Ok(())
    }

    fn create_stream(&self) -> Result<Stream> {
        self.make("create_stream", "stream").map(Stream)
    }

    fn destroy_stream(&self, stream: Stream) -> Result {
        self.give_back("destroy_stream", stream.0, "stream")
    }

    fn synchronize(&self, stream: Stream) -> Result {
        drop(self.inside("synchronize")?);
        self.drain(stream.0, None)
    }

    unsafe fn launch(&self, call: &Call<'_>, stream: Stream) -> Result {
        let allowed = self.state().shared.get(&call.function.0).copied().unwrap_or(48 << 10);
        assert!(call.shared_bytes <= allowed, "{} of {allowed}", call.shared_bytes);
        let work = Work::Launch {
            function: call.function.0,
            grid: call.grid,
            block: call.block,
            shared: call.shared_bytes,
            params: call.params.to_vec(),
        };
        if !call.programmatic {
            return self.queue("launch", stream, work);
        }
        // A programmatic edge needs a kernel before it in the same recording.
        let after = self.state().capture.as_ref().and_then(|(_, work)| work.last().cloned());
        assert!(matches!(after, Some(Work::Launch { .. })));
        self.queue("launch_early", stream, work)
    }

    fn begin_capture(&self, stream: Stream) -> Result {
        let mut state = self.inside("begin_capture")?;
        assert!(state.capture.is_none());
        state.capture = Some((stream.0, Vec::new()));
        Ok(())
    }

    fn end_capture(&self, stream: Stream) -> Result<Graph> {
        // A failed capture ends too.
        let captured = self.state().capture.take();
        drop(self.inside("end_capture")?);
        let (from, work) = captured.unwrap();
        assert_eq!(from, stream.0);
        let graph = self.make("instantiate", "graph")?;
        self.state().graphs.insert(graph, work);
        Ok(Graph(graph))
    }

    fn launch_graph(&self, graph: Graph, stream: Stream) -> Result {
        let mut state = self.inside("launch_graph")?;
        let work = state.graphs[&graph.0].clone();
        state.queues.entry(stream.0).or_default().extend(work);
        Ok(())
    }

    fn destroy_graph(&self, graph: Graph) -> Result {
        self.give_back("destroy_graph", graph.0, "graph")
    }

    fn create_event(&self, _: bool) -> Result<Event> {
        self.make("create_event", "event").map(Event)
    }

    fn destroy_event(&self, event: Event) -> Result {
        self.give_back("destroy_event", event.0, "event")
    }

    fn record(&self, event: Event, stream: Stream) -> Result {
        self.queue("record", stream, Work::Record(event.0))?;
        let mut state = self.state();
        state.events.insert(event.0, stream.0);
        Ok(())
    }

    fn wait(&self, event: Event) -> Result {
        let stream = self.inside("wait")?.events.get(&event.0).copied();
        stream.map_or(Ok(()), |stream| self.drain(stream, Some(event.0)))
    }

    fn elapsed(&self, _: Event, _: Event) -> Result<f32> {
        self.inside("elapsed").map(|_| 0.001)
    }
}
