//! Registry of formats, one file each, and functions that several of them share.

mod grids;
mod iq4;
mod k_scales;
mod nibbles;
mod pairs;
mod ternary;

pub use k_scales::scale_and_min;

/// Declares the formats: file, type, and the fields that scale the whole block.
macro_rules! formats {
    ($d:tt $($file:ident: $name:ident ($($scale:ident),*)),* $(,)?) => {
        $(
            mod $file;
            pub use $file::$name;
            const _: () = assert!(size_of::<$name>() == crate::DType::$name.block_bytes());

            impl super::format::Suspect for $name {
                #[inline]
                fn is_suspect(&self) -> bool {
                    $(self.$scale.is_suspect())||*
                }
            }
        )*

        /// Calls a function that is generic over a format and its block length, for a block type
        /// known at run time.
        macro_rules! with_format {
            ($d dtype:expr, $d call:ident($d($d argument:expr),*)) => {
                match $d dtype {
                    $(
                        crate::DType::$name => $d call::<
                            crate::quant::formats::$name,
                            { crate::DType::$name.block_len() },
                        >($d($d argument),*),
                    )*
                    other => unreachable!("{other} has no blocks"),
                }
            };
        }
        pub(super) use with_format;
    };
}

formats! { $
    q8_0: Q8_0 (d),
    q4_0: Q4_0 (d),
    q4_1: Q4_1 (d, m),
    q5_0: Q5_0 (d),
    q5_1: Q5_1 (d, m),
    iq4_nl: IQ4_NL (d),
    mxfp4: MXFP4 (e),
    q2_k: Q2_K (d, dmin),
    q3_k: Q3_K (d),
    q4_k: Q4_K (d, dmin),
    q5_k: Q5_K (d, dmin),
    q6_k: Q6_K (d),
    iq4_xs: IQ4_XS (d),
    iq3_s: IQ3_S (d),
    iq3_xxs: IQ3_XXS (d),
    iq2_s: IQ2_S (d),
    iq2_xs: IQ2_XS (d),
    iq2_xxs: IQ2_XXS (d),
    iq1_m: IQ1_M (scales),
    iq1_s: IQ1_S (d),
    tq1_0: TQ1_0 (d),
    tq2_0: TQ2_0 (d),
}
