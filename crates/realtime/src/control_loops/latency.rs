//! Latency histogram and counters of a control loop, from the client's start to the answer. One
//! thread writes, any thread reads; neither waits.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

/// Buckets per power of two. A bucket is at most a sixteenth of its times wide.
const PARTS: u32 = 16;

/// Powers of two covered. Times above 2^36 ns (69 s) are in the last bucket.
const POWERS: u32 = 36;

/// Counters of a control loop since the daemon's start.
pub(super) struct Latency {
    deadline: u64,
    buckets: Box<[AtomicU64]>,
    met: AtomicU64,
    missed: AtomicU64,
    skipped: AtomicU64,
    failed: AtomicU64,
    worst: AtomicU64,
}

impl Latency {
    pub(super) fn new(deadline: Duration) -> Self {
        let buckets = (0..POWERS * PARTS).map(|_| AtomicU64::new(0)).collect();
        let zero = || AtomicU64::new(0);
        let deadline = nanoseconds(deadline);
        let [met, missed, skipped, failed, worst] = [zero(), zero(), zero(), zero(), zero()];
        Self { deadline, buckets, met, missed, skipped, failed, worst }
    }

    /// Counts an answered step and its latency.
    pub(super) fn add(&self, took: Duration) {
        let took = nanoseconds(took);
        self.buckets[bucket(took)].fetch_add(1, Relaxed);
        let count = if took <= self.deadline { &self.met } else { &self.missed };
        count.fetch_add(1, Relaxed);
        self.worst.fetch_max(took, Relaxed);
    }

    /// Counts starts that arrived before the previous one was answered.
    pub(super) fn skip(&self, starts: u64) {
        self.skipped.fetch_add(starts, Relaxed);
    }

    /// Counts a step that failed on the device.
    pub(super) fn fail(&self) {
        self.failed.fetch_add(1, Relaxed);
    }

    pub(super) fn met(&self) -> u64 {
        self.met.load(Relaxed)
    }

    pub(super) fn missed(&self) -> u64 {
        self.missed.load(Relaxed)
    }

    pub(super) fn skipped(&self) -> u64 {
        self.skipped.load(Relaxed)
    }

    pub(super) fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    pub(super) fn worst(&self) -> Option<Duration> {
        let steps = self.met() + self.missed();
        (steps > 0).then(|| Duration::from_nanos(self.worst.load(Relaxed)))
    }

    /// Returns a time that this share of the steps did not exceed, rounded up by at most a
    /// sixteenth.
    pub(super) fn quantile(&self, share: f64) -> Option<Duration> {
        let counts: Vec<u64> = self.buckets.iter().map(|bucket| bucket.load(Relaxed)).collect();
        let all: u64 = counts.iter().sum();
        let rank = (share * all as f64).ceil().max(1.0) as u64;
        let mut seen = 0;
        let found = counts.iter().position(|count| {
            seen += count;
            seen >= rank
        });
        let worst = self.worst.load(Relaxed);
        found.map(|bucket| Duration::from_nanos(upper(bucket as u32).min(worst)))
    }
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns the bucket of a time: exact below 16 ns, then sixteen buckets per power of two.
fn bucket(ns: u64) -> usize {
    let power = ns.checked_ilog2().unwrap_or(0).saturating_sub(PARTS.ilog2());
    let bucket = u64::from(power * PARTS) + (ns >> power);
    bucket.min(u64::from(POWERS * PARTS) - 1) as usize
}

/// Longest time of a bucket in nanoseconds.
fn upper(bucket: u32) -> u64 {
    let power = (bucket / PARTS).saturating_sub(1);
    (u64::from(bucket - power * PARTS + 1) << power) - 1
}

#[cfg(test)]
mod tests {
    use super::*;
    use orind_testing::random::Random;

    #[test]
    fn bucket_bounds_are_within_a_sixteenth() {
        let mut random = Random(3);
        for bits in 0..36 {
            for _ in 0..200 {
                let ns = random.bits() >> (63 - bits);
                let end = upper(bucket(ns) as u32);
                assert!(ns <= end && end - ns <= ns / 16, "{ns} is in a bucket up to {end}");
            }
        }
    }

    #[test]
    fn quantiles_match_sorted_times() {
        let mut random = Random(4);
        let latency = Latency::new(Duration::from_micros(100));
        assert_eq!(latency.quantile(0.5), None);
        let mut times: Vec<u64> = (0..5000).map(|_| random.bits() >> 40 << 4).collect();
        for ns in &times {
            latency.add(Duration::from_nanos(*ns));
        }
        times.sort_unstable();
        let met = times.iter().filter(|ns| **ns <= 100_000).count() as u64;
        assert_eq!((latency.met(), latency.missed()), (met, 5000 - met));
        for share in [0.001, 0.5, 0.9, 0.999, 1.0] {
            let want = times[(share * 5000.0_f64).ceil() as usize - 1];
            let got = latency.quantile(share).unwrap().as_nanos() as u64;
            assert!(got >= want && got - want <= want / 16, "{share}: {got}, not {want}");
        }
        assert_eq!(latency.worst(), Some(Duration::from_nanos(times[4999])));
    }
}
