//! `orinctl tune`: one file per group of subcommands.

pub(super) mod search;
pub(super) mod store;
pub(super) mod sweep;
