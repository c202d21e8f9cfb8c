//! ONNX's own backend tests of nodes, and files that are wrong, through the public door.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod bad;
mod external;
mod nodes;

/// An error in one line, with what is behind it.
fn told(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text += &format!(": {inner}");
        source = inner.source();
    }
    text
}
