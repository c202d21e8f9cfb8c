//! OpenAI's API: the routes under `/v1`.

mod chat;
mod completions;
mod logprobs;
mod responses;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use axum::Json;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, State};
use serde_json::Value;

pub(super) use chat::{ask, chat, tool_list};
pub(super) use completions::completions;
pub(super) use responses::{
    delete as delete_response, get as response, input_items as response_input, input_tokens,
    responses,
};

use super::dialogue::{Form, Reason};
use super::error::Error;
use super::residents::{self, Resident};
use super::{App, params};
use engine::{Finished, Grammar};
use errors::invalid::excerpt;

pub(super) async fn models(State(app): State<Arc<App>>) -> Json<api::ModelList> {
    Json(api::ModelList { object: "list".into(), data: loaded(&app) })
}

pub(super) async fn model(
    State(app): State<Arc<App>>,
    id: Result<Path<String>, PathRejection>,
) -> Result<Json<api::ModelEntry>, Error> {
    let Path(id) = id.map_err(|rejection| Error::value("id", format!("id: {rejection}")))?;
    let loaded = loaded(&app);
    if let Some(model) = loaded.iter().find(|model| model.id == id) {
        return Ok(Json(model.clone()));
    }
    Err(params::model_not_found(&app, &id))
}

/// Lists the models that can serve requests, each followed by its adapters.
fn loaded(app: &App) -> Vec<api::ModelEntry> {
    let entries = |one: Arc<Resident>| {
        let state = one.engine.snapshot().state;
        let entry = |id: String, parent| api::ModelEntry {
            id,
            object: "model".into(),
            created: one.loaded_at().map_or(0, seconds),
            owned_by: "orind".into(),
            parent,
        };
        let Some(model) = residents::loaded(&state) else {
            let absent = (!one.name.is_empty()).then(|| entry(one.name.clone(), None));
            return Vec::from_iter(absent);
        };
        let adapters = residents::adapter_ids(model).map(|id| entry(id, Some(model.id.clone())));
        std::iter::once(entry(model.id.clone(), None)).chain(adapters).collect()
    };
    app.residents.all().flat_map(entries).collect()
}

/// Seconds since 1970.
fn seconds(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// Returns the common first fields of an answer, whose id begins with `prefix`.
fn head(prefix: &str, object: &str, model: String) -> api::Head {
    api::Head {
        id: format!("{prefix}-{:016x}", super::unique()),
        object: object.into(),
        created: seconds(SystemTime::now()),
        model,
        system_fingerprint: format!("orind-{}", super::VERSION),
    }
}

/// `finish_reason`.
const fn finish_reason(reason: &Reason) -> &'static str {
    match reason {
        Reason::Stop | Reason::StopText(_) => "stop",
        Reason::Length => "length",
        Reason::Calls => "tool_calls",
    }
}

fn add_usage(usage: &mut api::Usage, finished: &Finished) {
    usage.prompt_tokens += u64::from(finished.prompt_tokens);
    let details = &mut usage.prompt_tokens_details;
    details.cached_tokens += u64::from(finished.cached_tokens);
    // The first position of several prompts.
    let positions = details.diverged_at.into_iter().chain(finished.diverged_at);
    details.diverged_at = positions.min();
    usage.completion_tokens += u64::from(finished.completion_tokens);
    let details = &mut usage.completion_tokens_details;
    details.accepted_prediction_tokens += u64::from(finished.accepted_tokens);
    details.rejected_prediction_tokens +=
        u64::from(finished.drafted_tokens - finished.accepted_tokens);
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

/// Returns the required format of an answer.
pub(super) fn form(
    grammar: Option<String>,
    json_schema: Option<Value>,
    format: Option<api::ResponseFormat>,
) -> Result<Form, Error> {
    let format = match format {
        None => Form::Text,
        Some(mut format) => match (&*std::mem::take(&mut format.kind), format.schema()) {
            ("text", _) => Form::Text,
            ("json_object" | "json_schema", Some(schema)) => Form::schema(schema),
            ("json_object", None) => Form::json(),
            ("json_schema", None) => {
                let field = "response_format.json_schema.schema";
                return Err(Error::value(field, format!("{field}: is missing")));
            }
            (kind, _) => {
                let allowed = "allowed are text, json_object, json_schema";
                let message = format!("response_format.type: is `{}`; {allowed}", excerpt(kind));
                return Err(Error::value("response_format.type", message));
            }
        },
    };
    let grammar = grammar.map(|text| Form::Grammar(Grammar::written(text)));
    let schema = json_schema.map(Form::schema);
    let mut forms = [grammar, schema, Some(format).filter(|format| *format != Form::Text)]
        .into_iter()
        .flatten();
    let form = forms.next().unwrap_or_default();
    if forms.next().is_some() {
        let message = "grammar: only one of grammar, json_schema and response_format is allowed";
        return Err(Error::value("grammar", message));
    }
    Ok(form)
}

#[cfg(test)]
mod tests {
    use super::*;
    use engine::FinishReason;

    #[test]
    fn timings_are_milliseconds_rounded_to_microseconds() {
        let finished = Finished {
            reason: FinishReason::Length,
            text: String::new(),
            prompt_tokens: 1,
            cached_tokens: 0,
            diverged_at: None,
            completion_tokens: 1,
            drafted_tokens: 0,
            accepted_tokens: 0,
            queued: Duration::from_nanos(1_499),
            first_token: Duration::from_micros(2_500),
            total: Duration::from_secs(61),
        };
        let api::Timings { queued_ms, first_token_ms, total_ms } = timings(&finished);
        assert_eq!([queued_ms, first_token_ms, total_ms], [0.001, 2.5, 61_000.0]);
    }
}
