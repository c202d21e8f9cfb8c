//! State of a channel: its ring and streams, and the pending work of its engines.
//!
//! [`super::gpfifo`], [`super::host`], [`super::copy`], [`super::compute`] and [`super::launch`]
//! act on it; [`super::schedule`] decides when.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use super::access::{Core, Failure, Site, load, within_host};
use super::constants::{BankCopy, InFlight};
use super::dependencies::{Agent, Kind};
use super::interface::{ChannelSetup, TsgId};
use super::pbdma::{Method, Parser};
use super::registers::{ComputeState, HostState};
use super::semaphore::{Condition, Width, Write};
use super::shadow::{Change, Snapshot};
use super::switch::PICTURE;
use super::transfer::{CopyJob, CopyState};
use crate::class;
use crate::finding::Rule;
use crate::memory::DmaBuf;
use crate::mmu::{Access, Mmu, MmuFault};

/// Number of recent methods kept for listings.
const RECENT: usize = 16;
/// Position of the runlist in a token.
const RUNLIST_SHIFT: u32 = 16;
const GRAPHICS_RUNLIST: u32 = 0;

/// Offsets in USERD. Source: GA100's `dev_ram`.
pub(crate) mod userd {
    pub(crate) const REFERENCE: u64 = 0x48;
    pub(crate) const GP_GET: u64 = 0x88;
    pub(crate) const GP_PUT: u64 = 0x8c;
    pub(crate) const BYTES: u64 = 512;
}

/// Condition for which a channel waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wait {
    /// All work of its engines is complete.
    Idle,
    /// A semaphore meets a condition.
    Semaphore(Acquire),
}

/// A wait for a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Acquire {
    pub(crate) address: u64,
    pub(crate) payload: u64,
    pub(crate) width: Width,
    pub(crate) condition: Condition,
}

/// Reason for which a method was not executed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Wait(Wait),
    Fail(Box<Failure>),
}

impl From<Failure> for Stop {
    fn from(failure: Failure) -> Self {
        Self::Fail(Box::new(failure))
    }
}

/// Result of a method.
pub(crate) type Flow = Result<(), Stop>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Engine {
    Compute,
    Copy,
}

/// Pending work of an engine.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) agent: Agent,
    pub(crate) task: Task,
    /// Memory that must not change until the work is executed.
    pub(crate) watched: Vec<(Rule, Snapshot)>,
}

/// Memory that a copy or launch will read.
#[derive(Debug, Default)]
pub(crate) struct Watched {
    pub(crate) memory: Vec<(Rule, Snapshot)>,
    /// Constant banks of the launches of a QMD chain, by QMD.
    pub(crate) banks: Vec<(u64, Vec<BankCopy>)>,
}

#[derive(Debug)]
pub(crate) enum Task {
    Copy(CopyJob),
    Launch(LaunchJob),
    /// A report semaphore of the compute engine, and whether it wakes waiters.
    Report(Write, bool),
}

/// A pending launch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchJob {
    pub(crate) qmd: u64,
    /// Position in its QMD chain; 0 if a stream sent it.
    pub(crate) place: u32,
}

/// A ring entry that GP_PUT covers.
#[derive(Debug)]
pub(crate) struct Accepted {
    pub(crate) index: u32,
    pub(crate) entry: u64,
    /// Contents of the stream at the doorbell.
    pub(crate) stream: Option<(Vec<u32>, Snapshot)>,
}

/// The stream being executed.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) index: u32,
    pub(crate) address: u64,
    pub(crate) words: Vec<u32>,
    pub(crate) at: usize,
}

pub(crate) struct Channel {
    pub(crate) id: u16,
    pub(crate) token: u32,
    pub(crate) tsg: TsgId,
    pub(crate) mmu: Arc<Mmu>,
    pub(crate) ring: Arc<DmaBuf>,
    pub(crate) entries: u32,
    pub(crate) userd: Arc<DmaBuf>,
    /// Classes that the channel may bind.
    pub(crate) classes: Vec<u32>,
    pub(crate) enabled: bool,
    /// Neither the channel nor its TSG has faulted.
    pub(crate) alive: bool,
    /// GP_PUT was invalid.
    pub(crate) stalled: bool,
    /// Last accepted GP_PUT.
    pub(crate) put: u32,
    pub(crate) get: u32,
    /// GP_GET as last written to USERD.
    pub(crate) written_get: u32,
    pub(crate) accepted: VecDeque<Accepted>,
    pub(crate) segment: Option<Segment>,
    /// The current stream, or the previous one until the next is fetched, waited for a semaphore.
    pub(crate) waited: bool,
    /// Streams parsed since the last release.
    pub(crate) unreleased: Vec<Snapshot>,
    pub(crate) parser: Parser,
    /// Method that waits.
    pub(crate) method: Option<Method>,
    pub(crate) wait: Option<Wait>,
    pub(crate) bound: [Option<u32>; 8],
    pub(crate) host: HostState,
    pub(crate) copy: CopyState,
    pub(crate) compute: ComputeState,
    /// Engine of the last method.
    pub(crate) engine: Option<Engine>,
    pub(crate) work: VecDeque<Work>,
    /// An engine has work that nothing has waited for.
    pub(crate) unwaited: bool,
    /// A wait for launches that nothing counts down was reported.
    pub(crate) wait_reported: bool,
    /// Launches started by other launches since the last method.
    pub(crate) chained: u32,
    pub(crate) scout: Scout,
    /// Constant banks of pending launches.
    pub(crate) banks: InFlight,
    /// Number of copies and launches issued.
    pub(crate) issued: u64,
    recent: VecDeque<Method>,
}

/// Parses streams ahead of their execution to find what they will read.
#[derive(Debug, Default)]
pub(crate) struct Scout {
    pub(crate) parser: Parser,
    pub(crate) copy: CopyState,
    pub(crate) compute: ComputeState,
    /// Number of copies and launches parsed.
    pub(crate) issued: u64,
    /// A word was not a header; the rest cannot be parsed ahead.
    pub(crate) lost: bool,
    /// Memory that a copy or launch will read, by its number.
    pub(crate) watched: BTreeMap<u64, Watched>,
}

impl Channel {
    pub(crate) fn new(setup: ChannelSetup) -> Self {
        let ChannelSetup { id, token, tsg, ring, entries, userd, mmu, .. } = setup;
        Self {
            id,
            token,
            tsg,
            mmu,
            ring,
            entries,
            userd,
            classes: Vec::new(),
            enabled: true,
            alive: true,
            stalled: false,
            put: 0,
            get: 0,
            written_get: 0,
            accepted: VecDeque::new(),
            segment: None,
            waited: false,
            unreleased: Vec::new(),
            parser: Parser::default(),
            method: None,
            wait: None,
            bound: [None; 8],
            host: HostState::default(),
            copy: CopyState::default(),
            compute: ComputeState::default(),
            engine: None,
            work: VecDeque::new(),
            unwaited: false,
            wait_reported: false,
            chained: 0,
            scout: Scout::default(),
            banks: InFlight::default(),
            issued: 0,
            recent: VecDeque::with_capacity(RECENT),
        }
    }

    /// Returns whether the host unit can execute something for this channel.
    pub(crate) fn is_runnable(&self) -> bool {
        if !self.alive || !self.enabled || self.stalled {
            return false;
        }
        match self.wait {
            Some(Wait::Idle) => self.is_idle(),
            Some(Wait::Semaphore(acquire)) => self.is_met(acquire).unwrap_or(true),
            None => self.segment.is_some() || !self.accepted.is_empty(),
        }
    }

    /// Returns whether the channel is on the graphics runlist, whose TSGs take turns.
    pub(crate) fn takes_turns(&self) -> bool {
        self.token >> RUNLIST_SHIFT == GRAPHICS_RUNLIST
    }

    /// Returns whether the channel has something to do once its TSG has the graphics engine.
    pub(crate) fn wants_turn(&self) -> bool {
        self.takes_turns() && (self.is_runnable() || self.eligible() > 0)
    }

    /// Returns whether the engines have no work of this channel.
    pub(crate) fn is_idle(&self) -> bool {
        self.work.is_empty() && !self.compute.has_dependent()
    }

    /// Returns whether it waits for launches that nothing can count down any more.
    pub(crate) fn is_stuck(&self) -> bool {
        self.alive && self.enabled && self.wait == Some(Wait::Idle) && self.work.is_empty()
    }

    /// Returns whether the channel has no pending work.
    pub(crate) fn is_settled(&self) -> bool {
        !self.alive || self.segment.is_none() && self.accepted.is_empty() && self.is_idle()
    }

    pub(crate) fn is_met(&self, acquire: Acquire) -> Result<bool, MmuFault> {
        within_host(acquire.address, acquire.width.bytes())?;
        let memory = load(&self.mmu, acquire.address, acquire.width)?;
        Ok(acquire.condition.holds(acquire.width, memory, acquire.payload))
    }

    /// Number of queued items that may be executed next.
    pub(crate) fn eligible(&self) -> usize {
        if !self.alive || !self.enabled {
            return 0;
        }
        let follows = |work: &Work| match &work.task {
            Task::Copy(job) => job.is_pipelined(),
            Task::Launch(_) => true,
            Task::Report(..) => false,
        };
        match self.work.front() {
            None => 0,
            Some(_) => 1 + self.work.iter().skip(1).take_while(|work| follows(work)).count(),
        }
    }

    /// Returns the site of accesses by `unit`.
    pub(crate) fn site<'a>(&'a self, agent: &'a Agent, unit: &'static str) -> Site<'a> {
        Site { mmu: &self.mmu, channel: self.id, agent, unit }
    }

    /// Records a finding.
    pub(crate) fn find(&self, core: &mut Core, rule: Rule, message: impl Into<String>) {
        core.find(rule, Some(self.id), message.into());
    }

    /// Waits until the engines are idle.
    pub(crate) fn wait_for_idle(&mut self, core: &mut Core) -> Flow {
        if !self.is_idle() {
            return Err(Stop::Wait(Wait::Idle));
        }
        core.dependencies.drained(self.id);
        self.banks.clear();
        self.unwaited = false;
        self.is_switchable(core);
        Ok(())
    }

    /// Records that the channel no longer prevents a switch of the compute engine.
    pub(crate) fn is_switchable(&self, core: &mut Core) {
        if core.switches.idle(self.tsg, self.id, core.clock.now()) {
            core.clock.advance(PICTURE);
        }
    }

    /// Queues work; the caller has handled the engine switch.
    pub(crate) fn issue(&mut self, core: &mut Core, task: Task, kind: Kind) {
        let agent = core.dependencies.issue(self.id, kind);
        let watched = match task {
            Task::Report(..) => Vec::new(),
            Task::Copy(_) | Task::Launch(_) => {
                self.issued += 1;
                let Watched { memory, banks } =
                    self.scout.watched.remove(&self.issued).unwrap_or_default();
                banks.into_iter().for_each(|(qmd, banks)| self.banks.send(qmd, banks));
                memory
            }
        };
        let releases = match &task {
            Task::Copy(job) => job.releases(),
            Task::Launch(_) | Task::Report(..) => true,
        };
        if releases {
            core.dependencies.next_epoch(self.id);
        }
        self.unwaited = true;
        self.work.push_back(Work { agent, task, watched });
    }

    /// Checks that no stream changed before a release signals their completion.
    pub(crate) fn check_streams(&mut self, core: &mut Core) {
        let streams = std::mem::take(&mut self.unreleased);
        for stream in streams {
            if let Some(change) = stream.change(&self.mmu, &core.shadow) {
                let (Change::ByCpu(at) | Change::ByGpu(at)) = change;
                let message =
                    format!("the stream at {:#x} changed near {at:#x} while it ran", stream.va());
                self.find(core, Rule::BodyRewritten, message);
            }
        }
    }

    /// Reports watched memory that changed.
    pub(crate) fn check_watched(&self, core: &mut Core, watched: &[(Rule, Snapshot)], when: &str) {
        for (rule, snapshot) in watched {
            if let Some(Change::ByCpu(at)) = snapshot.change(&self.mmu, &core.shadow) {
                let message = format!("memory at {:#x} changed near {at:#x} {when}", snapshot.va());
                self.find(core, *rule, message);
            }
        }
    }

    /// Writes a semaphore, if it is aligned.
    pub(crate) fn release(
        &mut self,
        core: &mut Core,
        agent: &Agent,
        write: &Write,
        unit: &'static str,
    ) -> Result<(), Failure> {
        let broken = write.reduction.is_some_and(|reduction| !reduction.exists(write.width));
        if !write.address.is_multiple_of(write.alignment()) || broken {
            let message = format!("pbdma_intr_0(0x02000000): {unit} cannot do {write:x?}");
            self.find(core, Rule::SemaphoreMisuse, message);
            return Ok(());
        }
        self.check_streams(core);
        let site = Site { mmu: &self.mmu, channel: self.id, agent, unit };
        within_host(write.address, 16)
            .map_err(|fault| MmuFault { access: Access::Write, ..fault })
            .and_then(|()| core.release(site, write))
            .map_err(|fault| Failure::mmu(fault, unit))
    }

    /// Records a method for listings.
    pub(crate) fn remember(&mut self, method: Method) {
        if self.recent.len() == RECENT {
            self.recent.pop_front();
        }
        self.recent.push_back(method);
    }

    /// Returns the last methods, decoded.
    pub(crate) fn listing(&self) -> Vec<String> {
        let mut lines: Vec<String> = self.recent.iter().map(|method| self.text(*method)).collect();
        if let Some(segment) = &self.segment {
            lines.push(format!(
                "at word {} of {} of entry {}, stream {:#x}",
                segment.at,
                segment.words.len(),
                segment.index,
                segment.address
            ));
        }
        lines
    }

    /// Decodes a method.
    pub(crate) fn text(&self, method: Method) -> String {
        let Method { subchannel, address, data } = method;
        let host = address != 0 && address < class::host::METHODS_END;
        let class = if host || address == 0 {
            class::HOST
        } else {
            self.bound[subchannel as usize % 8].unwrap_or_default()
        };
        match class::methods(class).and_then(|table| class::find(table, address)) {
            Some(known) => format!("{subchannel}: {}", known.decode(data)),
            None => format!("{subchannel}: method {address:#06x} = {data:#x}"),
        }
    }

    /// Drops all work, because the TSG was stopped or the channel closed.
    pub(crate) fn kill(&mut self) {
        self.alive = false;
        self.accepted.clear();
        self.segment = None;
        self.method = None;
        self.wait = None;
        self.work.clear();
        self.unreleased.clear();
        self.compute.forget();
        self.scout.watched.clear();
        self.banks.clear();
    }
}
