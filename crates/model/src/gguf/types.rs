//! ggml's numbers and names of tensor types, and which of them are supported.

use super::Defect;
use plan::DType;

/// Types that exist in files but are not supported, so that an error can name them.
const KNOWN: [(u32, &str); 7] =
    [(9, "Q8_1"), (15, "Q8_K"), (24, "I8"), (25, "I16"), (27, "I64"), (28, "F64"), (40, "NVFP4")];

pub(super) fn from_ggml(id: u32) -> Result<DType, Defect> {
    let supported = DType::ALL.into_iter().find(|dtype| dtype.ggml() == id);
    supported.ok_or_else(|| match KNOWN.iter().find(|(n, _)| *n == id) {
        Some(&(_, name)) => Defect::UnsupportedType { name },
        None => Defect::UnknownType { found: id },
    })
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
            assert_eq!(from_ggml(dtype.ggml()), Ok(dtype));
        }
        assert_eq!(from_ggml(9), Err(Defect::UnsupportedType { name: "Q8_1" }));
        assert_eq!(from_ggml(4), Err(Defect::UnknownType { found: 4 }));
        assert!(from_ggml(9).unwrap_err().to_string().contains("Q6_K"));
    }
}
