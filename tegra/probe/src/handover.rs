//! Visibility of writes between CPU and GPU without cache maintenance, for each kind of mapping;
//! and whether a kernel's stores are visible as soon as a later release is.

use std::hint::spin_loop;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use tegra::abi::address_space::MAP_CACHEABLE;
use tegra::buffer::{Attributes, ProbeBuffer, Scratch};
use tegra::pushbuffer::{L2Operation, PushBuffer};
use tegra::queue::Wake;

use super::answer::Answer;
use super::error::Error;
use super::kernel::{ROW_BYTES, Reader};
use super::mapping::CLASSES;
use super::rig::{Rig, TIMEOUT, repeat};

const BYTES: u64 = 64 << 10;
const WORDS: u64 = BYTES / 8;
const ROUNDS: usize = 64;

/// A word unique to its round, position and experiment.
fn pattern(round: usize, word: u64) -> u64 {
    (round as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (word << 16 | 0x5a5a)
}

/// Volatile mappings with each of the CPU's caching attributes.
pub(super) fn classes() -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let mut answer = Answer::new();
    let mut stale = 0;
    for (name, caching) in CLASSES {
        let attributes = Attributes { caching, map_flags: 0 };
        let (to_gpu, to_cpu) = rounds(&mut rig, attributes, None)?;
        answer
            .fact(format!("{name}_stale_for_gpu"), to_gpu)
            .fact(format!("{name}_stale_for_cpu"), to_cpu);
        stale += to_gpu + to_cpu;
    }
    answer.fact("words", WORDS * ROUNDS as u64);
    let text = match stale {
        0 => "both sides see each other's writes, in every class, without maintenance".to_owned(),
        stale => format!("{stale} words were stale"),
    };
    Ok(answer.judged(stale == 0, text))
}

/// A mapping that the GPU's L2 caches, with an L2 invalidation before the GPU reads.
pub(super) fn invalidated() -> Result<Answer, Error> {
    l2(Some(L2Operation::InvalidateSysmem), true)
}

/// The same experiment without the invalidation, which the rules forbid.
pub(super) fn forbidden() -> Result<Answer, Error> {
    l2(None, false)
}

fn l2(operation: Option<L2Operation>, must_be_fresh: bool) -> Result<Answer, Error> {
    let mut rig = Rig::new()?;
    let mut answer = Answer::new();
    let (name, caching) = CLASSES[0];
    let attributes = Attributes { caching, map_flags: MAP_CACHEABLE };
    let (to_gpu, to_cpu) = rounds(&mut rig, attributes, operation)?;
    answer
        .fact(format!("{name}_stale_for_gpu"), to_gpu)
        .fact(format!("{name}_stale_for_cpu"), to_cpu)
        .fact("words", WORDS * ROUNDS as u64);
    let text = format!("{to_gpu} words were stale for the GPU, {to_cpu} for the CPU");
    if must_be_fresh {
        Ok(answer.judged(to_gpu + to_cpu == 0, text))
    } else {
        Ok(answer.measured(text))
    }
}

/// Counts words that were stale for the GPU and for the CPU.
fn rounds(
    rig: &mut Rig,
    attributes: Attributes,
    before: Option<L2Operation>,
) -> Result<(u64, u64), Error> {
    let trial = ProbeBuffer::new(&rig.space, BYTES, attributes)?;
    // A buffer with the attributes that all of orind uses.
    let proven = Attributes { caching: CLASSES[0].1, map_flags: 0 };
    let other = ProbeBuffer::new(&rig.space, BYTES, proven)?;
    let (mut for_gpu, mut for_cpu) = (0, 0);
    repeat(4, ROUNDS, |round| {
        let mut prepare = PushBuffer::new();
        if let Some(operation) = before {
            prepare.l2(operation);
        }
        // The CPU writes; the GPU reads and copies to the other buffer.
        trial.fill(WORDS, |word| pattern(round, word))?;
        if before.is_some() {
            rig.stream(&prepare)?;
        }
        rig.copy(trial.address(), other.address(), BYTES)?;
        for_gpu += other.mismatches(WORDS, |word, found| found == pattern(round, word))?;
        // The CPU's caches have the lines, then the GPU writes them and the CPU reads.
        other.fill(WORDS, |word| !pattern(round, word))?;
        rig.copy(other.address(), trial.address(), BYTES)?;
        for_cpu += trial.mismatches(WORDS, |word, found| found == !pattern(round, word))?;
        Ok(())
    })?;
    Ok((for_gpu, for_cpu))
}

/// Checks that the CPU sees a kernel's stores as soon as it sees a later release.
pub(super) fn release_order() -> Result<Answer, Error> {
    const ROWS: u64 = 1024;
    const MAX: usize = 4000;
    let mut rig = Rig::new()?;
    let bytes = ROWS * ROW_BYTES;
    let matrix = Scratch::new(&rig.space, bytes)?;
    rig.fill(matrix.address(), 0x0101_0101, bytes)?;
    let plain = Reader::new(&rig.space, matrix.address(), bytes)?;
    let releasing = Reader::releasing(&rig.space, matrix.address(), bytes)?;
    let mut answer = Answer::new();
    let mut unseen = [0, 0];
    let kinds = [("timeline", &plain), ("launch", &releasing)];
    for ((name, reader), unseen) in kinds.into_iter().zip(&mut unseen) {
        let compute = rig.compute;
        let rounds = repeat(4, MAX, |_| {
            reader.prepare()?;
            let ticket = rig.context.submit(compute, &[reader.body], Wake::Quiet)?;
            let started = Instant::now();
            let mut is_seen = || match name {
                "launch" => reader.is_released(),
                _ => Ok(rig.context.is_done(ticket)?),
            };
            while !is_seen()? {
                if started.elapsed() > TIMEOUT {
                    return Err(Error::Implausible(format!(
                        "the release of the {name} is not visible"
                    )));
                }
                spin_loop();
            }
            fence(Ordering::Acquire);
            let unwritten = reader.unwritten()?;
            rig.context.wait(ticket, TIMEOUT)?;
            Ok(unwritten)
        })?;
        *unseen = rounds.iter().sum::<u64>();
        answer.fact(format!("{name}_unseen"), *unseen).fact(format!("{name}_rounds"), rounds.len());
    }
    let text = match unseen {
        [0, 0] => {
            "all stores are visible after a release of the host unit and of a launch".to_owned()
        }
        [of_timeline, of_launch] => format!(
            "words not visible yet: {of_timeline} after a release of the host unit, \
             {of_launch} behind one of a launch"
        ),
    };
    // The verdict depends only on the first kind, after which the daemon reads results.
    Ok(answer.judged(unseen[0] == 0, text))
}
