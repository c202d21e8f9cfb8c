//! Recordings: launches encoded as QMDs, constant banks and a command stream.
//!
//! Launches form [QMD chains](super::chains): completion of one starts the next, without host unit
//! or CPU. Dependencies determine which caches a launch invalidates. A recording exists twice and
//! steps alternate between the copies, so that one can be inspected after a fault while the other
//! runs, and no memory that the GPU still reads is written.
//!
//! Behind each chain the host unit waits for the engine and releases a semaphore, which shows
//! progress. For profiling, launches are recorded one by one, each followed by a timestamp.

use std::ops::Range;

use orind_kernels::bank0::Bank0;
use tegra::address::QmdAddress;
use tegra::buffer::Mailbox;
use tegra::class::Compute;
use tegra::class::qmd::{DependentAction, Membar};
use tegra::pushbuffer::{CacheInvalidate, Entry, Payload, PushBuffer, Release, Windows};
use tegra::qmd::{ConstantBank, Dependent, Invalidate, Launch as QmdLaunch};
use tegra::space::AddressSpace;

use super::super::dependencies::{Wait, waits};
use super::super::launch::Launch;
use super::super::storage::ALIGN;
use super::chains::Chains;
use super::code::{Code, Loaded};
use super::failed;
use crate::Result;
use crate::modes::{self, Mode};

pub(super) const COPIES: usize = 2;

const QMD_BYTES: u64 = 256;

/// Bytes of a semaphore with timestamp: payload, then nanoseconds.
const STAMP_BYTES: u64 = 16;

/// Distance between the progress words of both copies.
const WORD_STRIDE: u64 = 64;

/// Initial stack pointer: the end of a thread's local memory, minus the reserved area.
const STACK_POINTER: u32 =
    (1 << tegra::local_memory::THREAD_ADDRESS_BITS) - tegra::local_memory::ABOVE_STACK_POINTER;

/// Inputs of a recording.
#[derive(Clone, Copy)]
pub(super) struct Source<'a> {
    pub(super) space: &'a AddressSpace,
    pub(super) code: &'a Code,
    pub(super) launches: &'a [Launch],
    pub(super) mode: Mode,
}

#[derive(Debug)]
pub(super) struct Recording {
    /// Memory of both copies: QMDs first, then the rest.
    memory: Mailbox,
    /// Size of a copy in bytes.
    copy_bytes: u64,
    chains: Vec<Range<usize>>,
    bodies: [Entry; COPIES],
    /// Completed chains of each copy, if there are several.
    progress: Option<Mailbox>,
    polls: u32,
}

impl Recording {
    /// Records the launches of a plan whose rows see `context` positions.
    pub(super) fn new(source: Source<'_>, context: u64) -> Result<Self> {
        let Source { space, launches, mode, .. } = source;
        let Chains { lengths, polls } = Chains::of(launches, context, mode);
        let progress =
            (lengths.len() > 1).then(|| Mailbox::new(space, COPIES as u64 * WORD_STRIDE));
        let progress = progress.transpose().map_err(failed)?;
        let layout = Layout::new(source, lengths)?;
        let memory = Mailbox::new(space, COPIES as u64 * layout.bytes).map_err(failed)?;
        let record = |number: u64| {
            // The next step of the same copy counts alike: the last chain's number distinguishes
            // them.
            layout.write(source, &memory, layout.bytes * number, |chain| {
                let Some(progress) = &progress else { return Ok(None) };
                let done = Payload::Word(chain as u32 + 1);
                Ok(Some(Release::new(progress.at(WORD_STRIDE * number)?, done)?))
            })
        };
        let bodies = [record(0).map_err(failed)?, record(1).map_err(failed)?];
        let Layout { bytes: copy_bytes, chains, .. } = layout;
        Ok(Self { memory, copy_bytes, chains, bodies, progress, polls })
    }

    /// Polls without progress after which the channel counts as hung.
    pub(super) const fn polls(&self) -> u32 {
        self.polls
    }

    /// Completed chains of each copy's latest execution.
    pub(super) fn progress(&self) -> [Option<u32>; COPIES] {
        // The words are inside the buffer, so reading cannot fail.
        [0, WORD_STRIDE].map(|at| self.progress.as_ref()?.load_u32(at).ok())
    }

    /// Resets the progress. Nothing may be running.
    pub(super) fn begin_again(&self) -> Result<()> {
        let Some(progress) = &self.progress else { return Ok(()) };
        [0, WORD_STRIDE].into_iter().try_for_each(|at| progress.store_u32(at, 0)).map_err(failed)
    }

    /// Launches of the current step that may be running: those of the first chain that has not been
    /// released.
    pub(super) fn under_way(&self, step: u64) -> Range<usize> {
        let released = self.progress()[(step % COPIES as u64) as usize].unwrap_or(0);
        // All released: that was the previous execution.
        let chain = self.chains.get(released as usize).or(self.chains.first());
        chain.cloned().unwrap_or_default()
    }

    /// Address of a launch's QMD in a step.
    pub(super) fn qmd(&self, step: u64, launch: usize) -> u64 {
        let copy = self.memory.address().get() + self.copy_bytes * (step % COPIES as u64);
        copy + QMD_BYTES * launch as u64
    }

    pub(super) const fn body(&self, step: u64) -> Entry {
        self.bodies[(step % COPIES as u64) as usize]
    }
}

/// A recording with a timestamp behind each launch, for one execution.
pub(super) struct Stamped {
    memory: Mailbox,
    pub(super) body: Entry,
    stamps: u64,
    count: u64,
}

impl Stamped {
    pub(super) fn new(source: Source<'_>) -> Result<Self> {
        let count = source.launches.len();
        let layout = Layout::new(source, vec![1; count])?;
        let (stamps, count) = (layout.bytes, count as u64);
        let memory = Mailbox::new(source.space, stamps + STAMP_BYTES * count).map_err(failed)?;
        let stamp = |launch: usize| {
            let at = memory.at(stamps + STAMP_BYTES * launch as u64)?;
            Ok(Some(Release::new(at, Payload::Word(1))?.with_timestamp()?))
        };
        let body = layout.write(source, &memory, 0, stamp).map_err(failed)?;
        Ok(Self { memory, body, stamps, count })
    }

    const fn stamp(&self, launch: u64) -> u64 {
        self.stamps + STAMP_BYTES * launch
    }

    pub(super) fn done(&self) -> u64 {
        let is_done =
            |&launch: &u64| self.memory.load_u32(self.stamp(launch)).is_ok_and(|n| n == 1);
        (0..self.count).take_while(is_done).count() as u64
    }

    /// Completion time of each launch, in nanoseconds of the GPU's timer.
    pub(super) fn times(&self) -> Result<Vec<u64>> {
        let time = |launch| self.memory.load_u64(self.stamp(launch) + 8).map_err(failed);
        (0..self.count).map(time).collect()
    }
}

/// Layout of one copy of a recording: QMDs, constant banks, stream.
struct Layout {
    loaded: Vec<Loaded>,
    waits: Vec<Wait>,
    chains: Vec<Range<usize>>,
    bytes: u64,
}

const fn aligned(bytes: u64) -> u64 {
    bytes.next_multiple_of(ALIGN)
}

impl Layout {
    fn new(source: Source<'_>, lengths: Vec<usize>) -> Result<Self> {
        let Source { code, launches, .. } = source;
        let loaded =
            launches.iter().map(|l| code.kernel(l.kernel)).collect::<Result<Vec<_>, _>>()?;
        let bank_bytes = |l: &Launch, loaded: &Loaded| {
            aligned(u64::from(loaded.params_offset) + l.params.as_bytes().len() as u64)
        };
        let banks: u64 =
            launches.iter().zip(&loaded).map(|(l, loaded)| bank_bytes(l, loaded)).sum();
        let mut end = 0;
        let chain = |length| {
            let start = end;
            end += length;
            start..end
        };
        let chains: Vec<_> = lengths.into_iter().map(chain).collect();
        // Addresses and payloads do not change the length of a stream.
        let nowhere = tegra::address::GpuAddress::from_words(0, 0).map_err(|e| failed(e.into()))?;
        let release = Release::new(nowhere, Payload::Word(0)).map_err(|e| failed(e.into()))?;
        let first = QmdAddress::from_shifted(0);
        let stream = stream(chains.iter().map(|_| Ok((first, Some(release))))).map_err(failed)?;
        let bytes = QMD_BYTES * launches.len() as u64 + banks + aligned(4 * stream.len() as u64);
        Ok(Self { loaded, waits: waits(launches), chains, bytes })
    }

    /// Writes a copy at `start`; `release` returns the semaphore release behind a chain.
    fn write(
        &self,
        source: Source<'_>,
        memory: &Mailbox,
        start: u64,
        release: impl Fn(usize) -> Result<Option<Release>, tegra::Error>,
    ) -> Result<Entry, tegra::Error> {
        let Source { space, launches, mode, .. } = source;
        let qmd_at = |i: usize| start + QMD_BYTES * i as u64;
        let mut bank_at = qmd_at(launches.len());
        for chain in &self.chains {
            for i in chain.clone() {
                let (launch, loaded) = (&launches[i], &self.loaded[i]);
                let bank = bank0(launch, loaded, space.windows());
                memory.write(bank_at, &bank)?;
                let mut qmd = describe(launch, loaded, self.waits[i], mode.chains);
                qmd.constants[0] = Some(ConstantBank {
                    address: memory.at(bank_at)?,
                    bytes: bank.len() as u32,
                    invalidate: true,
                });
                if i + 1 < chain.end {
                    qmd.dependent = Some(Dependent {
                        qmd: QmdAddress::new(memory.at(qmd_at(i + 1))?)?,
                        action: DependentAction::Schedule,
                        prefetch: true,
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
        }
        let chains = self.chains.iter().enumerate().map(|(number, chain)| {
            Ok((QmdAddress::new(memory.at(qmd_at(chain.start))?)?, release(number)?))
        });
        memory.write_stream(bank_at, &stream(chains)?)
    }
}

/// Stream that submits chains by their first QMD, with the releases behind them.
fn stream(
    chains: impl Iterator<Item = Result<(QmdAddress, Option<Release>), tegra::Error>>,
) -> Result<Vec<u32>, tegra::Error> {
    let mut stream = PushBuffer::<Compute>::new();
    // The CPU may have written mailboxes, and code before the first step.
    let all = CacheInvalidate { instruction: true, data: true, constant: true, wait: true };
    stream.invalidate_shader_caches(all);
    for chain in chains {
        let (first, release) = chain?;
        stream.launch(first);
        if let Some(release) = release {
            stream.release(release);
        }
    }
    Ok(stream.into_words())
}

fn describe(launch: &Launch, loaded: &Loaded, wait: Wait, chains: modes::Chains) -> QmdLaunch {
    let mut qmd = QmdLaunch::new(loaded.program, launch.grid, [launch.kernel.threads(), 1, 1]);
    qmd.shared_bytes = loaded.shared_bytes + launch.shared_bytes;
    qmd.constants[2] =
        loaded.literals.map(|(address, bytes)| ConstantBank { address, bytes, invalidate: false });
    qmd.membar = Membar::System;
    match chains {
        // As in all launches that are known to run on an Orin.
        modes::Chains::Split | modes::Chains::Serial => {
            qmd.invalidate = Invalidate::default();
            qmd.program.barriers = qmd.program.barriers.max(1);
        }
        modes::Chains::Full => {
            qmd.invalidate = Invalidate {
                texture: false,
                data: wait == Wait::Visible,
                instruction: false,
                constant: false,
            };
        }
    }
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
