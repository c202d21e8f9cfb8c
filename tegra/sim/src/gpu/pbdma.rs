//! Parser of push-buffer words: headers, methods, subdevice masks.
//!
//! The channel owns the state, which persists from segment to segment. Source: `dev_pbdma` and
//! `dev_ram` of GA100's manual.

/// A method with its data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Method {
    pub(crate) subchannel: u32,
    /// Byte address.
    pub(crate) address: u32,
    pub(crate) data: u32,
}

/// Meaning of a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// A header without data, or data hidden by the subdevice mask.
    Nothing,
    Method(Method),
    /// Skip the rest of the segment.
    EndSegment,
}

/// A word that is no header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EntryError {
    #[error("push-buffer word {word:#010x}: opcode {opcode} does not exist")]
    Opcode { word: u32, opcode: u32 },
    #[error("push-buffer word {word:#010x} sets reserved bits")]
    Reserved { word: u32 },
    #[error(
        "push-buffer header {word:#010x}: {count} methods from {address:#x} on leave the class"
    )]
    Wrap { word: u32, count: u32, address: u32 },
}

/// End of method addresses, in words.
const ADDRESSES: u32 = 1 << 12;

/// Mapping of data words to methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opcode {
    Incrementing,
    NonIncrementing,
    IncrementOnce,
}

/// The state of decoding.
#[derive(Clone, Debug)]
pub(crate) struct Parser {
    opcode: Opcode,
    subchannel: u32,
    address: u32,
    /// Number of remaining data words.
    left: u32,
    mask: u32,
    stored_mask: u32,
}

impl Default for Parser {
    fn default() -> Self {
        Self {
            opcode: Opcode::NonIncrementing,
            subchannel: 0,
            address: 0,
            left: 0,
            mask: 0xfff,
            stored_mask: 0xfff,
        }
    }
}

impl Parser {
    pub(crate) fn take(&mut self, word: u32) -> Result<Step, EntryError> {
        if self.left > 0 {
            return Ok(self.data(word));
        }
        let sec_op = word >> 29;
        let count = word >> 16 & 0x1fff;
        match sec_op {
            0 => self.tertiary(word),
            1 | 3 | 5 => {
                if word >> 12 & 1 != 0 {
                    return Err(EntryError::Reserved { word });
                }
                self.opcode = match sec_op {
                    1 => Opcode::Incrementing,
                    3 => Opcode::NonIncrementing,
                    _ => Opcode::IncrementOnce,
                };
                self.subchannel = word >> 13 & 7;
                self.address = word & 0xfff;
                let last = match self.opcode {
                    Opcode::Incrementing => self.address + count.saturating_sub(1),
                    Opcode::NonIncrementing => self.address,
                    Opcode::IncrementOnce => self.address + u32::from(count > 1),
                };
                if last >= ADDRESSES {
                    return Err(EntryError::Wrap { word, count, address: 4 * self.address });
                }
                self.left = count;
                Ok(Step::Nothing)
            }
            4 => {
                if word >> 12 & 1 != 0 {
                    return Err(EntryError::Reserved { word });
                }
                let (subchannel, address) = (word >> 13 & 7, 4 * (word & 0xfff));
                Ok(self.visible(Method { subchannel, address, data: count }))
            }
            7 => Ok(Step::EndSegment),
            _ => Err(EntryError::Opcode { word, opcode: sec_op }),
        }
    }

    fn tertiary(&mut self, word: u32) -> Result<Step, EntryError> {
        if word == 0 {
            return Ok(Step::Nothing);
        }
        let mask = word >> 4 & 0xfff;
        match word >> 16 {
            1 | 2 if word & 0xf != 0 => return Err(EntryError::Reserved { word }),
            1 => self.mask = mask,
            2 => self.stored_mask = mask,
            3 if word & 0xffff != 0 => return Err(EntryError::Reserved { word }),
            3 => self.mask = self.stored_mask,
            _ => return Err(EntryError::Opcode { word, opcode: 0 }),
        }
        Ok(Step::Nothing)
    }

    fn data(&mut self, data: u32) -> Step {
        let method = Method { subchannel: self.subchannel, address: 4 * self.address, data };
        self.left -= 1;
        match self.opcode {
            Opcode::Incrementing => self.address += 1,
            Opcode::NonIncrementing => {}
            Opcode::IncrementOnce => {
                self.address += 1;
                self.opcode = Opcode::NonIncrementing;
            }
        }
        self.visible(method)
    }

    /// Returns whether the mask enables methods for this GPU, subdevice 0.
    pub(crate) fn is_active(&self) -> bool {
        self.mask & 1 == 1
    }

    fn visible(&self, method: Method) -> Step {
        if self.is_active() { Step::Method(method) } else { Step::Nothing }
    }
}
