//! `tegra-sim-preload`: the only owner of the interposed libc symbols.
