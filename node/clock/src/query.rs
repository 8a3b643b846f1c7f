//! A question and its answer, over UDP.

use std::hash::{BuildHasher, RandomState};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::{Duration, Instant};

use tokio::net::UdpSocket;
use tokio::time::timeout;

use crate::packet::{Answer, LENGTH, Malformed, question};
use crate::{Clock, Sample};

/// For an answer. One that comes later says little.
const PATIENCE: Duration = Duration::from_secs(3);

/// Why a server has told nothing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum AskError {
    /// No socket, or nobody listens.
    #[error("cannot ask {server}")]
    Network {
        /// Who.
        server: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Nothing came back.
    #[error("{server} does not answer within {} s", PATIENCE.as_secs())]
    Silence {
        /// Who.
        server: SocketAddr,
    },
    /// What came back is of no use.
    #[error("cannot use the answer of {server}")]
    Answer {
        /// Whose.
        server: SocketAddr,
        /// What is wrong with it.
        #[source]
        source: Malformed,
    },
}

/// Asks once. Cancel-safe.
pub(crate) async fn ask(server: SocketAddr, clock: &dyn Clock) -> Result<Sample, AskError> {
    match timeout(PATIENCE, exchange(server, clock)).await {
        Ok(Ok(Ok(sample))) => Ok(sample),
        Ok(Ok(Err(source))) => Err(AskError::Answer { server, source }),
        Ok(Err(source)) => Err(AskError::Network { server, source }),
        Err(_) => Err(AskError::Silence { server }),
    }
}

async fn exchange(server: SocketAddr, clock: &dyn Clock) -> io::Result<Result<Sample, Malformed>> {
    // A port that nobody knows, as one more thing to guess for who would answer in the server's place.
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).await?;
    // The kernel drops what others send, and tells when nobody listens.
    socket.connect(server).await?;
    // Its keys are random numbers of the kernel's.
    let cookie = RandomState::new().hash_one(server);
    let (asked, start) = (clock.now(), Instant::now());
    socket.send(&question(cookie)).await?;
    let mut bytes = [0; 2 * LENGTH];
    loop {
        let length = socket.recv(&mut bytes).await?;
        let took = i64::try_from(start.elapsed().as_nanos()).unwrap_or(i64::MAX);
        match Answer::parse(&bytes[..length], cookie) {
            Ok(answer) => return Ok(Ok(Sample::new(asked, took, &answer))),
            // The right one may still come.
            Err(Malformed::Stranger | Malformed::Short(_) | Malformed::NoServer) => {}
            Err(refused @ (Malformed::Refused(_) | Malformed::Unsynchronized)) => return Ok(Err(refused)),
        }
    }
}
