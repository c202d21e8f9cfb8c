//! Read bandwidth of the memory, which bounds decode. Several access patterns run over a buffer
//! much larger than the last-level cache, with the engine's number of threads. The best pass of the
//! best pattern counts.

use std::sync::Barrier;
use std::time::Instant;

use memmap2::MmapMut;

use super::report::{Roof, Stream};
use super::spec::Error;
use simd::Isa;
use simd::read::{PARTS_OF, Pattern, read};
use telemetry;

/// Limits of the buffer size: four times the last-level cache if known, and at most a quarter of
/// the available memory.
const BYTES: [u64; 2] = [256 << 20, 1 << 30];
const MIN_BYTES: u64 = 16 << 20;

pub struct Bandwidth {
    buffer: MmapMut,
    threads: usize,
    best: [f64; Pattern::ALL.len()],
    history: Vec<f64>,
}

impl Bandwidth {
    /// Allocates and touches the buffer.
    pub fn new(threads: usize) -> Result<Self, Error> {
        let wanted = last_level_cache().map_or(BYTES[0], |cache| 4 * cache);
        let mut bytes = wanted.clamp(BYTES[0], BYTES[1]);
        if let Some(available) = telemetry::memory::available() {
            bytes = bytes.min(available / 4);
        }
        if bytes < MIN_BYTES {
            return Err(Error::Roof(format!(
                "needs a buffer of {MIN_BYTES} bytes, but only {bytes} (a quarter of the available memory) are free"
            )));
        }
        let threads = threads.max(1);
        let share = (bytes as usize / threads).next_multiple_of(PARTS_OF);
        let mut buffer =
            MmapMut::map_anon(share * threads).map_err(|e| Error::Roof(e.to_string()))?;
        // Huge pages avoid page-table walks; the measurement is valid without them.
        #[cfg(target_os = "linux")]
        let _ = buffer.advise(memmap2::Advice::HugePage);
        // Untouched pages would all map to the zero page.
        buffer.fill(1);
        Ok(Self { buffer, threads, best: [0.0; Pattern::ALL.len()], history: Vec::new() })
    }

    /// Size of the buffer, which is resident as long as this value lives.
    pub fn bytes(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Runs one pass of every pattern and returns the best, in bytes per second.
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

/// Reads the buffer once with all threads, and returns bytes per second from the common start to
/// the end of the last thread.
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

/// Parses a cache size in the kernel's format: `32768K`, `260M`.
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
    fn the_roof_is_the_best_measurement() {
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
    fn kernel_cache_sizes_are_parsed() {
        assert_eq!(parse_size("48K"), Some(48 << 10));
        assert_eq!(parse_size("260M"), Some(260 << 20));
        assert_eq!(parse_size("1024"), Some(1024));
        assert_eq!(parse_size("big"), None);
        assert_eq!(parse_size(""), None);
    }
}
