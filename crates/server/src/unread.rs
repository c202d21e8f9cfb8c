//! Memory of large answers that their clients have not read yet. An answer is written piece by piece
//! as its client reads; if all of them take too much, those that nobody reads are dropped, oldest
//! first, and their connections close.

use std::collections::BTreeMap;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use parking_lot::Mutex;

/// Size from which an answer is counted.
const LARGE: usize = 64 << 10;

/// Bytes of all counted answers, beyond which those that nobody reads are dropped.
const ALL: usize = 64 << 20;

/// Bytes of all counted answers, beyond which the oldest are dropped even if they are being read.
const MOST: usize = 512 << 20;

/// Time without a read after which nobody reads an answer.
const STALLED: Duration = Duration::from_secs(2);

/// Bytes of a piece. A connection buffers few of them.
const PIECE: usize = 32 << 10;

type Pieces = Box<dyn Iterator<Item = Bytes> + Send>;

/// The counted answers, oldest first.
#[derive(Clone, Default)]
pub(super) struct UnreadAnswers(Arc<Mutex<Answers>>);

#[derive(Default)]
struct Answers {
    count: u64,
    bytes: usize,
    all: BTreeMap<u64, Answer>,
}

struct Answer {
    bytes: usize,
    read: Instant,
    /// `None` while its next piece is being made.
    pieces: Option<Pieces>,
}

impl UnreadAnswers {
    /// Counts an answer whose body is large and complete.
    pub(super) async fn count(&self, response: Response) -> Response {
        let bytes = response.body().size_hint().exact().and_then(|n| usize::try_from(n).ok());
        let Some(bytes) = bytes.filter(|bytes| *bytes > LARGE) else { return response };
        let (head, body) = response.into_parts();
        // The bytes are there already.
        let body = match to_bytes(body, usize::MAX).await {
            Ok(whole) => self.body(bytes, Some(bytes as u64), Slices(whole)),
            Err(error) => Body::from_stream(futures_util::stream::iter([Err::<Bytes, _>(error)])),
        };
        Response::from_parts(head, body)
    }

    /// Body of an answer that takes `bytes` of memory until it is written. `length` is that of its
    /// text, if it is known.
    pub(super) fn body(
        &self,
        bytes: usize,
        length: Option<u64>,
        pieces: impl Iterator<Item = Bytes> + Send + 'static,
    ) -> Body {
        let mut answers = self.0.lock();
        answers.count += 1;
        let number = answers.count;
        answers.bytes += bytes;
        let answer = Answer { bytes, read: Instant::now(), pieces: Some(Box::new(pieces)) };
        answers.all.insert(number, answer);
        drop(answers);
        self.trim();
        Body::new(UnreadBody { answers: self.clone(), number, left: length })
    }

    /// Drops answers if all of them take too much.
    pub(super) fn trim(&self) {
        self.trim_at(Instant::now());
    }

    fn trim_at(&self, now: Instant) {
        let mut answers = self.0.lock();
        let mut dropped = Vec::new();
        let numbers: Vec<u64> = answers.all.keys().copied().collect();
        for number in numbers {
            if answers.bytes <= ALL {
                break;
            }
            let stalled = |answer: &Answer| {
                answer.pieces.is_some() && now.saturating_duration_since(answer.read) >= STALLED
            };
            if answers.bytes > MOST || answers.all.get(&number).is_some_and(stalled) {
                dropped.extend(answers.remove(number));
            }
        }
        drop(answers);
        if !dropped.is_empty() {
            tracing::warn!(
                answers = dropped.len(),
                "dropped answers that their clients do not read"
            );
        }
    }
}

impl Answers {
    fn remove(&mut self, number: u64) -> Option<Answer> {
        let answer = self.all.remove(&number)?;
        self.bytes -= answer.bytes;
        Some(answer)
    }
}

/// Pieces of complete bytes. They are copies, so that no piece holds all of the bytes.
struct Slices(Bytes);

impl Iterator for Slices {
    type Item = Bytes;

    fn next(&mut self) -> Option<Bytes> {
        let piece = self.0.split_to(self.0.len().min(PIECE));
        (!piece.is_empty()).then(|| Bytes::copy_from_slice(&piece))
    }
}

/// Body of a counted answer.
struct UnreadBody {
    answers: UnreadAnswers,
    number: u64,
    /// Bytes that have not been returned, if they are known.
    left: Option<u64>,
}

impl HttpBody for UnreadBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, io::Error>>> {
        let number = self.number;
        let pieces = {
            let mut answers = self.answers.0.lock();
            answers.all.get_mut(&number).and_then(|answer| answer.pieces.take())
        };
        let Some(mut pieces) = pieces else {
            let error = io::Error::other("the answer was dropped, because its client did not read");
            return Poll::Ready(Some(Err(error)));
        };
        let piece = pieces.next();
        if let Some(answer) = self.answers.0.lock().all.get_mut(&number) {
            (answer.read, answer.pieces) = (Instant::now(), Some(pieces));
        }
        let length = piece.as_ref().map_or(0, Bytes::len) as u64;
        self.left = self.left.map(|left| left.saturating_sub(length));
        Poll::Ready(piece.map(|piece| Ok(Frame::data(piece))))
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}

impl Drop for UnreadBody {
    fn drop(&mut self) {
        let answer = self.answers.0.lock().remove(self.number);
        drop(answer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer(answers: &UnreadAnswers, bytes: usize) -> Body {
        answers.body(bytes, Some(bytes as u64), Slices(Bytes::from(vec![7; bytes])))
    }

    #[tokio::test]
    async fn answers_that_nobody_reads_are_dropped_oldest_first() {
        let answers = UnreadAnswers::default();
        let bodies: Vec<Body> = (0..4).map(|_| answer(&answers, ALL / 2)).collect();
        let held = || answers.0.lock().all.keys().copied().collect::<Vec<_>>();
        // Clients have a moment to read.
        assert_eq!(held(), [1, 2, 3, 4]);
        answers.trim_at(Instant::now() + STALLED);
        assert_eq!(held(), [3, 4]);
        let mut bodies = bodies.into_iter();
        assert!(to_bytes(bodies.next().unwrap(), usize::MAX).await.is_err(), "cut, not completed");
        let last = to_bytes(bodies.nth(2).unwrap(), usize::MAX).await.unwrap();
        assert!(last.len() == ALL / 2 && last.iter().all(|byte| *byte == 7));
        drop(bodies);
        assert_eq!(answers.0.lock().bytes, 0);
    }

    #[tokio::test]
    async fn memory_has_a_limit_even_if_clients_read() {
        let answers = UnreadAnswers::default();
        let large = || answers.body(MOST / 2 + 1, None, std::iter::empty());
        let _bodies = [large(), large()];
        assert_eq!(answers.0.lock().all.len(), 1);
    }

    #[tokio::test]
    async fn small_answers_and_streams_are_not_counted() {
        let answers = UnreadAnswers::default();
        for body in [Body::from(vec![0; LARGE]), Body::empty()] {
            let _response = answers.count(Response::new(body)).await;
            assert!(answers.0.lock().all.is_empty());
        }
        let response = answers.count(Response::new(Body::from(vec![0; LARGE + 1]))).await;
        assert_eq!(response.body().size_hint().exact(), Some(LARGE as u64 + 1));
        assert_eq!(answers.0.lock().bytes, LARGE + 1);
    }
}
