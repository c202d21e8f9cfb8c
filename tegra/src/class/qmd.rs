//! QMD 3.0: the 256 bytes that describe one kernel launch. Header `clc7c0qmd.h`, QMDV03_00.
//!
//! The compute class `0xc7c0` accepts this layout; the version fields must be 3 and 0 (seen on
//! hardware). Queues, preemption resume and the fields that only hardware writes are left out: they
//! are zero in a launch.

use super::{Field, Value};

/// Words of a QMD.
pub const WORDS: usize = 64;
/// Alignment in bytes: pointers to a QMD are shifted right by 8.
pub const ALIGNMENT: u64 = 256;
/// Value of [`QMD_MAJOR_VERSION`].
pub const MAJOR: u32 = 3;
/// Value of [`QMD_VERSION`].
pub const MINOR: u32 = 0;
/// Constant banks.
pub const BANKS: usize = 8;

/// A field of a QMD and the type of its value; no field crosses a word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QmdField<T = u32> {
    word: usize,
    bits: Field<T>,
}

impl<T> QmdField<T> {
    pub(crate) const fn new(high: u32, low: u32) -> Self {
        assert!(high / 32 == low / 32 && (high as usize) < 32 * WORDS, "within one word of 64");
        Self { word: (low / 32) as usize, bits: Field::new(high % 32, low % 32) }
    }

    /// The largest number that fits.
    #[must_use]
    pub const fn max(&self) -> u32 {
        self.bits.max()
    }

    /// The same field, `bits` further on.
    #[must_use]
    pub const fn after(&self, bits: u32) -> Self {
        let low = 32 * self.word as u32 + self.bits.low + bits;
        Self::new(low + self.bits.high - self.bits.low, low)
    }

    /// The same bits as a number.
    #[must_use]
    pub const fn raw(&self) -> QmdField {
        QmdField { word: self.word, bits: self.bits.raw() }
    }
}

impl<T: Value> QmdField<T> {
    /// The field's value.
    #[must_use]
    pub fn get(self, qmd: &[u32; WORDS]) -> T::Read {
        self.bits.get(qmd[self.word])
    }

    /// Replaces the field's value.
    ///
    /// # Panics
    /// When `value` does not fit: callers check against [`QmdField::max`] or have a type that fits.
    pub fn set(self, qmd: &mut [u32; WORDS], value: T) {
        qmd[self.word] = qmd[self.word] & !self.bits.mask() | self.bits.put(value);
    }
}

/// Declares fields (`NAME: type = high:low`), repeated fields (`NAME[count] = high:low step bits`)
/// and values, under the header's names, each followed by its documentation.
macro_rules! qmd {
    (
        fields { $( $FIELD:ident $(: $T:ty)? = $high:literal : $low:literal, $fdoc:literal; )* }
        repeated { $( $REPEATED:ident $(: $R:ty)? [$count:literal] =
            $rhigh:literal : $rlow:literal step $step:literal, $rdoc:literal; )* }
        values { $( $Value:ident of $vname:literal, $vdoc:literal {
            $( $Variant:ident = $number:literal, $ename:literal, $edoc:literal; )*
        } )* }
    ) => {
        $( #[doc = $fdoc] pub const $FIELD: QmdField$(<$T>)? = QmdField::new($high, $low); )*
        $(
            #[doc = $rdoc]
            pub const $REPEATED: [QmdField$(<$R>)?; $count] = {
                let mut fields = [QmdField::new($rhigh, $rlow); $count];
                let mut i = 0;
                while i < $count {
                    fields[i] = fields[0].after(i as u32 * $step);
                    i += 1;
                }
                fields
            };
        )*
        $( enumeration! { $Value, $vdoc { $( $Variant = $number, $edoc; )* } } )*

        /// Every field and value, under the header's names; of repeated fields the first.
        pub const DEFINITIONS: &[super::Definition] = &[
            $( super::Definition::field(stringify!($FIELD), $high, $low), )*
            $( super::Definition::field(stringify!($REPEATED), $rhigh, $rlow), )*
            $( $( super::Definition::number(concat!($vname, "_", $ename), $number), )* )*
        ];

        /// Name, count and distance in bits of the repeated fields.
        pub const REPEATED: &[(&str, usize, u32)] =
            &[ $( (stringify!($REPEATED), $count, $step), )* ];

        /// Every single field with its name, for listings.
        pub const FIELDS: &[(&str, QmdField)] = &[ $( (stringify!($FIELD), $FIELD.raw()), )* ];
    };
}

qmd! {
    fields {
        QMD_GROUP_ID = 133:128, "Group id; 0x3f in the proven code.";
        SM_GLOBAL_CACHING_ENABLE: bool = 134:134, "Let L1 cache global loads.";
        DEPENDENCE_COUNTER = 157:142, "Decrements that this launch waits for before it runs.";
        INVALIDATE_TEXTURE_HEADER_CACHE: bool = 186:186, "Invalidate texture headers at the start.";
        INVALIDATE_TEXTURE_SAMPLER_CACHE: bool = 187:187, "Invalidate samplers at the start.";
        INVALIDATE_TEXTURE_DATA_CACHE: bool = 188:188, "Invalidate texture data at the start.";
        INVALIDATE_SHADER_DATA_CACHE: bool = 189:189, "Invalidate global data in L1 at the start.";
        INVALIDATE_INSTRUCTION_CACHE: bool = 190:190, "Invalidate instructions at the start.";
        INVALIDATE_SHADER_CONSTANT_CACHE: bool = 191:191, "Invalidate constants at the start.";
        PROGRAM_PREFETCH_ADDR_LOWER_SHIFTED = 287:256,
            "Code to prefetch: address shifted right by 8, low word.";
        CWD_MEMBAR_TYPE: Membar = 369:368, "Barrier at the end of every block.";
        API_VISIBLE_CALL_LIMIT: CallLimit = 378:378, "Depth of calls.";
        SAMPLER_INDEX: SamplerIndex = 382:382, "Lookup of samplers.";
        CTA_RASTER_WIDTH = 415:384, "Blocks in x.";
        CTA_RASTER_HEIGHT = 431:416, "Blocks in y.";
        CTA_RASTER_DEPTH = 463:448, "Blocks in z.";
        DEPENDENT_QMD0_POINTER = 511:480,
            "The launch that depends on this one: address shifted right by 8.";
        DEPENDENT_QMD0_ENABLE: bool = 512:512, "Enables the dependent launch.";
        DEPENDENT_QMD0_ACTION: DependentAction = 515:513, "Action on it at completion.";
        DEPENDENT_QMD0_PREFETCH: bool = 516:516, "Fetch it beforehand.";
        SHARED_MEMORY_SIZE = 561:544, "Bytes of shared memory of a block.";
        MIN_SM_CONFIG_SHARED_MEM_SIZE = 567:562, "Smallest carve-out, as a code.";
        MAX_SM_CONFIG_SHARED_MEM_SIZE = 574:569, "Largest carve-out, as a code.";
        QMD_VERSION = 579:576, "Minor version.";
        QMD_MAJOR_VERSION = 583:580, "Major version.";
        CTA_THREAD_DIMENSION0 = 607:592, "Threads in x.";
        CTA_THREAD_DIMENSION1 = 623:608, "Threads in y.";
        CTA_THREAD_DIMENSION2 = 639:624, "Threads in z.";
        REGISTER_COUNT_V = 656:648, "Registers of a thread.";
        TARGET_SM_CONFIG_SHARED_MEM_SIZE = 662:657, "Carve-out wanted, as a code.";
        SHADER_LOCAL_MEMORY_LOW_SIZE = 759:736, "Local memory that grows up from 0.";
        BARRIER_COUNT = 767:763, "Barriers of a block.";
        PROGRAM_ADDRESS_LOWER = 1567:1536, "Address of the first instruction, low word.";
        PROGRAM_ADDRESS_UPPER = 1584:1568, "Address of the first instruction, bits 48:32.";
        SHADER_LOCAL_MEMORY_HIGH_SIZE = 1623:1600,
            "Bytes of local memory of a thread, hanging down from 2^24.";
        PROGRAM_PREFETCH_ADDR_UPPER_SHIFTED = 1640:1632,
            "Code to prefetch: address shifted right by 40.";
        PROGRAM_PREFETCH_SIZE = 1649:1641, "Code to prefetch, in units of 256 bytes.";
        PROGRAM_PREFETCH_TYPE: PrefetchType = 1651:1650, "When to prefetch.";
        SASS_VERSION = 1663:1656, "Version of the machine code.";
        RELEASE0_ADDRESS_LOWER = 799:768, "First release: address, low word.";
        RELEASE0_ADDRESS_UPPER = 807:800, "First release: address, bits 39:32.";
        RELEASE0_MEMBAR_TYPE: ReleaseMembar = 819:819, "First release: barrier before it.";
        RELEASE0_ENABLE: bool = 823:823, "First release: enable.";
        RELEASE0_PAYLOAD64B: bool = 829:829, "First release: 64-bit payload.";
        RELEASE0_STRUCTURE_SIZE: StructureSize = 831:830, "First release: payload and timestamp.";
        RELEASE0_PAYLOAD_LOWER = 863:832, "First release: payload, low word.";
        RELEASE0_PAYLOAD_UPPER = 895:864, "First release: payload, high word.";
        RELEASE1_ADDRESS_LOWER = 927:896, "Second release: address, low word.";
        RELEASE1_ADDRESS_UPPER = 935:928, "Second release: address, bits 39:32.";
        RELEASE1_MEMBAR_TYPE: ReleaseMembar = 947:947, "Second release: barrier before it.";
        RELEASE1_ENABLE: bool = 951:951, "Second release: enable.";
        RELEASE1_PAYLOAD64B: bool = 957:957, "Second release: 64-bit payload.";
        RELEASE1_STRUCTURE_SIZE: StructureSize = 959:958, "Second release: payload and timestamp.";
        RELEASE1_PAYLOAD_LOWER = 991:960, "Second release: payload, low word.";
        RELEASE1_PAYLOAD_UPPER = 1023:992, "Second release: payload, high word.";
        RELEASE2_ADDRESS_LOWER = 1695:1664, "Third release: address, low word.";
        RELEASE2_ADDRESS_UPPER = 1703:1696, "Third release: address, bits 39:32.";
        RELEASE2_MEMBAR_TYPE: ReleaseMembar = 1715:1715, "Third release: barrier before it.";
        RELEASE2_ENABLE: bool = 1719:1719, "Third release: enable.";
        RELEASE2_PAYLOAD64B: bool = 1725:1725, "Third release: 64-bit payload.";
        RELEASE2_STRUCTURE_SIZE: StructureSize = 1727:1726, "Third release: payload and timestamp.";
        RELEASE2_PAYLOAD_LOWER = 1759:1728, "Third release: payload, low word.";
        RELEASE2_PAYLOAD_UPPER = 1791:1760, "Third release: payload, high word.";
        DEBUG_ID_UPPER = 2015:1984, "Free for the CPU, high word.";
        DEBUG_ID_LOWER = 2047:2016, "Free for the CPU, low word.";
    }

    repeated {
        CONSTANT_BUFFER_VALID: bool [8] = 640:640 step 1, "The bank is bound.";
        CONSTANT_BUFFER_ADDR_LOWER[8] = 1055:1024 step 64, "The bank's address, low word.";
        CONSTANT_BUFFER_ADDR_UPPER[8] = 1072:1056 step 64, "The bank's address, bits 48:32.";
        CONSTANT_BUFFER_PREFETCH_POST: bool [8] = 1073:1073 step 64,
            "Prefetch the bank after launch instead of before.";
        CONSTANT_BUFFER_INVALIDATE: bool [8] = 1074:1074 step 64,
            "Invalidate cached constants of the bank at the start.";
        CONSTANT_BUFFER_SIZE_SHIFTED4[8] = 1087:1075 step 64,
            "The bank's size in units of 16 bytes.";
    }

    values {
        Membar of "CWD_MEMBAR_TYPE", "Barrier at the end of every block." {
            None = 0, "L1_NONE", "None.";
            System = 1, "L1_SYSMEMBAR", "Writes become visible to the system.";
            Gpu = 3, "L1_MEMBAR", "Writes become visible to the GPU.";
        }

        SamplerIndex of "SAMPLER_INDEX", "Lookup of samplers." {
            Independently = 0, "INDEPENDENTLY", "By a separate index.";
            ViaHeaderIndex = 1, "VIA_HEADER_INDEX", "By the header's index.";
        }

        CallLimit of "API_VISIBLE_CALL_LIMIT", "Depth of calls." {
            Calls32 = 0, "_32", "32.";
            NoCheck = 1, "NO_CHECK", "Not checked.";
        }

        DependentAction of "DEPENDENT_QMD0_ACTION",
            "Action of completion on the dependent launch." {
            Schedule = 1, "QMD_SCHEDULE", "Run it.";
            InvalidateCopySchedule = 3, "QMD_INVALIDATE_COPY_SCHEDULE",
                "Invalidate the cached copy, copy, run it.";
            DecrementDependence = 4, "QMD_DECREMENT_DEPENDENCE",
                "Decrement its dependence counter.";
        }

        PrefetchType of "PROGRAM_PREFETCH_TYPE", "Time of the code prefetch." {
            Launch = 0, "PREFETCH_LAUNCH", "At launch.";
        }

        StructureSize of "RELEASE0_STRUCTURE_SIZE", "Contents of a release." {
            FourWords = 0, "SEMAPHORE_FOUR_WORDS", "Payload and timestamp, 16 bytes.";
            OneWord = 1, "SEMAPHORE_ONE_WORD", "The payload, 4 bytes.";
            TwoWords = 2, "SEMAPHORE_TWO_WORDS", "The payload, 8 bytes.";
        }

        ReleaseMembar of "RELEASE0_MEMBAR_TYPE", "Barrier before a release." {
            None = 0, "FE_NONE", "None.";
            System = 1, "FE_SYSMEMBAR", "Writes become visible to the system.";
        }
    }
}

/// Bit offsets of a launch's three completion releases from the fields of the first.
pub const RELEASES: [u32; 3] = [0, 128, 896];
