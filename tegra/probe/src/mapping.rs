//! Mappings: flags that the driver accepts, and bandwidth of copy engine, kernels and CPU through
//! each kind of mapping.

use tegra::abi::address_space as abi;
use tegra::abi::nvmap::Caching;
use tegra::buffer::{Attributes, ProbeBuffer, Scratch};
use tegra::context::Options;
use tegra::space::L2;
use tegra_profile::facts;

use super::answer::{Answer, Point, gb_per_s, line, median, timed};
use super::bring_up::outcome;
use super::error::Error;
use super::kernel::{ROW_BYTES, Reader};
use super::limits;
use super::raw::{self, Nodes};
use super::rig::{Rig, growing};

const START: u64 = 0x20_0000;
const END: u64 = 0xff_0000_0000;
/// Flags of the uapi header that this project does not use.
const MAP_UNMAPPED_PTE: u32 = 1 << 5;
const MAP_L3_ALLOC: u32 = 1 << 7;
const MAP_SYSTEM_COHERENT: u32 = 1 << 9;
const ROUNDS: usize = 3;
const LARGEST: u64 = 256 << 20;
const FILLING: u32 = 0x0101_0101;

pub(super) fn flags() -> Result<Answer, Error> {
    let nodes = Nodes::open()?;
    let space = nodes.space(0, START, END).map_err(Error::refused("an address space"))?;
    let memory = nodes.memory(1 << 16).map_err(Error::refused("memory"))?;
    let cases = [
        ("none", 0, true),
        ("cacheable", abi::MAP_CACHEABLE, true),
        ("unmapped_pte", MAP_UNMAPPED_PTE, true),
        ("l3_alloc", MAP_L3_ALLOC, true),
        ("system_coherent", MAP_SYSTEM_COHERENT, true),
        ("read_only", abi::MAP_ACCESS_READ_ONLY, true),
        ("read_write", abi::MAP_ACCESS_READ_WRITE, true),
        ("access_3", abi::MAP_ACCESS_READ_ONLY | abi::MAP_ACCESS_READ_WRITE, false),
        ("fixed_without_area", abi::MAP_FIXED_OFFSET, false),
        ("unknown", 1 << 20, false),
    ];
    let mut answer = Answer::new();
    let mut other = Vec::new();
    for (name, flags, taken) in cases {
        let result = raw::map(&space, &memory, flags).map(drop);
        if result.is_ok() != taken {
            other.push(name);
        }
        answer.fact(name, outcome(result));
    }
    let text = if other.is_empty() {
        "every flag is accepted or refused like in the driver's sources".to_owned()
    } else {
        format!("answered differently from the driver's sources: {}", other.join(", "))
    };
    Ok(answer.judged(other.is_empty(), text))
}

pub(super) fn copies() -> Result<Answer, Error> {
    let mut answer = Answer::new();
    let mut found = Vec::new();
    for (name, l2) in [("volatile", L2::Volatile), ("cacheable", L2::Cached)] {
        let mut rig = Rig::with(l2, Options::default())?;
        let times = growing(1 << 16, LARGEST, |bytes| {
            let (from, to) = (Scratch::new(&rig.space, bytes)?, Scratch::new(&rig.space, bytes)?);
            rig.fill(from.address(), FILLING, bytes)?;
            let mut stream = tegra::pushbuffer::PushBuffer::new();
            tegra::copy::copy(&mut stream, from.address(), to.address(), bytes)?;
            let mailbox = tegra::buffer::Mailbox::new(&rig.space, 4096)?;
            let body = mailbox.write_stream(0, stream.words())?;
            let empty = rig.duration(rig.copy, &[])?;
            let times = (0..ROUNDS).map(|_| rig.duration(rig.copy, &[body]));
            Ok((median(times.collect::<Result<_, _>>()?) - empty).max(0.0))
        })?;
        found.push(rate(&mut answer, name, &times));
        if l2 == L2::Volatile {
            let (first, last) = (times[0], times[times.len() - 1]);
            let point = |(bytes, ns): (u64, f64)| Point { x: bytes as f64, y: ns };
            let start = line(point(first), point(last)).start;
            answer.fact(facts::COPY_START.name, start.max(0.0));
        }
    }
    Ok(answer.measured(rates(found[0], found[1])))
}

/// Adds the facts of a sweep over sizes: the rate between the smallest and the largest, which
/// excludes the fixed cost. `None` if time does not grow with the size, as on a clock that does not
/// model it.
fn rate(answer: &mut Answer, name: &str, times: &[(u64, f64)]) -> Option<f64> {
    let (first, last) = (times.first()?, times.last()?);
    answer.fact(format!("{name}_most_bytes"), last.0);
    let sizes = times.iter().map(|(bytes, _)| *bytes as f64).collect();
    answer.samples.insert(format!("{name}_size_bytes"), sizes);
    answer.samples.insert(format!("{name}_size_ns"), times.iter().map(|(_, ns)| *ns).collect());
    let rate = gb_per_s(last.0 - first.0, last.1 - first.1);
    (rate > 0.0).then(|| {
        answer.fact(format!("{name}_gb_per_s"), rate);
        rate
    })
}

fn rates(volatile: Option<f64>, cacheable: Option<f64>) -> String {
    match (volatile, cacheable) {
        (Some(volatile), Some(cacheable)) => {
            format!("{volatile:.1} GB/s, through cacheable mappings {cacheable:.1} GB/s")
        }
        _ => "the time does not grow with the size".into(),
    }
}

/// A kernel that streams a matrix.
pub(super) fn reads() -> Result<Answer, Error> {
    let mut answer = Answer::new();
    let mut found = Vec::new();
    for (name, l2) in [("volatile", L2::Volatile), ("cacheable", L2::Cached)] {
        let mut rig = Rig::with(l2, Options::default())?;
        let times = growing(64 * ROW_BYTES, LARGEST, |bytes| {
            let matrix = Scratch::new(&rig.space, bytes)?;
            rig.fill(matrix.address(), FILLING, bytes)?;
            let reader = Reader::new(&rig.space, matrix.address(), bytes)?;
            let times = (0..ROUNDS).map(|_| rig.duration(rig.compute, &[reader.body]));
            Ok(median(times.collect::<Result<_, _>>()?))
        })?;
        found.push(rate(&mut answer, name, &times));
    }
    Ok(answer.measured(rates(found[0], found[1])))
}

/// The CPU through its own mappings.
pub(super) fn cpu() -> Result<Answer, Error> {
    const BYTES: u64 = 4 << 20;
    let rig = Rig::new()?;
    let mut answer = Answer::new();
    let mut text = Vec::new();
    for (name, caching) in CLASSES {
        let buffer = ProbeBuffer::new(&rig.space, BYTES, Attributes { caching, map_flags: 0 })?;
        let words = BYTES / 8;
        buffer.fill(words, |word| word)?;
        let ((), write) = timed(|| buffer.fill(words, |word| !word))?;
        let (wrong, read) = timed(|| buffer.mismatches(words, |word, found| found == !word))?;
        if wrong > 0 {
            return Err(Error::Implausible(format!(
                "{name}: {wrong} words are not what was stored"
            )));
        }
        let (write, read) = (gb_per_s(BYTES, write), gb_per_s(BYTES, read));
        answer
            .fact(format!("{name}_write_cpu_gb_per_s"), write)
            .fact(format!("{name}_read_cpu_gb_per_s"), read);
        text.push(format!("{} {write:.1} and {read:.1}", name.replace('_', "-")));
    }
    Ok(answer.measured(format!("writes and reads in GB/s: {}", text.join(", "))))
}

/// The CPU's mappings by name.
pub(super) const CLASSES: [(&str, Caching); 4] = [
    ("cached", Caching::InnerCacheable),
    ("outer_cached", Caching::Cacheable),
    ("write_combined", Caching::WriteCombined),
    ("uncached", Caching::Uncached),
];

/// Imports pages of this process as a buffer, up to the size of model files if memory allows.
pub(super) fn import() -> Result<Answer, Error> {
    const SIZES: [u64; 4] = [64 << 20, 256 << 20, 1 << 30, 4 << 30];
    let nodes = Nodes::open()?;
    let space = nodes.space(0, START, END).map_err(Error::refused("an address space"))?;
    // Leaves the rest to other programs.
    let room = limits::available().unwrap_or(0) / 8;
    let mut answer = Answer::new();
    let mut per_page = Vec::new();
    for bytes in SIZES.into_iter().filter(|bytes| *bytes == SIZES[0] || *bytes <= room) {
        let pages = usize::try_from(bytes).map_err(|_| nix::errno::Errno::ENOMEM);
        let pages = pages.and_then(raw::pages).map_err(Error::refused("pages to import"))?;
        let (memory, pin) = match timed(|| nodes.import(&pages)) {
            Err(errno) if !per_page.is_empty() => {
                answer.fact("refused", format!("{errno}"));
                break;
            }
            made => made.map_err(Error::refused("FROM_VA of 64 MiB"))?,
        };
        let (at, map) =
            timed(|| raw::map(&space, &memory, 0)).map_err(Error::refused("mapping it"))?;
        let ((), release) = timed(|| -> Result<(), Error> {
            drop(memory);
            Ok(())
        })?;
        per_page.push(pin / (bytes / 4096) as f64);
        let mib = bytes >> 20;
        answer
            .fact("most_bytes", bytes)
            .fact(format!("pin_{mib}m_cpu_ns"), pin)
            .fact(format!("map_{mib}m_cpu_ns"), map)
            .fact(format!("release_{mib}m_cpu_ns"), release);
        if bytes == SIZES[0] {
            answer.fact("at_addr", at);
        }
    }
    let [first, .., last] = per_page[..] else {
        let each = per_page.first().copied().unwrap_or(0.0);
        return Ok(answer.measured(format!("64 MiB can be imported, {each:.0} ns a page")));
    };
    let most = SIZES[per_page.len() - 1] >> 20;
    let text = format!("{first:.0} ns a page of 64 MiB, {last:.0} ns a page of {most} MiB");
    Ok(answer.measured(text))
}
