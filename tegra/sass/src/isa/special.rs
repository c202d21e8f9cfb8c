//! Special registers that `S2R`, `S2UR` and `CS2R` read.

use std::fmt;

macro_rules! special_registers {
    ($($name:ident = $number:literal $text:literal $doc:literal;)*) => {
        /// A special register.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum SpecialRegister {
            $(#[doc = $doc] $name,)*
        }

        impl SpecialRegister {
            /// Returns the register with an encoded number.
            pub(crate) fn from_number(number: u32) -> Option<Self> {
                match number {
                    $($number => Some(Self::$name),)*
                    _ => None,
                }
            }
        }

        impl fmt::Display for SpecialRegister {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$name => $text,)*
                })
            }
        }
    };
}

special_registers! {
    LaneId = 0x00 "SR_LANEID" "The lane, 0 to 31.";
    VirtId = 0x03 "SR_VIRTID" "The warp slot on its SM, in bits 14:8.";
    TidX = 0x21 "SR_TID.X" "Thread index in x.";
    TidY = 0x22 "SR_TID.Y" "Thread index in y.";
    TidZ = 0x23 "SR_TID.Z" "Thread index in z.";
    CtaidX = 0x25 "SR_CTAID.X" "Block index in x.";
    CtaidY = 0x26 "SR_CTAID.Y" "Block index in y.";
    CtaidZ = 0x27 "SR_CTAID.Z" "Block index in z.";
    SmemSize = 0x32 "SR_SMEMSZ" "Bytes of shared memory, the system's reserve included.";
    EqMask = 0x38 "SR_EQMASK" "The lane's own bit.";
    LtMask = 0x39 "SR_LTMASK" "Bits of lower lanes.";
    LeMask = 0x3a "SR_LEMASK" "Bits of lower lanes and the own.";
    GtMask = 0x3b "SR_GTMASK" "Bits of higher lanes.";
    GeMask = 0x3c "SR_GEMASK" "Bits of higher lanes and the own.";
    VirtualSmId = 0x43 "SR_VIRTUALSMID" "The SM.";
    Clock = 0x50 "SR_CLOCKLO" "Clock cycles.";
    ClockHigh = 0x51 "SR_CLOCKHI" "Clock cycles, the upper word.";
    GlobalTimer = 0x52 "SR_GLOBALTIMERLO" "Nanoseconds.";
    GlobalTimerHigh = 0x53 "SR_GLOBALTIMERHI" "Nanoseconds, the upper word.";
    Zero = 0xff "SRZ" "Zero.";
}
