//! Scheduler over all channels and work, driven by the seed.
//!
//! Doorbells are processed one by one, each only when all earlier work has finished or is blocked,
//! so that the timing of the host has no influence. With several channels some doorbells are delayed, so that
//! later ones overtake them. Within the TSG that has its turn, the host unit's work on each channel
//! and the work of the engines are interleaved at random, unless a rule orders them. Channels of
//! other runlists than the graphics engine's run concurrently.
//!
//! The work of one TSG does not delay doorbells of others: when a turn ends, doorbells of idle TSGs
//! are processed. If no other TSG waits, a turn ends only with the timeslice. The timing of the host
//! is therefore visible in two cases: a TSG works for longer than a timeslice, or it yields its turn
//! (at most once per [`LOOK`]).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use super::access::{Core, Failure};
use super::channel::{Channel, Task, Wait, Work, userd};
use super::clock::{Clock, Random, TICK};
use super::dependencies::Dependencies;
use super::doorbell::{Doorbell, Rung};
use super::interface::{Blocked, ChannelError, ChannelSetup, ComputeEngine, GpuConfig, TsgId};
use super::shadow::Shadow;
use super::switch::{Preemption, Switches};
use super::turns::Turns;
use crate::finding::{Fault, Finding, Reporter, Rule, notifier};
use crate::mmu::Mmu;
use crate::trace::Event;

/// One doorbell in this many is delayed.
const HELD: u64 = 4;
/// Largest number of later doorbells that overtake a delayed one.
const HOLD: u64 = 2;
/// Largest number of methods that a channel executes in a row.
const BURST: u64 = 8;
/// Number of dequeued doorbells whose order is preserved.
const RUNG: usize = 1 << 12;
/// Nanoseconds of work between two checks for doorbells if turns are shorter, so that programs that
/// pass little work between TSGs are reproducible.
const LOOK: u64 = 100_000;

/// Result of running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Run {
    /// More work is pending.
    Busy,
    /// Only delayed doorbells are pending.
    Holding,
    /// Nothing can run.
    Quiet { waiting: bool },
}

/// A notification to deliver without locks.
pub(crate) enum Notice {
    Finding(Finding, Arc<dyn Reporter>),
    Error(TsgId, Fault),
    Interrupt,
}

struct Delayed {
    channel: u16,
    /// Number of later doorbells to wait for.
    left: u64,
    /// GP_PUT when it was rung; none if unknown.
    put: Option<u32>,
    /// Number of releases that the CPU may have observed by then.
    seen: u64,
}

/// State of the GPU's thread.
pub(crate) struct Machine {
    core: Core,
    reporter: Arc<dyn Reporter>,
    doorbell: Arc<Doorbell>,
    next_tsg: u32,
    tsgs: BTreeMap<TsgId, bool>,
    channels: BTreeMap<u16, Channel>,
    /// Dequeued doorbells, in order.
    rung: VecDeque<Rung>,
    delayed: Vec<Delayed>,
    turns: Turns,
    /// Time of the last check for doorbells or of the last idle state, plus later switches.
    looked: u64,
    /// The GPU was idle.
    rested: bool,
    notices: Vec<Notice>,
}

/// An action that is possible now.
#[derive(Clone, Copy)]
enum Actor {
    Host(u16),
    Work(u16, usize),
}

impl Machine {
    pub(crate) fn new(config: GpuConfig, clock: Arc<Clock>, doorbell: Arc<Doorbell>) -> Self {
        let GpuConfig { sms, desktop, quirks, .. } = config;
        let GpuConfig { seed, trace, reporter, injection, bundles, checks, latency, .. } = config;
        let core = Core {
            clock,
            random: Random::new(seed),
            trace,
            injection,
            shadow: Shadow::new(quirks.stale_handover),
            dependencies: Dependencies::default(),
            engine: None,
            bundles,
            checks,
            latency,
            sms,
            switches: Switches::new(desktop),
            quirks,
            findings: Vec::new(),
            interrupts: 0,
        };
        Self {
            core,
            reporter,
            doorbell,
            next_tsg: 0,
            tsgs: BTreeMap::new(),
            channels: BTreeMap::new(),
            rung: VecDeque::new(),
            delayed: Vec::new(),
            turns: Turns::default(),
            looked: 0,
            rested: true,
            notices: Vec::new(),
        }
    }

    /// Returns the counter of releases.
    pub(crate) fn releases(&self) -> Arc<AtomicU64> {
        self.core.dependencies.count()
    }

    pub(crate) fn open_tsg(&mut self) -> TsgId {
        let id = TsgId(self.next_tsg);
        self.next_tsg += 1;
        self.tsgs.insert(id, true);
        self.turns.open(id);
        id
    }

    pub(crate) fn close_tsg(&mut self, tsg: TsgId) {
        let of_tsg = self.channels.values().filter(|channel| channel.tsg == tsg);
        let ids: Vec<u16> = of_tsg.map(|channel| channel.id).collect();
        ids.into_iter().for_each(|id| self.close_channel(id));
        self.core.switches.close_group(tsg);
        self.turns.close(tsg);
        self.tsgs.remove(&tsg);
    }

    pub(crate) fn open_channel(&mut self, setup: ChannelSetup) -> Result<(), ChannelError> {
        let ChannelSetup { id, token, tsg, entries, .. } = setup;
        let (ring, page) = (setup.ring.bytes(), setup.userd.bytes());
        if !self.tsgs.get(&tsg).copied().unwrap_or_default() {
            return Err(ChannelError::NoTsg { tsg });
        }
        if self.channels.values().any(|channel| channel.id == id || channel.token == token) {
            return Err(ChannelError::InUse { id, token });
        }
        let fits = u64::from(entries) * 8 <= ring && page >= userd::BYTES;
        if !entries.is_power_of_two() || !fits {
            return Err(ChannelError::Sizes { entries, ring, userd: page });
        }
        self.core.dependencies.open(id);
        self.core.switches.open(tsg, id, setup.usermode, setup.switch_limit_ms);
        self.doorbell.register(id, Arc::clone(&setup.userd));
        self.channels.insert(id, Channel::new(setup));
        Ok(())
    }

    pub(crate) fn close_channel(&mut self, id: u16) {
        let Some(mut channel) = self.channels.remove(&id) else { return };
        let rung = !self.doorbell.is_empty()
            || !self.rung.is_empty()
            || self.delayed.iter().any(|delayed| delayed.channel == id);
        self.delayed.retain(|delayed| delayed.channel != id);
        let own =
            |rung: &Rung| matches!(rung, Rung::Token { token, .. } if *token == channel.token);
        self.rung.retain(|rung| !own(rung));
        self.doorbell.unregister(id);
        self.core.switches.close(channel.tsg, id);
        self.core.dependencies.close(id);
        channel.write_back();
        let put = channel.userd.load_u32(userd::GP_PUT).unwrap_or(channel.put);
        if channel.alive && !channel.stalled && !rung && put != channel.put {
            let message = format!("GP_PUT is {put}, at the last doorbell it was {}", channel.put);
            channel.find(&mut self.core, Rule::DoorbellMissing, message);
        }
        self.collect(&channel);
    }

    pub(crate) fn alloc_object(&mut self, id: u16, class: u32) {
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.classes.push(class);
        }
    }

    pub(crate) fn set_preemption(&mut self, tsg: TsgId, preemption: Preemption) {
        self.core.switches.set_preemption(tsg, preemption);
    }

    pub(crate) fn set_timeslice(&mut self, tsg: TsgId, us: u32) {
        self.turns.set_timeslice(tsg, us);
    }

    pub(crate) fn set_interleave(&mut self, tsg: TsgId, level: u32) {
        self.turns.set_interleave(tsg, level);
    }

    pub(crate) fn set_switch_limit(&mut self, id: u16, ms: u32) {
        self.core.switches.set_limit(id, ms);
    }

    pub(crate) fn set_enabled(&mut self, id: u16, enabled: bool) {
        if let Some(channel) = self.channels.get_mut(&id) {
            channel.enabled = enabled;
        }
    }

    pub(crate) fn preempt(&mut self, tsg: TsgId) {
        self.channels
            .values_mut()
            .filter(|channel| channel.tsg == tsg)
            .for_each(Channel::write_back);
    }

    pub(crate) fn unmapped(&mut self, mmu: &Mmu, va: u64, bytes: u64) {
        self.core.shadow.l2.invalidate();
        let time = self.core.clock.now();
        mmu.remember(va, bytes, time);
        self.core.trace.record(time, || Event::Unmap { va, bytes });
    }

    pub(crate) fn find(&mut self, rule: Rule, channel: u16, message: String) {
        self.core.find(rule, Some(channel), message);
        self.collect_listed(&[]);
    }

    pub(crate) fn invalidate_l2(&mut self) {
        self.core.shadow.l2.invalidate();
    }

    pub(crate) fn force_reset(&mut self, tsg: TsgId) {
        let first = self.channels.values().find(|channel| channel.tsg == tsg && channel.alive);
        let Some(id) = first.map(|channel| channel.id) else { return };
        let message = "force reset";
        self.fail(id, Failure::new(Rule::ForceReset, notifier::RESET_REQUESTED, message));
    }

    pub(crate) fn set_compute_engine(&mut self, engine: Box<dyn ComputeEngine>) {
        self.core.engine = Some(engine);
    }

    /// Returns the channels that wait for semaphores.
    pub(crate) fn blocked(&self) -> Vec<Blocked> {
        let waiting = self.channels.values().filter(|channel| channel.alive);
        waiting
            .filter_map(|channel| match channel.wait {
                Some(Wait::Semaphore(acquire)) => Some(Blocked {
                    channel: channel.id,
                    address: acquire.address,
                    payload: acquire.payload,
                }),
                _ => None,
            })
            .collect()
    }

    /// Reports a deadlock.
    pub(crate) fn report_deadlock(&mut self) {
        for Blocked { channel: id, address, payload } in self.blocked() {
            let Some(channel) = self.channels.get(&id) else { continue };
            let message = format!("it waits for semaphore {address:#x} to meet {payload:#x}");
            channel.find(&mut self.core, Rule::Deadlock, message);
            let listing = channel.listing();
            self.collect_listed(&listing);
        }
    }

    /// Writes every GP_GET to USERD.
    pub(crate) fn write_back(&mut self) {
        self.channels.values_mut().for_each(Channel::write_back);
    }

    pub(crate) fn take_notices(&mut self) -> Vec<Notice> {
        std::mem::take(&mut self.notices)
    }

    /// Executes up to `steps` actions. `over` ends the delay of doorbells.
    pub(crate) fn run(&mut self, steps: usize, over: bool) -> Run {
        for _ in 0..steps {
            self.end_timeslice();
            let (actor, of_holder) = self.choose();
            if !of_holder && self.pass() {
                continue;
            }
            if let Some(actor) = actor {
                self.act(actor);
            } else if self.accept_due() || self.take_doorbell() {
                continue;
            } else if self.delayed.is_empty() {
                return self.rest();
            } else if over {
                self.delayed.iter_mut().for_each(|delayed| delayed.left = 0);
            } else {
                return Run::Holding;
            }
        }
        Run::Busy
    }

    /// Starts a switch if the timeslice is over and another TSG waits.
    fn end_timeslice(&mut self) {
        let now = self.core.clock.now();
        if !self.turns.is_due(now) {
            return;
        }
        self.look(now);
        let channels = &self.channels;
        let Some((place, next)) = self.turns.next(|tsg| wants(channels, tsg)) else { return };
        let Some(holder) = self.turns.holder().filter(|holder| *holder != next) else {
            self.turns.give(place, now);
            return;
        };
        let since = self.turns.leave(next);
        self.core.switches.wait(holder, since);
        // Other TSGs may have waited for the current work, or for work that has just ended.
        let Some(channel) = self.channels.values_mut().find(|channel| channel.tsg == holder) else {
            return;
        };
        let (id, result) = (channel.id, channel.check_timeouts(&mut self.core));
        if let Err(failure) = result {
            self.fail(id, failure);
        }
    }

    /// Assigns the engine to the next TSG with pending work.
    fn pass(&mut self) -> bool {
        let now = self.core.clock.now();
        let holder = self.turns.holder();
        let others = self.channels.values().filter(|channel| Some(channel.tsg) != holder);
        let waiting = others.filter(|channel| channel.wants_turn()).count();
        if self.rested && waiting > 1 {
            // The round may continue from any position.
            self.turns.stand(self.core.random.below(self.turns.places() as u64) as usize);
        } else if !self.rested && waiting > 0 && now >= self.looked + LOOK {
            self.look(now);
        }
        let channels = &self.channels;
        let Some((place, next)) = self.turns.next(|tsg| wants(channels, tsg)) else {
            (self.rested, self.looked) = (true, now);
            return false;
        };
        if holder == Some(next) && !self.turns.is_leaving() {
            // The holder continues: its next doorbell was just processed, and no other TSG has work.
            return true;
        }
        match holder.filter(|holder| *holder != next) {
            Some(holder) => self.hand_over(holder, place, next),
            None => drop(self.turns.give(place, now)),
        }
        true
    }

    /// Switches the engine to another TSG.
    fn hand_over(&mut self, from: TsgId, place: usize, to: TsgId) {
        let core = &mut self.core;
        for channel in self.channels.values_mut().filter(|channel| channel.tsg == from) {
            if core.switches.is_busy(from, channel.id) {
                channel.is_switchable(core);
            }
            channel.write_back();
        }
        let time = core.clock.advance(core.latency.switch);
        self.looked += core.latency.switch * TICK;
        let waited = self.turns.give(place, time).map(|asked| time.saturating_sub(asked));
        let wants = |channel: &&Channel| channel.tsg == to && channel.wants_turn();
        if let Some(channel) = self.channels.values().find(wants).map(|channel| channel.id) {
            core.trace.record(time, || Event::Turn { group: to.0, channel, waited });
        }
    }

    /// Processes doorbells of idle TSGs while another one works.
    fn look(&mut self, now: u64) {
        self.looked = now;
        if self.tsgs.len() < 2 {
            return;
        }
        while self.rung.len() < RUNG
            && let Some(rung) = self.doorbell.next()
        {
            self.rung.push_back(rung);
        }
        let rests = |machine: &Self, id: u16| {
            let channel = machine.channels.get(&id)?;
            (!wants(&machine.channels, channel.tsg)).then_some(channel.tsg)
        };
        while let Some(place) =
            self.delayed.iter().position(|delayed| rests(self, delayed.channel).is_some())
        {
            let delayed = self.delayed.remove(place);
            self.accept(delayed);
        }
        let mut place = 0;
        while let Some(rung) = self.rung.get(place) {
            let found = match *rung {
                Rung::Token { token, put, seen, time } => {
                    self.channel_of(token).and_then(|channel| {
                        Some((Delayed { channel, left: 0, put, seen }, rests(self, channel)?, time))
                    })
                }
                Rung::Channels(_) => None,
            };
            if let Some((delayed, tsg, time)) = found {
                self.rung.remove(place);
                self.turns.ask(tsg, time);
                self.accept(delayed);
            } else {
                place += 1;
            }
        }
    }

    /// Chooses one of all possible actions; also returns whether the current holder of the engine
    /// has any.
    fn choose(&mut self) -> (Option<Actor>, bool) {
        let mut of_holder = false;
        let mut chosen = None;
        let mut count = 0;
        let random = &mut self.core.random;
        let mut consider = |actor| {
            count += 1;
            if random.one_in(count) {
                chosen = Some(actor);
            }
        };
        let (holder, leaving) = (self.turns.holder(), self.turns.is_leaving());
        for channel in self.channels.values() {
            let beside = !channel.takes_turns();
            if !beside && Some(channel.tsg) != holder {
                continue;
            }
            if (beside || !leaving) && channel.is_runnable() {
                consider(Actor::Host(channel.id));
                of_holder |= !beside;
            }
            if beside || !leaving || self.core.switches.drains(channel.tsg) {
                for place in 0..channel.eligible() {
                    consider(Actor::Work(channel.id, place));
                    of_holder |= !beside;
                }
            }
        }
        (chosen, of_holder)
    }

    fn act(&mut self, actor: Actor) {
        self.rested = false;
        let (Actor::Host(id) | Actor::Work(id, _)) = actor;
        let Some(channel) = self.channels.get_mut(&id) else { return };
        let core = &mut self.core;
        let result = match actor {
            Actor::Host(_) => {
                let mut left = 1 + core.random.below(BURST);
                let mut result = Ok(());
                while left > 0 && result.is_ok() && channel.is_runnable() {
                    result = channel.advance(core);
                    left -= 1;
                }
                result
            }
            Actor::Work(_, place) => match channel.work.remove(place) {
                Some(work) => run_work(channel, core, work),
                None => Ok(()),
            },
        };
        if core.switches.is_busy(channel.tsg, id) && channel.is_idle() && !channel.is_runnable() {
            channel.is_switchable(core);
        }
        if !core.findings.is_empty() || core.interrupts > 0 {
            let listing = channel.listing();
            self.collect_listed(&listing);
        }
        if let Err(failure) = result {
            self.fail(id, failure);
        }
    }

    /// Processes the next doorbell.
    fn take_doorbell(&mut self) -> bool {
        let rung = self.rung.pop_front().or_else(|| self.doorbell.next());
        let Some(rung) = rung else { return false };
        let (channels, put, seen) = match rung {
            Rung::Token { token, put, seen, .. } => {
                (self.channel_of(token).into_iter().collect(), put, seen)
            }
            Rung::Channels(channels) => {
                (channels, None, self.core.dependencies.count().load(Ordering::Acquire))
            }
        };
        for delayed in &mut self.delayed {
            delayed.left = delayed.left.saturating_sub(1);
        }
        for channel in channels {
            let several = self.channels.len() > 1;
            let delayed = self.core.random.one_in(HELD) && several;
            let left = (1 + self.core.random.below(HOLD)) * u64::from(delayed);
            match self.delayed.iter_mut().find(|delayed| delayed.channel == channel) {
                Some(delayed) => (delayed.put, delayed.seen) = (put, seen.max(delayed.seen)),
                None => self.delayed.push(Delayed { channel, left, put, seen }),
            }
        }
        true
    }

    /// Delivers doorbells whose delay is over.
    fn accept_due(&mut self) -> bool {
        let mut any = false;
        while let Some(place) = self.delayed.iter().position(|delayed| delayed.left == 0) {
            let delayed = self.delayed.remove(place);
            self.accept(delayed);
            any = true;
        }
        any
    }

    /// Delivers a doorbell to its channel.
    fn accept(&mut self, Delayed { channel: id, put, seen, .. }: Delayed) {
        self.core.clock.advance(self.core.latency.doorbell);
        self.core.dependencies.rung(id, seen);
        if let Some(channel) = self.channels.get_mut(&id).filter(|channel| channel.alive) {
            channel.accept(&mut self.core, put);
            if !self.core.findings.is_empty() {
                let listing = channel.listing();
                self.collect_listed(&listing);
            }
        }
    }

    fn channel_of(&self, token: u32) -> Option<u16> {
        self.channels.values().find(|channel| channel.token == token).map(|channel| channel.id)
    }

    fn rest(&mut self) -> Run {
        self.write_back();
        let stuck =
            self.channels.values_mut().find(|channel| channel.is_stuck() && !channel.wait_reported);
        if let Some(channel) = stuck {
            channel.wait_reported = true;
            let message = "it waits for launches that nothing counts down any more";
            channel.find(&mut self.core, Rule::Deadlock, message);
            let listing = channel.listing();
            self.collect_listed(&listing);
            return Run::Busy;
        }
        if self.channels.values().all(Channel::is_settled) && self.doorbell.is_empty() {
            self.core.shadow.settle();
            self.core.dependencies.settle();
        }
        Run::Quiet { waiting: !self.blocked().is_empty() }
    }

    /// Stops the TSG of a failed channel permanently.
    fn fail(&mut self, id: u16, failure: Failure) {
        let Some(channel) = self.channels.get(&id) else { return };
        let (tsg, listing) = (channel.tsg, channel.listing());
        let Failure { rule, code, message, va, sm, injected: _ } = failure;
        let past = va.and_then(|va| channel.mmu.past(va)).unwrap_or_default();
        let message = format!("{message}{past}; error notifier set to {code} for ch {id}");
        self.core.find(rule, Some(id), message);
        if let Some(finding) = self.core.findings.last_mut() {
            finding.listing.clone_from(&listing);
            let fault = Fault { finding: finding.clone(), code, sm };
            self.collect_listed(&listing);
            self.notices.push(Notice::Error(tsg, fault));
        }
        self.tsgs.insert(tsg, false);
        for channel in self.channels.values_mut().filter(|channel| channel.tsg == tsg) {
            self.core.switches.close(tsg, channel.id);
            channel.write_back();
            channel.kill();
        }
    }

    fn collect(&mut self, channel: &Channel) {
        self.collect_listed(&channel.listing());
    }

    /// Queues the findings of the last step.
    fn collect_listed(&mut self, listing: &[String]) {
        for mut finding in self.core.findings.drain(..) {
            finding.listing = listing.to_vec();
            self.notices.push(Notice::Finding(finding, Arc::clone(&self.reporter)));
        }
        for _ in 0..std::mem::take(&mut self.core.interrupts) {
            self.notices.push(Notice::Interrupt);
        }
    }
}

/// Returns whether a TSG has work for the graphics engine.
fn wants(channels: &BTreeMap<u16, Channel>, tsg: TsgId) -> bool {
    channels.values().any(|channel| channel.tsg == tsg && channel.wants_turn())
}

fn run_work(channel: &mut Channel, core: &mut Core, work: Work) -> Result<(), Failure> {
    let Work { agent, task, watched } = work;
    channel.check_watched(core, &watched, "before the GPU read it");
    match task {
        Task::Copy(job) => channel.run_copy(core, &agent, &job),
        Task::Launch(job) => channel.run_launch(core, &agent, job),
        Task::Report(write, awaken) => channel.run_report(core, &agent, &write, awaken),
    }
}
