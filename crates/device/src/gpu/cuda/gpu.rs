//! Owners of a CUDA context and its handles: each handle is released once, before the context.

use std::sync::Arc;

use super::driver::{
    Attribute, Context, Driver, Event, Graph, MemoryKind, MemoryPlace, Module, Stream,
};
use super::fault::{Code, Fault};
use crate::{Error, Result};

/// A GPU with a private context.
pub(super) struct Gpu {
    pub(super) driver: Arc<dyn Driver>,
    pub(super) device: i32,
    pub(super) context: Context,
    pub(super) name: String,
    /// Compute capability, 10 x major + minor.
    pub(super) capability: u32,
    /// Version as [`Driver::version`] returns it.
    pub(super) version: i32,
    pub(super) sms: u32,
    /// True if it shares the CPU's memory.
    pub(super) integrated: bool,
}

impl std::fmt::Debug for Gpu {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Gpu").field("name", &self.name).field("sm", &self.capability).finish()
    }
}

impl Gpu {
    /// Makes the context current and returns the driver; every call begins with it.
    pub(super) fn enter(&self) -> Result<&dyn Driver, Fault> {
        self.driver.enter(self.context)?;
        Ok(&*self.driver)
    }

    /// Highest clock in MHz, 0 if unknown. Only used to distinguish devices.
    pub(super) fn clock_mhz(&self) -> u32 {
        let khz = self.driver.attribute(self.device, Attribute::ClockRate).unwrap_or(0);
        u32::try_from(khz).unwrap_or(0) / 1000
    }

    /// Returns whether recorded launches may begin early: sm_90 code waits for the previous launch,
    /// and graphs have such edges from CUDA 12.3 on.
    pub(super) const fn programmatic(&self) -> bool {
        self.capability == 90 && self.version >= 12_030
    }

    pub(super) fn free(&self) -> Result<u64, Fault> {
        Ok(self.enter()?.memory()?.0)
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        if let Err(fault) = self.driver.destroy_context(self.context) {
            tracing::debug!(%fault, "a CUDA context that could not be destroyed");
        }
    }
}

pub(super) trait Resource: Copy {
    fn release(self, driver: &dyn Driver) -> Result<(), Fault>;
}

macro_rules! resources {
    ($($type:ty: $release:ident;)*) => {$(
        impl Resource for $type {
            fn release(self, driver: &dyn Driver) -> Result<(), Fault> {
                driver.$release(self)
            }
        }
    )*};
}

resources! {
    Module: unload;
    Stream: destroy_stream;
    Event: destroy_event;
    Graph: destroy_graph;
}

impl Resource for (MemoryKind, MemoryPlace) {
    fn release(self, driver: &dyn Driver) -> Result<(), Fault> {
        driver.free(self.0, self.1)
    }
}

pub(super) struct Owned<H: Resource> {
    gpu: Arc<Gpu>,
    handle: H,
}

impl<H: Resource> Owned<H> {
    pub(super) fn new(
        gpu: &Arc<Gpu>,
        make: impl FnOnce(&dyn Driver) -> Result<H, Fault>,
    ) -> Result<Self, Fault> {
        let handle = make(gpu.enter()?)?;
        Ok(Self { gpu: Arc::clone(gpu), handle })
    }

    pub(super) const fn get(&self) -> H {
        self.handle
    }
}

impl<H: Resource> Drop for Owned<H> {
    fn drop(&mut self) {
        // The driver finds a handle's context itself, so release even if it cannot be made current.
        let entered = self.gpu.enter().map(drop);
        let released = self.handle.release(&*self.gpu.driver);
        if let Err(fault) = entered.and(released) {
            tracing::debug!(%fault, "a CUDA handle that could not be given back");
        }
    }
}

pub(super) struct Memory {
    owned: Owned<(MemoryKind, MemoryPlace)>,
    bytes: u64,
}

impl Memory {
    /// Allocates at least a byte, so that every allocation has an address.
    pub(super) fn new(gpu: &Arc<Gpu>, kind: MemoryKind, bytes: u64) -> Result<Self> {
        let bytes = bytes.max(1);
        let made = Owned::new(gpu, |driver| Ok((kind, driver.alloc(kind, bytes)?)));
        let owned = made.map_err(|fault| match fault.code {
            Code::OUT_OF_MEMORY => Error::OutOfMemory {
                what: format!("{} memory of {}", kind.name(), gpu.name),
                need: bytes,
                have: gpu.free().unwrap_or(0),
            },
            _ => fault.at_the_seam(),
        })?;
        Ok(Self { owned, bytes })
    }

    pub(super) const fn address(&self) -> u64 {
        self.owned.get().1.address
    }

    pub(super) const fn bytes(&self) -> u64 {
        self.bytes
    }

    /// CPU address; null if not mapped.
    pub(super) fn host(&self) -> *mut u8 {
        std::ptr::with_exposed_provenance_mut(self.owned.get().1.host)
    }
}
