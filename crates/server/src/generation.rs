//! Generations in progress: streams of engine events that also update the metrics.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;

use futures_util::stream::{SelectAll, Stream, select_all};

use super::App;
use super::error::Error;
use engine::{Admission, Event, Events, GenerateError, Request};

/// One generation. Always ends with [`Event::Finished`] or [`Event::Failed`]. Dropping it cancels
/// the generation.
pub(super) struct Generation {
    index: usize,
    events: Events,
    app: Arc<App>,
    last_token: Option<Instant>,
    over: bool,
}

/// Starts one generation per request. The stream yields events with the request's index. If one
/// request is rejected, none is started.
pub(super) fn start(
    app: &Arc<App>,
    admission: &mut Admission,
    requests: Vec<Request>,
) -> Result<SelectAll<Generation>, Error> {
    let start = |(index, request)| {
        let events = admission.generate(request)?;
        Ok(Generation { index, events, app: Arc::clone(app), last_token: None, over: false })
    };
    let generations: Result<Vec<_>, GenerateError> =
        requests.into_iter().enumerate().map(start).collect();
    Ok(select_all(generations?))
}

impl Stream for Generation {
    type Item = (usize, Event);

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        if self.over {
            return Poll::Ready(None);
        }
        let event = std::task::ready!(self.events.poll_recv(context)).unwrap_or_else(|| {
            Event::Failed(GenerateError::Device("the engine thread is gone".into()))
        });
        match &event {
            Event::Token(_) => {
                let now = Instant::now();
                if let Some(last) = self.last_token.replace(now) {
                    self.app.metrics.inter_token(now - last);
                }
            }
            Event::Finished(finished) => {
                self.over = true;
                // Everything from the first token on that the cache lacks is evaluated again.
                tracing::debug!(
                    prompt_tokens = finished.prompt_tokens,
                    cached_tokens = finished.cached_tokens,
                    prefix_diverged_at = finished.diverged_at,
                    completion_tokens = finished.completion_tokens,
                    "generation finished"
                );
                if finished.completion_tokens > 0 {
                    self.app.metrics.first_token(finished.first_token);
                }
            }
            Event::Failed(_) => self.over = true,
            Event::Prompt(_) | Event::Embedding(_) => {}
        }
        Poll::Ready(Some((self.index, event)))
    }
}
