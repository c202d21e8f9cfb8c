//! The seam's rules as every driver keeps them: which plans there are, what is under way, which
//! elements a caller may touch and where they lie. Owns no memory: it hands out offsets into a
//! plan's own buffers, and keeps what a driver needs for each plan beside them.

use super::layout::Own;
use crate::{Data, Error, Prepared, RING_STEPS, Ticket};
use plan::{BufferId, Class, DType, NextInputs, Op, Plan, Sample};

/// Submissions that can be under way at once.
pub(super) const QUEUE: u64 = 8;

pub(super) fn invalid<T>(what: impl Into<String>) -> Result<T, Error> {
    Err(Error::Invalid(what.into()))
}

/// A prepared plan, with what its driver keeps for it.
pub(super) struct Entry<K> {
    pub(super) own: Own,
    classes: Vec<(Class, DType, usize)>,
    /// Token and position mailboxes that a step advances, and their rows.
    pub(super) advances: Option<(BufferId, BufferId, usize)>,
    pub(super) kept: K,
    /// Steps submitted so far: the ring's cursor when all of them are done.
    pub(super) steps: u64,
    /// Its latest submission.
    latest: u64,
}

/// Plans and submissions of one instance.
pub(super) struct Ledger<K> {
    entries: Vec<Entry<K>>,
    sequence: u64,
    waited: u64,
}

impl<K> Ledger<K> {
    pub(super) const fn new() -> Self {
        Self { entries: Vec::new(), sequence: 0, waited: 0 }
    }

    pub(super) const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    pub(super) fn add(&mut self, plan: &Plan, own: Own, kept: K) -> Prepared {
        let advances = plan.steps.iter().find_map(|step| match &step.op {
            Op::Sample(Sample { next: Some(NextInputs { tokens, positions }), .. }) => {
                Some((tokens.buffer, positions.buffer, tokens.elements()))
            }
            _ => None,
        });
        let classes = plan.buffers.iter().map(|b| (b.class, b.dtype, b.elements())).collect();
        self.entries.push(Entry { own, classes, advances, kept, steps: 0, latest: 0 });
        Prepared(self.entries.len() as u32 - 1)
    }

    pub(super) fn entry(&self, prepared: Prepared) -> Result<&Entry<K>, Error> {
        match self.entries.get(prepared.0 as usize) {
            Some(entry) => Ok(entry),
            None => invalid(format!("no plan {}", prepared.0)),
        }
    }

    /// The plan, when the caller may touch its buffers.
    fn idle(&self, prepared: Prepared) -> Result<&Entry<K>, Error> {
        let entry = self.entry(prepared)?;
        if self.is_under_way(entry) {
            return invalid(format!("plan {} is under way", prepared.0));
        }
        Ok(entry)
    }

    pub(super) const fn is_under_way(&self, entry: &Entry<K>) -> bool {
        entry.latest > self.waited
    }

    /// Where `data` goes, and its bytes.
    pub(super) fn mailbox(
        &self,
        prepared: Prepared,
        mailbox: BufferId,
        at: usize,
        data: Data<'_>,
    ) -> Result<(&Entry<K>, u64, Vec<u8>), Error> {
        let entry = self.idle(prepared)?;
        // Cannot be long: a word for each row.
        let (dtype, bytes): (_, Vec<u8>) = match data {
            Data::I32(values) => {
                (DType::I32, values.iter().flat_map(|v| v.to_le_bytes()).collect())
            }
            Data::F32(values) => {
                (DType::F32, values.iter().flat_map(|v| v.to_le_bytes()).collect())
            }
        };
        let offset = entry.range(mailbox, (Class::Mailbox, dtype), at, bytes.len() / 4)?;
        Ok((entry, offset, bytes))
    }

    /// Where `len` elements of an output lie.
    pub(super) fn output(
        &self,
        prepared: Prepared,
        output: BufferId,
        at: usize,
        len: usize,
    ) -> Result<(&Entry<K>, u64), Error> {
        let entry = self.idle(prepared)?;
        Ok((entry, entry.range(output, (Class::Output, DType::F32), at, len)?))
    }

    /// The plan, when `steps` steps of it may be submitted.
    pub(super) fn admit(&self, prepared: Prepared, steps: u32) -> Result<&Entry<K>, Error> {
        if steps == 0 || steps > RING_STEPS {
            return invalid(format!("{steps} steps, 1 to {RING_STEPS} can be submitted"));
        }
        let entry = self.entry(prepared)?;
        if self.sequence - self.waited == QUEUE {
            return invalid(format!(
                "{QUEUE} submissions are under way already: wait for the first"
            ));
        }
        Ok(entry)
    }

    /// Notes that admitted steps have been handed over.
    pub(super) fn submitted(&mut self, prepared: Prepared, steps: u32) -> Ticket {
        self.sequence += 1;
        if let Some(entry) = self.entries.get_mut(prepared.0 as usize) {
            entry.steps += u64::from(steps);
            entry.latest = self.sequence;
        }
        Ticket { prepared, sequence: self.sequence, steps }
    }

    /// Notes that everything up to the ticket is done.
    pub(super) fn finished(&mut self, ticket: Ticket) {
        self.waited = self.waited.max(ticket.sequence.min(self.sequence));
    }

    pub(super) const fn has_finished(&self, ticket: Ticket) -> bool {
        ticket.sequence <= self.waited
    }

    /// Where the tokens of one of the ticket's `completed` steps lie.
    pub(super) fn tokens(
        &self,
        ticket: Ticket,
        step: u32,
        completed: u32,
        len: usize,
    ) -> Result<(&Entry<K>, u64), Error> {
        let entry = self.entry(ticket.prepared)?;
        if entry.latest != ticket.sequence || step >= completed || len != entry.own.sampled {
            return invalid(format!("{len} tokens of step {step}"));
        }
        let at = entry.own.ring_at(entry.steps - u64::from(ticket.steps) + u64::from(step));
        Ok((entry, at))
    }
}

impl<K> Entry<K> {
    /// Offset of `len` elements of a buffer from `at`, if it has that class and type and they are
    /// inside.
    fn range(
        &self,
        buffer: BufferId,
        (class, dtype): (Class, DType),
        at: usize,
        len: usize,
    ) -> Result<u64, Error> {
        let found = self.classes.get(buffer.index()).zip(self.own.offset(buffer));
        match found {
            Some((&(c, t, n), offset))
                if c == class && t == dtype && at.checked_add(len).is_some_and(|end| end <= n) =>
            {
                Ok(offset + 4 * at as u64)
            }
            _ => invalid(format!("{len} elements of {dtype} from {at} of {class:?} {}", buffer.0)),
        }
    }
}

/// Words as a device wrote them.
pub(super) fn words<T>(bytes: &[u8], out: &mut [T], word: impl Fn([u8; 4]) -> T) {
    for (out, bytes) in out.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *out = word(*bytes);
    }
}
