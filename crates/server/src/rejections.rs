//! Rejects request fields that would change an answer but are not supported, unless their value is
//! neutral. Unknown fields are ignored, as clients of these APIs expect.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use axum::extract::{self, FromRequest};
use axum::http::StatusCode;
use serde::Deserializer;
use serde::de::{DeserializeOwned, DeserializeSeed, IgnoredAny, MapAccess, Visitor};
use serde_json::Value;
use serde_json::value::RawValue;

use super::error::Error;
use super::fields::{Fields, IsNeutral, Treatment};
use super::{App, body, json_bytes};
use errors::invalid::excerpt;

/// A request body without unsupported fields.
pub(super) struct Checked<T>(pub(super) T);

/// A request type with a table of its fields.
pub(super) trait HasFields {
    /// A list of lists, so that APIs can share some.
    const FIELDS: &'static [&'static [Fields]];
}

impl<T: DeserializeOwned + HasFields> FromRequest<Arc<App>> for Checked<T> {
    type Rejection = Error;

    async fn from_request(request: extract::Request, app: &Arc<App>) -> Result<Self, Error> {
        let arrived = body::read(request, app).await?;
        let parsed = body::parse(&arrived)?;
        refuse(&arrived, T::FIELDS)?;
        Ok(Self(parsed))
    }
}

pub(super) fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

pub(super) fn is_one(value: &Value) -> bool {
    value.is_null() || value.as_f64() == Some(1.0)
}

/// True for numbers that mean no limit.
pub(super) fn is_unlimited(value: &Value) -> bool {
    is_empty(value) || value.as_f64().is_some_and(|number| number < 0.0)
}

pub(super) fn is_disabled(value: &Value) -> bool {
    is_empty(value) || value == "disabled"
}

/// True for a choice that forces no call.
pub(super) fn is_unforced(value: &Value) -> bool {
    is_empty(value) || value == "none" || value == "auto"
}

pub(super) fn is_true(value: &Value) -> bool {
    value.is_null() || *value == true
}

pub(super) fn is_text_format(value: &Value) -> bool {
    value.is_null() || value.get("type").is_some_and(|kind| kind == "text")
}

pub(super) fn is_text_only(value: &Value) -> bool {
    is_empty(value) || value.as_array().is_some_and(|list| list.iter().all(|m| m == "text"))
}

/// Maximum length of a neutral value.
const NEUTRAL: usize = 40;

/// Rejects the first unsupported field. `body` is valid JSON.
fn refuse(body: &[u8], fields: &'static [&'static [Fields]]) -> Result<(), Error> {
    let mut json = json_bytes::deserializer(body);
    let Ok(Some(found)) = FirstUnsupported(fields).deserialize(&mut json) else {
        return Ok(());
    };
    let Unsupported { name, value, hint } = found;
    let message = format!("{name}: is {}, which is not supported", excerpt(value));
    Err(Error::new(StatusCode::BAD_REQUEST, "unsupported_parameter", message)
        .param(name)
        .hint(hint))
}

/// An unsupported field with its value as written, and an alternative to it.
struct Unsupported<'de> {
    name: &'static str,
    value: &'de str,
    hint: &'static str,
}

/// Finds the first unsupported field of an object.
struct FirstUnsupported(&'static [&'static [Fields]]);

impl FirstUnsupported {
    /// Returns the table's name of a field that may be refused, the test for neutral values, and
    /// the alternative.
    fn refused(&self, key: &str) -> Option<(&'static str, IsNeutral, &'static str)> {
        self.0.iter().copied().flatten().find_map(|(names, treatment)| {
            let name = names.iter().find(|name| **name == key)?;
            match treatment {
                Treatment::Refused(is_neutral, hint) => Some((*name, *is_neutral, *hint)),
                Treatment::Used | Treatment::Ignored => None,
            }
        })
    }
}

impl<'de> DeserializeSeed<'de> for FirstUnsupported {
    type Value = Option<Unsupported<'de>>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FirstUnsupported {
    type Value = Option<Unsupported<'de>>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            let Some((name, is_neutral, hint)) = self.refused(&key) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let value = map.next_value::<&RawValue>()?.get();
            // Neutral values are short.
            let neutral = value.len() <= NEUTRAL
                && serde_json::from_str(value).is_ok_and(|value| is_neutral(&value));
            if found.is_none() && !neutral {
                found = Some(Unsupported { name, value, hint });
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const FIELDS: &[Fields] = &[
        (&["user"], Treatment::Ignored),
        (&["best_of"], Treatment::Refused(is_one, "leave it out")),
        (&["suffix"], Treatment::Refused(is_empty, "leave it out")),
        (&["response_format"], Treatment::Refused(is_text_format, "leave it out")),
        (&["modalities"], Treatment::Refused(is_text_only, "leave it out")),
    ];

    fn refused(body: &Value) -> Option<String> {
        refuse(body.to_string().as_bytes(), &[FIELDS]).err().and_then(|e| e.body().error.param)
    }

    #[test]
    fn neutral_values_pass_and_others_are_rejected_by_name() {
        let neutral = json!({
            "best_of": 1, "response_format": {"type": "text"}, "modalities": ["text"], "suffix": "",
            "user": "me", "whatever": {"a": 1},
        });
        assert_eq!(refused(&neutral), None);
        for (name, value) in [
            ("best_of", json!(2)),
            ("suffix", json!("x")),
            ("response_format", json!({"type": "json_object"})),
            ("modalities", json!(["text", "audio"])),
        ] {
            assert_eq!(refused(&json!({name: value})).as_deref(), Some(name));
        }
    }
}
