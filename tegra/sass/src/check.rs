//! How strict a run is.
//!
//! Alignment, bounds, mappings and barriers are always checked. What costs is chosen here, and made
//! a type, so that what is off costs nothing. What these checks find hardware would not notice: a run can
//! go on behind it, and tell of it in [`Found`].

use parking_lot::Mutex;

use crate::fault::{Fault, FaultKind};

/// The checks of a run that can be switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Registers, predicates and shared memory without a value may not reach an address, a branch
    /// or a store.
    pub definedness: bool,
    /// Warps may not touch the same shared memory without a barrier between.
    pub races: bool,
}

impl Checks {
    /// Everything is checked.
    pub const ALL: Self = Self { definedness: true, races: true };
    /// Only what is always checked.
    pub const NONE: Self = Self { definedness: false, races: false };
}

/// What was found in a launch that goes on: of each instruction the first of a kind.
#[derive(Debug, Default)]
pub struct Found(Mutex<Vec<Fault>>);

impl Found {
    /// The findings, in the order in which they came.
    pub fn take(&self) -> Vec<Fault> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Notes one that `make` describes, if its instruction has none of its kind.
    pub(crate) fn note(&self, offset: usize, kind: &FaultKind, make: impl FnOnce() -> Fault) {
        let mut found = self.0.lock();
        let alike = |kind: &FaultKind| matches!(kind, FaultKind::Race { .. });
        if found.iter().all(|it| it.offset != offset || alike(&it.kind) != alike(kind)) {
            found.push(make());
        }
    }
}

/// [`Checks`] as a type.
pub(crate) trait Strictness: Sync {
    const DEFINEDNESS: bool;
    const RACES: bool;
}

/// Checks chosen at compile time.
pub(crate) struct Chosen<const DEFINEDNESS: bool, const RACES: bool>;

impl<const DEFINEDNESS: bool, const RACES: bool> Strictness for Chosen<DEFINEDNESS, RACES> {
    const DEFINEDNESS: bool = DEFINEDNESS;
    const RACES: bool = RACES;
}
