//! One loaded model on the CPU, behind the asynchronous device interface.
//!
//! A thread executes submissions in order, together with the pool. From the submission of a plan until the caller
//! has waited for it, the plan's mailboxes and outputs belong to that thread; the queue's lock transfers ownership.
//! Writes in the meantime travel with the next submission.

use std::collections::VecDeque;
use std::iter;
use std::num::NonZeroUsize;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread::{self, JoinHandle};
use std::time::Instant;

use parking_lot::{Condvar, FairMutex, Mutex, MutexGuard};

use super::check::check;
use super::context::{Context, SamplingScratch};
use super::execute;
use super::layout::WeightStorage;
use super::memory::{Memory, PlanMemory};
use super::packed_operand::Pack;
use super::pool::Pool;
use super::program::Program;
use super::width::{Width, plain_weight};
use crate::ledger::{Ledger, Write};
use crate::tune::Choices;
use crate::{
    Canceller, Data, Error, Footprint, Instance, MAX_SUBMISSIONS, Part, Prepared, Profile, Scope,
    Source, Ticket, Timing, WeightSource,
};
use plan::{BufferId, DType, Plan, quant};
use simd::Isa;
use simd::packed::PackedLayout;

/// Raw bytes of a weight that a thread reads and packs at a time: they stay in its second-level cache.
const UPLOAD: usize = 256 << 10;

/// Lock of the instance whose step runs. Threads of a pool spin at barriers, and lose a whole time slice if another
/// pool occupies their processors. Instances with several threads therefore run one step at a time, in the order of
/// their requests.
static STEP_LOCK: FairMutex<()> = FairMutex::new(());

/// One submission.
struct Task {
    program: Arc<Program>,
    sequence: u64,
    /// Steps of the plan before this submission, and steps in it.
    first: u64,
    steps: u32,
    /// Mailbox writes before the first step.
    writes: Vec<Write<'static>>,
}

/// Reason why a step has not finished. The instance is lost.
#[derive(Clone, Copy)]
enum Ended {
    Panicked,
    Cancelled,
}

impl Ended {
    const fn reason(self) -> &'static str {
        match self {
            Self::Panicked => "a kernel panicked",
            Self::Cancelled => "the run was cancelled",
        }
    }
}

impl Task {
    /// Carries out the writes, then the steps.
    ///
    /// # Safety
    ///
    /// Earlier submissions have finished, and no other code accesses the plan's buffers or the memory meanwhile.
    unsafe fn execute(
        &self,
        isa: Isa,
        memory: &Memory,
        pool: &mut Pool,
        sampling: &SamplingScratch,
        canceller: &Canceller,
    ) -> Result<(), Ended> {
        for write in &self.writes {
            // SAFETY: the caller's contract.
            unsafe { write_mailbox(&self.program, write) };
        }
        for step in self.first..self.first + u64::from(self.steps) {
            let _turn = (pool.threads() > 1).then(|| STEP_LOCK.lock());
            // SAFETY: the caller's contract.
            let run = || unsafe {
                let run = Run { program: &self.program, canceller, clock: None };
                execute_and_record_tokens(isa, memory, pool, sampling, &run, step)
            };
            match catch_unwind(AssertUnwindSafe(run)) {
                Ok(true) => {}
                Ok(false) => return Err(Ended::Cancelled),
                Err(_) => return Err(Ended::Panicked),
            }
        }
        Ok(())
    }
}

/// State shared by the caller and the executing thread.
struct Queue {
    tasks: VecDeque<Task>,
    /// Number of the last submission that has finished.
    finished: u64,
    /// Reason why no further submission will finish.
    lost: Option<String>,
    stop: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    submitted: Condvar,
    done: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock()
    }
}

/// State of a prepared plan.
struct PlanState {
    program: Arc<Program>,
    labels: Vec<String>,
}

/// Carries out a write to a mailbox.
///
/// # Safety
///
/// No other code accesses the plan's mailboxes meanwhile.
unsafe fn write_mailbox(program: &Program, write: &Write<'_>) {
    // SAFETY: the ledger has checked the range; the rest is the caller's contract.
    unsafe {
        let to = program.buffers.at(write.offset);
        to.copy_from_nonoverlapping(write.bytes.as_ptr(), write.bytes.len());
    }
}

/// Execution of a program.
#[derive(Clone, Copy)]
struct Run<'a> {
    program: &'a Program,
    canceller: &'a Canceller,
    /// Nanoseconds of each kernel call, to add to.
    clock: Option<&'a [AtomicU64]>,
}

/// Executes step `step` of a plan, and copies its tokens to the ring. Returns false if it was cancelled.
///
/// # Safety
///
/// As [`execute_step`].
unsafe fn execute_and_record_tokens(
    isa: Isa,
    memory: &Memory,
    pool: &mut Pool,
    sampling: &SamplingScratch,
    run: &Run<'_>,
    step: u64,
) -> bool {
    // SAFETY: the caller's contract; every position of the ring has space for a step's tokens.
    unsafe {
        if !execute_step(isa, memory, pool, sampling, run) {
            return false;
        }
        if let Some((ids, rows)) = run.program.sampled {
            let buffers = &run.program.buffers;
            let ring = buffers.at(buffers.buffers().ring_at(step)).cast::<i32>();
            ring.copy_from_nonoverlapping(ids, rows);
        }
    }
    true
}

/// The memory of one model and the thread that runs its plans.
pub(super) struct CpuInstance {
    isa: Isa,
    choices: Choices,
    sampling: Arc<SamplingScratch>,
    footprint: Footprint,
    memory: Arc<Memory>,
    pool: Arc<Mutex<Pool>>,
    /// A pool of only the calling thread, for programs that are too small to wake others.
    caller_pool: Pool,
    shared: Arc<Shared>,
    canceller: Canceller,
    runner: Option<JoinHandle<()>>,
    ledger: Ledger<PlanState>,
}

impl CpuInstance {
    pub(super) fn new(
        isa: Isa,
        memory: Memory,
        pool: Pool,
        choices: Choices,
    ) -> std::io::Result<Self> {
        let footprint = memory.layout().footprint(pool.threads());
        let sampling =
            Arc::new(SamplingScratch::new(pool.threads(), memory.workspace().vocabulary));
        let (memory, pool) = (Arc::new(memory), Arc::new(Mutex::new(pool)));
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                tasks: VecDeque::with_capacity(MAX_SUBMISSIONS),
                finished: 0,
                lost: None,
                stop: false,
            }),
            submitted: Condvar::new(),
            done: Condvar::new(),
        });
        let canceller = Canceller::default();
        let runner = thread::Builder::new().name("cpu-0".into()).spawn({
            let (memory, pool, shared) = (memory.clone(), pool.clone(), shared.clone());
            let (sampling, canceller) = (sampling.clone(), canceller.clone());
            move || run(isa, &memory, &pool, &shared, &sampling, &canceller)
        })?;
        let (runner, ledger) = (Some(runner), Ledger::new());
        let caller_pool = Pool::new(NonZeroUsize::MIN)?;
        Ok(Self {
            isa,
            choices,
            sampling,
            footprint,
            memory,
            pool,
            caller_pool,
            shared,
            canceller,
            runner,
            ledger,
        })
    }

    /// Fills the `count` matrices of the weight at `address`.
    fn pack(
        &mut self,
        address: *mut u8,
        count: usize,
        layout: &PackedLayout,
        source: &dyn WeightSource,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Source> {
        let mut pool = self.pool.lock();
        // SAFETY: the weight's own bytes; nothing runs, and `&mut self` excludes other access.
        let packed = unsafe { std::slice::from_raw_parts_mut(address, count * layout.bytes()) };
        pack(&mut pool, layout, packed, source, progress)
    }

    /// Reads one storage form of a weight from its source.
    fn load(
        &mut self,
        address: *mut u8,
        storage: WeightStorage,
        source: &dyn WeightSource,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Source> {
        match storage {
            WeightStorage::Plain(n, dtype) if plain_weight(dtype) != Width::Word => {
                // SAFETY: as below, for bytes.
                let bytes = unsafe { std::slice::from_raw_parts_mut(address, n) };
                for (i, part) in bytes.chunks_mut(UPLOAD).enumerate() {
                    source.read_at((i * UPLOAD) as u64, part)?;
                    progress(part.len() as u64);
                }
                Ok(())
            }
            WeightStorage::Plain(n, dtype) => {
                // SAFETY: the weight has `n` values, and nothing runs; `&mut self` excludes other access.
                let values = unsafe { std::slice::from_raw_parts_mut(address.cast::<f32>(), n) };
                read_plain(dtype, values, source, progress)
            }
            WeightStorage::Product(operand) => {
                let mut values = vec![0.0; operand.elements()];
                read_plain(DType::F32, &mut values, source, progress)?;
                let (isa, from) = (self.isa, values.as_ptr());
                let pack = Pack { operand, axes: vec![operand.matrices], from, to: address.cast() };
                // SAFETY: the weight's own bytes, and all its values; nothing runs, and `&mut self` excludes other
                // access.
                self.pool.lock().run(&|w| unsafe { pack.run(isa, w) });
                Ok(())
            }
            WeightStorage::Matrix(layout) => self.pack(address, 1, &layout, source, progress),
            WeightStorage::Experts(count, layout) => {
                self.pack(address, count, &layout, source, progress)
            }
        }
    }
}

fn lost(reason: &str) -> Error {
    Error::Lost {
        scope: Scope::Instance,
        rebuildable: true,
        reason: reason.to_owned(),
        source: None,
    }
}

impl Instance for CpuInstance {
    fn footprint(&self) -> Footprint {
        self.footprint
    }

    fn blocks(&self) -> u32 {
        self.memory.blocks()
    }

    fn map(&mut self, slot: u32, blocks: &[u32]) -> Result<(), Error> {
        self.ledger.quiet("blocks cannot change slots")?;
        // SAFETY: no submission is running.
        unsafe { self.memory.map(slot, blocks) }
    }

    fn copy_part(&mut self, from: Part, to: Part) -> Result<(), Error> {
        self.ledger.quiet("slots cannot be copied")?;
        // SAFETY: no submission is running.
        unsafe { self.memory.copy_part(from, to) }
    }

    fn part_bytes(&self, part: Part) -> Option<usize> {
        Some(self.memory.part_bytes(part))
    }

    fn read_part(&mut self, part: Part, out: &mut [u8]) -> Result<(), Error> {
        self.ledger.quiet("slots cannot be read")?;
        // SAFETY: no submission is running.
        unsafe { self.memory.read_part(part, out) }
    }

    fn write_part(&mut self, part: Part, bytes: &[u8]) -> Result<(), Error> {
        self.ledger.quiet("slots cannot be written")?;
        // SAFETY: no submission is running.
        unsafe { self.memory.write_part(part, bytes) }
    }

    fn upload(
        &mut self,
        weight: &str,
        source: &dyn WeightSource,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Error> {
        let Some((address, storage)) = self.memory.weight(weight) else {
            return Err(Error::Invalid(format!("weight `{weight}` is not part of the request")));
        };
        self.ledger.quiet("weights cannot change")?;
        let failed = |source| Error::Weight { weight: weight.to_owned(), source };
        self.load(address, storage, source, progress).map_err(failed)?;
        let Some((address, storage)) = self.memory.plain_copy(weight) else { return Ok(()) };
        // Uploading the second copy does not count as progress.
        self.load(address, storage, source, &|_| {}).map_err(failed)
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Prepared, Error> {
        let choices = self.choices.clone();
        self.prepare_as(plan, &choices)
    }

    fn prepare_as(&mut self, plan: &Plan, choices: &Choices) -> Result<Prepared, Error> {
        check(plan)?;
        self.memory.admits(plan)?;
        let buffers = PlanMemory::new(plan)?;
        let layout = buffers.buffers().clone();
        let program = Program::new(plan, &self.memory, buffers, self.isa, Some(choices))?;
        let labels = plan.steps.iter().map(|step| step.label.clone()).collect();
        self.ledger.add(layout, PlanState { program: Arc::new(program), labels })
    }

    fn write(
        &mut self,
        prepared: Prepared,
        mailbox: BufferId,
        at: usize,
        data: Data<'_>,
    ) -> Result<(), Error> {
        self.ledger.write(prepared, mailbox, at, data, |state, write| {
            // SAFETY: the plan is not running, and `&mut self` excludes other access.
            unsafe { write_mailbox(&state.program, write) };
            Ok(())
        })
    }

    fn submit(&mut self, prepared: Prepared, steps: u32) -> Result<Ticket, Error> {
        let program = self.ledger.admit(prepared, steps)?.state.program.clone();
        let mut queue = self.shared.lock();
        if let Some(reason) = &queue.lost {
            return Err(self.ledger.lose(lost(reason)));
        }
        let writes = self.ledger.staged(prepared)?;
        let ticket = self.ledger.submitted(prepared, steps)?;
        let Ticket { sequence, first, .. } = ticket;
        let task = Task { program, sequence, first, steps, writes };
        if task.program.small && queue.finished + 1 == sequence {
            drop(queue);
            // SAFETY: nothing else is running, and `&mut self` excludes other access.
            let done = unsafe {
                let (memory, pool) = (&self.memory, &mut self.caller_pool);
                task.execute(self.isa, memory, pool, &self.sampling, &self.canceller)
            };
            return match (done, self.shared.lock()) {
                (Ok(()), mut queue) => {
                    queue.finished = sequence;
                    Ok(ticket)
                }
                (Err(ended), mut queue) => {
                    queue.lost = Some(ended.reason().into());
                    Err(self.ledger.lose(lost(ended.reason())))
                }
            };
        }
        queue.tasks.push_back(task);
        drop(queue);
        self.shared.submitted.notify_one();
        Ok(ticket)
    }

    fn canceller(&self) -> Option<Canceller> {
        Some(self.canceller.clone())
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), Error> {
        if !self.ledger.is_open(ticket)? {
            return Ok(());
        }
        let mut queue = self.shared.lock();
        while queue.finished < ticket.sequence {
            if let Some(reason) = &queue.lost {
                return Err(self.ledger.lose(lost(reason)));
            }
            self.shared.done.wait(&mut queue);
        }
        self.ledger.finished(ticket);
        Ok(())
    }

    fn profile(&mut self, prepared: Prepared) -> Result<Profile, Error> {
        self.ledger.quiet("a step cannot be timed")?;
        let begin = Instant::now();
        let ticket = self.submit(prepared, 1)?;
        self.wait(ticket)?;
        let whole = begin.elapsed();
        let PlanState { program, labels } = &self.ledger.entry(prepared)?.state;
        let clock: Vec<AtomicU64> = program.calls.iter().map(|_| AtomicU64::new(0)).collect();
        let (isa, memory, sampling) = (self.isa, &self.memory, &self.sampling);
        let mut pool = self.pool.lock();
        let (pool, step) = (&mut *pool, ticket.first + 1);
        // SAFETY: nothing is running, and `&mut self` excludes other access to the buffers and the memory.
        unsafe {
            let never = Canceller::default();
            let run = Run { program, canceller: &never, clock: Some(&clock) };
            execute_and_record_tokens(isa, memory, pool, sampling, &run, step);
        };
        let mut timings = Vec::with_capacity(clock.len());
        let mut from = 0;
        for (step, (label, &end)) in labels.iter().zip(&program.ends).enumerate() {
            for (call, clock) in program.calls[from..end].iter().zip(&clock[from..end]) {
                timings.push(Timing {
                    step,
                    label: label.clone(),
                    kernel: call.name().to_owned(),
                    nanoseconds: clock.load(Ordering::Relaxed),
                });
            }
            from = end;
        }
        let ticket = self.ledger.submitted(prepared, 1)?;
        self.shared.lock().finished = ticket.sequence;
        self.ledger.finished(ticket);
        Ok(Profile { timings, serialised: false, whole })
    }

    fn tokens(&self, ticket: Ticket, step: u32, out: &mut [i32]) -> Result<(), Error> {
        let (entry, at) = self.ledger.tokens(ticket, step, out.len())?;
        let ring = entry.state.program.buffers.at(at).cast::<i32>();
        // SAFETY: the step has finished, and no submitted step writes the same entry of the ring: the ledger has
        // checked both. A new submission would need `&mut self`.
        unsafe { out.as_mut_ptr().copy_from_nonoverlapping(ring, out.len()) };
        Ok(())
    }

    fn read(
        &self,
        prepared: Prepared,
        output: BufferId,
        at: usize,
        out: &mut [f32],
    ) -> Result<(), Error> {
        let (entry, offset) = self.ledger.output(prepared, output, at, out.len())?;
        let from = entry.state.program.buffers.at(offset).cast::<f32>();
        // SAFETY: the ledger has checked range and type, and that the plan is not running.
        unsafe { out.as_mut_ptr().copy_from_nonoverlapping(from, out.len()) };
        Ok(())
    }
}

impl Drop for CpuInstance {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.submitted.notify_one();
        if let Some(runner) = self.runner.take() {
            // The thread catches the panics of kernels itself.
            let _ = runner.join();
        }
    }
}

/// Reads plain values, and decodes types other than 4-byte ones.
fn read_plain(
    dtype: DType,
    values: &mut [f32],
    source: &dyn WeightSource,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), Source> {
    let each = UPLOAD.next_multiple_of(dtype.block_len());
    let mut bytes = Vec::new();
    for (i, values) in values.chunks_mut(each).enumerate() {
        bytes.resize(values.len() / dtype.block_len() * dtype.block_bytes(), 0);
        let start = i * each / dtype.block_len() * dtype.block_bytes();
        source.read_at(start as u64, &mut bytes)?;
        quant::widen(dtype, &bytes, values)?;
        progress(bytes.len() as u64);
    }
    Ok(())
}

/// Reads matrices of one layout and packs them, in parallel.
fn pack(
    pool: &mut Pool,
    layout: &PackedLayout,
    packed: &mut [u8],
    source: &dyn WeightSource,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), Source> {
    /// The packed bytes, which threads write in disjoint units.
    struct Packed(*mut u8);
    // SAFETY: used for disjoint ranges only, below.
    unsafe impl Sync for Packed {}
    impl Packed {
        /// # Safety
        ///
        /// `start..start + len` is inside, and no other slice of it exists.
        #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's contract")]
        unsafe fn slice(&self, start: usize, len: usize) -> &mut [u8] {
            // SAFETY: the caller's contract.
            unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
        }
    }
    let raw_unit = layout.interleave() * simd::vector::LANES * layout.raw_row_bytes();
    let raw_matrix = layout.rows() * layout.raw_row_bytes();
    let bytes = layout.interleave() * layout.group_bytes();
    let units = layout.groups().div_ceil(layout.interleave());
    let total = packed.len() / layout.bytes().max(1) * units;
    let per_claim = (UPLOAD / raw_unit.max(1)).max(1);
    let target = Packed(packed.as_mut_ptr());
    let failure = Mutex::new(None);
    let stopped = || failure.lock().is_some();
    pool.run(&|w| {
        let mut raw = vec![0u8; per_claim * raw_unit];
        while let Some(claim) = w.claim(total, per_claim) {
            // A claim may span several matrices, whose last units are shorter.
            let of = |unit: usize, whole: usize, each: usize| {
                unit / units * whole + (unit % units * each).min(whole)
            };
            let start = of(claim.start, raw_matrix, raw_unit);
            let end = of(claim.end, raw_matrix, raw_unit);
            let raw = &mut raw[..end - start];
            if let Err(e) = source.read_at(start as u64, raw) {
                failure.lock().get_or_insert(e);
            }
            if stopped() {
                return;
            }
            for unit in claim {
                let (first, last) =
                    (of(unit, raw_matrix, raw_unit), of(unit + 1, raw_matrix, raw_unit));
                let (to, end_of) =
                    (of(unit, layout.bytes(), bytes), of(unit + 1, layout.bytes(), bytes));
                // SAFETY: claims are disjoint, and within the matrices.
                let target = unsafe { target.slice(to, end_of - to) };
                layout.pack_groups(&raw[first - start..last - start], target);
            }
            progress((end - start) as u64);
        }
    });
    match failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// Body of the executing thread, until the instance is dropped.
fn run(
    isa: Isa,
    memory: &Memory,
    pool: &Mutex<Pool>,
    shared: &Shared,
    sampling: &SamplingScratch,
    canceller: &Canceller,
) {
    loop {
        let mut queue = shared.lock();
        let task = loop {
            if queue.stop {
                return;
            }
            if let Some(task) = queue.tasks.pop_front() {
                break task;
            }
            shared.submitted.wait(&mut queue);
        };
        drop(queue);
        let mut pool = pool.lock();
        // SAFETY: this submission is running, so its buffers belong to this thread; there is only one such thread,
        // so the memory does too.
        if let Err(ended) = unsafe { task.execute(isa, memory, &mut pool, sampling, canceller) } {
            shared.lock().lost = Some(ended.reason().into());
            shared.done.notify_all();
            return;
        }
        shared.lock().finished = task.sequence;
        shared.done.notify_all();
    }
}

/// Executes a program once. Adds the nanoseconds of each kernel call, barrier included, to the clock. Returns false if it
/// was cancelled.
///
/// # Safety
///
/// The program was resolved for this memory; no other code accesses either meanwhile.
unsafe fn execute_step(
    isa: Isa,
    memory: &Memory,
    pool: &mut Pool,
    sampling: &SamplingScratch,
    run: &Run<'_>,
) -> bool {
    let Run { program, canceller, clock } = *run;
    // Number of the last call. The first thread writes it before the barrier of that call, so all threads leave there.
    let last = AtomicUsize::new(usize::MAX);
    // SAFETY: the caller's contract.
    unsafe {
        let (rows, active) = (program.rows, program.active());
        let context = Context { isa, memory, sampling, rows, active };
        pool.run(&|w| {
            let clock = clock.filter(|_| w.index() == 0);
            let mut begin = clock.map(|_| Instant::now());
            let mut before = 0;
            for block in &program.blocks {
                let end = before + block.count * block.calls.len();
                let alone = block.alone && w.threads() > 1;
                let own = if alone { w.alone() } else { None };
                let calls = iter::repeat_n(block.calls.clone(), block.count).flatten();
                for (number, i) in (before..end).zip(calls) {
                    // Threads that have nothing to do meet the first one behind the block.
                    if alone && own.is_none() {
                        break;
                    }
                    let w = own.as_ref().unwrap_or(w);
                    execute::run(&program.calls[i], &context, w);
                    if w.index() == 0 && canceller.is_cancelled() {
                        last.store(number, Ordering::Relaxed);
                    }
                    w.barrier();
                    if last.load(Ordering::Relaxed) == number {
                        break;
                    }
                    if let (Some(clock), Some(begin)) = (clock, &mut begin) {
                        let end = Instant::now();
                        let spent = end.duration_since(std::mem::replace(begin, end));
                        let nanoseconds = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
                        clock[i].fetch_add(nanoseconds, Ordering::Relaxed);
                    }
                }
                if alone {
                    w.barrier();
                }
                // Later calls have greater numbers.
                if last.load(Ordering::Relaxed) < end {
                    return;
                }
                before = end;
            }
        });
    }
    last.into_inner() == usize::MAX
}
