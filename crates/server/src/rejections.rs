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
use super::{App, body};
use errors::invalid::excerpt;

/// A request body without unsupported fields.
pub(super) struct Checked<T>(pub(super) T);

/// The rejected fields of a request type.
pub(super) trait RejectsFields {
    /// A list of lists, so that APIs can share some.
    const UNSUPPORTED: &'static [&'static [UnsupportedField]];
}

impl<T: DeserializeOwned + RejectsFields> FromRequest<Arc<App>> for Checked<T> {
    type Rejection = Error;

    async fn from_request(request: extract::Request, app: &Arc<App>) -> Result<Self, Error> {
        let arrived = body::read(request, app).await?;
        let parsed = body::parse(&arrived)?;
        refuse(&arrived, T::UNSUPPORTED)?;
        Ok(Self(parsed))
    }
}

/// An unsupported field: its name, a test for neutral values, and an alternative to it.
pub(super) type UnsupportedField = (&'static str, fn(&Value) -> bool, &'static str);

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
fn refuse(body: &[u8], refused: &'static [&'static [UnsupportedField]]) -> Result<(), Error> {
    let mut json = serde_json::Deserializer::from_slice(body);
    let Ok(Some((refused, value))) = FirstUnsupported(refused).deserialize(&mut json) else {
        return Ok(());
    };
    let (name, _, hint) = refused;
    let message = format!("{name}: is {}, which is not supported", excerpt(value));
    Err(Error::new(StatusCode::BAD_REQUEST, "unsupported_parameter", message)
        .param(*name)
        .hint(*hint))
}

/// Finds the first unsupported field of an object, with its value as written.
struct FirstUnsupported(&'static [&'static [UnsupportedField]]);

impl<'de> DeserializeSeed<'de> for FirstUnsupported {
    type Value = Option<(&'static UnsupportedField, &'de str)>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Self::Value, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for FirstUnsupported {
    type Value = Option<(&'static UnsupportedField, &'de str)>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        let mut found = None;
        while let Some(key) = map.next_key::<Cow<'de, str>>()? {
            let mut all = self.0.iter().copied().flatten();
            let Some(refused) = all.find(|refused| refused.0 == key) else {
                map.next_value::<IgnoredAny>()?;
                continue;
            };
            let value = map.next_value::<&RawValue>()?.get();
            // Neutral values are short.
            let neutral = value.len() <= NEUTRAL
                && serde_json::from_str(value).is_ok_and(|value| refused.1(&value));
            if found.is_none() && !neutral {
                found = Some((refused, value));
            }
        }
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const UNSUPPORTED: [UnsupportedField; 4] = [
        ("best_of", is_one, "leave it out"),
        ("suffix", is_empty, "leave it out"),
        ("response_format", is_text_format, "leave it out"),
        ("modalities", is_text_only, "leave it out"),
    ];

    fn refused(body: &Value) -> Option<String> {
        refuse(body.to_string().as_bytes(), &[&UNSUPPORTED])
            .err()
            .and_then(|e| e.body().error.param)
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
