//! A connection that ignores failed writes. A server may reject a request, answer and close while
//! the client is still sending; the client must still read the answer.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// Discards writes after the peer has closed. Data that the peer sent before can still be read.
pub(super) struct Stream<S>(pub(super) S);

impl<S: AsyncRead + Unpin> AsyncRead for Stream<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(context, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Stream<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        use io::ErrorKind::{BrokenPipe, ConnectionReset};
        Poll::Ready(match ready!(Pin::new(&mut self.0).poll_write(context, bytes)) {
            // Without an answer, the next read fails.
            Err(error) if matches!(error.kind(), BrokenPipe | ConnectionReset) => Ok(bytes.len()),
            written => written,
        })
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(context)
    }
}
