//! The node `power`: reads and sets the GPU's power state.
//!
//! Source: nvgpu r36.4.3, os/linux/power_ops.c. Loss of power is not modelled: a forced "0" only
//! shows when it is read back, until the next "1".

use std::collections::HashMap;
use std::ffi::c_int;

use parking_lot::Mutex;
use tegra_sim::driver::{FileId, user};

/// Bytes of the state's text, including its NUL.
const TEXT: usize = 2;

/// The state of the node.
#[derive(Debug, Default)]
pub(crate) struct Power {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    forced_off: bool,
    /// Read position of each description.
    read: HashMap<FileId, usize>,
}

impl Power {
    /// A read: "2" for on or "0" for off, and a NUL; the second read is at the end.
    pub(crate) fn read(&self, file: FileId, into: u64, bytes: usize) -> Result<usize, c_int> {
        let mut state = self.state.lock();
        if bytes < TEXT {
            return Err(libc::EINVAL);
        }
        let text = [if state.forced_off { b'0' } else { b'2' }, 0];
        let done = state.read.entry(file).or_default();
        if *done >= TEXT {
            return Ok(0);
        }
        user::write(into, &text).map_err(|_| libc::EINVAL)?;
        *done = TEXT;
        Ok(TEXT)
    }

    /// A write of "0" or "1", with or without a line feed.
    pub(crate) fn write(&self, from: u64, bytes: usize) -> Result<usize, c_int> {
        if bytes > 2 {
            return Err(libc::EINVAL);
        }
        let mut text = [0; 2];
        user::read(from, &mut text[..bytes]).map_err(|_| libc::EFAULT)?;
        let forced_off = match text {
            [b'0', 0 | b'\n'] => true,
            [b'1', 0 | b'\n'] => false,
            _ => return Err(libc::EINVAL),
        };
        self.state.lock().forced_off = forced_off;
        Ok(bytes)
    }
}
