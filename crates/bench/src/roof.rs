//! Memory bandwidth for reading, which bounds decoding: several access patterns on a buffer much larger than
//! the last-level cache, on as many threads as the engine has, before, between and after the tests. The best
//! pass of the best pattern counts.

use std::sync::Barrier;
use std::time::Instant;

use memmap2::MmapMut;

use super::report::{Roof, Stream};
use super::spec::Error;
use simd::Isa;
use simd::read::{PARTS_OF, Pattern, read};
use telemetry;

/// Bytes of the buffer: four times the last-level cache where that is known, within these limits
/// and a quarter of the memory that is available.
const BYTES: [u64; 2] = [256 << 20, 1 << 30];
const MIN_BYTES: u64 = 16 << 20;

pub struct Bandwidth {
    buffer: MmapMut,
    threads: usize,
    best: [f64; Pattern::ALL.len()],
    history: Vec<f64>,
}

impl Bandwidth {
    /// Reserves and touches the buffer.
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
        let share = (bytes as usize / threads).next_multiple_of(PARTS_OF);
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

/// All threads read their part once, from a common start to the end of the last: bytes per second.
fn pass(buffer: &[u8], threads: usize, pattern: Pattern) -> f64 {
    let (start, isa) = (Barrier::new(threads), Isa::detect());
    let parts = buffer.chunks_exact(buffer.len() / threads);
    let times: Vec<(Instant, Instant)> = std::thread::scope(|scope| {
        let workers: Vec<_> = parts
            .map(|part| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let begin = Instant::now();
                    std::hint::black_box(read(isa, part, pattern));
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
