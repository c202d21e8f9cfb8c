//! Graphs of tensors: their gradients, and every primitive on the CPU, held against a model in `f64`.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

#[expect(
    dead_code,
    unreachable_pub,
    reason = "the bench of single steps, of which this needs a part"
)]
#[path = "../../../../src/parity/case.rs"]
mod case;
mod cpu;
mod gradients;
mod groups;
mod model;

/// Numbers from a seed, to draw shapes and choices from.
struct Draw {
    seed: u64,
    count: u32,
}

impl Draw {
    const fn new(seed: u64) -> Self {
        Self { seed, count: 0 }
    }

    fn below(&mut self, n: usize) -> usize {
        self.count += 1;
        plan::sample::philox([self.count, 0, 0, 7], self.seed)[0] as usize % n
    }

    fn shape(&mut self, most: usize) -> Vec<usize> {
        let rank = 1 + self.below(3);
        (0..rank).map(|_| 1 + self.below(most)).collect()
    }
}
