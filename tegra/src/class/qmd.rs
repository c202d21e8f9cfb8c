//! QMD 3.0: the 256 bytes that describe one kernel launch. Header `clc7c0qmd.h`, QMDV03_00.
//!
//! The compute class `0xc7c0` accepts this layout; the version fields must say 3 and 0 (seen on
//! hardware). Queues, preemption resume and the fields that only hardware writes are left out:
//! they are zero in a launch.

use super::{Field, Value};

/// Words of a QMD.
pub const WORDS: usize = 64;
/// Its alignment in bytes: pointers to it are shifted right by 8.
pub const ALIGNMENT: u64 = 256;
/// Value of [`QMD_MAJOR_VERSION`].
pub const MAJOR: u32 = 3;
/// Value of [`QMD_VERSION`].
pub const MINOR: u32 = 0;
/// Constant banks.
pub const BANKS: usize = 8;

/// A field of a QMD, and what it holds; none crosses a word.
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

/// Declares fields (`NAME: type = high:low`), repeated fields (`NAME[count] = high:low step bits`) and
/// values, under the header's names.
macro_rules! qmd {
    (
        fields { $( $(#[$fdoc:meta])* $FIELD:ident $(: $T:ty)? =
            $high:literal : $low:literal; )* }
        repeated { $( $(#[$rdoc:meta])* $REPEATED:ident $(: $R:ty)? [$count:literal] =
            $rhigh:literal : $rlow:literal step $step:literal; )* }
        values { $( $(#[$vdoc:meta])* $Value:ident of $vname:literal {
            $( $(#[$edoc:meta])* $Variant:ident = $number:literal, $ename:literal; )*
        } )* }
    ) => {
        $( $(#[$fdoc])* pub const $FIELD: QmdField$(<$T>)? = QmdField::new($high, $low); )*
        $(
            $(#[$rdoc])*
            pub const $REPEATED: [QmdField$(<$R>)?; $count] = {
                let mut fields = [QmdField::new($rhigh, $rlow); $count];
                let mut i = 0;
                while i < $count {
                    let at = i as u32 * $step;
                    fields[i] = QmdField::new($rhigh + at, $rlow + at);
                    i += 1;
                }
                fields
            };
        )*
        $( enumeration! { $(#[$vdoc])* $Value { $( $(#[$edoc])* $Variant = $number; )* } } )*

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
        /// Group id; 0x3f in the proven code.
        QMD_GROUP_ID = 133:128;
        /// Let L1 cache global loads.
        SM_GLOBAL_CACHING_ENABLE: bool = 134:134;
        /// Decrements that this launch waits for before it runs.
        DEPENDENCE_COUNTER = 157:142;
        /// Invalidate texture headers at the start.
        INVALIDATE_TEXTURE_HEADER_CACHE: bool = 186:186;
        /// Invalidate samplers at the start.
        INVALIDATE_TEXTURE_SAMPLER_CACHE: bool = 187:187;
        /// Invalidate texture data at the start.
        INVALIDATE_TEXTURE_DATA_CACHE: bool = 188:188;
        /// Invalidate global data in L1 at the start.
        INVALIDATE_SHADER_DATA_CACHE: bool = 189:189;
        /// Invalidate instructions at the start.
        INVALIDATE_INSTRUCTION_CACHE: bool = 190:190;
        /// Invalidate constants at the start.
        INVALIDATE_SHADER_CONSTANT_CACHE: bool = 191:191;
        /// Code to prefetch: address shifted right by 8, low word.
        PROGRAM_PREFETCH_ADDR_LOWER_SHIFTED = 287:256;
        /// Barrier at the end of every block.
        CWD_MEMBAR_TYPE: Membar = 369:368;
        /// Depth of calls.
        API_VISIBLE_CALL_LIMIT: CallLimit = 378:378;
        /// How samplers are found.
        SAMPLER_INDEX: SamplerIndex = 382:382;
        /// Blocks in x.
        CTA_RASTER_WIDTH = 415:384;
        /// Blocks in y.
        CTA_RASTER_HEIGHT = 431:416;
        /// Blocks in z.
        CTA_RASTER_DEPTH = 463:448;
        /// The launch that depends on this one: address shifted right by 8.
        DEPENDENT_QMD0_POINTER = 511:480;
        /// Whether there is one.
        DEPENDENT_QMD0_ENABLE: bool = 512:512;
        /// What completion does to it.
        DEPENDENT_QMD0_ACTION: DependentAction = 515:513;
        /// Fetch it beforehand.
        DEPENDENT_QMD0_PREFETCH: bool = 516:516;
        /// Bytes of shared memory of a block.
        SHARED_MEMORY_SIZE = 561:544;
        /// Smallest carve-out, as a code.
        MIN_SM_CONFIG_SHARED_MEM_SIZE = 567:562;
        /// Largest carve-out, as a code.
        MAX_SM_CONFIG_SHARED_MEM_SIZE = 574:569;
        /// Minor version.
        QMD_VERSION = 579:576;
        /// Major version.
        QMD_MAJOR_VERSION = 583:580;
        /// Threads in x.
        CTA_THREAD_DIMENSION0 = 607:592;
        /// Threads in y.
        CTA_THREAD_DIMENSION1 = 623:608;
        /// Threads in z.
        CTA_THREAD_DIMENSION2 = 639:624;
        /// Registers of a thread.
        REGISTER_COUNT_V = 656:648;
        /// Carve-out wanted, as a code.
        TARGET_SM_CONFIG_SHARED_MEM_SIZE = 662:657;
        /// Local memory that grows up from 0.
        SHADER_LOCAL_MEMORY_LOW_SIZE = 759:736;
        /// Barriers of a block.
        BARRIER_COUNT = 767:763;
        /// Address of the first instruction, low word.
        PROGRAM_ADDRESS_LOWER = 1567:1536;
        /// Address of the first instruction, bits 48:32.
        PROGRAM_ADDRESS_UPPER = 1584:1568;
        /// Bytes of local memory of a thread, hanging down from 2^24.
        SHADER_LOCAL_MEMORY_HIGH_SIZE = 1623:1600;
        /// Code to prefetch: address shifted right by 40.
        PROGRAM_PREFETCH_ADDR_UPPER_SHIFTED = 1640:1632;
        /// Code to prefetch, in units of 256 bytes.
        PROGRAM_PREFETCH_SIZE = 1649:1641;
        /// When to prefetch.
        PROGRAM_PREFETCH_TYPE: PrefetchType = 1651:1650;
        /// Version of the machine code.
        SASS_VERSION = 1663:1656;
        /// First release: address, low word.
        RELEASE0_ADDRESS_LOWER = 799:768;
        /// First release: address, bits 39:32.
        RELEASE0_ADDRESS_UPPER = 807:800;
        /// First release: barrier before it.
        RELEASE0_MEMBAR_TYPE: ReleaseMembar = 819:819;
        /// First release: whether it happens.
        RELEASE0_ENABLE: bool = 823:823;
        /// First release: 64-bit payload.
        RELEASE0_PAYLOAD64B: bool = 829:829;
        /// First release: what is written.
        RELEASE0_STRUCTURE_SIZE: StructureSize = 831:830;
        /// First release: payload, low word.
        RELEASE0_PAYLOAD_LOWER = 863:832;
        /// First release: payload, high word.
        RELEASE0_PAYLOAD_UPPER = 895:864;
        /// Second release: address, low word.
        RELEASE1_ADDRESS_LOWER = 927:896;
        /// Second release: address, bits 39:32.
        RELEASE1_ADDRESS_UPPER = 935:928;
        /// Second release: barrier before it.
        RELEASE1_MEMBAR_TYPE: ReleaseMembar = 947:947;
        /// Second release: whether it happens.
        RELEASE1_ENABLE: bool = 951:951;
        /// Second release: 64-bit payload.
        RELEASE1_PAYLOAD64B: bool = 957:957;
        /// Second release: what is written.
        RELEASE1_STRUCTURE_SIZE: StructureSize = 959:958;
        /// Second release: payload, low word.
        RELEASE1_PAYLOAD_LOWER = 991:960;
        /// Second release: payload, high word.
        RELEASE1_PAYLOAD_UPPER = 1023:992;
        /// Third release: address, low word.
        RELEASE2_ADDRESS_LOWER = 1695:1664;
        /// Third release: address, bits 39:32.
        RELEASE2_ADDRESS_UPPER = 1703:1696;
        /// Third release: barrier before it.
        RELEASE2_MEMBAR_TYPE: ReleaseMembar = 1715:1715;
        /// Third release: whether it happens.
        RELEASE2_ENABLE: bool = 1719:1719;
        /// Third release: 64-bit payload.
        RELEASE2_PAYLOAD64B: bool = 1725:1725;
        /// Third release: what is written.
        RELEASE2_STRUCTURE_SIZE: StructureSize = 1727:1726;
        /// Third release: payload, low word.
        RELEASE2_PAYLOAD_LOWER = 1759:1728;
        /// Third release: payload, high word.
        RELEASE2_PAYLOAD_UPPER = 1791:1760;
        /// Free for the CPU, high word.
        DEBUG_ID_UPPER = 2015:1984;
        /// Free for the CPU, low word.
        DEBUG_ID_LOWER = 2047:2016;
    }

    repeated {
        /// Whether the bank is bound.
        CONSTANT_BUFFER_VALID: bool [8] = 640:640 step 1;
        /// The bank's address, low word.
        CONSTANT_BUFFER_ADDR_LOWER[8] = 1055:1024 step 64;
        /// The bank's address, bits 48:32.
        CONSTANT_BUFFER_ADDR_UPPER[8] = 1072:1056 step 64;
        /// Prefetch the bank after launch instead of before.
        CONSTANT_BUFFER_PREFETCH_POST: bool [8] = 1073:1073 step 64;
        /// Invalidate cached constants of the bank at the start.
        CONSTANT_BUFFER_INVALIDATE: bool [8] = 1074:1074 step 64;
        /// The bank's size in units of 16 bytes.
        CONSTANT_BUFFER_SIZE_SHIFTED4[8] = 1087:1075 step 64;
    }

    values {
        /// Barrier at the end of every block.
        Membar of "CWD_MEMBAR_TYPE" {
            /// None.
            None = 0, "L1_NONE";
            /// Writes become visible to the system.
            System = 1, "L1_SYSMEMBAR";
            /// Writes become visible to the GPU.
            Gpu = 3, "L1_MEMBAR";
        }

        /// How samplers are found.
        SamplerIndex of "SAMPLER_INDEX" {
            /// By an index of their own.
            Independently = 0, "INDEPENDENTLY";
            /// By the header's index.
            ViaHeaderIndex = 1, "VIA_HEADER_INDEX";
        }

        /// Depth of calls.
        CallLimit of "API_VISIBLE_CALL_LIMIT" {
            /// 32.
            Calls32 = 0, "_32";
            /// Not checked.
            NoCheck = 1, "NO_CHECK";
        }

        /// What completion does to the dependent launch.
        DependentAction of "DEPENDENT_QMD0_ACTION" {
            /// Run it.
            Schedule = 1, "QMD_SCHEDULE";
            /// Forget a cached copy, copy, run it.
            InvalidateCopySchedule = 3, "QMD_INVALIDATE_COPY_SCHEDULE";
            /// Count one of its dependencies down.
            DecrementDependence = 4, "QMD_DECREMENT_DEPENDENCE";
        }

        /// When code is prefetched.
        PrefetchType of "PROGRAM_PREFETCH_TYPE" {
            /// At launch.
            Launch = 0, "PREFETCH_LAUNCH";
        }

        /// What a release writes.
        StructureSize of "RELEASE0_STRUCTURE_SIZE" {
            /// Payload and timestamp, 16 bytes.
            FourWords = 0, "SEMAPHORE_FOUR_WORDS";
            /// The payload, 4 bytes.
            OneWord = 1, "SEMAPHORE_ONE_WORD";
            /// The payload, 8 bytes.
            TwoWords = 2, "SEMAPHORE_TWO_WORDS";
        }

        /// Barrier before a release.
        ReleaseMembar of "RELEASE0_MEMBAR_TYPE" {
            /// None.
            None = 0, "FE_NONE";
            /// Writes become visible to the system.
            System = 1, "FE_SYSMEMBAR";
        }
    }
}

/// The fields of one of the three releases.
#[derive(Clone, Copy, Debug)]
pub struct ReleaseFields {
    /// Address, low word.
    pub address_lower: QmdField,
    /// Address, bits 39:32.
    pub address_upper: QmdField,
    /// Barrier before it.
    pub membar_type: QmdField<ReleaseMembar>,
    /// Whether it happens.
    pub enable: QmdField<bool>,
    /// 64-bit payload.
    pub payload64b: QmdField<bool>,
    /// What is written.
    pub structure_size: QmdField<StructureSize>,
    /// Payload, low word.
    pub payload_lower: QmdField,
    /// Payload, high word.
    pub payload_upper: QmdField,
}

/// The three releases that a launch may do when it completes.
pub const RELEASES: [ReleaseFields; 3] = [
    ReleaseFields {
        address_lower: RELEASE0_ADDRESS_LOWER,
        address_upper: RELEASE0_ADDRESS_UPPER,
        membar_type: RELEASE0_MEMBAR_TYPE,
        enable: RELEASE0_ENABLE,
        payload64b: RELEASE0_PAYLOAD64B,
        structure_size: RELEASE0_STRUCTURE_SIZE,
        payload_lower: RELEASE0_PAYLOAD_LOWER,
        payload_upper: RELEASE0_PAYLOAD_UPPER,
    },
    ReleaseFields {
        address_lower: RELEASE1_ADDRESS_LOWER,
        address_upper: RELEASE1_ADDRESS_UPPER,
        membar_type: RELEASE1_MEMBAR_TYPE,
        enable: RELEASE1_ENABLE,
        payload64b: RELEASE1_PAYLOAD64B,
        structure_size: RELEASE1_STRUCTURE_SIZE,
        payload_lower: RELEASE1_PAYLOAD_LOWER,
        payload_upper: RELEASE1_PAYLOAD_UPPER,
    },
    ReleaseFields {
        address_lower: RELEASE2_ADDRESS_LOWER,
        address_upper: RELEASE2_ADDRESS_UPPER,
        membar_type: RELEASE2_MEMBAR_TYPE,
        enable: RELEASE2_ENABLE,
        payload64b: RELEASE2_PAYLOAD64B,
        structure_size: RELEASE2_STRUCTURE_SIZE,
        payload_lower: RELEASE2_PAYLOAD_LOWER,
        payload_upper: RELEASE2_PAYLOAD_UPPER,
    },
];
