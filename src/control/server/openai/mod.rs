//! The routes under `/v1`, in the shapes that OpenAI's clients expect.

mod chat;
mod completions;
mod logprobs;
mod params;
mod prompt;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::State;

pub(super) use chat::chat;
pub(super) use completions::completions;
pub(super) use prompt::TURNS;

use super::error::Error;
use super::{App, status};
use crate::control::api;
use crate::engine::{FinishReason, Finished, GenerateError};

pub(super) async fn models(State(app): State<Arc<App>>) -> Json<api::ModelList> {
    let entry = |id: &str| api::ModelEntry {
        id: id.into(),
        object: "model".into(),
        created: app.loaded_at().map_or(0, seconds),
        owned_by: "orind".into(),
    };
    let state = app.engine.snapshot().state;
    let data = status::loaded(&state).map(|model| entry(&model.id)).into_iter().collect();
    Json(api::ModelList { object: "list".into(), data })
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// What an answer begins with; its id begins with `prefix`.
fn head(prefix: &str, object: &str, model: String) -> api::Head {
    api::Head {
        id: format!("{prefix}-{:016x}", super::unique()),
        object: object.into(),
        created: seconds(SystemTime::now()),
        model,
        system_fingerprint: format!("orind-{}", super::VERSION),
    }
}

/// `finish_reason`. A generation that was cancelled has none: nobody listens, or the daemon stops.
fn finish_reason(finished: &Finished) -> Result<&'static str, Error> {
    match finished.reason {
        FinishReason::End { .. } | FinishReason::Stop => Ok("stop"),
        FinishReason::Length => Ok("length"),
        FinishReason::Cancelled => Err(GenerateError::Stopping.into()),
    }
}

fn add_usage(usage: &mut api::Usage, finished: &Finished) {
    usage.prompt_tokens += u64::from(finished.prompt_tokens);
    usage.completion_tokens += u64::from(finished.completion_tokens);
    usage.total_tokens = usage.prompt_tokens + usage.completion_tokens;
}

fn timings(finished: &Finished) -> api::Timings {
    let ms = |time: Duration| (time.as_secs_f64() * 1e6).round() / 1e3;
    api::Timings {
        queued_ms: ms(finished.queued),
        first_token_ms: ms(finished.first_token),
        total_ms: ms(finished.total),
    }
}
