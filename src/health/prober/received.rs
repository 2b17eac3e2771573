//! How much the other side of one exchange may send.
//!
//! A client reads over an interim answer of HTTP/1, and over a frame of HTTP/2 that it does not know, however many
//! follow. All targets share one thread, so a pod that sends them without end would take it from the probes of the
//! other pods until its timeout. Therefore the bytes are counted below all protocols.

use std::{
    io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// How much is read in one exchange. An answer that counts as good has at most a head of 16 KiB and 10 KiB of a body,
/// which in chunks of one byte are 60 KiB; the rest is for TLS and for interim answers. It is also the most that one
/// poll of a task reads before the other tasks have their turn.
pub(super) const MAX_RECEIVED: usize = 128 * 1024;

/// A stream on which reading fails after [`MAX_RECEIVED`]. The last read may exceed it by the size of its buffer.
pub(super) struct Received<S> {
    stream: S,
    left: usize,
}

impl<S> Received<S> {
    pub(super) fn limited(stream: S) -> Self {
        Self { stream, left: MAX_RECEIVED }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Received<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            // It counts as an answer that is invalid.
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, "the answer does not end")));
        }
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(cx, buffer))?;
        self.left = self.left.saturating_sub(buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Received<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
