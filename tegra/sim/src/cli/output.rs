//! Output of the commands.

use std::io::{self, Write};

use errors::printable;

/// Writes text with control characters escaped, because files name kernels and devices. Ignores that
/// the reader closed its end of the pipe.
pub(super) fn write(text: &str, to: &mut impl Write) {
    let _ = to.write_all(printable::page(text).as_bytes()).and_then(|()| to.flush());
}

/// Most bytes of a line that wait for its end.
const LINE: usize = 1 << 16;

/// Writes the lines of a long text with control characters escaped.
pub(super) struct Escaped<W: Write> {
    to: W,
    line: Vec<u8>,
}

impl<W: Write> Escaped<W> {
    pub(super) const fn new(to: W) -> Self {
        Self { to, line: Vec::new() }
    }

    fn end_line(&mut self) -> io::Result<()> {
        let line = std::mem::take(&mut self.line);
        self.to.write_all(printable::page(&String::from_utf8_lossy(&line)).as_bytes())
    }
}

impl<W: Write> Write for Escaped<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        for part in bytes.split_inclusive(|byte| *byte == b'\n') {
            self.line.extend(part);
            if part.ends_with(b"\n") || self.line.len() > LINE {
                self.end_line()?;
            }
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.end_line()?;
        self.to.flush()
    }
}
