//! Reads a trace: listing and statistics.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::{self, BufRead as _, BufReader};
use std::path::Path;

use serde::{Serialize, Serializer};

use super::{Event, Record, Work};

/// Error of reading a trace.
#[derive(Debug, thiserror::Error)]
pub enum TraceError {
    /// The file cannot be opened or read.
    #[error("trace {path}: {source}")]
    Io { path: String, source: io::Error },
    /// A line, counted from 1, is not a record.
    #[error("trace {path}, line {line}: {source}")]
    Line { path: String, line: usize, source: serde_json::Error },
}

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>12} ", self.time)?;
        match &self.event {
            Event::Ioctl { node, request, result, detail } => {
                write!(f, "{node} {request} = {result}  {detail}")
            }
            Event::Doorbell { channel, put } => write!(f, "[{channel}] doorbell, GP_PUT {put}"),
            Event::Entry { channel, index, address, words, sync } => {
                write!(f, "[{channel}] entry {index}: {words} words at {address:#x}")?;
                f.write_str(if *sync { ", waits" } else { "" })
            }
            Event::Method { channel, subchannel, text, .. } => {
                write!(f, "[{channel}]   {subchannel}: {text}")
            }
            Event::Release { channel, address, payload, unit } => {
                write!(f, "[{channel}] {unit} releases {address:#x} = {payload:#x}")
            }
            Event::Acquired { channel, address, payload } => {
                write!(f, "[{channel}] acquired {address:#x} for {payload:#x}")
            }
            Event::Copy { channel, source: Some(source), destination, bytes } => {
                write!(f, "[{channel}] copied {bytes} bytes from {source:#x} to {destination:#x}")
            }
            Event::Copy { channel, source: None, destination, bytes } => {
                write!(f, "[{channel}] filled {bytes} bytes at {destination:#x}")
            }
            Event::Upload { channel, destination, bytes } => {
                write!(f, "[{channel}] uploaded {bytes} bytes to {destination:#x}")
            }
            Event::Unmap { va, bytes } => write!(f, "unmapped {bytes} bytes at {va:#x}"),
            Event::Launch { channel, qmd, program, grid, block, .. } => {
                write!(f, "[{channel}] ran {program:#x}, QMD {qmd:#x}, {grid:?} x {block:?}")
            }
            Event::Turn { channel, group, waited } => {
                write!(f, "[{channel}] TSG {group} has its turn")?;
                waited.map_or(Ok(()), |ns| write!(f, ", {ns} ns after its doorbell"))
            }
            Event::SwitchTimeout { channel, waited_ms, limit_ms } => {
                write!(f, "[{channel}] others have waited {waited_ms} of {limit_ms} ms")
            }
            Event::Interrupt { channel } => write!(f, "[{channel}] interrupt"),
            Event::Finding { channel: Some(channel), rule, message } => {
                write!(f, "[{channel}] FINDING {rule}: {message}")
            }
            Event::Finding { channel: None, rule, message } => {
                write!(f, "FINDING {rule}: {message}")
            }
            Event::Injected { what } => write!(f, "injected {what}"),
        }
    }
}

/// Total work of the launches of one program.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Kernel {
    /// Number of successful launches.
    pub launches: u64,
    #[serde(flatten)]
    pub work: Work,
}

/// Statistics of a trace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    pub ioctls: u64,
    /// Number of refused ioctls.
    pub refused: u64,
    pub doorbells: u64,
    pub submits: u64,
    pub methods: u64,
    pub launches: u64,
    pub copies: u64,
    /// Bytes written by copies.
    pub bytes_copied: u64,
    /// Bytes written by uploads.
    pub bytes_uploaded: u64,
    pub unmaps: u64,
    pub releases: u64,
    /// Number of waits that ended.
    pub acquires: u64,
    /// Number of switches of the graphics engine between TSGs.
    pub turns: u64,
    /// Number of times that another client waited 100 ms for the compute engine.
    pub switch_timeouts: u64,
    /// Number of interrupts that wake waiters.
    pub interrupts: u64,
    pub findings: u64,
    /// Number of injected failures.
    pub injected: u64,
    /// Executed kernels, by address of the first instruction.
    #[serde(serialize_with = "kernels")]
    pub kernels: BTreeMap<u64, Kernel>,
}

/// Serialises kernels as a list, most bytes first.
fn kernels<S: Serializer>(map: &BTreeMap<u64, Kernel>, to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Row<'a> {
        program: String,
        #[serde(flatten)]
        kernel: &'a Kernel,
    }
    to.collect_seq(sorted(map).into_iter().map(|(address, kernel)| {
        let program = format!("{address:#x}");
        Row { program, kernel }
    }))
}

fn sorted(map: &BTreeMap<u64, Kernel>) -> Vec<(u64, &Kernel)> {
    let mut kernels: Vec<_> = map.iter().map(|(address, kernel)| (*address, kernel)).collect();
    kernels.sort_by_key(|(_, kernel)| std::cmp::Reverse(kernel.work.bytes()));
    kernels
}

impl Stats {
    /// Counts one record.
    pub fn add(&mut self, record: &Record) {
        match &record.event {
            Event::Ioctl { result, .. } => {
                self.ioctls += 1;
                self.refused += u64::from(*result < 0);
            }
            Event::Doorbell { .. } => self.doorbells += 1,
            Event::Entry { .. } => self.submits += 1,
            Event::Method { .. } => self.methods += 1,
            Event::Launch { program, work, .. } => {
                self.launches += 1;
                if let Some(work) = work {
                    let kernel = self.kernels.entry(*program).or_default();
                    kernel.launches += 1;
                    kernel.work.add(work);
                }
            }
            Event::Copy { bytes, .. } => {
                self.copies += 1;
                self.bytes_copied = self.bytes_copied.saturating_add(*bytes);
            }
            Event::Upload { bytes, .. } => {
                self.bytes_uploaded = self.bytes_uploaded.saturating_add(*bytes);
            }
            Event::Unmap { .. } => self.unmaps += 1,
            Event::Release { .. } => self.releases += 1,
            Event::Acquired { .. } => self.acquires += 1,
            Event::Turn { .. } => self.turns += 1,
            Event::SwitchTimeout { .. } => self.switch_timeouts += 1,
            Event::Interrupt { .. } => self.interrupts += 1,
            Event::Finding { .. } => self.findings += 1,
            Event::Injected { .. } => self.injected += 1,
        }
    }
}

impl fmt::Display for Stats {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rows = [
            ("ioctls", self.ioctls),
            ("ioctls refused", self.refused),
            ("doorbells", self.doorbells),
            ("ring entries", self.submits),
            ("methods", self.methods),
            ("launches", self.launches),
            ("copies and fills", self.copies),
            ("bytes copied", self.bytes_copied),
            ("bytes uploaded", self.bytes_uploaded),
            ("mappings that ended", self.unmaps),
            ("semaphore releases", self.releases),
            ("semaphore acquires", self.acquires),
            ("turns of TSGs", self.turns),
            ("switch timeouts", self.switch_timeouts),
            ("interrupts", self.interrupts),
            ("findings", self.findings),
            ("injected failures", self.injected),
        ];
        rows.iter().try_for_each(|(name, count)| writeln!(f, "{name:20} {count:>14}"))?;
        if self.kernels.is_empty() {
            return Ok(());
        }
        let names =
            ["launches", "warp instr.", "bytes read", "bytes written", "sectors", "L2 misses"];
        write!(f, "\n{:14}", "kernel")?;
        names.iter().try_for_each(|name| write!(f, " {name:>14}"))?;
        writeln!(f, " {:>14}", "bank conflicts")?;
        for (address, Kernel { launches, work }) in sorted(&self.kernels) {
            let counts = [
                *launches,
                work.warp_instructions(),
                work.bytes_loaded,
                work.bytes_stored,
                work.sectors,
                work.l2_misses,
                work.bank_conflicts,
            ];
            write!(f, "{address:#014x}")?;
            counts.iter().try_for_each(|count| write!(f, " {count:>14}"))?;
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Prints every record of the trace at `path` to `out`, one per line.
pub fn decode(path: &Path, out: &mut dyn io::Write) -> Result<(), TraceError> {
    each(path, |record| writeln!(out, "{record}"))
}

/// Counts the records of the trace at `path`.
pub fn stats(path: &Path) -> Result<Stats, TraceError> {
    let mut stats = Stats::default();
    each(path, |record| {
        stats.add(record);
        Ok(())
    })?;
    Ok(stats)
}

fn each(path: &Path, mut take: impl FnMut(&Record) -> io::Result<()>) -> Result<(), TraceError> {
    let failed = |source| TraceError::Io { path: path.display().to_string(), source };
    for (index, line) in BufReader::new(File::open(path).map_err(failed)?).lines().enumerate() {
        let record = serde_json::from_str(&line.map_err(failed)?).map_err(|source| {
            TraceError::Line { path: path.display().to_string(), line: index + 1, source }
        })?;
        take(&record).map_err(failed)?;
    }
    Ok(())
}
