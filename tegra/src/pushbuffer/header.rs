//! Push-buffer headers, which assign the following data words to methods.

use crate::class::host::{SecOp, dma};
use crate::class::{Class, Method};

/// Mapping of data words to methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opcode {
    /// Each word to the next method.
    Incrementing,
    /// Every word to the same method.
    NonIncrementing,
    /// The first word to one method, all others to the next.
    IncrementOnce,
}

impl Opcode {
    const fn sec_op(self) -> SecOp {
        match self {
            Self::Incrementing => SecOp::Incrementing,
            Self::NonIncrementing => SecOp::NonIncrementing,
            Self::IncrementOnce => SecOp::IncrementOnce,
        }
    }

    /// Method address of data word number `index`.
    #[must_use]
    pub const fn address(self, first: u32, index: u32) -> u32 {
        match self {
            Self::Incrementing => first + 4 * index,
            Self::NonIncrementing => first,
            Self::IncrementOnce => first + if index == 0 { 0 } else { 4 },
        }
    }
}

/// Error of a word that is not a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// An opcode that the host unit rejects, or subdevice masks, which this crate never uses.
    #[error("push-buffer header {word:#010x} has an opcode that is not used here")]
    Opcode {
        /// The word.
        word: u32,
    },
    /// A reserved bit is set.
    #[error("push-buffer header {word:#010x} sets a reserved bit")]
    Reserved {
        /// The word.
        word: u32,
    },
    /// Incrementing would run beyond the last method address.
    #[error("push-buffer header {word:#010x} runs beyond the last method")]
    Overflow {
        /// The word.
        word: u32,
    },
}

/// One header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Header {
    /// The all-zero word: no operation.
    Nop,
    /// Data words follow.
    Methods {
        /// Mapping of the words to methods.
        opcode: Opcode,
        /// Subchannel.
        subchannel: u32,
        /// Byte address of the first method.
        address: u32,
        /// Words that follow; with 0 the header has no effect.
        count: u32,
    },
    /// One method, with its data in the header.
    Immediate {
        /// Subchannel.
        subchannel: u32,
        /// Byte address of the method.
        address: u32,
        /// The data, 13 bits.
        data: u32,
    },
    /// End of the segment; the rest of the stream is ignored.
    EndSegment,
}

impl Header {
    /// Maximum number of data words after one header.
    pub const MAX_COUNT: u32 = dma::METHOD_COUNT.max();

    /// Encodes the header.
    ///
    /// # Panics
    /// When a field does not fit. Headers that the crate makes fit by construction, decoded ones
    /// because they came from a word.
    #[must_use]
    pub fn encode(self) -> u32 {
        match self {
            Self::Nop => 0,
            Self::Methods { opcode, subchannel, address, count } => {
                dma::SEC_OP.put(opcode.sec_op())
                    | dma::METHOD_COUNT.put(count)
                    | dma::METHOD_SUBCHANNEL.put(subchannel)
                    | dma::METHOD_ADDRESS.put(address / 4)
            }
            Self::Immediate { subchannel, address, data } => {
                dma::SEC_OP.put(SecOp::Immediate)
                    | dma::IMMD_DATA.put(data)
                    | dma::METHOD_SUBCHANNEL.put(subchannel)
                    | dma::METHOD_ADDRESS.put(address / 4)
            }
            Self::EndSegment => dma::SEC_OP.put(SecOp::EndSegment),
        }
    }

    /// Decodes a word that [`Header::encode`] can have made, and that does not run beyond the last
    /// method.
    pub fn decode(word: u32) -> Result<Self, HeaderError> {
        let subchannel = dma::METHOD_SUBCHANNEL.get(word);
        let address = dma::METHOD_ADDRESS.get(word) * 4;
        let count = dma::METHOD_COUNT.get(word);
        let methods = |opcode| Self::Methods { opcode, subchannel, address, count };
        let header = match dma::SEC_OP.get(word) {
            Some(SecOp::Incrementing) => methods(Opcode::Incrementing),
            Some(SecOp::NonIncrementing) => methods(Opcode::NonIncrementing),
            Some(SecOp::IncrementOnce) => methods(Opcode::IncrementOnce),
            Some(SecOp::Immediate) => {
                Self::Immediate { subchannel, address, data: dma::IMMD_DATA.get(word) }
            }
            Some(SecOp::EndSegment) => Self::EndSegment,
            Some(SecOp::UseTertiary) if dma::TERT_OP.get(word) == 0 && count == 0 => Self::Nop,
            Some(SecOp::UseTertiary) | None => return Err(HeaderError::Opcode { word }),
        };
        if let Self::Methods { opcode, count: 1.., .. } = header {
            let last = opcode.address(address, count - 1);
            if last / 4 > dma::METHOD_ADDRESS.max() {
                return Err(HeaderError::Overflow { word });
            }
        }
        if header.encode() == word { Ok(header) } else { Err(HeaderError::Reserved { word }) }
    }
}

/// Appends `data` for consecutive methods, starting at `first`.
pub(super) fn incrementing<C: Class>(out: &mut Vec<u32>, first: Method<C>, data: &[u32]) {
    methods(out, Opcode::Incrementing, first, data);
}

/// Appends `data`, all of it for one method.
pub(super) fn non_incrementing<C: Class>(out: &mut Vec<u32>, method: Method<C>, data: &[u32]) {
    methods(out, Opcode::NonIncrementing, method, data);
}

/// Appends one method with 13 bits of data.
pub(super) fn immediate<C: Class>(out: &mut Vec<u32>, method: Method<C>, data: u32) {
    let (subchannel, address) = (C::SUBCHANNEL, method.address());
    out.push(Header::Immediate { subchannel, address, data }.encode());
}

fn methods<C: Class>(out: &mut Vec<u32>, opcode: Opcode, first: Method<C>, data: &[u32]) {
    let header = Header::Methods {
        opcode,
        subchannel: C::SUBCHANNEL,
        address: first.address(),
        count: data.len() as u32,
    };
    out.push(header.encode());
    out.extend_from_slice(data);
}
