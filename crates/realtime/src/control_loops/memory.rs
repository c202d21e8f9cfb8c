//! Memory shared by a client and a control loop, and the descriptors with which they wake each
//! other.
//!
//! A client starts steps with an event counter. Its flags and its count are also the client's, so the
//! loop reads it in a way that never blocks, and is woken on disconnection by a counter of its own.
//! Answers are signalled by a pair of sockets, of which each side has its own end: an event counter
//! could be made full and blocking between a check and a write.
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
use std::net::Shutdown;
use std::os::fd::{AsFd as _, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use memmap2::MmapRaw;
use nix::errno::Errno;
use nix::fcntl::{FcntlArg, OFlag, SealFlag, fcntl};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::sockopt::SndBuf;
use nix::sys::socket::{MsgFlags, send, setsockopt};
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
    /// Counter of starts, shared with the client.
    start: EventFd,
    /// The loop's end of the sockets that signal answers.
    answer: UnixStream,
    pub(super) disconnection: Arc<Disconnection>,
    /// The client's connection. Closing it notifies the client that the loop has failed.
    connection: UnixStream,
}

impl Client {
    /// Creates memory, counter and sockets. Also returns the descriptors for the client: memory,
    /// start counter, end of the sockets.
    pub(super) fn new(
        layout: &Layout,
        connection: &UnixStream,
    ) -> Result<(Self, [OwnedFd; 3]), Error> {
        let (memory, file) = SharedMemory::new(layout.bytes)?;
        let system = |what| move |source: Errno| Error { what, source };
        let counter = |flags| EventFd::from_flags(flags).map_err(system("make an event counter"));
        let start = counter(EfdFlags::EFD_CLOEXEC)?;
        let wake = counter(EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK)?;
        let shared = start.as_fd().try_clone_to_owned().map_err(errno);
        let shared = shared.map_err(system("share an event counter"))?;
        let (answer, answered) =
            UnixStream::pair().map_err(errno).map_err(system("make a pair of sockets"))?;
        // The system's minimum: a client with a few unread signals needs no further one.
        setsockopt(&answer, SndBuf, &1).map_err(system("limit a socket"))?;
        let descriptors = [file.into(), shared, answered.into()];
        let disconnection = Arc::new(Disconnection { happened: AtomicBool::new(false), wake });
        let connection = connection.try_clone().map_err(errno);
        let connection = connection.map_err(system("share the connection"))?;
        Ok((Self { memory, start, answer, disconnection, connection }, descriptors))
    }

    /// Descriptors that are readable after a start, and after the disconnection.
    pub(super) fn wake_ups(&self) -> [BorrowedFd<'_>; 2] {
        [self.start.as_fd(), self.disconnection.wake.as_fd()]
    }

    /// Returns the number of starts since the last call; `None` if there was none. Never blocks.
    pub(super) fn take_starts(&self) -> Option<u64> {
        let mut count = [0; 8];
        let part = libc::iovec { iov_base: count.as_mut_ptr().cast(), iov_len: count.len() };
        let fd = self.start.as_raw_fd();
        // SAFETY: the descriptor is open, and `part` describes `count`, which outlives the call.
        let read = unsafe { libc::preadv2(fd, &raw const part, 1, -1, libc::RWF_NOWAIT) };
        match Errno::result(read) {
            Ok(_) => Some(u64::from_ne_bytes(count)),
            // Before Linux 5.8. The client could block the read by changing the flag back.
            Err(Errno::EOPNOTSUPP) => {
                let _ = fcntl(&self.start, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
                self.start.read().ok()
            }
            Err(_) => None,
        }
    }

    /// Adds starts, as the client does.
    #[cfg(test)]
    pub(super) fn start(&self, count: u64) {
        self.start.write(count).unwrap();
    }

    /// Signals an answer. Never blocks. A signal that finds no room is dropped, because the client
    /// has not read earlier ones.
    pub(super) fn signal_answer(&self) {
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        let _ = send(self.answer.as_raw_fd(), &1_u64.to_ne_bytes(), flags);
    }

    /// Reports a failed loop to the client: marks step number `step` as failed, sends the error as
    /// a line, and closes the connection.
    pub(super) fn report_failure(&self, step: u64, now: u64, why: &str) {
        self.memory.finish(step, now, Outcome::Failed);
        self.signal_answer();
        let line = error_line(why);
        let flags = MsgFlags::MSG_DONTWAIT | MsgFlags::MSG_NOSIGNAL;
        // The client may have disconnected, or have read nothing.
        let _ = send(self.connection.as_raw_fd(), line.as_bytes(), flags);
        let _ = self.connection.shutdown(Shutdown::Both);
    }
}

/// A client's disconnection, noticed by the connection's thread and awaited by the loop's.
pub(super) struct Disconnection {
    happened: AtomicBool,
    /// Not shared with the client.
    wake: EventFd,
}

impl Disconnection {
    pub(super) fn happened(&self) -> bool {
        self.happened.load(Ordering::Acquire)
    }

    /// Reports it to the loop's thread.
    pub(super) fn report(&self) {
        self.happened.store(true, Ordering::Release);
        let _ = self.wake.write(1);
    }
}

/// An error as a line of JSON.
pub(super) fn error_line(why: &str) -> String {
    format!("{}\n", json!({ "error": { "message": why } }))
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
