//! The device of this machine that a file of the store is about, and its kernels.

use std::sync::Arc;

use crate::device::{self, Device};
use crate::tune::{Case, Choice, Declared, DeviceKey};

/// The kernels of a device.
pub(in crate::cli) struct Kernels(Arc<dyn Device>);

impl Kernels {
    /// Those of the device with that key, if this machine has it.
    pub(in crate::cli) fn find(key: &DeviceKey) -> Option<Self> {
        let named = |name, isa: &str, threads| device::named(name, isa, threads).ok();
        let candidates = match key {
            DeviceKey::Gpu { .. } => vec![named("nv", "auto", 0), named("cuda", "auto", 0)],
            DeviceKey::Cpu { features, cores, .. } => {
                vec![named("cpu", features, usize::try_from(*cores).ok()?)]
            }
        };
        candidates.into_iter().flatten().find(|d| d.key().as_ref() == Some(key)).map(Self)
    }
}

impl Declared for Kernels {
    fn source(&self, case: &Case) -> Option<String> {
        self.0.space(case).map(|space| space.source)
    }

    fn admits(&self, case: &Case, choice: &Choice) -> Result<(), String> {
        let space = self.0.space(case).ok_or("there are no such kernels")?;
        space.check(choice).map_err(|outside| outside.to_string())
    }
}
