//! Execution of a comparison: checks that the engines are installed, agree with the model and run
//! under the same conditions, then runs the rounds in random order.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use tokio::sync::Notify;

use super::agreement::Agreement;
use super::facts::{self, Facts};
use super::fairness::{self, Difference};
use super::outcome::{Answer, Outcome};
use super::peers::{self, Peer};
use super::report::{Comparison, Entrant};
use super::workload::Workload;
use bench::{Observer, shuffle};
use telemetry::Probe;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Peer(#[from] peers::Error),
    #[error("{}", unfair(.0))]
    Unfair(Vec<Difference>),
    #[error("{own}, which the others are compared with, failed: {why}")]
    Alone { own: String, why: String },
}

fn unfair(differences: &[Difference]) -> String {
    let lines = differences
        .iter()
        .map(|d| format!("  {}: {} is {}, compared with {}", d.peer, d.name, d.found, d.wanted));
    let mut names: Vec<&str> = differences.iter().map(|d| d.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    format!(
        "the comparison is not fair:\n{}\nfix it, or allow it with --allow {}",
        lines.collect::<Vec<_>>().join("\n"),
        names.join(",")
    )
}

/// Settings of a comparison.
#[derive(Clone, Debug)]
pub struct Run {
    pub rounds: u32,
    /// Stop if the engines differ in something that changes the verdict.
    pub fair: bool,
    /// Names of the allowed differences.
    pub allow: BTreeSet<String>,
}

/// Reference for the answers.
pub struct Judge<'a> {
    /// Reference answers to the test prompts; empty if the reference was not computed.
    pub reference: &'a [Answer],
    /// Finds a token by its text.
    pub id: &'a dyn Fn(&str) -> Option<u32>,
}

/// Progress of a comparison.
#[derive(Clone, Debug)]
pub enum Progress<'a> {
    /// A peer is missing or failed; the others continue.
    Lost {
        peer: &'a str,
        why: &'a str,
    },
    /// A peer is answering the test prompts.
    Judging {
        peer: &'a str,
    },
    Round {
        peer: &'a str,
        round: u32,
        rounds: u32,
        done: u64,
        total: u64,
    },
}

/// Compares peers with the first of them. An interrupt ends the comparison with the results so far.
pub async fn run(
    work: Workload,
    peers: Vec<Peer>,
    settings: &Run,
    judge: &Judge<'_>,
    probe: &Arc<Probe>,
    interrupted: &Arc<Notify>,
    mut on_progress: impl FnMut(Progress<'_>),
) -> Result<Comparison, Error> {
    let mut found = Comparison::new(work, settings.rounds, !judge.reference.is_empty());
    let mut there = Vec::new();
    for peer in peers {
        let mut entrant = Entrant::new(&peer.name);
        let asked = async {
            peer.find().await?;
            on_progress(Progress::Judging { peer: &peer.name });
            peer.answers(&found.work, judge.id).await
        };
        let answered = tokio::select! {
            answered = asked => answered,
            () = interrupted.notified() => {
                found.interrupted = true;
                return Ok(found);
            }
        };
        match answered {
            Ok(answered) => {
                entrant.facts = answered.outcome.facts;
                entrant.agreement = Agreement::of(&answered.answers, judge.reference);
                there.push(peer);
            }
            Err(error) => {
                let why = errors::one_line(&error);
                on_progress(Progress::Lost { peer: &peer.name, why: &why });
                if found.entrants.is_empty() {
                    return Err(Error::Alone { own: peer.name, why });
                }
                entrant.lost = Some(why);
            }
        }
        found.entrants.push(entrant);
    }
    let observer = Observer::start(probe);
    let device = found.work.device.clone();
    observer.busy(true);
    let done = rounds(&mut found, &there, settings, interrupted, &mut on_progress).await;
    observer.busy(false);
    let (conditions, _, invalid) = observer.finish(&device);
    done?;
    found.conditions = conditions;
    found.invalid = invalid;
    for entrant in &found.entrants {
        let reasons = entrant.rounds.iter().flat_map(|round| &round.invalid);
        found.invalid.extend(reasons.map(|reason| format!("{}: {reason}", entrant.name)));
    }
    found.judge();
    Ok(found)
}

async fn rounds(
    found: &mut Comparison,
    peers: &[Peer],
    settings: &Run,
    interrupted: &Notify,
    on_progress: &mut impl FnMut(Progress<'_>),
) -> Result<(), Error> {
    let total = u64::from(settings.rounds) * peers.len() as u64;
    let mut done = 0;
    let mut lost = BTreeSet::new();
    for round in 1..=settings.rounds {
        let mut outcomes: BTreeMap<String, Outcome> = BTreeMap::new();
        let mut order: Vec<&Peer> = peers.iter().collect();
        shuffle(&mut order, found.work.seed, [round, 0]);
        for peer in order {
            if lost.contains(&peer.name) {
                continue;
            }
            let (rounds, name) = (settings.rounds, peer.name.as_str());
            on_progress(Progress::Round { peer: name, round, rounds, done, total });
            done += 1;
            let outcome = tokio::select! {
                outcome = peer.round(&found.work, round) => outcome,
                () = interrupted.notified() => {
                    // A round counts only if every engine finished it.
                    found.interrupted = true;
                    return Ok(());
                }
            };
            match outcome {
                Ok(outcome) => {
                    outcomes.insert(peer.name.clone(), outcome);
                }
                Err(error) => {
                    let why = errors::one_line(&error);
                    on_progress(Progress::Lost { peer: name, why: &why });
                    lost.insert(peer.name.clone());
                    let entrant = found.entrants.iter_mut().find(|e| e.name == peer.name);
                    if let Some(entrant) = entrant {
                        entrant.lost = Some(why);
                    }
                }
            }
        }
        for entrant in &mut found.entrants {
            let Some(outcome) = outcomes.remove(&entrant.name) else { continue };
            entrant.facts = outcome.facts.clone();
            entrant.rounds.push(outcome);
        }
        if round == 1 {
            differences(found, settings)?;
        }
    }
    Ok(())
}

/// Finds the differences, after the first round has reported all facts.
fn differences(found: &mut Comparison, settings: &Run) -> Result<(), Error> {
    let processor = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let processor = facts::processor(&processor);
    let first = found.entrants.first().map(|e| e.facts.clone()).unwrap_or_default();
    let others = found.entrants.iter().filter(|entrant| !entrant.rounds.is_empty());
    found.differences =
        others.flat_map(|entrant| of(&found.work, &processor, &first, entrant)).collect();
    let unasked = |d: &&Difference| d.decides && !settings.allow.contains(&d.name);
    let unasked: Vec<Difference> = found.differences.iter().filter(unasked).cloned().collect();
    if settings.fair && !unasked.is_empty() {
        return Err(Error::Unfair(unasked));
    }
    Ok(())
}

fn of(
    work: &Workload,
    processor: &BTreeSet<String>,
    first: &Facts,
    entrant: &Entrant,
) -> Vec<Difference> {
    let mut all = fairness::differences(work, processor, first, &entrant.name, &entrant.facts);
    let cached = entrant.rounds.iter().filter_map(|outcome| outcome.cached).sum::<u64>();
    if cached > 0 {
        all.push(Difference {
            name: "cache".into(),
            peer: entrant.name.clone(),
            found: format!("{cached} prompt tokens came from a cache"),
            wanted: "new prompts".into(),
            decides: true,
        });
    }
    all
}
