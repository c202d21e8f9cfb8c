//! Settings from the environment: `ORIND_` and the name of a key in capitals, such as `ORIND_CONTEXT`.

use toml::{Table, Value};

use super::Config;
use super::keys::keys;
use super::load::tokens;
use super::read::Error;

/// Variable that sets a key.
#[must_use]
pub fn variable_of(key: &str) -> String {
    format!("ORIND_{}", key.to_uppercase())
}

impl Config {
    /// Replaces the values of keys whose variables `value_of` returns.
    ///
    /// # Errors
    /// A value is invalid; the error names its variable.
    pub fn with_environment(
        self,
        value_of: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, Error> {
        let mut config = self;
        for key in keys() {
            let variable = variable_of(key);
            let Some(text) = value_of(&variable) else { continue };
            let mut table = config.table();
            let value = parse(key, &text, table.get(key));
            table.insert(key.to_owned(), value);
            config = table.try_into().map_err(|error: toml::de::Error| Error::Invalid {
                place: variable,
                reason: errors::invalid::plain(error.message()),
            })?;
        }
        Ok(config)
    }
}

/// Value of a variable. Texts need no quotes, and lists no brackets: commas separate their values.
fn parse(key: &str, text: &str, default: Option<&Value>) -> Value {
    if key == "context"
        && let Some(tokens) = tokens(text).ok().and_then(|tokens| i64::try_from(tokens).ok())
    {
        return Value::Integer(tokens);
    }
    let written = || text_as_toml(text).unwrap_or_else(|| Value::String(text.to_owned()));
    match default {
        Some(Value::String(_)) => Value::String(text.to_owned()),
        Some(Value::Array(_)) if !text.trim_start().starts_with('[') => Value::Array(
            text.split(',')
                .map(str::trim)
                .filter(|one| !one.is_empty())
                .map(|one| Value::String(one.to_owned()))
                .collect(),
        ),
        _ => written(),
    }
}

/// Parses a TOML value.
fn text_as_toml(text: &str) -> Option<Value> {
    toml::from_str::<Table>(&format!("value = {text}")).ok()?.remove("value")
}
