//! GPU virtual addresses: the 40-bit limit and alignment.

use std::fmt;

use crate::class::qmd;

/// Error of an unusable GPU address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AddressError {
    /// The host unit, semaphores and QMD pointers have 40 address bits.
    #[error("GPU address {address:#x} is not below {:#x}", GpuAddress::END)]
    TooHigh {
        /// The address.
        address: u64,
    },
    /// The range leaves the 40-bit space.
    #[error("{bytes} bytes at GPU address {address:#x} do not end below {:#x}", GpuAddress::END)]
    TooLong {
        /// First address.
        address: u64,
        /// Length in bytes.
        bytes: u64,
    },
    /// The hardware needs a coarser alignment.
    #[error("GPU address {address:#x} is no multiple of {alignment:#x}")]
    Misaligned {
        /// The address.
        address: u64,
        /// The required alignment.
        alignment: u64,
    },
}

/// A virtual address that every unit of the GPU can represent: below 2^40.
///
/// Page tables reach further, but ring entries, semaphores and QMD pointers have 40 bits (manual).
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GpuAddress(u64);

impl GpuAddress {
    /// The first address beyond the space.
    pub const END: u64 = 1 << 40;

    /// Accepts an address below [`GpuAddress::END`].
    pub const fn new(address: u64) -> Result<Self, AddressError> {
        if address < Self::END { Ok(Self(address)) } else { Err(AddressError::TooHigh { address }) }
    }

    /// Joins the upper and lower words of a method's address operand.
    pub const fn from_words(upper: u32, lower: u32) -> Result<Self, AddressError> {
        Self::new((upper as u64) << 32 | lower as u64)
    }

    /// The address as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }

    /// Bits 39:32.
    #[must_use]
    pub const fn upper(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// Bits 31:0.
    #[must_use]
    pub const fn lower(self) -> u32 {
        self.0 as u32
    }

    /// Returns the address if it is a multiple of `alignment`.
    pub const fn aligned(self, alignment: u64) -> Result<Self, AddressError> {
        if self.0.is_multiple_of(alignment) {
            Ok(self)
        } else {
            Err(AddressError::Misaligned { address: self.0, alignment })
        }
    }

    /// Returns the address if a range of `bytes` from it ends within the space.
    pub const fn spanning(self, bytes: u64) -> Result<Self, AddressError> {
        match self.0.checked_add(bytes) {
            Some(end) if end <= Self::END => Ok(self),
            _ => Err(AddressError::TooLong { address: self.0, bytes }),
        }
    }

    /// The address `bytes` further on.
    pub const fn offset(self, bytes: u64) -> Result<Self, AddressError> {
        match self.0.checked_add(bytes) {
            Some(address) if address < Self::END => Ok(Self(address)),
            _ => Err(AddressError::TooLong { address: self.0, bytes }),
        }
    }
}

impl fmt::Display for GpuAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:#x}", self.0)
    }
}

impl fmt::Debug for GpuAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Address of a QMD: a multiple of 256, so that 32 bits hold it shifted right by 8 (header).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct QmdAddress(GpuAddress);

impl QmdAddress {
    /// Accepts a multiple of [`qmd::ALIGNMENT`].
    pub const fn new(address: GpuAddress) -> Result<Self, AddressError> {
        match address.aligned(qmd::ALIGNMENT) {
            Ok(address) => Ok(Self(address)),
            Err(error) => Err(error),
        }
    }

    /// Undoes [`QmdAddress::shifted`].
    #[must_use]
    pub const fn from_shifted(shifted: u32) -> Self {
        Self(GpuAddress(shifted as u64 * qmd::ALIGNMENT))
    }

    /// The address.
    #[must_use]
    pub const fn get(self) -> GpuAddress {
        self.0
    }

    /// The address in units of 256 bytes, as in `SEND_PCAS_A` and dependent pointers.
    #[must_use]
    pub const fn shifted(self) -> u32 {
        (self.0.0 / qmd::ALIGNMENT) as u32
    }
}

impl fmt::Display for QmdAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
