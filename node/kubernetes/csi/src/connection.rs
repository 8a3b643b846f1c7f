//! Connections with deadlines.
//!
//! hyper's graceful shutdown waits for clients to read their responses, and for clients that have not sent a byte yet.
//! So a connection ends by itself: at once if it is silent when the server stops, after 10 s without a first byte, and
//! in any case when the grace period is over.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::{Sleep, sleep};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

/// Time for the first byte of a client.
const SILENCE: Duration = Duration::from_secs(10);

/// The two phases of a server's shutdown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Shutdown {
    /// No new calls are accepted.
    pub(crate) stopping: CancellationToken,
    /// All connections end.
    pub(crate) cut: CancellationToken,
}

#[derive(Debug)]
pub(crate) struct Connection<S> {
    stream: S,
    /// `None` after the first byte.
    silent: Option<IdleTimer>,
    cut: Pin<Box<WaitForCancellationFutureOwned>>,
    _place: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct IdleTimer {
    deadline: Pin<Box<Sleep>>,
    stopping: Pin<Box<WaitForCancellationFutureOwned>>,
}

impl<S> Connection<S> {
    pub(crate) fn new(stream: S, shutdown: &Shutdown, place: OwnedSemaphorePermit) -> Self {
        let stopping = Box::pin(shutdown.stopping.clone().cancelled_owned());
        let silent = Some(IdleTimer { deadline: Box::pin(sleep(SILENCE)), stopping });
        Self { stream, silent, cut: Box::pin(shutdown.cut.clone().cancelled_owned()), _place: place }
    }

    fn check(&mut self, cx: &mut Context<'_>) -> Result<(), io::Error> {
        let over = |said| Err(io::Error::new(io::ErrorKind::ConnectionAborted, said));
        if self.cut.as_mut().poll(cx).is_ready() {
            return over("the server has stopped");
        }
        if let Some(IdleTimer { deadline, stopping }) = &mut self.silent
            && (stopping.as_mut().poll(cx).is_ready() || deadline.as_mut().poll(cx).is_ready())
        {
            return over("the client sent no data in time");
        }
        Ok(())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Connection<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let before = buf.filled().len();
        // Read first: a client that has sent a byte is not silent.
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

    async fn connection(shutdown: &Shutdown) -> (Connection<DuplexStream>, DuplexStream) {
        let (server, client) = duplex(16);
        let place = Arc::new(Semaphore::new(1)).acquire_owned().await.expect("a place");
        (Connection::new(server, shutdown, place), client)
    }

    #[tokio::test(start_paused = true)]
    async fn silent_connections_end_after_the_limit() {
        let (mut server, _client) = connection(&Shutdown::default()).await;
        let begun = Instant::now();
        server.read_u8().await.expect_err("it ends");
        assert_eq!(begun.elapsed(), SILENCE);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stop_ends_silent_connections_first() {
        let shutdown = Shutdown::default();
        let (mut silent, _silent) = connection(&shutdown).await;
        let (mut server, mut client) = connection(&shutdown).await;
        client.write_u8(7).await.expect("write");
        assert_eq!(server.read_u8().await.expect("read"), 7);

        shutdown.stopping.cancel();
        silent.read_u8().await.expect_err("it ends");
        client.write_u8(8).await.expect("write");
        assert_eq!(server.read_u8().await.expect("it goes on"), 8);

        shutdown.cut.cancel();
        server.read_u8().await.expect_err("it ends");
        server.write_all(&[0; 17]).await.expect_err("the connection has ended");
    }

    #[tokio::test(start_paused = true)]
    async fn connections_may_be_silent_after_the_first_byte() {
        let (mut server, mut client) = connection(&Shutdown::default()).await;
        client.write_u8(7).await.expect("write");
        assert_eq!(server.read_u8().await.expect("read"), 7);
        let later = tokio::time::timeout(100 * SILENCE, server.read_u8()).await;
        assert!(later.is_err(), "{later:?}");
    }
}
