//! What may be chosen for a case, and the choices that a device is handed.
//!
//! A [`Space`] is declared beside the kernels that it is about: parameters with their values, a rule
//! that says which combinations exist, and the heuristic's choice, from which a search starts.
//! [`Choices`] is the table through which what was found reaches a device; what is not in it is
//! the heuristic's business.

use std::collections::BTreeMap;
use std::fmt;

use sha2::{Digest as _, Sha256};

use super::{Candidates, Case, Choice};
use plan::DType;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Parameter {
    /// As in choices and in `--param`.
    pub name: &'static str,
    pub meaning: &'static str,
    /// The values it may take, ascending.
    pub values: Vec<u32>,
    /// What has one value of it.
    pub scope: Scope,
}

/// What a parameter is set for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each launch by itself.
    Launch,
    /// A matrix: how it lies in memory, which is decided when it is loaded.
    Layout,
}

/// Says of a combination of allowed values why it does not exist.
type Rule = Box<dyn Fn(&Choice) -> Result<(), String> + Send + Sync>;

type Question = Box<dyn Fn(&Choice) -> bool + Send + Sync>;

/// Everything that may be chosen for a case.
pub struct Space {
    pub parameters: Vec<Parameter>,
    /// What is taken where nothing has been measured.
    pub heuristic: Choice,
    /// Hash of the kernels' source: what was measured holds for these and no others.
    pub source: String,
    pub candidates: Candidates,
    /// The same in words, with what is not here and why.
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

/// Why a choice is outside of a space.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Outside {
    /// A parameter that the case does not have, or lacks.
    #[error("the parameters are {known}, not {given}")]
    Parameters { known: String, given: String },
    /// A value that the parameter does not take.
    #[error("{name} = {value}; it takes {values:?}")]
    Value { name: &'static str, value: u32, values: Vec<u32> },
    #[error("{0}")]
    Combination(String),
}

impl Space {
    /// A space. The heuristic's values become values of their parameters where they are not.
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

    /// Says which choices need code that is compiled on the machine.
    #[must_use]
    pub fn compiling(mut self, which: impl Fn(&Choice) -> bool + Send + Sync + 'static) -> Self {
        self.compiled = Box::new(which);
        self
    }

    /// Whether a choice needs code that is compiled on the machine.
    #[must_use]
    pub fn is_compiled(&self, choice: &Choice) -> bool {
        (self.compiled)(choice)
    }

    #[must_use]
    pub fn parameter(&self, name: &str) -> Option<&Parameter> {
        self.parameters.iter().find(|parameter| parameter.name == name)
    }

    /// Whether a choice is one of this space.
    ///
    /// # Errors
    /// Names the parameter, the value or the combination.
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

    /// The choices that differ in one parameter, by one step among the values that the rule admits.
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

    /// The heuristic's choice with one parameter set, if that exists.
    ///
    /// # Errors
    /// Names the value or the combination.
    pub fn heuristic_with(&self, name: &str, value: u32) -> Result<Choice, Outside> {
        let mut choice = self.heuristic.clone();
        choice.insert(name.to_owned(), value);
        self.check(&choice).map(|()| choice)
    }

    /// Leaves one value to each parameter that is a matrix's: the one of `choice`.
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

/// Choices by case: what a device is handed at open, and reads at prepare. What has none is left to the
/// heuristic.
pub type Choices = BTreeMap<Case, Choice>;

/// The value of a parameter that is a matrix's, for all products with matrices of a type and a number
/// of columns: that of the case with fewest rows of activations, and among those of
/// the largest. A matrix has one type and one number of columns, so it has one value, whatever
/// the batch and whichever other matrices it is launched with.
#[must_use]
pub fn of_matrix(choices: &Choices, name: &str, dtype: DType, cols: u32) -> Option<u32> {
    let of = |(case, choice): (&Case, &Choice)| {
        let value = *choice.get(name)?;
        (case.dtype == dtype && case.cols == cols).then_some((leader(case), value))
    };
    let first = |(a, value), (b, other)| if b < a { (b, other) } else { (a, value) };
    choices.iter().filter_map(of).reduce(first).map(|(_, value)| value)
}

/// SHA-256 of some texts, in hexadecimal digits: for [`Space::source`].
#[must_use]
pub fn digest(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part.as_bytes());
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Cases in the order in which they decide for others of their type and columns, and are searched.
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
    fn neighbours_are_one_step_away_and_exist() {
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
    fn what_is_outside_is_named() {
        let space = space();
        let wrong = |all: &[(&str, u32)]| space.check(&choice(all)).unwrap_err().to_string();
        assert!(wrong(&[("a", 3), ("b", 2)]).contains("a = 3; it takes [1, 2, 4, 8]"));
        assert!(wrong(&[("a", 8), ("b", 16)]).contains("at most 32"));
        assert!(wrong(&[("a", 1)]).contains("the parameters are a, b, not a"));
        assert!(space.heuristic_with("c", 1).is_err());
        assert_eq!(space.heuristic_with("a", 8).unwrap(), choice(&[("a", 8), ("b", 4)]));
    }

    #[test]
    fn what_is_a_matrixs_is_decided_once_for_a_type_and_its_columns() {
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
