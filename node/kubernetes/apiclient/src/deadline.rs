//! Layer that ends requests at their deadline.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use futures::{StreamExt as _, stream};
use http::{Method, Request, Response};
use http_body::Body as HttpBody;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt as _, Full, StreamBody};
use tokio::sync::watch;
use tokio::time::timeout;
use tower::{BoxError, Service};

use crate::Deadlines;
use crate::kind::Kind;

/// The API server did not respond in time. The API server may have carried the request out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the API server has not answered {method} {path} within {} s", limit.as_secs_f32())]
pub struct DeadlineError {
    pub method: Method,
    pub path: String,
    pub limit: Duration,
}

#[derive(Clone)]
pub(crate) struct WithDeadlines<S> {
    inner: S,
    deadlines: Deadlines,
    /// Number of missed deadlines. Each missed deadline ends all streams.
    missed: Arc<watch::Sender<u64>>,
}

impl<S> WithDeadlines<S> {
    pub(crate) fn new(inner: S, deadlines: Deadlines) -> Self {
        Self { inner, deadlines, missed: Arc::default() }
    }
}

type ResponseBody = UnsyncBoxBody<Bytes, BoxError>;
type Answer = Pin<Box<dyn Future<Output = Result<Response<ResponseBody>, BoxError>> + Send>>;

impl<S, Sent, Received> Service<Request<Sent>> for WithDeadlines<S>
where
    S: Service<Request<Sent>, Response = Response<Received>>,
    S::Future: Send + 'static,
    S::Error: Into<BoxError>,
    Received: HttpBody<Data = Bytes> + Send + 'static,
    Received::Error: Into<BoxError>,
{
    type Response = Response<ResponseBody>;
    type Error = BoxError;
    type Future = Answer;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx).map_err(Into::into)
    }

    fn call(&mut self, request: Request<Sent>) -> Answer {
        let (kind, Deadlines { object, list, idle, pooled: _ }) = (Kind::of(&request), self.deadlines);
        let limit = if kind == Kind::List { list } else { object };
        let late = DeadlineError { method: request.method().clone(), path: request.uri().path().to_owned(), limit };
        // Subscribe before sending the request, so that a stream that opens during a missed deadline ends, too.
        let (missed, ended) = (Arc::clone(&self.missed), self.missed.subscribe());
        let response = self.inner.call(request);
        Box::pin(async move {
            let answered = timeout(limit, async {
                let (head, body) = response.await.map_err(Into::into)?.into_parts();
                let body = match kind {
                    Kind::Stream => stream(body, idle, Arc::clone(&missed), ended),
                    Kind::Object | Kind::List => {
                        let complete = body.collect().await.map_err(Into::into)?.to_bytes();
                        Full::new(complete).map_err(|never| match never {}).boxed_unsync()
                    }
                };
                Ok(Response::from_parts(head, body))
            });
            answered.await.unwrap_or_else(|_| {
                missed.send_modify(|count| *count += 1);
                Err(late.into())
            })
        })
    }
}

/// A body that ends after `idle` without data, and when a request of the same client misses its deadline. Neither end
/// is an error: the next request shows whether the server responds.
fn stream<B>(body: B, idle: Duration, missed: Arc<watch::Sender<u64>>, mut ended: watch::Receiver<u64>) -> ResponseBody
where
    B: HttpBody<Data = Bytes> + Send + 'static,
    B::Error: Into<BoxError>,
{
    let frames = stream::unfold(Box::pin(body), move |mut body| async move {
        let frame = timeout(idle, body.frame()).await.ok()??;
        Some((frame.map_err(Into::into), body))
    });
    // The stream keeps the sender, so that dropping the client does not end its streams.
    let end = Box::pin(async move {
        _ = ended.changed().await;
        drop(missed);
    });
    StreamBody::new(frames.take_until(end)).boxed_unsync()
}

#[cfg(test)]
mod tests {
    use http_body::Frame;
    use tokio::time::sleep;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stream_lasts_while_data_arrives_without_its_client() {
        let idle = Duration::from_secs(75);
        let frames = stream::iter(0..4).then(move |_| async move {
            sleep(idle * 2 / 3).await;
            Ok::<_, BoxError>(Frame::data(Bytes::from_static(b"event")))
        });
        let client = Arc::<watch::Sender<u64>>::default();
        let body = super::stream(StreamBody::new(frames), idle, Arc::clone(&client), client.subscribe());
        drop(client);
        let received = body.collect().await.expect("four events").to_bytes();
        assert_eq!(received.len(), 4 * b"event".len());
    }
}
