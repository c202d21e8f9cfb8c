//! Comparison of two profiles, experiment by experiment.

use serde::Serialize;

use super::unit::{by_cpu, is_timed, show};
use super::{Experiment, Profile, Value, Verdict};

/// Relative difference up to which two times or rates count as the same.
const SAME: f64 = 0.25;

/// Relation of a fact in two profiles.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Comparison {
    /// Equal, or within the tolerance for a time.
    Same,
    Differs,
    /// Ratio, second over first.
    Factor(f64),
    /// Time of the CPU, or something else that the first does not model.
    NotModelled,
    /// Absent in the second.
    Missing,
}

#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Row {
    pub experiment: String,
    pub question: String,
    /// The fact; none for the verdicts.
    pub fact: Option<String>,
    /// Value in the first profile.
    pub one: String,
    /// Value in the second.
    pub other: String,
    pub comparison: Comparison,
}

/// Compares two profiles: for each experiment of either a row with the verdicts, then one for each
/// fact.
#[must_use]
pub fn compare(one: &Profile, other: &Profile) -> Vec<Row> {
    let mut rows = Vec::new();
    for theirs in &other.experiments {
        experiment(one.experiment(&theirs.name), Some(theirs), theirs, &mut rows);
    }
    for ours in &one.experiments {
        if other.experiment(&ours.name).is_none() {
            experiment(Some(ours), None, ours, &mut rows);
        }
    }
    rows
}

fn experiment(
    one: Option<&Experiment>,
    other: Option<&Experiment>,
    either: &Experiment,
    rows: &mut Vec<Row>,
) {
    let row = |fact: Option<&str>, one: String, other: String, comparison| Row {
        experiment: either.name.clone(),
        question: either.question.clone(),
        fact: fact.map(str::to_owned),
        one,
        other,
        comparison,
    };
    rows.push(row(None, verdict(one), verdict(other), verdicts(one, other)));
    let (Some(one), Some(other)) = (one, other) else { return };
    let mut names: Vec<&String> = one.facts.keys().chain(other.facts.keys()).collect();
    names.sort();
    names.dedup();
    for name in names {
        let text = |value: Option<&Value>| value.map_or("-".into(), |value| show(name, value));
        let (ours, theirs) = (one.facts.get(name), other.facts.get(name));
        rows.push(row(Some(name), text(ours), text(theirs), facts(name, ours, theirs)));
    }
}

fn verdict(experiment: Option<&Experiment>) -> String {
    experiment.map_or("-".into(), |experiment| experiment.verdict.name().into())
}

fn verdicts(one: Option<&Experiment>, other: Option<&Experiment>) -> Comparison {
    let answer = |experiment: Option<&Experiment>| {
        experiment.map(|experiment| experiment.verdict).filter(|verdict| verdict.is_answer())
    };
    match (answer(one), answer(other)) {
        (Some(Verdict::Measured), Some(Verdict::Measured)) => Comparison::Same,
        (Some(one), Some(other)) if one == other => Comparison::Same,
        (Some(_), Some(_)) => Comparison::Differs,
        _ => Comparison::Missing,
    }
}

fn facts(name: &str, one: Option<&Value>, other: Option<&Value>) -> Comparison {
    let (one, other) = match (one, other) {
        (None, _) => return Comparison::NotModelled,
        _ if by_cpu(name) => return Comparison::NotModelled,
        (_, None) => return Comparison::Missing,
        (Some(one), Some(other)) => (one, other),
    };
    match (one.number(), other.number()) {
        (Some(one), Some(other)) if is_timed(name) => {
            let near = (one - other).abs() <= SAME * one.abs().max(other.abs());
            match other / one {
                _ if near => Comparison::Same,
                factor if factor.is_finite() => Comparison::Factor(factor),
                _ => Comparison::Differs,
            }
        }
        (Some(one), Some(other)) if one == other => Comparison::Same,
        _ if one == other => Comparison::Same,
        _ => Comparison::Differs,
    }
}
