//! Memory layout of scratch buffers: offsets into one arena. Buffers that are never alive at the
//! same time share bytes.

use crate::buffer::{BufferId, Class};
use crate::plan::Plan;

/// Alignment of every scratch buffer in bytes: one cache line, and the widest vector.
pub const SCRATCH_ALIGN: u64 = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Arena {
    pub bytes: u64,
    offsets: Vec<Option<u64>>,
}

impl Arena {
    /// Lays out the scratch buffers of `plan`: largest first, each at the lowest offset that no
    /// buffer alive at the same time occupies.
    ///
    /// A buffer stays alive until the last step of the launch that touches it; `last_of` maps a
    /// step to that last step. `place` maps a buffer to the buffer that contains it (usually
    /// itself) and its byte offset there.
    #[must_use]
    pub fn new(
        plan: &Plan,
        last_of: impl Fn(usize) -> usize,
        place: impl Fn(BufferId) -> (BufferId, u64),
    ) -> Self {
        struct Life {
            buffer: usize,
            bytes: u64,
            first: usize,
            last: usize,
        }
        let mut lives: Vec<Option<Life>> = plan.buffers.iter().map(|_| None).collect();
        let mut places = vec![None; plan.buffers.len()];
        let blocks = plan.blocks();
        let mut block = blocks.iter();
        let mut own = block.next();
        for (at, step) in plan.steps.iter().enumerate() {
            while own.is_some_and(|(steps, _)| steps.end <= at) {
                own = block.next();
            }
            // Every execution of a body reads the values of before the body again.
            let body =
                own.filter(|(_, count)| *count > 1).map_or(at..at, |(steps, _)| steps.clone());
            let last_of = |first: usize| match first < body.start {
                true if !body.is_empty() => last_of(at).max(body.end - 1),
                _ => last_of(at),
            };
            for view in step.op.reads().into_iter().chain(step.op.writes()) {
                let (whole, before) = place(view.buffer);
                let index = whole.index();
                let buffer = &plan.buffers[index];
                if buffer.class != Class::Scratch {
                    continue;
                }
                places[view.buffer.index()] = Some((index, before));
                match &mut lives[index] {
                    Some(life) => life.last = life.last.max(last_of(life.first)),
                    none => {
                        let bytes = buffer.bytes().next_multiple_of(SCRATCH_ALIGN);
                        let last = last_of(at);
                        *none = Some(Life { buffer: index, bytes, first: at, last });
                    }
                }
            }
        }
        let mut lives: Vec<Life> = lives.into_iter().flatten().collect();
        lives.sort_by_key(|life| (std::cmp::Reverse(life.bytes), life.first));

        let mut starts = vec![0; plan.buffers.len()];
        // Indices into `lives` of the buffers that have an offset, by offset.
        let mut placed: Vec<u32> = Vec::with_capacity(lives.len());
        let mut total = 0;
        for (at, life) in lives.iter().enumerate() {
            let mut offset = 0;
            for other in placed.iter().map(|other| &lives[*other as usize]) {
                let start = starts[other.buffer];
                if offset + life.bytes <= start {
                    break;
                }
                if other.first <= life.last && life.first <= other.last {
                    offset = offset.max(start + other.bytes);
                }
            }
            starts[life.buffer] = offset;
            total = total.max(offset + life.bytes);
            let before =
                placed.partition_point(|other| starts[lives[*other as usize].buffer] <= offset);
            placed.insert(before, at as u32);
        }
        let offset = |(whole, before): (usize, u64)| starts[whole] + before;
        Self { bytes: total, offsets: places.into_iter().map(|at| at.map(offset)).collect() }
    }

    /// Byte offset of a scratch buffer; `None` for other classes and for unused buffers.
    #[must_use]
    pub fn offset(&self, buffer: BufferId) -> Option<u64> {
        self.offsets.get(buffer.index()).copied().flatten()
    }
}
