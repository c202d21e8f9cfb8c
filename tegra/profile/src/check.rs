//! Validation of a profile: sizes, names, finite numbers.

use std::collections::BTreeSet;

use super::{Experiment, FORMAT, Machine, Profile, VERSION, Value};
use crate::error::Error;

pub const MAX_EXPERIMENTS: usize = 256;
/// Maximum number of facts of an experiment, and of series.
pub const MAX_FACTS: usize = 512;
pub const MAX_SAMPLES: usize = 100_000;
/// Maximum bytes of a text.
pub const MAX_TEXT: usize = 16 << 10;
/// Maximum number of kernel log lines of an experiment.
pub const MAX_LINES: usize = 64;
/// Maximum bytes of a name.
const MAX_NAME: usize = 64;
const MAX_CLOCKS: usize = 64;

/// Checks format and version before anything else.
pub(crate) fn head(format: &str, version: u64) -> Result<(), Error> {
    if format != FORMAT {
        return Err(Error::Format { found: format.chars().take(40).collect() });
    }
    if version != u64::from(VERSION) {
        return Err(Error::Version { found: version });
    }
    Ok(())
}

pub(crate) fn profile(profile: &Profile) -> Result<(), Error> {
    head(&profile.format, profile.version.into())?;
    text("tool", &profile.tool)?;
    machine(&profile.machine)?;
    at_most("experiments", profile.experiments.len(), MAX_EXPERIMENTS)?;
    let mut names = BTreeSet::new();
    for experiment in &profile.experiments {
        let bad = |what: String| Error::Invalid { what };
        name("an experiment's name", &experiment.name, '-')?;
        if !names.insert(&experiment.name) {
            return Err(bad(format!("experiment {} appears twice", experiment.name)));
        }
        self::experiment(experiment)
            .map_err(|error| bad(format!("experiment {}: {error}", experiment.name)))?;
    }
    Ok(())
}

fn machine(machine: &Machine) -> Result<(), Error> {
    let Machine { model, l4t, kernel, chip, power_mode, driver_log, .. } = machine;
    for found in [model, l4t, kernel, chip, power_mode, driver_log].into_iter().flatten() {
        text("a line about the machine", found)?;
    }
    for clocks in [&machine.clocks, &machine.clocks_after] {
        at_most("clocks", clocks.len(), MAX_CLOCKS)?;
        for clock in clocks.keys() {
            name("a clock's name", clock, '-')?;
        }
    }
    Ok(())
}

fn experiment(experiment: &Experiment) -> Result<(), Error> {
    let Experiment { question, method, answer, error, facts, samples, seconds, .. } = experiment;
    for (what, found) in [("question", question), ("method", method), ("answer", answer)] {
        text(what, found)?;
    }
    text("error", error.as_deref().unwrap_or_default())?;
    at_most("lines of the log", experiment.driver_log.len(), MAX_LINES)?;
    experiment.driver_log.iter().try_for_each(|line| text("a line of the log", line))?;
    finite("seconds", *seconds)?;
    at_most("facts", facts.len(), MAX_FACTS)?;
    for (fact, value) in facts {
        name("a fact's name", fact, '_')?;
        match value {
            Value::Number(number) => finite(fact, *number)?,
            Value::Text(found) => text(fact, found)?,
            Value::Flag(_) | Value::Count(_) => {}
        }
    }
    at_most("series", samples.len(), MAX_FACTS)?;
    for (series, numbers) in samples {
        name("a series' name", series, '_')?;
        at_most(series, numbers.len(), MAX_SAMPLES)?;
        numbers.iter().try_for_each(|number| finite(series, *number))?;
    }
    Ok(())
}

fn name(what: &str, name: &str, separator: char) -> Result<(), Error> {
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == separator;
    if !name.is_empty() && name.len() <= MAX_NAME && name.chars().all(fits) {
        return Ok(());
    }
    let shown: String = name.chars().take(40).collect();
    Err(Error::Invalid {
        what: format!(
            "{what} is {shown:?}, not 1 to {MAX_NAME} lower-case letters, digits and {separator:?}"
        ),
    })
}

fn text(what: &str, text: &str) -> Result<(), Error> {
    at_most(what, text.len(), MAX_TEXT)?;
    // An untrusted file must not send control sequences to the reader's terminal.
    match text.chars().find(|c| c.is_control() && *c != '\n' && *c != '\t') {
        None => Ok(()),
        Some(c) => Err(Error::Invalid { what: format!("{what} has the control character {c:?}") }),
    }
}

fn at_most(what: &str, count: usize, limit: usize) -> Result<(), Error> {
    if count <= limit {
        return Ok(());
    }
    Err(Error::Invalid { what: format!("{what}: {count}, more than {limit}") })
}

fn finite(what: &str, number: f64) -> Result<(), Error> {
    if number.is_finite() {
        return Ok(());
    }
    Err(Error::Invalid { what: format!("{what} is not a finite number") })
}
