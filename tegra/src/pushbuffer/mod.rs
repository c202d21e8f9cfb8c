//! Push buffers: the command streams that a channel executes.
//!
//! [`PushBuffer`] builds them from [`Operation`]s, which check their operands when they are made: a
//! stream is well formed by construction. [`decode`] decodes such a stream, and [`Listing`] prints
//! any stream. Ring entries, which point at streams, are [`Entry`]s.
//!
//! Owns the encoding only: where words are stored, when they may be changed and who rings the
//! doorbell belong to the queue. Memory that the GPU can reach must not be rewritten.
//!
//! Words follow what was seen to work on hardware; `tests/suite/pushbuffer.rs` contains those
//! words.

mod decode;
mod entry;
mod header;
mod listing;
mod operation;

use std::marker::PhantomData;

pub use decode::{DecodeError, decode};
pub use entry::{Entry, EntryError};
pub use header::{Header, HeaderError, Opcode};
pub use listing::Listing;
pub use operation::{
    Acquire, CacheInvalidate, Condition, Engine, Fill, L2Operation, Operation, OperationError,
    Payload, Release, Shape, Signal, Transfer, Upload, Windows,
};

use crate::address::QmdAddress;
use crate::class::host::{MembarType, WfiScope};
use crate::class::{Compute, Copy};
use crate::local_memory::LocalMemory;

/// A stream for a channel whose engine is `E`: [`Compute`] or [`enum@Copy`].
#[derive(Debug)]
pub struct PushBuffer<E> {
    words: Vec<u32>,
    engine: PhantomData<E>,
}

impl<E> Default for PushBuffer<E> {
    fn default() -> Self {
        Self { words: Vec::new(), engine: PhantomData }
    }
}

impl<E> PushBuffer<E> {
    /// An empty stream.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// The words so far.
    #[must_use]
    pub fn words(&self) -> &[u32] {
        &self.words
    }

    /// The words.
    #[must_use]
    pub fn into_words(self) -> Vec<u32> {
        self.words
    }

    fn push(&mut self, operation: &Operation) -> &mut Self {
        operation.encode(&mut self.words);
        self
    }

    /// Waits on a semaphore.
    pub fn acquire(&mut self, acquire: Acquire) -> &mut Self {
        self.push(&Operation::Acquire(acquire))
    }

    /// Releases a semaphore.
    pub fn release(&mut self, release: Release) -> &mut Self {
        self.push(&Operation::Release(release))
    }

    /// Raises an interrupt that wakes pollers of the TSG's event.
    pub fn non_stall_interrupt(&mut self) -> &mut Self {
        self.push(&Operation::NonStallInterrupt)
    }

    /// Waits until the engine last used is idle.
    pub fn wait_for_idle(&mut self, scope: WfiScope) -> &mut Self {
        self.push(&Operation::WaitForIdle(scope))
    }

    /// Orders earlier writes before later ones, for the system or for the GPU.
    pub fn memory_barrier(&mut self, reach: MembarType) -> &mut Self {
        self.push(&Operation::MemoryBarrier(reach))
    }

    /// Invalidates or flushes L2; only for mappings that L2 may cache.
    pub fn l2(&mut self, operation: L2Operation) -> &mut Self {
        self.push(&Operation::L2(operation))
    }

    /// Waits for idle, then stores `value` in the channel's USERD page.
    pub fn set_reference(&mut self, value: u32) -> &mut Self {
        self.push(&Operation::SetReference(value))
    }
}

impl PushBuffer<Compute> {
    /// Binds the compute class to its subchannel; once for each channel, first.
    pub fn bind(&mut self) -> &mut Self {
        self.push(&Operation::Bind(Engine::Compute))
    }

    /// Sets the windows of local and shared memory; once for each channel, before any launch.
    pub fn set_windows(&mut self, windows: Windows) -> &mut Self {
        self.push(&Operation::SetWindows(windows))
    }

    /// Sets the channel's local memory; the engine must be idle when it changes.
    pub fn set_local_memory(&mut self, memory: LocalMemory) -> &mut Self {
        self.push(&Operation::SetLocalMemory(memory))
    }

    /// Invalidates shader caches.
    pub fn invalidate_shader_caches(&mut self, caches: CacheInvalidate) -> &mut Self {
        self.push(&Operation::InvalidateShaderCaches(caches))
    }

    /// Launches the kernel that the QMD at `qmd` describes.
    pub fn launch(&mut self, qmd: QmdAddress) -> &mut Self {
        self.push(&Operation::Launch(qmd))
    }

    /// Writes words to memory from the stream itself.
    pub fn upload(&mut self, upload: Upload) -> &mut Self {
        self.push(&Operation::Upload(upload))
    }
}

impl PushBuffer<Copy> {
    /// Binds the copy class to its subchannel; once for each channel, first.
    pub fn bind(&mut self) -> &mut Self {
        self.push(&Operation::Bind(Engine::Copy))
    }

    /// Copies memory.
    pub fn transfer(&mut self, transfer: Transfer) -> &mut Self {
        self.push(&Operation::Transfer(transfer))
    }

    /// Fills memory with a word.
    pub fn fill(&mut self, fill: Fill) -> &mut Self {
        self.push(&Operation::Fill(fill))
    }

    /// Flushes, then releases a semaphore from the copy engine.
    pub fn signal(&mut self, signal: Signal) -> &mut Self {
        self.push(&Operation::Signal(signal))
    }
}
