//! A request's body: JSON, of bounded size, in bounded time.

use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use axum::http::header::{CONTENT_LENGTH, CONTENT_TYPE};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde::de::DeserializeOwned;

use super::App;
use super::error::Error;

pub(super) struct JsonBody<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for JsonBody<T> {
    type Rejection = Error;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Self, Error> {
        let json = request
            .headers()
            .get(CONTENT_TYPE)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.split(';').next())
            .is_some_and(|essence| essence.trim().eq_ignore_ascii_case("application/json"));
        if !json {
            let message = "the body must be JSON with the header Content-Type: application/json";
            return Err(Error::new(
                StatusCode::UNSUPPORTED_MEDIA_TYPE,
                "unsupported_media_type",
                message,
            )
            .hint("with curl: -H 'Content-Type: application/json' -d '{..}'"));
        }
        parse(&read(request, app).await?).map(Self)
    }
}

/// The whole body, within the configured size and time.
async fn read(request: Request, app: &App) -> Result<Bytes, Error> {
    let config = app.config();
    let limit = config.max_body_bytes;
    let too_large = |size: &str| {
        let message = format!("the body has {size} bytes, the limit is {limit}");
        Error::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
            .hint("send less, or raise max_body_bytes in the configuration")
    };
    let declared = request.headers().get(CONTENT_LENGTH).and_then(|v| v.to_str().ok());
    if let Some(size) = declared.filter(|v| v.parse::<u64>().is_ok_and(|n| n > limit as u64)) {
        return Err(too_large(size));
    }
    let body = Limited::new(request.into_body(), limit).collect();
    let time = config.request_timeout();
    match tokio::time::timeout(time, body).await {
        Ok(Ok(body)) => Ok(body.to_bytes()),
        Ok(Err(error)) if error.is::<LengthLimitError>() => {
            Err(too_large(&format!("more than {limit}")))
        }
        Ok(Err(error)) => {
            let message = format!("the body could not be read: {error}");
            Err(Error::new(StatusCode::BAD_REQUEST, "incomplete_body", message))
        }
        Err(_) => {
            let message = format!("the body did not arrive within {} s", time.as_secs());
            Err(Error::new(StatusCode::REQUEST_TIMEOUT, "request_timeout", message))
        }
    }
}

/// Parses JSON; an error names the line and column, and the field when the JSON itself is sound.
fn parse<T: DeserializeOwned>(body: &[u8]) -> Result<T, Error> {
    let malformed = |reason: String| {
        let message = format!("the body is not valid JSON: {reason}");
        Error::new(StatusCode::BAD_REQUEST, "malformed_json", message)
    };
    if body.is_empty() {
        return Err(malformed("it is empty".into()));
    }
    let mut json = serde_json::Deserializer::from_slice(body);
    let value = serde_path_to_error::deserialize(&mut json).map_err(|error| {
        let path = error.path().to_string();
        let error = error.into_inner();
        if !error.is_data() {
            return malformed(error.to_string());
        }
        if path == "." {
            return Error::new(StatusCode::BAD_REQUEST, "invalid_value", error.to_string());
        }
        Error::value(path.as_str(), format!("{path}: {error}"))
    })?;
    json.end().map_err(|error| malformed(error.to_string()))?;
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::api;

    fn refused<T: DeserializeOwned>(body: &str) -> api::ErrorDetail {
        parse::<T>(body.as_bytes()).err().unwrap().body().error
    }

    #[test]
    fn malformed_json_names_the_place() {
        let error = refused::<api::CompletionRequest>("{\"prompt\": \"x\",\n  oops}");
        assert_eq!(error.code, "malformed_json");
        assert!(error.message.contains("line 2 column 3"), "{}", error.message);
        assert_eq!(refused::<api::LoadRequest>("").code, "malformed_json");
        assert_eq!(refused::<api::LoadRequest>("{\"model\":\"a\"} x").code, "malformed_json");
    }

    #[test]
    fn a_wrong_value_names_the_field() {
        let error = refused::<api::ChatRequest>(r#"{"messages": [{"role": 1, "content": ""}]}"#);
        assert_eq!(
            (error.code.as_str(), error.param.as_deref()),
            ("invalid_value", Some("messages[0].role"))
        );
        let error = refused::<api::CompletionRequest>(r#"{"prompt": {"a": 1}}"#);
        assert_eq!(error.param.as_deref(), Some("prompt"));
        assert!(error.message.contains("list of token ids"), "{}", error.message);
        let error = refused::<api::CompletionRequest>(r#"{"max_tokens": 4}"#);
        assert!(error.message.contains("missing field `prompt`"), "{}", error.message);
    }

    #[test]
    fn strangers_are_refused_under_our_own_routes_only() {
        let error = refused::<api::LoadRequest>(r#"{"model": "a", "slot": 3}"#);
        assert!(error.message.contains("unknown field `slot`"), "{}", error.message);
        parse::<api::CompletionRequest>(br#"{"prompt": "a", "whatever": 3}"#).ok().unwrap();
    }

    #[test]
    fn every_form_of_prompt() {
        let prompt = |json: &str| {
            parse::<api::CompletionRequest>(format!("{{\"prompt\":{json}}}").as_bytes())
                .ok()
                .unwrap()
                .prompt
        };
        assert_eq!(prompt("\"a\""), api::Prompt::Text("a".into()));
        assert_eq!(prompt("[\"a\",\"b\"]"), api::Prompt::Texts(vec!["a".into(), "b".into()]));
        assert_eq!(prompt("[1,2]"), api::Prompt::Ids(vec![1, 2]));
        assert_eq!(prompt("[[1],[2,3]]"), api::Prompt::IdLists(vec![vec![1], vec![2, 3]]));
    }
}
