//! Telling of findings: at once, as far as they are new, and in sum at the end.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::io::{self, Write as _};

use parking_lot::Mutex;

use super::{Action, Finding, Policy, Rule, Severity, Suppressions, place};

/// Where findings go.
pub trait Reporter: Send + Sync {
    /// Takes one finding. Called from the GPU's thread, without locks held.
    fn report(&self, finding: &Finding);

    /// What there is to say when the program ends; none when there was nothing.
    fn summary(&self) -> Option<String> {
        None
    }
}

/// Prints on stderr what is new, counts the rest, and aborts the process where the policy says so.
#[derive(Debug, Default)]
pub struct Stderr {
    policy: Policy,
    known: Suppressions,
    seen: Mutex<Seen>,
}

#[derive(Debug, Default)]
struct Seen {
    /// By rule and place, in the order of their first times: how often, and the first.
    places: BTreeMap<(Rule, String), Place>,
    /// By line of the file of suppressions: how often.
    known: BTreeMap<usize, u64>,
}

#[derive(Debug)]
struct Place {
    count: u64,
    first: String,
}

impl Stderr {
    /// Tells as a policy says, of what is not known.
    #[must_use]
    pub fn new(policy: Policy, known: Suppressions) -> Self {
        Self { policy, known, seen: Mutex::default() }
    }

    /// What follows a finding, and whether it is the first at its place.
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
        // What the driver logs, it logs each time.
        (action, place.count == 1 || is_fault)
    }
}

impl Reporter for Stderr {
    fn report(&self, finding: &Finding) {
        let (action, is_new) = self.note(finding);
        if is_new {
            // A closed stderr must not stop the report from taking effect.
            let _ = writeln!(io::stderr(), "{finding}");
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
            // Writing to a string does not fail.
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
        Some(text)
    }
}

/// Keeps findings, for tests.
#[derive(Debug, Default)]
pub struct Collector(Mutex<Vec<Finding>>);

impl Collector {
    /// What was found so far, taken out.
    pub fn take(&self) -> Vec<Finding> {
        std::mem::take(&mut *self.0.lock())
    }
}

impl Reporter for Collector {
    fn report(&self, finding: &Finding) {
        self.0.lock().push(finding.clone());
    }
}
