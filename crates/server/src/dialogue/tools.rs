//! Tool definitions of requests, in the common form for templates and grammars.

use axum::http::{HeaderName, HeaderValue};
use axum::response::Response;
use serde_json::{Map, Value, json};

use crate::error::Error;
use crate::json_bytes;
use engine::{Grammar, unenforced};
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
    /// Refuse a schema that cannot be enforced.
    pub(crate) strict: bool,
}

/// Enforcement of the schemas of tools that are not strict.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Enforcement {
    Full,
    /// Keywords that cannot be enforced are left out.
    Relaxed,
    /// Arguments are any object.
    Objects,
}

impl Enforcement {
    pub(crate) const ALL: [Self; 3] = [Self::Full, Self::Relaxed, Self::Objects];
}

impl Tool {
    /// Returns the grammar of the arguments.
    pub(super) fn grammar(&self, enforcement: Enforcement) -> Grammar {
        match enforcement {
            Enforcement::Relaxed if !self.strict => Grammar::RelaxedSchema(self.arguments()),
            Enforcement::Objects if !self.strict => Grammar::JsonSchema(json!({"type": "object"})),
            _ => Grammar::JsonSchema(self.arguments()),
        }
    }

    /// Returns the name, and the keywords that a relaxed grammar may lack; `None` for a strict tool.
    pub(super) fn relaxed(&self) -> Option<(String, Vec<&'static str>)> {
        (!self.strict).then(|| (self.name.clone(), unenforced(&self.parameters)))
    }

    /// Returns the JSON for the chat template.
    pub(super) fn json(&self) -> Value {
        let Self { name, description, parameters, .. } = self;
        json!({
            "type": "function",
            "function": {"name": name, "description": description, "parameters": parameters},
        })
    }

    /// Returns the schema of the arguments in a grammar: an object, and without properties that the
    /// tool does not name, unless its schema mentions others.
    pub(super) fn arguments(&self) -> Value {
        const MENTION_OTHERS: [&str; 12] = [
            "$ref",
            "additionalProperties",
            "allOf",
            "anyOf",
            "dependentSchemas",
            "if",
            "maxProperties",
            "minProperties",
            "oneOf",
            "patternProperties",
            "propertyNames",
            "unevaluatedProperties",
        ];
        let Value::Object(mut schema) = self.parameters.clone() else { return Value::Null };
        if !schema.contains_key("$ref") {
            schema.entry("type").or_insert_with(|| "object".into());
        }
        let named = |name: &Value| {
            let properties = schema.get("properties").and_then(Value::as_object);
            name.as_str().is_some_and(|name| properties.is_some_and(|all| all.contains_key(name)))
        };
        let required = schema.get("required").and_then(Value::as_array);
        let names_all = required.is_none_or(|required| required.iter().all(named));
        if names_all && !MENTION_OTHERS.iter().any(|key| schema.contains_key(*key)) {
            schema.insert("additionalProperties".into(), false.into());
        }
        schema.into()
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
        let parameters = parameters.filter(|schema| !schema.is_null());
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
        Ok(Self { name, description, parameters: Value::Object(parameters), strict: false })
    }
}

/// Header of an answer that names the skipped tools.
const SKIPPED: HeaderName = HeaderName::from_static("x-orind-skipped-tools");
/// Maximum number of skipped tools that are named.
const NAMED: usize = 32;

/// Tools of a request that cannot run here, such as a web search.
#[derive(Debug, Default)]
pub(crate) struct Skipped(Vec<String>);

impl Skipped {
    pub(crate) fn add(&mut self, name: &str) {
        let plain = |c: &char| c.is_ascii_alphanumeric() || "_-.:".contains(*c);
        if self.0.len() < NAMED {
            self.0.push(name.chars().filter(plain).take(NAME).collect());
        }
    }

    /// Names the tools in the log and in a header of the answer.
    pub(crate) fn report(&self, mut response: Response) -> Response {
        if self.0.is_empty() {
            return response;
        }
        let names = self.0.join(", ");
        tracing::info!(tools = names, "skipped tools that cannot run here");
        if let Ok(value) = HeaderValue::from_str(&names) {
            response.headers_mut().insert(SKIPPED, value);
        }
        response
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
    json_bytes::value(text).unwrap_or_else(|| text.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn arguments_have_no_properties_that_the_schema_does_not_mention() {
        let arguments = |parameters: Value| {
            Tool::new("tools[0]", "f".into(), None, Some(parameters)).unwrap().arguments()
        };
        let none = json!({"type": "object", "properties": {}, "additionalProperties": false});
        for absent in [Value::Null, json!({}), json!({"type": "object", "properties": {}})] {
            assert_eq!(arguments(absent), none);
        }
        let closed = arguments(json!({"properties": {"a": {}}, "required": ["a"]}));
        assert_eq!(
            (&closed["type"], &closed["additionalProperties"]),
            (&json!("object"), &json!(false))
        );
        for open in [
            json!({"type": "object", "additionalProperties": {"type": "string"}}),
            json!({"type": "object", "required": ["a"]}),
            json!({"$ref": "#/$defs/a"}),
        ] {
            assert_eq!(arguments(open.clone()), open);
        }
    }

    #[test]
    fn skipped_tools_are_named_in_plain_letters() {
        let mut skipped = Skipped::default();
        skipped.add("web_search\r\n: x");
        let response = skipped.report(Response::default());
        assert_eq!(response.headers()[SKIPPED], "web_search:x");
    }
}
