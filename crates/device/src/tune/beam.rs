//! Beam search over a space, by measuring. Pure: what is measured is behind [`Bench`].
//!
//! From the heuristic's choice the search moves to neighbours: one parameter, one step. Each one is
//! first checked (its output against the reference's), then timed in pairs with the best choice so
//! far, one sample of each in turn, so that a slow minute of the machine touches both. What counts is the
//! median of the pairs' ratios; a candidate is dropped as soon as the interval of that median
//! excludes a win, and taken as soon as it excludes anything else. The `width` best go on to the next
//! level. At the end the best one meets the heuristic's choice once more, on fresh samples: of many
//! candidates one looks fast by luck, and luck does not come twice. It is chosen if it wins; if not, the
//! heuristic stays.

use std::collections::{BTreeMap, BTreeSet};

use super::median::Estimate;
use super::store::{Tried, Verdict};
use super::{Choice, Space};

/// Why a candidate has no time, or a search no end.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Its output is wrong, or it faulted: never to be chosen.
    #[error("{0}")]
    Rejected(String),
    /// Whoever asked wants no more; what was found is kept.
    #[error("stopped")]
    Stopped,
    /// Nothing more can be measured.
    #[error("{0}")]
    Broken(String),
}

pub trait Bench {
    /// Executes a choice and compares its output with the reference.
    ///
    /// # Errors
    /// [`Failure::Rejected`] when it is wrong or faults.
    fn check(&mut self, choice: &Choice) -> Result<(), Failure>;

    /// One sample of what a choice costs; it has been checked before.
    ///
    /// # Errors
    /// [`Failure::Rejected`] when it faults now.
    fn time(&mut self, choice: &Choice) -> Result<f64, Failure>;

    /// Whether time is nearly up: no further candidates, only what proves the best one.
    fn hurry(&self) -> bool {
        false
    }
}

/// How far a search goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Choices that go on to the next level, 1 to 8.
    pub width: usize,
    /// Levels: steps from the heuristic's choice.
    pub depth: usize,
    /// Most pairs of samples for one candidate.
    pub pairs: usize,
    /// Samples of the whole search at most.
    pub samples: u64,
}

impl Settings {
    /// Widths that make sense.
    pub const WIDTHS: std::ops::RangeInclusive<usize> = 1..=8;
}

impl Default for Settings {
    fn default() -> Self {
        Self { width: 3, depth: 8, pairs: 16, samples: 4000 }
    }
}

/// What is known before a search begins.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// Candidates that are wrong or fault: not tried.
    pub bad: &'a [Choice],
    /// What a search that was interrupted has tried, from the same heuristic's choice: not tried again.
    pub tried: &'a [Tried],
}

#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// The choice to use: better than the heuristic's, or that.
    pub choice: Choice,
    pub cost: Estimate,
    pub heuristic: Estimate,
    /// The heuristic's cost over the choice's, pair by pair; exactly 1 when they are the same.
    pub gain: Estimate,
    pub rejected: Vec<(Choice, String)>,
    /// Candidates tried, those included.
    pub tried: usize,
    /// Of these, what an interrupted search had tried before.
    pub before: usize,
    pub samples: u64,
    /// False when it was stopped or ran out of samples before all levels were searched.
    pub complete: bool,
}

/// Searches a space. `progress` hears of each candidate that has been tried now.
///
/// # Errors
/// [`Failure::Rejected`] when the heuristic's own choice is wrong, [`Failure::Stopped`] when there
/// was no time to find anything, [`Failure::Broken`].
pub fn search(
    space: &Space,
    settings: Settings,
    known: Known<'_>,
    bench: &mut dyn Bench,
    progress: &mut dyn FnMut(&Choice, &Verdict),
) -> Result<Outcome, Failure> {
    let mut search = Search::begin(space, settings, bench)?;
    let complete = match search.levels(space, known, progress) {
        Ok(complete) => complete,
        Err(Failure::Stopped) => false,
        Err(failure) => return Err(failure),
    };
    search.outcome(complete)
}

/// Times a choice against the heuristic's once more, as at the end of a search: whether it still wins.
///
/// # Errors
/// As [`search`]; [`Failure::Rejected`] also when the choice is wrong.
pub fn verify(
    space: &Space,
    choice: &Choice,
    settings: Settings,
    bench: &mut dyn Bench,
) -> Result<Outcome, Failure> {
    let mut search = Search::begin(space, settings, bench)?;
    search.tried = 1;
    if *choice != space.heuristic {
        search.check(choice)?;
        search.settle(choice)?;
    }
    search.outcome(true)
}

/// Samples of two choices in turn.
struct Duel {
    candidate: Vec<f64>,
    incumbent: Vec<f64>,
    ratios: Vec<f64>,
}

impl Duel {
    fn won(&self) -> bool {
        Estimate::is_below(&self.ratios, 1.0)
    }

    fn lost(&self) -> bool {
        Estimate::exceeds(&self.ratios, 1.0)
    }

    fn ratio(&self) -> f64 {
        Estimate::of(&self.ratios).map_or(f64::INFINITY, |e| e.median)
    }
}

struct Search<'a> {
    bench: &'a mut dyn Bench,
    settings: Settings,
    /// Samples that may still be taken.
    left: u64,
    heuristic: Choice,
    checked: BTreeSet<Choice>,
    /// Samples of the heuristic's choice.
    base: Vec<f64>,
    /// A choice that has won against the heuristic's, and how.
    proved: Option<(Choice, Duel)>,
    rejected: Vec<(Choice, String)>,
    tried: usize,
    before: usize,
}

impl<'a> Search<'a> {
    /// With the heuristic's choice checked, warmed up, timed.
    fn begin(space: &Space, settings: Settings, bench: &'a mut dyn Bench) -> Result<Self, Failure> {
        let mut search = Self {
            bench,
            settings,
            left: settings.samples,
            heuristic: space.heuristic.clone(),
            checked: BTreeSet::new(),
            base: Vec::new(),
            proved: None,
            rejected: Vec::new(),
            tried: 0,
            before: 0,
        };
        search.check(&space.heuristic)?;
        search.sample(&space.heuristic)?;
        for _ in 0..super::median::FEWEST {
            let time = search.sample(&space.heuristic)?;
            search.base.push(time);
        }
        Ok(search)
    }

    fn sample(&mut self, choice: &Choice) -> Result<f64, Failure> {
        self.left = self.left.checked_sub(1).ok_or(Failure::Stopped)?;
        let time = self.bench.time(choice)?;
        if time.is_finite() && time > 0.0 {
            return Ok(time);
        }
        Err(Failure::Broken(format!("a sample of {time}")))
    }

    /// A sample of a choice that has been timed before: that it fails now is not the candidate's fault.
    fn incumbent(&mut self, choice: &Choice) -> Result<f64, Failure> {
        self.sample(choice).map_err(|failure| match failure {
            Failure::Rejected(why) => Failure::Broken(why),
            failure => failure,
        })
    }

    /// Samples of the last meeting and one before it.
    const fn last_meetings(&self) -> u64 {
        8 * self.settings.pairs as u64 + 2
    }

    /// True when every level was searched.
    fn levels(
        &mut self,
        space: &Space,
        known: Known<'_>,
        progress: &mut dyn FnMut(&Choice, &Verdict),
    ) -> Result<bool, Failure> {
        let heuristic = self.heuristic.clone();
        let mut seen: BTreeSet<Choice> = known.bad.iter().cloned().collect();
        seen.insert(heuristic.clone());
        let before: BTreeMap<&Choice, &Verdict> =
            known.tried.iter().map(|tried| (&tried.choice, &tried.verdict)).collect();
        // Choices with their cost in units of the heuristic's, best first.
        let mut beam = vec![(1.0, heuristic.clone())];
        let mut best = (1.0, heuristic.clone());
        let mut complete = true;
        for _ in 0..self.settings.depth {
            let near: Vec<Choice> = beam.iter().flat_map(|(_, c)| space.neighbours(c)).collect();
            let mut level = Vec::new();
            for candidate in near {
                if !seen.insert(candidate.clone()) {
                    continue;
                }
                let verdict = match before.get(&candidate) {
                    Some(&verdict) => {
                        self.before += 1;
                        self.recall(&candidate, verdict)?
                    }
                    // What the last meeting needs is not spent before.
                    None if self.left < self.last_meetings() || self.bench.hurry() => {
                        complete = false;
                        break;
                    }
                    None => {
                        let verdict = self.judge(&candidate, &best.1, best.0)?;
                        progress(&candidate, &verdict);
                        verdict
                    }
                };
                self.tried += 1;
                match verdict {
                    Verdict::Faster(cost) => {
                        level.push((cost, candidate.clone()));
                        best = (cost, candidate);
                    }
                    Verdict::Slower(cost) => level.push((cost, candidate)),
                    Verdict::Rejected(why) => self.rejected.push((candidate, why)),
                }
            }
            let fresh = level.len();
            beam.extend(level.iter().cloned());
            beam.sort_by(|a, b| a.0.total_cmp(&b.0));
            beam.truncate(self.settings.width.max(1));
            if fresh == 0 || !complete || !level.iter().any(|new| beam.contains(new)) {
                break;
            }
        }
        // Whoever looked better than the best, but not clearly, gets a second chance.
        let better = |(cost, choice): &&(f64, Choice)| *cost < best.0 && *choice != best.1;
        for (_, choice) in beam.iter().filter(better).cloned().collect::<Vec<_>>() {
            if self.left < self.last_meetings() {
                break;
            }
            let incumbent = best.1.clone();
            match self.duel(&choice, &incumbent, [self.settings.pairs; 2]) {
                Ok(duel) if duel.won() => best = (duel.ratio() * best.0, choice),
                Ok(_) => {}
                Err(Failure::Rejected(why)) => self.rejected.push((choice, why)),
                Err(failure) => return Err(failure),
            }
        }
        if best.1 != heuristic {
            self.settle(&best.1)?;
        }
        Ok(complete)
    }

    /// What was said of a candidate; that it is right is seen once more of those that others are compared
    /// with.
    fn recall(&mut self, candidate: &Choice, verdict: &Verdict) -> Result<Verdict, Failure> {
        match verdict {
            Verdict::Faster(_) => match self.check(candidate) {
                Err(Failure::Rejected(why)) => Ok(Verdict::Rejected(why)),
                Err(failure) => Err(failure),
                Ok(()) => Ok(verdict.clone()),
            },
            verdict => Ok(verdict.clone()),
        }
    }

    fn check(&mut self, choice: &Choice) -> Result<(), Failure> {
        if !self.checked.contains(choice) {
            self.bench.check(choice)?;
            self.checked.insert(choice.clone());
        }
        Ok(())
    }

    /// How a candidate does beside the best choice so far, which costs `cost`.
    fn judge(&mut self, candidate: &Choice, best: &Choice, cost: f64) -> Result<Verdict, Failure> {
        match self.duel(candidate, best, [0, self.settings.pairs]) {
            Ok(duel) => {
                let (cost, won) = (duel.ratio() * cost, duel.won());
                if won && *best == self.heuristic {
                    self.proved = Some((candidate.clone(), duel));
                }
                Ok(if won { Verdict::Faster(cost) } else { Verdict::Slower(cost) })
            }
            Err(Failure::Rejected(why)) => Ok(Verdict::Rejected(why)),
            Err(failure) => Err(failure),
        }
    }

    /// Checks a candidate and times it against an incumbent, at least and at most so many times, until it
    /// is clear which is faster.
    fn duel(
        &mut self,
        candidate: &Choice,
        incumbent: &Choice,
        [least, most]: [usize; 2],
    ) -> Result<Duel, Failure> {
        self.check(candidate)?;
        // Warm-up: code and branch predictors, not weights, which a bench keeps cold.
        self.sample(candidate)?;
        let mut duel = Duel { candidate: Vec::new(), incumbent: Vec::new(), ratios: Vec::new() };
        while duel.ratios.len() < most && (duel.ratios.len() < least || !duel.won() && !duel.lost())
        {
            // In turn who comes first: what one leaves in the caches helps each as often.
            let (a, b) = if duel.ratios.len().is_multiple_of(2) {
                let a = self.sample(candidate)?;
                (a, self.incumbent(incumbent)?)
            } else {
                let b = self.incumbent(incumbent)?;
                (self.sample(candidate)?, b)
            };
            if *incumbent == self.heuristic {
                self.base.push(b);
            }
            duel.candidate.push(a);
            duel.incumbent.push(b);
            duel.ratios.push(a / b);
        }
        Ok(duel)
    }

    /// The last meeting with the heuristic's choice: fresh samples, all pairs at least, and more while
    /// it is open who is faster.
    fn settle(&mut self, best: &Choice) -> Result<(), Failure> {
        let heuristic = self.heuristic.clone();
        let pairs = self.settings.pairs;
        match self.duel(best, &heuristic, [pairs, 3 * pairs]) {
            Ok(duel) => self.proved = duel.won().then(|| (best.clone(), duel)),
            Err(Failure::Rejected(why)) => {
                self.proved = self.proved.take().filter(|(choice, _)| choice != best);
                self.rejected.push((best.clone(), why));
            }
            Err(failure) => return Err(failure),
        }
        Ok(())
    }

    fn outcome(self, complete: bool) -> Result<Outcome, Failure> {
        let none = || Failure::Broken("no samples".into());
        let of = |samples: &[f64]| Estimate::of(samples).ok_or_else(none);
        let (choice, cost, heuristic, gain) = match self.proved {
            Some((choice, duel)) => {
                let gains: Vec<f64> = duel.ratios.iter().map(|ratio| 1.0 / ratio).collect();
                (choice, of(&duel.candidate)?, of(&duel.incumbent)?, of(&gains)?)
            }
            None => {
                let (base, same) = (of(&self.base)?, Estimate { median: 1.0, interval: [1.0; 2] });
                (self.heuristic, base, base, same)
            }
        };
        Ok(Outcome {
            choice,
            cost,
            heuristic,
            gain,
            rejected: self.rejected,
            tried: self.tried,
            before: self.before,
            samples: self.settings.samples - self.left,
            complete,
        })
    }
}

#[cfg(test)]
mod tests;
