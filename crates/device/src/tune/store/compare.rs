//! Differences between two states of the tuning store: two files, or one file at two times.

use std::collections::BTreeMap;

use super::format::File;
use super::record::{Case, Clock, Record, When};

/// Change of one case.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Change<'a> {
    pub case: &'a Case,
    pub clock: Clock,
    /// Best record before, if any.
    pub before: Option<&'a Record>,
    pub after: Option<&'a Record>,
}

/// Latest record of each case up to a time.
fn latest(Snapshot { file, until }: Snapshot<'_>) -> BTreeMap<(&Case, Clock), &Record> {
    let mut latest: BTreeMap<(&Case, Clock), &Record> = BTreeMap::new();
    let found = |record: &&Record| until.is_none_or(|until| record.when <= until);
    for record in file.records.iter().filter(found) {
        let entry = latest.entry((&record.case, record.cost.clock())).or_insert(record);
        if record.when > entry.when {
            *entry = record;
        }
    }
    latest
}

#[derive(Clone, Copy, Debug)]
pub struct Snapshot<'a> {
    pub file: &'a File,
    /// Time; now if absent.
    pub until: Option<When>,
}

/// Every case of either state with its latest record. Only records that are still in the file
/// count: a later entry of the same kernels replaces an earlier one.
#[must_use]
pub fn compare<'a>(before: Snapshot<'a>, after: Snapshot<'a>) -> Vec<Change<'a>> {
    let (before, after) = (latest(before), latest(after));
    let mut changes: BTreeMap<(&Case, Clock), Change<'a>> = BTreeMap::new();
    for (&(case, clock), &record) in &before {
        let change = Change { case, clock, before: Some(record), after: None };
        changes.insert((case, clock), change);
    }
    for (&(case, clock), &record) in &after {
        let none = Change { case, clock, before: None, after: None };
        changes.entry((case, clock)).or_insert(none).after = Some(record);
    }
    changes.into_values().collect()
}
