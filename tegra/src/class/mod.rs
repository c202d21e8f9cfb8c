//! Method addresses, fields of data words, enumerated values and memory layouts of the hardware.
//!
//! The only place with a bare method number, bit position or encoded value; everything else in the
//! crate uses these names, which are NVIDIA's own. Describes the layout of a word, not when to
//! write it.
//!
//! Sources: NVIDIA's published class headers `clc76f.h` (host), `clc7b5.h` (copy), `clc7c0.h`
//! (compute) and `clc7c0qmd.h` (QMD 3.0), with which `tests/suite/class.rs` compares every item;
//! for [`usermode`] the TU104 manual. The Orin's GPU, GA10B, has no public manual of its own.

use std::fmt;
use std::marker::PhantomData;

/// Declares an enumeration of encoded values.
macro_rules! enumeration {
    ($Value:ident, $vdoc:literal { $( $Variant:ident = $number:literal, $edoc:literal; )* }) => {
        #[doc = $vdoc]
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u32)]
        pub enum $Value { $( #[doc = $edoc] $Variant = $number, )* }

        impl $Value {
            /// Every value, in the order of the header.
            pub const ALL: &[Self] = &[ $( Self::$Variant, )* ];
        }

        impl $crate::class::Value for $Value {
            type Read = Option<Self>;

            fn number(self) -> u32 {
                self as u32
            }

            fn from_number(number: u32) -> Option<Self> {
                match number {
                    $( $number => Some(Self::$Variant), )*
                    _ => None,
                }
            }
        }
    };
}

/// Declares a class: methods, fields of data words, and enumerated values, each under the header's
/// name and followed by its documentation, plus the table of all of them. A field without a type is
/// a number.
macro_rules! class {
    (
        for $Class:ident;
        methods { $( $METHOD:ident = $address:literal, $mdoc:literal; )* }
        words { $( $word:ident of $wname:literal, $wdoc:literal {
            $( $FIELD:ident $(: $T:ty)? = $high:literal : $low:literal, $fdoc:literal; )*
        } )* }
        values { $( $Value:ident of $vname:literal, $vdoc:literal {
            $( $Variant:ident = $number:literal, $ename:literal, $edoc:literal; )*
        } )* }
    ) => {
        $(
            #[doc = $mdoc]
            pub const $METHOD: $crate::class::Method<$crate::class::$Class> =
                $crate::class::Method::new($address, stringify!($METHOD));
        )*
        $(
            #[doc = $wdoc]
            pub mod $word {
                use $crate::class::Field;
                $( #[doc = $fdoc] pub const $FIELD: Field$(<$T>)? = Field::new($high, $low); )*
            }
        )*
        $( enumeration! { $Value, $vdoc { $( $Variant = $number, $edoc; )* } } )*

        /// Every method.
        pub const METHODS: &[$crate::class::Method<$crate::class::$Class>] = &[ $( $METHOD, )* ];

        /// Everything that this module defines, under the header's names.
        pub const DEFINITIONS: &[$crate::class::Definition] = &[
            $( $crate::class::Definition::number(stringify!($METHOD), $address), )*
            $( $( $crate::class::Definition::field(
                concat!($wname, "_", stringify!($FIELD)), $high, $low), )* )*
            $( $( $crate::class::Definition::number(
                concat!($vname, "_", $ename), $number), )* )*
        ];
    };
}

pub mod compute;
pub mod copy;
pub mod host;
pub mod qmd;
pub mod usermode;

/// Class numbers of `ALLOC_OBJ_CTX` and `SET_OBJECT`. Header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum ClassId {
    /// `AMPERE_CHANNEL_GPFIFO_B`.
    Host = 0xc76f,
    /// `AMPERE_COMPUTE_B`.
    Compute = 0xc7c0,
    /// `AMPERE_DMA_COPY_B`.
    Copy = 0xc7b5,
}

/// Marks methods that the host unit executes itself, on any subchannel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {}

/// Marks methods of the compute engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compute {}

/// Marks methods of the copy engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Copy {}

mod sealed {
    pub trait Sealed {}
    impl Sealed for super::Host {}
    impl Sealed for super::Compute {}
    impl Sealed for super::Copy {}
}

/// A class that methods belong to.
pub trait Class: sealed::Sealed + std::marker::Copy + 'static {
    /// The subchannel of its methods. Fixed on the graphics runlist: 1 compute, 4 copy; ignored for
    /// host methods. Manual, seen on hardware.
    const SUBCHANNEL: u32;
    /// Class number.
    const ID: ClassId;
    /// Methods that this crate names.
    const METHODS: &'static [Method<Self>];
}

impl Class for Host {
    const SUBCHANNEL: u32 = 0;
    const ID: ClassId = ClassId::Host;
    const METHODS: &'static [Method<Self>] = host::METHODS;
}

impl Class for Compute {
    const SUBCHANNEL: u32 = 1;
    const ID: ClassId = ClassId::Compute;
    const METHODS: &'static [Method<Self>] = compute::METHODS;
}

impl Class for Copy {
    const SUBCHANNEL: u32 = 4;
    const ID: ClassId = ClassId::Copy;
    const METHODS: &'static [Method<Self>] = copy::METHODS;
}

/// A method of class `C`: a register address that a push buffer writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Method<C> {
    address: u32,
    name: &'static str,
    class: PhantomData<C>,
}

impl Method<Host> {
    /// The same method on the subchannel of class `C`, to bind a class to it.
    #[must_use]
    pub const fn on<C: Class>(self) -> Method<C> {
        Method::new(self.address, self.name)
    }
}

impl<C: Class> Method<C> {
    const fn new(address: u32, name: &'static str) -> Self {
        assert!(address.is_multiple_of(4) && address < 1 << 14, "method addresses have 14 bits");
        Self { address, name, class: PhantomData }
    }

    /// Byte address, a multiple of 4.
    #[must_use]
    pub const fn address(self) -> u32 {
        self.address
    }

    /// NVIDIA's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        self.name
    }
}

impl<C: Class> fmt::Display for Method<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name)
    }
}

/// Value of a field: a number, a flag, or one of the class's enumerated values.
pub trait Value: std::marker::Copy {
    /// Decoded value; for enumerations an `Option`, `None` for an undefined number.
    type Read;

    /// Encodes the value.
    fn number(self) -> u32;

    /// Decodes a number.
    fn from_number(number: u32) -> Self::Read;
}

impl Value for u32 {
    type Read = Self;

    fn number(self) -> u32 {
        self
    }

    fn from_number(number: u32) -> u32 {
        number
    }
}

impl Value for bool {
    type Read = Self;

    fn number(self) -> u32 {
        self.into()
    }

    fn from_number(number: u32) -> bool {
        number != 0
    }
}

/// A range of bits in a 32-bit word, and the type of its value.
///
/// ```
/// use tegra::class::host::{WfiScope, wfi};
///
/// assert_eq!(wfi::SCOPE.put(WfiScope::All), 1);
/// assert_eq!(wfi::SCOPE.get(1), Some(WfiScope::All));
/// ```
///
/// A value of another field does not compile:
///
/// ```compile_fail,E0308
/// use tegra::class::host::{WfiScope, mem_op_c};
///
/// mem_op_c::MEMBAR_TYPE.put(WfiScope::All);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<T = u32> {
    high: u32,
    low: u32,
    value: PhantomData<T>,
}

impl<T> Field<T> {
    pub(crate) const fn new(high: u32, low: u32) -> Self {
        assert!(low <= high && high < 32, "a field lies within a word");
        Self { high, low, value: PhantomData }
    }

    /// The largest number that fits.
    #[must_use]
    pub const fn max(&self) -> u32 {
        u32::MAX >> (31 - (self.high - self.low))
    }

    /// The same bits as a number.
    #[must_use]
    pub const fn raw(&self) -> Field {
        Field::new(self.high, self.low)
    }

    /// The field's bits in place.
    #[must_use]
    pub const fn mask(&self) -> u32 {
        self.max() << self.low
    }
}

impl<T: Value> Field<T> {
    /// `value` at the field's place in an otherwise zero word.
    ///
    /// # Panics
    /// When `value` does not fit: callers check against [`Field::max`] or have a type that fits.
    #[must_use]
    pub fn put(self, value: T) -> u32 {
        assert!(value.number() <= self.max(), "a value does not fit its field");
        value.number() << self.low
    }

    /// Decodes the field of `word`.
    #[must_use]
    pub fn get(self, word: u32) -> T::Read {
        T::from_number(word >> self.low & self.max())
    }
}

/// One defined name with its number or bits, for comparison with a header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Definition {
    /// The name in the header, without the class prefix.
    pub name: &'static str,
    /// Value: a number or bits.
    pub meaning: Meaning,
}

/// Number or bits of a [`Definition`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Meaning {
    /// A method address or an encoded value.
    Number(u32),
    /// Bits `high:low`, of a word or of a multi-word structure.
    Bits {
        /// Highest bit.
        high: u32,
        /// Lowest bit.
        low: u32,
    },
}

impl Definition {
    const fn number(name: &'static str, number: u32) -> Self {
        Self { name, meaning: Meaning::Number(number) }
    }

    const fn field(name: &'static str, high: u32, low: u32) -> Self {
        Self { name, meaning: Meaning::Bits { high, low } }
    }
}
