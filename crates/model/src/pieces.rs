//! Work on the pieces of tensors, on several threads: what a file is made of when it is written.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;

/// Elements of a piece: 1 MiB of `f32`, and whole super-blocks, so that no block is split.
pub(crate) const ELEMENTS: usize = 1 << 18;

/// Where a tensor's pieces begin, and the elements of each.
pub(crate) fn of(elements: usize) -> impl Iterator<Item = (usize, usize)> {
    (0..elements).step_by(ELEMENTS).map(move |first| (first, ELEMENTS.min(elements - first)))
}

/// Memory that a thread uses again for each piece.
#[derive(Default)]
pub(crate) struct Scratch {
    pub(crate) values: Vec<f32>,
    pub(crate) bytes: Vec<u8>,
}

/// Does all pieces, each of which gives the bytes that it has done, and tells `progress` their sum from
/// this thread. The first failure ends it.
pub(crate) fn run<P: Sync, E: Send>(
    pieces: &[P],
    threads: usize,
    work: impl Fn(&P, &mut Scratch) -> Result<u64, E> + Sync,
    progress: &mut dyn FnMut(u64),
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
                    // Nobody listens any more once another thread has failed.
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
            progress(so_far);
        }
        Ok(())
    })
}
