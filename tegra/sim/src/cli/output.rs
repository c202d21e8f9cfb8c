//! Output of the commands.

use std::io::Write;

use errors::printable;

/// Writes text with control characters escaped, because files name kernels and devices. Ignores that
/// the reader closed its end of the pipe.
pub(super) fn write(text: &str, to: &mut impl Write) {
    let _ = to.write_all(printable::page(text).as_bytes()).and_then(|()| to.flush());
}
