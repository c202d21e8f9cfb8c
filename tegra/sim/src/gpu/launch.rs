//! Launches: QMDs from the compute scheduler to the shader code, their dependents and releases.
//!
//! [`super::qmd`] decodes QMDs; [`super::compute`] has the methods that send them.

use parking_lot::Mutex;

use super::access::{Core, Failure, SHADER, Site, SmMemory, within_host};
use super::channel::{Channel, Flow, LaunchJob, Task, Watched, Work};
use super::compute::{pcas2, schedules};
use super::constants::copy_banks;
use super::copy::injected;
use super::dependencies::{Agent, Kind};
use super::qmd::{BYTES, Bank, Chance, Dependent, DependentAction, Qmd, SkedError, WINDOW, esr};
use super::registers::Dependence;
use super::shadow::Snapshot;
use super::switch::{PICTURE, Timeout};
use crate::config::Occasion;
use crate::finding::SmFault;
use crate::finding::{Finding, Rule, notifier};
use crate::mmu::{Access, Mmu, MmuFault, PAGE, Piece};
use crate::quirks::{Freeze, never_return};
use crate::trace::Event;

/// Largest number of launches of a watched QMD chain.
const CHAIN: usize = 4096;
/// Number of launches in a QMD chain that counts as endless: well above any useful chain, and below
/// the driver's limit of 3 s.
const ENDLESS: u32 = 1 << 16;
/// Warps of a TPC for which the `local-memory-refused` machine requires local memory: 96 for each
/// SM.
const LARGE_WARPS_PER_TPC: u64 = 192;
/// Offset of the parameters in constant bank 0.
const PARAMETERS: u64 = 0x160;
/// Address bit that a bit error flips.
const FLIPPED: u64 = 1 << 38;
/// Smallest size of a program in bytes.
const LEAST_CODE: u64 = 16;

fn sked(error: &SkedError, qmd: u64) -> Failure {
    let message =
        format!("sked exception: esr {:#010x}, QMD {qmd:#x}: {}", 1u32 << error.bit, error.message);
    Failure::new(Rule::SkedException, notifier::GR_EXCEPTION, message)
}

impl Channel {
    /// Executes a PCAS action on a QMD.
    pub(crate) fn pcas(&mut self, core: &mut Core, qmd: u64, number: u32) -> Flow {
        match number {
            pcas2::PCAS_ACTION_NOP => {}
            pcas2::PCAS_ACTION_INVALIDATE => self.invalidate_qmd(qmd)?,
            pcas2::PCAS_ACTION_PREFETCH => {
                self.read_qmd(core, qmd)?;
            }
            pcas2::PCAS_ACTION_DECREMENT_DEPENDENCE => {
                let agent = core.dependencies.issue(self.id, Kind::Overlapping);
                self.count_down(core, qmd, &agent, 0)?;
            }
            pcas2::PCAS_ACTION_INCREMENT_DEPENDENCE => {
                let counter = self.read_qmd(core, qmd)?.dependence_counter();
                let entry = self.compute.dependents.entry(qmd);
                entry.or_insert(Dependence { left: counter, scheduled: false }).left += 1;
            }
            number if schedules(number) => {
                if number != pcas2::PCAS_ACTION_SCHEDULE
                    && number != pcas2::PCAS_ACTION_PREFETCH_SCHEDULE
                {
                    self.invalidate_qmd(qmd)?;
                }
                let counter = self.read_qmd(core, qmd)?.dependence_counter();
                let entry = self.compute.dependents.entry(qmd);
                let dependence = entry.or_insert(Dependence { left: counter, scheduled: false });
                dependence.scheduled = true;
                if dependence.left == 0 {
                    self.compute.dependents.remove(&qmd);
                    self.issue(core, Task::Launch(LaunchJob { qmd, place: 0 }), Kind::Overlapping);
                }
            }
            number => {
                self.find(core, Rule::NotModelled, format!("PCAS action {number:#x}"));
            }
        }
        Ok(())
    }

    fn invalidate_qmd(&mut self, qmd: u64) -> Result<(), Failure> {
        let active = |task: &Task| matches!(task, Task::Launch(job) if job.qmd == qmd);
        if self.work.iter().any(|work| active(&work.task)) {
            let message = "it is active".to_owned();
            return Err(sked(&SkedError { bit: esr::INVALIDATE_ACTIVE_QMD, message }, qmd));
        }
        self.compute.dependents.remove(&qmd);
        Ok(())
    }

    fn count_down(
        &mut self,
        core: &mut Core,
        qmd: u64,
        by: &Agent,
        place: u32,
    ) -> Result<(), Failure> {
        let dependence = match self.compute.dependents.get(&qmd) {
            Some(dependence) => *dependence,
            None => {
                let left = self.read_qmd(core, qmd)?.dependence_counter();
                Dependence { left, scheduled: false }
            }
        };
        let Some(left) = dependence.left.checked_sub(1) else {
            let message = "its dependence counter is 0".to_owned();
            return Err(sked(&SkedError { bit: esr::DEPENDENCE_COUNTER_UNDERFLOW, message }, qmd));
        };
        if left == 0 && dependence.scheduled {
            self.compute.dependents.remove(&qmd);
            self.start_dependent(core, qmd, by, place, true);
        } else {
            self.compute.dependents.insert(qmd, Dependence { left, ..dependence });
        }
        Ok(())
    }

    /// Queues a launch started by the completion of another, at a position of its QMD chain.
    fn start_dependent(&mut self, core: &mut Core, qmd: u64, by: &Agent, place: u32, joins: bool) {
        if core.quirks.chain_cut.is_some_and(|cut| place >= cut) {
            return;
        }
        self.chained += 1;
        let agent = by.follower(core.dependencies.next_serial(self.id), joins);
        let task = Task::Launch(LaunchJob { qmd, place });
        self.work.push_front(Work { agent, task, watched: Vec::new() });
    }

    fn read_qmd(&self, core: &mut Core, qmd: u64) -> Result<Qmd, Failure> {
        let agent = core.dependencies.issue(self.id, Kind::Immediate);
        self.read_qmd_as(core, qmd, &agent)
    }

    fn read_qmd_as(&self, core: &mut Core, qmd: u64, agent: &Agent) -> Result<Qmd, Failure> {
        let mut bytes = [0; BYTES];
        let site = self.site(agent, "SKED");
        within_host(qmd, BYTES as u64)
            .and_then(|()| core.read(site, qmd, &mut bytes))
            .map_err(|fault| Failure::mmu(fault, "SKED"))?;
        Ok(Qmd::from_bytes(&bytes))
    }

    /// Takes snapshots of the QMD and constants of a launch and of its dependents.
    pub(crate) fn watch_launch(&self, core: &Core, qmd: u64, watched: &mut Watched) {
        let mut next = Some(qmd);
        for _ in 0..CHAIN {
            let Some(at) = next.take() else { return };
            let snapshot = Snapshot::take(&self.mmu, &core.shadow, at, BYTES as u64);
            watched.memory.push((Rule::QmdRewritten, snapshot));
            let Some(qmd) = Qmd::peek(&self.mmu, at) else { return };
            watched.banks.push((at, copy_banks(&self.mmu, &core.shadow, &qmd)));
            next = qmd.dependent().ok().flatten().map(|dependent| dependent.qmd);
            if watched.memory.iter().any(|(_, seen)| Some(seen.va()) == next) {
                return;
            }
        }
    }

    pub(crate) fn run_launch(
        &mut self,
        core: &mut Core,
        agent: &Agent,
        job: LaunchJob,
    ) -> Result<(), Failure> {
        let chance = Chance { seed: core.random.next(), time: core.clock.now() };
        let before = core.findings.len();
        let result = self.launch(core, agent, job, chance);
        let of_code =
            |finding: &&Finding| matches!(finding.rule, Rule::UninitialisedUse | Rule::SharedRace);
        match (&result, core.findings[before..].iter().find(of_code)) {
            (Err(failure), _) => self.capture(core, job.qmd, chance, failure),
            (Ok(()), Some(found)) => {
                let failure = Failure::new(found.rule, 0, found.message.clone());
                self.capture(core, job.qmd, chance, &failure);
            }
            (Ok(()), None) => {}
        }
        result
    }

    fn launch(
        &mut self,
        core: &mut Core,
        agent: &Agent,
        job: LaunchJob,
        chance: Chance,
    ) -> Result<(), Failure> {
        let at = job.qmd;
        let cut_short = core.injection.fires(&Occasion::MmuFault);
        if self.chained > ENDLESS {
            let message = format!("ctxsw timeout: launches start each other for ever, QMD {at:#x}");
            return Err(Failure::new(Rule::ChannelTimeout, notifier::IDLE_TIMEOUT, message));
        }
        if core.quirks.freeze == Some(Freeze::Launch) {
            let time = core.clock.now();
            core.trace.record(time, || Event::Injected { what: "freeze at a launch".into() });
            never_return();
        }
        let qmd = self.read_qmd_as(core, at, agent)?;
        if core.injection.fires(&Occasion::BitError) {
            self.flip(core, &qmd);
        }
        let (major, minor) = qmd.version();
        if (major, minor) != (3, 0) {
            let what = format!("class error: QMD {at:#x} has version {major}.{minor}, not 3.0");
            return Err(Failure::new(Rule::SkedException, notifier::GR_EXCEPTION, what));
        }
        if let Some(name) = qmd.reserved() {
            self.find(core, Rule::QmdReserved, format!("QMD {at:#x}: {name}"));
        }
        let dependent = qmd.dependent().unwrap_or_else(|what| {
            self.find(core, Rule::NotModelled, format!("QMD {at:#x}: {what}"));
            None
        });
        if qmd.is_queue() {
            self.find(core, Rule::NotModelled, format!("QMD {at:#x} is a queue"));
            return Ok(());
        }
        let launch = qmd.launch(self.id, at, &self.compute.launch, chance);
        let mut launch = launch.map_err(|error| sked(&error, at))?;
        if core.quirks.local_memory_refused {
            launch.check_local_memory(LARGE_WARPS_PER_TPC).map_err(|error| sked(&error, at))?;
        }
        if cut_short {
            launch.cut_short();
        }
        for (name, window) in [("local", launch.local_window), ("shared", launch.shared_window)] {
            if let Some(mapped) = self.mmu.first_mapped(window, WINDOW) {
                let message = format!("{mapped:#x} lies in the {name} window at {window:#x}");
                self.find(core, Rule::MappingInWindow, message);
            }
        }
        self.fill_caches(core, agent, &qmd)?;
        let watched =
            [(Rule::QmdRewritten, Snapshot::take(&self.mmu, &core.shadow, at, BYTES as u64))];
        let banks =
            self.banks.begin(at).unwrap_or_else(|| copy_banks(&self.mmu, &core.shadow, &qmd));

        core.switches.begin(self.tsg, self.id, core.clock.now());
        let mut reads = None;
        let result = match core.engine.take_if(|_| !launch.grid.contains(&0)) {
            Some(mut engine) => {
                let site = Site { mmu: &self.mmu, channel: self.id, agent, unit: SHADER };
                let (core_of, constants) = (Mutex::new(&mut *core), Mutex::new(None));
                let memory = SmMemory { site, core: core_of, constants };
                let result = engine.launch(&launch, &memory);
                reads = memory.constants.into_inner();
                core.engine = Some(engine);
                result.map(|work| Some(Box::new(work)))
            }
            None => Ok(None),
        };
        let least = if job.place > 0 { core.latency.dependent } else { core.latency.launch };
        let work = result.as_ref().ok().and_then(Option::as_ref);
        let ticks =
            work.map_or(least, |work| core.latency.launch_of(least, work, &launch, core.sms));
        let (time, channel) = (core.clock.advance(ticks), self.id);
        core.trace.record(time, || Event::Launch {
            channel,
            qmd: at,
            program: launch.program,
            grid: launch.grid,
            block: launch.block,
            work: work.cloned(),
        });
        result.map_err(sm_failure)?;
        self.check_timeouts(core)?;
        if core.switches.launched(self.tsg, self.id, core.clock.now()) {
            core.clock.advance(PICTURE);
        }
        self.check_watched(core, &watched, "while the launch ran");
        for bank in &banks {
            bank.check(core, &self.mmu, self.id, at, reads.as_ref());
        }
        if cut_short {
            return Err(injected(at, "SM"));
        }

        self.complete(core, agent, job, &qmd, dependent)
    }

    /// Writes the semaphores of a completed launch, and triggers its dependent.
    fn complete(
        &mut self,
        core: &mut Core,
        agent: &Agent,
        job: LaunchJob,
        qmd: &Qmd,
        dependent: Option<Dependent>,
    ) -> Result<(), Failure> {
        let at = job.qmd;
        match qmd.releases() {
            Ok(_) if core.quirks.no_qmd_release => {}
            Ok(releases) => {
                for write in &releases {
                    self.release(core, agent, write, "QMD")?;
                }
            }
            Err(what) => self.find(core, Rule::SemaphoreMisuse, format!("QMD {at:#x}: {what}")),
        }
        let place = job.place + 1;
        match dependent.map(|dependent| (dependent.action, dependent.qmd)) {
            None => {}
            Some((DependentAction::Schedule, next)) => {
                let counter = self.read_qmd_as(core, next, agent)?.dependence_counter();
                let entry = self.compute.dependents.entry(next);
                let dependence = entry.or_insert(Dependence { left: counter, scheduled: false });
                dependence.scheduled = true;
                if dependence.left == 0 {
                    self.compute.dependents.remove(&next);
                    self.start_dependent(core, next, agent, place, false);
                }
            }
            Some((DependentAction::DecrementDependence, next)) => {
                self.count_down(core, next, agent, place)?;
            }
            Some((DependentAction::Queue, next)) => {
                self.find(core, Rule::NotModelled, format!("QMD {at:#x} acts on queue {next:#x}"));
            }
        }
        Ok(())
    }

    /// Flips a bit of the first address among the parameters of a launch, in memory.
    fn flip(&self, core: &mut Core, qmd: &Qmd) {
        let [Some(bank), ..] = qmd.constants() else { return };
        let at = bank.address + PARAMETERS;
        let Ok(pieces) = self.mmu.resolve(at, size_of::<u64>() as u64, Access::Read) else {
            return;
        };
        let [piece] = &pieces[..] else { return };
        let mut word = [0; size_of::<u64>()];
        let read = piece.buffer.read(piece.offset, &mut word);
        let flipped = u64::from_le_bytes(word) ^ FLIPPED;
        if read.and_then(|()| piece.buffer.write(piece.offset, &flipped.to_le_bytes())).is_ok() {
            core.shadow.wrote(piece);
            let time = core.clock.now();
            core.trace
                .record(time, || Event::Injected { what: format!("bit-error at {at:#x}").into() });
        }
    }

    /// Handles the timeouts of other clients that waited for the engine.
    pub(crate) fn check_timeouts(&self, core: &mut Core) -> Result<(), Failure> {
        let now = core.clock.now();
        for timeout in core.switches.timeouts(self.tsg, now) {
            let Timeout { channel, waited_ms, limit_ms } = timeout;
            core.trace.record(now, || Event::SwitchTimeout { channel, waited_ms, limit_ms });
            if timeout.is_fatal() {
                let message = format!(
                    "ctxsw timeout: others have waited {waited_ms} ms for the compute engine, limit \
                     {limit_ms} ms"
                );
                // Injected: a replay of the bundle succeeds, because the launch itself is correct.
                let failure = Failure::new(Rule::ChannelTimeout, notifier::IDLE_TIMEOUT, message);
                return Err(Failure { injected: true, ..failure });
            }
        }
        Ok(())
    }

    /// Reads constants and code through their caches, as the launch does at its start.
    fn fill_caches(&self, core: &mut Core, agent: &Agent, qmd: &Qmd) -> Result<(), Failure> {
        if qmd.invalidates_constants() {
            core.shadow.constants.invalidate();
        }
        if qmd.invalidates_instructions() {
            core.shadow.instructions.invalidate();
        }
        if qmd.invalidates_data() {
            core.invalidate_data(true);
        }
        for (index, bank) in qmd.constants().into_iter().enumerate() {
            let Some(Bank { address, bytes, invalidate }) = bank else { continue };
            let mut first = [0; 16];
            let site = self.site(agent, "constant cache");
            core.read(site, address, &mut first[..bytes.min(16) as usize])
                .map_err(|fault| Failure::mmu(fault, "constant cache"))?;
            for piece in reachable(&self.mmu, address, bytes.into()) {
                if invalidate {
                    core.shadow.constants.invalidate_range(&piece);
                }
                if core.shadow.constants.read(&piece).is_some() {
                    let message = format!("bank {index} at {address:#x}");
                    self.find(core, Rule::StaleConstantCache, message);
                }
            }
        }
        let program = qmd.program();
        let mut first = [0; LEAST_CODE as usize];
        core.read(self.site(agent, "instruction cache"), program, &mut first)
            .map_err(|fault| Failure::mmu(fault, "instruction cache"))?;
        let (ahead, bytes) = qmd.prefetch();
        for (va, bytes) in [(program, LEAST_CODE), (ahead, bytes)] {
            for piece in reachable(&self.mmu, va, bytes) {
                if core.shadow.instructions.read(&piece).is_some() {
                    self.find(core, Rule::StaleInstructionCache, format!("program {program:#x}"));
                }
            }
        }
        Ok(())
    }
}

/// Returns the pieces of a range up to the first unmapped page, because a bank may declare more
/// bytes than are mapped.
fn reachable(mmu: &Mmu, va: u64, bytes: u64) -> Vec<Piece> {
    let end = va.saturating_add(bytes);
    let mut pieces = Vec::new();
    let mut at = va;
    while at < end {
        let until = end.min((at / PAGE + 1).saturating_mul(PAGE));
        let Ok(found) = mmu.resolve(at, until - at, Access::Read) else { break };
        pieces.extend(found);
        at = until;
    }
    pieces
}

fn sm_failure(fault: SmFault) -> Failure {
    let mut failure = match &fault {
        SmFault::Mmu(fault) => Failure::mmu(MmuFault { ..*fault }, "SM"),
        SmFault::Exception { name, sm, global_esr, warp_esr, warp_pc, message } => {
            let message = format!(
                "sm machine check err. gpc_id({}), tpc_id({}); sm hww global {global_esr:#010x} \
                 warp {warp_esr:#010x}, pc {warp_pc:#x}: {name}: {message}",
                sm / 8,
                sm / 2 % 4,
            );
            Failure::new(Rule::SmException, notifier::GR_EXCEPTION, message)
        }
    };
    failure.sm = Some(fault);
    failure
}
