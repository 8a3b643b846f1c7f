//! The node's network: loopback and one device with its address and default route.
//!
//! [`Network::configure`] sets the address of the device from the configuration or DHCP; [`Network::keep`] renews the
//! DHCP lease. The protocol is a pure state machine ([`client`]) on messages that [`message`] parses and formats; only
//! [`Session`] and [`Link`] use the kernel.
//!
//! IPv4 on Ethernet only. The address of an expired lease is kept while no server answers, because the node's
//! certificates contain it and no other address would be available. If DHCP gives another address, the caller must
//! restart the node.
//!
//! ```no_run
//! # async fn example() -> Result<(), network::NetworkError> {
//! let network = network::Network::open(cluster::Uplink::default()).await?;
//! let addressing = network.configure().await?;
//! println!("this node is {}", addressing.interface.addr());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod client;
mod error;
mod lease;
mod link;
mod message;
mod session;

use std::future;
use std::time::Duration;

use cluster::{Addresses, Static, Uplink};
use tokio::sync::{Mutex, watch};
use tokio::time::sleep;
use tracing::{error, warn};

use crate::client::Change;
use crate::lease::Lease;
use crate::link::{Device, Link};
use crate::session::{Leases, Session};

pub use crate::error::NetworkError;
pub use crate::link::{Addressing, add_to_loopback};

/// Interval of attempts to configure the device after an error of the kernel.
const RETRY: Duration = Duration::from_secs(10);

#[derive(Debug)]
pub struct Network {
    settings: Uplink,
    link: Link,
    /// DHCP session; `None` with a static address.
    session: Option<Mutex<Session>>,
}

impl Network {
    /// Brings loopback and the card of the configuration up, without addresses.
    pub async fn open(settings: Uplink) -> Result<Self, NetworkError> {
        let link = Link::open(&settings.card).await?;
        let session = match settings.addresses {
            Addresses::Dhcp => Some(Mutex::new(Session::open(&link).await?)),
            Addresses::Static(_) => None,
        };
        Ok(Self { settings, link, session })
    }

    /// Name of the device in the kernel.
    pub fn interface(&self) -> &str {
        self.link.name()
    }

    /// Current MTU of the device in bytes. `None` if it cannot be read.
    pub fn mtu(&self) -> Option<u32> {
        let text = std::fs::read_to_string(format!("/sys/class/net/{}/mtu", self.link.name())).ok()?;
        text.trim_end().parse().ok()
    }

    /// Configures the address of the device. With DHCP, waits without limit for a lease that the kernel accepts; with a
    /// static address, fails if the kernel rejects it. Cancel-safe.
    pub async fn configure(&self) -> Result<Addressing, NetworkError> {
        match (self.settings.addresses, &self.session) {
            (Addresses::Static(Static { interface, gateway }), _) => {
                let addressing = Addressing {
                    interface,
                    gateway,
                    mtu: self.settings.mtu,
                    name_servers: self.settings.name_servers.clone(),
                    time_servers: Vec::new(),
                };
                self.link.apply(&addressing).await?;
                Ok(addressing)
            }
            (Addresses::Dhcp, Some(session)) => {
                let mut session = session.lock().await;
                Ok(first_accepted(&mut *session, &self.link, &self.settings).await)
            }
            (Addresses::Dhcp, None) => future::pending().await,
        }
    }

    /// Renews the lease, and calls back for each change except of the address. Returns when DHCP gives another address,
    /// without using it. With a static address, never returns. Fails if a withdrawn address cannot be removed.
    /// Cancel-safe.
    ///
    /// `missed` is the sum of clock jumps, during which the machine was suspended: a lease whose renewal is due by this
    /// time is renewed immediately.
    pub async fn keep(
        &self,
        now: &Addressing,
        missed: watch::Receiver<Duration>,
        changed: impl FnMut(&Addressing),
    ) -> Result<Addressing, NetworkError> {
        let Some(session) = &self.session else { return future::pending().await };
        let mut session = session.lock().await;
        keep_accepted(&mut *session, &self.link, &self.settings, now.clone(), missed, changed).await
    }
}

async fn first_accepted(leases: &mut impl Leases, device: &impl Device, settings: &Uplink) -> Addressing {
    let mut given = None;
    loop {
        match next_or_retry(leases, given.is_some()).await {
            Some(Change::Bound(lease)) => given = Some(with(settings, lease)),
            Some(Change::Expired(_) | Change::Lost(_)) => given = None,
            None => {}
        }
        if let Some(given) = &given
            && accepts(device, given).await
        {
            return given.clone();
        }
    }
}

/// Applies leases until one has another address.
async fn keep_accepted(
    leases: &mut impl Leases,
    device: &impl Device,
    settings: &Uplink,
    mut now: Addressing,
    mut missed: watch::Receiver<Duration>,
    mut changed: impl FnMut(&Addressing),
) -> Result<Addressing, NetworkError> {
    // Addressing that has not been applied yet.
    let mut given = None;
    leases.set_missed(*missed.borrow_and_update());
    loop {
        let change = tokio::select! {
            change = next_or_retry(leases, given.is_some()) => change,
            Ok(()) = missed.changed() => {
                leases.set_missed(*missed.borrow_and_update());
                continue;
            }
        };
        match change {
            Some(Change::Bound(lease)) => {
                let next = with(settings, lease);
                if next.interface != now.interface {
                    return Ok(next);
                }
                // Applied even if it has not changed, because the address may have been removed before.
                given = Some(next);
            }
            Some(Change::Expired(lease)) => {
                let (device, address) = (device.name(), lease.interface.addr());
                warn!(device, %address, "lease expired without an answer from a DHCP server; keeping the address, will retry");
            }
            Some(Change::Lost(lease)) => {
                given = None;
                let (name, address) = (device.name(), lease.interface.addr());
                error!(device = name, %address, "DHCP server withdrew the address; requesting another one");
                device.clear().await?;
            }
            None => {}
        }
        if let Some(next) = given.take() {
            if !accepts(device, &next).await {
                given = Some(next);
            } else if next != now {
                changed(&next);
                now = next;
            }
        }
    }
}

/// The next change; `None` if the retry interval ends first.
async fn next_or_retry(leases: &mut impl Leases, retry: bool) -> Option<Change> {
    tokio::select! {
        change = leases.next() => Some(change),
        () = sleep(RETRY), if retry => None,
    }
}

/// Applies the address. A rejection by the kernel may be a mistake of the server, or temporary.
async fn accepts(device: &impl Device, given: &Addressing) -> bool {
    let Err(error) = device.apply(given).await else { return true };
    let why = causes::line(&error);
    let (device, address) = (device.name(), given.interface);
    warn!(device, %address, why, "cannot configure the network interface as received by DHCP, will retry");
    false
}

/// Combines configuration and lease; the configuration takes precedence.
fn with(settings: &Uplink, lease: Lease) -> Addressing {
    let Uplink { mtu, name_servers, .. } = settings;
    Addressing {
        interface: lease.interface,
        gateway: lease.gateway,
        mtu: mtu.or(lease.mtu.map(u32::from)),
        name_servers: if name_servers.is_empty() { lease.name_servers } else { name_servers.clone() },
        time_servers: lease.time_servers,
    }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{Instant, timeout};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A server that sends these changes and then nothing.
    struct FakeLeases(VecDeque<Change>);

    impl Leases for FakeLeases {
        async fn next(&mut self) -> Change {
            match self.0.pop_front() {
                Some(change) => change,
                None => future::pending().await,
            }
        }

        fn set_missed(&mut self, _: Duration) {}
    }

    /// A device that rejects this many requests.
    struct FakeDevice {
        refusals: AtomicU32,
        applied: AtomicU32,
    }

    impl FakeDevice {
        fn rejecting(times: u32) -> Self {
            Self { refusals: times.into(), applied: AtomicU32::default() }
        }
    }

    impl Device for FakeDevice {
        fn name(&self) -> &str {
            "fake0"
        }

        async fn apply(&self, _: &Addressing) -> Result<(), NetworkError> {
            let less = |left: u32| left.checked_sub(1);
            if self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
                return Err(NetworkError::NoCard);
            }
            self.applied.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        async fn clear(&self) -> Result<(), NetworkError> {
            Ok(())
        }
    }

    fn lease() -> Lease {
        Lease { mtu: Some(9000), ..client::tests::lease(HOUR) }
    }

    /// Regression: the error ended the boot.
    #[tokio::test(start_paused = true)]
    async fn an_address_that_the_device_rejects_is_retried() {
        let settings = Uplink::default();
        let mut leases = FakeLeases([Change::Bound(lease())].into());
        let begin = Instant::now();
        let found = timeout(HOUR, first_accepted(&mut leases, &FakeDevice::rejecting(3), &settings)).await.unwrap();
        assert_eq!(found, with(&settings, lease()));
        assert!((RETRY * 3..RETRY * 4).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_withdrawn_address_is_not_retried() {
        let mut leases = FakeLeases([Change::Bound(lease()), Change::Lost(lease())].into());
        let device = FakeDevice::rejecting(1);
        let settings = Uplink::default();
        assert!(timeout(HOUR, first_accepted(&mut leases, &device, &settings)).await.is_err());
        assert_eq!(device.applied.load(Ordering::Relaxed), 0);
    }

    /// Regression: the node had no address until the next renewal.
    #[tokio::test(start_paused = true)]
    async fn a_returned_address_that_is_rejected_is_retried() {
        let settings = Uplink::default();
        let mut leases = FakeLeases([Change::Lost(lease()), Change::Bound(lease())].into());
        let device = FakeDevice::rejecting(2);
        let now = with(&settings, lease());
        let missed = watch::Sender::default().subscribe();
        let kept = keep_accepted(&mut leases, &device, &settings, now, missed, |_| panic!("nothing has changed"));
        assert!(timeout(HOUR, kept).await.is_err());
        assert_eq!(device.applied.load(Ordering::Relaxed), 1);
    }
}
