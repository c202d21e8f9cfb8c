//! The newest sample of a history as one line of JSON.

use jiff::Timestamp;
use serde::Serialize;

use super::history::History;
use api::{Requests, Roof, State};
use telemetry::Sample as Machine;

/// One line of `orinctl top --json`. If the daemon does not answer, `error` has the reason and the
/// rest is absent.
#[derive(Debug, Serialize)]
pub(super) struct Sample<'a> {
    time: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a str>,
    #[serde(flatten)]
    now: Option<Now<'a>>,
}

#[derive(Debug, Serialize)]
struct Now<'a> {
    state: &'a State,
    /// Id of the loaded model.
    model: Option<&'a str>,
    /// Generated tokens per second since the last line.
    decode_tokens_per_second: f64,
    /// Prompt tokens per second.
    prefill_tokens_per_second: f64,
    /// Bytes of weights read per second, and the memory bandwidth.
    weights_bytes_per_second: f64,
    roof: Option<&'a Roof>,
    /// Fraction of the KV cache that is filled, 0 to 1.
    kv_fill: Option<f64>,
    requests: &'a Requests,
    /// Power in watts.
    watts: Option<f64>,
    /// Clocks, temperatures, power rails.
    machine: &'a Machine,
}

impl<'a> Sample<'a> {
    pub(super) fn of(history: &'a History) -> Self {
        let error = history.silence.as_deref();
        let status = history.last.as_ref().map(|(_, status)| status).filter(|_| error.is_none());
        let now = status.map(|status| Now {
            state: &status.state,
            model: status.model.as_ref().map(|model| model.id.as_str()),
            decode_tokens_per_second: history.tokens.now(),
            prefill_tokens_per_second: history.prompt.now(),
            weights_bytes_per_second: history.bytes.now(),
            roof: status.roof.as_ref(),
            kv_fill: history.kv_fill(),
            requests: &status.requests,
            watts: status.machine.now.watts(),
            machine: &status.machine.now,
        });
        Self { time: Timestamp::now().strftime("%FT%T.%3fZ").to_string(), error, now }
    }
}
