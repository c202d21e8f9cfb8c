//! Tuning of the kernels of a model: runs [`device::tune::beam`] over the model's cases and stores the results in
//! [`device::tune::Store`]. `bench` measures a case by time or by `counted` cycles, `pace` decides when.

pub mod bench;
pub mod counted;
pub mod pace;
mod quiet;

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::slice;
use std::time::Duration;

use self::bench::{CaseBench, Stopwatch, WallClock};
use self::counted::Counted;
use self::pace::Pace;
use device::tune::beam::{self, Failure, Outcome, Settings};
use device::tune::report::{Mode, Progress, Report, Row, Spec, Used};
use device::tune::store::{Journal, Loaded, StoreError, Topic, Tried, Verdict};
use device::tune::{
    Candidates, Case, Choice, Choices, Clock, Cost, DeviceKey, Heuristic, Record, Rejected, Scope,
    Space, Store, When, leader, of_matrix,
};
use device::{Device, Kernels, Request, Tunable};
use errors::one_line;
use plan::Plan;
pub(super) use quiet::Quiet;
use telemetry::memory;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    pub mode: Mode,
    pub dir: PathBuf,
    /// Parameters that are forced for every case that has them.
    pub force: BTreeMap<String, u32>,
    /// Bytes of weights that idle tuning alternates; determined by the caches if absent.
    pub cold_bytes: Option<u64>,
}

/// Fused groups of tensor operations, each with a plan.
pub type Groups = BTreeMap<Case, Plan>;

/// Cases to search.
#[derive(Clone, Copy, Debug)]
pub enum Cases<'a> {
    /// Matmuls of a model, which the case describes completely.
    Products(&'a [Case]),
    Groups(&'a Groups),
}

impl<'a> Cases<'a> {
    fn all(self) -> Vec<&'a Case> {
        match self {
            Self::Products(cases) => cases.iter().collect(),
            Self::Groups(groups) => groups.keys().collect(),
        }
    }

    fn plan(self, case: &Case) -> Option<&'a Plan> {
        match self {
            Self::Products(_) => None,
            Self::Groups(groups) => groups.get(case),
        }
    }
}

fn kernels(device: &dyn Device) -> Result<&dyn Tunable, Error> {
    device.tunable().ok_or_else(|| Error::Nothing(device.info().name.into()))
}

/// Reads the tuning file of a device: its path, the hardware, the entries.
pub(super) fn contents(
    device: &dyn Device,
    tuning: &Tuning,
) -> Result<(PathBuf, DeviceKey, Loaded), Error> {
    let key = kernels(device)?.key();
    let store = Store::new(&tuning.dir);
    let loaded = store.read(&key, Clock::Measured, &Kernels(device))?;
    Ok((store.path(&key), key, loaded))
}

/// Choices of a model's cases, and their origin. Compiles missing kernels, and calls `alive` meanwhile.
pub(super) fn choices(
    device: &dyn Device,
    cases: &[Case],
    tuning: &Tuning,
    alive: &dyn Fn(),
) -> (Choices, Used) {
    let (mut choices, mut used) = (Choices::default(), Used::default());
    let Some(tunable) = device.tunable() else { return (choices, used) };
    if tuning.mode != Mode::Off {
        let key = tunable.key();
        let store = Store::new(&tuning.dir);
        used.file = Some(store.path(&key));
        match store.read(&key, Clock::Measured, &Kernels(device)) {
            Ok(loaded) => {
                used.current = loaded.current.len();
                used.stale = loaded.stale.len();
                used.ignored = loaded.ignored.len();
                loaded.tell();
                used.damaged = loaded.damaged.map(|(_, why)| why);
                choices = loaded.current.into_iter().map(|r| (r.case, r.choice)).collect();
            }
            Err(error) => {
                tracing::warn!(file = ?used.file, %error, "nothing of the tuning file is used");
                used.damaged = Some(error.to_string());
            }
        }
        let wanted = || {
            alive();
            true
        };
        for case in cases {
            let Some(choice) = choices.get(case) else { continue };
            match tunable.compile(case, choice, &wanted) {
                Ok(()) => used.used += 1,
                Err(error) => {
                    tracing::warn!(%case, %error, "a tuned choice cannot be compiled");
                    choices.remove(case);
                }
            }
        }
    }
    for case in cases {
        let Some(space) = tunable.space(case) else { continue };
        let before = choices.get(case).unwrap_or(&space.heuristic);
        let mut choice = before.clone();
        let own = tuning.force.iter().filter(|(name, _)| space.parameter(name).is_some());
        let count = own.clone().count();
        choice.extend(own.map(|(name, value)| (name.clone(), *value)));
        if count == 0 || space.check(&choice).is_err() {
            continue;
        }
        used.possible += 1;
        if *before != choice {
            choices.insert(case.clone(), choice);
            used.forced += 1;
        }
    }
    (choices, used)
}

/// Distinct cases of a model's plans, in the order of the search.
pub(super) fn cases(
    device: &dyn Device,
    request: &Request<'_>,
) -> Result<Vec<Case>, device::Error> {
    let Some(tunable) = device.tunable() else { return Ok(Vec::new()) };
    let mut cases = tunable.cases(request)?;
    cases.sort_unstable();
    cases.dedup();
    cases.retain(|case| tunable.space(case).is_some());
    cases.sort_by_key(leader);
    Ok(cases)
}

/// Tunable groups of a network's plan: fused groups of tensor operations with their own kernels.
///
/// # Errors
/// [`Error::NoGroups`] where none are made, or none of these.
pub fn groups(device: &dyn Device, plan: &Plan) -> Result<Groups, Error> {
    let plans = slice::from_ref(plan);
    let request = Request { weights: &[], states: &[], plans, choices: None };
    let none = |why| Error::NoGroups { device: device.info().name.into(), why };
    let groups = kernels(device)?.groups(&request).map_err(|error| none(one_line(&error)))?;
    if groups.is_empty() {
        return Err(none("it makes no kernel for any of its groups".into()));
    }
    Ok(groups)
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{0} has no kernels that can be tuned")]
    Nothing(String),
    #[error("nothing of the network can be tuned on {device}: {why}")]
    NoGroups { device: String, why: String },
    #[error(transparent)]
    Uncounted(#[from] counted::Uncounted),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Clock of a search.
pub(super) fn stopwatch(spec: &Spec) -> Result<Box<dyn Stopwatch>, Error> {
    Ok(if spec.counted { Box::new(Counted::new()?) } else { Box::new(WallClock::default()) })
}

/// Searches cases and stores the result of each one at once. Stops when `pace` stops, or when a result cannot
/// be written. Stored cases are measured again only on request.
pub fn run(
    device: &dyn Device,
    cases: Cases<'_>,
    store: &Store,
    spec: &Spec,
    pace: &Pace,
    watch: &mut dyn Stopwatch,
    progress: &mut dyn FnMut(Progress),
) -> Result<Report, Error> {
    let info = device.info();
    let tunable = kernels(device)?;
    let key = tunable.key();
    let clock = watch.clock();
    let loaded = store.read(&key, clock, &Kernels(device))?;
    let journal = store.journal(&key)?;
    let found = |case: &Case| loaded.current.iter().find(|record| record.case == *case);
    let named = |case: &&Case| {
        spec.kernel.as_ref().is_none_or(|kernel| case.to_string().contains(kernel.as_str()))
    };
    let (wanted, known): (Vec<&Case>, Vec<&Case>) =
        cases.all().into_iter().filter(named).partition(|case| match found(case) {
            Some(record) if spec.verify => record.choice != record.heuristic.choice,
            Some(record) => {
                spec.again
                    || journal.is_unfinished(case, &record.source, clock)
                    || widened(device, record)
            }
            None => !spec.verify,
        });
    progress(Progress::Begun { cases: wanted.len(), known: known.len() });
    let mut search = Search {
        device,
        cases,
        spec,
        pace,
        watch,
        memory: Memory { store, key: &key, journal: &journal },
        choices: loaded.current.iter().map(|r| (r.case.clone(), r.choice.clone())).collect(),
        remembered: false,
        unwritten: None,
        total: wanted.len(),
        // Counts do not depend on caches.
        cold: spec.cold_bytes.unwrap_or_else(|| match clock {
            Clock::Measured => cold_bytes(device),
            Clock::Counted => 0,
        }),
    };
    let (mut rows, mut candidates) = (BTreeMap::new(), "none".to_owned());
    let mut queue: VecDeque<(usize, &Case)> = (1..).zip(wanted.iter().copied()).collect();
    while let Some((number, case)) = queue.pop_front() {
        let left = Duration::from_secs_f64(spec.budget_seconds).saturating_sub(pace.spent());
        if left.is_zero() || pace.is_stopped() {
            break;
        }
        // Time that a case does not use is available to the next cases, and at the end to unfinished ones.
        let resumed = rows.contains_key(&number);
        let sharing = if resumed { 1 } else { wanted.len() - rows.len() };
        pace.allot(left / u32::try_from(sharing).unwrap_or(u32::MAX));
        let Some(mut space) = tunable.space(case) else { continue };
        candidates.clone_from(&space.origin);
        search.pin(case, &mut space);
        let afresh = spec.again && !resumed;
        let mut full = false;
        let row = match search.case(number, afresh, case, &space, found(case), progress) {
            Ok((row, record, complete)) => {
                full = record.is_some_and(|record| !search.remember(record));
                if complete {
                    let done = store.conclude(&key, case);
                    noted(&mut search.unwritten, case, &done);
                } else if !spec.verify && pace.is_share_spent() {
                    queue.push_back((number, case));
                }
                row
            }
            Err(Failure::Stopped) => break,
            Err(failure) => Row::failed(case, &space, failure.to_string()),
        };
        progress(Progress::Case { row: row.clone() });
        rows.insert(number, row);
        if full {
            break;
        }
    }
    Ok(Report {
        device: info.description,
        file: store.path(&key),
        remembered: search.remembered,
        unwritten: search.unwritten,
        candidates,
        clock,
        left: wanted.len() - rows.len(),
        rows: rows.into_values().collect(),
        known: known.len(),
        seconds: pace.spent().as_secs_f64(),
    })
}

/// True if a compiler is available now, but was not when the case was searched.
fn widened(device: &dyn Device, record: &Record) -> bool {
    let now = device.tunable().and_then(|tunable| tunable.space(&record.case));
    let now = now.map(|space| space.candidates);
    record.candidates == Candidates::Prebuilt && matches!(now, Some(Candidates::Nvrtc(..)))
}

/// Bytes of weights that exceed every cache.
fn cold_bytes(device: &dyn Device) -> u64 {
    // Twice the L2 of the largest supported GPU.
    const GPU: u64 = 128 << 20;
    if device.info().threads == 0 {
        return GPU;
    }
    (2 * memory::last_level_cache().unwrap_or(16 << 20)).clamp(64 << 20, 512 << 20)
}

/// Tuning file of a device, and the journal of attempts.
#[derive(Clone, Copy)]
struct Memory<'a> {
    store: &'a Store,
    key: &'a DeviceKey,
    journal: &'a Journal,
}

struct Search<'a> {
    device: &'a dyn Device,
    cases: Cases<'a>,
    memory: Memory<'a>,
    spec: &'a Spec,
    pace: &'a Pace,
    watch: &'a mut dyn Stopwatch,
    choices: Choices,
    /// True if a record was stored, and the first error of storing.
    remembered: bool,
    unwritten: Option<String>,
    total: usize,
    cold: u64,
}

impl Search<'_> {
    /// Removes the choice of matrix-wide parameters that another case with the same matrices has decided.
    fn pin(&self, case: &Case, space: &mut Space) {
        let before = |other: &&Case| leader(other) < leader(case);
        let others: Choices = self
            .choices
            .iter()
            .filter(|(other, _)| before(other))
            .map(|(other, choice)| (other.clone(), choice.clone()))
            .collect();
        let of = |name: &str| of_matrix(&others, name, case.dtype, case.cols);
        let names = space.parameters.iter().filter(|p| p.scope != Scope::Launch).map(|p| p.name);
        let decided: Choice = names.filter_map(|name| Some((name.to_owned(), of(name)?))).collect();
        space.pin(&decided);
    }

    /// Stores a record. False on failure.
    fn remember(&mut self, record: Record) -> bool {
        let Memory { store, key, .. } = self.memory;
        let case = record.case.clone();
        self.choices.insert(case.clone(), record.choice.clone());
        let done = store.merge(key, &[record]).map(|_| ());
        let stored = noted(&mut self.unwritten, &case, &done);
        self.remembered |= stored;
        stored
    }

    fn case(
        &mut self,
        number: usize,
        afresh: bool,
        case: &Case,
        space: &Space,
        before: Option<&Record>,
        progress: &mut dyn FnMut(Progress),
    ) -> Result<(Row, Option<Record>, bool), Failure> {
        let group = self.cases.plan(case);
        let mut bench =
            CaseBench::new(self.device, case, group, space, self.cold, self.pace, self.watch)?;
        let settings =
            Settings { width: self.spec.beam, samples: self.spec.samples, ..Settings::default() };
        let (bytes, clock) = (bench.bytes(), bench.clock());
        let Memory { store, key, journal } = self.memory;
        let unwritten = &mut self.unwritten;
        let outcome = match before {
            Some(record) if self.spec.verify => {
                beam::verify(space, &record.choice, settings, &mut bench)?
            }
            _ => {
                let (source, heuristic) = (space.source.as_str(), &space.heuristic);
                let topic = Topic { case, source, clock, heuristic };
                let tried = if afresh { Vec::new() } else { journal.tried(topic) };
                if tried.is_empty() {
                    noted(unwritten, case, &store.conclude(key, case));
                }
                let bad: Vec<Choice> = before
                    .into_iter()
                    .flat_map(|r| &r.rejected)
                    .map(|r| r.choice.clone())
                    .collect();
                let mut hear = |choice: &Choice, verdict: &Verdict| {
                    let tried = Tried { choice: choice.clone(), verdict: verdict.clone() };
                    noted(unwritten, case, &store.note(key, topic, &tried));
                    progress(Progress::candidate(case, number, self.total, &tried));
                };
                let known = beam::Known { bad: &bad, tried: &tried };
                beam::search(space, settings, known, &mut bench, &mut hear)?
            }
        };
        let row = Row::new(case, space, &outcome, bytes, clock, self.spec.verify);
        // An incomplete search without a better choice is not stored as a record; its attempts are in the
        // journal. Verification changes nothing, so that matrix-wide parameters stay consistent.
        let worth = outcome.complete || outcome.choice != space.heuristic;
        let worth = worth && !self.spec.verify;
        let record = worth.then(|| record(case, space, &outcome, bytes, clock));
        Ok((row, record, outcome.complete && !self.spec.verify))
    }
}

/// True on success. Stores the first error for the report.
fn noted(unwritten: &mut Option<String>, case: &Case, done: &Result<(), StoreError>) -> bool {
    if let Err(error) = done {
        tracing::warn!(%case, %error, "what was found is not remembered");
        unwritten.get_or_insert_with(|| error.to_string());
    }
    done.is_ok()
}

fn record(case: &Case, space: &Space, outcome: &Outcome, bytes: u64, clock: Clock) -> Record {
    let ns = outcome.cost.median;
    let cost = match clock {
        Clock::Measured => {
            Cost::Measured { ns, interval_ns: outcome.cost.interval, gb_per_s: bytes as f64 / ns }
        }
        Clock::Counted => Cost::Counted(ns),
    };
    Record {
        case: case.clone(),
        source: space.source.clone(),
        choice: outcome.choice.clone(),
        cost,
        heuristic: Heuristic { choice: space.heuristic.clone(), cost: outcome.heuristic.median },
        when: When::now(),
        clocks: telemetry::clocks::summary(),
        candidates: space.candidates,
        rejected: outcome
            .rejected
            .iter()
            .map(|(choice, why)| Rejected { choice: choice.clone(), why: why.clone() })
            .collect(),
    }
}
