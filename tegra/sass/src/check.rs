//! How strict a run is.
//!
//! Alignment, bounds, mappings and barriers are always checked. What costs is chosen here, and made
//! a type, so that what is off costs nothing.

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
