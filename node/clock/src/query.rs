//! A request to an SNTP server over UDP.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::packet::{Answer, AnswerError, LENGTH, question};
use crate::{Clock, Sample};

/// Timeout of a request. The delay of a later answer would make it too inaccurate.
const TIMEOUT: Duration = Duration::from_secs(3);

#[derive(Debug, thiserror::Error)]
pub(crate) enum QueryError {
    #[error("cannot query {server}")]
    Network { server: SocketAddr, source: io::Error },
    #[error("no answer from {server} within {} s", TIMEOUT.as_secs())]
    Silence { server: SocketAddr },
    #[error("invalid answer from {server}")]
    Answer { server: SocketAddr, source: AnswerError },
}

/// Cancel-safe.
pub(crate) async fn query(server: SocketAddr, clock: &dyn Clock) -> Result<Sample, QueryError> {
    match timeout(TIMEOUT, exchange(server, clock)).await {
        Ok(Ok(Ok(sample))) => Ok(sample),
        Ok(Ok(Err(source))) => Err(QueryError::Answer { server, source }),
        Ok(Err(source)) => Err(QueryError::Network { server, source }),
        Err(_) => Err(QueryError::Silence { server }),
    }
}

async fn exchange(server: SocketAddr, clock: &dyn Clock) -> io::Result<Result<Sample, AnswerError>> {
    // A new socket has a random port, which an attacker would have to guess.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    // A connected socket drops packets from other addresses and reports ICMP port unreachable.
    socket.connect(server).await?;
    // The keys of RandomState are random numbers of the kernel.
    let cookie = RandomState::new().hash_one(server);
    let (asked, start) = (clock.now(), Instant::now());
    socket.send(&question(cookie)).await?;
    let mut bytes = [0; 2 * LENGTH];
    loop {
        let length = socket.recv(&mut bytes).await?;
        let took = i64::try_from(start.elapsed().as_nanos()).unwrap_or(i64::MAX);
        match Answer::parse(&bytes[..length], cookie) {
            Ok(answer) => return Ok(Ok(Sample::new(asked, took, &answer))),
            // The right answer may still arrive.
            Err(AnswerError::OtherRequest | AnswerError::Short(_) | AnswerError::NotServer) => {}
            Err(refused @ (AnswerError::KissOfDeath(_) | AnswerError::Unsynchronized)) => return Ok(Err(refused)),
        }
    }
}
