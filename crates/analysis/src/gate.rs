//! Speed gate: compares a run with an earlier record, or with another build measured alternately.
//!
//! The verdict of a test follows from the ratio of its speeds, now over before, and from the
//! interval of that ratio. *Slower*: the interval is below 1 and the ratio is off by at least the
//! threshold. *Same*: the interval excludes a slowdown by the threshold. *Faster* mirrors *slower*.
//! Otherwise the gate cannot tell.
//!
//! Processes of the same build differ. Alternating runs use few processes, so their interval is
//! widened by [`FLOOR`] on both sides. Against a record, the noise of both runs counts as if each
//! had one repetition, plus the spread between runs of one commit in the history.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::statistics::{CONFIDENCE, FLOOR, Interval, Pairs, Summary, student_t_975};
use bench::{Manifest, Report, Row, Test};

/// Rule of the verdicts, printed below the table.
pub const RULE: &str = "slower: the interval is below 1 and the ratio is off by at least the threshold; same: the \
     interval excludes a slowdown by the threshold; otherwise the gate cannot tell.";

/// Fraction by which clocks of an Orin may differ between compared runs.
const SAME_CLOCK: f64 = 0.02;

/// Verdicts from best to worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verdict {
    Faster,
    Same,
    CannotTell,
    Slower,
    /// The machine changed during a run, so its numbers are invalid.
    Invalid,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Gate {
    /// Worst verdict of all tests.
    pub verdict: Verdict,
    /// Fraction by which a test may become slower, 0 to 1.
    pub threshold: f64,
    pub before: Build,
    pub now: Build,
    pub rows: Vec<TestVerdict>,
    /// Description of the noise between processes, one line.
    pub noise: String,
    /// Reasons why the numbers are invalid.
    pub invalid: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Build {
    pub version: String,
    pub commit: Option<String>,
    pub date: String,
}

/// Verdict of one test; speeds in tokens per second.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TestVerdict {
    pub name: String,
    pub before: f64,
    pub now: f64,
    /// Ratio of now over before.
    pub ratio: f64,
    /// `None` if there is only one repetition.
    pub interval: Option<Interval>,
    pub verdict: Verdict,
    /// Set if both builds were measured alternately.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<Pairs>,
}

/// Reason why two runs cannot be compared.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Difference {
    pub what: &'static str,
    pub before: String,
    pub now: String,
    /// Advice for the user.
    pub remedy: &'static str,
}

/// Returns conditions that differ between two runs and must not; empty for comparable runs. An
/// unknown condition never differs.
pub fn differences(before: &Manifest, now: &Manifest) -> Vec<Difference> {
    let mut found = Vec::new();
    let mut check = |what, remedy, before: Option<String>, now: Option<String>| {
        if let (Some(before), Some(now)) = (before, now)
            && before != now
        {
            found.push(Difference { what, before, now, remedy });
        }
    };
    let mut each = |what, remedy, of: &dyn Fn(&Manifest) -> Option<String>| {
        check(what, remedy, of(before), of(now));
    };
    each("the model", "use the record's with -m", &|m| {
        Some(format!("{} {}, {} bytes", m.model.id, m.model.file_type, m.model.bytes))
    });
    each("the SHA-256 of the model's file", "measure the same file, or save a new record", &|m| {
        m.provenance.as_ref()?.model_sha256.clone()
    });
    each("the device", "use the record's with --backend", &|m| Some(m.device.clone()));
    each("the machine", "measure on the record's machine, or save a record here", &|m| {
        Some(m.device_description.clone())
    });
    each("the number of threads", "use the record's with --threads", &|m| {
        Some(m.threads.to_string())
    });
    each("the processors allowed", "start orind with the record's `taskset`", &|m| {
        m.machine.affinity.clone()
    });
    each("the tokens of a sequence", "load the model with the record's --context", &|m| {
        Some(m.context.to_string())
    });
    each("the type of build", "compare release builds with release builds", &|m| {
        Some(if m.debug_build { "debug" } else { "release" }.to_owned())
    });
    each("the power mode", "set the record's with `sudo nvpmodel -m`", &|m| {
        m.conditions.before.power_mode.as_ref().map(ToString::to_string)
    });
    if before.conditions.before.orin && now.conditions.before.orin {
        let clocks = |m: &Manifest| {
            let own = if m.threads == 0 { m.conditions.gpu_hz } else { m.conditions.cpu_hz };
            [own, m.conditions.memory_hz].map(|range| range.map(|range| range.max))
        };
        let names = ["the clock", "the memory clock"];
        for (what, pair) in names.into_iter().zip(clocks(before).into_iter().zip(clocks(now))) {
            let (Some(was), Some(is)) = pair else { continue };
            if (is / was - 1.0).abs() > SAME_CLOCK {
                let mhz = |hz: f64| Some(format!("{:.0} MHz", hz / 1e6));
                check(what, "pin the clocks with `sudo jetson_clocks`", mhz(was), mhz(is));
            }
        }
    }
    found
}

impl Gate {
    /// Compares a run with a record; `history` contains other runs of this machine.
    ///
    /// # Errors
    /// The conditions that differ.
    pub fn of_record(
        before: &Report,
        now: &Report,
        history: &[&Report],
        threshold: f64,
    ) -> Result<Self, Vec<Difference>> {
        let pairs = matching(before, now)?;
        let alike: Vec<&Report> = history
            .iter()
            .copied()
            .filter(|old| old.invalid.is_empty())
            .filter(|old| differences(&old.manifest, &now.manifest).is_empty())
            .collect();
        let mut known = false;
        let judge = |(old, new): (&Row, &Row)| {
            let between = between(&alike, new.test);
            known |= between.is_some();
            let (was, is) = (&old.tokens_per_second, &new.tokens_per_second);
            let ratio = is.median / was.median;
            let reach = reach(was, is, between);
            let interval = reach.map(|reach| Interval {
                low: ratio * (-reach).exp(),
                high: ratio * reach.exp(),
                wanted: CONFIDENCE,
                confidence: CONFIDENCE,
            });
            let verdict = verdict(ratio, interval, threshold);
            TestVerdict {
                name: new.name.clone(),
                before: was.median,
                now: is.median,
                ratio,
                interval,
                verdict,
                pairs: None,
            }
        };
        let rows = pairs.into_iter().map(judge).collect();
        let noise = if known {
            "the prediction intervals of both runs, and the spread between runs of one commit in the history"
        } else {
            "the prediction intervals of both runs; the history has no commit with two runs like this"
        };
        Ok(Self::new(before, now, rows, threshold, noise))
    }

    /// Compares two builds that were measured alternately, so that their samples are pairs.
    ///
    /// # Errors
    /// The conditions that differ.
    pub fn of_pairs(
        before: &Report,
        now: &Report,
        threshold: f64,
    ) -> Result<Self, Vec<Difference>> {
        let matched = matching(before, now)?;
        // The error rate of all tests together is one in twenty gates.
        let confidence = 1.0 - (1.0 - CONFIDENCE) / matched.len().max(1) as f64;
        let judge = |(old, new): (&Row, &Row)| {
            let (was, is) = (&old.tokens_per_second, &new.tokens_per_second);
            let pairs = Pairs::at(&was.samples, &is.samples, confidence);
            let ratio = pairs.as_ref().map_or(is.median / was.median, |pairs| pairs.median);
            let interval = pairs.as_ref().filter(|pairs| pairs.interval.reached()).map(|pairs| {
                let Interval { low, high, .. } = pairs.interval;
                Interval { low: low * (1.0 - FLOOR), high: high * (1.0 + FLOOR), ..pairs.interval }
            });
            let mut verdict = verdict(ratio, interval, threshold);
            let drifted = pairs.as_ref().is_some_and(|pairs| !pairs.resolved);
            if drifted && matches!(verdict, Verdict::Slower | Verdict::Faster) {
                verdict = Verdict::CannotTell;
            }
            TestVerdict {
                name: new.name.clone(),
                before: was.median,
                now: is.median,
                ratio,
                interval,
                verdict,
                pairs,
            }
        };
        let rows = matched.into_iter().map(judge).collect();
        let noise = "alternating runs of few processes; the interval is widened by 1 % on both sides because \
                     other processes of the same builds differ";
        Ok(Self::new(before, now, rows, threshold, noise))
    }

    fn new(
        before: &Report,
        now: &Report,
        rows: Vec<TestVerdict>,
        threshold: f64,
        noise: &str,
    ) -> Self {
        let invalid = [("before", before), ("now", now)].into_iter().flat_map(|(which, report)| {
            report.invalid.iter().map(move |reason| format!("{which}: {reason}"))
        });
        let invalid: Vec<String> = invalid.collect();
        let build = |manifest: &Manifest| Build {
            version: manifest.version.clone(),
            commit: manifest.commit.clone(),
            date: manifest.date.clone(),
        };
        let worst = rows.iter().map(|row| row.verdict).max().unwrap_or(Verdict::CannotTell);
        Self {
            verdict: if invalid.is_empty() { worst } else { Verdict::Invalid },
            threshold,
            before: build(&before.manifest),
            now: build(&now.manifest),
            rows,
            noise: noise.into(),
            invalid,
        }
    }
}

/// Returns the rows of the same tests, or the reason why there are none.
fn matching<'a>(
    before: &'a Report,
    now: &'a Report,
) -> Result<Vec<(&'a Row, &'a Row)>, Vec<Difference>> {
    let mut differing = differences(&before.manifest, &now.manifest);
    let find =
        |row: &'a Row| before.rows.iter().find(|old| old.test == row.test).map(|old| (old, row));
    let pairs: Option<Vec<_>> = now.rows.iter().map(find).collect();
    let names = |report: &Report| {
        report.rows.iter().map(|row| row.name.as_str()).collect::<Vec<_>>().join(", ")
    };
    let Some(pairs) = pairs.filter(|pairs| !pairs.is_empty()) else {
        differing.push(Difference {
            what: "the tests",
            before: names(before),
            now: names(now),
            remedy: "use the record's with -p, -n, -d and -b, or omit all four",
        });
        return Err(differing);
    };
    if differing.is_empty() { Ok(pairs) } else { Err(differing) }
}

fn verdict(ratio: f64, interval: Option<Interval>, threshold: f64) -> Verdict {
    let Some(interval) = interval else { return Verdict::CannotTell };
    if interval.high < 1.0 && ratio <= 1.0 - threshold {
        Verdict::Slower
    } else if interval.low > 1.0 && ratio >= 1.0 + threshold {
        Verdict::Faster
    } else if interval.low > 1.0 - threshold {
        Verdict::Same
    } else {
        Verdict::CannotTell
    }
}

/// Half the interval of the logarithm of the ratio of two runs. The median of a run is assumed to
/// vary as much as one repetition, because noise can last longer than a run.
fn reach(was: &Summary, is: &Summary, between: Option<(f64, usize)>) -> Option<f64> {
    let own = |run: &Summary| Some((run.spread? / run.median.abs()).powi(2));
    let other = match between {
        Some((deviation, degrees)) => 2.0 * (student_t_975(degrees)? * deviation).powi(2),
        None => 0.0,
    };
    Some((own(was)? + own(is)? + other).sqrt())
}

/// Standard deviation, with its degrees of freedom, of the logarithms of a test's median between
/// runs of one commit.
fn between(history: &[&Report], test: Test) -> Option<(f64, usize)> {
    let mut commits: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for report in history {
        let commit = report.manifest.commit.as_deref().filter(|commit| !commit.ends_with("-dirty"));
        let row = report.rows.iter().find(|row| row.test == test);
        if let (Some(commit), Some(row)) = (commit, row) {
            commits.entry(commit).or_default().push(row.tokens_per_second.median.ln());
        }
    }
    let (mut squares, mut degrees) = (0.0, 0);
    for runs in commits.values() {
        let mean = runs.iter().sum::<f64>() / runs.len() as f64;
        squares += runs.iter().map(|run| (run - mean).powi(2)).sum::<f64>();
        degrees += runs.len() - 1;
    }
    (degrees > 0).then(|| ((squares / degrees as f64).sqrt(), degrees))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::tests::report;

    fn run(commit: &str, speeds: &[f64]) -> Report {
        let mut report = report();
        report.manifest.commit = Some(commit.into());
        report.rows.truncate(1);
        report.rows[0].tokens_per_second = Summary::of(speeds.to_vec()).unwrap();
        report
    }

    fn around(speed: f64) -> Vec<f64> {
        [0.0, 0.01, -0.01, 0.005, -0.005, 0.002].iter().map(|x| speed * (1.0 + x)).collect()
    }

    fn of_record(before: &Report, now: &Report, history: &[&Report]) -> Gate {
        Gate::of_record(before, now, history, 0.05).unwrap()
    }

    #[test]
    fn the_verdict_against_a_record_follows_the_interval() {
        let before = run("a", &around(100.0));
        for (speed, expected) in [
            (100.0, Verdict::Same),
            (99.0, Verdict::Same),
            (92.0, Verdict::Slower),
            (110.0, Verdict::Faster),
            (97.0, Verdict::CannotTell),
        ] {
            let gate = of_record(&before, &run("b", &around(speed)), &[]);
            assert_eq!(gate.verdict, expected, "{speed}: {:?}", gate.rows[0]);
        }
        let one = of_record(&before, &run("b", &[50.0]), &[]);
        assert_eq!((one.verdict, one.rows[0].interval), (Verdict::CannotTell, None));
    }

    #[test]
    fn differences_between_runs_of_one_commit_are_noise() {
        let before = run("a", &around(100.0));
        let now = run("b", &around(92.0));
        let quiet = [run("a", &around(100.0)), run("a", &around(100.2))];
        let quiet: Vec<&Report> = quiet.iter().collect();
        assert_eq!(of_record(&before, &now, &quiet[..1]).verdict, Verdict::Slower);
        let wild = [run("a", &around(100.0)), run("a", &around(120.0)), run("a", &around(90.0))];
        let wild: Vec<&Report> = wild.iter().collect();
        let gate = of_record(&before, &now, &wild);
        assert_eq!(gate.verdict, Verdict::CannotTell);
        assert!(gate.noise.contains("spread between runs of one commit in the history"));
        // Runs of other commits and invalid runs are not noise.
        let (mut broken, dirty) = (run("a", &around(200.0)), run("a-dirty", &around(300.0)));
        broken.invalid.push("the power mode changed".into());
        let other = run("c", &around(50.0));
        assert_eq!(between(&[&dirty, &other, &before], before.rows[0].test), None);
        let gate = of_record(&before, &now, &[&before, &broken, &dirty, &other]);
        assert_eq!(gate.verdict, Verdict::Slower);
    }

    #[test]
    fn pairs_cancel_the_drift_of_the_machine() {
        let walk = [100.0, 130.0, 80.0, 115.0, 95.0, 140.0, 70.0, 105.0, 120.0, 88.0];
        let wiggle = |i: usize| 1.0 + 0.004 * (i as f64 * 1.7).sin();
        let times = |factor: f64| -> Vec<f64> {
            walk.iter().enumerate().map(|(i, speed)| factor * speed * wiggle(i)).collect()
        };
        let before = run("a", &walk);
        for (factor, expected) in
            [(0.92, Verdict::Slower), (0.99, Verdict::Same), (1.0, Verdict::Same)]
        {
            let gate = Gate::of_pairs(&before, &run("b", &times(factor)), 0.05).unwrap();
            assert_eq!(gate.verdict, expected, "{factor}: {:?}", gate.rows[0]);
        }
        // Five pairs cannot reach 95 % confidence.
        let few = Gate::of_pairs(&run("a", &walk[..5]), &run("b", &times(0.5)[..5]), 0.05).unwrap();
        assert_eq!((few.verdict, few.rows[0].interval), (Verdict::CannotTell, None));
        // A difference that changes sign over the rounds is not a difference between builds.
        let drift: Vec<f64> =
            walk.iter().enumerate().map(|(i, x)| x * (1.03 - 0.02 * i as f64)).collect();
        let gate = Gate::of_pairs(&before, &run("b", &drift), 0.05).unwrap();
        assert_eq!(gate.verdict, Verdict::CannotTell, "{:?}", gate.rows[0]);
    }

    #[test]
    fn incomparable_runs_are_rejected_with_their_differences() {
        let before = run("a", &around(100.0));
        let refused = |change: &dyn Fn(&mut Report)| -> Vec<String> {
            let mut now = run("b", &around(50.0));
            change(&mut now);
            let found = Gate::of_record(&before, &now, &[], 0.05).unwrap_err();
            assert_eq!(Gate::of_pairs(&before, &now, 0.05).unwrap_err(), found);
            found.into_iter().map(|d| format!("{}: {}, {}", d.what, d.before, d.now)).collect()
        };
        assert_eq!(refused(&|r| r.manifest.threads = 4), ["the number of threads: 2, 4"]);
        assert_eq!(refused(&|r| r.manifest.device = "nv".into()), ["the device: cpu, nv"]);
        assert_eq!(
            refused(&|r| r.manifest.model.bytes = 5),
            ["the model: synthetic:x:q8_0 Q8_0, 536870912 bytes, synthetic:x:q8_0 Q8_0, 5 bytes"]
        );
        assert_eq!(
            refused(&|r| r.manifest.debug_build = true),
            ["the type of build: release, debug"]
        );
        assert_eq!(refused(&|r| r.rows[0].test.tokens = 64).len(), 1);
    }

    #[test]
    fn invalid_runs_get_no_verdict() {
        let (mut before, now) = (run("a", &around(100.0)), run("b", &around(100.0)));
        before.invalid.push("the GPU clock moved".into());
        let gate = of_record(&before, &now, &[]);
        assert_eq!(gate.verdict, Verdict::Invalid);
        assert_eq!(gate.invalid, ["before: the GPU clock moved"]);
    }
}
