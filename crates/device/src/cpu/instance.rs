//! One loaded model on the CPU, behind the asynchronous seam.
//!
//! A thread of its own executes submissions in order, together with the pool. Mailboxes and outputs
//! belong to that thread from a submission of their plan until the caller has waited for it; the
//! queue's lock hands them over.

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::Isa;
use super::execute::{self, Context, Work};
use super::mem::AlignedBuf;
use super::memory::{Form, Memory, own_bytes};
use super::packed::PackedLayout;
use super::pool::Pool;
use super::program::{self, Program};
use crate::tune::Choices;
use crate::{Data, Error, Footprint, Instance, Prepared, RING_STEPS, Scope, Ticket, WeightSource};
use plan::{BufferId, Class, DType, Plan};

/// Submissions that can be under way at once.
const QUEUE: u64 = 8;

/// Raw bytes of a weight that a thread reads and packs at a time: they stay in its second-level cache.
const UPLOAD: usize = 256 << 10;

/// A plan's own buffers: mailboxes, outputs, and the ring of sampled tokens.
pub(super) struct Own {
    buf: AlignedBuf,
    /// Byte offset, element count and type of each buffer that lives here.
    places: Vec<Option<(usize, usize, DType, Class)>>,
    ring: usize,
}

impl Own {
    fn new(plan: &Plan) -> std::io::Result<Self> {
        let mut offset = 0;
        let mut place = |b: &plan::Buffer| {
            matches!(b.class, Class::Mailbox | Class::Output).then(|| {
                let at = offset;
                offset += (4 * b.elements()).next_multiple_of(64);
                (at, b.elements(), b.dtype, b.class)
            })
        };
        let places = plan.buffers.iter().map(&mut place).collect();
        Ok(Self { buf: AlignedBuf::new(own_bytes(plan))?, places, ring: offset })
    }

    /// Address of a mailbox or output.
    pub(super) fn address(&self, buffer: BufferId) -> Option<*mut u8> {
        let (offset, ..) = (*self.places.get(buffer.index())?)?;
        // SAFETY: offsets are inside the buffer.
        Some(unsafe { self.buf.start().add(offset) }.as_ptr())
    }

    /// Address of `len` elements of a buffer from `at`, if it has that class and type and they
    /// are inside.
    fn range(
        &self,
        buffer: BufferId,
        (class, dtype): (Class, DType),
        at: usize,
        len: usize,
    ) -> Result<*mut u8, Error> {
        let place = self.places.get(buffer.index()).copied().flatten();
        let end = at.checked_add(len);
        match place {
            Some((offset, n, t, c))
                if c == class && t == dtype && end.is_some_and(|end| end <= n) =>
            {
                // SAFETY: inside the buffer, as just checked.
                Ok(unsafe { self.buf.start().add(offset + 4 * at) }.as_ptr())
            }
            _ => Err(Error::Invalid(format!(
                "{len} elements of {dtype} from {at} of {class:?} {}",
                buffer.0
            ))),
        }
    }

    /// Where the tokens of a step are kept.
    fn ring(&self, step: usize, rows: usize) -> *mut i32 {
        // SAFETY: the ring follows the buffers; callers keep `step` below its length.
        unsafe { self.buf.start().add(self.ring + 4 * step * rows) }.as_ptr().cast()
    }
}

/// One submission.
struct Task {
    program: Arc<Program>,
    sequence: u64,
    steps: u32,
}

/// What the two sides know of each other.
struct Queue {
    tasks: VecDeque<Task>,
    /// Submissions up to this one have finished.
    finished: u64,
    /// Steps of the next one that have.
    steps: u32,
    /// Why no submission will ever finish again.
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

struct Entry {
    program: Arc<Program>,
    /// Its latest submission, 0 for none.
    latest: u64,
}

/// The memory of one model and the thread that runs its plans.
pub(super) struct CpuInstance {
    isa: Isa,
    choices: Choices,
    work: Arc<Work>,
    footprint: Footprint,
    memory: Arc<Memory>,
    pool: Arc<Mutex<Pool>>,
    shared: Arc<Shared>,
    runner: Option<JoinHandle<()>>,
    entries: Vec<Entry>,
    /// The latest submission.
    sequence: u64,
    /// The latest submission that the caller has waited for.
    waited: u64,
}

impl CpuInstance {
    pub(super) fn new(
        isa: Isa,
        memory: Memory,
        pool: Pool,
        choices: Choices,
    ) -> std::io::Result<Self> {
        let footprint = memory.layout().footprint(pool.threads());
        let work = Arc::new(Work::new(pool.threads(), memory.working().vocabulary));
        let (memory, pool) = (Arc::new(memory), Arc::new(Mutex::new(pool)));
        let shared = Arc::new(Shared {
            queue: Mutex::new(Queue {
                tasks: VecDeque::with_capacity(QUEUE as usize),
                finished: 0,
                steps: 0,
                lost: None,
                stop: false,
            }),
            submitted: Condvar::new(),
            done: Condvar::new(),
        });
        let runner = thread::Builder::new().name("cpu-0".into()).spawn({
            let (memory, pool, shared) = (memory.clone(), pool.clone(), shared.clone());
            let work = work.clone();
            move || run(isa, &memory, &pool, &shared, &work)
        })?;
        let (runner, entries) = (Some(runner), Vec::new());
        let (sequence, waited) = (0, 0);
        Ok(Self {
            isa,
            choices,
            work,
            footprint,
            memory,
            pool,
            shared,
            runner,
            entries,
            sequence,
            waited,
        })
    }

    fn entry(&self, prepared: Prepared) -> Result<&Entry, Error> {
        self.entries
            .get(prepared.0 as usize)
            .ok_or_else(|| Error::Invalid(format!("no plan {}", prepared.0)))
    }

    /// A plan resolved under some choices.
    fn program(&self, plan: &Plan, choices: &Choices) -> Result<Program, Error> {
        program::check(plan)?;
        self.memory.admits(plan)?;
        let own = Own::new(plan).map_err(|e| Error::OutOfMemory {
            what: format!("mailboxes and outputs ({e})"),
            need: own_bytes(plan) as u64,
            have: 0,
        })?;
        Program::new(plan, &self.memory, own, self.isa, Some(choices))
    }

    fn add(&mut self, program: Program) -> Prepared {
        self.entries.push(Entry { program: Arc::new(program), latest: 0 });
        Prepared(u32::try_from(self.entries.len() - 1).unwrap_or(u32::MAX))
    }

    /// The plan, when the caller may touch its buffers.
    fn idle(&self, prepared: Prepared) -> Result<&Program, Error> {
        let entry = self.entry(prepared)?;
        if entry.latest > self.waited {
            return Err(Error::Invalid(format!("plan {} is under way", prepared.0)));
        }
        Ok(&entry.program)
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

    fn upload(
        &mut self,
        weight: &str,
        source: &dyn WeightSource,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Result<(), Error> {
        let Some((address, form)) = self.memory.weight(weight) else {
            return Err(Error::Invalid(format!("weight `{weight}` is not part of the request")));
        };
        if self.sequence > self.waited {
            return Err(Error::Invalid("weights cannot change while plans are under way".into()));
        }
        let failed = |source| Error::Weight { weight: weight.to_owned(), source };
        match form {
            Form::Plain(n) => {
                let mut bytes = vec![0u8; 4 * n];
                source.read_at(0, &mut bytes).map_err(failed)?;
                for (i, value) in bytes.as_chunks::<4>().0.iter().enumerate() {
                    // SAFETY: the weight holds `n` values, and nothing runs.
                    unsafe { *address.cast::<f32>().add(i) = f32::from_le_bytes(*value) };
                }
                progress(bytes.len() as u64);
                Ok(())
            }
            Form::Packed(layout) => {
                // SAFETY: the weight's own bytes; nothing runs, and `&mut self` is the only door.
                let packed = unsafe { std::slice::from_raw_parts_mut(address, layout.bytes()) };
                let mut pool = self.pool.lock();
                pack(&mut pool, &layout, packed, source, progress).map_err(failed)
            }
        }
    }

    fn prepare(&mut self, plan: &Plan) -> Result<Prepared, Error> {
        let program = self.program(plan, &self.choices)?;
        Ok(self.add(program))
    }

    fn prepare_as(&mut self, plan: &Plan, choices: &Choices) -> Result<Prepared, Error> {
        let program = self.program(plan, choices)?;
        Ok(self.add(program))
    }

    fn write(
        &mut self,
        prepared: Prepared,
        mailbox: BufferId,
        at: usize,
        data: Data<'_>,
    ) -> Result<(), Error> {
        let own = &self.idle(prepared)?.own;
        // SAFETY: `range` checks bounds and type, `idle` that nobody else touches the mailbox.
        unsafe {
            match data {
                Data::I32(values) => own
                    .range(mailbox, (Class::Mailbox, DType::I32), at, values.len())?
                    .cast::<i32>()
                    .copy_from_nonoverlapping(values.as_ptr(), values.len()),
                Data::F32(values) => own
                    .range(mailbox, (Class::Mailbox, DType::F32), at, values.len())?
                    .cast::<f32>()
                    .copy_from_nonoverlapping(values.as_ptr(), values.len()),
            }
        }
        Ok(())
    }

    fn submit(&mut self, prepared: Prepared, steps: u32) -> Result<Ticket, Error> {
        if steps == 0 || steps > RING_STEPS {
            return Err(Error::Invalid(format!(
                "{steps} steps, 1 to {RING_STEPS} can be submitted"
            )));
        }
        let program = self.entry(prepared)?.program.clone();
        let mut queue = self.shared.lock();
        if let Some(reason) = &queue.lost {
            return Err(lost(reason));
        }
        if self.sequence - self.waited == QUEUE {
            return Err(Error::Invalid(format!(
                "{QUEUE} submissions are under way already: wait for the first"
            )));
        }
        self.sequence += 1;
        let sequence = self.sequence;
        queue.tasks.push_back(Task { program, sequence, steps });
        drop(queue);
        self.shared.submitted.notify_one();
        self.entries[prepared.0 as usize].latest = sequence;
        Ok(Ticket { prepared, sequence, steps })
    }

    fn completed(&self, ticket: Ticket) -> u32 {
        let queue = self.shared.lock();
        if ticket.sequence <= queue.finished {
            ticket.steps
        } else if ticket.sequence == queue.finished + 1 {
            queue.steps
        } else {
            0
        }
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), Error> {
        let mut queue = self.shared.lock();
        while queue.finished < ticket.sequence {
            if let Some(reason) = &queue.lost {
                return Err(lost(reason));
            }
            self.shared.done.wait(&mut queue);
        }
        self.waited = self.waited.max(ticket.sequence);
        Ok(())
    }

    fn profile(&mut self, prepared: Prepared, times: u32) -> Result<Vec<Duration>, Error> {
        let program = self.entry(prepared)?.program.clone();
        if self.sequence > self.waited {
            return Err(Error::Invalid("plans are under way".into()));
        }
        let clock: Vec<AtomicU64> = program.stages.iter().map(|_| AtomicU64::new(0)).collect();
        let mut pool = self.pool.lock();
        for _ in 0..times {
            // SAFETY: nothing is under way, and `&mut self` is the only door: the buffers and the
            // memory are this call's.
            unsafe {
                let (isa, memory, work) = (self.isa, &self.memory, &self.work);
                execute_step(isa, memory, &mut pool, work, &program, Some(&clock));
            }
        }
        let mut from = 0;
        let step = |&end: &usize| {
            let part = &clock[std::mem::replace(&mut from, end)..end];
            Duration::from_nanos(part.iter().map(|stage| stage.load(Ordering::Relaxed)).sum())
        };
        Ok(program.ends.iter().map(step).collect())
    }

    fn tokens(&self, ticket: Ticket, step: u32, out: &mut [i32]) -> Result<(), Error> {
        let entry = self.entry(ticket.prepared)?;
        let rows = entry.program.sampled.map_or(0, |(_, rows)| rows);
        if entry.latest != ticket.sequence || step >= self.completed(ticket) || rows != out.len() {
            return Err(Error::Invalid(format!("{} tokens of step {step}", out.len())));
        }
        // SAFETY: the step has finished, so its entry of the ring is not written again before the
        // plan's next submission, which needs `&mut self`.
        let ring = unsafe {
            std::slice::from_raw_parts(entry.program.own.ring(step as usize, rows), rows)
        };
        out.copy_from_slice(ring);
        Ok(())
    }

    fn read(
        &self,
        prepared: Prepared,
        output: BufferId,
        at: usize,
        out: &mut [f32],
    ) -> Result<(), Error> {
        let own = &self.idle(prepared)?.own;
        let from = own.range(output, (Class::Output, DType::F32), at, out.len())?;
        // SAFETY: `range` checks bounds and type, `idle` that nobody else touches the output.
        unsafe { out.as_mut_ptr().copy_from_nonoverlapping(from.cast(), out.len()) };
        Ok(())
    }
}

impl Drop for CpuInstance {
    fn drop(&mut self) {
        self.shared.lock().stop = true;
        self.shared.submitted.notify_one();
        if let Some(runner) = self.runner.take() {
            // It catches the panics of the kernels itself.
            let _ = runner.join();
        }
    }
}

/// Reads a matrix and packs it, each thread some panels at a time.
fn pack(
    pool: &mut Pool,
    layout: &PackedLayout,
    packed: &mut [u8],
    source: &dyn WeightSource,
    progress: &(dyn Fn(u64) + Sync),
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    /// The packed bytes, of which each thread takes other panels.
    struct Packed(*mut u8);
    // SAFETY: used for disjoint ranges only, below.
    unsafe impl Sync for Packed {}
    impl Packed {
        /// # Safety
        ///
        /// `start..start + len` is inside, and no other slice of it is alive.
        #[expect(clippy::mut_from_ref, reason = "disjointness is the caller's contract")]
        unsafe fn slice(&self, start: usize, len: usize) -> &mut [u8] {
            // SAFETY: the caller's contract.
            unsafe { std::slice::from_raw_parts_mut(self.0.add(start), len) }
        }
    }
    let raw_panel = layout.panel_width() * super::simd::LANES * layout.raw_row_bytes();
    let bytes = layout.panel_width() * layout.group_bytes();
    let total = layout.groups().div_ceil(layout.panel_width());
    let per_claim = (UPLOAD / raw_panel.max(1)).max(1);
    let target = Packed(packed.as_mut_ptr());
    let failure = Mutex::new(None);
    let stopped = || failure.lock().is_some();
    pool.run(&|w| {
        let mut raw = vec![0u8; per_claim * raw_panel];
        while let Some(panels) = w.claim(total, per_claim) {
            let start = panels.start * raw_panel;
            let end = (panels.end * raw_panel).min(layout.rows() * layout.raw_row_bytes());
            let raw = &mut raw[..end - start];
            if let Err(e) = source.read_at(start as u64, raw) {
                failure.lock().get_or_insert(e);
            }
            if stopped() {
                return;
            }
            // The last panel may be of fewer row groups.
            let (first, last) = (panels.start * bytes, layout.bytes().min(panels.end * bytes));
            // SAFETY: claims are disjoint, and within the matrix.
            let target = unsafe { target.slice(first, last - first) };
            for (raw, panel) in raw.chunks(raw_panel).zip(target.chunks_mut(bytes)) {
                layout.pack_panel(raw, panel);
            }
            progress((end - start) as u64);
        }
    });
    match failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

/// The thread that executes submissions, until it is told to stop.
fn run(isa: Isa, memory: &Memory, pool: &Mutex<Pool>, shared: &Shared, work: &Work) {
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
        for step in 0..task.steps {
            let executed = catch_unwind(AssertUnwindSafe(|| {
                // SAFETY: this submission is under way, so its buffers are this thread's; there is
                // only one such thread, so the memory is too.
                unsafe {
                    execute_step(isa, memory, &mut pool, work, &task.program, None);
                    if let Some((ids, rows)) = task.program.sampled {
                        let ring = task.program.own.ring(step as usize, rows);
                        ring.copy_from_nonoverlapping(ids, rows);
                    }
                }
            }));
            let mut queue = shared.lock();
            if executed.is_err() {
                queue.lost = Some("a kernel panicked".into());
                drop(queue);
                shared.done.notify_all();
                return;
            }
            queue.steps = step + 1;
            if queue.steps == task.steps {
                (queue.finished, queue.steps) = (task.sequence, 0);
            }
        }
        shared.done.notify_all();
    }
}

/// One execution of a program. The nanoseconds of each stage, barrier included, are added to
/// `clock`.
///
/// # Safety
///
/// The program was resolved for this memory; nobody else touches either meanwhile.
unsafe fn execute_step(
    isa: Isa,
    memory: &Memory,
    pool: &mut Pool,
    work: &Work,
    program: &Program,
    clock: Option<&[AtomicU64]>,
) {
    // SAFETY: the caller's contract.
    unsafe {
        let (rows, active) = (program.rows, program.active());
        let context = Context { isa, memory, work, rows, active };
        pool.run(&|w| {
            let clock = clock.filter(|_| w.index() == 0);
            let mut begin = clock.map(|_| Instant::now());
            for (i, stage) in program.stages.iter().enumerate() {
                execute::stage(stage, &context, w);
                w.barrier();
                if let (Some(clock), Some(begin)) = (clock, &mut begin) {
                    let end = Instant::now();
                    let spent = end.duration_since(std::mem::replace(begin, end));
                    let nanoseconds = u64::try_from(spent.as_nanos()).unwrap_or(u64::MAX);
                    clock[i].fetch_add(nanoseconds, Ordering::Relaxed);
                }
            }
        });
    }
}
