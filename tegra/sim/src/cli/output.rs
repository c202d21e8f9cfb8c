//! Output of the commands.

use std::io::Write;

/// Writes text, and ignores that the reader closed its end of the pipe.
pub(super) fn write(text: &str, to: &mut impl Write) {
    let _ = to.write_all(text.as_bytes()).and_then(|()| to.flush());
}
