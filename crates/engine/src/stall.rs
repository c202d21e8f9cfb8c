//! How much of a prompt is evaluated at once while others decode: so many rows as take no longer than they may be
//! held up. How long a row takes is what the chunks before took.

use std::time::{Duration, Instant};

/// Chunks are whole multiples of this, and no smaller: a product reads its weights once for so many rows.
const ROWS: usize = 8;
/// Rows of the first chunk of all, of which nothing is known.
const FIRST: usize = 32;
/// How much the latest chunk counts.
const WEIGHT: f64 = 0.5;

#[derive(Debug)]
pub(super) struct Stall {
    /// The most that a chunk may take; none where that does not matter.
    most: Option<Duration>,
    /// Seconds that a row takes, once known.
    row: Option<f64>,
    /// When the step before was done.
    done: Instant,
}

impl Stall {
    /// Without a bound where it is zero.
    pub(super) fn new(most: Duration) -> Self {
        let most = Some(most).filter(|most| !most.is_zero());
        Self { most, row: None, done: Instant::now() }
    }

    /// The most rows of a chunk while others decode.
    pub(super) fn rows(&self) -> usize {
        let Some(most) = self.most else { return usize::MAX };
        let rows = self.row.map_or(FIRST, |row| (most.as_secs_f64() / row) as usize);
        (rows / ROWS * ROWS).max(ROWS)
    }

    /// A step is done; of a chunk: its rows, and when it was submitted.
    pub(super) fn done(&mut self, chunk: Option<(usize, Instant)>, now: Instant) {
        if let Some((rows, submitted)) = chunk {
            // It began when it was there and the step before it was done.
            let took = now.saturating_duration_since(submitted.max(self.done)).as_secs_f64();
            // Never nothing: a clock may stand still.
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
    fn a_chunk_takes_as_long_as_it_may() {
        let mut stall = Stall::new(100 * MS);
        assert_eq!(stall.rows(), FIRST);
        let begin = stall.done;
        // Two were submitted at once: the second began when the first was done.
        stall.done(Some((32, begin)), begin + 64 * MS);
        assert_eq!(stall.rows(), 48);
        stall.done(Some((32, begin)), begin + 128 * MS);
        assert_eq!(stall.rows(), 48);
        // A decode step between is nobody's.
        stall.done(None, begin + 1000 * MS);
        stall.done(Some((50, begin)), begin + 1100 * MS);
        assert_eq!(stall.rows(), 48);
        // Ten times as slow, and the bound below what a product needs.
        for i in 1..20 {
            stall.done(Some((8, begin)), begin + (1100 + 160 * i) * MS);
        }
        assert_eq!(stall.rows(), ROWS);
    }

    #[test]
    fn without_a_bound_a_chunk_is_as_large_as_there_is() {
        let mut stall = Stall::new(Duration::ZERO);
        let begin = stall.done;
        stall.done(Some((8, begin)), begin + 9000 * MS);
        assert_eq!(stall.rows(), usize::MAX);
    }
}
