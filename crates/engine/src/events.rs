//! Channel from the engine to a client, whose unread part is bounded: a client that does not read
//! must not fill the memory.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};

use tokio::sync::mpsc::error::TryRecvError;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::{Event, TokenLogprobs};

/// Bytes of unread events of all generations, beyond which those with the most are cancelled.
const ALL: usize = 64 << 20;

/// Bytes of unread events that one generation may always have.
const ONE: usize = 256 << 10;

/// Bytes of unread events of this process.
static UNREAD: AtomicUsize = AtomicUsize::new(0);

/// Events of a generation. Dropping it cancels the generation.
#[derive(Debug)]
pub struct Events {
    receiver: UnboundedReceiver<Event>,
    unread: Arc<Unread>,
}

/// The engine's side of [`Events`].
#[derive(Debug)]
pub(super) struct EventSender {
    sender: UnboundedSender<Event>,
    unread: Arc<Unread>,
}

/// Bytes of the unread events of one generation.
#[derive(Debug, Default)]
struct Unread(AtomicUsize);

impl Unread {
    fn add(&self, bytes: usize) -> (usize, usize) {
        let one = self.0.fetch_add(bytes, Ordering::Relaxed) + bytes;
        (one, UNREAD.fetch_add(bytes, Ordering::Relaxed) + bytes)
    }

    fn subtract(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
        UNREAD.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Unread {
    fn drop(&mut self) {
        UNREAD.fetch_sub(*self.0.get_mut(), Ordering::Relaxed);
    }
}

/// Creates the channel of a generation.
pub(super) fn channel() -> (EventSender, Events) {
    let (sender, receiver) = unbounded_channel();
    let unread = Arc::<Unread>::default();
    (EventSender { sender, unread: Arc::clone(&unread) }, Events { receiver, unread })
}

impl EventSender {
    /// Sends an event. False if the client has disconnected, or leaves too much unread.
    pub(super) fn send(&self, event: Event) -> bool {
        let (one, all) = self.unread.add(size(&event));
        let is_last = matches!(event, Event::Finished(_) | Event::Failed(_));
        let fits = all <= ALL || one <= ONE || is_last;
        fits && self.sender.send(event).is_ok()
    }

    /// True if the client has disconnected.
    pub(super) fn is_closed(&self) -> bool {
        self.sender.is_closed()
    }
}

impl Events {
    /// Waits for the next event; `None` after the last one.
    pub async fn recv(&mut self) -> Option<Event> {
        let event = self.receiver.recv().await;
        self.read(event)
    }

    /// Waits for the next event on a thread.
    pub fn blocking_recv(&mut self) -> Option<Event> {
        let event = self.receiver.blocking_recv();
        self.read(event)
    }

    /// Returns the next event if it has been sent.
    ///
    /// # Errors
    /// It has not been sent, or the last one has been received.
    pub fn try_recv(&mut self) -> Result<Event, TryRecvError> {
        let event = self.receiver.try_recv()?;
        self.unread.subtract(size(&event));
        Ok(event)
    }

    pub fn poll_recv(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let event = std::task::ready!(self.receiver.poll_recv(context));
        Poll::Ready(self.read(event))
    }

    fn read(&self, event: Option<Event>) -> Option<Event> {
        event.inspect(|event| self.unread.subtract(size(event)))
    }
}

/// Approximate size of an event in memory, in bytes.
fn size(event: &Event) -> usize {
    let logprobs = |logprobs: &TokenLogprobs| {
        size_of::<TokenLogprobs>() + (1 + logprobs.top.len()) * (size_of_val(&logprobs.token) + 16)
    };
    let contents = match event {
        Event::Prompt(all) => all.iter().map(logprobs).sum(),
        Event::Embedding(numbers) => size_of_val(&numbers[..]),
        Event::Token(token) => token.text.len() + token.logprobs.as_ref().map_or(0, logprobs),
        Event::Finished(_) | Event::Failed(_) => 0,
    };
    size_of::<Event>() + contents
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(bytes: usize) -> Event {
        Event::Token(super::super::TokenEvent { id: 0, text: "x".repeat(bytes), logprobs: None })
    }

    /// Other tests of this process have few unread events.
    #[test]
    fn those_who_do_not_read_are_cancelled_when_memory_is_short() {
        let before = UNREAD.load(Ordering::Relaxed);
        let (deaf, unread) = channel();
        let sent = (0..2 * ALL / ONE).take_while(|_| deaf.send(token(ONE))).count();
        assert!((ALL / ONE / 2..ALL / ONE).contains(&sent), "{sent}");
        let (polite, mut events) = channel();
        for _ in 0..1000 {
            assert!(polite.send(token(100)), "a client that reads is served");
            assert!(events.blocking_recv().is_some());
        }
        drop((deaf, unread, polite, events));
        assert!(UNREAD.load(Ordering::Relaxed) < before + ONE);
    }
}
