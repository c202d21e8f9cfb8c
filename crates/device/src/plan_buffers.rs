//! Layout of a plan's own buffers: mailboxes, outputs, and the ring of sampled tokens with its
//! cursor. Offsets are the same on every device; the device owns the memory.

use super::{Error, RING_STEPS, Result};
use plan::{BufferId, Class, DType, Op, Plan};

/// Alignment of each buffer, enough for the widest loads of any device.
const ALIGN: u64 = 256;

/// A mailbox or output.
#[derive(Clone, Copy, Debug)]
struct BufferPlace {
    class: Class,
    dtype: DType,
    elements: usize,
    offset: u64,
}

/// Elements of a mailbox or output.
#[derive(Clone, Copy, Debug)]
pub(super) struct Elements {
    pub(super) buffer: BufferId,
    pub(super) class: Class,
    pub(super) dtype: DType,
    pub(super) at: usize,
    pub(super) len: usize,
}

/// Offsets of a plan's own buffers.
#[derive(Clone, Debug)]
pub(super) struct PlanBuffers {
    /// Place of each of the plan's buffers, for mailboxes and outputs.
    places: Vec<Option<BufferPlace>>,
    pub(super) mailbox_bytes: u64,
    /// Tokens that a step samples, 0 if none.
    pub(super) sampled: usize,
    /// Ring with the tokens of [`RING_STEPS`] steps.
    pub(super) ring: u64,
    /// Word with the next step's number, for devices that count steps themselves.
    pub(super) cursor: u64,
    pub(super) bytes: u64,
}

impl PlanBuffers {
    pub(super) fn new(plan: &Plan) -> Self {
        let (mut bytes, mut mailbox_bytes) = (0, 0);
        let mut place = |size: u64| {
            let at = bytes;
            bytes += size.next_multiple_of(ALIGN);
            at
        };
        let mut own = Vec::with_capacity(plan.buffers.len());
        for buffer in &plan.buffers {
            let size = buffer.bytes().next_multiple_of(4);
            own.push(match buffer.class {
                Class::Mailbox | Class::Output => Some(BufferPlace {
                    class: buffer.class,
                    dtype: buffer.dtype,
                    elements: buffer.elements(),
                    offset: place(size),
                }),
                Class::Weight | Class::State | Class::Scratch | Class::Constant(_) => None,
            });
            if buffer.class == Class::Mailbox {
                mailbox_bytes += size;
            }
        }
        let sampled = plan.steps.iter().find_map(|step| match &step.op {
            Op::Sample(sample) => Some(sample.ids.elements()),
            _ => None,
        });
        let sampled = sampled.unwrap_or(0);
        let ring = place(4 * u64::from(RING_STEPS) * sampled as u64);
        let cursor = place(4);
        Self { places: own, mailbox_bytes, sampled, ring, cursor, bytes }
    }

    /// Offset of the tokens of the plan's `step`th step.
    pub(super) const fn ring_at(&self, step: u64) -> u64 {
        self.ring + step % RING_STEPS as u64 * 4 * self.sampled as u64
    }

    /// Offset of a mailbox or output; `None` for other buffers.
    pub(super) fn offset(&self, buffer: BufferId) -> Option<u64> {
        Some(self.places.get(buffer.index()).copied().flatten()?.offset)
    }

    /// Offset of elements.
    ///
    /// # Errors
    ///
    /// [`Error::Invalid`] unless they are inside a buffer of that class and type. Elements of fewer
    /// than 4 bytes are accessed all at once.
    pub(super) fn range(&self, elements: Elements) -> Result<u64> {
        let Elements { buffer, class, dtype, at, len } = elements;
        let place = self.places.get(buffer.index()).copied().flatten();
        match place {
            Some(place)
                if place.class == class
                    && place.dtype == dtype
                    && at.checked_add(len).is_some_and(|end| end <= place.elements) =>
            {
                let bytes = dtype.block_bytes();
                if bytes < 4 && len != place.elements {
                    return Err(Error::Invalid(format!(
                        "{len} of {} elements of {dtype}: they are written all at once",
                        place.elements
                    )));
                }
                Ok(place.offset + (bytes * at) as u64)
            }
            Some(BufferPlace { class: is, dtype: of, elements, .. }) => {
                Err(Error::Invalid(format!(
                    "{len} elements of {dtype} from {at} of {class:?} {}: it is {is:?} of {elements} elements of {of}",
                    buffer.0
                )))
            }
            None => Err(Error::Invalid(format!(
                "{class:?} {}: the plan has no mailbox or output of that number",
                buffer.0
            ))),
        }
    }
}
