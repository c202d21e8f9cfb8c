//! Copies and fills of GPU memory by the copy engine.
//!
//! [`copy`] and [`fill`] record copies and fills of any length into a stream of the caller's. A
//! [`Copier`] owns its streams and submits at once, for loading, tests and moving the KV cache.

use std::time::Duration;

use crate::address::GpuAddress;
use crate::buffer::Mailbox;
use crate::class;
use crate::context::{Context, QueueId, Ticket};
use crate::error::Error;
use crate::pushbuffer::{Fill, OperationError, PushBuffer, Shape, Transfer};
use crate::queue::Wake;
use crate::space::AddressSpace;

/// Records a copy of `bytes` from `from` to `to`, after earlier ones of the channel. If the two
/// ranges overlap the result is undefined. Records nothing for 0 bytes. [`Error::Operation`] when
/// either range leaves the address space.
pub fn copy(
    stream: &mut PushBuffer<class::Copy>,
    from: GpuAddress,
    to: GpuAddress,
    bytes: u64,
) -> Result<(), Error> {
    from.spanning(bytes)?;
    to.spanning(bytes)?;
    let mut done = 0;
    while done < bytes {
        // At most 2^31, so it fits.
        let part = (bytes - done).min(Transfer::MAX_BYTES.into()) as u32;
        let shape = Shape::Linear { bytes: part };
        stream.transfer(Transfer::new(from.offset(done)?, to.offset(done)?, shape)?);
        done += u64::from(part);
    }
    Ok(())
}

/// Records a fill of `words` words at `to` with `value`. Records nothing for 0 words.
/// [`Error::Operation`] unless `to` is a multiple of 4 and the range is within the address space.
pub fn fill(
    stream: &mut PushBuffer<class::Copy>,
    to: GpuAddress,
    value: u32,
    words: u64,
) -> Result<(), Error> {
    let bytes = words.checked_mul(4).ok_or(OperationError::Size {
        what: "a fill in words",
        value: words,
        limit: GpuAddress::END / 4,
    })?;
    to.spanning(bytes)?;
    let mut done = 0;
    while done < words {
        let part = (words - done).min(Fill::MAX_WORDS.into()) as u32;
        stream.fill(Fill::new(to.offset(done * 4)?, value, part)?);
        done += u64::from(part);
    }
    Ok(())
}

/// Streams in flight.
const SLOTS: usize = 64;
/// Bytes of a stream: enough for copies of a whole address space.
const SLOT_BYTES: u64 = 8192;
/// Timeout of the wait for a free slot.
const PATIENCE: Duration = Duration::from_secs(30);

/// Submits copies to one queue.
#[derive(Debug)]
pub struct Copier {
    queue: QueueId,
    streams: Mailbox,
    /// The last submission of each slot.
    tickets: Vec<Option<Ticket>>,
    next: usize,
}

impl Copier {
    /// A copier for a queue of the copy engine.
    pub fn new(space: &AddressSpace, queue: QueueId) -> Result<Self, Error> {
        let streams = Mailbox::new(space, SLOTS as u64 * SLOT_BYTES)?;
        Ok(Self { queue, streams, tickets: vec![None; SLOTS], next: 0 })
    }

    /// Copies `bytes` from `from` to `to`; see [`copy`]. Waits for earlier copies when all slots
    /// are in flight.
    pub fn copy(
        &mut self,
        context: &mut Context,
        from: GpuAddress,
        to: GpuAddress,
        bytes: u64,
    ) -> Result<Ticket, Error> {
        let mut stream = PushBuffer::new();
        copy(&mut stream, from, to, bytes)?;
        self.submit(context, &stream)
    }

    /// Fills `words` words at `to` with `value`; see [`fill`].
    pub fn fill(
        &mut self,
        context: &mut Context,
        to: GpuAddress,
        value: u32,
        words: u64,
    ) -> Result<Ticket, Error> {
        let mut stream = PushBuffer::new();
        fill(&mut stream, to, value, words)?;
        self.submit(context, &stream)
    }

    /// Submits the caller's stream. [`Error::Range`] for one of more than 2048 words.
    pub fn submit(
        &mut self,
        context: &mut Context,
        stream: &PushBuffer<class::Copy>,
    ) -> Result<Ticket, Error> {
        let words = stream.words();
        crate::cpu_map::within(0, size_of_val(words) as u64, SLOT_BYTES)?;
        let slot = self.next;
        if let Some(ticket) = self.tickets[slot].take() {
            match context.wait(ticket, PATIENCE) {
                // Work that was lost in a fault no longer uses its stream.
                Ok(()) | Err(Error::Lost { .. }) => {}
                Err(error) => {
                    self.tickets[slot] = Some(ticket);
                    return Err(error);
                }
            }
        }
        let mut bodies = Vec::new();
        if !words.is_empty() {
            bodies.push(self.streams.write_stream(slot as u64 * SLOT_BYTES, words)?);
        }
        let ticket = context.submit(self.queue, &bodies, Wake::Interrupt)?;
        self.tickets[slot] = Some(ticket);
        self.next = (slot + 1) % SLOTS;
        Ok(ticket)
    }
}
