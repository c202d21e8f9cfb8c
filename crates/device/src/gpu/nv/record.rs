//! A list of launches written down for the hardware: QMDs, constant banks and a command stream.
//!
//! Launches form a chain: completion of one starts the next, without the host unit or the CPU. What
//! a launch must see of those before it decides which caches it drops first. A recording exists
//! twice, and steps use the two in turn, so that one can be looked at after a fault while the
//! other runs, and nothing that the GPU still reads is ever written.
//!
//! In a step that may be long some launches release a semaphore, so that one that progresses can be told
//! from one that hangs. To be profiled, a recording is copied with a timestamp after every launch.

use orind_kernels::bank0::Bank0;
use orind_kernels::catalogue::Kernel;
use tegra::address::QmdAddress;
use tegra::buffer::Mailbox;
use tegra::class::Compute;
use tegra::class::qmd::{DependentAction, Membar};
use tegra::pushbuffer::{CacheInvalidate, Entry, Payload, PushBuffer, Windows};
use tegra::qmd::{ConstantBank, Dependent, Invalidate, Launch as QmdLaunch, Qmd, QmdRelease};
use tegra::space::AddressSpace;

use super::super::dependencies::{Wait, waits};
use super::super::launch::Launch;
use super::super::layout::ALIGN;
use super::code::{Code, Loaded};
use super::failed;
use super::watchdog::ProgressMarkers;
use crate::{Error, Result};

pub(super) const COPIES: usize = 2;

const QMD_BYTES: u64 = 256;

/// Bytes of a semaphore with a timestamp: payload, then nanoseconds.
const STAMP_BYTES: u64 = 16;

/// Bytes from one copy's word of progress to the other's.
const WORD_STRIDE: u64 = 64;

/// The initial stack pointer: the end of a thread's local addresses, less what lies above it.
const STACK_POINTER: u32 =
    (1 << tegra::local_memory::THREAD_ADDRESS_BITS) - tegra::local_memory::ABOVE_STACK_POINTER;

#[derive(Debug)]
pub(super) struct Recording {
    /// What the streams point at: QMDs first, then the rest.
    memory: Mailbox,
    bodies: [Entry; COPIES],
    launches: Vec<Recorded>,
    /// For each copy the number of the last marked launch that is done.
    progress: Option<Mailbox>,
    polls: u32,
}

#[derive(Clone, Debug)]
pub(super) struct Recorded {
    pub(super) step: usize,
    pub(super) label: String,
    pub(super) kernel: Kernel,
}

impl Recording {
    pub(super) fn new(
        space: &AddressSpace,
        code: &Code,
        launches: &[Launch],
        markers: &ProgressMarkers,
    ) -> Result<Self> {
        let marked = markers.after.contains(&true);
        let progress = marked.then(|| Mailbox::new(space, COPIES as u64 * WORD_STRIDE));
        let progress = progress.transpose().map_err(failed)?;
        let loaded =
            launches.iter().map(|l| code.kernel(l.kernel)).collect::<Result<Vec<_>, _>>()?;
        let bank_bytes = |l: &Launch, loaded: &Loaded| {
            u64::from(loaded.params_offset) + l.params.as_bytes().len() as u64
        };
        let aligned = |bytes: u64| bytes.next_multiple_of(ALIGN);
        let banks: u64 =
            launches.iter().zip(&loaded).map(|(l, loaded)| aligned(bank_bytes(l, loaded))).sum();
        let stream = PushBuffer::<Compute>::new().stream(QmdAddress::from_shifted(0));
        let copy = QMD_BYTES * launches.len() as u64 + banks + aligned(4 * stream.len() as u64);
        let memory = Mailbox::new(space, COPIES as u64 * copy).map_err(failed)?;
        let waits = waits(launches);
        let record = |number: u64| -> Result<Entry, tegra::Error> {
            let start = copy * number;
            let qmd_at = |i: usize| start + QMD_BYTES * i as u64;
            let mut bank_at = qmd_at(launches.len());
            for (i, (launch, loaded)) in launches.iter().zip(&loaded).enumerate() {
                let bank = bank0(launch, loaded, space.windows());
                memory.write(bank_at, &bank)?;
                let mut qmd = describe(launch, loaded, waits[i]);
                qmd.constants[0] = Some(ConstantBank {
                    address: memory.at(bank_at)?,
                    bytes: bank.len() as u32,
                    invalidate: true,
                });
                if i + 1 < launches.len() {
                    qmd.dependent = Some(Dependent {
                        qmd: QmdAddress::new(memory.at(qmd_at(i + 1))?)?,
                        action: DependentAction::Schedule,
                        prefetch: true,
                    });
                }
                if let Some(progress) = progress.as_ref().filter(|_| markers.after[i]) {
                    qmd.releases[0] = Some(QmdRelease {
                        at: progress.at(WORD_STRIDE * number)?,
                        payload: Payload::Word(i as u32 + 1),
                        timestamp: false,
                        system_barrier: false,
                    });
                }
                let words = qmd.encode().map_err(|error| tegra::Error::Unsupported {
                    what: "a launch",
                    found: format!("{} ({}): {error}", launch.kernel.symbol(), launch.label),
                    expected: "one that the hardware takes",
                })?;
                memory.write_words(qmd_at(i), words.words())?;
                bank_at += aligned(bank.len() as u64);
            }
            let first = QmdAddress::new(memory.at(qmd_at(0))?)?;
            memory.write_stream(bank_at, &PushBuffer::<Compute>::new().stream(first))
        };
        let bodies = [record(0).map_err(failed)?, record(1).map_err(failed)?];
        let recorded = |launch: &Launch| {
            let Launch { step, label, kernel, .. } = launch;
            Recorded { step: *step, label: label.clone(), kernel: *kernel }
        };
        let launches = launches.iter().map(recorded).collect();
        Ok(Self { memory, bodies, launches, progress, polls: markers.polls })
    }

    pub(super) fn launches(&self) -> &[Recorded] {
        &self.launches
    }

    /// Polls without progress after which the channel counts as hung.
    pub(super) const fn polls(&self) -> u32 {
        self.polls
    }

    /// The last marked launch of each copy.
    pub(super) fn progress(&self) -> [Option<u32>; COPIES] {
        // The words are within the buffer, so that they can be read.
        [0, WORD_STRIDE].map(|at| self.progress.as_ref()?.load_u32(at).ok())
    }

    pub(super) const fn body(&self, step: u64) -> Entry {
        self.bodies[(step % COPIES as u64) as usize]
    }

    /// A copy in which every launch ends with a timestamp.
    pub(super) fn stamped(&self, space: &AddressSpace) -> Result<Stamped> {
        let count = self.launches.len() as u64;
        let refused = |error: &dyn std::fmt::Display| {
            Error::Invalid(format!("a recorded launch cannot be read back: {error}"))
        };
        let stream_at = (QMD_BYTES + STAMP_BYTES) * count;
        let stream = PushBuffer::<Compute>::new().stream(QmdAddress::from_shifted(0));
        let memory =
            Mailbox::new(space, stream_at.next_multiple_of(ALIGN) + 4 * stream.len() as u64);
        let memory = memory.map_err(failed)?;
        for i in 0..count {
            let mut words = [0; QMD_BYTES as usize / 4];
            let mut bytes = [0; QMD_BYTES as usize];
            self.memory.read(QMD_BYTES * i, &mut bytes).map_err(failed)?;
            for (word, bytes) in words.iter_mut().zip(bytes.as_chunks::<4>().0) {
                *word = u32::from_le_bytes(*bytes);
            }
            let mut qmd = QmdLaunch::decode(&Qmd::from_words(words)).map_err(|e| refused(&e))?;
            // Banks are shared with the original.
            qmd.releases = [None; 3];
            qmd.releases[0] = Some(QmdRelease {
                at: memory.at(QMD_BYTES * count + STAMP_BYTES * i).map_err(failed)?,
                payload: Payload::Word(1),
                timestamp: true,
                system_barrier: true,
            });
            if let Some(dependent) = &mut qmd.dependent {
                let next = memory.at(QMD_BYTES * (i + 1)).map_err(failed)?;
                dependent.qmd = QmdAddress::new(next).map_err(|e| refused(&e))?;
            }
            let qmd = qmd.encode().map_err(|e| refused(&e))?;
            memory.write_words(QMD_BYTES * i, qmd.words()).map_err(failed)?;
        }
        let first = QmdAddress::new(memory.at(0).map_err(failed)?).map_err(|e| refused(&e))?;
        let stream = PushBuffer::<Compute>::new().stream(first);
        let stream_at = stream_at.next_multiple_of(ALIGN);
        let body = memory.write_stream(stream_at, &stream).map_err(failed)?;
        Ok(Stamped { memory, body, count })
    }
}

/// A recording with timestamps, good for one execution.
pub(super) struct Stamped {
    memory: Mailbox,
    pub(super) body: Entry,
    count: u64,
}

impl Stamped {
    const fn stamp(&self, launch: u64) -> u64 {
        QMD_BYTES * self.count + STAMP_BYTES * launch
    }

    pub(super) fn done(&self) -> u64 {
        let is_done =
            |&launch: &u64| self.memory.load_u32(self.stamp(launch)).is_ok_and(|n| n == 1);
        (0..self.count).take_while(is_done).count() as u64
    }

    /// When each launch was done, in nanoseconds of the GPU's timer.
    pub(super) fn times(&self) -> Result<Vec<u64>> {
        let time = |launch| self.memory.load_u64(self.stamp(launch) + 8).map_err(failed);
        (0..self.count).map(time).collect()
    }
}

trait Stream {
    fn stream(self, first: QmdAddress) -> Vec<u32>;
}

impl Stream for PushBuffer<Compute> {
    fn stream(mut self, first: QmdAddress) -> Vec<u32> {
        // The CPU may have written mailboxes, and code before the first step.
        let all = CacheInvalidate { instruction: true, data: true, constant: true, wait: true };
        self.invalidate_shader_caches(all).launch(first);
        self.into_words()
    }
}

fn describe(launch: &Launch, loaded: &Loaded, wait: Wait) -> QmdLaunch {
    let mut qmd = QmdLaunch::new(loaded.program, launch.grid, [launch.kernel.threads(), 1, 1]);
    qmd.shared_bytes = loaded.shared_bytes + launch.shared_bytes;
    qmd.constants[2] =
        loaded.literals.map(|(address, bytes)| ConstantBank { address, bytes, invalidate: false });
    qmd.invalidate = Invalidate {
        texture: false,
        data: wait == Wait::Visible,
        instruction: false,
        constant: false,
    };
    qmd.membar = Membar::System;
    qmd
}

fn bank0(launch: &Launch, loaded: &Loaded, windows: Windows) -> Vec<u8> {
    let bank = Bank0 {
        block: [launch.kernel.threads(), 1, 1],
        grid: launch.grid,
        shared_window: windows.shared().get(),
        local_window: windows.local().get(),
        stack_pointer: STACK_POINTER,
        dynamic_shared: launch.shared_bytes,
    };
    bank.image(loaded.params_offset, launch.params.as_bytes())
}
