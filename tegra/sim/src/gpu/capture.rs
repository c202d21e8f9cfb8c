//! Writes fault bundles: the memory that a failed launch could reach.

use std::io::Write as _;
use std::path::Path;
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

use errors::printable;
use tegra_bundle::{Bundle, Header, LIMIT, Launch, LocalMemory, Mapping, Range, Simulated};

use super::access::{Core, Failure};
use super::channel::Channel;
use super::qmd::{Chance, Qmd};
use crate::mmu::Mapped;

/// Writer name in bundles.
const WRITER: &str = concat!("tegra-sim ", env!("CARGO_PKG_VERSION"));

/// Number of bundles that this process has written.
static COUNT: AtomicU32 = AtomicU32::new(0);

impl Channel {
    /// Writes a bundle of a failed launch, if enabled. A failure to write must not affect the
    /// simulated GPU.
    pub(crate) fn capture(&self, core: &Core, qmd: u64, chance: Chance, failure: &Failure) {
        let Some(directory) = &core.bundles else { return };
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = directory.join(format!("fault-{}-{number}.bundle", process::id()));
        let text = match self.bundle(core, qmd, chance, failure).write(&path) {
            Ok(()) => format!("fault bundle {}; tegra-sim replay runs it", Path::display(&path)),
            Err(error) => format!("no {error}"),
        };
        let _ = writeln!(std::io::stderr(), "tegra-sim: {}", printable::line(&text));
    }

    fn bundle(&self, core: &Core, qmd: u64, chance: Chance, failure: &Failure) -> Bundle {
        let mut mapped = self.mmu.mappings();
        let mappings = mapped.iter().map(|Mapped { va, piece, flags }| Mapping {
            what: String::new(),
            va: *va,
            bytes: piece.bytes,
            writable: flags.access == crate::mmu::MapAccess::ReadWrite,
            cacheable: flags.cacheable,
            valid: !flags.unmapped_pte && flags.access != crate::mmu::MapAccess::Nothing,
        });
        let mappings = mappings.collect();
        mapped.sort_by_key(|mapped| mapped.piece.bytes);
        let (mut contents, mut left_out, mut memory) = (Vec::new(), Vec::new(), Vec::new());
        let mut room = LIMIT;
        for part in &mapped {
            let written = written(part);
            let bytes = written.iter().fold(0, |sum, range| sum + range.bytes);
            if bytes > room {
                left_out.extend(written);
                continue;
            }
            room -= bytes;
            for range in written {
                let mut data = vec![0; range.bytes as usize];
                match part.piece.buffer.read(part.piece.offset + (range.va - part.va), &mut data) {
                    Ok(()) => {
                        contents.push(range);
                        memory.push(data);
                    }
                    // Pages lent with FROM_VA may be unmapped.
                    Err(_) => left_out.push(range),
                }
            }
        }
        let words = Qmd::peek(&self.mmu, qmd).map_or_else(Vec::new, |qmd| qmd.0.to_vec());
        let launch = Launch { name: String::new(), qmd, words };
        let state = &self.compute;
        let held = state.launch.local_memory;
        let header = Header {
            writer: WRITER.to_owned(),
            at: None,
            device: "a simulated Orin".to_owned(),
            channel: self.id.into(),
            rule: failure.rule.name().to_owned(),
            // Findings that hardware would not notice have no code.
            notifier: (failure.code != 0).then_some(failure.code),
            message: failure.message.clone(),
            stopped_at: Vec::new(),
            stream: self.listing(),
            launches: vec![launch],
            shared_window: state.launch.shared_window,
            local_window: state.launch.local_window,
            local_memory: LocalMemory {
                base: held.base,
                bytes_per_tpc: held.bytes_per_tpc,
                max_sms: held.max_sms,
            },
            mappings,
            contents,
            left_out,
            simulated: Some(Simulated {
                injected: failure.injected,
                seed: chance.seed,
                time: chance.time,
                checks: core.checks.name().to_owned(),
            }),
        };
        Bundle { header, memory }
    }
}

/// Returns the runs of written pages of a mapping; all others are zero.
fn written(part: &Mapped) -> Vec<Range> {
    let Mapped { va, piece, .. } = part;
    let (mut runs, mut at, end) = (Vec::new(), piece.offset, piece.offset + piece.bytes);
    while at < end
        && let Some(run) = piece.buffer.written_after(at)
        && run.start < end
    {
        at = run.end;
        let bytes = run.end.min(end) - run.start;
        runs.push(Range { va: va + (run.start - piece.offset), bytes });
    }
    runs
}
