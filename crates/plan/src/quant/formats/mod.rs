//! Every format, a file each, and what several of them share.

mod grids;
mod iq4;
mod k_scales;
mod nibbles;
mod pairs;
mod ternary;

pub use k_scales::scale_and_min;

/// Declares the formats, each the file of that name, and what finds one by its type.
macro_rules! formats {
    ($d:tt $($file:ident: $name:ident),* $(,)?) => {
        $(
            mod $file;
            pub use $file::$name;
            const _: () = assert!(size_of::<$name>() == crate::DType::$name.block_bytes());
        )*

        /// Calls a function that is generic over a format and the numbers of its block, for a type of blocks.
        macro_rules! with_format {
            ($d dtype:expr, $d call:ident($d($d argument:expr),*)) => {
                match $d dtype {
                    $(
                        crate::DType::$name => $d call::<
                            crate::quant::$name,
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
    q8_0: Q8_0,
    q4_0: Q4_0,
    q4_1: Q4_1,
    q5_0: Q5_0,
    q5_1: Q5_1,
    iq4_nl: IQ4_NL,
    mxfp4: MXFP4,
    q2_k: Q2_K,
    q3_k: Q3_K,
    q4_k: Q4_K,
    q5_k: Q5_K,
    q6_k: Q6_K,
    iq4_xs: IQ4_XS,
    iq3_s: IQ3_S,
    iq3_xxs: IQ3_XXS,
    iq2_s: IQ2_S,
    iq2_xs: IQ2_XS,
    iq2_xxs: IQ2_XXS,
    iq1_m: IQ1_M,
    iq1_s: IQ1_S,
    tq1_0: TQ1_0,
    tq2_0: TQ2_0,
}
