//! A model checker for every order of a submit's stores and of the loads after completion, at every
//! pace of the GPU.
//!
//! A store of the CPU waits in a buffer until the model makes it visible, in any order that
//! barriers and stores to the same address allow. Between any two steps the GPU may read GP_PUT by
//! itself, notice a doorbell, fetch an entry, finish one or make a body's result visible; and the
//! CPU may load results early, without effect if a barrier forbids it. The queue under test is the
//! real one.

use std::collections::HashSet;

use tegra::pushbuffer::{Entry, Operation, Payload, Release, decode};
use tegra::queue::{
    Port, Queue, QueueConfig, QueueError, SubmitError, TAIL_BYTES, TAIL_WORDS, Wake,
};

use super::at;

const ENTRIES: u32 = 8;
const SUBMISSIONS: u64 = 5;
const TAILS: u64 = 0x4000;
const TIMELINE: u64 = 0x8000;
const BODIES: u64 = 0x10_0000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Place {
    Entry(u32),
    Tail(u32, usize),
    Put,
    Doorbell,
}

/// The barriers in effect.
#[derive(Clone, Copy, Debug, Default)]
struct Barriers {
    work_before_put: bool,
    put_before_doorbell: bool,
    timeline_before_results: bool,
}

#[derive(Clone, Debug, Default)]
struct Machine {
    barriers: Barriers,
    /// Stores that are not visible yet, each with the number of barriers before it.
    buffered: Vec<(u32, Place, u64)>,
    epoch: u32,
    // Memory as the GPU sees it.
    ring: [u64; ENTRIES as usize],
    tails: [[u32; TAIL_WORDS]; ENTRIES as usize],
    put: u32,
    doorbell: bool,
    timeline: u64,
    // The GPU's state.
    known_put: u32,
    get: u32,
    /// A stream that was fetched and is not finished: the value that it releases, if it is a tail.
    running: Option<Option<u64>>,
    /// Entries run so far, body and tail by turns.
    ran: u64,
    /// Bodies that have written their result, and results that the CPU can see.
    written: [bool; SUBMISSIONS as usize],
    results: [bool; SUBMISSIONS as usize],
    /// Results that the CPU loaded before the timeline.
    loaded_early: Option<[bool; SUBMISSIONS as usize]>,
    /// Submissions whose results were used.
    used: u64,
}

impl Machine {
    fn store(&mut self, place: Place, value: u64) {
        self.buffered.push((self.epoch, place, value));
    }

    /// Makes buffered store `n` visible, unless an earlier one must come first.
    fn show(&mut self, n: usize) -> bool {
        let (epoch, place, value) = self.buffered[n];
        if self.buffered[..n].iter().any(|(before, other, _)| *before < epoch || *other == place) {
            return false;
        }
        self.buffered.remove(n);
        match place {
            Place::Entry(index) => self.ring[index as usize] = value,
            Place::Tail(index, word) => self.tails[index as usize][word] = value as u32,
            Place::Put => self.put = value as u32,
            Place::Doorbell => self.doorbell = true,
        }
        true
    }

    /// The GPU reads the entry at GET and its stream, as early as GP_PUT allows.
    fn fetch(&mut self) -> Result<(), String> {
        let entry = Entry::decode(self.ring[self.get as usize]).map_err(|e| e.to_string())?;
        let (submission, is_tail) = (self.ran / 2, self.ran % 2 == 1);
        let address = entry.address().get();
        if !is_tail {
            self.running = Some(None);
            let wanted = BODIES + submission * 4;
            return if address == wanted {
                Ok(())
            } else {
                Err(format!("stale body {address:#x}"))
            };
        }
        let slot = ((address - TAILS) / TAIL_BYTES) as usize;
        let value = submission + 1;
        let wanted = Release::new(at(TIMELINE), Payload::Long(value))
            .and_then(Release::with_timestamp)
            .map_err(|e| e.to_string())?;
        let found = decode(&self.tails[slot][..entry.words() as usize]);
        self.running = Some(Some(value));
        if found == Ok(vec![Operation::Release(wanted)]) {
            Ok(())
        } else {
            Err(format!("stale tail {found:?}"))
        }
    }

    fn finish(&mut self) {
        if let Some(value) = self.running.take() {
            match value {
                None => self.written[(self.ran / 2) as usize] = true,
                // The release waits for idle and is a system barrier: all results are visible
                // before it.
                Some(value) => {
                    self.results = self.written;
                    self.timeline = value;
                }
            }
            self.get = (self.get + 1) % ENTRIES;
            self.ran += 1;
        }
    }
}

/// The CPU polls the timeline and uses the results of completed work.
fn complete(queue: &mut Queue<Machine>) -> Result<(), String> {
    let reached = queue.poll().map_err(|e| e.to_string())?.value();
    let machine = queue.port_mut();
    let early = machine.loaded_early.take().filter(|_| !machine.barriers.timeline_before_results);
    let results = early.unwrap_or(machine.results);
    for submission in machine.used..reached {
        if !results[submission as usize] {
            return Err(format!("stale result of submission {submission}"));
        }
    }
    machine.used = reached;
    Ok(())
}

impl Port for Machine {
    fn store_entry(&mut self, index: u32, entry: u64) {
        self.store(Place::Entry(index), entry);
    }
    fn store_tail(&mut self, index: u32, word: usize, value: u32) {
        self.store(Place::Tail(index, word), value.into());
    }
    fn order_work_before_put(&mut self) {
        self.epoch += u32::from(self.barriers.work_before_put);
    }
    fn store_put(&mut self, index: u32) {
        self.store(Place::Put, index.into());
    }
    fn order_put_before_doorbell(&mut self) {
        self.epoch += u32::from(self.barriers.put_before_doorbell);
    }
    fn ring_doorbell(&mut self) {
        self.store(Place::Doorbell, 1);
    }
    fn load_timeline(&self) -> u64 {
        self.timeline
    }
}

/// All states reachable in one step, the CPU's first.
fn steps(queue: &Queue<Machine>) -> Result<Vec<Queue<Machine>>, String> {
    let mut next = Vec::new();
    let submitted = queue.last().value();
    if submitted < SUBMISSIONS {
        let mut after = queue.clone();
        let body = Entry::new(at(BODIES + submitted * 4), 1).map_err(|e| e.to_string())?;
        match after.submit(&[body], Wake::Quiet) {
            Ok(_) => next.push(after),
            Err(SubmitError::Full { .. }) => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let machine = queue.port();
    if machine.used < machine.timeline {
        let mut after = queue.clone();
        complete(&mut after)?;
        next.push(after);
    }
    let changed = |change: &dyn Fn(&mut Machine)| {
        let mut after = queue.clone();
        change(after.port_mut());
        after
    };
    if machine.used < SUBMISSIONS && machine.loaded_early.is_none() {
        next.push(changed(&|m| m.loaded_early = Some(m.results)));
    }
    for n in 0..machine.buffered.len() {
        let mut after = queue.clone();
        if after.port_mut().show(n) {
            next.push(after);
        }
    }
    // The GPU may still be processing an older doorbell: it may read GP_PUT at any time.
    if machine.known_put != machine.put {
        next.push(changed(&|m| m.known_put = m.put));
    }
    if machine.doorbell {
        next.push(changed(&|m| (m.doorbell, m.known_put) = (false, m.put)));
    }
    if machine.running.is_some() {
        next.push(changed(&Machine::finish));
    } else if machine.get != machine.known_put {
        let mut after = queue.clone();
        after.port_mut().fetch()?;
        next.push(after);
    }
    for n in (0..machine.written.len()).filter(|n| machine.written[*n] && !machine.results[*n]) {
        next.push(changed(&|m| m.results[n] = true));
    }
    Ok(next)
}

/// Returns `true` if the work is stuck on a GPU that reads GP_PUT only after a doorbell.
fn is_stuck(queue: &Queue<Machine>) -> bool {
    let machine = queue.port();
    let idle = machine.buffered.is_empty()
        && !machine.doorbell
        && machine.running.is_none()
        && machine.get == machine.known_put;
    idle && machine.timeline != queue.last().value()
}

/// Visits every state; returns their number, or the violation.
fn explore(barriers: Barriers) -> Result<usize, String> {
    let config =
        QueueConfig { entries: ENTRIES, tails: at(TAILS), timeline: at(TIMELINE), start: 0 };
    let machine = Machine { barriers, ..Machine::default() };
    let mut queue = Queue::new(machine, config).map_err(|e: QueueError| e.to_string())?;
    // Set-up stores are visible long before the first work.
    while !queue.port().buffered.is_empty() {
        queue.port_mut().show(0);
    }
    let mut seen = HashSet::new();
    let mut open = vec![queue];
    let mut finished = 0;
    while let Some(queue) = open.pop() {
        if !seen.insert(format!("{queue:?}")) {
            continue;
        }
        if is_stuck(&queue) {
            return Err(format!("lost work: {queue:?}"));
        }
        finished += usize::from(queue.port().used == SUBMISSIONS);
        open.extend(steps(&queue)?);
    }
    assert!(finished > 0, "no run completes");
    Ok(seen.len())
}

const ALL: Barriers =
    Barriers { work_before_put: true, put_before_doorbell: true, timeline_before_results: true };

#[test]
fn no_order_loses_or_corrupts_work() {
    let states = explore(ALL).unwrap();
    println!("{states} states");
    assert!(states > 1_000, "{states}");
}

#[test]
fn without_the_first_barrier_the_gpu_reads_stale_work() {
    let error = explore(Barriers { work_before_put: false, ..ALL }).unwrap_err();
    // A tail with an old value, or an entry that was never written.
    assert!(error.starts_with("stale tail") || error.contains("not a plain fetch"), "{error}");
}

#[test]
fn without_the_second_barrier_work_is_lost() {
    let error = explore(Barriers { put_before_doorbell: false, ..ALL }).unwrap_err();
    assert!(error.starts_with("lost work"), "{error}");
}

#[test]
fn without_the_third_barrier_the_cpu_reads_stale_results() {
    let error = explore(Barriers { timeline_before_results: false, ..ALL }).unwrap_err();
    assert!(error.starts_with("stale result"), "{error}");
}
