//! ggml's numbers and names of tensor types, and which of them are supported.

use super::Defect;
use plan::DType;

/// Types that exist in files but are not supported, so that an error can name them.
const KNOWN: [(u32, &str); 24] = [
    (3, "Q4_1"),
    (6, "Q5_0"),
    (7, "Q5_1"),
    (9, "Q8_1"),
    (10, "Q2_K"),
    (11, "Q3_K"),
    (15, "Q8_K"),
    (16, "IQ2_XXS"),
    (17, "IQ2_XS"),
    (18, "IQ3_XXS"),
    (19, "IQ1_S"),
    (20, "IQ4_NL"),
    (21, "IQ3_S"),
    (22, "IQ2_S"),
    (23, "IQ4_XS"),
    (24, "I8"),
    (25, "I16"),
    (27, "I64"),
    (28, "F64"),
    (29, "IQ1_M"),
    (34, "TQ1_0"),
    (35, "TQ2_0"),
    (39, "MXFP4"),
    (40, "NVFP4"),
];

pub(super) fn from_ggml(id: u32) -> Result<DType, Defect> {
    let supported = DType::ALL.into_iter().find(|dtype| to_ggml(*dtype) == id);
    supported.ok_or_else(|| match KNOWN.iter().find(|(n, _)| *n == id) {
        Some(&(_, name)) => Defect::UnsupportedType { name },
        None => Defect::UnknownType { found: id },
    })
}

/// ggml's number of a type (ggml `enum ggml_type`).
pub(super) fn to_ggml(dtype: DType) -> u32 {
    match dtype {
        DType::F32 => 0,
        DType::F16 => 1,
        DType::Q4_0 => 2,
        DType::Q8_0 => 8,
        DType::Q4_K => 12,
        DType::Q5_K => 13,
        DType::Q6_K => 14,
        DType::I32 => 26,
        DType::BF16 => 30,
    }
}

pub(super) fn supported() -> String {
    DType::ALL.map(DType::name).join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        for dtype in DType::ALL {
            assert_eq!(from_ggml(to_ggml(dtype)), Ok(dtype));
        }
        assert_eq!(from_ggml(10), Err(Defect::UnsupportedType { name: "Q2_K" }));
        assert_eq!(from_ggml(4), Err(Defect::UnknownType { found: 4 }));
        assert!(from_ggml(10).unwrap_err().to_string().contains("Q6_K"));
    }
}
