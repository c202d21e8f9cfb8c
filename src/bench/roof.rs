//! Memory bandwidth for reading, measured where and when the tests run.
//!
//! Decode is bound by reading weights, so the roof is the fastest way of *reading* found: several
//! access patterns are tried on a buffer much larger than the last-level cache, on as many threads
//! as the engine has, before, between and after the tests; the best pass of the best pattern
//! counts.

use std::sync::Barrier;
use std::time::Instant;

use memmap2::MmapMut;

use super::report::{Roof, Stream};
use super::spec::Error;
use telemetry;

/// Bytes of the buffer: four times the last-level cache where that is known, within these limits
/// and a quarter of the memory that is available.
const BYTES: [u64; 2] = [256 << 20, 1 << 30];
const MIN_BYTES: u64 = 16 << 20;

/// Bytes summed at once; a multiple of the cache line, and enough accumulators to hide the latency
/// of additions at any vector width.
const BLOCK: usize = 512;

/// How far ahead of the reader lines are asked for, in the pattern that does so.
const AHEAD: usize = 2048;

/// A way for one thread to read its part of the buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pattern {
    /// One address after the other.
    Linear,
    /// Four places at once, a quarter of the part each.
    FourFold,
    /// As linear, asking for lines before they are needed.
    Prefetched,
}

impl Pattern {
    const ALL: [Self; 3] = [Self::Linear, Self::FourFold, Self::Prefetched];

    const fn name(self) -> &'static str {
        match self {
            Self::Linear => "linear read",
            Self::FourFold => "read in 4 streams",
            Self::Prefetched => "read with prefetch",
        }
    }
}

/// The buffer and what was measured on it so far.
pub struct Bandwidth {
    buffer: MmapMut,
    threads: usize,
    best: [f64; Pattern::ALL.len()],
    history: Vec<f64>,
}

impl Bandwidth {
    /// Reserves and touches the buffer.
    ///
    /// # Errors
    /// [`Error::Roof`] when the memory is not there.
    pub fn new(threads: usize) -> Result<Self, Error> {
        let wanted = last_level_cache().map_or(BYTES[0], |cache| 4 * cache);
        let mut bytes = wanted.clamp(BYTES[0], BYTES[1]);
        if let Some(available) = telemetry::memory::available() {
            bytes = bytes.min(available / 4);
        }
        if bytes < MIN_BYTES {
            return Err(Error::Roof(format!(
                "needs a buffer of {MIN_BYTES} bytes, only {bytes} (a quarter of the available memory) can be spared"
            )));
        }
        let threads = threads.max(1);
        let share = (bytes as usize / threads).next_multiple_of(4 * BLOCK);
        let mut buffer =
            MmapMut::map_anon(share * threads).map_err(|e| Error::Roof(e.to_string()))?;
        // Fewer page-table walks where the kernel offers it; as good a measurement where not.
        #[cfg(target_os = "linux")]
        let _ = buffer.advise(memmap2::Advice::HugePage);
        // Untouched pages would all be the one page of zeroes.
        buffer.fill(1);
        Ok(Self { buffer, threads, best: [0.0; Pattern::ALL.len()], history: Vec::new() })
    }

    /// Bytes of the buffer, which are resident as long as this value lives.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// One pass of every pattern. Returns the best, in bytes per second.
    pub fn measure(&mut self) -> f64 {
        let mut best = 0.0f64;
        for (pattern, record) in Pattern::ALL.into_iter().zip(&mut self.best) {
            let speed = pass(&self.buffer, self.threads, pattern);
            *record = record.max(speed);
            best = best.max(speed);
        }
        self.history.push(best);
        best
    }

    /// What was found so far.
    #[must_use]
    pub fn roof(&self) -> Roof {
        let streams = Pattern::ALL.into_iter().zip(self.best);
        let best = streams.clone().max_by(|a, b| a.1.total_cmp(&b.1));
        Roof {
            stream: best.map_or("", |(pattern, _)| pattern.name()).to_owned(),
            bytes_per_second: best.map_or(0.0, |(_, speed)| speed),
            lowest: self.history.iter().copied().reduce(f64::min).unwrap_or(0.0),
            bytes: self.bytes(),
            threads: self.threads,
            measurements: u32::try_from(self.history.len()).unwrap_or(u32::MAX),
            streams: streams
                .map(|(pattern, bytes_per_second)| Stream {
                    name: pattern.name().to_owned(),
                    bytes_per_second,
                })
                .collect(),
            limit: None,
        }
    }
}

/// All threads read their part once, from a common start to the end of the last, in bytes per
/// second.
fn pass(buffer: &[u8], threads: usize, pattern: Pattern) -> f64 {
    let start = Barrier::new(threads);
    let parts = buffer.chunks_exact(buffer.len() / threads);
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let workers: Vec<_> = parts
            .map(|part| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let begin = Instant::now();
                    std::hint::black_box(read(part, pattern));
                    (begin, Instant::now())
                })
            })
            .collect();
        workers.into_iter().filter_map(|worker| worker.join().ok()).collect()
    });
    let begin = times.iter().map(|t| t.0).min();
    let end = times.iter().map(|t| t.1).max();
    match (begin, end) {
        (Some(begin), Some(end)) if end > begin => {
            buffer.len() as f64 / (end - begin).as_secs_f64()
        }
        _ => 0.0,
    }
}

fn read(part: &[u8], pattern: Pattern) -> u64 {
    #[cfg(target_arch = "x86_64")]
    {
        if std::arch::is_x86_feature_detected!("avx512f") {
            // SAFETY: the feature was detected.
            return unsafe { read_avx512(part, pattern) };
        }
        if std::arch::is_x86_feature_detected!("avx2") {
            // SAFETY: the feature was detected.
            return unsafe { read_avx2(part, pattern) };
        }
    }
    read_any(part, pattern)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f")]
fn read_avx512(part: &[u8], pattern: Pattern) -> u64 {
    read_any(part, pattern)
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
fn read_avx2(part: &[u8], pattern: Pattern) -> u64 {
    read_any(part, pattern)
}

#[inline(always)]
fn read_any(part: &[u8], pattern: Pattern) -> u64 {
    let mut sums = [0u64; BLOCK / 8];
    match pattern {
        Pattern::Linear => {
            for block in part.as_chunks::<BLOCK>().0 {
                add(&mut sums, block);
            }
        }
        Pattern::FourFold => {
            let blocks = part.as_chunks::<BLOCK>().0;
            let (front, back) = blocks.split_at(blocks.len() / 2);
            let (a, b) = front.split_at(front.len() / 2);
            let (c, d) = back.split_at(back.len() / 2);
            for (((a, b), c), d) in a.iter().zip(b).zip(c).zip(d) {
                add(&mut sums, a);
                add(&mut sums, b);
                add(&mut sums, c);
                add(&mut sums, d);
            }
        }
        Pattern::Prefetched => {
            for block in part.as_chunks::<BLOCK>().0 {
                for line in block.as_chunks::<64>().0 {
                    prefetch(line.as_ptr().wrapping_add(AHEAD));
                }
                add(&mut sums, block);
            }
        }
    }
    sums.iter().fold(0, |sum, x| sum.wrapping_add(*x))
}

#[inline(always)]
fn add(sums: &mut [u64; BLOCK / 8], block: &[u8; BLOCK]) {
    for (sum, word) in sums.iter_mut().zip(block.as_chunks::<8>().0) {
        *sum = sum.wrapping_add(u64::from_ne_bytes(*word));
    }
}

/// Asks for the line at `address`, which need not be valid.
#[inline(always)]
fn prefetch(address: *const u8) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a prefetch never faults, whatever the address; SSE is part of x86-64.
    unsafe {
        std::arch::x86_64::_mm_prefetch::<{ std::arch::x86_64::_MM_HINT_T0 }>(address.cast());
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: PRFM never faults, whatever the address, and changes no register or memory.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, readonly, preserves_flags));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

/// Size of the largest cache of the first core.
fn last_level_cache() -> Option<u64> {
    let caches = std::fs::read_dir("/sys/devices/system/cpu/cpu0/cache").ok()?;
    caches
        .flatten()
        .filter_map(|entry| {
            let text = std::fs::read_to_string(entry.path().join("size")).ok()?;
            parse_size(text.trim())
        })
        .max()
}

/// `32768K`, `260M`: as the kernel writes cache sizes.
fn parse_size(text: &str) -> Option<u64> {
    let (digits, factor) = match text.as_bytes().last()? {
        b'K' => (&text[..text.len() - 1], 1 << 10),
        b'M' => (&text[..text.len() - 1], 1 << 20),
        _ => (text, 1),
    };
    digits.parse::<u64>().ok()?.checked_mul(factor)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_reads_every_byte() {
        let part: Vec<u8> = (0..8 * 4 * BLOCK).map(|i| (i * 31 % 251) as u8).collect();
        let sum = |part: &[u8]| {
            part.chunks(8).fold(0u64, |sum, word| {
                sum.wrapping_add(u64::from_ne_bytes(word.try_into().unwrap()))
            })
        };
        for pattern in Pattern::ALL {
            assert_eq!(read(&part, pattern), sum(&part), "{pattern:?}");
            assert_eq!(read_any(&part, pattern), sum(&part), "{pattern:?}");
        }
    }

    #[test]
    fn the_roof_is_the_best_of_all_measurements() {
        let mut bandwidth = Bandwidth::new(2).unwrap();
        let measured = [bandwidth.measure(), bandwidth.measure()];
        let roof = bandwidth.roof();
        assert_eq!(roof.bytes_per_second, measured[0].max(measured[1]));
        assert_eq!(roof.lowest, measured[0].min(measured[1]));
        assert!(roof.lowest > 0.0 && roof.measurements == 2);
        assert!(roof.streams.iter().all(|s| s.bytes_per_second <= roof.bytes_per_second));
        assert!(roof.streams.iter().any(|s| s.name == roof.stream));
        println!("{roof:#?}");
    }

    #[test]
    fn cache_sizes_are_read_as_the_kernel_writes_them() {
        assert_eq!(parse_size("48K"), Some(48 << 10));
        assert_eq!(parse_size("260M"), Some(260 << 20));
        assert_eq!(parse_size("1024"), Some(1024));
        assert_eq!(parse_size("big"), None);
        assert_eq!(parse_size(""), None);
    }
}
