//! Order in which prompts are prepared: short ones pass long ones, and no client waits on a thread.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Instant;

use axum::http::StatusCode;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::error::Error;
use super::progress::Progress;

/// Number of prompts prepared concurrently. Together with the maximum prompt size this bounds
/// memory; the documentation of tokenizer and template states the memory per byte.
const CONCURRENT: usize = 2;

/// Number of places that long prompts may use at the same time.
const CONCURRENT_LONG: usize = CONCURRENT - 1;

/// Largest short prompt in bytes. Preparing it takes milliseconds.
const SHORT: usize = 64 << 10;

/// Bytes of a prompt that are prepared in a second, roughly. A prompt passes those that are longer
/// by this many bytes for each second that they have waited.
const RATE: f64 = 4e6;

/// Most prompts that wait.
const WAITING: usize = 1024;

/// Prompts that wait, and those that are being prepared.
#[derive(Clone, Default)]
pub(super) struct PromptQueue(Arc<Mutex<State>>, Arc<Progress>);

#[derive(Default)]
struct State {
    begin: Option<Instant>,
    /// Number of places in use, and of those in use by long prompts.
    used: usize,
    long: usize,
    count: u64,
    /// Number of prompts that have left the queue.
    left: u64,
    /// Waiting prompts by priority and arrival.
    waiting: BTreeMap<(u64, u64), Waiting>,
}

struct Waiting {
    is_long: bool,
    turn: oneshot::Sender<Place>,
}

/// The right to prepare a prompt. Dropping it lets the next one begin.
pub(super) struct Place {
    queue: PromptQueue,
    is_long: bool,
}

impl PromptQueue {
    /// Waits until a prompt of this many bytes may be prepared. It leaves the queue when the future
    /// is dropped.
    ///
    /// # Errors
    /// Too many prompts wait.
    pub(super) async fn place(&self, bytes: usize) -> Result<Place, Error> {
        let (turn, place) = oneshot::channel();
        self.enter(bytes, turn)?;
        place.await.map_err(|_| Error::internal("the queue of prompts lost a prompt"))
    }

    /// Observes whether waiting prompts have their turn.
    pub(super) fn observe(&self) {
        let state = self.0.lock();
        let (left, idle) = (state.left, state.waiting.is_empty());
        drop(state);
        self.1.observe(left, idle);
    }

    /// Seconds for which no waiting prompt has had its turn, if they are too many.
    pub(super) fn stopped_for(&self) -> Option<u64> {
        self.1.stopped_for()
    }

    fn enter(&self, bytes: usize, turn: oneshot::Sender<Place>) -> Result<(), Error> {
        let mut state = self.0.lock();
        state.waiting.retain(|_, waiting| !waiting.turn.is_closed());
        if state.waiting.len() >= WAITING {
            let message = format!("{WAITING} prompts are waiting already");
            let error = Error::new(StatusCode::TOO_MANY_REQUESTS, "queue_full", message);
            return Err(error.retry_after(1).hint("retry later"));
        }
        let waited = state.begin.get_or_insert_with(Instant::now).elapsed().as_secs_f64();
        let priority = waited.mul_add(RATE, bytes as f64) as u64;
        state.count += 1;
        let key = (priority, state.count);
        state.waiting.insert(key, Waiting { is_long: bytes > SHORT, turn });
        drop(state);
        self.begin();
        Ok(())
    }

    /// Gives free places to the prompts that are next.
    fn begin(&self) {
        let mut unused = Vec::new();
        let mut state = self.0.lock();
        while state.used < CONCURRENT {
            let long = state.long;
            let fits = |waiting: &Waiting| !waiting.is_long || long < CONCURRENT_LONG;
            let Some(key) =
                state.waiting.iter().find(|(_, waiting)| fits(waiting)).map(|(key, _)| *key)
            else {
                break;
            };
            let Some(Waiting { is_long, turn }) = state.waiting.remove(&key) else { break };
            state.left += 1;
            if turn.is_closed() {
                continue;
            }
            state.used += 1;
            state.long += usize::from(is_long);
            // A client that has just left returns the place when this is dropped, without the lock.
            unused.extend(turn.send(Place { queue: self.clone(), is_long }).err());
        }
        drop(state);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.queue.0.lock();
        state.used -= 1;
        state.long -= usize::from(self.is_long);
        drop(state);
        self.queue.begin();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Order in which prompts of these sizes begin while one of `running` bytes is prepared.
    async fn order(running: &[usize], sizes: &[usize]) -> Vec<usize> {
        let queue = PromptQueue::default();
        let mut places = Vec::new();
        for bytes in running {
            places.push(queue.place(*bytes).await.ok().unwrap());
        }
        let mut waiting: Vec<(usize, oneshot::Receiver<Place>)> = Vec::new();
        for bytes in sizes {
            let (turn, place) = oneshot::channel();
            queue.enter(*bytes, turn).ok().unwrap();
            waiting.push((*bytes, place));
        }
        let mut began = Vec::new();
        loop {
            waiting.retain_mut(|(bytes, place)| match place.try_recv() {
                Ok(place) => {
                    began.push(*bytes);
                    places.push(place);
                    false
                }
                Err(_) => true,
            });
            if waiting.is_empty() {
                return began;
            }
            assert!(!places.is_empty(), "{} prompts wait for nothing", waiting.len());
            places.remove(0);
        }
    }

    #[tokio::test]
    async fn short_prompts_pass_long_ones() {
        const LONG: usize = 7_000_000;
        // The second place is free for a short prompt although long ones wait.
        assert_eq!(order(&[LONG], &[LONG, LONG, 10]).await, [10, LONG, LONG]);
        assert_eq!(order(&[LONG, 10], &[LONG, 100_000, 20]).await, [20, 100_000, LONG]);
        assert_eq!(order(&[10, 10], &[30, 20]).await.len(), 2);
    }

    #[tokio::test]
    async fn a_client_that_leaves_gives_up_its_place() {
        let queue = PromptQueue::default();
        let places = [queue.place(1).await, queue.place(1).await];
        let (turn, left) = oneshot::channel();
        queue.enter(1, turn).ok().unwrap();
        let waiting = tokio::spawn({
            let queue = queue.clone();
            async move { queue.place(2).await.is_ok() }
        });
        tokio::task::yield_now().await;
        drop(left);
        drop(places);
        assert!(waiting.await.unwrap());
        let state = queue.0.lock();
        assert_eq!((state.used, state.long, state.waiting.len()), (0, 0, 0));
    }

    #[tokio::test]
    async fn the_queue_is_bounded() {
        let queue = PromptQueue::default();
        let _places = [queue.place(1).await, queue.place(1).await];
        let mut turns = Vec::new();
        for _ in 0..WAITING {
            let (turn, place) = oneshot::channel();
            queue.enter(1, turn).ok().unwrap();
            turns.push(place);
        }
        assert!(queue.place(1).await.is_err());
        turns.clear();
        let (turn, _place) = oneshot::channel();
        assert!(queue.enter(1, turn).is_ok(), "clients that have left do not count");
    }
}
