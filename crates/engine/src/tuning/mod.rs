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
    /// Parameters that are set for every case that has them, whatever is remembered.
    pub force: BTreeMap<String, u32>,
    /// Bytes of weights that take turns in the search of idle time; the caches decide when absent.
    pub cold_bytes: Option<u64>,
}

/// Groups of tensor operations, each as a plan of its own.
pub type Groups = BTreeMap<Case, Plan>;

/// What is searched.
#[derive(Clone, Copy, Debug)]
pub enum Cases<'a> {
    /// A model's products, of which a case says all.
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

/// What the store holds about a device: its file, the hardware, the entries.
pub(super) fn contents(
    device: &dyn Device,
    tuning: &Tuning,
) -> Result<(PathBuf, DeviceKey, Loaded), Error> {
    let key = kernels(device)?.key();
    let store = Store::new(&tuning.dir);
    let loaded = store.read(&key, Clock::Measured, &Kernels(device))?;
    Ok((store.path(&key), key, loaded))
}

/// The choices for a model's cases, and where they come from.
/// What has to be compiled is compiled now; `alive` is called while that goes on.
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

/// The cases of a model's plans, each once, in the order in which they are searched.
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

/// What of a network's plan can be tuned: the kernels that are made for its groups of tensor operations.
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

/// What a search is timed by.
pub(super) fn stopwatch(spec: &Spec) -> Result<Box<dyn Stopwatch>, Error> {
    Ok(if spec.counted { Box::new(Counted::new()?) } else { Box::new(WallClock::default()) })
}

/// Searches cases and remembers each as soon as it is found. Stops where `pace` does; what was found
/// until then is kept, and what is known is not measured again unless asked for. Stops, too, when what was
/// found cannot be written down.
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
        // A count knows no caches.
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
        // What a case does not use is the next ones', and in the end the unfinished ones', one by one.
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

/// Whether there is a compiler now, and was none when a case was searched.
fn widened(device: &dyn Device, record: &Record) -> bool {
    let now = device.tunable().and_then(|tunable| tunable.space(&record.case));
    let now = now.map(|space| space.candidates);
    record.candidates == Candidates::Prebuilt && matches!(now, Some(Candidates::Nvrtc(..)))
}

/// Bytes of weights that no cache keeps from one turn to the next.
fn cold_bytes(device: &dyn Device) -> u64 {
    // Twice the L2 of the largest GPU that there are kernels for.
    const GPU: u64 = 128 << 20;
    if device.info().threads == 0 {
        return GPU;
    }
    (2 * memory::last_level_cache().unwrap_or(16 << 20)).clamp(64 << 20, 512 << 20)
}

/// What is known of a device, and where what is tried is noted.
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
    /// Whether something was written to the store, and the first thing that could not be.
    remembered: bool,
    unwritten: Option<String>,
    total: usize,
    cold: u64,
}

impl Search<'_> {
    /// Leaves no choice of what is a matrix's to a case for whose matrices another one has decided.
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

    /// Writes a record down; false when that fails.
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
        // What was not searched to its end and found nothing is no record, but what it tried is known.
        // Verifying changes nothing, so that what is a matrix's stays what the others were found under.
        let worth = outcome.complete || outcome.choice != space.heuristic;
        let worth = worth && !self.spec.verify;
        let record = worth.then(|| record(case, space, &outcome, bytes, clock));
        Ok((row, record, outcome.complete && !self.spec.verify))
    }
}

/// Whether something was written down. The first failure is kept for the report.
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
