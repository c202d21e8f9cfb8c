//! Ring of a channel: its buffers, and whether the GPU executes it.

use std::sync::Arc;

use crate::driver::address_space::AddressSpace;
use crate::driver::device::Device;
use crate::memory::DmaBuf;

/// A channel's ring.
pub(super) struct Queue {
    pub(super) usermode: bool,
    pub(super) entries: u32,
    pub(super) token: u32,
    pub(super) ring: Arc<DmaBuf>,
    pub(super) userd: Arc<DmaBuf>,
    pub(super) ring_va: u64,
    /// The GPU has the channel.
    pub(super) running: bool,
    pub(super) put: u32,
}

impl Queue {
    /// Removes the channel from the GPU.
    pub(super) fn stop(&mut self, device: &Device, id: u16) {
        if std::mem::take(&mut self.running) {
            device.gpu.close_channel(id);
        }
    }

    /// Frees the ring's address.
    pub(super) fn unmap(&self, space: &AddressSpace) {
        space.unmap_kernel(self.ring_va, self.ring.bytes());
    }
}
