//! Strictness of a run: the checks that a caller can switch off.
//!
//! Alignment, bounds, mappings and barriers are always checked. The checks that cost time are
//! chosen here and become a type parameter, so that a disabled check costs nothing. Hardware would
//! not notice what these checks find, so a run can continue after them and collect them in
//! [`Found`].

use parking_lot::Mutex;

use crate::fault::{Fault, FaultKind};

/// The checks of a run that can be switched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checks {
    /// Report registers, predicates and shared memory that are used uninitialised as an address, in
    /// a branch or in a store.
    pub definedness: bool,
    /// Report warps that access the same shared memory without a barrier between them.
    pub races: bool,
}

impl Checks {
    /// Enables every check.
    pub const ALL: Self = Self { definedness: true, races: true };
    /// Disables every optional check.
    pub const NONE: Self = Self { definedness: false, races: false };
}

/// Findings of a launch that continues: the first of each kind at each instruction.
#[derive(Debug, Default)]
pub struct Found(Mutex<Vec<Fault>>);

impl Found {
    /// Returns and clears the findings, in the order in which they occurred.
    pub fn take(&self) -> Vec<Fault> {
        std::mem::take(&mut *self.0.lock())
    }

    /// Adds the finding that `make` builds, unless its instruction already has one of this kind.
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
