//! Differences of other driver releases from r36.4: request numbers, argument sizes, and the length
//! of the GPU's record.

use super::dispatch::{BAD_INPUT, BAD_OUTPUT, Parts};
use super::errno::Answer;
use super::errno::{Refused, refusals};
use crate::quirks::{Quirks, Release};
use crate::user;

refusals! { "release";
    LONGER = "OPEN_TSG, SETUP_BIND", ENOTTY, "with the arguments of r36, of r35",
        "os/linux/ioctl_*.c: default case of each ioctl function";
    NO_SUBCONTEXTS = "CREATE_SUBCONTEXT and later numbers of tsg", EINVAL, "of r35: beyond the last number",
        "os/linux/ioctl_tsg.c:nvgpu_ioctl_tsg_dev_ioctl";
    RENUMBERED = "any", ENOTTY, "asked for with TEGRA_SIM_RELEASE=r39:REQUEST",
        "os/linux/ioctl_*.c: default case of each ioctl function";
    NO_HEAPS = "QUERY_HEAP_PARAMS, GET_AVAILABLE_HEAPS", ENOTTY,
        "asked for with TEGRA_SIM_MACHINE=no-heap-query", "not the driver's answer";
    SHORT_RANGE = "ALLOC_AS", EINVAL, "asked for with TEGRA_SIM_MACHINE=short-range-refused",
        "not the driver's answer";
}

/// Requests of r35.4 whose arguments are a prefix of those of r36.4: r35.4 code, r36.4 code.
const SHORTER: [(u32, u32); 2] = [(0xc008_4709, 0xc018_4709), (0xc050_4880, 0xc068_4880)];
/// Size of the longest of these arguments.
const LONGEST: usize = 104;
/// Last request number of the TSG node in r35.
const LAST_OF_TSG: u8 = 17;
/// Size of the GPU's record in r35.
const SHORT_RECORD: usize = 312;
/// Bytes that a later release adds to the record.
const ADDED: usize = 32;

impl Release {
    /// Translates a request code to that of r36.4.
    pub(super) fn translate(&self, request: u32) -> u32 {
        let shorter = SHORTER.iter().find(|(old, _)| *self == Self::R35 && *old == request);
        shorter.map_or(request, |(_, new)| *new)
    }

    /// Checks that the release has a request.
    pub(super) fn check(&self, request: u32, name: &str, quirks: &Quirks) -> Result<(), Refused> {
        let Parts { magic, number, .. } = Parts::of(request);
        if quirks.no_heap_query && matches!(name, "QUERY_HEAP_PARAMS" | "GET_AVAILABLE_HEAPS") {
            return Err(&NO_HEAPS);
        }
        match self {
            Self::R35 if SHORTER.iter().any(|(_, new)| *new == request) => Err(&LONGER),
            Self::R35 if magic == b'T' && number > LAST_OF_TSG => Err(&NO_SUBCONTEXTS),
            Self::R39 { renumbered: Some(other) } if other == name => Err(&RENUMBERED),
            _ => Ok(()),
        }
    }

    /// Executes a request as r36.4 does, converting shorter arguments.
    pub(super) fn adapt(
        &self,
        request: u32,
        arg: u64,
        answer: impl FnOnce(u32, u64) -> Answer,
    ) -> Answer {
        let today = self.translate(request);
        if today == request {
            return answer(request, arg);
        }
        let mut whole = [0; LONGEST];
        let bytes = Parts::of(request).size;
        user::read(arg, &mut whole[..bytes]).map_err(|_| &BAD_INPUT)?;
        let answered = answer(today, whole.as_mut_ptr() as u64)?;
        user::write(arg, &whole[..bytes]).map_err(|_| &BAD_OUTPUT)?;
        Ok(answered)
    }

    /// Returns the GPU's record with the length of the release.
    pub(super) fn record(&self, mut record: Vec<u8>) -> Vec<u8> {
        match self {
            Self::R35 => record.truncate(SHORT_RECORD),
            Self::R36 => {}
            Self::R39 { .. } => record.resize(record.len() + ADDED, 0),
        }
        record
    }
}
