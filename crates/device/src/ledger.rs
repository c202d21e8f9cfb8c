//! Bookkeeping of the device interface's rules: prepared plans, submissions in flight, bounds, the
//! order of writes, and readable tokens.
//!
//! Owns no memory and is independent of hardware: it returns offsets into a plan's buffers, and stores a
//! driver's data for each plan.

use std::borrow::Cow;

use zerocopy::IntoBytes;

use super::plan_buffers::{Elements, PlanBuffers};
use super::{
    Data, Error, MAX_SUBMISSIONS, Prepared, RING_STEPS, Result, STAGED_WRITES, Scope, Ticket,
};
use plan::{BufferId, Class, DType};

pub(super) fn invalid<T>(what: impl Into<String>) -> Result<T> {
    Err(Error::Invalid(what.into()))
}

impl<'a> Data<'a> {
    /// Type of the elements.
    #[must_use]
    pub const fn dtype(self) -> DType {
        match self {
            Self::I32(_) => DType::I32,
            Self::F32(_) => DType::F32,
            Self::I8(_) => DType::I8,
            Self::U8(_) => DType::U8,
            Self::Bool(_) => DType::BOOL,
        }
    }

    /// Number of elements.
    #[must_use]
    pub const fn elements(self) -> usize {
        match self {
            Self::I32(values) => values.len(),
            Self::F32(values) => values.len(),
            Self::I8(values) => values.len(),
            Self::U8(values) => values.len(),
            Self::Bool(values) => values.len(),
        }
    }

    /// Elements as stored.
    #[must_use]
    pub fn bytes(self) -> &'a [u8] {
        match self {
            Self::I32(values) => values.as_bytes(),
            Self::F32(values) => values.as_bytes(),
            Self::I8(values) => values.as_bytes(),
            Self::U8(values) => values,
            Self::Bool(values) => values.as_bytes(),
        }
    }
}

/// A validated mailbox write.
#[derive(Clone, Debug)]
pub(super) struct Write<'a> {
    pub(super) mailbox: BufferId,
    /// First element.
    pub(super) at: usize,
    /// Offset into the plan's buffers.
    pub(super) offset: u64,
    pub(super) bytes: Cow<'a, [u8]>,
}

/// A prepared plan with its driver's data.
pub(super) struct Entry<S> {
    pub(super) buffers: PlanBuffers,
    pub(super) state: S,
    /// Steps submitted so far: the ring's cursor when all are done.
    pub(super) steps: u64,
    /// Latest submission, 0 for none.
    latest: u64,
    staged: Vec<Write<'static>>,
}

/// Error reported when the device was lost.
struct Loss {
    scope: Scope,
    rebuildable: bool,
    reason: String,
}

pub(super) struct Ledger<S> {
    entries: Vec<Entry<S>>,
    submitted: u64,
    /// Latest submission that has been waited for.
    waited: u64,
    loss: Option<Loss>,
}

impl<S> Ledger<S> {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), submitted: 0, waited: 0, loss: None }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn add(&mut self, buffers: PlanBuffers, state: S) -> Result<Prepared> {
        let Ok(number) = u32::try_from(self.entries.len()) else {
            return invalid(format!("{} plans are prepared already", self.entries.len()));
        };
        self.entries.push(Entry { buffers, state, steps: 0, latest: 0, staged: Vec::new() });
        Ok(Prepared(number))
    }

    /// Entry of a plan.
    pub(super) fn entry(&self, prepared: Prepared) -> Result<&Entry<S>> {
        match self.entries.get(prepared.0 as usize) {
            Some(entry) => Ok(entry),
            None => invalid(format!("plan {}, {} are prepared", prepared.0, self.entries.len())),
        }
    }

    /// Mutable entry of a plan.
    pub(super) fn entry_mut(&mut self, prepared: Prepared) -> Result<&mut Entry<S>> {
        let count = self.entries.len();
        match self.entries.get_mut(prepared.0 as usize) {
            Some(entry) => Ok(entry),
            None => invalid(format!("plan {}, {count} are prepared", prepared.0)),
        }
    }

    /// Driver's data of all plans.
    pub(super) fn states_mut(&mut self) -> impl Iterator<Item = &mut S> {
        self.entries.iter_mut().map(|entry| &mut entry.state)
    }

    pub(super) fn lose(&mut self, error: Error) -> Error {
        if let Error::Lost { scope, rebuildable, reason, .. } = &error {
            let (scope, rebuildable, reason) = (*scope, *rebuildable, reason.clone());
            self.loss = Some(Loss { scope, rebuildable, reason });
        }
        error
    }

    fn alive(&self) -> Result<()> {
        match &self.loss {
            None => Ok(()),
            Some(Loss { scope, rebuildable, reason }) => Err(Error::Lost {
                scope: *scope,
                rebuildable: *rebuildable,
                reason: reason.clone(),
                source: None,
            }),
        }
    }

    pub(super) fn quiet(&self, what: &str) -> Result<()> {
        self.alive()?;
        if self.submitted > self.waited {
            let count = self.submitted - self.waited;
            return invalid(format!("{what} while {count} submissions are under way: wait first"));
        }
        Ok(())
    }

    pub(super) const fn is_under_way(&self, entry: &Entry<S>) -> bool {
        entry.latest > self.waited
    }

    /// Validates a write. `put` performs it immediately, or it is staged for [`Ledger::staged`]
    /// while the plan is in flight.
    pub(super) fn write(
        &mut self,
        prepared: Prepared,
        mailbox: BufferId,
        at: usize,
        data: Data<'_>,
        mut put: impl FnMut(&mut S, &Write<'_>) -> Result<()>,
    ) -> Result<()> {
        self.alive()?;
        let waited = self.waited;
        let entry = self.entry_mut(prepared)?;
        let bytes = data.bytes();
        let (class, dtype, len) = (Class::Mailbox, data.dtype(), data.elements());
        let offset = entry.buffers.range(Elements { buffer: mailbox, class, dtype, at, len })?;
        let write = Write { mailbox, at, offset, bytes: Cow::Borrowed(bytes) };
        if entry.latest > waited {
            return entry.stage(write);
        }
        // Writes that were staged before the plan was waited for.
        for earlier in entry.staged.drain(..) {
            put(&mut entry.state, &earlier)?;
        }
        put(&mut entry.state, &write)
    }

    /// Removes the writes that precede the plan's next submission.
    pub(super) fn staged(&mut self, prepared: Prepared) -> Result<Vec<Write<'static>>> {
        Ok(std::mem::take(&mut self.entry_mut(prepared)?.staged))
    }

    /// Offset of `len` elements of an output.
    pub(super) fn output(
        &self,
        prepared: Prepared,
        output: BufferId,
        at: usize,
        len: usize,
    ) -> Result<(&Entry<S>, u64)> {
        self.alive()?;
        let entry = self.entry(prepared)?;
        if self.is_under_way(entry) {
            return invalid(format!("an output of plan {}, which is under way", prepared.0));
        }
        let (class, dtype) = (Class::Output, DType::F32);
        let elements = Elements { buffer: output, class, dtype, at, len };
        Ok((entry, entry.buffers.range(elements)?))
    }

    /// Entry of the plan if `steps` steps of it may be submitted.
    pub(super) fn admit(&self, prepared: Prepared, steps: u32) -> Result<&Entry<S>> {
        self.alive()?;
        if steps == 0 || steps > RING_STEPS {
            return invalid(format!("{steps} steps, 1 to {RING_STEPS} can be submitted"));
        }
        let entry = self.entry(prepared)?;
        if self.submitted - self.waited == MAX_SUBMISSIONS as u64 {
            return invalid(format!(
                "{MAX_SUBMISSIONS} submissions are under way already: wait for the first"
            ));
        }
        Ok(entry)
    }

    /// Records a submission.
    pub(super) fn submitted(&mut self, prepared: Prepared, steps: u32) -> Result<Ticket> {
        let sequence = self.submitted + 1;
        let entry = self.entry_mut(prepared)?;
        let first = entry.steps;
        entry.steps += u64::from(steps);
        entry.latest = sequence;
        self.submitted = sequence;
        Ok(Ticket { prepared, sequence, first, steps })
    }

    /// Returns whether the ticket still has to be waited for.
    pub(super) fn is_open(&self, ticket: Ticket) -> Result<bool> {
        self.alive()?;
        let entry = self.entry(ticket.prepared)?;
        let Ticket { sequence, first, steps, .. } = ticket;
        if sequence == 0 || sequence > entry.latest || first + u64::from(steps) > entry.steps {
            return invalid(format!("submission {sequence} of plan {}", ticket.prepared.0));
        }
        Ok(sequence > self.waited)
    }

    /// Records that everything up to the ticket has finished.
    pub(super) fn finished(&mut self, ticket: Ticket) {
        self.waited = self.waited.max(ticket.sequence);
    }

    pub(super) fn tokens(&self, ticket: Ticket, step: u32, len: usize) -> Result<(&Entry<S>, u64)> {
        let open = self.is_open(ticket)?;
        let entry = self.entry(ticket.prepared)?;
        let number = ticket.first + u64::from(step);
        if open {
            return invalid(format!("tokens of submission {}: wait first", ticket.sequence));
        }
        if step >= ticket.steps {
            return invalid(format!("tokens of step {step}, {} were submitted", ticket.steps));
        }
        if entry.steps - number > u64::from(RING_STEPS) {
            return invalid(format!(
                "tokens of a step that {} later ones have overwritten, {RING_STEPS} are kept",
                entry.steps - number - 1
            ));
        }
        if len != entry.buffers.sampled {
            return invalid(format!("{len} tokens, a step has {}", entry.buffers.sampled));
        }
        Ok((entry, entry.buffers.ring_at(number)))
    }
}

impl<S> Entry<S> {
    fn stage(&mut self, write: Write<'_>) -> Result<()> {
        let count = self.staged.len() + 1;
        let staged: usize = self.staged.iter().map(|write| write.bytes.len()).sum();
        let mut own = write.bytes.into_owned();
        // Queues transfer whole words. Byte mailboxes are written whole and have padding behind
        // them.
        own.resize(own.len().next_multiple_of(4), 0);
        let (bytes, most) = ((staged + own.len()) as u64, self.buffers.mailbox_bytes);
        if count > STAGED_WRITES || bytes > most {
            return invalid(format!(
                "{count} writes of {bytes} bytes for the plan's next submission, while it is under way \
                 {STAGED_WRITES} of {most} can wait: submit it, or wait for it"
            ));
        }
        self.staged.push(Write { bytes: own.into(), ..write });
        Ok(())
    }
}

/// Converts words as a device wrote them.
pub(super) fn words<T>(bytes: &[u8], out: &mut [T], word: impl Fn([u8; 4]) -> T) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *out = word(*bytes);
    }
}
