//! Evidence of a fault: a bundle with the launches that were in flight and the memory needed to
//! replay them.
//!
//! Memory is read as the GPU has it, not as it was written. Nothing here fails: unreadable ranges
//! are skipped. Small ranges come first, so streams, QMDs, constants and activations are included
//! however large weights and KV cache are. The size limit of a bundle also limits the time for
//! copying.

use std::collections::BTreeMap;

use tegra::abi::channel::ErrorCode;
use tegra::fault::{Fault, Progress};
use tegra::local_memory::LocalMemory;
use tegra::pushbuffer::Listing;
use tegra::qmd::{Launch as QmdLaunch, Qmd};
use tegra::space::{self, AddressSpace, View};
use tegra_bundle::{self as file, Bundle, Header, LIMIT, Mapping, Range};

use super::super::launch::{Launch, Region};
use super::code::Code;
use super::describe;
use super::record::Recording;

/// Writer field of bundles.
const WRITER: &str = concat!("orind ", env!("CARGO_PKG_VERSION"));
/// Most streams to describe: the oldest ones that the host unit has started.
const STREAMS: usize = 4;
const QMD_BYTES: u64 = 256;

/// State of the instance when a fault occurred.
pub(super) struct Scene<'a> {
    pub(super) space: &'a AddressSpace,
    /// The channel's fault.
    pub(super) fault: &'a Fault,
    pub(super) message: String,
    pub(super) recording: &'a Recording,
    pub(super) launches: &'a [Launch],
    /// Unfinished step of the plan.
    pub(super) step: u64,
    pub(super) code: &'a Code,
    /// Address of the threads' local memory.
    pub(super) local: u64,
    /// Address and size of each weight.
    pub(super) tensors: &'a BTreeMap<u64, u64>,
}

/// Collects the bundle of a fault.
pub(super) fn collect(scene: &Scene<'_>) -> Bundle {
    let Scene { space, fault, recording, launches, step, .. } = scene;
    let mut memory = Memory::new(space);
    let mut wanted = Vec::new();
    let mut message = scene.message.clone();
    let under_way = recording.under_way(*step).filter_map(|index| {
        let launch = launches.get(index)?;
        let qmd = recording.qmd(*step, index);
        let name = format!("{} ({})", launch.label, launch.kernel.symbol());
        let words = memory.words(Range { va: qmd, bytes: QMD_BYTES });
        wanted.push(Range { va: qmd, bytes: QMD_BYTES });
        wanted.extend(named_by(scene, launch));
        match decoded(&words) {
            Ok(launch) => wanted.extend(bound(&launch)),
            Err(error) => message += &format!("; {name}, QMD {qmd:#x}: {error}"),
        }
        Some(file::Launch { name, qmd, words })
    });
    let under_way = under_way.collect();
    let mut stream = Vec::new();
    let progress = fault.queues.iter().find(|queue| queue.is_busy());
    for entry in progress.iter().flat_map(|queue| &queue.streams).take(STREAMS) {
        let range = Range { va: entry.address().get(), bytes: 4 * u64::from(entry.words()) };
        wanted.push(range);
        stream.push(format!("stream of {} words at {}:", entry.words(), entry.address()));
        stream.extend(Listing(&memory.words(range)).to_string().lines().map(str::to_owned));
    }
    stream.extend(progress.map(place));
    let windows = space.windows();
    let header = Header {
        writer: WRITER.to_owned(),
        at: None,
        device: describe(space.orin()),
        channel: progress.map_or(0, |queue| queue.channel),
        rule: rule(fault.code).to_owned(),
        notifier: fault.code.map(ErrorCode::number),
        message,
        stopped_at: fault.sms.iter().map(|sm| sm.pc).collect(),
        stream,
        launches: under_way,
        shared_window: windows.shared().get(),
        local_window: windows.local().get(),
        local_memory: file::LocalMemory {
            base: scene.local,
            bytes_per_tpc: scene.code.local.per_tpc,
            max_sms: LocalMemory::MAX_SMS,
        },
        mappings: memory.mappings.iter().map(told).collect(),
        ..Header::default()
    };
    memory.take(wanted, header)
}

/// Name of the rule that corresponds to the driver's error code.
const fn rule(code: Option<ErrorCode>) -> &'static str {
    match code {
        None => "hang",
        Some(ErrorCode::MmuFault) => "mmu-fault",
        Some(ErrorCode::GrException) => "gr-exception",
        Some(ErrorCode::IdleTimeout) => "channel-timeout",
        Some(_) => "channel-error",
    }
}

fn told(mapping: &space::Mapping) -> Mapping {
    Mapping {
        what: mapping.what().to_owned(),
        va: mapping.address.get(),
        bytes: mapping.bytes,
        writable: mapping.writable,
        cacheable: mapping.cacheable,
        valid: true,
    }
}

/// Progress of the queue and its host unit.
fn place(progress: &Progress) -> String {
    let Progress { completed, submitted, at, .. } = progress;
    let at = match (at, progress.words()) {
        (Some(at), Some(words)) => format!(", the host unit at {at}, {words} words on in the last"),
        (Some(at), None) => format!(", the host unit at {at}"),
        (None, _) => String::new(),
    };
    format!("the queue was at {completed} of {submitted}{at}")
}

/// Decodes a QMD in memory, or describes how it differs from the recorded one.
fn decoded(words: &[u32]) -> Result<QmdLaunch, String> {
    let words = <[u32; 64]>::try_from(words).map_err(|_| "it cannot be read".to_owned())?;
    QmdLaunch::decode(&Qmd::from_words(words)).map_err(|error| error.to_string())
}

/// Constant banks of a launch.
fn bound(launch: &QmdLaunch) -> impl Iterator<Item = Range> {
    let banks = launch.constants.into_iter().flatten();
    banks.map(|bank| Range { va: bank.address.get(), bytes: bank.bytes.into() })
}

/// Memory that a launch executes, reads and writes, and the weights in its parameters.
fn named_by<'a>(scene: &'a Scene<'_>, launch: &'a Launch) -> impl Iterator<Item = Range> + 'a {
    let code = scene.code.kernel(launch.kernel).ok().map(|loaded| Range {
        va: loaded.program.address.get(),
        bytes: loaded.program.code_bytes.into(),
    });
    let buffers = launch.reads.iter().chain(&launch.writes);
    let buffers = buffers.map(|&Region { address: va, bytes }| Range { va, bytes });
    let words = launch.params.as_bytes().as_chunks::<8>().0.iter();
    let weights = words.filter_map(|word| {
        let address = u64::from_le_bytes(*word);
        let (&va, &bytes) = scene.tensors.range(..=address).next_back()?;
        (address - va < bytes).then_some(Range { va, bytes })
    });
    code.into_iter().chain(buffers).chain(weights)
}

/// CPU view of the address space.
struct Memory {
    mappings: Vec<space::Mapping>,
    /// Views by address; `None` if unreadable.
    views: BTreeMap<u64, Option<View>>,
}

impl Memory {
    fn new(space: &AddressSpace) -> Self {
        Self { mappings: space.mappings(), views: BTreeMap::new() }
    }

    /// Reads a range; `None` unless it is inside one mapping.
    fn read(&mut self, Range { va, bytes }: Range) -> Option<Vec<u8>> {
        let mapping = self.mappings.iter().find(|mapping| {
            va.checked_sub(mapping.address.get()).is_some_and(|offset| offset < mapping.bytes)
        })?;
        let start = mapping.address.get();
        if bytes > mapping.bytes - (va - start) {
            return None;
        }
        let view = self.views.entry(start).or_insert_with(|| mapping.view().ok()).as_ref()?;
        let mut found = Vec::new();
        let length = usize::try_from(bytes).ok()?;
        found.try_reserve_exact(length).ok()?;
        found.resize(length, 0);
        view.read(va - start, &mut found).ok()?;
        Some(found)
    }

    /// Reads a range as words; empty if unreadable.
    fn words(&mut self, range: Range) -> Vec<u32> {
        let bytes = self.read(range).unwrap_or_default();
        bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
    }

    /// Bundle of the ranges that fit, small ones first.
    fn take(&mut self, mut wanted: Vec<Range>, mut header: Header) -> Bundle {
        wanted.retain(|range| range.bytes > 0);
        wanted.sort_by_key(|range| (range.bytes, range.va));
        wanted.dedup();
        let (mut room, mut memory) = (LIMIT, Vec::new());
        for range in wanted {
            let fits = range.bytes <= room;
            match fits.then(|| self.read(range)).flatten() {
                Some(bytes) => {
                    room -= range.bytes;
                    header.contents.push(range);
                    memory.push(bytes);
                }
                None => header.left_out.push(range),
            }
        }
        Bundle { header, memory }
    }
}

#[cfg(test)]
mod tests {
    use tegra::address::GpuAddress;
    use tegra::qmd::Program;

    use super::*;

    #[test]
    fn an_overwritten_qmd_is_reported() {
        let address = GpuAddress::new(0x10_0000).unwrap();
        let program =
            Program { address, code_bytes: 256, registers: 32, barriers: 1, local_bytes: 0 };
        let launch = QmdLaunch::new(program, [4, 1, 1], [32, 1, 1]);
        let mut words = launch.encode().unwrap().words().to_vec();
        assert_eq!(decoded(&words), Ok(launch));
        words[3] ^= 1;
        assert!(decoded(&words).unwrap_err().contains("word 3 is 0x00000001"), "{words:x?}");
        words.pop();
        assert_eq!(decoded(&words), Err("it cannot be read".to_owned()));
    }
}
