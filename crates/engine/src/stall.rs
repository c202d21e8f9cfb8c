//! Chunk length while other sequences decode: limits the delay of their next tokens. Also the number of rows in flight,
//! which limits the delay of the next prompt. The duration of a row is estimated from earlier chunks.

use std::time::{Duration, Instant};

/// Chunks are multiples of this: a matmul reads its weights once per this many rows.
const ROWS: usize = 8;
/// Rows of the first chunk, before any measurement.
const FIRST: usize = 32;
/// Time, and before any measurement rows, of chunks in flight beyond which no other one is submitted.
const QUEUED: Duration = Duration::from_millis(250);
const QUEUED_ROWS: usize = 1024;
/// Weight of the latest chunk in the moving average.
const WEIGHT: f64 = 0.5;

#[derive(Debug)]
pub(super) struct Stall {
    /// Longest duration of a chunk; `None` for no limit.
    most: Option<Duration>,
    /// Seconds per row, once measured.
    row: Option<f64>,
    /// End of the previous step.
    done: Instant,
}

impl Stall {
    /// A zero duration means no limit.
    pub(super) fn new(most: Duration) -> Self {
        let most = Some(most).filter(|most| !most.is_zero());
        Self { most, row: None, done: Instant::now() }
    }

    /// Largest number of rows of a chunk while other sequences decode.
    pub(super) fn rows(&self) -> usize {
        let Some(most) = self.most else { return usize::MAX };
        let rows = self.row.map_or(FIRST, |row| (most.as_secs_f64() / row) as usize);
        (rows / ROWS * ROWS).max(ROWS)
    }

    /// True if the device has enough to do with this many rows of chunks in flight. More would delay a prompt that
    /// arrives meanwhile and is shorter.
    pub(super) fn suffices(&self, rows: usize) -> bool {
        match self.row {
            Some(row) => row * rows as f64 >= QUEUED.as_secs_f64(),
            None => rows >= QUEUED_ROWS,
        }
    }

    /// Notes the end of a step; for a chunk with its rows and the time of its submission.
    pub(super) fn done(&mut self, chunk: Option<(usize, Instant)>, now: Instant) {
        if let Some((rows, submitted)) = chunk {
            // It started when it was submitted and the previous step was done.
            let took = now.saturating_duration_since(submitted.max(self.done)).as_secs_f64();
            // Never zero, even if the clock does not advance.
            let row = (took / rows as f64).max(1e-9);
            self.row = Some(self.row.map_or(row, |known| known + WEIGHT * (row - known)));
        }
        self.done = now;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn chunks_fit_the_stall_limit() {
        let mut stall = Stall::new(100 * MS);
        assert_eq!(stall.rows(), FIRST);
        let begin = stall.done;
        // Two chunks are submitted at once: the second starts when the first is done.
        stall.done(Some((32, begin)), begin + 64 * MS);
        assert_eq!(stall.rows(), 48);
        stall.done(Some((32, begin)), begin + 128 * MS);
        assert_eq!(stall.rows(), 48);
        // A decode step in between does not count.
        stall.done(None, begin + 1000 * MS);
        stall.done(Some((50, begin)), begin + 1100 * MS);
        assert_eq!(stall.rows(), 48);
        // Ten times slower: the limit is below the smallest chunk.
        for i in 1..20 {
            stall.done(Some((8, begin)), begin + (1100 + 160 * i) * MS);
        }
        assert_eq!(stall.rows(), ROWS);
    }

    #[test]
    fn few_chunks_are_in_flight_on_a_slow_device() {
        let mut stall = Stall::new(Duration::ZERO);
        assert!(!stall.suffices(1000) && stall.suffices(1024));
        let begin = stall.done;
        stall.done(Some((512, begin)), begin + 512 * 5 * MS);
        assert!(!stall.suffices(0) && !stall.suffices(49) && stall.suffices(50));
        // A fast one: 20 us for each row.
        let begin = stall.done;
        for i in 1..40 {
            stall.done(Some((500, begin)), begin + 10 * i * MS);
        }
        assert!(!stall.suffices(12_000) && stall.suffices(13_000));
    }

    #[test]
    fn without_a_limit_chunks_are_as_large_as_possible() {
        let mut stall = Stall::new(Duration::ZERO);
        let begin = stall.done;
        stall.done(Some((8, begin)), begin + 9000 * MS);
        assert_eq!(stall.rows(), usize::MAX);
    }
}
