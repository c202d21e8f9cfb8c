//! Trait of the CUDA driver calls that this backend uses: `super::library` implements it, and tests
//! implement a fake driver.
//!
//! Handles belong to the driver and die with the context at the latest; `super::gpu` owns each and
//! releases it once. Calls use the thread's current context.

use super::fault::Result;

macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub(super) struct $name(pub(super) u64);
    )*};
}

handles! {
    Context;
    /// Loaded machine code.
    Module;
    /// A kernel in a module.
    Function;
    Stream;
    Event;
    /// A graph that can be launched.
    Graph;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Attribute {
    Major,
    Minor,
    Multiprocessors,
    /// 1 if it shares the CPU's memory.
    Integrated,
    /// The highest clock, in kHz.
    ClockRate,
    /// True if other processes may open contexts; see [`ComputeMode`].
    ComputeMode,
}

/// Values of [`Attribute::ComputeMode`] (`CUcomputemode`).
pub(super) struct ComputeMode;

impl ComputeMode {
    pub(super) const PROHIBITED: i32 = 2;
    pub(super) const EXCLUSIVE_PROCESS: i32 = 3;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum MemoryKind {
    /// GPU memory; the CPU accesses it by copies.
    Device,
    /// Page-locked CPU memory that the GPU accesses directly.
    Pinned,
    /// Managed memory, moved or kept coherent by the driver.
    Managed,
}

impl MemoryKind {
    /// Name in `ORIND_CUDA_MEMORY` and reports.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Pinned => "pinned",
            Self::Managed => "managed",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct MemoryPlace {
    pub(super) address: u64,
    /// Address for the CPU; 0 if not mapped.
    pub(super) host: usize,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) function: Function,
    pub(super) grid: [u32; 3],
    /// Threads of a block.
    pub(super) block: [u32; 3],
    /// Dynamic shared memory, in bytes.
    pub(super) shared_bytes: u32,
    /// The kernel's parameter block.
    pub(super) params: &'a [u8],
    /// True if it may begin before the previous launch is done (programmatic dependent launch); the
    /// kernel itself waits.
    pub(super) programmatic: bool,
}

pub(super) trait Driver: Send + Sync {
    /// CUDA version, as 1000 x major + 10 x minor.
    fn version(&self) -> Result<i32>;
    fn init(&self) -> Result;
    fn devices(&self) -> Result<i32>;
    fn name(&self, device: i32) -> Result<String>;
    fn attribute(&self, device: i32, attribute: Attribute) -> Result<i32>;

    fn create_context(&self, device: i32) -> Result<Context>;
    fn destroy_context(&self, context: Context) -> Result;
    /// Makes the context current for this thread.
    fn enter(&self, context: Context) -> Result;
    /// Free and total bytes.
    fn memory(&self) -> Result<(u64, u64)>;

    fn alloc(&self, kind: MemoryKind, bytes: u64) -> Result<MemoryPlace>;
    fn free(&self, kind: MemoryKind, place: MemoryPlace) -> Result;

    /// Queues a copy to the GPU.
    ///
    /// # Safety
    ///
    /// `from` has `bytes` bytes; if it is pinned, they are not written before the copy is done.
    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Stream) -> Result;

    /// Queues a copy from the GPU.
    ///
    /// # Safety
    ///
    /// `to` has room for `bytes` bytes until the copy is done.
    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Stream) -> Result;

    /// Queues zeroing of memory.
    fn clear(&self, at: u64, bytes: u64, stream: Stream) -> Result;

    /// Queues a copy within GPU memory, between ranges that do not overlap.
    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result;

    /// Loads a cubin, or NUL-terminated PTX.
    fn load(&self, image: &[u8]) -> Result<Module>;
    fn unload(&self, module: Module) -> Result;
    fn function(&self, module: Module, name: &str) -> Result<Function>;
    /// Allows the kernel to use that much dynamic shared memory.
    fn allow_shared(&self, function: Function, bytes: u32) -> Result;

    fn create_stream(&self) -> Result<Stream>;
    fn destroy_stream(&self, stream: Stream) -> Result;
    fn synchronize(&self, stream: Stream) -> Result;

    /// Queues a launch.
    ///
    /// # Safety
    ///
    /// The parameters have the kernel's layout, and the addresses in them are in memory that lives
    /// until the launch is done.
    unsafe fn launch(&self, call: &Call<'_>, stream: Stream) -> Result;

    /// Starts recording what is queued to the stream, instead of running it.
    fn begin_capture(&self, stream: Stream) -> Result;
    /// Ends the recording and instantiates the graph.
    fn end_capture(&self, stream: Stream) -> Result<Graph>;
    fn launch_graph(&self, graph: Graph, stream: Stream) -> Result;
    fn destroy_graph(&self, graph: Graph) -> Result;

    fn create_event(&self, timing: bool) -> Result<Event>;
    fn destroy_event(&self, event: Event) -> Result;
    fn record(&self, event: Event, stream: Stream) -> Result;
    /// Waits until everything before the event is done.
    fn wait(&self, event: Event) -> Result;
    /// Milliseconds between two events with timing.
    fn elapsed(&self, from: Event, to: Event) -> Result<f32>;
}
