//! Bodies that nobody reads to their end, because the request is refused. The connection reads on for a while: were
//! it closed with bytes unread, the kernel would answer those with a reset, and the refusal would be lost to it.

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

/// Has the body of a request read to its end, whoever drops it, for as long as a body may take.
pub(super) async fn keep(State(app): State<Arc<App>>, request: Request) -> Request {
    let limit = app.config().request_timeout();
    // Who waits to be told to go on sends nothing after a refusal.
    if request.headers().contains_key(EXPECT) {
        return request;
    }
    request.map(|body| Body::new(Kept { body, limit }))
}

struct Kept {
    body: Body,
    limit: Duration,
}

impl HttpBody for Kept {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(context)
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        if self.body.is_end_stream() {
            return;
        }
        let mut body = std::mem::take(&mut self.body);
        let rest = async move { while let Some(Ok(_)) = body.frame().await {} };
        // Where the runtime is going, the connection goes too.
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            runtime.spawn(tokio::time::timeout(self.limit, rest));
        }
    }
}
