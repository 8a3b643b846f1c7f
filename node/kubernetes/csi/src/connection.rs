//! Connections that end when they have to.
//!
//! A graceful end waits for calls that run, and so for the client to read the answers. hyper also waits for clients that
//! have not said anything yet. So a connection ends by itself: at once if nothing was said on it when the server stops,
//! after some time if its client never says anything, and in any case when the time for a graceful end is over.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// The client has to begin in this time.
const SILENCE: Duration = Duration::from_secs(10);

/// How a server ends: cloned for each connection.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ends {
    /// No new calls.
    pub(crate) stopping: CancellationToken,
    /// No calls at all.
    pub(crate) cut: CancellationToken,
}

/// A connection, and its place among those that are allowed.
#[derive(Debug)]
pub(crate) struct Connection<S> {
    stream: S,
    /// Until the client says something.
    silent: Option<Silent>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct Silent {
    deadline: Pin<Box<Sleep>>,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<S> Connection<S> {
    pub(crate) fn new(stream: S, ends: &Ends, place: OwnedSemaphorePermit) -> Self {
        let stopping = Box::pin(ends.stopping.clone().cancelled_owned());
        let silent = Some(Silent { deadline: Box::pin(sleep(SILENCE)), stopping });
        Self { stream, silent, cut: Box::pin(ends.cut.clone().cancelled_owned()), _place: place }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> Result<(), io::Error> {
        let over = |said| Err(io::Error::new(io::ErrorKind::ConnectionAborted, said));
        if self.cut.as_mut().poll(cx).is_ready() {
            return over("the server has stopped");
        }
        if let Some(Silent { deadline, stopping }) = &mut self.silent
            && (stopping.as_mut().poll(cx).is_ready() || deadline.as_mut().poll(cx).is_ready())
        {
            return over("nothing was said");
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        // What is there is read first: a client that has begun is no silent one.
        let read = Pin::new(&mut this.stream).poll_read(cx, buf);
        if buf.filled().len() > before {
            this.silent = None;
        }
        match read {
            Poll::Pending => match this.check(cx) {
                Ok(()) => Poll::Pending,
                Err(over) => Poll::Ready(Err(over)),
            },
            ready => ready,
        }
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Connection<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.get_mut().write(cx, |stream, cx| stream.poll_write(cx, bytes))
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().write(cx, AsyncWrite::poll_flush)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.get_mut().write(cx, AsyncWrite::poll_shutdown)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        self.get_mut().write(cx, |stream, cx| stream.poll_write_vectored(cx, parts))
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }
}

impl<S: AsyncWrite + Unpin> Connection<S> {
    /// A client that reads nothing keeps a writer waiting.
    fn write<T>(
        &mut self,
        cx: &mut Context<'_>,
        poll: impl FnOnce(Pin<&mut S>, &mut Context<'_>) -> Poll<io::Result<T>>,
    ) -> Poll<io::Result<T>> {
        match poll(Pin::new(&mut self.stream), cx) {
            Poll::Pending if self.cut.as_mut().poll(cx).is_ready() => {
                Poll::Ready(Err(io::Error::new(io::ErrorKind::ConnectionAborted, "the server has stopped")))
            }
            other => other,
        }
    }
}

impl<S: Connected> Connected for Connection<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> Self::ConnectInfo {
        self.stream.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};
    use tokio::sync::Semaphore;
    use tokio::time::Instant;

    use super::*;

    async fn connection(ends: &Ends) -> (Connection<DuplexStream>, DuplexStream) {
        let (server, client) = duplex(16);
        let place = Arc::new(Semaphore::new(1)).acquire_owned().await.expect("a place");
        (Connection::new(server, ends, place), client)
    }

    #[tokio::test(start_paused = true)]
    async fn who_says_nothing_is_not_waited_for() {
        let (mut server, _client) = connection(&Ends::default()).await;
        let begun = Instant::now();
        server.read_u8().await.expect_err("it ends");
        assert_eq!(begun.elapsed(), SILENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_silent_connections_at_once_and_others_when_their_time_is_over() {
        let ends = Ends::default();
        let (mut silent, _silent) = connection(&ends).await;
        let (mut server, mut client) = connection(&ends).await;
        client.write_u8(7).await.expect("write");
        assert_eq!(server.read_u8().await.expect("read"), 7);

        ends.stopping.cancel();
        silent.read_u8().await.expect_err("it ends");
        client.write_u8(8).await.expect("write");
        assert_eq!(server.read_u8().await.expect("it goes on"), 8);

        ends.cut.cancel();
        server.read_u8().await.expect_err("it ends");
        server.write_all(&[0; 17]).await.expect_err("nobody reads");
    }

    #[tokio::test(start_paused = true)]
    async fn who_has_spoken_may_be_silent() {
        let (mut server, mut client) = connection(&Ends::default()).await;
        client.write_u8(7).await.expect("write");
        assert_eq!(server.read_u8().await.expect("read"), 7);
        let later = tokio::time::timeout(100 * SILENCE, server.read_u8()).await;
        assert!(later.is_err(), "{later:?}");
    }
}
