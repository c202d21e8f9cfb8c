//! Errors as HTTP answers: status, machine-readable code, message, hint.

use axum::Json;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderName, HeaderValue, StatusCode};
use axum::response::{IntoResponse, Response};

use api::{ErrorBody, ErrorDetail};
use engine::{GenerateError, LoadError};

#[derive(Clone, Debug)]
pub(super) struct Error {
    status: StatusCode,
    code: &'static str,
    message: String,
    hint: Option<String>,
    param: Option<String>,
    header: Option<Box<(HeaderName, HeaderValue)>>,
}

impl Error {
    pub(super) fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self { status, code, message: message.into(), hint: None, param: None, header: None }
    }

    /// Error for an invalid value of the field `param`.
    pub(super) fn value(param: impl Into<String>, message: impl Into<String>) -> Self {
        let error = Self::new(StatusCode::BAD_REQUEST, "invalid_value", message);
        Self { param: Some(param.into()), ..error }
    }

    pub(super) fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "internal_error", message)
            .hint("this is a bug in orind; see its log")
    }

    pub(super) fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }

    /// Adds the header Retry-After.
    pub(super) fn retry_after(self, seconds: u64) -> Self {
        self.header(RETRY_AFTER, HeaderValue::from(seconds))
    }

    /// Adds a header.
    pub(super) fn header(self, name: HeaderName, value: HeaderValue) -> Self {
        Self { header: Some(Box::new((name, value))), ..self }
    }

    pub(super) fn param(self, param: impl Into<String>) -> Self {
        Self { param: Some(param.into()), ..self }
    }

    pub(super) const fn status(&self) -> StatusCode {
        self.status
    }

    /// Error code, also for the metrics.
    pub(super) const fn code(&self) -> &'static str {
        self.code
    }

    pub(super) fn body(&self) -> ErrorBody {
        let kind = match self.status.as_u16() {
            429 => "rate_limit_error",
            400..500 => "invalid_request_error",
            _ => "server_error",
        };
        ErrorBody {
            error: ErrorDetail {
                code: self.code.to_owned(),
                message: self.message.clone(),
                hint: self.hint.clone(),
                kind: kind.to_owned(),
                param: self.param.clone(),
            },
        }
    }
}

/// The answer in OpenAI's shape. It has the error as an extension, for metrics and other shapes.
impl IntoResponse for Error {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.body())).into_response();
        if let Some((name, value)) = self.header.as_deref().cloned() {
            response.headers_mut().insert(name, value);
        }
        response.extensions_mut().insert(self);
        response
    }
}

impl From<GenerateError> for Error {
    fn from(error: GenerateError) -> Self {
        let message = error.to_string();
        match error {
            GenerateError::NoModel => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_model", "no model is loaded")
                    .hint("load one with `orinctl load MODEL` or POST /orin/v1/models")
            }
            GenerateError::QueueFull { retry_after, .. } => Self::new(
                StatusCode::TOO_MANY_REQUESTS,
                "queue_full",
                message,
            )
            .retry_after(retry_after.as_secs().max(1))
            .hint(
                "retry after the seconds in Retry-After, or raise queue_limit in the configuration",
            ),
            GenerateError::TooLong { .. } => {
                Self::new(StatusCode::BAD_REQUEST, "context_length_exceeded", message)
            }
            GenerateError::Invalid { field, .. } => Self::value(field, message),
            GenerateError::Stopping => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", message)
            }
            GenerateError::NotFinite { .. } => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "non_finite_logits", message).hint(
                    "if all devices report this, the file is damaged: create or download it again",
                )
            }
            GenerateError::Constraint(_) => {
                Self::new(StatusCode::BAD_REQUEST, "grammar_failed", message)
                    .hint("loosen the grammar or the schema")
            }
            GenerateError::Device(_) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "device_error", message)
                    .hint("see the daemon's log and `orinctl status`")
            }
        }
    }
}

impl From<LoadError> for Error {
    fn from(error: LoadError) -> Self {
        let message = error.to_string();
        match error {
            LoadError::OutOfMemory(_) => {
                Self::new(StatusCode::INSUFFICIENT_STORAGE, "out_of_memory", message)
                    .hint("lower slots, context or prefill_chunk, or load a smaller model")
            }
            LoadError::NotFound(_) => Self::new(StatusCode::NOT_FOUND, "model_not_found", message)
                .hint("`orinctl models` lists what can be loaded by name"),
            LoadError::Invalid(_) => Self::new(StatusCode::BAD_REQUEST, "invalid_model", message),
            LoadError::GivenUp(_) => Self::new(StatusCode::CONFLICT, "load_given_up", message),
            LoadError::Stopping => Self::new(StatusCode::SERVICE_UNAVAILABLE, "stopping", message),
            LoadError::Device(_) => {
                Self::new(StatusCode::INTERNAL_SERVER_ERROR, "device_error", message)
            }
        }
    }
}
