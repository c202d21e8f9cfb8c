//! Ring entries: address and length of the next stream that the host unit fetches.

use crate::address::{AddressError, GpuAddress};
use crate::class::host::{gp_entry0, gp_entry1};

/// Error of a ring entry that cannot be encoded or decoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EntryError {
    /// The stream's address cannot be used.
    #[error(transparent)]
    Address(#[from] AddressError),
    /// Length 0 would make it a control entry; the field has 21 bits.
    #[error("a ring entry takes 1 to {} words, not {words}", Entry::MAX_WORDS)]
    Length {
        /// Requested words.
        words: u64,
    },
    /// A control entry, a conditional fetch or a reserved bit.
    #[error("ring entry {entry:#018x} is not a plain fetch")]
    NotAFetch {
        /// The entry.
        entry: u64,
    },
}

/// A ring entry that fetches one stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    address: GpuAddress,
    words: u32,
    waits: bool,
}

impl Entry {
    /// The longest stream of one entry, in words.
    pub const MAX_WORDS: u32 = gp_entry1::LENGTH.max();

    /// Fetches `words` words at `address`. The host unit may prefetch them as soon as GP_PUT covers
    /// the entry.
    ///
    /// # Errors
    /// [`EntryError::Length`]; [`EntryError::Address`] when misaligned, or when the stream does not
    /// end below 2^40 - 4: the last word of the space cannot be fetched (manual).
    pub fn new(address: GpuAddress, words: usize) -> Result<Self, EntryError> {
        let length = u32::try_from(words)
            .ok()
            .filter(|words| (1..=Self::MAX_WORDS).contains(words))
            .ok_or(EntryError::Length { words: words as u64 })?;
        let bytes = u64::from(length) * 4;
        address.aligned(4)?.spanning(bytes + 4)?;
        Ok(Self { address, words: length, waits: false })
    }

    /// The same entry, not fetched before the host unit has processed the previous one.
    #[must_use]
    pub const fn after_previous(mut self) -> Self {
        self.waits = true;
        self
    }

    /// Address of the stream.
    #[must_use]
    pub const fn address(self) -> GpuAddress {
        self.address
    }

    /// Number of words.
    #[must_use]
    pub const fn words(self) -> u32 {
        self.words
    }

    /// Returns `true` if it waits for the previous entry.
    #[must_use]
    pub const fn waits(self) -> bool {
        self.waits
    }

    /// The 8 bytes of the ring, low word first. LEVEL is 1, as in the proven code.
    #[must_use]
    pub fn encode(self) -> u64 {
        // The address is a multiple of 4, so its low word is the GET field in place.
        let low = self.address.lower();
        let high = gp_entry1::GET_HI.put(self.address.upper())
            | gp_entry1::LEVEL.put(true)
            | gp_entry1::LENGTH.put(self.words)
            | gp_entry1::SYNC.put(self.waits);
        (high as u64) << 32 | low as u64
    }

    /// Decodes an entry that [`Entry::encode`] made.
    pub fn decode(entry: u64) -> Result<Self, EntryError> {
        let (high, low) = ((entry >> 32) as u32, entry as u32);
        let address =
            GpuAddress::from_words(gp_entry1::GET_HI.get(high), low & gp_entry0::GET.mask())?;
        let plain = Self::new(address, gp_entry1::LENGTH.get(high) as usize)
            .map_err(|_| EntryError::NotAFetch { entry })?;
        let decoded = if gp_entry1::SYNC.get(high) { plain.after_previous() } else { plain };
        if decoded.encode() == entry { Ok(decoded) } else { Err(EntryError::NotAFetch { entry }) }
    }
}
