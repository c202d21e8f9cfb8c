//! `orinctl tune`: one file for each thing that it does.

pub(super) mod search;
pub(super) mod store;
pub(super) mod sweep;
