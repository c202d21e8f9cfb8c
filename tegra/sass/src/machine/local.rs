//! Local memory: the words of lanes are interleaved, as on hardware.

use super::env::Env;
use super::warp::Warp;
use super::words::{merge, narrow};
use super::{Outcome, Raised};
use crate::execute::LANES;
use crate::fault::FaultKind;
use crate::launch::WINDOW_BYTES;
use crate::program::op::Size;

impl Env<'_> {
    /// Returns the index of the first word that an access covers.
    pub(super) fn local(&self, address: u64, bytes: u8, lane: usize) -> Outcome<usize> {
        if !address.is_multiple_of(u64::from(bytes)) {
            return Err(Raised::new(FaultKind::Misaligned { address, bytes }, 1 << lane));
        }
        let limit = self.launch.local_bytes & !3;
        let start = WINDOW_BYTES - u64::from(limit);
        if address < start || address + u64::from(bytes) > WINDOW_BYTES {
            return Err(Raised::new(FaultKind::Local { address, bytes, limit }, 1 << lane));
        }
        Ok(((address - start) / 4) as usize)
    }
}

impl Warp {
    fn local_words(&mut self, env: &Env<'_>) {
        let words = env.launch.local_bytes as usize / 4 * LANES;
        if self.local.len() < words {
            self.local.resize(words, 0xdead_10ca);
            self.local_known.grow(words / LANES);
        }
    }

    pub(super) fn local_read(
        &mut self,
        env: &Env<'_>,
        word: usize,
        address: u64,
        size: Size,
        lane: usize,
    ) -> [u32; 4] {
        self.local_words(env);
        let mut values = [0; 4];
        let words = usize::from(size.bytes.div_ceil(4));
        for (step, value) in values.iter_mut().take(words).enumerate() {
            *value = self.local[(word + step) * LANES + lane];
        }
        if size.bytes < 4 {
            values[0] = narrow(values[0], address, size);
        }
        values
    }

    pub(super) fn local_write(
        &mut self,
        env: &Env<'_>,
        word: usize,
        address: u64,
        bytes: u8,
        values: &[u32; 4],
        lane: usize,
    ) {
        self.local_words(env);
        if bytes >= 4 {
            for (step, value) in values.iter().take(usize::from(bytes / 4)).enumerate() {
                self.local[(word + step) * LANES + lane] = *value;
            }
        } else {
            let target = &mut self.local[word * LANES + lane];
            *target = merge(*target, address, bytes, values[0]);
        }
    }
}
