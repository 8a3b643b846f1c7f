//! Client of the API server whose requests end even if the server does not respond.
//!
//! If the machine of the API server loses power after it has acknowledged a request, TCP has nothing to retransmit and
//! reports no error. Therefore each unary request has a deadline, each watch has a limit without data, and idle
//! connections are probed. A request that misses its deadline also ends the client's watches, since they probably wait
//! for the same machine: a watch continues from its last resource version on a new connection.

#![forbid(unsafe_code)]

mod arrival;
mod deadline;
mod kind;
mod passes;

use std::iter::successors;
use std::time::Duration;

use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioTimer};
use kube::client::retry::RetryPolicy;
use kube::client::{Body, ClientBuilder, ConfigExt as _};
use kube::{Client, Config};
use tower::retry::RetryLayer;
use tower::{BoxError, ServiceBuilder};

pub use crate::arrival::{VALUE_LEN, changed, only, trim_metadata};
pub use crate::deadline::DeadlineError;
use crate::deadline::WithDeadlines;
pub use crate::passes::run_passes;

/// Whether the object, or its kind, does not exist. The response about an unknown kind has no reason, and
/// `is_not_found` of kube only compares the reason.
pub fn is_missing(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}

/// Time limits of the API server's responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Deadlines {
    /// Deadline of the complete response to a request about one object.
    pub object: Duration,
    /// Deadline of the complete response to a list of objects, or to a page of it. The API server itself ends a request
    /// after 60 s (`--request-timeout`).
    pub list: Duration,
    /// Limit of a watch without data: the watch ends without an error, and its caller opens it again. The API server
    /// sends a bookmark every minute, but none with the version at which the watch began: the watch of a kind whose
    /// objects do not change has no data until etcd reports its progress to the API server
    /// (`watch-progress-notify-interval` of etcd, 10 minutes by default).
    pub idle: Duration,
    /// Time for which an idle connection is kept. The API server closes a connection after 90 s. A request that is sent
    /// at that moment fails, and the API server may have carried it out.
    pub pooled: Duration,
}

impl Default for Deadlines {
    fn default() -> Self {
        let seconds = Duration::from_secs;
        // After the first failures, a list without a response and the pause before the next one take less than a
        // minute. Later pauses of kube's `DefaultBackoff` take up to 30 s.
        Self { object: seconds(30), list: seconds(45), idle: seconds(75), pooled: seconds(45) }
    }
}

/// Creates a client with the default [`Deadlines`].
///
/// # Errors
/// The configuration's certificates or credentials are invalid.
pub fn client(config: Config) -> kube::Result<Client> {
    client_with(config, Deadlines::default())
}

/// Creates a client with these deadlines, which ignores a proxy of the configuration.
///
/// # Errors
/// Same as [`client`].
pub fn client_with(config: Config, deadlines: Deadlines) -> kube::Result<Client> {
    let connector = config.rustls_https_connector_with_connector(connector(config.connect_timeout))?;
    let connections = hyper_util::client::legacy::Client::builder(TokioExecutor::new())
        .pool_idle_timeout(deadlines.pooled)
        .pool_timer(TokioTimer::new())
        .build::<_, Body>(connector);
    let service = ServiceBuilder::new()
        .layer_fn(|inner| WithDeadlines::new(inner, deadlines))
        .layer(config.base_uri_layer())
        .layer(RetryLayer::new(retries(deadlines.object)))
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(connections);
    Ok(ClientBuilder::new(service, config.default_namespace).build())
}

/// Retry policy of a request that the API server answers with 429, 503 or 504. Retries end when their pauses reach half
/// of the request's deadline, and the last response is the error. The pauses of [`RetryPolicy::server_retry`] add up to
/// minutes: a request to an overloaded server would miss its deadline in one of them, which hides the response and ends
/// the client's watches.
fn retries(deadline: Duration) -> RetryPolicy {
    let [least, most] = [Duration::from_millis(250), Duration::from_secs(4)];
    // Each pause is random, at most three times the base pause, which doubles.
    let pauses = successors(Some(least), |pause| Some(*pause * 2)).map(|pause| (pause * 3).min(most));
    let ends = pauses.scan(Duration::ZERO, |sum, pause| {
        *sum += pause;
        Some(*sum)
    });
    let count = ends.take_while(|end| *end <= deadline / 2).map(|_| 1).sum();
    RetryPolicy::new(least, most, count, true).expect("the least pause is shorter than the longest")
}

/// Connects with probes of the peer: a dead connection ends after about a minute, whether data is in flight or not.
fn connector(connect_timeout: Option<Duration>) -> HttpConnector {
    let mut connector = HttpConnector::new();
    connector.enforce_http(false);
    connector.set_nodelay(true);
    connector.set_connect_timeout(connect_timeout);
    connector.set_keepalive(Some(Duration::from_secs(30)));
    connector.set_keepalive_interval(Some(Duration::from_secs(10)));
    connector.set_keepalive_retries(Some(3));
    connector.set_tcp_user_timeout(Some(Duration::from_secs(60)));
    connector
}

#[cfg(test)]
mod tests;
