//! Drains the bodies of rejected requests. Closing a connection with unread bytes makes the kernel
//! send a reset, and the client would lose the rejection.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody};
use axum::extract::{Request, State};
use axum::http::header::EXPECT;
use http_body_util::BodyExt;
use hyper::body::Frame;

use super::App;

/// Makes a request's body read itself to the end when it is dropped, within the body's time limit.
pub(super) async fn drain_body(State(app): State<Arc<App>>, request: Request) -> Request {
    let limit = app.config().request_timeout();
    // A client that waits for `100 Continue` sends nothing after a rejection.
    if request.headers().contains_key(EXPECT) {
        return request;
    }
    request.map(|body| Body::new(DrainedBody { body, limit }))
}

struct DrainedBody {
    body: Body,
    limit: Duration,
}

impl HttpBody for DrainedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }
}

impl Drop for DrainedBody {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            return;
        }
        let mut body = std::mem::take(&mut self.body);
        let rest = async move { while let Some(Ok(_)) = body.frame().await {} };
        // Without a runtime the connection ends too.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(self.limit, rest));
        }
    }
}
