//! Published chat templates (`tests/data/templates`).

/// Returns the source of a published chat template.
pub fn published(name: &str) -> String {
    let packed = std::fs::read(crate::data("templates/published.z")).unwrap();
    let sources = miniz_oxide::inflate::decompress_to_vec_zlib(&packed).unwrap();
    let sources: serde_json::Value = serde_json::from_slice(&sources).unwrap();
    sources[name].as_str().unwrap_or_else(|| panic!("no template {name}")).to_owned()
}
