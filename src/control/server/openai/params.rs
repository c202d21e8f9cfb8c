//! What the two generating routes have in common: which model, how tokens are chosen, when to stop,
//! and what is refused because it cannot be honoured.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use axum::extract::{self, FromRequest};
use axum::http::StatusCode;
use serde::de::{DeserializeOwned, IgnoredAny, MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::Value;
use serde_json::value::RawValue;

use crate::control::api;
use crate::control::server::error::Error;
use crate::control::server::{App, body, unique};
use crate::engine::{Admission, Loading, Request, State};
use crate::wording::shown;
use plan::sample::Sampling;

/// How tokens are chosen when the request does not say: llama.cpp's defaults, which users know.
const DEFAULT: Sampling = Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, seed: 0 };

/// Stop texts of one request at most.
const STOPS: usize = 16;
/// Bytes of one stop text at most.
const STOP_BYTES: usize = 1024;

/// The body of a request to one of OpenAI's routes.
pub(in crate::control::server) struct OpenAiBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for OpenAiBody<T> {
    type Rejection = Error;

    async fn from_request(request: extract::Request, app: &Arc<App>) -> Result<Self, Error> {
        let arrived = body::read(request, app).await?;
        let parsed = body::parse(&arrived)?;
        refuse(&arrived)?;
        Ok(Self(parsed))
    }
}

/// Places for requests to the loaded model, if it is the one that was asked for.
pub(super) fn admit(app: &App, wanted: Option<&str>, requests: usize) -> Result<Admission, Error> {
    if let State::Loading(Loading { model, progress }) = app.engine.snapshot().state {
        let message = format!("{model} is being loaded, {:.0} % done", progress * 100.0);
        return Err(Error::new(StatusCode::SERVICE_UNAVAILABLE, "loading", message)
            .hint("try again when GET /health answers 200"));
    }
    let admission = app.engine.admit(requests)?;
    let id = &admission.served.model.id;
    if let Some(wanted) = wanted.filter(|name| !name.is_empty() && name != id) {
        let message = format!("the model `{}` is not loaded; `{id}` is", shown(wanted));
        return Err(Error::new(StatusCode::NOT_FOUND, "model_not_found", message)
            .param("model")
            .hint("name the loaded model or leave `model` out; `orinctl load` loads another"));
    }
    Ok(admission)
}

/// Log-probabilities that one answer reports at most: a token's own and its alternatives each count.
const REPORTED: usize = 1 << 18;

/// Tokens that each of some requests may generate at most so that all their log-probabilities can be reported;
/// refuses more than that. `echoed` tokens of prompts are reported too.
pub(super) fn reportable(
    alternatives: Option<u8>,
    echoed: usize,
    asked: Option<u32>,
    requests: usize,
) -> Result<u32, Error> {
    let Some(alternatives) = alternatives else { return Ok(u32::MAX) };
    let each = 1 + usize::from(alternatives);
    let asked = (asked.unwrap_or(1) as usize).saturating_mul(requests);
    let tokens = echoed.saturating_add(asked);
    if tokens.saturating_mul(each) > REPORTED {
        let message = format!(
            "logprobs: {tokens} tokens with {each} log-probabilities each are asked for, {REPORTED} of \
             them are reported in one answer at most"
        );
        return Err(Error::value("logprobs", message)
            .hint("ask for fewer tokens, fewer prompts or fewer alternatives"));
    }
    let left = (REPORTED / each - echoed) / requests.max(1);
    Ok(u32::try_from(left).unwrap_or(u32::MAX))
}

/// Tokens to generate: as asked, or what the slot has room for and the answer can report.
pub(super) fn max_tokens(asked: Option<u32>, prompt: usize, context: usize, most: u32) -> u32 {
    asked.unwrap_or_else(|| {
        // With no room at all the engine refuses, and says why.
        u32::try_from(context.saturating_sub(prompt).max(1)).unwrap_or(u32::MAX).min(most)
    })
}

pub(super) fn sampling(
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    seed: Option<i64>,
) -> Result<Sampling, Error> {
    let range = |name: &str, value: f32, low: f32, high: f32| {
        if (low..=high).contains(&value) {
            return Ok(value);
        }
        Err(Error::value(name, format!("{name}: is {value}, {low} to {high} are allowed")))
    };
    Ok(Sampling {
        temperature: range("temperature", temperature.unwrap_or(DEFAULT.temperature), 0.0, 2.0)?,
        top_p: range("top_p", top_p.unwrap_or(DEFAULT.top_p), 0.0, 1.0)?,
        top_k: top_k.unwrap_or(DEFAULT.top_k),
        seed: seed.map_or_else(unique, i64::cast_unsigned),
    })
}

pub(super) fn stops(stop: Option<api::Stop>) -> Result<Vec<String>, Error> {
    let stops = match stop {
        None => Vec::new(),
        Some(api::Stop::One(one)) => vec![one],
        Some(api::Stop::Many(many)) => many,
    };
    if stops.len() > STOPS {
        let message = format!("stop: has {} texts, at most {STOPS} are allowed", stops.len());
        return Err(Error::value("stop", message));
    }
    match stops.iter().map(String::len).find(|len| !(1..=STOP_BYTES).contains(len)) {
        Some(len) => {
            let message = format!("stop: a text has {len} bytes, 1 to {STOP_BYTES} are allowed");
            Err(Error::value("stop", message))
        }
        None => Ok(stops),
    }
}

pub(super) fn alternatives(name: &'static str, asked: u32) -> Result<u8, Error> {
    let most = Request::MAX_LOGPROBS;
    let number = u8::try_from(asked).ok().filter(|n| *n <= most);
    number.ok_or_else(|| Error::value(name, format!("{name}: is {asked}, 0 to {most} are allowed")))
}

/// A field that would change the answer and cannot be honoured, the values that change nothing, and
/// what to do instead.
type Refused = (&'static str, fn(&Value) -> bool, &'static str);

fn nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(on) => !on,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.is_empty(),
    }
}

fn one(value: &Value) -> bool {
    value.is_null() || value.as_f64() == Some(1.0)
}

fn text_format(value: &Value) -> bool {
    value.is_null() || value.get("type").is_some_and(|kind| kind == "text")
}

fn text_only(value: &Value) -> bool {
    nothing(value) || value.as_array().is_some_and(|list| list.iter().all(|m| m == "text"))
}

static REFUSED: [Refused; 22] = [
    ("n", one, "send several requests; they are served side by side"),
    ("best_of", one, "send several requests with `logprobs` and choose"),
    ("use_beam_search", nothing, "leave it out"),
    ("suffix", nothing, "put the model's fill-in-the-middle tokens into the prompt"),
    ("tools", nothing, "describe the tools in the system message and parse the answer"),
    ("functions", nothing, "describe the functions in the system message and parse the answer"),
    ("response_format", text_format, "ask for the format in the prompt and check the answer"),
    ("grammar", nothing, "ask for the format in the prompt and check the answer"),
    ("json_schema", nothing, "ask for the format in the prompt and check the answer"),
    ("logit_bias", nothing, "leave it out"),
    ("presence_penalty", nothing, "leave it out or send 0"),
    ("frequency_penalty", nothing, "leave it out or send 0"),
    ("repeat_penalty", one, "leave it out or send 1"),
    ("repetition_penalty", one, "leave it out or send 1"),
    ("min_p", nothing, "use top_p or top_k"),
    ("typical_p", one, "use top_p or top_k"),
    ("mirostat", nothing, "use top_p or top_k"),
    ("min_tokens", nothing, "leave it out"),
    ("stop_token_ids", nothing, "use `stop` with the token's text"),
    ("n_predict", nothing, "use max_tokens"),
    ("modalities", text_only, "only text is possible"),
    ("audio", nothing, "only text is possible"),
];

/// Longest value that may change nothing.
const NEUTRAL: usize = 40;

/// Refuses known fields that cannot be honoured. Others are ignored, as OpenAI's clients expect. The body is
/// valid JSON; nothing of it is kept.
fn refuse(body: &[u8]) -> Result<(), Error> {
    let Ok(Asked(Some((refused, value)))) = serde_json::from_slice(body) else { return Ok(()) };
    let (name, _, hint) = refused;
    let message = format!("{name}: is {}, which is not supported", shown(value));
    Err(Error::new(StatusCode::BAD_REQUEST, "unsupported_parameter", message)
        .param(*name)
        .hint(*hint))
}

/// The first field of an object that cannot be honoured, with its value as it is written.
struct Asked<'a>(Option<(&'static Refused, &'a str)>);

impl<'de: 'a, 'a> Deserialize<'de> for Asked<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Fields;
        impl<'de> Visitor<'de> for Fields {
            type Value = Asked<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Asked<'de>, A::Error> {
                let mut found = None;
                while let Some(key) = map.next_key::<Cow<'de, str>>()? {
                    let Some(refused) = REFUSED.iter().find(|refused| refused.0 == key) else {
                        map.next_value::<IgnoredAny>()?;
                        continue;
                    };
                    let value = map.next_value::<&RawValue>()?.get();
                    // What does not change the answer is short.
                    let neutral = value.len() <= NEUTRAL
                        && serde_json::from_str(value).is_ok_and(|value| refused.1(&value));
                    if found.is_none() && !neutral {
                        found = Some((refused, value));
                    }
                }
                Ok(Asked(found))
            }
        }
        deserializer.deserialize_map(Fields)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn refused(body: &Value) -> Option<String> {
        refuse(body.to_string().as_bytes()).err().and_then(|e| e.body().error.param)
    }

    #[test]
    fn neutral_values_pass_and_others_are_refused_by_name() {
        let neutral = json!({
            "n": 1, "tools": [], "logit_bias": null, "presence_penalty": 0.0,
            "response_format": {"type": "text"}, "repeat_penalty": 1.0, "min_p": 0,
            "modalities": ["text"], "suffix": "", "user": "me", "whatever": {"a": 1},
        });
        assert_eq!(refused(&neutral), None);
        for (name, value) in [
            ("n", json!(2)),
            ("tools", json!([{"type": "function"}])),
            ("response_format", json!({"type": "json_object"})),
            ("logit_bias", json!({"5": -100})),
            ("frequency_penalty", json!(0.5)),
            ("repeat_penalty", json!(1.1)),
            ("modalities", json!(["text", "audio"])),
        ] {
            assert_eq!(refused(&json!({name: value})).as_deref(), Some(name));
        }
    }

    #[test]
    fn ranges_are_named() {
        let message = |e: Error| e.body().error.message;
        assert_eq!(
            message(sampling(Some(3.0), None, None, None).unwrap_err()),
            "temperature: is 3, 0 to 2 are allowed"
        );
        assert!(sampling(None, Some(f32::NAN), None, None).is_err());
        assert_eq!(sampling(Some(0.0), None, None, Some(-1)).unwrap().seed, u64::MAX);
        let chosen = || sampling(None, None, None, None).unwrap().seed;
        assert_ne!(chosen(), chosen());
        assert!(alternatives("logprobs", 20).is_ok() && alternatives("logprobs", 21).is_err());
        assert!(stops(Some(api::Stop::One(String::new()))).is_err());
        assert!(stops(Some(api::Stop::Many(vec!["x".into(); 17]))).is_err());
    }

    #[test]
    fn what_is_not_said_is_the_rest_of_the_slot() {
        assert_eq!(max_tokens(None, 10, 64, u32::MAX), 54);
        assert_eq!(max_tokens(Some(0), 10, 64, u32::MAX), 0);
        assert_eq!(max_tokens(None, 64, 64, u32::MAX), 1);
        assert_eq!(max_tokens(None, 10, 64, 20), 20);
    }
}
