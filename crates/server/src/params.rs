//! Parameters that all generating routes share: model, adapters, sampling, limits, stop texts.

use std::sync::Arc;

use axum::http::StatusCode;
use model::tokenizer::Tokenizer;

use super::error::Error;
use super::residents::adapter_ids;
use super::{App, unique};
use engine::{
    Admission, Dry, DynamicTemperature, GenerateError, Loading, LogitsProcessors, Mirostat,
    ModelInfo, Request, Scales, State, Xtc,
};
use errors::invalid::excerpt;
use plan::sample::{self, Sampling};

/// Default sampling parameters, the same as llama.cpp's.
pub(super) const DEFAULT: Sampling =
    Sampling { temperature: 0.8, top_k: 40, top_p: 0.95, seed: 0, ..Sampling::GREEDY };

/// Maximum number of stop texts in a request.
const STOPS: usize = 16;
/// Maximum length of a stop text in bytes.
const STOP_BYTES: usize = 1024;

/// Admits requests to the named model. Loads it first if it is configured for loading on request.
pub(super) async fn admit(
    app: &Arc<App>,
    wanted: Option<&str>,
    requests: usize,
) -> Result<Admission, Error> {
    app.keep_alive.restore(app, wanted).await?;
    let resident = app.residents.named(wanted);
    resident.ready(app).await?;
    if let State::Loading(Loading { model, progress }) = resident.engine.snapshot().state {
        let message = format!("{model} is being loaded, {:.0} % done", progress * 100.0);
        return Err(Error::new(StatusCode::SERVICE_UNAVAILABLE, "loading", message)
            .hint("try again when GET /health answers 200"));
    }
    let mut admitted = resident.engine.admit(requests);
    if matches!(admitted, Err(GenerateError::NoModel)) && app.keep_alive.unloaded().is_some() {
        // The model's time has passed since it was found to be loaded.
        app.keep_alive.restore(app, wanted).await?;
        admitted = resident.engine.admit(requests);
    }
    let admission = match admitted {
        Err(GenerateError::NoModel) if !app.residents.additional().is_empty() => {
            return Err(model_not_found(app, wanted.unwrap_or_default()));
        }
        admission => admission?,
    };
    resident.touch();
    named_adapter(&admission.served.model, wanted)
        .ok_or_else(|| model_not_found(app, wanted.unwrap_or_default()))?;
    Ok(admission)
}

/// Error for a name that no model and no adapter has.
pub(super) fn model_not_found(app: &App, wanted: &str) -> Error {
    let names: Vec<String> =
        app.residents.names().iter().map(|name| format!("`{}`", excerpt(name))).collect();
    let there = match &names[..] {
        [] => "no model is".to_owned(),
        names => format!("{} is", names.join(", ")),
    };
    let message = match wanted {
        "" => format!("no model is named, and the first model is not loaded; {there}"),
        wanted => format!("the model `{}` is not loaded; {there}", excerpt(wanted)),
    };
    Error::new(StatusCode::NOT_FOUND, "model_not_found", message)
        .param("model")
        .hint("name the loaded model or leave `model` out; `orinctl load` loads another")
}

/// Returns the index of the adapter in `MODEL:ADAPTER`. The outer `None` means that the name
/// belongs to another model.
fn named_adapter(model: &ModelInfo, wanted: Option<&str>) -> Option<Option<usize>> {
    match wanted.filter(|name| !name.is_empty() && *name != model.id) {
        None => Some(None),
        Some(wanted) => adapter_ids(model).position(|name| name == wanted).map(Some),
    }
}

/// Returns the adapter scales of a request: those it lists, else 1 for the adapter in its model
/// name, else the scales of the load.
pub(super) fn adapters(
    model: &ModelInfo,
    wanted: Option<&str>,
    lora: Option<&[api::Lora]>,
) -> Result<Scales, Error> {
    // The request was admitted, so the name belongs to this model.
    let (named, mut scales) = (named_adapter(model, wanted).flatten(), Scales::NONE);
    let Some(listed) = lora else {
        for (at, adapter) in model.adapters.iter().enumerate() {
            let all = if named == Some(at) { 1.0 } else { 0.0 };
            scales.0[at] = if named.is_some() { all } else { adapter.scale };
        }
        return Ok(scales);
    };
    if named.is_some() {
        let message = "lora: `model` names an adapter already; only one of them is possible";
        return Err(Error::value("lora", message));
    }
    for (at, api::Lora { id, scale }) in listed.iter().enumerate() {
        if *id >= model.adapters.len() {
            let there = match model.adapters.len() {
                0 => format!("{} has no adapters", model.id),
                count => format!("the adapters are 0 to {}", count - 1),
            };
            let field = format!("lora[{at}].id");
            return Err(Error::value(field.as_str(), format!("{field}: is {id}; {there}")));
        }
        if listed[..at].iter().any(|before| before.id == *id) {
            let field = format!("lora[{at}].id");
            return Err(Error::value(field.as_str(), format!("{field}: {id} is listed twice")));
        }
        scales.0[*id] = range("lora.scale", *scale, -100.0, 100.0)?;
    }
    Ok(scales)
}

/// Maximum number of log-probabilities in an answer. The chosen token and each alternative count as
/// one.
const REPORTED: usize = 1 << 18;

/// Returns how many tokens each request may generate so that all log-probabilities can be reported,
/// and rejects larger requests. `echoed` prompt tokens are reported too.
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

/// Returns the requested number of tokens, at most a whole slot.
pub(super) fn at_most(asked: Option<u32>, context: usize) -> Option<u32> {
    asked.map(|asked| asked.min(u32::try_from(context).unwrap_or(u32::MAX)))
}

/// Returns the number of tokens to generate: the requested ones, limited by the slot's space and
/// the reportable tokens.
pub(super) fn max_tokens(asked: Option<u32>, prompt: usize, context: usize, most: u32) -> u32 {
    // Without any space the engine rejects the request with a reason.
    let room = u32::try_from(context.saturating_sub(prompt).max(1)).unwrap_or(u32::MAX);
    asked.unwrap_or(u32::MAX).min(room).min(most)
}

pub(super) fn sampling(
    temperature: Option<f32>,
    top_p: Option<f32>,
    top_k: Option<u32>,
    min_p: Option<f32>,
    seed: Option<i64>,
) -> Result<Sampling, Error> {
    Ok(Sampling {
        temperature: range("temperature", temperature.unwrap_or(DEFAULT.temperature), 0.0, 2.0)?,
        top_p: range("top_p", top_p.unwrap_or(DEFAULT.top_p), 0.0, 1.0)?,
        top_k: top_k.unwrap_or(DEFAULT.top_k),
        min_p: sample::min_p(range("min_p", min_p.unwrap_or(0.0), 0.0, 1.0)?),
        seed: seed.map_or_else(unique, i64::cast_unsigned),
    })
}

/// Maximum number of answers to a prompt.
const ANSWERS: u32 = 64;

pub(super) fn answers(n: Option<u32>) -> Result<usize, Error> {
    let n = n.unwrap_or(1);
    if (1..=ANSWERS).contains(&n) {
        return Ok(n as usize);
    }
    Err(Error::value("n", format!("n: is {n}, 1 to {ANSWERS} are allowed")))
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

/// Maximum number of tokens with a bias.
const BIASES: usize = 1024;
/// Maximum number of DRY sequence breakers.
const BREAKERS: usize = 64;

/// Returns the logits processors. `tokenizer` finds the tokens that contain a breaker.
pub(super) fn logits_processors(
    asked: &api::LogitsOptions,
    temperature: f32,
    tokenizer: &Tokenizer,
) -> Result<LogitsProcessors, Error> {
    let penalty = |name, value: Option<f32>| range(name, value.unwrap_or(0.0), -2.0, 2.0);
    let mirostat = match asked.mirostat {
        None | Some(0) => None,
        Some(2) => Some(Mirostat {
            tau: range("mirostat_tau", asked.mirostat_tau.unwrap_or(5.0), 0.0, 100.0)?,
            eta: range("mirostat_eta", asked.mirostat_eta.unwrap_or(0.1), 0.0, 1.0)?,
        }),
        Some(version) => {
            let message = format!("mirostat: is {version}; 0 (off) and 2 are supported");
            return Err(Error::value("mirostat", message));
        }
    };
    let probability = range("xtc_probability", asked.xtc_probability.unwrap_or(0.0), 0.0, 1.0)?;
    let threshold = range("xtc_threshold", asked.xtc_threshold.unwrap_or(0.1), 0.0, 1.0)?;
    let half = range("dynatemp_range", asked.dynatemp_range.unwrap_or(0.0), 0.0, 2.0)?;
    let exponent = range("dynatemp_exponent", asked.dynatemp_exponent.unwrap_or(1.0), 0.0, 10.0)?;
    let window = match asked.repeat_last_n {
        None | Some(-1) => None,
        Some(tokens) => Some(u32::try_from(tokens).map_err(|_| {
            let message = format!("repeat_last_n: is {tokens}; -1 (all) or more are allowed");
            Error::value("repeat_last_n", message)
        })?),
    };
    Ok(LogitsProcessors {
        bias: bias(asked, tokenizer)?,
        repetition: range(
            "repetition_penalty",
            asked.repetition_penalty.unwrap_or(1.0),
            0.01,
            10.0,
        )?,
        frequency: penalty("frequency_penalty", asked.frequency_penalty)?,
        presence: penalty("presence_penalty", asked.presence_penalty)?,
        window,
        dry: dry(asked, tokenizer)?,
        typical_p: range("typical_p", asked.typical_p.unwrap_or(1.0), 0.0, 1.0)?,
        mirostat,
        xtc: (probability > 0.0).then_some(Xtc { probability, threshold }),
        dynamic: (half > 0.0).then_some(DynamicTemperature {
            least: (temperature - half).max(0.0),
            most: temperature + half,
            exponent,
        }),
    })
}

fn bias(asked: &api::LogitsOptions, tokenizer: &Tokenizer) -> Result<Vec<(u32, f32)>, Error> {
    let Some(map) = &asked.logit_bias else { return Ok(Vec::new()) };
    if map.len() > BIASES {
        let message = format!("logit_bias: has {} tokens, at most {BIASES} are allowed", map.len());
        return Err(Error::value("logit_bias", message));
    }
    let size = tokenizer.vocab_size();
    let pair = |(id, bias): (&String, &serde_json::Value)| {
        let field = format!("logit_bias.{}", excerpt(id));
        let known = id.parse::<u32>().ok().filter(|id| (*id as usize) < size);
        let Some(id) = known else {
            let message = format!("{field}: is not a token id; ids are below {size}");
            return Err(Error::value(field, message));
        };
        let bias = bias.as_f64().filter(|bias| (-100.0..=100.0).contains(bias));
        let Some(bias) = bias else {
            let message = format!("{field}: a number from -100 to 100 is needed");
            return Err(Error::value(field, message));
        };
        // -100 bans the token.
        Ok((id, if bias == -100.0 { f32::NEG_INFINITY } else { bias as f32 }))
    };
    map.iter().map(pair).collect()
}

fn dry(asked: &api::LogitsOptions, tokenizer: &Tokenizer) -> Result<Option<Dry>, Error> {
    let multiplier = range("dry_multiplier", asked.dry_multiplier.unwrap_or(0.0), 0.0, 100.0)?;
    if multiplier == 0.0 {
        return Ok(None);
    }
    let default = || ["\n", ":", "\"", "*"].map(str::to_owned).to_vec();
    let texts = asked.dry_sequence_breakers.clone().unwrap_or_else(default);
    if texts.len() > BREAKERS || texts.iter().any(String::is_empty) {
        let message = format!("dry_sequence_breakers: at most {BREAKERS} texts that are not empty");
        return Err(Error::value("dry_sequence_breakers", message));
    }
    let breaks = |id: &u32| {
        let text = tokenizer.token_text(*id);
        text.is_some_and(|text| texts.iter().any(|breaker| text.contains(breaker.as_str())))
    };
    Ok(Some(Dry {
        multiplier,
        base: range("dry_base", asked.dry_base.unwrap_or(1.75), 1.0, 10.0)?,
        allowed: asked.dry_allowed_length.unwrap_or(2),
        breakers: (0..tokenizer.vocab_size() as u32).filter(breaks).collect(),
    }))
}

fn range(name: &str, value: f32, low: f32, high: f32) -> Result<f32, Error> {
    if (low..=high).contains(&value) {
        return Ok(value);
    }
    Err(Error::value(name, format!("{name}: is {value}, {low} to {high} are allowed")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn range_errors_name_the_field() {
        let message = |e: Error| e.body().error.message;
        assert_eq!(
            message(sampling(Some(3.0), None, None, None, None).unwrap_err()),
            "temperature: is 3, 0 to 2 are allowed"
        );
        assert!(sampling(None, Some(f32::NAN), None, None, None).is_err());
        assert_eq!(sampling(Some(0.0), None, None, None, Some(-1)).unwrap().seed, u64::MAX);
        let random_seed = || sampling(None, None, None, None, None).unwrap().seed;
        assert_ne!(random_seed(), random_seed());
        assert!(alternatives("logprobs", 20).is_ok() && alternatives("logprobs", 21).is_err());
        assert!(stops(Some(api::Stop::One(String::new()))).is_err());
        assert!(stops(Some(api::Stop::Many(vec!["x".into(); 17]))).is_err());
    }

    #[test]
    fn max_tokens_defaults_to_the_rest_of_the_slot() {
        assert_eq!(max_tokens(None, 10, 64, u32::MAX), 54);
        assert_eq!(max_tokens(Some(0), 10, 64, u32::MAX), 0);
        assert_eq!(max_tokens(Some(1000), 10, 64, u32::MAX), 54);
        assert_eq!(max_tokens(None, 64, 64, u32::MAX), 1);
        assert_eq!(max_tokens(None, 10, 64, 20), 20);
    }
}
