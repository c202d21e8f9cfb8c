//! What a client and a lane share: one piece of memory of fixed size, and two counters that wake the other side.
//!
//! It begins with a head of 64 bytes, of which little-endian numbers are used:
//!
//! | byte | | written by |
//! |---|---|---|
//! | 0 | when the step was started, ns of `CLOCK_MONOTONIC`; 0 to count from the lane's wake-up | client |
//! | 8 | steps answered | lane |
//! | 16 | when the last one was, ns | lane |
//! | 24 | whether it failed: 0 or 1 (32 bits) | lane |
//!
//! Inputs and outputs follow, each `f32` at a multiple of 64 bytes. A client writes inputs before it starts a step and reads
//! outputs after the answer; what it does in between may tear its own values, and nothing else.

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

/// Bytes of the head, and what tensors are aligned to.
const LINE: usize = 64;

const STARTED: usize = 0;
const ANSWERED: usize = 8;
const FINISHED: usize = 16;
const FAILED: usize = 24;

/// The system's number of an error, where it has one.
fn errno(error: std::io::Error) -> Errno {
    Errno::try_from(error).unwrap_or(Errno::EIO)
}

/// Where a network's inputs and outputs lie, as a client is told.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Layout {
    pub(super) lane: String,
    pub(super) rate_hz: u32,
    pub(super) deadline_us: u32,
    /// Of all of it.
    pub(super) bytes: usize,
    pub(super) inputs: Vec<Place>,
    pub(super) outputs: Vec<Place>,
}

/// A tensor of `f32` in the memory.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Place {
    pub(super) name: String,
    pub(super) shape: Vec<usize>,
    /// Byte that it begins at.
    pub(super) offset: usize,
}

impl Layout {
    /// Inputs, then outputs, of these names and shapes.
    pub(super) fn new<'a>(
        config: &config::Lane,
        inputs: impl Iterator<Item = (&'a str, &'a [usize])>,
        outputs: impl Iterator<Item = (&'a str, &'a [usize])>,
    ) -> Self {
        let mut bytes = LINE;
        let mut place = |(name, shape): (&str, &[usize])| {
            let offset = bytes;
            let own = 4 * shape.iter().product::<usize>();
            bytes = (bytes + own).next_multiple_of(LINE);
            Place { name: name.to_owned(), shape: shape.to_vec(), offset }
        };
        let inputs = inputs.map(&mut place).collect();
        let outputs = outputs.map(&mut place).collect();
        let deadline_us = u32::try_from(config.deadline().as_micros()).unwrap_or(u32::MAX);
        let (lane, rate_hz) = (config.name.clone(), config.rate_hz);
        Self { lane, rate_hz, deadline_us, bytes, inputs, outputs }
    }
}

impl Place {
    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }
}

/// What a client is given, and the lane keeps.
pub(super) struct Client {
    pub(super) memory: Shared,
    pub(super) start: Arc<EventFd>,
    pub(super) answer: Arc<EventFd>,
    /// Nobody is there any more.
    pub(super) gone: Arc<AtomicBool>,
    /// What it came through, and waits at for the end.
    connection: UnixStream,
}

impl Client {
    /// Memory and counters, and the descriptors to hand over: of the memory, to start, to answer.
    pub(super) fn new(
        layout: &Layout,
        connection: &UnixStream,
    ) -> Result<(Self, [OwnedFd; 3]), Error> {
        let (memory, file) = Shared::new(layout.bytes)?;
        let system = |what| move |source: Errno| Error { what, source };
        let counter =
            || EventFd::from_flags(EfdFlags::EFD_CLOEXEC).map_err(system("make an event counter"));
        let (start, answer) = (counter()?, counter()?);
        let twin = |counter: &EventFd| {
            let fd = std::os::fd::AsFd::as_fd(counter).try_clone_to_owned();
            fd.map_err(errno).map_err(system("share an event counter"))
        };
        let handed = [file.into(), twin(&start)?, twin(&answer)?];
        let gone = Arc::new(AtomicBool::new(false));
        let (start, answer) = (Arc::new(start), Arc::new(answer));
        let connection = connection.try_clone().map_err(errno);
        let connection = connection.map_err(system("share the connection"))?;
        Ok((Self { memory, start, answer, gone, connection }, handed))
    }

    /// Tells it that nobody answers any more, and why: the step under way, the so-manieth, has failed, and the connection
    /// ends after a line.
    pub(super) fn desert(&self, step: u64, now: u64, why: &str) {
        self.memory.finish(step, now, true);
        // It may have filled the counter, or be gone itself.
        let _ = fcntl(&*self.answer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK));
        let _ = self.answer.write(1);
        let _ = writeln!(&self.connection, "{}", json!({ "error": { "message": why } }));
        let _ = self.connection.shutdown(Shutdown::Both);
    }
}

/// The memory as the lane sees it. The other side may write to any of it at any time, so it is only read and written in
/// atomic words.
pub(super) struct Shared(MmapRaw);

impl Shared {
    fn new(bytes: usize) -> Result<(Self, File), Error> {
        let system = |what| move |source: Errno| Error { what, source };
        let flags = MFdFlags::MFD_CLOEXEC | MFdFlags::MFD_ALLOW_SEALING;
        let file = memfd_create(c"orind-lane", flags).map_err(system("make shared memory"))?;
        let file = File::from(file);
        file.set_len(bytes as u64).map_err(errno).map_err(system("size shared memory"))?;
        // Nobody can take pages away under the lane.
        let seals = SealFlag::F_SEAL_SHRINK | SealFlag::F_SEAL_GROW | SealFlag::F_SEAL_SEAL;
        fcntl(&file, FcntlArg::F_ADD_SEALS(seals)).map_err(system("seal shared memory"))?;
        let map = MmapRaw::map_raw(&file).map_err(errno).map_err(system("map shared memory"))?;
        let shared = Self(map);
        // Every page is there before the first step.
        (0..bytes).step_by(4).for_each(|at| shared.word(at).store(0, Ordering::Relaxed));
        Ok((shared, file))
    }

    fn word(&self, at: usize) -> &AtomicU32 {
        assert!(at.is_multiple_of(4) && at + 4 <= self.0.len(), "byte {at} of {}", self.0.len());
        // SAFETY: inside the mapping, which lives as long as `self` and cannot shrink, and aligned, as it begins at a page;
        // this process reaches it by atomics alone.
        unsafe { AtomicU32::from_ptr(self.0.as_mut_ptr().add(at).cast()) }
    }

    fn long(&self, at: usize) -> &AtomicU64 {
        assert!(at.is_multiple_of(8) && at + 8 <= self.0.len(), "byte {at} of {}", self.0.len());
        // SAFETY: as in `word`.
        unsafe { AtomicU64::from_ptr(self.0.as_mut_ptr().add(at).cast()) }
    }

    /// When the client says that it started the step; 0 if it does not.
    pub(super) fn started(&self) -> u64 {
        u64::from_le(self.long(STARTED).load(Ordering::Acquire))
    }

    /// The step is answered, the so-manieth.
    pub(super) fn finish(&self, answered: u64, now: u64, failed: bool) {
        self.word(FAILED).store(u32::from(failed).to_le(), Ordering::Relaxed);
        self.long(FINISHED).store(now.to_le(), Ordering::Relaxed);
        self.long(ANSWERED).store(answered.to_le(), Ordering::Release);
    }

    /// Whether the last step is said to have failed.
    #[cfg(test)]
    pub(super) fn failed(&self) -> bool {
        self.word(FAILED).load(Ordering::Relaxed) != 0
    }

    pub(super) fn load(&self, place: &Place, values: &mut [f32]) {
        for (i, value) in values.iter_mut().enumerate() {
            let word = self.word(place.offset + 4 * i).load(Ordering::Relaxed);
            *value = f32::from_bits(u32::from_le(word));
        }
    }

    pub(super) fn store(&self, place: &Place, values: &[f32]) {
        for (i, value) in values.iter().enumerate() {
            let word = self.word(place.offset + 4 * i);
            word.store(value.to_bits().to_le(), Ordering::Relaxed);
        }
    }
}
