//! The node `power`: it tells and sets whether the GPU is powered.
//!
//! Source: nvgpu r36.4.3, os/linux/power_ops.c. That the GPU loses power is not modelled: a forced
//! "0" only shows when it is read back, until the next "1".

use std::collections::HashMap;
use std::ffi::c_int;

use parking_lot::Mutex;
use tegra_sim::driver::{FileId, user};

use crate::world::World;

/// Bytes of the state's text, with its zero.
const TEXT: usize = 2;

/// The state of the node.
#[derive(Debug, Default)]
pub(crate) struct Power {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    forced_off: bool,
    /// How far each description has been read.
    read: HashMap<FileId, usize>,
}

/// Answers a read: "2" for on or "0" for off, and a zero byte; nothing the second time.
pub(crate) fn read(world: &World, file: FileId, into: u64, bytes: usize) -> Result<usize, c_int> {
    let mut state = world.power.state.lock();
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

/// Takes "0" or "1", with or without a line feed.
pub(crate) fn write(world: &World, from: u64, bytes: usize) -> Result<usize, c_int> {
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
    world.power.state.lock().forced_off = forced_off;
    Ok(bytes)
}
