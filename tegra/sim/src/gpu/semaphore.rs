//! Semaphores: comparison, writes and reductions, for all units.
//!
//! Source: `SEM_EXECUTE` in GA100's PBDMA manual; the reductions of the engines have the same
//! meaning under other numbers.

/// Size of a payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Width {
    /// 32 bits.
    Word,
    /// 64 bits.
    Long,
}

impl Width {
    pub(crate) const fn bytes(self) -> u64 {
        match self {
            Self::Word => 4,
            Self::Long => 8,
        }
    }

    /// Sign-extends a number of this width, which preserves the order of unsigned numbers too.
    const fn widen(self, number: u64) -> i64 {
        match self {
            Self::Word => number as i32 as i64,
            Self::Long => number as i64,
        }
    }
}

/// Condition that ends a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Condition {
    Equal,
    AtLeast,
    Reached,
    AnyBit,
    AnyClear,
}

impl Condition {
    /// Returns the condition of an acquiring `OPERATION`.
    pub(crate) const fn of_host(operation: u32) -> Option<Self> {
        Some(match operation {
            0 => Self::Equal,
            2 => Self::AtLeast,
            3 => Self::Reached,
            4 => Self::AnyBit,
            5 => Self::AnyClear,
            _ => return None,
        })
    }

    /// Returns whether `memory` meets the condition with `payload`.
    pub(crate) const fn holds(self, width: Width, memory: u64, payload: u64) -> bool {
        let (memory, payload) = (width.widen(memory), width.widen(payload));
        match self {
            Self::Equal => memory == payload,
            Self::AtLeast => memory as u64 >= payload as u64,
            Self::Reached => width.widen(memory.wrapping_sub(payload) as u64) >= 0,
            Self::AnyBit => memory & payload != 0,
            Self::AnyClear => !(memory | payload) != 0,
        }
    }
}

/// Combination of memory and payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reduction {
    op: Op,
    unsigned: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Op {
    Min,
    Max,
    Xor,
    And,
    Or,
    Add,
    Inc,
    Dec,
}

impl Reduction {
    /// Decodes the numbering of the host unit and the copy engine; 8 and above are not defined for
    /// integers.
    pub(crate) const fn of_host(number: u32, unsigned: bool) -> Option<Self> {
        let op = match number {
            0 => Op::Min,
            1 => Op::Max,
            2 => Op::Xor,
            3 => Op::And,
            4 => Op::Or,
            5 => Op::Add,
            6 => Op::Inc,
            7 => Op::Dec,
            _ => return None,
        };
        Some(Self { op, unsigned })
    }

    /// Decodes the three-bit numbering of the compute engine.
    pub(crate) const fn of_engine(number: u32, unsigned: bool) -> Self {
        let op = match number & 7 {
            0 => Op::Add,
            1 => Op::Min,
            2 => Op::Max,
            3 => Op::Inc,
            4 => Op::Dec,
            5 => Op::And,
            6 => Op::Or,
            _ => Op::Xor,
        };
        Self { op, unsigned }
    }

    /// Returns whether the memory system supports it in this width.
    pub(crate) const fn exists(self, width: Width) -> bool {
        match (self.op, width) {
            (Op::Add, Width::Long) => self.unsigned,
            (Op::Inc | Op::Dec, Width::Word) => self.unsigned,
            (Op::Inc | Op::Dec, Width::Long) => false,
            _ => true,
        }
    }

    /// Returns the new value in memory.
    pub(crate) fn apply(self, width: Width, memory: u64, payload: u64) -> u64 {
        let (v, p) = (width.widen(memory), width.widen(payload));
        let (uv, up) = (v as u64, p as u64);
        let last = match width {
            Width::Word => u64::from(u32::MAX),
            Width::Long => u64::MAX,
        };
        let result = match (self.op, self.unsigned) {
            (Op::Min, true) => uv.min(up),
            (Op::Min, false) => v.min(p) as u64,
            (Op::Max, true) => uv.max(up),
            (Op::Max, false) => v.max(p) as u64,
            (Op::Xor, _) => uv ^ up,
            (Op::And, _) => uv & up,
            (Op::Or, _) => uv | up,
            (Op::Add, _) => uv.wrapping_add(up),
            // Wraps between 0 and the payload.
            (Op::Inc, _) => {
                if uv < up {
                    uv + 1
                } else {
                    0
                }
            }
            (Op::Dec, _) => {
                if uv == 0 || uv > up {
                    up
                } else {
                    uv - 1
                }
            }
        };
        result & last
    }
}

/// A semaphore write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Write {
    pub(crate) address: u64,
    pub(crate) payload: u64,
    pub(crate) width: Width,
    /// Write the nanosecond timer 8 bytes after the payload, before the payload.
    pub(crate) timestamp: bool,
    /// Combine instead of replace.
    pub(crate) reduction: Option<Reduction>,
}

impl Write {
    /// Returns the required alignment of the address.
    pub(crate) const fn alignment(&self) -> u64 {
        if self.timestamp { 16 } else { self.width.bytes() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table of the manual, transcribed by hand.
    #[test]
    fn reductions_of_the_manual() {
        let host = |number, unsigned| Reduction::of_host(number, unsigned).unwrap();
        let word = |op: Reduction, v, p| op.apply(Width::Word, v, p);
        assert_eq!(word(host(0, false), 0xffff_ffff, 1), 0xffff_ffff);
        assert_eq!(word(host(0, true), 0xffff_ffff, 1), 1);
        assert_eq!(word(host(5, true), 0xffff_ffff, 2), 1);
        assert_eq!(word(host(6, true), 3, 4), 4);
        assert_eq!(word(host(6, true), 4, 4), 0);
        assert_eq!(word(host(6, true), 9, 4), 0);
        assert_eq!(word(host(7, true), 0, 4), 4);
        assert_eq!(word(host(7, true), 3, 4), 2);
        assert_eq!(word(host(7, true), 9, 4), 4);
        assert_eq!(host(1, false).apply(Width::Long, u64::MAX, 0), 0);
        assert!(!host(6, true).exists(Width::Long));
        assert!(!host(7, false).exists(Width::Word));
        assert!(!host(5, false).exists(Width::Long));
        assert!(host(5, false).exists(Width::Word));
        assert_eq!(Reduction::of_host(8, true), None);
    }

    #[test]
    fn circular_comparison_wraps() {
        let reached = Condition::Reached;
        assert!(reached.holds(Width::Word, 2, 0xffff_fffe));
        assert!(!reached.holds(Width::Word, 0xffff_fffe, 2));
        assert!(reached.holds(Width::Long, 1, u64::MAX));
        assert!(!Condition::AtLeast.holds(Width::Word, 2, 0xffff_fffe));
        assert!(Condition::AnyClear.holds(Width::Word, 0xffff_fffe, 0));
        assert!(!Condition::AnyClear.holds(Width::Word, 0xffff_fffe, 1));
    }
}
