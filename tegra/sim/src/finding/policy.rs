//! Actions on findings by rule: parses `--lint` and `TEGRA_SIM_LINT`.

use std::collections::BTreeMap;

use super::{ALL, Rule, Severity};

/// Action on a finding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Print it and abort the process.
    Abort,
    /// Print it.
    Warn,
    /// Ignore it.
    Off,
}

impl Action {
    fn named(name: &str) -> Option<Self> {
        Some(match name {
            "abort" => Self::Abort,
            "warn" => Self::Warn,
            "off" => Self::Off,
            _ => return None,
        })
    }
}

/// Action for each rule.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Policy {
    warn: bool,
    by_rule: BTreeMap<Rule, Action>,
}

/// Error of parsing a policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PolicyError {
    /// The word is unknown.
    #[error(
        "unknown word {word:?}; use abort, warn, NAME=abort, NAME=warn or NAME=off, where NAME is a finding"
    )]
    Word { word: String },
    /// The finding does not exist.
    #[error("no finding {name:?}; there are {}", names())]
    Name { name: String },
    /// The finding is a hardware fault, which cannot be configured.
    #[error(
        "{name} is a fault that hardware raises: it is delivered to the program and cannot be configured"
    )]
    Fault { name: &'static str },
}

fn names() -> String {
    let chosen = ALL.iter().filter(|rule| rule.severity() != Severity::Fault);
    chosen.map(|rule| rule.name()).collect::<Vec<_>>().join(", ")
}

impl Policy {
    /// Parses a comma-separated list: a word without a name applies to all findings, and a later
    /// word wins. [`PolicyError`] at the first invalid word.
    pub fn parse(list: &str) -> Result<Self, PolicyError> {
        let mut policy = Self::default();
        for word in list.split(',').map(str::trim).filter(|word| !word.is_empty()) {
            match word.split_once('=') {
                None if matches!(word, "abort" | "warn") => {
                    policy = Self { warn: word == "warn", by_rule: BTreeMap::new() };
                }
                None => return Err(PolicyError::Word { word: word.to_owned() }),
                Some((name, action)) => {
                    let word = || PolicyError::Word { word: word.to_owned() };
                    let action = Action::named(action).ok_or_else(word)?;
                    let unknown = || PolicyError::Name { name: name.to_owned() };
                    let rule = Rule::from_name(name).ok_or_else(unknown)?;
                    if rule.severity() == Severity::Fault {
                        return Err(PolicyError::Fault { name: rule.name() });
                    }
                    policy.by_rule.insert(rule, action);
                }
            }
        }
        Ok(policy)
    }

    /// Returns the action for a rule.
    #[must_use]
    pub fn of(&self, rule: Rule) -> Action {
        match (self.by_rule.get(&rule), rule.severity()) {
            (Some(action), _) => *action,
            (None, Severity::Silent | Severity::Lint) if !self.warn => Action::Abort,
            (None, _) => Action::Warn,
        }
    }
}
