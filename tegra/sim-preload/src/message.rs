//! Messages on stderr, from ordinary code and from signal handlers.

use std::fmt::{self, Write as _};
use std::io::{self, Write as _};

use crate::real;

/// Prints a line for the person at the terminal.
pub(crate) fn print(message: &str) {
    // A closed stderr has no reader.
    let _ = writeln!(io::stderr(), "tegra-sim: {message}");
}

/// Prints a message and aborts; async-signal-safe.
pub(crate) fn abort(why: fmt::Arguments<'_>) -> ! {
    let mut text = Text { bytes: [0; 512], length: 0 };
    let _ = writeln!(text, "tegra-sim: {why}");
    // SAFETY: the text has `length` bytes; any state of stderr is fine; abort does not return.
    unsafe {
        let from = text.bytes.as_ptr() as usize;
        real::system_call(libc::SYS_write, [2, from, text.length, 0]);
        libc::abort()
    }
}

/// A message buffer that truncates.
struct Text {
    bytes: [u8; 512],
    length: usize,
}

impl fmt::Write for Text {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        let room = &mut self.bytes[self.length..];
        let length = text.len().min(room.len());
        room[..length].copy_from_slice(&text.as_bytes()[..length]);
        self.length += length;
        Ok(())
    }
}
