//! Reports findings: prints new ones immediately, and a summary at the end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use errors::printable;
use parking_lot::Mutex;

use super::{Action, Finding, Policy, Rule, Severity, Suppressions, place};

/// Receiver of findings.
pub trait Reporter: Send + Sync {
    /// Receives a finding. Called from the GPU's thread without locks held.
    fn report(&self, finding: &Finding);

    /// Returns the summary at the end of the program; none if there were no findings.
    fn summary(&self) -> Option<String> {
        None
    }
}

/// Prints new findings on stderr, counts repeated ones, and aborts the process if the policy says
/// so.
#[derive(Debug, Default)]
pub struct Stderr {
    policy: Policy,
    known: Suppressions,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// Count and first finding by rule and place.
    places: BTreeMap<(Rule, String), Place>,
    /// Number of matches by line of the suppression file.
    known: BTreeMap<usize, u64>,
}

#[derive(Debug)]
struct Place {
    count: u64,
    first: String,
}

impl Stderr {
    /// Reports by a policy, except for suppressed findings.
    #[must_use]
    pub fn new(policy: Policy, known: Suppressions) -> Self {
        Self { policy, known, seen: Mutex::default() }
    }

    /// Counts a finding; returns its action and whether to print it.
    fn note(&self, finding: &Finding) -> (Action, bool) {
        let is_fault = finding.rule.severity() == Severity::Fault;
        let action = if is_fault { Action::Warn } else { self.policy.of(finding.rule) };
        if action == Action::Off {
            return (action, false);
        }
        let mut seen = self.seen.lock();
        if let Some(line) = self.known.knows(finding) {
            *seen.known.entry(line).or_default() += 1;
            return (Action::Off, false);
        }
        let place =
            seen.places.entry((finding.rule, place(&finding.message))).or_insert_with(|| Place {
                count: 0,
                first: format!("at {} ns: {}", finding.time, finding.message),
            });
        place.count += 1;
        // The driver logs a fault every time.
        (action, place.count == 1 || is_fault)
    }
}

impl Reporter for Stderr {
    fn report(&self, finding: &Finding) {
        let (action, is_new) = self.note(finding);
        if is_new {
            // A closed stderr must not prevent the action.
            let _ = writeln!(io::stderr(), "{}", printable::page(&finding.to_string()));
        }
        if action == Action::Abort {
            let (rule, place) = (finding.rule, place(&finding.message));
            let _ = writeln!(
                io::stderr(),
                "tegra-sim: stopping here; --lint {rule}=warn goes on (TEGRA_SIM_LINT={rule}=warn), and so does a line in \
                 a file for --suppress:\n  {rule}: {place} -- WHY"
            );
            std::process::abort();
        }
    }

    fn summary(&self) -> Option<String> {
        let seen = self.seen.lock();
        let unused: Vec<String> = self
            .known
            .numbers()
            .filter(|number| !seen.known.contains_key(number))
            .map(|number| number.to_string())
            .collect();
        if seen.places.is_empty() && seen.known.is_empty() && unused.is_empty() {
            return None;
        }
        let mut text = format!("findings of process {}\n", std::process::id());
        for ((rule, place), Place { count, first }) in &seen.places {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{count:>9} x {rule}, first {first}");
            if rule.severity() != Severity::Fault {
                let _ = writeln!(text, "            suppressed by  {rule}: {place} -- WHY");
            }
        }
        let path = self.known.path().display();
        for (line, count) in &seen.known {
            let _ = writeln!(text, "{count:>9} x known by line {line} of {path}");
        }
        if !unused.is_empty() {
            let _ = writeln!(text, "  nothing of line {} of {path}", unused.join(", "));
        }
        Some(printable::page(&text))
    }
}

/// Collects findings, for tests.
#[derive(Debug, Default)]
pub struct Collector(Mutex<Vec<Finding>>);

impl Collector {
    /// Returns and clears the findings.
    pub fn take(&self) -> Vec<Finding> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Reporter for Collector {
    fn report(&self, finding: &Finding) {
        self.0.lock().push(finding.clone());
    }
}
