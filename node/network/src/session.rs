//! Runs the DHCP client on a device.

use std::fs::{self, File};
use std::future;
use std::io::Read as _;
use std::net::Ipv4Addr;
use std::path::Path;
use std::time::Duration;

use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep};
use tracing::{debug, warn};

use crate::client::{Change, Client, Outgoing};
use crate::error::NetworkError;
use crate::link::{Device as _, Link};
use crate::message::{CLIENT_PORT, LARGEST, Reply};

const SERVER_PORT: u16 = 67;

/// Delay after a failed receive, which returns immediately if the device is down.
const REST: Duration = Duration::from_secs(1);

/// Source of leases: a [`Session`], or a fake in tests.
pub(crate) trait Leases: Send {
    /// Waits for the next change, without limit. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Change> + Send;
    /// Sets the sum of clock jumps, by which leases are older than timers show.
    fn set_missed(&mut self, missed: Duration);
}

/// The client with its socket and clock.
///
/// The socket is an ordinary UDP socket bound to the device. While no device has an address, Linux sends broadcasts
/// from 0.0.0.0, and the socket receives the servers' broadcasts, which the client requests (RFC 2131, section 4.1). If
/// other devices have addresses, which is the case only after a server withdrew the node's address, Linux sends from
/// their addresses.
#[derive(Debug)]
pub(crate) struct Session {
    client: Client,
    socket: UdpSocket,
    device: String,
    start: Instant,
    missed: Duration,
}

impl Session {
    /// Opens the socket without sending. Disables `rp_filter` of the device, which drops the servers' answers while
    /// there is no route.
    pub(crate) async fn open(link: &Link) -> Result<Self, NetworkError> {
        let device = link.name().to_owned();
        let hardware = link.hardware()?;
        let mut seed = [0; 8];
        File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut seed)).map_err(NetworkError::Random)?;
        let path = Path::new("/proc/sys/net/ipv4/conf").join(&device).join("rp_filter");
        fs::write(&path, "0").map_err(|source| NetworkError::SourceCheck { path, source })?;
        let open = async {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, CLIENT_PORT)).await?;
            socket.bind_device(Some(device.as_bytes()))?;
            socket.set_broadcast(true)?;
            Ok(socket)
        };
        let socket = open.await.map_err(|source| NetworkError::Dhcp { device: device.clone(), source })?;
        let (client, start) = (Client::new(hardware, u64::from_ne_bytes(seed)), Instant::now());
        Ok(Self { client, socket, device, start, missed: Duration::ZERO })
    }

    fn now(&self) -> Duration {
        self.start.elapsed().saturating_add(self.missed)
    }

    async fn send(&self, send: Outgoing) {
        // The first attempt often precedes the time at which a switch forwards packets of a new device.
        if self.client.attempts() > 1 {
            let attempt = self.client.attempts();
            warn!(
                device = self.device,
                attempt, "no answer from a DHCP server, will retry; check the network or configure a static address"
            );
        }
        if let Err(error) = self.socket.send_to(&send.request.encode(), (send.to, SERVER_PORT)).await {
            warn!(device = self.device, %error, "cannot send to the DHCP server");
        }
    }
}

impl Leases for Session {
    fn set_missed(&mut self, missed: Duration) {
        self.missed = missed;
    }

    /// Logs missing answers. An unsent message is sent at the next deadline.
    async fn next(&mut self) -> Change {
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
                    Err(error) => debug!(device = self.device, %from, %error, "message is not a DHCP reply, ignored"),
                },
                Err(error) => {
                    debug!(device = self.device, %error, "cannot receive from the DHCP socket");
                    sleep(REST).await;
                }
            }
        }
    }
}
