//! Places among the requests that are served or wait: taken before anything is done for a request that costs
//! memory or time, and given back by whoever gives up.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

use super::handle::{Handle, Shared};
use super::scheduler::Command;
use super::sequence::Waiting;
use super::{Event, GenerateError, ModelInfo, Request, Scales, State, Text};
use plan::sample::Sampling;

/// A model that requests can be made for.
#[derive(Clone, Debug)]
pub struct Served {
    pub model: ModelInfo,
    pub text: Arc<Text>,
    /// Which load has brought it.
    pub(super) load: u64,
}

/// Places for some requests to one model. Those that are not used are free again when it is dropped.
pub struct Admission {
    pub served: Arc<Served>,
    left: usize,
    handle: Handle,
}

impl Admission {
    /// Takes places for so many requests, which are refused or admitted together.
    pub(super) fn new(handle: &Handle, requests: usize) -> Result<Self, GenerateError> {
        let shared = &handle.shared;
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
            let reason = format!("has {requests} requests in one, {most} can be served or wait");
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
        Ok(Self { served, left: requests, handle: handle.clone() })
    }

    /// Queues a generation in one of the places. Its events come through the receiver; dropping that cancels
    /// it.
    pub fn generate(
        &mut self,
        request: Request,
    ) -> Result<UnboundedReceiver<Event>, GenerateError> {
        let Served { model, load, .. } = &*self.served;
        check(&request, model)?;
        let prompt = request.prompt.len();
        if prompt.saturating_add(request.max_tokens as usize) > model.context {
            let (max_tokens, context) = (request.max_tokens, model.context);
            return Err(GenerateError::TooLong { prompt, max_tokens, context });
        }
        assert!(self.left > 0, "a place was taken for each request");
        self.left -= 1;
        let (events, receiver) = unbounded_channel();
        let waiting = Waiting { request, events, load: *load, arrived: Instant::now() };
        if self.handle.commands.send(Command::Generate(Box::new(waiting))).is_err() {
            self.handle.shared.failed();
            return Err(GenerateError::Stopping);
        }
        Ok(receiver)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.handle.shared.in_flight.fetch_sub(self.left, Ordering::Relaxed);
    }
}

/// When a place should be free: the time the requests ahead hold their slots.
fn retry_after(shared: &Shared, in_flight: usize, slots: usize) -> Duration {
    let service = shared.service_ms.load(Ordering::Relaxed).max(1000);
    let rounds = (in_flight / slots.max(1)).max(1) as u64;
    Duration::from_secs((service * rounds).div_ceil(1000).clamp(1, 60))
}

fn check(request: &Request, model: &ModelInfo) -> Result<(), GenerateError> {
    let vocabulary = model.vocabulary;
    let invalid = |field, reason: String| Err(GenerateError::Invalid { field, reason });
    if request.prompt.is_empty() {
        return invalid("prompt", "has no tokens; at least one is needed".into());
    }
    if let Some(id) = request.prompt.iter().find(|id| **id as usize >= vocabulary) {
        return invalid(
            "prompt",
            format!("token id {id} is outside the vocabulary of {vocabulary}"),
        );
    }
    if request.embed && model.embedding.is_none() {
        let reason = format!("{} is not made for embeddings: its file names no pooling", model.id);
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
        return invalid("lora", "has a scale that is no finite number".into());
    }
    if scales.iter().skip(model.adapters.len()).any(|scale| *scale != 0.0) {
        let reason = format!("asks for an adapter that is not there; {} are", model.adapters.len());
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
    use crate::Settings;

    #[test]
    fn the_wait_is_that_of_the_rounds_ahead() {
        let handle = Handle::start(Settings { queue_limit: 1 }).unwrap();
        handle.shared.service_ms.store(2500, Ordering::Relaxed);
        let wait = |in_flight| retry_after(&handle.shared, in_flight, 4).as_secs();
        assert_eq!([0, 4, 7, 8, 40, 400].map(wait), [3, 3, 3, 5, 25, 60]);
    }
}
