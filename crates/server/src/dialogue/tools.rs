//! Tool definitions of requests, in the common form for templates and grammars.

use serde_json::{Map, Value, json};

use crate::error::Error;
use errors::invalid::excerpt;

/// Maximum number of tools in a request.
const TOOLS: usize = 256;
/// Maximum length of a tool's name in bytes.
const NAME: usize = 128;

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Tool {
    pub(crate) name: String,
    pub(crate) description: String,
    /// JSON schema of the arguments, an object.
    pub(crate) parameters: Value,
}

impl Tool {
    /// Returns the JSON for the chat template.
    pub(super) fn json(&self) -> Value {
        let Self { name, description, parameters } = self;
        json!({
            "type": "function",
            "function": {"name": name, "description": description, "parameters": parameters},
        })
    }

    /// Checks a tool's fields. `place` is its path in the request.
    pub(crate) fn new(
        place: &str,
        name: String,
        description: Option<String>,
        parameters: Option<Value>,
    ) -> Result<Self, Error> {
        let is_name = |c: char| c.is_ascii_alphanumeric() || "_-.".contains(c);
        if name.is_empty() || name.len() > NAME || !name.chars().all(is_name) {
            let message = format!(
                "{place}.name: is `{}`; 1 to {NAME} letters, digits, `_`, `-` or `.` are allowed",
                excerpt(&name)
            );
            return Err(Error::value(format!("{place}.name"), message));
        }
        let parameters = parameters.unwrap_or_else(|| Value::Object(Map::new()));
        let Value::Object(mut parameters) = parameters else {
            let message = format!("{place}.parameters: is not a JSON schema of an object");
            return Err(Error::value(format!("{place}.parameters"), message));
        };
        if parameters.is_empty() {
            parameters.insert("type".into(), "object".into());
            parameters.insert("properties".into(), Value::Object(Map::new()));
        }
        let description = description.unwrap_or_default();
        Ok(Self { name, description, parameters: Value::Object(parameters) })
    }
}

/// Rejects too many tools and duplicate names.
pub(crate) fn check(tools: &[Tool]) -> Result<(), Error> {
    if tools.len() > TOOLS {
        let message = format!("tools: has {} tools, at most {TOOLS} are allowed", tools.len());
        return Err(Error::value("tools", message));
    }
    let mut names: Vec<&str> = tools.iter().map(|tool| &*tool.name).collect();
    names.sort_unstable();
    match names.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(pair) => {
            let message = format!("tools: two tools have the name `{}`", excerpt(pair[0]));
            Err(Error::value("tools", message))
        }
        None => Ok(()),
    }
}

/// Tool choice of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum Choice {
    /// The model decides.
    #[default]
    Auto,
    None,
    Required,
    Named(String),
}

/// Returns the id of a call, found at `place`. Must not be empty: a tool message refers to its call
/// by this id.
pub(crate) fn call_id(place: &str, id: Option<String>) -> Result<String, Error> {
    match id {
        None => Err(Error::value(place, format!("{place}: is missing"))),
        Some(id) if id.is_empty() => Err(Error::value(place, format!("{place}: is empty"))),
        Some(id) => Ok(id),
    }
}

/// Returns a call's arguments as a JSON object if the text is one, else as a string.
pub(crate) fn arguments(text: &str) -> Value {
    if text.trim().is_empty() {
        return Value::Object(Map::new());
    }
    serde_json::from_str(text).unwrap_or_else(|_| text.into())
}
