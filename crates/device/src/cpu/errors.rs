//! Error constructors of the CPU device.

use crate::Error;

/// Name of this device in errors and reports.
pub(super) const DEVICE: &str = "cpu";

/// The error for a request that this device cannot serve.
pub(super) fn unsupported(what: String) -> Error {
    Error::Unsupported { device: DEVICE, what }
}
