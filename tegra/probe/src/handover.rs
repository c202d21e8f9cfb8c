//! Handing memory over between CPU and GPU without cache maintenance: does each see what the other
//! wrote? Asked for every way in which memory can be mapped. And when: is what a kernel stored there once
//! a release behind it is?

use std::hint::spin_loop;
use std::sync::atomic::{Ordering, fence};
use std::time::Instant;

use tegra::abi::address_space::MAP_CACHEABLE;
use tegra::buffer::{Attributes, Scratch, Trial};
use tegra::pushbuffer::{L2Operation, PushBuffer};
use tegra::queue::Wake;

use super::answer::Answer;
use super::error::Error;
use super::kernel::{ROW_BYTES, Reader};
use super::mapping::CLASSES;
use super::rig::{PATIENCE, Rig, repeat};

const BYTES: u64 = 64 << 10;
const WORDS: u64 = BYTES / 8;
const ROUNDS: usize = 64;

/// A word that no other round, place or experiment has.
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
        0 => "both sides see what the other wrote, in every class, without maintenance".to_owned(),
        stale => format!("{stale} words were stale"),
    };
    Ok(answer.judged(stale == 0, text))
}

/// A mapping that the GPU's L2 may keep lines of, with an L2 invalidation before the GPU reads.
pub(super) fn invalidated() -> Result<Answer, Error> {
    l2(Some(L2Operation::InvalidateSysmem), true)
}

/// The same without: what the rules forbid.
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

/// Words that were stale for the GPU and for the CPU.
fn rounds(
    rig: &mut Rig,
    attributes: Attributes,
    before: Option<L2Operation>,
) -> Result<(u64, u64), Error> {
    let trial = Trial::new(&rig.space, BYTES, attributes)?;
    // Of the class that the whole project stands on.
    let proven = Attributes { caching: CLASSES[0].1, map_flags: 0 };
    let other = Trial::new(&rig.space, BYTES, proven)?;
    let (mut for_gpu, mut for_cpu) = (0, 0);
    repeat(4, ROUNDS, |round| {
        let mut prepare = PushBuffer::new();
        if let Some(operation) = before {
            prepare.l2(operation);
        }
        // The CPU writes, the GPU reads: what it read it leaves in the other buffer.
        trial.fill(WORDS, |word| pattern(round, word))?;
        if before.is_some() {
            rig.stream(&prepare)?;
        }
        rig.copy(trial.address(), other.address(), BYTES)?;
        for_gpu += other.mismatches(WORDS, |word, found| found == pattern(round, word))?;
        // The CPU's caches hold the lines, then the GPU writes them and the CPU reads.
        other.fill(WORDS, |word| !pattern(round, word))?;
        rig.copy(other.address(), trial.address(), BYTES)?;
        for_cpu += trial.mismatches(WORDS, |word, found| found == !pattern(round, word))?;
        Ok(())
    })?;
    Ok((for_gpu, for_cpu))
}

/// Whether the CPU sees what a kernel stored as soon as it sees a release behind it.
pub(super) fn release_order() -> Result<Answer, Error> {
    const ROWS: u64 = 1024;
    const MOST: usize = 4000;
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
        let rounds = repeat(4, MOST, |_| {
            reader.prepare()?;
            let ticket = rig.context.submit(compute, &[reader.body], Wake::Quiet)?;
            let started = Instant::now();
            let mut is_seen = || match name {
                "launch" => reader.is_released(),
                _ => Ok(rig.context.is_done(ticket)?),
            };
            while !is_seen()? {
                if started.elapsed() > PATIENCE {
                    return Err(Error::Implausible(format!(
                        "the release of the {name} is not seen"
                    )));
                }
                spin_loop();
            }
            fence(Ordering::Acquire);
            let unwritten = reader.unwritten()?;
            rig.context.wait(ticket, PATIENCE)?;
            Ok(unwritten)
        })?;
        *unseen = rounds.iter().sum::<u64>();
        answer.fact(format!("{name}_unseen"), *unseen).fact(format!("{name}_rounds"), rounds.len());
    }
    let text = match unseen {
        [0, 0] => "all is there, behind a release of the host unit and of a launch".to_owned(),
        [of_timeline, of_launch] => format!(
            "words that were not there yet: {of_timeline} behind a release of the host unit, \
             {of_launch} behind one of a launch"
        ),
    };
    // Results are read behind the first, of the second only that it came.
    Ok(answer.judged(unseen[0] == 0, text))
}
