//! Verification of a record: do its numbers follow from its samples, and does it contain every fact
//! that a number needs?

use serde::Serialize;

use crate::statistics::Summary;
use bench::Report;

/// Relative tolerance, for rounding on another machine.
const EQUAL: f64 = 1e-9;

/// Findings of one record.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Numbers that do not follow from the samples, with both values.
    pub wrong: Vec<String>,
    /// Facts that are needed to repeat the measurement but are missing.
    pub missing: Vec<&'static str>,
}

/// Recomputes every number of the report.
pub fn verify(report: &Report) -> Findings {
    let mut wrong = Vec::new();
    let mut check = |what: String, stated: Option<f64>, found: Option<f64>| {
        let same = match (stated, found) {
            (Some(a), Some(b)) => (a - b).abs() <= EQUAL * a.abs().max(b.abs()),
            (a, b) => a.is_none() && b.is_none(),
        };
        if !same {
            let text = |x: Option<f64>| x.map_or_else(|| "nothing".to_owned(), |x| x.to_string());
            wrong.push(format!("{what} is {}, not {}", text(found), text(stated)));
        }
    };
    let mut summary = |name: &str, stated: &Summary| {
        let found = Summary::of(stated.samples.clone())?;
        for (what, stated, found) in [
            ("median", Some(stated.median), Some(found.median)),
            ("mean", Some(stated.mean), Some(found.mean)),
            ("minimum", Some(stated.min), Some(found.min)),
            ("maximum", Some(stated.max), Some(found.max)),
            ("standard deviation", stated.stddev, found.stddev),
            ("spread", stated.spread, found.spread),
            // Records of older builds have no coefficient of variation.
            ("coefficient of variation", stated.cv.or(found.cv), found.cv),
        ] {
            check(format!("{name}: {what}"), stated, found);
        }
        Some(found)
    };
    let roof = report.roof.bytes_per_second;
    let mut recomputed = Vec::new();
    let mut empty = Vec::new();
    for row in &report.rows {
        match summary(&row.name, &row.tokens_per_second) {
            Some(speed) => recomputed.push((row, row.clone().at(speed, roof))),
            None => empty.push(format!("{}: has no usable sample", row.name)),
        }
    }
    if let Some(first) = &report.first_token
        && summary("time to first token", &first.seconds).is_none()
    {
        empty.push("time to first token: has no usable sample".into());
    }
    for (row, found) in recomputed {
        for (what, stated, found) in [
            (
                "speed of a sequence",
                row.tokens_per_second_per_sequence,
                found.tokens_per_second_per_sequence,
            ),
            ("bytes per second", row.bytes_per_second, found.bytes_per_second),
            ("fraction of the roof", row.fraction_of_roof, found.fraction_of_roof),
            ("operations per second", row.flops_per_second, found.flops_per_second),
        ] {
            check(format!("{}: {what}", row.name), Some(stated), Some(found));
        }
        let (stated, found) = (report.manifest.repetitions, row.tokens_per_second.samples.len());
        check(
            format!("{}: number of samples", row.name),
            Some(f64::from(stated)),
            Some(found as f64),
        );
    }
    wrong.extend(empty);
    if report.rows.is_empty() {
        wrong.push("it has no test".into());
    }
    Findings { wrong, missing: missing(report) }
}

fn missing(report: &Report) -> Vec<&'static str> {
    let manifest = &report.manifest;
    let provenance = manifest.provenance.as_ref();
    let commit = manifest.commit.as_deref();
    [
        ("the commit of the program", commit.is_some()),
        ("the changes since that commit", commit.is_none_or(|c| !c.ends_with("-dirty"))),
        ("the SHA-256 of the model", provenance.is_some_and(|p| p.model_sha256.is_some())),
        ("the types of the weights", provenance.is_some_and(|p| !p.weight_types.is_empty())),
        ("the type of the KV cache", provenance.is_some_and(|p| !p.kv_type.is_empty())),
        ("the allowed processors", manifest.machine.affinity.is_some()),
        ("the version of the kernel", manifest.machine.kernel.is_some()),
        ("the spread: there is only one repetition", manifest.repetitions > 1),
        ("the memory bandwidth", report.roof.bytes_per_second > 0.0),
    ]
    .into_iter()
    .filter_map(|(what, there)| (!there).then_some(what))
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::report;

    #[test]
    fn numbers_that_contradict_their_samples_are_named() {
        let mut report = report();
        report.rows.truncate(1);
        assert_eq!(verify(&report).wrong, [""; 0]);
        let wrong = |change: &dyn Fn(&mut Report)| {
            let mut changed = report.clone();
            change(&mut changed);
            verify(&changed).wrong
        };
        assert_eq!(
            wrong(&|r| r.rows[0].tokens_per_second.median = 120.0),
            ["pp512: median is 100, not 120"]
        );
        assert_eq!(
            wrong(&|r| r.rows[0].fraction_of_roof = 0.9),
            ["pp512: fraction of the roof is 0.0125, not 0.9"]
        );
        let dropped = wrong(&|r| {
            r.rows[0].tokens_per_second.samples.remove(2);
        });
        assert!(dropped.iter().any(|w| w.contains("number of samples is 2, not 3")), "{dropped:?}");
        assert!(dropped.iter().any(|w| w.contains("median is 100.5, not 100")), "{dropped:?}");
        let none = wrong(&|r| r.rows[0].tokens_per_second.samples.clear());
        assert_eq!(none, ["pp512: has no usable sample"]);
        assert_eq!(wrong(&|r| r.rows.clear()), ["it has no test"]);
        let first = wrong(&|r| {
            if let Some(first) = &mut r.first_token {
                first.seconds.spread = None;
            }
        });
        assert_eq!(first, ["time to first token: spread is 0.005, not nothing"]);
    }

    #[test]
    fn missing_facts_are_named() {
        let mut report = report();
        let missing = verify(&report).missing;
        for what in ["the commit of the program", "the SHA-256 of the model"] {
            assert!(missing.contains(&what), "{missing:?}");
        }
        report.manifest.commit = Some("abc-dirty".into());
        assert!(verify(&report).missing.contains(&"the changes since that commit"));
    }
}
