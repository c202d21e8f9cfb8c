//! Macros that define parameter blocks and enumerations once, in Rust, together with their CUDA
//! declaration.

use std::fmt::Write as _;

use zerocopy::{Immutable, IntoBytes};

/// A parameter block: [`IntoBytes::as_bytes`] is what goes into constant memory (little-endian, no
/// padding).
pub trait Parameters: Copy + IntoBytes + Immutable {
    /// Declaration of the struct in CUDA.
    fn declaration() -> String;
}

/// A type that a field of a parameter block may have.
pub trait Field {
    /// CUDA's name of the element type.
    const ELEMENT: &'static str;
    /// Number of elements, or `None` if the field is no array. Nested arrays are one array in CUDA.
    const COUNT: Option<usize> = None;
}

impl Field for u64 {
    const ELEMENT: &'static str = "u64";
}

impl Field for u32 {
    const ELEMENT: &'static str = "u32";
}

impl Field for f32 {
    const ELEMENT: &'static str = "float";
}

impl<T: Field, const N: usize> Field for [T; N] {
    const ELEMENT: &'static str = T::ELEMENT;
    const COUNT: Option<usize> = match T::COUNT {
        Some(count) => Some(N * count),
        None => Some(N),
    };
}

/// Declaration of a field in CUDA.
pub(crate) fn field<T: Field>(name: &str) -> String {
    let count = T::COUNT.map_or(String::new(), |count| format!("[{count}]"));
    format!("    {} {name}{count};\n", T::ELEMENT)
}

/// Declaration of a struct in CUDA.
pub(crate) fn structure<T>(name: &str, fields: &[String]) -> String {
    let size = size_of::<T>();
    format!(
        "struct {name} {{\n{}}};\nstatic_assert(sizeof({name}) == {size}, \"ABI\");\n",
        fields.concat()
    )
}

/// Declaration of an enumeration in CUDA: `SHOUTING_CASE` enumerators in a struct of the same name.
pub(super) fn enumeration(name: &str, variants: &[&str]) -> String {
    let mut text = format!("struct {name} {{\n    enum : u32 {{\n");
    for (value, variant) in variants.iter().enumerate() {
        let mut shouting = String::new();
        for letter in variant.chars() {
            if letter.is_uppercase() && !shouting.is_empty() {
                shouting.push('_');
            }
            shouting.push(letter.to_ascii_uppercase());
        }
        // Writing to a string cannot fail.
        let _ = writeln!(text, "        {shouting} = {value},");
    }
    text + "    };\n};\n"
}

/// Defines parameter blocks.
macro_rules! parameters {
    ($($(#[$doc:meta])* struct $name:ident { $($(#[$field_doc:meta])* $field:ident: $type:ty,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, zerocopy::IntoBytes, zerocopy::Immutable)]
        #[repr(C)]
        pub struct $name { $($(#[$field_doc])* pub $field: $type,)* }

        impl $crate::params::Parameters for $name {
            fn declaration() -> String {
                $crate::params::structure::<Self>(
                    stringify!($name),
                    &[$($crate::params::field::<$type>(stringify!($field)),)*],
                )
            }
        }

        impl $crate::params::Field for $name {
            const ELEMENT: &'static str = stringify!($name);
        }

        const _: () = assert!(size_of::<$name>() % 8 == 0 && cfg!(target_endian = "little"));
    )*};
}

/// Defines enumerations that kernels read as numbers, from 0.
macro_rules! enumerations {
    ($($(#[$doc:meta])* enum $name:ident: $repr:ident { $($(#[$variant_doc:meta])* $variant:ident,)* })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr($repr)]
        pub enum $name { $($(#[$variant_doc])* $variant,)* }

        impl $name {
            pub(super) fn declaration() -> String {
                $crate::params::define::enumeration(stringify!($name), &[$(stringify!($variant)),*])
            }
        }
    )*};
}

pub(super) use enumerations;
pub(crate) use parameters;
