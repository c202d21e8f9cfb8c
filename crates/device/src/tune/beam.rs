//! Beam search over a tuning space, guided by measurements through [`Bench`].
//!
//! The search moves from the default choice to neighbours: one parameter, one step. Each candidate
//! is checked (its output is compared with the reference's), then timed in pairs with the best
//! choice so far, with alternating samples, so that disturbances affect both. The median of the
//! pairs' ratios counts: a candidate is dropped as soon as the median's interval excludes a win,
//! and accepted as soon as it excludes a loss. The `width` best continue to the next level. At the end
//! the best is compared with the default once more on fresh samples, because the best of many may
//! only have been lucky. If it does not win, the default stays.

use std::collections::{BTreeMap, BTreeSet};

use super::median::Estimate;
use super::store::{Tried, Verdict};
use super::{Choice, Space};

/// Reason why a candidate has no time, or why a search ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Failure {
    /// Wrong output or a fault: never to be chosen.
    #[error("{0}")]
    Rejected(String),
    /// Cancelled; results so far are kept.
    #[error("stopped")]
    Stopped,
    /// Measuring is no longer possible.
    #[error("{0}")]
    Broken(String),
}

pub trait Bench {
    /// Executes a choice and compares its output with the reference.
    ///
    /// # Errors
    ///
    /// [`Failure::Rejected`] if it is wrong or faults.
    fn check(&mut self, choice: &Choice) -> Result<(), Failure>;

    /// Takes one sample of a choice's cost. It has been checked before.
    ///
    /// # Errors
    ///
    /// [`Failure::Rejected`] if it faults.
    fn time(&mut self, choice: &Choice) -> Result<f64, Failure>;

    /// Returns whether time is nearly up: only confirm the best candidate.
    fn hurry(&self) -> bool {
        false
    }
}

/// Limits of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Number of choices that continue to the next level, 1 to 8.
    pub width: usize,
    /// Levels: steps from the heuristic's choice.
    pub depth: usize,
    /// Most pairs of samples per candidate.
    pub pairs: usize,
    /// Most samples of the whole search.
    pub samples: u64,
}

impl Settings {
    /// Allowed widths.
    pub const WIDTHS: std::ops::RangeInclusive<usize> = 1..=8;
}

impl Default for Settings {
    fn default() -> Self {
        Self { width: 3, depth: 8, pairs: 16, samples: 4000 }
    }
}

/// Knowledge from earlier searches.
#[derive(Clone, Copy, Debug, Default)]
pub struct Known<'a> {
    /// Candidates that were wrong or faulted; they are skipped.
    pub bad: &'a [Choice],
    /// Results of an interrupted search from the same default; these are not tried again.
    pub tried: &'a [Tried],
}

#[derive(Clone, Debug, PartialEq)]
pub struct Outcome {
    /// Choice to use: the default unless something is better.
    pub choice: Choice,
    pub cost: Estimate,
    pub heuristic: Estimate,
    /// Cost of the default divided by that of the choice, over pairs; exactly 1 if they are the
    /// same.
    pub gain: Estimate,
    pub rejected: Vec<(Choice, String)>,
    /// Candidates tried, including earlier ones.
    pub tried: usize,
    /// Candidates that an interrupted search had tried.
    pub before: usize,
    pub samples: u64,
    /// False if it was stopped or ran out of samples.
    pub complete: bool,
}

/// Searches a space. Calls `progress` for each newly tried candidate.
///
/// # Errors
///
/// [`Failure::Rejected`] if the default choice is wrong, [`Failure::Stopped`] if there was no time
/// to find anything, [`Failure::Broken`].
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

/// Compares a choice with the default once more, as at the end of a search.
///
/// # Errors
///
/// As for [`search`]; [`Failure::Rejected`] also if the choice is wrong.
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

/// Alternating samples of two choices.
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
    /// Remaining samples.
    left: u64,
    heuristic: Choice,
    checked: BTreeSet<Choice>,
    /// Samples of the default choice.
    base: Vec<f64>,
    /// A choice that has won against the default, with its samples.
    proved: Option<(Choice, Duel)>,
    rejected: Vec<(Choice, String)>,
    tried: usize,
    before: usize,
}

impl<'a> Search<'a> {
    /// Checks, warms up and times the default choice.
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

    /// Sample of a choice that was timed before: a failure now is not the candidate's fault.
    fn incumbent(&mut self, choice: &Choice) -> Result<f64, Failure> {
        self.sample(choice).map_err(|failure| match failure {
            Failure::Rejected(why) => Failure::Broken(why),
            failure => failure,
        })
    }

    /// Samples reserved for the final comparison and one before it.
    const fn last_meetings(&self) -> u64 {
        8 * self.settings.pairs as u64 + 2
    }

    /// Returns true if every level was searched.
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
        // Choices and their cost relative to the default's, best first.
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
                    // Keeps the samples that the final comparison needs.
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
        // Candidates that looked better than the best, but not clearly, get a second chance.
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

    /// Earlier verdict of a candidate. Candidates that others are compared with are checked again.
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

    /// Compares a candidate with the best choice so far, whose cost is `cost`.
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

    /// Checks a candidate and times it against an incumbent, between a minimum and a maximum number
    /// of pairs, until the faster one is clear.
    fn duel(
        &mut self,
        candidate: &Choice,
        incumbent: &Choice,
        [least, most]: [usize; 2],
    ) -> Result<Duel, Failure> {
        self.check(candidate)?;
        // Warms up code and branch predictors; weights stay cold in every bench.
        self.sample(candidate)?;
        let mut duel = Duel { candidate: Vec::new(), incumbent: Vec::new(), ratios: Vec::new() };
        while duel.ratios.len() < most && (duel.ratios.len() < least || !duel.won() && !duel.lost())
        {
            // Alternates the order, so that cache effects help both equally often.
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

    /// Final comparison with the default: at least all pairs on fresh samples, more while
    /// undecided.
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
