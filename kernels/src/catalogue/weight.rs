//! Weight types that kernels read: the GGUF types they come from, and the sizes that launches,
//! layouts and tuning use.

use plan::DType;

/// Sizes of a format. `format.cuh` has the same names, and the build asserts that they are equal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct FormatSizes {
    /// Pieces of a superblock before its quants.
    pub(crate) head: usize,
    /// Pieces of the quants of 256 columns.
    pub(crate) quants: usize,
    /// Bytes beyond whole pieces.
    pub(crate) tail: usize,
    /// Registers of a lane for the weights of a chunk, while it loads and multiplies them (`CHUNK`
    /// and `Raw`).
    pub(crate) registers: usize,
    /// Columns of activations that share a scale; 0 if activations stay `f32`.
    pub(crate) span: usize,
    /// Sums of each block's activations that the format needs.
    pub(crate) sums: usize,
}

/// Declares the types: the GGUF types they come from, and the values of [`FormatSizes`].
macro_rules! weights {
    ($($(#[$doc:meta])* $name:ident: $first:ident $(| $other:ident)*, $numbers:expr;)*) => {
        /// A weight type that the kernels read.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[expect(non_camel_case_types, reason = "the field's names are Q4_K and Q6_K")]
        pub enum Weight {
            $($(#[$doc])* $name,)*
        }

        impl Weight {
            /// All types.
            pub const ALL: [Self; [$(stringify!($name)),*].len()] = [$(Self::$name),*];

            /// Kernel type of a GGUF type.
            #[must_use]
            pub const fn of(dtype: DType) -> Option<Self> {
                Some(match dtype {
                    $(DType::$first $(| DType::$other)* => Self::$name,)*
                    _ => return None,
                })
            }

            /// GGUF type, or the first of several.
            #[must_use]
            pub const fn dtype(self) -> DType {
                match self {
                    $(Self::$name => DType::$first,)*
                }
            }

            /// Name of the format in CUDA: GGUF's name if it comes from one type.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$name => stringify!($name),)*
                }
            }

            pub(crate) const fn form(self) -> FormatSizes {
                let [head, quants, tail, registers, span, sums] = match self {
                    $(Self::$name => $numbers,)*
                };
                FormatSizes { head, quants, tail, registers, span, sums }
            }
        }
    };
}

weights! {
    // Head, quants, tail, registers, span, sums.
    /// 32 signed bytes and a step.
    Q8_0: Q8_0, [1, 16, 0, 9, 32, 0];
    /// 256 six-bit values, 16 scales.
    Q6_K: Q6_K, [1, 12, 2, 13, 256, 0];
    /// 256 nibbles, 8 scales and minima.
    Q4_K: Q4_K, [1, 8, 0, 8, 256, 1];
    /// 256 five-bit values, 8 scales and minima.
    Q5_K: Q5_K, [3, 8, 0, 10, 256, 1];
    /// 32 nibbles and a step.
    Q4_0: Q4_0, [1, 8, 0, 5, 32, 0];
    /// 32 nibbles, a step and a minimum.
    Q4_1: Q4_1, [2, 8, 0, 5, 32, 1];
    /// 32 five-bit values and a step.
    Q5_0: Q5_0, [3, 8, 0, 6, 32, 0];
    /// 32 five-bit values, a step and a minimum.
    Q5_1: Q5_1, [4, 8, 0, 6, 32, 1];
    /// 32 nibbles for levels, and a step.
    IQ4_NL: IQ4_NL, [1, 8, 0, 5, 32, 0];
    /// 32 nibbles for levels, and an exponent.
    MXFP4: MXFP4, [0, 8, 8, 5, 32, 0];
    /// 256 nibbles for levels, 8 scales.
    IQ4_XS: IQ4_XS, [0, 8, 8, 8, 256, 0];
    /// 256 pairs of bits, 16 scales and minima.
    Q2_K: Q2_K, [1, 4, 4, 5, 256, 2];
    /// 256 three-bit values, 16 scales.
    Q3_K: Q3_K, [3, 4, 4, 7, 256, 0];
    /// 256 pairs of bits and a step.
    TQ2_0: TQ2_0 | TQ1_0, [0, 4, 2, 4, 256, 1];
    /// 256 four-bit codes for odd levels, 16 scales.
    IQ3_S: IQ3_S, [1, 8, 4, 9, 256, 0];
    /// 256 four-bit codes for levels, 16 scales.
    IQ3_XXS: IQ3_XXS, [1, 8, 4, 9, 256, 0];
    /// 256 three-bit codes for levels, 16 scales.
    IQ2: IQ2_S | IQ2_XS | IQ2_XXS, [3, 4, 4, 7, 256, 0];
    /// 256 three-bit codes for levels, 16 scales.
    IQ1: IQ1_S | IQ1_M, [3, 4, 4, 7, 256, 0];
    /// Half precision.
    F16: F16, [0, 32, 0, 16, 0, 0];
    /// The upper half of single precision.
    BF16: BF16, [0, 32, 0, 16, 0, 0];
    /// Single precision.
    F32: F32, [0, 64, 0, 32, 0, 0];
}

impl Weight {
    /// Header that defines the format, if it is not `format.cuh`.
    pub(crate) fn header(self) -> Option<String> {
        (!self.is_common()).then(|| format!("{}.cuh", self.lower()))
    }

    /// Returns whether many models use the type.
    const fn is_common(self) -> bool {
        matches!(
            self,
            Self::Q8_0 | Self::Q6_K | Self::Q4_K | Self::Q5_K | Self::F16 | Self::BF16 | Self::F32
        )
    }

    /// Static assertions that the format in CUDA matches [`FormatSizes`].
    pub(crate) fn asserts(self) -> String {
        let (name, FormatSizes { head, quants, tail, span, sums, .. }) = (self.name(), self.form());
        let constants =
            [("HEAD", head), ("QUANTS", quants), ("TAIL", tail), ("SPAN", span), ("SUMS", sums)];
        constants
            .into_iter()
            .map(|(of, value)| format!("static_assert({name}::{of} == {value}, \"catalogue\");\n"))
            .collect()
    }

    /// 16-byte pieces of 256 activations, and whether all 256 share a scale (`Staged` in
    /// `stage.cuh`).
    pub(super) const fn record(self) -> (usize, bool) {
        let FormatSizes { span, .. } = self.form();
        let pieces = if span == 0 { 64 } else { 16 + self.extras() / 4 };
        (pieces, span == 256)
    }

    /// Number of `f32` stored with 256 quantised activations per block: scales of spans, and sums.
    pub(super) const fn extras(self) -> usize {
        let FormatSizes { span, sums, .. } = self.form();
        8 * (sums + (span == 32) as usize)
    }

    /// Returns whether activations are quantised (in one or two planes) or stay `f32`.
    #[must_use]
    pub const fn is_quantised(self) -> bool {
        self.form().span > 0
    }

    /// Returns whether tensor cores read the weights directly.
    #[must_use]
    pub const fn is_half(self) -> bool {
        matches!(self, Self::F16 | Self::BF16)
    }

    /// Rows of activations that a `matmul_*` block may take, ascending.
    #[must_use]
    pub const fn tiles(self) -> &'static [u32] {
        if self.is_quantised() { &[32, 128] } else { &[32, 64] }
    }

    /// Rows that projections are compiled for, ascending.
    #[must_use]
    pub const fn rows(self) -> &'static [u32] {
        if self.is_common() { &[1, 2, 4, 8] } else { &[1, 4] }
    }

    /// Largest of [`Weight::rows`].
    #[must_use]
    pub const fn most_rows(self) -> u32 {
        let rows = self.rows();
        rows[rows.len() - 1]
    }

    /// Numbers of activation planes that kernels are compiled for.
    pub(super) const fn planes(self) -> &'static [u32] {
        if self.is_quantised() { &[1, 2] } else { &[1] }
    }

    pub(super) fn lower(self) -> String {
        self.name().to_lowercase()
    }
}
