//! The calls of the CUDA driver that are made here, as a trait: `super::library` makes them, tests
//! put a driver of their own behind it.
//!
//! Handles come from the driver and die with the context at the latest; `super::gpu` owns each and
//! gives it back once. Calls mean the thread's current context.

use super::fault::Fault;

/// A handle of the driver.
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

/// What is asked of a device.
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
    /// Nobody.
    pub(super) const PROHIBITED: i32 = 2;
    /// One process at a time.
    pub(super) const EXCLUSIVE_PROCESS: i32 = 3;
}

/// A kind of memory.
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

/// Where an allocation lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) address: u64,
    /// For the CPU; 0 where it has no mapping.
    pub(super) host: usize,
}

/// A kernel launch as the driver takes it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Call<'a> {
    pub(super) function: Function,
    pub(super) grid: [u32; 3],
    /// Threads of a block, in x.
    pub(super) threads: u32,
    /// Dynamic shared memory, in bytes.
    pub(super) shared_bytes: u32,
    /// The kernel's one parameter.
    pub(super) params: &'a [u8],
}

/// The CUDA driver.
pub(super) trait Driver: Send + Sync {
    /// 1000 x major + 10 x minor of the CUDA that it is for.
    fn version(&self) -> Result<i32, Fault>;
    fn init(&self) -> Result<(), Fault>;
    fn devices(&self) -> Result<i32, Fault>;
    fn name(&self, device: i32) -> Result<String, Fault>;
    fn attribute(&self, device: i32, attribute: Attribute) -> Result<i32, Fault>;

    fn create_context(&self, device: i32) -> Result<Context, Fault>;
    fn destroy_context(&self, context: Context) -> Result<(), Fault>;
    /// Makes the context the thread's.
    fn enter(&self, context: Context) -> Result<(), Fault>;
    /// Bytes free and in all.
    fn memory(&self) -> Result<(u64, u64), Fault>;

    fn alloc(&self, kind: Kind, bytes: u64) -> Result<Place, Fault>;
    fn free(&self, kind: Kind, place: Place) -> Result<(), Fault>;

    /// Queues a copy to the GPU.
    ///
    /// # Safety
    /// `from` holds `bytes` bytes; where it is pinned, nobody writes them before the copy is done.
    unsafe fn copy_in(
        &self,
        to: u64,
        from: *const u8,
        bytes: usize,
        stream: Stream,
    ) -> Result<(), Fault>;

    /// Queues a copy from the GPU.
    ///
    /// # Safety
    /// `to` has room for `bytes` bytes until the copy is done.
    unsafe fn copy_out(
        &self,
        to: *mut u8,
        from: u64,
        bytes: usize,
        stream: Stream,
    ) -> Result<(), Fault>;

    /// Queues zeroes.
    fn clear(&self, at: u64, bytes: u64, stream: Stream) -> Result<(), Fault>;

    /// Loads a cubin, or PTX with a zero behind it.
    fn load(&self, image: &[u8]) -> Result<Module, Fault>;
    fn unload(&self, module: Module) -> Result<(), Fault>;
    fn function(&self, module: Module, name: &str) -> Result<Function, Fault>;
    /// Lets the kernel have that much dynamic shared memory.
    fn allow_shared(&self, function: Function, bytes: u32) -> Result<(), Fault>;

    fn create_stream(&self) -> Result<Stream, Fault>;
    fn destroy_stream(&self, stream: Stream) -> Result<(), Fault>;
    fn synchronize(&self, stream: Stream) -> Result<(), Fault>;

    /// Queues a launch.
    ///
    /// # Safety
    /// The parameters are of the kernel's layout, and the addresses in them lie in memory that lives
    /// until the launch is done.
    unsafe fn launch(&self, call: &Call<'_>, stream: Stream) -> Result<(), Fault>;

    /// From here on, what is queued to the stream is recorded and not run.
    fn begin_capture(&self, stream: Stream) -> Result<(), Fault>;
    /// Ends the recording and makes it ready to be launched.
    fn end_capture(&self, stream: Stream) -> Result<Graph, Fault>;
    /// Queues a recording.
    fn launch_graph(&self, graph: Graph, stream: Stream) -> Result<(), Fault>;
    fn destroy_graph(&self, graph: Graph) -> Result<(), Fault>;

    fn create_event(&self, timing: bool) -> Result<Event, Fault>;
    fn destroy_event(&self, event: Event) -> Result<(), Fault>;
    fn record(&self, event: Event, stream: Stream) -> Result<(), Fault>;
    /// Blocks until everything before it is done.
    fn wait(&self, event: Event) -> Result<(), Fault>;
    /// Milliseconds between two events with timing.
    fn elapsed(&self, from: Event, to: Event) -> Result<f32, Fault>;
}
