//! Compute engine switches to a desktop: waiting times, and the driver's timeouts.

use std::sync::Arc;

use parking_lot::Mutex;
use tegra::class::host::WfiScope;
use tegra::class::qmd::DependentAction;
use tegra::qmd::Dependent;
use tegra_sim::finding::Rule;
use tegra_sim::finding::SmFault;
use tegra_sim::gpu::{ComputeEngine, GpuMemory, Launch, Preemption};
use tegra_sim::trace::{Event, Work};

use super::rig::{Buffer, Channel, Kernel, Rig, compute_stream, release};

/// Milliseconds of a launch.
const LAUNCH_MS: u64 = 5;
/// Nanoseconds in one.
const MS: u64 = 1_000_000;

/// An engine whose launches read as much as takes them [`LAUNCH_MS`].
struct Engine(Arc<Mutex<Vec<u64>>>);

impl ComputeEngine for Engine {
    fn launch(&mut self, launch: &Launch, _memory: &dyn GpuMemory) -> Result<Work, SmFault> {
        self.0.lock().push(launch.time);
        Ok(Work { bytes_touched: LAUNCH_MS * 45 * MS, ..Work::default() })
    }
}

struct Bed {
    rig: Rig,
    kernel: Kernel,
    slot: Buffer,
    /// When launches began.
    times: Arc<Mutex<Vec<u64>>>,
}

/// Arrangement of the launches of a step.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Link {
    /// QMD chains of this length.
    Chains(u64),
    /// Each launch from the stream, without anything between.
    Stream,
}

impl Bed {
    fn new(rig: Rig) -> Self {
        let times = Arc::default();
        rig.gpu.set_compute_engine(Box::new(Engine(Arc::clone(&times))));
        let mut kernel = Kernel::new(&rig);
        // Room for 64 QMDs.
        kernel.qmd = rig.buffer(64 * 256);
        kernel.store(0, &kernel.launch);
        let slot = rig.buffer(4096);
        Self { rig, kernel, slot, times }
    }

    /// A step of so many launches: a release that waits for idle behind each chain.
    fn step(&self, channel: &mut Channel, launches: u64, link: Link) {
        let mut stream = compute_stream();
        let length = if let Link::Chains(length) = link { length } else { 1 };
        for place in 0..length {
            let mut launch = self.kernel.launch;
            launch.dependent = (place + 1 < length).then(|| Dependent {
                qmd: self.kernel.at(place + 1),
                action: DependentAction::Schedule,
                prefetch: true,
            });
            self.kernel.store(place, &launch);
        }
        for _ in 0..launches / length {
            stream.launch(self.kernel.at(0));
            if link != Link::Stream {
                stream.release(release(self.slot.at(0), 1));
            }
        }
        stream.release(release(self.slot.at(16), 1));
        self.rig.submit(channel, stream.words());
        self.rig.gpu.drain();
    }

    /// Number of interrupts of the driver, and the total waiting time.
    fn timeouts(&self) -> (usize, u32) {
        let waited = self.rig.trace.take().into_iter().filter_map(|record| match record.event {
            Event::SwitchTimeout { waited_ms, .. } => Some(waited_ms),
            _ => None,
        });
        let waited: Vec<u32> = waited.collect();
        (waited.len(), waited.last().copied().unwrap_or(0))
    }

    fn is_alive(&self) -> bool {
        self.rig.driver.errors.lock().is_empty()
    }
}

/// Steps of 30 launches until the channel dies, at most so many.
fn steps(bed: &Bed, channel: &mut Channel, link: Link, most: usize) -> usize {
    (0..most)
        .take_while(|_| {
            bed.step(channel, 30, link);
            bed.is_alive()
        })
        .count()
}

#[test]
fn long_qmd_chains_stop_after_three_seconds_of_desktop_waiting() {
    for link in [Link::Chains(30), Link::Stream] {
        let bed = Bed::new(Rig::with_desktop());
        let mut channel = bed.rig.channel();
        // 150 ms each, of which the desktop waits for more than 100.
        assert_eq!(steps(&bed, &mut channel, link, 100), 30, "{link:?}");
        assert_eq!(bed.rig.fault(), (8, Rule::ChannelTimeout), "{link:?}");
        assert_eq!(bed.timeouts(), (31, 3100), "{link:?}");
    }
}

#[test]
fn without_a_desktop_there_are_no_timeouts() {
    let bed = Bed::new(Rig::new(1));
    let mut channel = bed.rig.channel();
    assert_eq!(steps(&bed, &mut channel, Link::Chains(30), 60), 60);
    assert_eq!(bed.timeouts(), (0, 0));
}

#[test]
fn short_qmd_chains_accumulate_no_waiting_time() {
    let bed = Bed::new(Rig::with_desktop());
    let mut channel = bed.rig.channel();
    // 50 ms each.
    assert_eq!(steps(&bed, &mut channel, Link::Chains(10), 100), 100);
    assert_eq!(bed.timeouts(), (0, 0));
    // Three chains at once.
    bed.times.lock().clear();
    bed.step(&mut channel, 30, Link::Chains(10));
    let times = bed.times.lock();
    let gaps: Vec<u64> = times.windows(2).map(|pair| (pair[1] - pair[0]) / (MS / 10)).collect();
    // The desktop has its turn between chains, and there only.
    let turn = |gap: &u64| *gap > 10 * LAUNCH_MS + 2;
    let turns: Vec<usize> = (0..29).filter(|index| turn(&gaps[*index])).collect();
    assert_eq!(turns, [9, 19], "{gaps:?}");
}

#[test]
fn waits_below_100_ms_count_for_nothing_and_longer_ones_for_each_100() {
    let waited = |launches: u64| {
        let bed = Bed::new(Rig::with_desktop());
        bed.step(&mut bed.rig.channel(), launches, Link::Stream);
        bed.timeouts()
    };
    // The desktop asks within 16 ms.
    assert_eq!(waited(19), (0, 0));
    assert_eq!(waited(24), (1, 100));
    assert_eq!(waited(39), (1, 100));
    assert_eq!(waited(44), (2, 200));
    // A single unit of more than the limit does not come to its end.
    assert_eq!(waited(700), (31, 3100));
}

#[test]
fn the_waiting_limit_belongs_to_the_channel() {
    let bed = Bed::new(Rig::with_desktop());
    let mut channel = bed.rig.channel();
    bed.rig.gpu.set_switch_limit(channel.id, 6000);
    assert_eq!(steps(&bed, &mut channel, Link::Chains(30), 100), 60);
    assert_eq!(bed.timeouts(), (61, 6100));
    // The waiting time of another channel does not count.
    let bed = Bed::new(Rig::with_desktop());
    let (mut first, mut second) = (bed.rig.channel(), bed.rig.channel());
    assert_eq!(steps(&bed, &mut first, Link::Chains(30), 20), 20);
    assert_eq!(steps(&bed, &mut second, Link::Chains(30), 20), 20);
}

#[test]
fn channels_of_a_group_are_torn_down_together() {
    let bed = Bed::new(Rig::with_desktop());
    let tsg = bed.rig.gpu.open_tsg();
    let (mut first, idle) = (bed.rig.channel_in(tsg, 64), bed.rig.channel_in(tsg, 64));
    bed.rig.gpu.set_switch_limit(first.id, 60_000);
    // The channel that does nothing has the lower limit.
    assert_eq!(steps(&bed, &mut first, Link::Chains(30), 100), 30);
    let errors = bed.rig.driver.errors.lock();
    assert_eq!((errors[0].0, errors[0].1), (tsg, 8));
    assert!(errors[0].2.finding.message.contains("limit 3000 ms"), "{:?}", errors[0]);
    drop(idle);
}

#[test]
fn the_driver_sees_progress_where_it_submits_itself() {
    let bed = Bed::new(Rig::with_desktop());
    let mut channel = bed.rig.channel_by(bed.rig.gpu.open_tsg(), 64, false);
    assert_eq!(steps(&bed, &mut channel, Link::Chains(30), 60), 60);
    assert_eq!(bed.timeouts(), (60, 100));
    // Not within one entry.
    bed.step(&mut channel, 700, Link::Stream);
    assert_eq!(bed.rig.fault(), (8, Rule::ChannelTimeout));
}

#[test]
fn other_kinds_of_preemption_let_the_desktop_in() {
    for (preemption, alive) in
        [(Preemption::Wfi, false), (Preemption::Cta, true), (Preemption::Cilp, true)]
    {
        let bed = Bed::new(Rig::with_desktop());
        let mut channel = bed.rig.channel();
        bed.rig.gpu.set_preemption(channel.tsg, preemption);
        steps(&bed, &mut channel, Link::Chains(30), 60);
        assert_eq!(bed.is_alive(), alive, "{preemption:?}");
        assert_eq!(bed.timeouts().0 == 0, alive, "{preemption:?}");
    }
}

#[test]
fn every_kind_of_wait_for_idle_allows_a_switch() {
    let bed = Bed::new(Rig::with_desktop());
    let mut stream = compute_stream();
    for _ in 0..5 {
        for _ in 0..10 {
            stream.launch(bed.kernel.at(0));
        }
        stream.wait_for_idle(WfiScope::CurrentVeid);
    }
    bed.rig.run(stream.words());
    assert_eq!(bed.timeouts(), (0, 0));
}
