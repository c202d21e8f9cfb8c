//! What the machine says about itself: memory. Reads `/proc` and cgroup files, changes nothing.

pub mod memory;
