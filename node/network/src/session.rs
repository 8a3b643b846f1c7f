//! The DHCP client at its device: it sends, listens and waits.

use std::fs::{self, File};
use std::future;
use std::io::{self, Read};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use crate::client::{Change, Client, Send};
use crate::link::{Link, LinkError};
use crate::message::{LARGEST, Reply};

const CLIENT_PORT: u16 = 68;
const SERVER_PORT: u16 = 67;

/// After a failure to receive, which a device that is down makes at once.
const REST: Duration = Duration::from_secs(1);

/// Why the client cannot be started.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// Not a device for DHCP.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// No socket.
    #[error("cannot open the DHCP client's socket (UDP port {CLIENT_PORT}) on {device}")]
    Socket {
        /// The device.
        device: String,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// No random number.
    #[error("cannot read random numbers")]
    Random(#[source] io::Error),
    /// The device's check of source addresses.
    #[error("cannot write {}", path.display())]
    SourceCheck {
        /// The setting of the device.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
}

/// The client, its socket and its clock.
///
/// The socket is an ordinary one that is bound to the device: while nothing has an address, Linux sends broadcasts from
/// 0.0.0.0, and takes those that servers answer with because the client asks them to (RFC 2131, section 4.1). When
/// other devices have one, which is so only after a server has taken the node's address back, it sends from theirs.
#[derive(Debug)]
pub struct Session {
    client: Client,
    socket: UdpSocket,
    device: String,
    start: Instant,
    missed: Duration,
}

impl Session {
    /// Nothing is sent yet. Switches off the device's `rp_filter`: while there is no route, it would drop the servers'
    /// answers.
    ///
    /// # Errors
    /// [`SessionError`].
    pub async fn open(link: &Link) -> Result<Self, SessionError> {
        let device = link.name().to_owned();
        let hardware = link.hardware()?;
        let mut seed = [0; 8];
        File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut seed)).map_err(SessionError::Random)?;
        let path = Path::new("/proc/sys/net/ipv4/conf").join(&device).join("rp_filter");
        fs::write(&path, "0").map_err(|source| SessionError::SourceCheck { path, source })?;
        let open = async {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, CLIENT_PORT)).await?;
            socket.bind_device(Some(device.as_bytes()))?;
            socket.set_broadcast(true)?;
            Ok(socket)
        };
        let socket = open.await.map_err(|source| SessionError::Socket { device: device.clone(), source })?;
        let (client, start) = (Client::new(hardware, u64::from_ne_bytes(seed)), Instant::now());
        Ok(Self { client, socket, device, start, missed: Duration::ZERO })
    }

    /// Time that passed unseen by timers since the start, while the machine stood still: leases age in it.
    pub(crate) fn set_missed(&mut self, missed: Duration) {
        self.missed = missed;
    }

    fn now(&self) -> Duration {
        self.start.elapsed().saturating_add(self.missed)
    }

    /// What changes next. Waits for ever if nothing does; tells the log while nobody answers. Cancel-safe: what was
    /// not sent is sent at the next deadline.
    pub async fn next(&mut self) -> Change {
        let mut bytes = [0; LARGEST];
        loop {
            let (send, change) = self.client.wake(self.now());
            if let Some(send) = send {
                self.send(send).await;
            }
            if let Some(change) = change {
                return change;
            }
            let left = self.client.deadline().map(|deadline| deadline.saturating_sub(self.now()));
            let woken = async {
                match left {
                    Some(left) => sleep(left).await,
                    None => future::pending().await,
                }
            };
            let received = tokio::select! {
                () = woken => continue,
                received = self.socket.recv_from(&mut bytes) => received,
            };
            match received {
                Ok((length, from)) => match Reply::parse(&bytes[..length]) {
                    Ok(reply) => {
                        let (send, change) = self.client.receive(self.now(), &reply);
                        if let Some(send) = send {
                            self.send(send).await;
                        }
                        if let Some(change) = change {
                            return change;
                        }
                    }
                    Err(error) => debug!(device = self.device, %from, %error, "message that is no answer"),
                },
                Err(error) => {
                    debug!(device = self.device, %error, "cannot receive");
                    sleep(REST).await;
                }
            }
        }
    }

    async fn send(&self, send: Send) {
        // The first try is often too early for a switch that has just seen the device.
        if self.client.attempts() > 1 {
            let attempt = self.client.attempts();
            warn!(device = self.device, attempt, "no DHCP server answers; asking again, or configure a static address");
        }
        if let Err(error) = self.socket.send_to(&send.request.encode(), (send.to, SERVER_PORT)).await {
            warn!(device = self.device, %error, "cannot send to the DHCP server");
        }
    }
}
