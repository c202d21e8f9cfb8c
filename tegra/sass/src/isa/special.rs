//! The special registers that `S2R`, `S2UR` and `CS2R` read.

use std::fmt;

macro_rules! special_registers {
    ($($(#[$doc:meta])* $name:ident = $number:literal $text:literal;)*) => {
        /// A special register.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum SpecialRegister {
            $($(#[$doc])* $name,)*
        }

        impl SpecialRegister {
            /// The register of an encoded number.
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
    /// The lane, 0 to 31.
    LaneId = 0x00 "SR_LANEID";
    /// The warp slot on its SM, in bits 14:8.
    VirtId = 0x03 "SR_VIRTID";
    /// Thread index in x.
    TidX = 0x21 "SR_TID.X";
    /// Thread index in y.
    TidY = 0x22 "SR_TID.Y";
    /// Thread index in z.
    TidZ = 0x23 "SR_TID.Z";
    /// Block index in x.
    CtaidX = 0x25 "SR_CTAID.X";
    /// Block index in y.
    CtaidY = 0x26 "SR_CTAID.Y";
    /// Block index in z.
    CtaidZ = 0x27 "SR_CTAID.Z";
    /// Bytes of shared memory, the system's reserve included.
    SmemSize = 0x32 "SR_SMEMSZ";
    /// The lane's own bit.
    EqMask = 0x38 "SR_EQMASK";
    /// Bits of lower lanes.
    LtMask = 0x39 "SR_LTMASK";
    /// Bits of lower lanes and the own.
    LeMask = 0x3a "SR_LEMASK";
    /// Bits of higher lanes.
    GtMask = 0x3b "SR_GTMASK";
    /// Bits of higher lanes and the own.
    GeMask = 0x3c "SR_GEMASK";
    /// The SM.
    VirtualSmId = 0x43 "SR_VIRTUALSMID";
    /// Clock cycles.
    Clock = 0x50 "SR_CLOCKLO";
    /// Nanoseconds.
    GlobalTimer = 0x52 "SR_GLOBALTIMERLO";
    /// Zero.
    Zero = 0xff "SRZ";
}
