//! Memory shared by a client and a control loop, and the two event counters with which they wake
//! each other.
//!
//! The memory begins with a header of 64 bytes. All numbers are little-endian.
//!
//! | byte | content | written by |
//! |---|---|---|
//! | 0 | time of the start in ns of `CLOCK_MONOTONIC`; 0: use the loop's wake-up | client |
//! | 8 | number of answered steps | loop |
//! | 16 | time of the last answer, ns | loop |
//! | 24 | [`Outcome`] of the last step (32 bits) | loop |
//!
//! Inputs and outputs follow as `f32`, each aligned to 64 bytes. A client writes inputs before it
//! starts a step and reads outputs after the answer. Accesses in between can tear its own values,
//! but nothing else.

use std::fs::File;
use std::io::Write as _;
use std::net::Shutdown;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use memmap2::MmapRaw;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use serde::Serialize;
use serde_json::json;

use super::Error;

/// Size of the header and alignment of tensors, in bytes.
const HEADER: usize = 64;

const STARTED: usize = 0;
const ANSWERED: usize = 8;
const FINISHED: usize = 16;
const FAILED: usize = 24;

/// Converts an I/O error; `EIO` if it has no number.
fn errno(error: std::io::Error) -> Errno {
    Errno::try_from(error).unwrap_or(Errno::EIO)
}

/// Layout of the shared memory, sent to the client as JSON.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Layout {
    pub(super) lane: String,
    pub(super) rate_hz: u32,
    pub(super) deadline_us: u32,
    /// Size of the whole memory.
    pub(super) bytes: usize,
    pub(super) inputs: Vec<TensorPlace>,
    pub(super) outputs: Vec<TensorPlace>,
}

/// An `f32` tensor in the shared memory.
#[derive(Clone, Debug, Serialize)]
pub(super) struct TensorPlace {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// Byte offset.
    pub(super) offset: usize,
}

impl Layout {
    pub(super) fn has_output(&self, name: &str) -> bool {
        self.outputs.iter().any(|output| output.name == name)
    }

    /// Places inputs, then outputs, with these names and shapes.
    pub(super) fn new<'a>(
        config: &config::ControlLoop,
        inputs: impl Iterator<Item = (&'a str, &'a [usize])>,
        outputs: impl Iterator<Item = (&'a str, &'a [usize])>,
    ) -> Self {
        let mut bytes = HEADER;
        let mut place = |(name, shape): (&str, &[usize])| {
            let offset = bytes;
            let own = 4 * shape.iter().product::<usize>();
            bytes = (bytes + own).next_multiple_of(HEADER);
            TensorPlace { name: name.to_owned(), shape: shape.to_vec(), offset }
        };
        let inputs = inputs.map(&mut place).collect();
        let outputs = outputs.map(&mut place).collect();
        let deadline_us = u32::try_from(config.deadline().as_micros()).unwrap_or(u32::MAX);
        let (lane, rate_hz) = (config.name.clone(), config.rate_hz);
        Self { lane, rate_hz, deadline_us, bytes, inputs, outputs }
    }
}

/// Outcome of a step, as clients see it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Outcome {
    Done,
    /// The device failed, or an input was not valid.
    Failed,
    /// An output was NaN or infinite.
    NotFinite,
}

impl TensorPlace {
    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// The loop's side of a client's connection.
pub(super) struct Client {
    pub(super) memory: SharedMemory,
    pub(super) start: Arc<EventFd>,
    pub(super) answer: Arc<EventFd>,
    /// Set when the client has disconnected.
    pub(super) disconnected: Arc<AtomicBool>,
    /// The client's connection. Closing it notifies the client that the loop has failed.
    connection: UnixStream,
}

impl Client {
    /// Creates memory and counters. Also returns the descriptors for the client: memory, start
    /// counter, answer counter.
    pub(super) fn new(
        layout: &Layout,
        connection: &UnixStream,
    ) -> Result<(Self, [OwnedFd; 3]), Error> {
        let (memory, file) = SharedMemory::new(layout.bytes)?;
        let system = |what| move |source: Errno| Error { what, source };
        let counter =
            || EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(system("make an event counter"));
        let (start, answer) = (counter()?, counter()?);
        let duplicate = |counter: &EventFd| {
            let fd = std::os::fd::AsFd::as_fd(counter).try_clone_to_owned();
            fd.map_err(errno).map_err(system("share an event counter"))
        };
        let descriptors = [file.into(), duplicate(&start)?, duplicate(&answer)?];
        let disconnected = Arc::new(AtomicBool::new(false));
        let (start, answer) = (Arc::new(start), Arc::new(answer));
        let connection = connection.try_clone().map_err(errno);
        let connection = connection.map_err(system("share the connection"))?;
        Ok((Self { memory, start, answer, disconnected, connection }, descriptors))
    }

    /// Reports a failed loop to the client: marks step number `step` as failed, sends the error as
    /// a line, and closes the connection.
    pub(super) fn report_failure(&self, step: u64, now: u64, why: &str) {
        self.memory.finish(step, now, Outcome::Failed);
        // The client may have filled the counter, or have disconnected.
        let _ = fcntl(&*self.answer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        let _ = self.answer.write(1);
        let _ = writeln!(&self.connection, "{}", json!({ "error": { "message": why } }));
        let _ = self.connection.shutdown(Shutdown::Both);
    }
}

/// The mapping of the shared memory. The client may write to it at any time, so all accesses are
/// atomic words.
pub(super) struct SharedMemory(MmapRaw);

impl SharedMemory {
    fn new(bytes: usize) -> Result<(Self, File), Error> {
        let system = |what| move |source: Errno| Error { what, source };
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"orind-lane", flags).map_err(system("make shared memory"))?;
        let file = File::from(file);
        file.set_len(bytes as u64).map_err(errno).map_err(system("size shared memory"))?;
        // A client cannot shrink the memory under the loop's mapping.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(system("seal shared memory"))?;
        let map = MmapRaw::map_raw(&file).map_err(errno).map_err(system("map shared memory"))?;
        let shared = Self(map);
        // Touches every page before the first step.
        (0..bytes).step_by(4).for_each(|at| shared.word(at).store(0, Ordering::Relaxed));
        Ok((shared, file))
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.0.len(), "byte {at} of {}", self.0.len());
        // SAFETY: the word is inside the mapping, which lives as long as `self` and cannot shrink.
        // It is aligned, because the mapping begins at a page. This process accesses it only by
        // atomics.
        unsafe { AtomicU32::from_ptr(self.0.as_mut_ptr().add(at).cast()) }
    }

    fn long(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.0.len(), "byte {at} of {}", self.0.len());
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(self.0.as_mut_ptr().add(at).cast()) }
    }

    /// Time at which the client started the step; 0 if it did not write one.
    pub(super) fn started(&self) -> u64 {
        u64::from_le(self.long(STARTED).load(Ordering::Acquire))
    }

    /// Publishes the answer of step number `answered`.
    pub(super) fn finish(&self, answered: u64, now: u64, outcome: Outcome) {
        self.word(FAILED).store((outcome as u32).to_le(), Ordering::Relaxed);
        self.long(FINISHED).store(now.to_le(), Ordering::Relaxed);
        self.long(ANSWERED).store(answered.to_le(), Ordering::Release);
    }

    /// Returns true if the last step is marked as failed.
    #[cfg(test)]
    pub(super) fn failed(&self) -> bool {
        self.word(FAILED).load(Ordering::Relaxed) != 0
    }

    pub(super) fn load(&self, tensor: &TensorPlace, values: &mut [f32]) {
        for (i, value) in values.iter_mut().enumerate() {
            let word = self.word(tensor.offset + 4 * i).load(Ordering::Relaxed);
            *value = f32::from_bits(u32::from_le(word));
        }
    }

    pub(super) fn store(&self, tensor: &TensorPlace, values: &[f32]) {
        for (i, value) in values.iter().enumerate() {
            let word = self.word(tensor.offset + 4 * i);
            word.store(value.to_bits().to_le(), Ordering::Relaxed);
        }
    }
}
