//! A device's kernels as the store of tuned choices asks for them, and which device of this machine a
//! file of the store is about.

use std::ops::Deref;
use std::sync::Arc;

use super::{Device, named};
use crate::tune::{Candidates, Case, Choice, Declared, DeviceKey, Record};

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
        candidates.into_iter().flatten().find(|device| device.key().as_ref() == Some(key)).map(Self)
    }
}

impl<D: Deref<Target: Device>> Declared for Kernels<D> {
    fn source(&self, case: &Case) -> Option<String> {
        self.0.space(case).map(|space| space.source)
    }

    fn still(&self, record: &Record) -> Result<(), String> {
        let Some(space) = self.0.space(&record.case) else { return Ok(()) };
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
        let space = self.0.space(case).ok_or("this program has no such kernels")?;
        space.check(choice).map_err(|outside| outside.to_string())
    }
}
