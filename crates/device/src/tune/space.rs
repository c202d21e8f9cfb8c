//! Tuning spaces, and the choices that a device receives.
//!
//! A [`Space`] is declared next to its kernels: parameters with values, a rule for valid
//! combinations, and the default choice, from which a search starts. [`Choices`] maps cases to
//! choices; other cases use the default.

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest as _, Sha256};

use super::store::{Candidates, Case, Choice};
use plan::DType;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// Name in choices and `--param`.
    pub name: &'static str,
    pub meaning: &'static str,
    /// Allowed values, ascending.
    pub values: Vec<u32>,
    /// Scope of a value.
    pub scope: Scope,
}

/// Unit that has one value of a parameter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// A launch.
    Launch,
    /// A matrix: its memory layout, which is fixed when it is loaded.
    Layout,
}

/// Returns why a combination of allowed values is invalid.
type Rule = Box<dyn Fn(&Choice) -> Result<(), String> + Send + Sync>;

type Question = Box<dyn Fn(&Choice) -> bool + Send + Sync>;

/// Allowed choices for a case.
pub struct Space {
    pub parameters: Vec<Parameter>,
    /// Default choice.
    pub heuristic: Choice,
    /// Hash of the kernels' sources, for which measurements are valid.
    pub source: String,
    pub candidates: Candidates,
    /// Description of the source, including missing variants and why.
    pub origin: String,
    rule: Rule,
    compiled: Question,
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space")
            .field("parameters", &self.parameters)
            .field("heuristic", &self.heuristic)
            .finish_non_exhaustive()
    }
}

/// Reason why a choice is outside a space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Outside {
    /// An unknown or missing parameter.
    #[error("the parameters are {known}, not {given}")]
    Parameters { known: String, given: String },
    /// A value that is not allowed.
    #[error("{name} = {value}; it takes {values:?}")]
    Value { name: &'static str, value: u32, values: Vec<u32> },
    #[error("{0}")]
    Combination(String),
}

impl Space {
    /// Creates a space. The default's values are added to the allowed values.
    #[must_use]
    pub fn new(
        mut parameters: Vec<Parameter>,
        heuristic: Choice,
        source: String,
        candidates: Candidates,
        rule: impl Fn(&Choice) -> Result<(), String> + Send + Sync + 'static,
    ) -> Self {
        for parameter in &mut parameters {
            parameter.values.extend(heuristic.get(parameter.name));
            parameter.values.sort_unstable();
            parameter.values.dedup();
        }
        Self {
            parameters,
            heuristic,
            source,
            candidates,
            origin: candidates.to_string(),
            rule: Box::new(rule),
            compiled: Box::new(|_| false),
        }
    }

    /// Sets which choices need code compiled on this machine.
    #[must_use]
    pub fn compiling(mut self, which: impl Fn(&Choice) -> bool + Send + Sync + 'static) -> Self {
        self.compiled = Box::new(which);
        self
    }

    /// Returns whether a choice needs code compiled on this machine.
    #[must_use]
    pub fn is_compiled(&self, choice: &Choice) -> bool {
        (self.compiled)(choice)
    }

    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// Checks that a choice is in this space.
    ///
    /// # Errors
    ///
    /// The invalid parameter, value or combination.
    pub fn check(&self, choice: &Choice) -> Result<(), Outside> {
        let known: Vec<&str> = self.parameters.iter().map(|p| p.name).collect();
        if choice.len() != known.len() || known.iter().any(|name| !choice.contains_key(*name)) {
            let given: Vec<&str> = choice.keys().map(String::as_str).collect();
            return Err(Outside::Parameters { known: known.join(", "), given: given.join(", ") });
        }
        for Parameter { name, values, .. } in &self.parameters {
            let value = choice[*name];
            if !values.contains(&value) {
                return Err(Outside::Value { name, value, values: values.clone() });
            }
        }
        (self.rule)(choice).map_err(Outside::Combination)
    }

    /// Valid choices that differ in one parameter by one step.
    #[must_use]
    pub fn neighbours(&self, choice: &Choice) -> Vec<Choice> {
        let mut all = Vec::new();
        for Parameter { name, values, .. } in &self.parameters {
            let Some(value) = choice.get(*name) else { continue };
            let with = |value: &u32| {
                let mut other = choice.clone();
                other.insert((*name).to_owned(), *value);
                other
            };
            let exists = |other: &Choice| self.check(other).is_ok();
            all.extend(values.iter().rev().filter(|v| *v < value).map(with).find(exists));
            all.extend(values.iter().filter(|v| *v > value).map(with).find(exists));
        }
        all
    }

    /// Default choice with one parameter changed.
    ///
    /// # Errors
    ///
    /// The invalid value or combination.
    pub fn heuristic_with(&self, name: &str, value: u32) -> Result<Choice, Outside> {
        let mut choice = self.heuristic.clone();
        choice.insert(name.to_owned(), value);
        self.check(&choice).map(|()| choice)
    }

    /// Fixes layout parameters to their values in `choice`.
    pub fn pin(&mut self, choice: &Choice) {
        for parameter in self.parameters.iter_mut().filter(|p| p.scope != Scope::Launch) {
            if let Some(value) = choice.get(parameter.name).filter(|v| parameter.values.contains(v))
            {
                parameter.values = vec![*value];
                self.heuristic.insert(parameter.name.to_owned(), *value);
            }
        }
    }
}

/// Choices by case, given to a device when it is opened. Other cases use the default.
pub type Choices = BTreeMap<Case, Choice>;

/// Value of a layout parameter for all products with matrices of a type and a number of columns:
/// that of the case with the fewest rows of activations, and among those the largest. A matrix has
/// one type and number of columns, and so one value for every batch and launch.
#[must_use]
pub fn of_matrix(choices: &Choices, name: &str, dtype: DType, cols: u32) -> Option<u32> {
    let of = |(case, choice): (&Case, &Choice)| {
        let value = *choice.get(name)?;
        (case.dtype == dtype && case.cols == cols).then_some((leader(case), value))
    };
    let first = |(a, value), (b, other)| if b < a { (b, other) } else { (a, value) };
    choices.iter().filter_map(of).reduce(first).map(|(_, value)| value)
}

/// SHA-256 of texts in hexadecimal, for [`Space::source`].
#[must_use]
pub fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Cases in priority order: the order of searching, and of deciding layout parameters.
#[must_use]
pub fn leader(case: &Case) -> impl Ord + use<> {
    (case.batch, std::cmp::Reverse(case.rows), case.family.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn choice(all: &[(&str, u32)]) -> Choice {
        all.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect()
    }

    fn space() -> Space {
        let parameter = |name, values: &[u32]| Parameter {
            name,
            meaning: "",
            values: values.to_vec(),
            scope: if name == "a" { Scope::Layout } else { Scope::Launch },
        };
        let rule = |c: &Choice| {
            if c["a"] * c["b"] > 32 { Err("a x b: at most 32".into()) } else { Ok(()) }
        };
        Space::new(
            vec![parameter("a", &[1, 2, 4, 8]), parameter("b", &[2, 16])],
            choice(&[("a", 2), ("b", 4)]),
            "0123456789".into(),
            Candidates::BuiltIn,
            rule,
        )
    }

    #[test]
    fn neighbours_are_valid_and_one_step_away() {
        let space = space();
        assert_eq!(space.parameter("b").unwrap().values, [2, 4, 16], "the heuristic's is one");
        let near = space.neighbours(&choice(&[("a", 2), ("b", 4)]));
        let expected =
            [(1, 4), (4, 4), (2, 2), (2, 16)].map(|(a, b)| choice(&[("a", a), ("b", b)]));
        assert_eq!(near, expected);
        // 4 x 16 does not exist.
        assert_eq!(space.neighbours(&choice(&[("a", 2), ("b", 16)])).len(), 2);
    }

    #[test]
    fn values_outside_the_space_are_named() {
        let space = space();
        let wrong = |all: &[(&str, u32)]| space.check(&choice(all)).unwrap_err().to_string();
        assert!(wrong(&[("a", 3), ("b", 2)]).contains("a = 3; it takes [1, 2, 4, 8]"));
        assert!(wrong(&[("a", 8), ("b", 16)]).contains("at most 32"));
        assert!(wrong(&[("a", 1)]).contains("the parameters are a, b, not a"));
        assert!(space.heuristic_with("c", 1).is_err());
        assert_eq!(space.heuristic_with("a", 8).unwrap(), choice(&[("a", 8), ("b", 4)]));
    }

    #[test]
    fn layout_parameters_have_one_value_per_type_and_columns() {
        let case = |rows, batch| Case {
            family: "project".into(),
            dtype: DType::Q8_0,
            rows,
            cols: 64,
            batch,
        };
        let table: Choices = [
            (case(100, 1), choice(&[("a", 8)])),
            (case(500, 1), choice(&[("a", 16)])),
            (case(900, 4), choice(&[("a", 32)])),
        ]
        .into_iter()
        .collect();
        assert_eq!(of_matrix(&table, "a", DType::Q8_0, 64), Some(16));
        assert_eq!(of_matrix(&table, "a", DType::Q6_K, 64), None);
        assert_eq!(of_matrix(&table, "a", DType::Q8_0, 128), None);
        let mut space = space();
        space.pin(&choice(&[("a", 4), ("b", 2)]));
        assert_eq!(space.heuristic, choice(&[("a", 4), ("b", 4)]));
        assert_eq!(space.neighbours(&space.heuristic.clone()).len(), 1, "b alone, and not 16");
    }
}
