//! Mailbox writes for a plan in flight, performed by the queue in order with steps.
//!
//! The data is inside a command stream of the submission that must see it. There is one stream
//! buffer for each submission that can be in flight.

use tegra::address::GpuAddress;
use tegra::buffer::Mailbox;
use tegra::class::Compute;
use tegra::pushbuffer::{Entry, PushBuffer, Upload};
use tegra::space::AddressSpace;

use super::failed;
use crate::ledger::{Write, invalid};
use crate::{MAX_SUBMISSIONS, Result, STAGED_WRITES};

/// Words of an upload besides its data: two headers with five words of data, and one before the
/// data.
const UPLOAD_WORDS: u64 = 8;

pub(super) struct Uploads {
    memory: Mailbox,
    /// Size of a stream buffer.
    place: u64,
    next: u64,
}

impl Uploads {
    /// Allocates the streams for plans with up to `mailbox_bytes` of mailboxes.
    pub(super) fn new(space: &AddressSpace, mailbox_bytes: u64) -> Result<Self> {
        let split = mailbox_bytes / (4 * u64::from(Upload::MAX_WORDS));
        let place = mailbox_bytes + 4 * UPLOAD_WORDS * (STAGED_WRITES as u64 + split);
        let memory = Mailbox::new(space, MAX_SUBMISSIONS as u64 * place).map_err(failed)?;
        Ok(Self { memory, place, next: 0 })
    }

    /// Records writes to a plan's buffers at `base`. The stream is overwritten after
    /// [`MAX_SUBMISSIONS`] further calls.
    pub(super) fn record(&mut self, base: GpuAddress, writes: &[Write<'_>]) -> Result<Entry> {
        let mut stream = PushBuffer::<Compute>::new();
        for write in writes {
            let words: Vec<u32> =
                write.bytes.as_chunks::<4>().0.iter().map(|b| u32::from_le_bytes(*b)).collect();
            let mut offset = write.offset;
            for words in words.chunks(Upload::MAX_WORDS as usize) {
                let to = base.offset(offset).map_err(|e| failed(e.into()))?;
                let upload = Upload::new(to, words.to_vec()).map_err(|e| failed(e.into()))?;
                stream.upload(upload);
                offset += 4 * words.len() as u64;
            }
        }
        let words = stream.into_words();
        if 4 * words.len() as u64 > self.place {
            return invalid(format!("{} words of mailbox writes, too many at once", words.len()));
        }
        let at = self.next % MAX_SUBMISSIONS as u64 * self.place;
        self.next += 1;
        self.memory.write_stream(at, &words).map_err(failed)
    }
}
