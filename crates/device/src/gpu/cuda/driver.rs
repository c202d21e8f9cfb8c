//! The calls of the CUDA driver that are made here, as a trait: `super::library` makes them, tests
//! put a driver of their own behind it.
//!
//! Handles come from the driver and die with the context at the latest; `super::gpu` owns each and
//! gives it back once. Calls mean the thread's current context.

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
    /// 1 when it shares the CPU's memory.
    Integrated,
    /// The highest clock, in kHz.
    ClockRate,
    /// Who may open contexts: see [`ComputeMode`].
    ComputeMode,
}

/// Values of [`Attribute::ComputeMode`] (`CUcomputemode`).
pub(super) struct ComputeMode;

impl ComputeMode {
    pub(super) const PROHIBITED: i32 = 2;
    pub(super) const EXCLUSIVE_PROCESS: i32 = 3;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The GPU's own; the CPU reaches it by copies.
    Device,
    /// Page-locked memory of the CPU that the GPU reads in place.
    Pinned,
    /// Of both, moved or kept coherent by the driver.
    Managed,
}

impl Kind {
    /// As `ORIND_CUDA_MEMORY` and reports name it.
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Device => "device",
            Self::Pinned => "pinned",
            Self::Managed => "managed",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: u64,
    /// For the CPU; 0 where it has no mapping.
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
    /// The kernel's one parameter.
    pub(super) params: &'a [u8],
    /// Whether it may begin before the launch before it is done (programmatic dependent launch): its kernel waits for
    /// that itself.
    pub(super) programmatic: bool,
}

pub(super) trait Driver: Send + Sync {
    /// 1000 x major + 10 x minor of the CUDA that it is for.
    fn version(&self) -> Result<i32>;
    fn init(&self) -> Result;
    fn devices(&self) -> Result<i32>;
    fn name(&self, device: i32) -> Result<String>;
    fn attribute(&self, device: i32, attribute: Attribute) -> Result<i32>;

    fn create_context(&self, device: i32) -> Result<Context>;
    fn destroy_context(&self, context: Context) -> Result;
    /// Makes the context the thread's.
    fn enter(&self, context: Context) -> Result;
    /// Bytes free and in all.
    fn memory(&self) -> Result<(u64, u64)>;

    fn alloc(&self, kind: Kind, bytes: u64) -> Result<Place>;
    fn free(&self, kind: Kind, place: Place) -> Result;

    /// Queues a copy to the GPU.
    ///
    /// # Safety
    /// `from` holds `bytes` bytes; where it is pinned, nobody writes them before the copy is done.
    unsafe fn copy_in(&self, to: u64, from: *const u8, bytes: usize, stream: Stream) -> Result;

    /// Queues a copy from the GPU.
    ///
    /// # Safety
    /// `to` has room for `bytes` bytes until the copy is done.
    unsafe fn copy_out(&self, to: *mut u8, from: u64, bytes: usize, stream: Stream) -> Result;

    /// Queues zeroes.
    fn clear(&self, at: u64, bytes: u64, stream: Stream) -> Result;

    /// Queues a copy between two places of the GPU's memory, which do not overlap.
    fn copy(&self, to: u64, from: u64, bytes: u64, stream: Stream) -> Result;

    /// Loads a cubin, or PTX with a zero behind it.
    fn load(&self, image: &[u8]) -> Result<Module>;
    fn unload(&self, module: Module) -> Result;
    fn function(&self, module: Module, name: &str) -> Result<Function>;
    /// Lets the kernel have that much dynamic shared memory.
    fn allow_shared(&self, function: Function, bytes: u32) -> Result;

    fn create_stream(&self) -> Result<Stream>;
    fn destroy_stream(&self, stream: Stream) -> Result;
    fn synchronize(&self, stream: Stream) -> Result;

    /// Queues a launch.
    ///
    /// # Safety
    /// The parameters are of the kernel's layout, and the addresses in them lie in memory that lives
    /// until the launch is done.
    unsafe fn launch(&self, call: &Call<'_>, stream: Stream) -> Result;

    /// From here on, what is queued to the stream is recorded and not run.
    fn begin_capture(&self, stream: Stream) -> Result;
    /// Ends the recording and makes it ready to be launched.
    fn end_capture(&self, stream: Stream) -> Result<Graph>;
    fn launch_graph(&self, graph: Graph, stream: Stream) -> Result;
    fn destroy_graph(&self, graph: Graph) -> Result;

    fn create_event(&self, timing: bool) -> Result<Event>;
    fn destroy_event(&self, event: Event) -> Result;
    fn record(&self, event: Event, stream: Stream) -> Result;
    /// Blocks until everything before it is done.
    fn wait(&self, event: Event) -> Result;
    /// Milliseconds between two events with timing.
    fn elapsed(&self, from: Event, to: Event) -> Result<f32>;
}
