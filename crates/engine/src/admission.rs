//! Admission control: reserves places among served and waiting requests before a request costs memory or time.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use crossbeam::channel::Sender;

use super::command::{Command, Waiting};
use super::events;
use super::shared::{Served, Shared};
use super::{Events, GenerateError, ModelInfo, Request, Scales, State};
use plan::sample::Sampling;

/// Reserved places for requests to one model. Dropping it frees the unused ones.
pub struct Admission {
    pub served: Arc<Served>,
    left: usize,
    commands: Sender<Command>,
    shared: Arc<Shared>,
}

impl Admission {
    /// Reserves places for all of the requests, or for none.
    pub(super) fn new(
        commands: &Sender<Command>,
        shared: &Arc<Shared>,
        requests: usize,
    ) -> Result<Self, GenerateError> {
        match shared.state() {
            State::Ready(_) | State::Exclusive { .. } => {}
            State::Empty => return Err(GenerateError::NoModel),
            State::Loading(_) | State::Stopping => return Err(GenerateError::Stopping),
        }
        let served = shared.served.lock().clone().ok_or(GenerateError::Stopping)?;
        let slots = served.model.slots;
        let queue_limit = shared.queue_limit.load(Ordering::Relaxed);
        let most = slots + queue_limit;
        if requests > most {
            let reason =
                format!("has {requests} requests in one, at most {most} can be served or wait");
            return Err(GenerateError::Invalid { field: "prompt", reason });
        }
        let admit = |in_flight| (in_flight + requests <= most).then_some(in_flight + requests);
        let admitted = shared.in_flight.fetch_update(Ordering::Relaxed, Ordering::Relaxed, admit);
        if let Err(in_flight) = admitted {
            return Err(GenerateError::QueueFull {
                queued: in_flight.saturating_sub(slots),
                limit: queue_limit,
                retry_after: retry_after(shared, in_flight, slots),
            });
        }
        let (commands, shared) = (commands.clone(), Arc::clone(shared));
        Ok(Self { served, left: requests, commands, shared })
    }

    /// Queues a generation in one of the places. Dropping its events cancels it.
    pub fn generate(&mut self, request: Request) -> Result<Events, GenerateError> {
        let Served { model, load, .. } = &*self.served;
        check(&request, model)?;
        let prompt = request.prompt.len();
        if prompt.saturating_add(request.max_tokens as usize) > model.context {
            let (max_tokens, context) = (request.max_tokens, model.context);
            return Err(GenerateError::TooLong { prompt, max_tokens, context });
        }
        assert!(self.left > 0, "each request has a reserved place");
        self.left -= 1;
        let (events, receiver) = events::channel();
        let waiting = Waiting { request, events, load: *load, arrived: Instant::now() };
        if self.commands.send(Command::Generate(Box::new(waiting))).is_err() {
            self.shared.failed();
            return Err(GenerateError::Stopping);
        }
        Ok(receiver)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.shared.in_flight.fetch_sub(self.left, Ordering::Relaxed);
    }
}

/// Time until a slot is likely to be free, from the average service time of the requests ahead.
fn retry_after(shared: &Shared, in_flight: usize, slots: usize) -> Duration {
    let service = shared.service_ms.load(Ordering::Relaxed).max(1000);
    let rounds = (in_flight / slots.max(1)).max(1) as u64;
    Duration::from_secs((service * rounds).div_ceil(1000).clamp(1, 60))
}

fn check(request: &Request, model: &ModelInfo) -> Result<(), GenerateError> {
    let vocabulary = model.vocabulary;
    let invalid = |field, reason: String| Err(GenerateError::Invalid { field, reason });
    if request.prompt.is_empty() {
        return invalid("prompt", "has no tokens".into());
    }
    if let Some(id) = request.prompt.iter().find(|id| **id as usize >= vocabulary) {
        return invalid(
            "prompt",
            format!("token id {id} is outside the vocabulary of {vocabulary}"),
        );
    }
    if request.embed && model.embedding.is_none() {
        let reason =
            format!("{} does not compute embeddings: its file has no pooling type", model.id);
        return invalid("model", reason);
    }
    let Sampling { temperature, top_p, .. } = request.sampling;
    if !(0.0..=100.0).contains(&temperature) {
        return invalid("temperature", format!("is {temperature}, 0 to 100 are possible"));
    }
    if !(0.0..=1.0).contains(&top_p) {
        return invalid("top_p", format!("is {top_p}, 0 to 1 are possible"));
    }
    let Scales(scales) = request.adapters;
    if scales.iter().any(|scale| !scale.is_finite()) {
        return invalid("lora", "has a scale that is not finite".into());
    }
    if scales.iter().skip(model.adapters.len()).any(|scale| *scale != 0.0) {
        let reason = format!(
            "names an adapter that is not loaded; number of loaded adapters: {}",
            model.adapters.len()
        );
        return invalid("lora", reason);
    }
    if request.logprobs.is_some_and(|n| n > Request::MAX_LOGPROBS) {
        return invalid(
            "logprobs",
            format!("at most {} alternatives are reported", Request::MAX_LOGPROBS),
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retry_after_covers_the_rounds_of_requests_ahead() {
        let shared = Shared::default();
        shared.service_ms.store(2500, Ordering::Relaxed);
        let wait = |in_flight| retry_after(&shared, in_flight, 4).as_secs();
        assert_eq!([0, 4, 7, 8, 40, 400].map(wait), [3, 3, 3, 5, 25, 60]);
    }
}
