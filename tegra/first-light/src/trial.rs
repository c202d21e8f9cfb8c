//! The channel under test, and bring-up steps 1 to 3.

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
use super::launch::{Code, DescribedLaunch, Shape};

/// Timeout of any work of a step, hundreds of times its normal duration.
pub const TIMEOUT: Duration = Duration::from_secs(1);
/// Time limit for an interrupt to wake a sleeper.
const WAKE_UP: Duration = Duration::from_millis(20);
/// Submissions that must each wake it.
const WAKE_UPS: usize = 4;
/// Ring entries: as in the programs that were seen to run on an Orin.
const ENTRIES: u32 = 1024;

/// An open channel and the steps that test it. Steps may run in any order and repeatedly; each
/// builds on the earlier ones.
#[derive(Debug)]
pub struct Trial {
    // Dropped first: nothing runs while the rest is torn down.
    pub(super) context: Context,
    queue: QueueId,
    pub(super) space: AddressSpace,
    /// Timestamp of the last release.
    released: u64,
    /// The failure that ended the last chains.
    pub(super) stopped: Option<Failure>,
    codes: [Code; Kernel::ALL.len()],
    _local: Scratch,
}

impl Trial {
    /// Step 1, channel: creates address space, group and channel in the one order that works. Every
    /// address that the driver reports must be below 2^40, and the doorbell token not 0.
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

        // Launches here take microseconds. Interrupts are not proven yet, so waits must not depend
        // on them.
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
        // A driver without user-mode syncpoints reports no address.
        if let Err(Error::Address(error)) = channel.syncpoint() {
            return Err(error.into());
        }
        Ok(Self { context, queue, space, released: 0, stopped: None, codes, _local: local })
    }

    /// Step 2, release: without any work the channel releases a semaphore with its payload and a
    /// timestamp that never decreases, and then its timeline.
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

    /// Step 3, event: returns `true` if a submission's interrupt wakes a sleeper within 20 ms.
    /// Otherwise completion must be polled.
    pub fn event(&mut self) -> Result<bool, Failure> {
        for _ in 0..WAKE_UPS {
            // The event stays raised until a wait clears it: clear any earlier interrupt.
            self.context.sleep(Duration::ZERO)?;
            let ticket = self.context.submit(self.queue, &[], Wake::Interrupt)?;
            let started = Instant::now();
            let mut left = WAKE_UP;
            let mut woken = false;
            // A signal also ends a sleep.
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

    /// Submits a stream and waits. After an error, nothing of it is still running.
    pub(super) fn run(&mut self, body: Entry) -> Result<(), Error> {
        let ticket = self.context.submit(self.queue, &[body], Wake::Quiet)?;
        self.finish(ticket)
    }

    fn finish(&mut self, ticket: context::Ticket) -> Result<(), Error> {
        let result = self.context.wait(ticket, TIMEOUT);
        if result.is_err() {
            // A failed rebuild is reported by the next use of the context.
            let _ = self.context.rebuild();
        }
        result
    }

    /// Describes a launch of a kernel on a grid.
    pub(super) fn describe(
        &self,
        kernel: Kernel,
        grid: [u32; 3],
        params: &[u8],
    ) -> DescribedLaunch {
        let (block, dynamic_shared) = (kernel.block(), kernel.dynamic_shared());
        let shape = Shape { grid, block, dynamic_shared };
        self.codes[kernel as usize].launch(&self.space, shape, params)
    }

    /// A grid with one block for each SM.
    pub(super) fn one_each(&self) -> [u32; 3] {
        [self.space.orin().sms().max(1), 1, 1]
    }
}
