//! Access to a device's kernels for the tuning store: tuned choices of fused groups, and the device
//! that a store file belongs to.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use super::{Device, Request, named};
use crate::tune::{
    Candidates, Case, Choice, Choices, Clock, Declared, DeviceKey, Record, Space, Store,
};

/// Kernels of a device.
#[derive(Clone, Copy)]
pub struct Kernels<D>(pub D);

impl Kernels<Arc<dyn Device>> {
    /// Kernels of the device with that key, if this machine has it.
    #[must_use]
    pub fn find(key: &DeviceKey) -> Option<Self> {
        let named = |name, isa: &str, threads| named(name, isa, threads).ok();
        let candidates = match key {
            DeviceKey::Gpu { .. } => vec![named("nv", "auto", 0), named("cuda", "auto", 0)],
            DeviceKey::Cpu { features, cores, .. } => {
                vec![named("cpu", features, usize::try_from(*cores).ok()?)]
            }
        };
        let is = |device: &Arc<dyn Device>| {
            device.tunable().is_some_and(|kernels| kernels.key() == *key)
        };
        candidates.into_iter().flatten().find(is).map(Self)
    }
}

/// Stored choices for the fused groups of a request's plans. Unusable entries are logged.
#[must_use]
pub fn remembered(device: &dyn Device, request: &Request<'_>, dir: &Path) -> Choices {
    let none = Choices::default;
    let Some(tunable) = device.tunable() else { return none() };
    let Ok(groups) = tunable.groups(request) else { return none() };
    if groups.is_empty() {
        return none();
    }
    let store = Store::new(dir);
    let loaded = match store.read(&tunable.key(), Clock::Measured, &Kernels(device)) {
        Ok(loaded) => loaded,
        Err(error) => {
            tracing::warn!(%error, "ignoring the tuning file");
            return none();
        }
    };
    loaded.tell();
    let own = loaded.current.into_iter().filter(|record| groups.contains_key(&record.case));
    own.map(|record| (record.case, record.choice)).collect()
}

impl<D: Deref<Target: Device>> Kernels<D> {
    fn space(&self, case: &Case) -> Option<Space> {
        self.0.tunable()?.space(case)
    }
}

impl<D: Deref<Target: Device>> Declared for Kernels<D> {
    fn source(&self, case: &Case) -> Option<String> {
        self.space(case).map(|space| space.source)
    }

    fn still(&self, record: &Record) -> Result<(), String> {
        let Some(space) = self.space(&record.case) else { return Ok(()) };
        let then = record.candidates;
        // Without a compiler the space does not include the choice.
        let compiled = space.is_compiled(&record.choice)
            || matches!(then, Candidates::Nvrtc(..)) && space.check(&record.choice).is_err();
        match space.candidates {
            now if !compiled || now == then => Ok(()),
            Candidates::Nvrtc(major, minor) => {
                Err(format!("compiled by {then}; here is nvrtc {major}.{minor}"))
            }
            _ => Err(format!("compiled by {then}, which is not here")),
        }
    }

    fn admits(&self, case: &Case, choice: &Choice) -> Result<(), String> {
        let space = self.space(case).ok_or("this program has no such kernels")?;
        space.check(choice).map_err(|outside| outside.to_string())
    }
}
