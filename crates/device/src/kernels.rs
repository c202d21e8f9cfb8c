//! A device's kernels as the store of tuned choices asks for them, what it remembers of groups, and which device of this
//! machine a file of the store is about.

use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;

use super::{Device, Request, named};
use crate::tune::{
    Candidates, Case, Choice, Choices, Clock, Declared, DeviceKey, Record, Space, Store,
};

/// The kernels of a device, whoever owns that.
#[derive(Clone, Copy)]
pub struct Kernels<D>(pub D);

impl Kernels<Arc<dyn Device>> {
    /// Those of the device with that key, if this machine has it.
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

/// The choices that the store in a directory remembers for the groups of tensor operations of a request's plans. What of
/// it is not used is logged.
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
            tracing::warn!(%error, "nothing of the tuning file is used");
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
        // With no compiler here the space does not know the choice.
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
