//! A context to try the GPU with.

use std::time::{Duration, Instant};

use orind_kernels::catalogue::Unit;
use orind_kernels::cubin::Cubin;
use orind_kernels::first_light::Kernel;
use orind_kernels::prebuilt;
use orind_kernels::source::Target;
use tegra::Error;
use tegra::buffer::{Mailbox, Scratch};
use tegra::class::Compute;
use tegra::context::{self, Context, QueueId};
use tegra::local_memory::{LocalMemory, LocalMemorySize};
use tegra::orin::Orin;
use tegra::pushbuffer::{Engine, Entry, Payload, PushBuffer, Release};
use tegra::queue::Wake;
use tegra::space::{AddressSpace, Options, Range};

use super::Failure;
use super::launch::{Code, Described, Shape};

/// Longest wait for any work of a stage, hundreds of times what it should take.
pub const PATIENCE: Duration = Duration::from_secs(1);
/// How long an interrupt may take to wake a sleeper.
const WAKE_UP: Duration = Duration::from_millis(20);
/// Submissions that must each wake it.
const WAKE_UPS: usize = 4;
/// Ring entries: as many as programs had that were seen to run on an Orin.
const ENTRIES: u32 = 1024;

/// An open channel, and the stages it is put through. They may be asked for in any order and again; each
/// builds on those before it.
#[derive(Debug)]
pub struct Trial {
    // The context goes first: nothing runs while the rest is taken down.
    pub(super) context: Context,
    queue: QueueId,
    pub(super) space: AddressSpace,
    /// The time of the last release.
    released: u64,
    /// Why the last chains were not longer.
    pub(super) stopped: Option<Failure>,
    codes: [Code; Kernel::ALL.len()],
    _local: Scratch,
}

impl Trial {
    /// Stage 1, channel: address space, group and channel come up in the one order that works, with every
    /// address that the driver tells of below 2^40 and a doorbell token that is not 0.
    pub fn open(orin: &Orin, range: Range) -> Result<Self, Failure> {
        let space = AddressSpace::with(orin, Options { range, ..Options::default() })?;
        let refused = |problem: String| {
            let name = Unit::FirstLight.name();
            Failure::Kernel { name, problem }
        };
        let file = prebuilt::file(Unit::FirstLight, Target::Sm87)
            .ok_or_else(|| refused("there is no machine code for sm_87".into()))?;
        let cubin = Cubin::parse(&file).map_err(|error| refused(error.to_string()))?;
        let stack = cubin.kernels.iter().map(|kernel| kernel.stack_bytes).max().unwrap_or(0);
        let size = LocalMemorySize::new(stack, orin.tpcs())
            .ok_or_else(|| refused(format!("{stack} bytes of stack")))?;
        let mut codes = Vec::new();
        for kernel in Kernel::ALL {
            let built = cubin.kernel(kernel.symbol());
            let built = built.ok_or_else(|| refused(format!("no {}", kernel.symbol())))?;
            codes.push(Code::new(&space, built, size.per_thread, 0)?);
        }
        let Ok(codes) = codes.try_into() else { unreachable!("one for each kernel") };
        let local = Scratch::new(&space, size.total)?;

        // Launches here take microseconds. Until it is known that an interrupt wakes, none is waited for.
        let options =
            context::Options { spin: Duration::from_millis(1), ..context::Options::default() };
        let mut context = Context::new(&space, options)?;
        let queue = context.add_queue(Engine::Compute, ENTRIES)?;
        context.set_local_memory(LocalMemory::new(local.address(), size.per_tpc)?)?;
        context.open()?;
        let channel = context.channel(queue)?.ok_or(Failure::Closed)?;
        if channel.token() == 0 {
            return Err(Failure::Token);
        }
        // A driver that gives programs no syncpoints tells of no address.
        if let Err(Error::Address(error)) = channel.syncpoint() {
            return Err(error.into());
        }
        Ok(Self { context, queue, space, released: 0, stopped: None, codes, _local: local })
    }

    /// Stage 2, release: without any work the channel releases a semaphore with its payload and a time that
    /// does not go back, and then its timeline.
    pub fn release(&mut self) -> Result<(), Failure> {
        const STREAM: u64 = 256;
        let memory = Mailbox::new(&self.space, STREAM + 256)?;
        let expected = 0x0123_4567_89ab_cdef;
        let release = Release::new(memory.address(), Payload::Long(expected))?.with_timestamp()?;
        let mut stream = PushBuffer::<Compute>::new();
        stream.release(release);
        let body = memory.write_stream(STREAM, stream.words())?;
        for _ in 0..2 {
            memory.store_u64(0, 0)?;
            memory.store_u64(8, 0)?;
            self.run(body)?;
            let (found, stamp) = (memory.load_u64(0)?, memory.load_u64(8)?);
            if found != expected {
                return Err(Failure::Release { expected, found });
            }
            if stamp == 0 || stamp < self.released {
                return Err(Failure::Time { earliest: self.released, stamp });
            }
            self.released = stamp;
        }
        Ok(())
    }

    /// Stage 3, event: whether the interrupt behind a submission wakes who sleeps until it, within 20 ms.
    /// Where it does not, completion must be polled for.
    pub fn event(&mut self) -> Result<bool, Failure> {
        for _ in 0..WAKE_UPS {
            // The event stays raised until it is taken: what came before tells nothing.
            self.context.sleep(Duration::ZERO)?;
            let ticket = self.context.submit(self.queue, &[], Wake::Interrupt)?;
            let started = Instant::now();
            let mut left = WAKE_UP;
            let mut woken = false;
            // A signal ends a sleep too.
            while !woken && !left.is_zero() {
                woken = self.context.sleep(left)?;
                left = WAKE_UP.saturating_sub(started.elapsed());
            }
            self.finish(ticket)?;
            if !woken {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Submits a stream and waits. Whatever goes wrong, nothing of it runs afterwards.
    pub(super) fn run(&mut self, body: Entry) -> Result<(), Error> {
        let ticket = self.context.submit(self.queue, &[body], Wake::Quiet)?;
        self.finish(ticket)
    }

    fn finish(&mut self, ticket: context::Ticket) -> Result<(), Error> {
        let result = self.context.wait(ticket, PATIENCE);
        if result.is_err() {
            // What cannot be made anew says so when it is used next.
            let _ = self.context.rebuild();
        }
        result
    }

    /// A launch of a kernel on a grid.
    pub(super) fn describe(&self, kernel: Kernel, grid: [u32; 3], params: &[u8]) -> Described {
        let (block, dynamic_shared) = (kernel.block(), kernel.dynamic_shared());
        let shape = Shape { grid, block, dynamic_shared };
        self.codes[kernel as usize].launch(&self.space, shape, params)
    }

    /// As many blocks as there are SMs.
    pub(super) fn one_each(&self) -> [u32; 3] {
        [self.space.orin().sms().max(1), 1, 1]
    }
}
