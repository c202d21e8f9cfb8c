//! The ring of a channel: its buffers, and whether the GPU runs it.

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
    /// Whether the GPU knows the channel.
    pub(super) running: bool,
    pub(super) put: u32,
}

impl Queue {
    /// Takes the channel off the GPU.
    pub(super) fn stop(&mut self, device: &Device, id: u16) {
        if std::mem::take(&mut self.running) {
            device.gpu.close_channel(id);
        }
    }

    /// Gives the ring's address back.
    pub(super) fn unmap(&self, space: &AddressSpace) {
        space.unmap_kernel(self.ring_va, self.ring.bytes());
    }
}
