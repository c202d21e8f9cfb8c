//! ONNX's own backend tests of nodes, and invalid files, through the public interface.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod bad;
mod exact;
mod external;
mod graphs;
mod mutations;
mod nodes;

/// An error with its causes, in one line.
fn report(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(inner) = source {
        text += &format!(": {inner}");
        source = inner.source();
    }
    text
}
