//! Turns of TSGs on the graphics engine: order, duration, and what they leave unchanged.

use std::sync::Arc;

use parking_lot::Mutex;
use tegra::class::qmd::DependentAction;
use tegra::qmd::Dependent;
use tegra_sim::finding::Rule;
use tegra_sim::finding::SmFault;
use tegra_sim::gpu::{ComputeEngine, Gpu, GpuMemory, Latency, Launch, Preemption, Random, TICK};
use tegra_sim::trace::{Event, Record, Work};

use super::rig::{Buffer, Channel, Kernel, Rig, compute_stream, release};

const US: u64 = 1000;
/// A turn, unless a group asks for another.
const TIMESLICE: u64 = 1024 * US;
/// QMDs of a bed.
const QMDS: u64 = 64;
/// Allowance for methods, releases and a switch.
const REST: u64 = 100 * US;

/// Doorbells rung during a launch: launch counted from 0, channel.
type Plan = Arc<Mutex<Vec<(usize, u16)>>>;

/// An engine whose launches take so long, in which the program rings as planned: the host's order is the GPU's.
struct Engine {
    gpu: Arc<Gpu>,
    takes: u64,
    done: usize,
    plan: Plan,
}

impl ComputeEngine for Engine {
    fn launch(&mut self, _launch: &Launch, _memory: &dyn GpuMemory) -> Result<Work, SmFault> {
        for (at, channel) in &*self.plan.lock() {
            if *at == self.done {
                self.gpu.doorbell((*channel).into());
            }
        }
        self.done += 1;
        let bytes = self.takes / TICK * Latency::default().kernel_bytes;
        Ok(Work { bytes_touched: bytes, ..Work::default() })
    }
}

struct Bed {
    rig: Rig,
    kernel: Kernel,
    slots: Buffer,
    plan: Plan,
}

impl Bed {
    /// Launches take so many nanoseconds.
    fn new(takes: u64) -> Self {
        Self::on(Rig::new(1), takes)
    }

    fn on(rig: Rig, takes: u64) -> Self {
        let plan = Plan::default();
        let (gpu, of_engine) = (Arc::clone(&rig.gpu), Arc::clone(&plan));
        rig.gpu.set_compute_engine(Box::new(Engine { gpu, takes, done: 0, plan: of_engine }));
        let mut kernel = Kernel::new(&rig);
        kernel.qmd = rig.buffer(QMDS * 256);
        let slots = rig.buffer(4096);
        Self { rig, kernel, slots, plan }
    }

    /// Puts chains of launches on a channel's ring, each with a wait for idle and a release behind it.
    fn queue(&self, channel: &mut Channel, chains: u64, length: u64) {
        let mut stream = compute_stream();
        // All chains end with the last QMD.
        let first = QMDS - length;
        for place in first..QMDS {
            let mut launch = self.kernel.launch;
            launch.dependent = (place + 1 < QMDS).then(|| Dependent {
                qmd: self.kernel.at(place + 1),
                action: DependentAction::Schedule,
                prefetch: true,
            });
            self.kernel.store(place, &launch);
        }
        let slot = self.slots.at(u64::from(channel.id % 128) * 16);
        for chain in 1..=chains {
            stream.launch(self.kernel.at(first)).release(release(slot, chain));
        }
        let stream = self.rig.stream(stream.words());
        channel.push(stream.entry.encode());
    }

    fn done(&self, channel: &Channel) -> u64 {
        self.slots.long(u64::from(channel.id % 128) * 16)
    }

    /// Rings the first channel, and the others when so many launches have begun; what happened until rest.
    fn run(&self, first: &Channel, others: &[(usize, &Channel)]) -> Vec<Record> {
        let others = others.iter().map(|(at, channel)| (*at, channel.id));
        *self.plan.lock() = others.collect();
        first.ring();
        self.rig.assert_clean();
        self.rig.trace.take()
    }
}

/// Launches in order: channel, and number in a row.
fn rows(records: &[Record]) -> Vec<(u16, usize)> {
    let mut rows: Vec<(u16, usize)> = Vec::new();
    for record in records {
        if let Event::Launch { channel, .. } = record.event {
            match rows.last_mut() {
                Some((last, count)) if *last == channel => *count += 1,
                _ => rows.push((channel, 1)),
            }
        }
    }
    rows
}

/// Time from a channel's doorbell to its first turn.
fn waited(records: &[Record], of: &Channel) -> u64 {
    let waits = records.iter().find_map(|record| match record.event {
        Event::Turn { channel, waited, .. } if channel == of.id => waited,
        _ => None,
    });
    waits.unwrap()
}

#[test]
fn a_tsg_starts_after_the_previous_timeslice_and_launch() {
    const LAUNCH: u64 = 300 * US;
    for (timeslice, before) in [(1024, 4), (3000, 10), (6000, 20)] {
        let bed = Bed::new(LAUNCH);
        let (mut long, mut short) = (bed.rig.channel(), bed.rig.channel());
        bed.rig.gpu.set_timeslice(long.tsg, timeslice);
        bed.queue(&mut long, 30, 1);
        bed.queue(&mut short, 1, 1);
        let records = bed.run(&long, &[(1, &short)]);
        // Work in progress at the end of the timeslice completes, and nothing follows it.
        let expected = [(long.id, before), (short.id, 1), (long.id, 30 - before)];
        assert_eq!(rows(&records), expected, "{timeslice} us");
        let (waited, bound) = (waited(&records, &short), u64::from(timeslice) * US + LAUNCH + REST);
        assert!(waited <= bound, "{timeslice} us: {waited} ns, at most {bound}");
        assert!(waited + LAUNCH + REST >= u64::from(timeslice) * US, "{timeslice} us: {waited} ns");
        assert_eq!((bed.done(&long), bed.done(&short)), (30, 1));
    }
}

#[test]
fn a_qmd_chain_is_switched_out_only_if_the_tsg_allows_it() {
    const LAUNCH: u64 = 300 * US;
    for (preemption, before) in [(Preemption::Wfi, 16), (Preemption::Cta, 4), (Preemption::Cilp, 4)]
    {
        let bed = Bed::new(LAUNCH);
        let (mut long, mut short) = (bed.rig.channel(), bed.rig.channel());
        bed.rig.gpu.set_preemption(long.tsg, preemption);
        bed.queue(&mut long, 2, 16);
        bed.queue(&mut short, 1, 1);
        let records = bed.run(&long, &[(1, &short)]);
        let expected = [(long.id, before), (short.id, 1), (long.id, 32 - before)];
        assert_eq!(rows(&records), expected, "{preemption:?}");
        assert_eq!((bed.done(&long), bed.done(&short)), (2, 1));
    }
}

#[test]
fn an_idle_tsg_gives_up_its_turn() {
    const LAUNCH: u64 = 50 * US;
    let bed = Bed::new(LAUNCH);
    let (mut long, mut short) = (bed.rig.channel(), bed.rig.channel());
    bed.queue(&mut long, 100, 1);
    bed.queue(&mut short, 3, 1);
    let records = bed.run(&long, &[(1, &short)]);
    let rows = rows(&records);
    assert_eq!(rows[1], (short.id, 3));
    assert_eq!(rows[2].1 + rows[0].1, 100, "it is not interrupted any more: {rows:?}");
}

#[test]
fn a_higher_interleave_level_runs_between_any_two_of_the_lower_one() {
    const LAUNCH: u64 = 500 * US;
    let bed = Bed::new(LAUNCH);
    let mut channels: Vec<Channel> = (0..3).map(|_| bed.rig.channel()).collect();
    let mut often = bed.rig.channel();
    bed.rig.gpu.set_interleave(often.tsg, 2);
    channels.iter_mut().for_each(|channel| bed.queue(channel, 12, 1));
    bed.queue(&mut often, 12, 1);
    let [a, b, c] = &channels[..] else { unreachable!() };
    let records = bed.run(a, &[(0, b), (0, c), (0, &often)]);
    // Three launches go into a timeslice: the third begins within it.
    let turns = rows(&records);
    let order: Vec<u16> = turns.iter().take(8).map(|(channel, _)| *channel).collect();
    assert_eq!(order[0], a.id);
    for pair in order.windows(2) {
        assert!(pair.contains(&often.id), "{turns:?}");
    }
    assert!(turns.iter().take(8).all(|(_, count)| *count == 3), "{turns:?}");
    assert!(waited(&records, &often) <= TIMESLICE + LAUNCH + REST);
    assert!(channels.iter().chain([&often]).all(|channel| bed.done(channel) == 12));
}

#[test]
fn doorbells_of_one_group_still_wait_for_its_rest() {
    let bed = Bed::new(300 * US);
    let mut first = bed.rig.channel();
    let mut second = bed.rig.channel_in(first.tsg, 64);
    bed.queue(&mut first, 30, 1);
    bed.queue(&mut second, 1, 1);
    let records = bed.run(&first, &[(1, &second)]);
    assert_eq!(rows(&records), [(first.id, 30), (second.id, 1)]);
    assert!(!records.iter().any(|record| matches!(record.event, Event::Turn { .. })));
}

#[test]
fn long_waits_for_qmd_chains_stop_the_tsg() {
    let bed = Bed::new(20_000 * US);
    let (mut long, mut short) = (bed.rig.channel(), bed.rig.channel());
    bed.queue(&mut long, 1, 63);
    bed.queue(&mut short, 1, 1);
    bed.rig.gpu.set_switch_limit(long.id, 300);
    *bed.plan.lock() = vec![(0, short.id)];
    long.ring();
    assert_eq!(bed.rig.fault(), (8, Rule::ChannelTimeout));
    assert_eq!((bed.done(&long), bed.done(&short)), (0, 1));
    let waits = bed.rig.trace.take().into_iter().filter_map(|record| match record.event {
        Event::SwitchTimeout { waited_ms, .. } => Some(waited_ms),
        _ => None,
    });
    assert_eq!(waits.collect::<Vec<_>>(), [100, 200, 300, 400]);
}

/// Groups with random timeslices, levels, launches and doorbells: each does all that it was given, none waits for
/// longer than the turns of the others, and the same seed gives the same run.
#[test]
fn no_tsg_waits_longer_than_the_turns_before_it() {
    let run = |seed: u64| {
        let mut random = Random::new(seed);
        let launch = (5 + random.below(400)) * US;
        let bed = Bed::on(Rig::new(seed), launch);
        let mut channels: Vec<Channel> = (0..4).map(|_| bed.rig.channel()).collect();
        let (mut slices, mut levels) = (Vec::new(), Vec::new());
        for channel in &channels {
            slices.push(1000 + random.below(3000));
            levels.push(random.below(3));
            bed.rig.gpu.set_timeslice(channel.tsg, *slices.last().unwrap() as u32);
            bed.rig.gpu.set_interleave(channel.tsg, *levels.last().unwrap() as u32);
        }
        let chains: Vec<u64> = channels.iter().map(|_| 1 + random.below(60)).collect();
        for (channel, chains) in channels.iter_mut().zip(&chains) {
            bed.queue(channel, *chains, 1);
        }
        let at: Vec<usize> = (0..3).map(|_| random.below(chains[0]) as usize).collect();
        let others: Vec<(usize, &Channel)> = at.into_iter().zip(&channels[1..]).collect();
        let records = bed.run(&channels[0], &others);
        for (channel, chains) in channels.iter().zip(&chains) {
            assert_eq!(bed.done(channel), *chains, "seed {seed}");
        }
        // In a round of 4 places of levels 0 to 2 no group comes more than 4 times before another.
        let turn = |slice: &u64| slice * US + launch + REST;
        let bound = 4 * slices.iter().map(turn).sum::<u64>();
        for channel in &channels {
            let waits = records.iter().filter_map(|record| match record.event {
                Event::Turn { channel: of, waited, .. } if of == channel.id => waited,
                _ => None,
            });
            waits.for_each(|waited| assert!(waited <= bound, "seed {seed}: {waited} ns"));
        }
        records
    };
    for seed in 0..20 {
        assert!(run(seed) == run(seed), "seed {seed}");
    }
}
