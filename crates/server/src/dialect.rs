//! Error bodies in the shape of each API.

use axum::body::Body;
use axum::extract::Request;
use axum::http::Method;
use axum::http::header::CONTENT_LENGTH;
use axum::middleware::Next;
use axum::response::Response;
use serde_json::{Map, Value, json};

use super::error::Error;
use api::route;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// OpenAI's shape, which all routes have except those of the other two.
    OpenAi,
    Anthropic,
    Ollama,
}

impl Dialect {
    fn of(path: &str) -> Self {
        if path.starts_with("/api/") {
            return Self::Ollama;
        }
        match path.strip_prefix(route::MESSAGES) {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => Self::Anthropic,
            _ => Self::OpenAi,
        }
    }

    /// Returns the body of an error. All shapes have the code, the hint and the field.
    pub(super) fn error(self, error: &Error) -> Value {
        let body = error.body().error;
        let mut extra = Map::new();
        extra.insert("code".into(), body.code.into());
        extra.extend(body.hint.map(|hint| ("hint".into(), hint.into())));
        extra.extend(body.param.map(|param| ("param".into(), param.into())));
        match self {
            Self::OpenAi => json!(error.body()),
            Self::Anthropic => {
                extra.insert("type".into(), anthropic_type(error.status().as_u16()).into());
                extra.insert("message".into(), body.message.into());
                json!({"type": "error", "error": extra})
            }
            Self::Ollama => {
                extra.insert("error".into(), body.message.into());
                extra.into()
            }
        }
    }
}

/// Anthropic's error class of a status.
const fn anthropic_type(status: u16) -> &'static str {
    match status {
        401 => "authentication_error",
        403 => "permission_error",
        404 => "not_found_error",
        408 => "timeout_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        400..500 => "invalid_request_error",
        503 => "overloaded_error",
        _ => "api_error",
    }
}

/// Rewrites error answers in the shape of the route's API.
pub(super) async fn shape_errors(request: Request, next: Next) -> Response {
    let dialect = Dialect::of(request.uri().path());
    let has_body = request.method() != Method::HEAD;
    let mut response = next.run(request).await;
    if let Some(error) = response.extensions_mut().remove::<Error>()
        && dialect != Dialect::OpenAi
        && has_body
    {
        let body = dialect.error(&error).to_string();
        response.headers_mut().insert(CONTENT_LENGTH, body.len().into());
        *response.body_mut() = Body::from(body);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_have_the_shape_of_their_api() {
        let error = Error::value("messages", "messages: is missing").hint("send some");
        let of = |path: &str| Dialect::of(path).error(&error);
        let anthropic = of("/v1/messages/count_tokens");
        assert_eq!(anthropic["type"], "error");
        assert_eq!(anthropic["error"]["type"], "invalid_request_error");
        assert_eq!(anthropic["error"]["param"], "messages");
        let ollama = of("/api/nothing");
        assert_eq!(ollama["error"], "messages: is missing");
        assert_eq!(ollama["code"], "invalid_value");
        for path in ["/v1/messages-of-others", "/v1/chat/completions", "/orin/v1/status", "/apis"] {
            assert_eq!(of(path)["error"]["code"], "invalid_value", "{path}");
        }
    }
}
