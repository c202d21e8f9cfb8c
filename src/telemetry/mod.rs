//! What the machine says about itself: memory, clocks. Reads `/proc`, `/sys` and cgroup files, changes
//! nothing.

pub mod clocks;
pub mod memory;
