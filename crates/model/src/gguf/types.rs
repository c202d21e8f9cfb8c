//! ggml's numbers of tensor types.

use super::error::Defect;
use plan::DType;

/// Types that files may have but that are not supported; errors name them.
const KNOWN: [(u32, &str); 6] =
    [(9, "Q8_1"), (15, "Q8_K"), (25, "I16"), (27, "I64"), (28, "F64"), (40, "NVFP4")];

pub(super) fn from_ggml(id: u32) -> Result<DType, Defect> {
    let supported = DType::ALL.into_iter().find(|dtype| dtype.ggml() == Some(id));
    supported.ok_or_else(|| match KNOWN.iter().find(|(n, _)| *n == id) {
        Some(&(_, name)) => Defect::UnsupportedType { name },
        None => Defect::UnknownType { found: id },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_round_trip() {
        let mut found = Vec::new();
        for dtype in DType::ALL {
            match dtype.ggml() {
                Some(number) => assert_eq!(from_ggml(number), Ok(dtype)),
                None => assert!(matches!(dtype, DType::U8 | DType::BOOL), "{dtype}"),
            }
        }
        found.extend((0..100).filter_map(|number| from_ggml(number).ok()));
        assert!(!found.contains(&DType::U8) && !found.contains(&DType::BOOL), "{found:?}");
        assert_eq!(from_ggml(9), Err(Defect::UnsupportedType { name: "Q8_1" }));
        assert_eq!(from_ggml(4), Err(Defect::UnknownType { found: 4 }));
        assert!(from_ggml(9).unwrap_err().to_string().contains("Q6_K"));
    }
}
