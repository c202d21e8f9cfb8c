//! Splits tensors into pieces and processes them on several threads, to write a file.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Elements of a piece: 1 MiB of `f32`, and a multiple of a superblock, so that no block is split.
pub(crate) const ELEMENTS: usize = 1 << 18;

/// Start and length of each piece of a tensor, in elements.
pub(crate) fn of(elements: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..elements).step_by(ELEMENTS).map(move |first| (first, ELEMENTS.min(elements - first)))
}

/// Buffers that a thread reuses for each piece.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) values: Vec<f32>,
    pub(crate) bytes: Vec<u8>,
}

/// Calls `work`, which returns the bytes it has processed, for all pieces, and `progress` on this thread with the
/// sum so far. Stops at the first error of either.
pub(crate) fn run<P: Sync, E: Send>(
    pieces: &[P],
    threads: usize,
    work: impl Fn(&P, &mut Scratch) -> Result<u64, E> + Sync,
    progress: &mut dyn FnMut(u64) -> Result<(), E>,
) -> Result<(), E> {
    let next = AtomicUsize::new(0);
    thread::scope(|scope| {
        let (sender, done) = mpsc::channel();
        for _ in 0..threads {
            let (sender, next, work) = (sender.clone(), &next, &work);
            scope.spawn(move || {
                let mut scratch = Scratch::default();
                while let Some(piece) = pieces.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = work(piece, &mut scratch);
                    let failed = result.is_err();
                    // The receiver is dropped once another thread has failed.
                    if sender.send(result).is_err() || failed {
                        break;
                    }
                }
            });
        }
        drop(sender);
        let mut so_far = 0;
        for result in done {
            so_far += result?;
            progress(so_far)?;
        }
        Ok(())
    })
}
