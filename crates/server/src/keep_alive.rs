//! Unloading of models after the time that a client of ollama's API asks for. The next request for
//! such a model loads it again.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::Mutex;
use serde_json::Value;
use tokio::task::AbortHandle;

use super::error::Error;
use super::residents::{self, Resident, wait_for_load};
use super::{App, params};
use engine::{LoadError, LoadSpec};
use errors::invalid::excerpt;

/// Longest time, about a century. It keeps sums of times in range.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Shortest wait until a model that was in use is looked at again.
const AGAIN: Duration = Duration::from_millis(200);

/// Time that a model stays loaded after a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Time {
    Unlimited,
    Limited(Duration),
}

/// Parses `keep_alive`: seconds, or a text such as `5m` or `1h30m`. Negative times are unlimited.
pub(super) fn parse(value: &Value) -> Result<Option<Time>, Error> {
    let wrong = || {
        let value = excerpt(&value.to_string());
        let message =
            format!("keep_alive: is {value}; seconds or a text such as \"5m\" are needed");
        Error::value("keep_alive", message)
    };
    let seconds = match value {
        Value::Null => return Ok(None),
        Value::Number(number) => number.as_f64().ok_or_else(wrong)?,
        Value::String(text) if text.is_empty() => return Ok(None),
        Value::String(text) => seconds(text).ok_or_else(wrong)?,
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => return Err(wrong()),
    };
    if seconds < 0.0 {
        return Ok(Some(Time::Unlimited));
    }
    let time = Duration::try_from_secs_f64(seconds).unwrap_or(LONGEST);
    Ok(Some(Time::Limited(time.min(LONGEST))))
}

/// Parses a duration as Go writes it, or a number of seconds.
fn seconds(text: &str) -> Option<f64> {
    if let Ok(seconds) = text.parse::<f64>() {
        return seconds.is_finite().then_some(seconds);
    }
    let (sign, mut rest) = match text.strip_prefix('-') {
        Some(rest) => (-1.0, rest),
        None => (1.0, text),
    };
    let mut all = 0.0;
    while !rest.is_empty() {
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.')?;
        let number: f64 = rest[..end].parse().ok()?;
        let units = &rest[end..];
        let unit = units.find(|c: char| c.is_ascii_digit()).unwrap_or(units.len());
        all += number
            * match &units[..unit] {
                "ns" => 1e-9,
                "us" | "\u{b5}s" | "\u{3bc}s" => 1e-6,
                "ms" => 1e-3,
                "s" => 1.0,
                "m" => 60.0,
                "h" => 3600.0,
                _ => return None,
            };
        rest = &units[unit..];
    }
    Some(sign * all)
}

/// The first model, after it was unloaded.
#[derive(Clone)]
struct Unloaded {
    id: String,
    spec: LoadSpec,
}

/// Task that unloads a model. Dropping it stops the task.
struct Timer {
    until: SystemTime,
    task: AbortHandle,
}

impl Drop for Timer {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Timers of loaded models, and the first model's last load.
#[derive(Default)]
pub(super) struct KeepAlive {
    /// Timer of each model. The first model's name is empty.
    timers: Mutex<HashMap<String, Timer>>,
    /// Last load of the first model.
    spec: Mutex<Option<LoadSpec>>,
    unloaded: Mutex<Option<Unloaded>>,
    /// One task unloads or loads the model, requests for it wait.
    turn: tokio::sync::Mutex<()>,
}

impl KeepAlive {
    /// Records a load of the first model that was asked for.
    pub(super) fn loads(&self, spec: &LoadSpec) {
        *self.spec.lock() = Some(spec.clone());
        self.forget();
    }

    /// Does not load the first model again: it was unloaded by hand, or another one is loaded.
    pub(super) fn forget(&self) {
        *self.unloaded.lock() = None;
    }

    /// Returns the id of the first model if the next request for it loads it again.
    pub(super) fn unloaded(&self) -> Option<String> {
        self.unloaded.lock().as_ref().map(|unloaded| unloaded.id.clone())
    }

    /// Returns the time at which a model is unloaded unless it is used before.
    pub(super) fn until(&self, name: &str) -> Option<SystemTime> {
        self.timers.lock().get(name).map(|timer| timer.until)
    }

    /// Loads the first model again if it was unloaded and the request is for it.
    ///
    /// # Errors
    /// The load failed.
    pub(super) async fn restore(&self, app: &App, wanted: Option<&str>) -> Result<(), LoadError> {
        let is_it = |unloaded: &Unloaded| match wanted.unwrap_or_default() {
            "" => true,
            wanted => {
                let rest = wanted.strip_prefix(&unloaded.id);
                rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(':'))
            }
        };
        let due = || self.unloaded.lock().as_ref().filter(|unloaded| is_it(unloaded)).cloned();
        if due().is_none() {
            return Ok(());
        }
        let _turn = self.turn.lock().await;
        let Some(Unloaded { spec, .. }) = due() else { return Ok(()) };
        wait_for_load(&mut app.residents.first().load(spec)).await?;
        self.forget();
        Ok(())
    }

    /// Unloads a model. The next request for it waits, and loads it again.
    async fn unload(&self, resident: &Resident) {
        let _turn = self.turn.lock().await;
        let id = residents::loaded(&resident.engine.snapshot().state).map(|model| model.id.clone());
        let model = id.zip(self.spec.lock().clone()).filter(|_| resident.name.is_empty());
        if let Some((id, spec)) = model {
            tracing::info!(model = id, "unloading, as a client asked");
            // Recorded first: no request may find the model gone and not know how to load it.
            *self.unloaded.lock() = Some(Unloaded { id, spec });
        }
        resident.unload().await;
    }
}

/// Starts the timer of a model when the answer to a request ends.
pub(super) struct Expiry {
    app: Arc<App>,
    model: Option<String>,
    time: Option<Time>,
}

impl Expiry {
    pub(super) fn new(app: &Arc<App>, model: Option<String>, time: Option<Time>) -> Self {
        Self { app: Arc::clone(app), model, time }
    }

    /// Returns true if the model is to be unloaded at once.
    pub(super) fn is_now(&self) -> bool {
        self.time == Some(Time::Limited(Duration::ZERO))
    }

    /// Unloads the model and returns its id.
    pub(super) async fn unload(&self) -> Result<String, Error> {
        let wanted = self.model.as_deref().unwrap_or_default();
        let resident = self.app.residents.named(Some(wanted));
        let state = resident.engine.snapshot().state;
        let Some(id) = residents::loaded(&state).map(|model| model.id.clone()) else {
            return Ok(wanted.to_owned());
        };
        if !wanted.is_empty() && !self.app.residents.names().iter().any(|name| name == wanted) {
            return Err(params::model_not_found(&self.app, wanted));
        }
        self.app.keep_alive.unload(&resident).await;
        Ok(id)
    }
}

impl Drop for Expiry {
    fn drop(&mut self) {
        let Some(time) = self.time else { return };
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let resident = self.app.residents.named(self.model.as_deref());
        let name = resident.name.clone();
        let mut timers = self.app.keep_alive.timers.lock();
        // One task for each model: a later wish replaces the earlier one.
        timers.remove(&name);
        if let Time::Limited(time) = time {
            let until = SystemTime::now() + time;
            let task = expire(Arc::clone(&self.app), resident, time);
            timers.insert(name, Timer { until, task: runtime.spawn(task).abort_handle() });
        }
    }
}

/// Unloads a model that has not been used for a time.
async fn expire(app: Arc<App>, resident: Arc<Resident>, time: Duration) {
    let mut wait = time;
    loop {
        tokio::time::sleep(wait).await;
        let now = resident.engine.snapshot();
        if resident.is_removed() || residents::loaded(&now.state).is_none() {
            return;
        }
        let unused = resident.unused();
        if now.active + now.queued == 0 && unused >= time {
            // A task of its own: a later wish must not interrupt the unload.
            tokio::spawn(async move { app.keep_alive.unload(&resident).await });
            return;
        }
        wait = time.saturating_sub(unused).max(AGAIN);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn times_are_parsed_as_by_ollama() {
        let limited = |ms| Some(Time::Limited(Duration::from_millis(ms)));
        for (value, time) in [
            (json!(null), None),
            (json!(""), None),
            (json!(0), limited(0)),
            (json!("0"), limited(0)),
            (json!(1.5), limited(1500)),
            (json!("5m"), limited(300_000)),
            (json!("1h30m"), limited(5_400_000)),
            (json!("1500ms"), limited(1500)),
            (json!(-1), Some(Time::Unlimited)),
            (json!("-1m"), Some(Time::Unlimited)),
            (json!(1e300), Some(Time::Limited(LONGEST))),
        ] {
            assert_eq!(parse(&value).ok(), Some(time), "{value}");
        }
        for odd in [json!("soon"), json!(true), json!("5"), json!("5x"), json!("."), json!([])] {
            assert_eq!(parse(&odd).is_err(), odd != "5", "{odd}");
        }
    }
}
