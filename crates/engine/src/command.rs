//! Commands that handles and loads send to the engine thread.

use std::sync::Arc;
use std::time::Instant;

use crossbeam::channel::Sender;
use tokio::sync::mpsc::UnboundedSender;
use tokio::sync::oneshot;

use super::events::EventSender;
use super::loaded_model::LoadedModel;
use super::runner::ModelRunner;
use super::{Event, GenerateError, LoadError, LoadEvent, LoadSpec, Request};

pub(super) enum Command {
    Generate(Box<Waiting>),
    Load(PendingLoad),
    Unload(oneshot::Sender<bool>),
    Exclusive(String, Task),
    Stop(Instant),
    /// Only beats.
    Heartbeat,
    /// Sent by the load with this number: unload the current model, then confirm.
    MakeRoom(u64, Sender<()>),
    /// Result of the load with this number.
    Loaded(u64, Box<Result<LoadedModel, LoadError>>),
}

/// Work with exclusive use of the loaded model, if there is one.
pub(super) type Task = Box<dyn FnOnce(Option<&mut ModelRunner>) + Send>;

/// A request that waits for a slot.
#[derive(Debug)]
pub(super) struct Waiting {
    pub(super) request: Request,
    pub(super) events: EventSender,
    /// Number of the load that created its model.
    pub(super) load: u64,
    pub(super) arrived: Instant,
}

impl Waiting {
    pub(super) fn fail(self, error: GenerateError) {
        self.events.send(Event::Failed(error));
    }
}

/// A requested load, and the channel for its progress.
#[derive(Clone)]
pub(super) struct PendingLoad {
    pub(super) spec: Arc<LoadSpec>,
    pub(super) events: UnboundedSender<LoadEvent>,
}

impl PendingLoad {
    pub(super) fn report(&self, event: LoadEvent) {
        // The client may have disconnected.
        let _ = self.events.send(event);
    }
}
