//! Sharing the GPU while a chain of launches runs, which cannot be preempted: how long others wait,
//! and the driver's reaction.
//!
//! Groups of one process stand for processes: the host unit schedules groups, not processes.

use std::time::{Duration, Instant};

use tegra::buffer::Scratch;
use tegra::context::Options;
use tegra::orin::Orin;
use tegra::queue::Wake;
use tegra::space::{AddressSpace, L2};
use tegra_first_light::launch::Link;
use tegra_profile::facts;
use tegra_profile::unit::time;

use super::answer::{Answer, timed};
use super::bring_up::outcome;
use super::error::Error;
use super::kernel::{EmptyKernel, ROW_BYTES, Reader};
use super::launches::KINDS;
use super::limits;
use super::raw::{self, Nodes, Parts};
use super::rig::{Rig, TIMEOUT};

const START: u64 = 0x20_0000;
const END: u64 = 0xff_0000_0000;
/// The driver's unit for counting blocked switches, in nanoseconds.
const PERIOD: f64 = 100e6;

/// One group that occupies the GPU and one that waits.
struct Contenders {
    space: AddressSpace,
    waiting: Rig,
    empty: EmptyKernel,
    matrix: Scratch,
    /// Bytes that a launch of a chain reads, and its duration by the GPU's timer.
    bytes: u64,
    launch: f64,
}

impl Contenders {
    /// Launches of about `each` nanoseconds; shorter if that takes too much memory, or too much CPU
    /// time, as on a simulated GPU.
    fn new(each: f64) -> Result<Self, Error> {
        const MAX_BYTES: u64 = 1 << 30;
        const MAX_CPU: f64 = 20e6;
        let space = AddressSpace::new(&Orin::open()?, L2::Volatile)?;
        let first = 64 * ROW_BYTES;
        let room = limits::available().unwrap_or(0) / 8;
        let most = room.clamp(first, MAX_BYTES) / ROW_BYTES * ROW_BYTES;
        let matrix = Scratch::new(&space, most)?;
        // Never sleeps: the spin time is the whole timeout.
        let spinning = Options { spin: TIMEOUT, ..Options::default() };
        let mut waiting = Rig::within(space.clone(), spinning)?;
        let empty = EmptyKernel::new(&space, 1, Link::Stream)?;
        let (mut bytes, mut launch, mut cpu) = (first, 0.0, 0.0);
        let (mut next, mut filled) = (first, 0);
        while next <= most && launch < each && cpu < MAX_CPU {
            bytes = next;
            waiting.fill(matrix.address().offset(filled)?, 0x0101_0101, bytes - filled)?;
            filled = bytes;
            let reader = Reader::new(&space, matrix.address(), bytes)?;
            let compute = waiting.compute;
            (launch, cpu) = timed(|| waiting.duration(compute, &[reader.body]))?;
            next *= 2;
        }
        Ok(Self { space, waiting, empty, matrix, bytes, launch })
    }

    fn chain(&self, count: usize) -> Result<Reader, Error> {
        Reader::chain(&self.space, self.matrix.address(), self.bytes, count)
    }

    /// Length and recording of a chain that takes `wanted` nanoseconds; shorter if that takes too
    /// much CPU time, as on a simulated GPU.
    fn as_long_as(&mut self, wanted: f64) -> Result<(usize, Reader), Error> {
        const MAX_LAUNCHES: usize = 1 << 14;
        const MAX_CPU: f64 = 2e9;
        let (compute, mut count) = (self.waiting.compute, 1);
        loop {
            let chain = self.chain(count)?;
            let (ns, cpu) = timed(|| self.waiting.duration(compute, &[chain.body]))?;
            if ns >= wanted {
                count = (count as f64 * wanted / ns).ceil() as usize;
                return Ok((count, self.chain(count)?));
            }
            if count >= MAX_LAUNCHES || cpu >= MAX_CPU {
                return Ok((count, chain));
            }
            count *= 2;
        }
    }

    /// Runs `chain` in `other`, and a concurrent launch that waits for its turn.
    fn round(&mut self, other: &mut Rig, chain: &Reader) -> Result<Round, Error> {
        let before = self.waiting.context.gpu_time().unwrap_or_default();
        let (queue, context) = (other.compute, &mut other.context);
        let ticket = context.submit_timed(queue, &[chain.body], Wake::Quiet)?;
        let compute = self.waiting.compute;
        let ended = self.waiting.run(compute, &[self.empty.body])?.finished;
        let wait = ended.saturating_sub(before) as f64;
        match context.wait(ticket, TIMEOUT) {
            // The channel may have completed the chain and have been torn down afterwards.
            Ok(()) if context.channel(queue)?.is_some_and(|c| c.is_dead().unwrap_or(true)) => {
                Ok(Round::Killed { wait, code: "reported by GET_TIMEDOUT".into() })
            }
            Ok(()) => {
                let timing = other.finish(ticket)?;
                let chain = timing.finished.saturating_sub(timing.started) as f64;
                Ok(Round::Passed { wait, chain })
            }
            Err(tegra::Error::Fault(fault)) => {
                let code = fault.code.map_or("without a code".into(), |code| code.to_string());
                Ok(Round::Killed { wait, code })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// End of a chain, and the other group's wait, in nanoseconds of the GPU's timer.
enum Round {
    Passed {
        wait: f64,
        chain: f64,
    },
    /// The driver tore the channel down.
    Killed {
        wait: f64,
        code: String,
    },
}

/// A chain as long as a step of a large model, under each kind of preemption, and the same launches
/// in chains of 8.
pub(super) fn preemption() -> Result<Answer, Error> {
    const LAUNCHES: usize = 64;
    const SPLIT: usize = 8;
    const EACH: f64 = 10e6;
    let mut pair = Contenders::new(EACH)?;
    let mut answer = Answer::new();
    answer
        .fact("launches", LAUNCHES)
        .fact("launch_most_bytes", pair.bytes)
        .fact("launch_ns", pair.launch);
    let cases = KINDS.map(|(name, preemption)| (name, preemption, LAUNCHES));
    let (_, by_default, _) = cases[0];
    let mut text = Vec::new();
    let mut killed = Vec::new();
    for (name, preemption, count) in cases.into_iter().chain([("split", by_default, SPLIT)]) {
        let options = Options { preemption, ..Options::default() };
        let mut other = Rig::within(pair.space.clone(), options)?;
        let chain = pair.chain(count)?;
        let wait = match pair.round(&mut other, &chain)? {
            Round::Passed { wait, chain } => {
                answer.fact(format!("{name}_chain_ns"), chain);
                wait
            }
            Round::Killed { wait, code } => {
                killed.push(format!("{name}: {code}"));
                wait
            }
        };
        answer.fact(format!("{name}_wait_ns"), wait);
        text.push(format!("{name} {}", time(wait)));
    }
    answer.fact("killed", killed.join("; "));
    let waits = format!("a launch of another group waits {}", text.join(", "));
    match killed.is_empty() {
        true => Ok(answer.judged(true, format!("no channel is torn down; {waits}"))),
        false => Ok(answer.judged(false, format!("torn down: {}; {waits}", killed.join("; ")))),
    }
}

/// Many switches that are blocked for longer than the driver's period, until the channel dies or
/// the maximum is reached: with the driver's limit and with a larger one.
pub(super) fn accumulation() -> Result<Answer, Error> {
    const SWITCHES: usize = 40;
    const BLOCKED: f64 = 1.5 * PERIOD;
    const TIME: Duration = Duration::from_secs(60);
    /// The driver's limit, and one that the switches never reach.
    const LIMITS: [(&str, Duration); 2] =
        [("driver", Duration::from_secs(3)), ("larger", Duration::from_secs(60))];
    let mut pair = Contenders::new(10e6)?;
    let (count, chain) = pair.as_long_as(BLOCKED)?;
    let mut answer = Answer::new();
    answer.fact("chain_launches", count);
    let mut text = Vec::new();
    let mut as_read = true;
    for (name, limit) in LIMITS {
        let mut other = Rig::within(pair.space.clone(), Options::default())?;
        if let Some(channel) = other.context.channel(other.compute)? {
            channel.set_timeout(limit)?;
        }
        let started = Instant::now();
        let (mut blocked, mut ended) = (0usize, None);
        while blocked < SWITCHES && started.elapsed() < TIME {
            match pair.round(&mut other, &chain)? {
                Round::Passed { chain, .. } if chain < PERIOD => {
                    let short =
                        format!("a chain takes {}: too short to block a switch", time(chain));
                    return Ok(answer.measured(short));
                }
                Round::Passed { wait, .. } => blocked += usize::from(wait >= PERIOD),
                Round::Killed { code, .. } => {
                    ended = Some(code);
                    break;
                }
            }
        }
        answer.fact(format!("{name}_switches"), blocked);
        answer.fact(format!("{name}_notice"), ended.clone().unwrap_or_else(|| "none".into()));
        as_read &= ended.is_some() == (name == "driver");
        text.push(match ended {
            Some(code) => format!("after {blocked} blocked switches with the {name} limit: {code}"),
            None => format!("{blocked} blocked switches with the {name} limit pass"),
        });
    }
    Ok(answer.judged(as_read, text.join("; ")))
}

/// Checks that a channel accepts a limit other than the driver's. The channel never gets an engine.
pub(super) fn limit() -> Result<Answer, Error> {
    let nodes = Nodes::open()?;
    let parts = Parts::new(&nodes, START, END).map_err(Error::refused("a subcontext"))?;
    let channel = parts.bound(false).map_err(Error::refused("a channel"))?;
    let result = raw::set_timeout(&channel, 10_000);
    let mut answer = Answer::new();
    answer.fact(facts::SWITCH_TIMEOUT.name, result.is_ok());
    answer.fact("answer", outcome(result));
    let text = match result {
        Ok(()) => "SET_TIMEOUT is accepted".to_owned(),
        Err(errno) => format!("SET_TIMEOUT is refused: {errno}"),
    };
    Ok(answer.judged(result.is_ok(), text))
}
