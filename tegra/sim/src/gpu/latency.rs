//! What takes how long on the virtual clock.

/// Ticks of the GPU's timer that work takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// From a doorbell until the host unit looks at the ring.
    pub doorbell: u64,
    pub entry: u64,
    pub method: u64,
    pub release: u64,
    /// A launch that a stream sends.
    pub launch: u64,
    /// A launch that completion of another starts.
    pub dependent: u64,
    /// A copy, however short.
    pub copy_start: u64,
    /// Bytes that the copy engine copies in a tick; not 0.
    pub copy_bytes: u64,
}

impl Default for Latency {
    /// Launches of about 5 microseconds and copies of 18 GB/s, as seen on hardware; the rest is made
    /// up.
    fn default() -> Self {
        Self {
            doorbell: 4,
            entry: 2,
            method: 1,
            release: 1,
            launch: 160,
            dependent: 160,
            copy_start: 1,
            copy_bytes: 576,
        }
    }
}
