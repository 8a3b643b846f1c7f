//! The node's own network: loopback, the one device, its address, the way out.
//!
//! [`Network::configure`] gives the device its address, from the configuration or by DHCP; [`Network::keep`] renews
//! what DHCP gave. The protocol is a pure state machine ([`client`]) on messages that are read and written here
//! ([`message`]); only [`Session`] and [`Link`] talk to the kernel.
//!
//! IPv4 only, on Ethernet. An address that DHCP does not renew is kept while no server says anything: a node that
//! drops it helps nobody, and its certificates are for this address. A node that gets another address has to start
//! anew, which is for the caller to do.
//!
//! ```no_run
//! # async fn example() -> Result<(), network::NetworkError> {
//! let network = network::Network::open(config::Network::default()).await?;
//! let addressing = network.configure().await?;
//! println!("this node is {}", addressing.interface.address);
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]
#![warn(missing_docs)]

pub mod client;
mod lease;
mod link;
pub mod message;
mod session;

use std::error::Error;
use std::future;
use std::time::Duration;

use config::{Addresses, Static};
use tokio::sync::{Mutex, watch};
use tokio::time::sleep;
use tracing::{error, warn};

use crate::client::Change;
pub use crate::lease::Lease;
pub use crate::link::{Addressing, Link, LinkError};
pub use crate::session::{Session, SessionError};

/// Why there is no network.
#[derive(Debug, thiserror::Error)]
pub enum NetworkError {
    /// The device.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// DHCP.
    #[error(transparent)]
    Session(#[from] SessionError),
}

/// Until the device is given again what the kernel has refused.
const AGAIN: Duration = Duration::from_secs(10);

/// Who gives addresses.
trait Leases: Send {
    /// What changes next. Cancel-safe.
    fn next(&mut self) -> impl Future<Output = Change> + Send;
    /// Leases are older by this than timers say.
    fn set_missed(&mut self, missed: Duration);
}

impl Leases for Session {
    fn next(&mut self) -> impl Future<Output = Change> + Send {
        Self::next(self)
    }

    fn set_missed(&mut self, missed: Duration) {
        Self::set_missed(self, missed);
    }
}

/// Who takes them.
trait Device: Sync {
    fn name(&self) -> &str;
    fn apply(&self, what: &Addressing) -> impl Future<Output = Result<(), LinkError>> + Send;
    fn clear(&self) -> impl Future<Output = Result<(), LinkError>> + Send;
}

impl Device for Link {
    fn name(&self) -> &str {
        Self::name(self)
    }

    fn apply(&self, what: &Addressing) -> impl Future<Output = Result<(), LinkError>> + Send {
        Self::apply(self, what)
    }

    fn clear(&self) -> impl Future<Output = Result<(), LinkError>> + Send {
        Self::clear(self)
    }
}

/// The network of a node.
#[derive(Debug)]
pub struct Network {
    settings: config::Network,
    link: Link,
    /// With DHCP.
    session: Option<Mutex<Session>>,
}

impl Network {
    /// Brings the devices up. None has an address after this.
    ///
    /// # Errors
    /// [`NetworkError`].
    pub async fn open(settings: config::Network) -> Result<Self, NetworkError> {
        let link = Link::first().await?;
        Self::on(link, settings).await
    }

    /// The same on a device of the caller's choice.
    ///
    /// # Errors
    /// [`NetworkError`].
    pub async fn on(link: Link, settings: config::Network) -> Result<Self, NetworkError> {
        let session = match settings.addresses {
            Addresses::Dhcp => Some(Mutex::new(Session::open(&link).await?)),
            Addresses::Static(_) => None,
        };
        Ok(Self { settings, link, session })
    }

    /// The largest packet of the device in bytes, as it is now. `None` if the kernel does not say.
    pub fn mtu(&self) -> Option<u32> {
        let text = std::fs::read_to_string(format!("/sys/class/net/{}/mtu", self.link.name())).ok()?;
        text.trim_end().parse().ok()
    }

    /// Gives the device its address. With DHCP this waits until a server gives one that the device takes, for ever if
    /// need be. Cancel-safe.
    ///
    /// # Errors
    /// [`LinkError`]: an address of the configuration.
    pub async fn configure(&self) -> Result<Addressing, LinkError> {
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
                Ok(first_taken(&mut *session, &self.link, &self.settings).await)
            }
            (Addresses::Dhcp, None) => future::pending().await,
        }
    }

    /// Renews what [`configure`](Self::configure) gave, and tells of each change but of the address. Returns when
    /// DHCP gives another address than this one, which is not taken. Never without DHCP. Cancel-safe.
    ///
    /// `missed` is the time that passed unseen by timers, while the machine was a VM that stood still or slept: a lease that
    /// is due by it is renewed at once.
    ///
    /// # Errors
    /// [`LinkError`]: an address that was lost cannot be taken away.
    pub async fn keep(
        &self,
        now: &Addressing,
        missed: watch::Receiver<Duration>,
        changed: impl FnMut(&Addressing),
    ) -> Result<Addressing, LinkError> {
        let Some(session) = &self.session else { return future::pending().await };
        let mut session = session.lock().await;
        keep_taken(&mut *session, &self.link, &self.settings, now.clone(), missed, changed).await
    }
}

/// The first that the device takes.
async fn first_taken(leases: &mut impl Leases, device: &impl Device, settings: &config::Network) -> Addressing {
    let mut given = None;
    loop {
        match next_or_again(leases, given.is_some()).await {
            Some(Change::Bound(lease)) => given = Some(with(settings, lease)),
            Some(Change::Expired(_) | Change::Lost(_)) => given = None,
            None => {}
        }
        if let Some(given) = &given
            && took(device, given).await
        {
            return given.clone();
        }
    }
}

/// The first with another address.
async fn keep_taken(
    leases: &mut impl Leases,
    device: &impl Device,
    settings: &config::Network,
    mut now: Addressing,
    mut missed: watch::Receiver<Duration>,
    mut changed: impl FnMut(&Addressing),
) -> Result<Addressing, LinkError> {
    // What the device has not taken yet.
    let mut given = None;
    leases.set_missed(*missed.borrow_and_update());
    loop {
        let change = tokio::select! {
            change = next_or_again(leases, given.is_some()) => change,
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
                // Also without a change: the address may have been taken away meanwhile.
                given = Some(next);
            }
            Some(Change::Expired(lease)) => {
                let (device, address) = (device.name(), lease.interface.address);
                warn!(device, %address, "no DHCP server has renewed the lease; the address is kept, asking goes on");
            }
            Some(Change::Lost(lease)) => {
                given = None;
                let (name, address) = (device.name(), lease.interface.address);
                error!(device = name, %address, "the DHCP server takes the address back; asking for another");
                device.clear().await?;
            }
            None => {}
        }
        if let Some(next) = given.take() {
            if !took(device, &next).await {
                given = Some(next);
            } else if next != now {
                changed(&next);
                now = next;
            }
        }
    }
}

/// What changes next; nothing if it is time to try again before that.
async fn next_or_again(leases: &mut impl Leases, again: bool) -> Option<Change> {
    tokio::select! {
        change = leases.next() => Some(change),
        () = sleep(AGAIN), if again => None,
    }
}

/// What the kernel refuses may be the server's mistake, or go over.
async fn took(device: &impl Device, given: &Addressing) -> bool {
    let Err(error) = device.apply(given).await else { return true };
    let mut why = error.to_string();
    if let Some(source) = error.source() {
        why = format!("{why}: {source}");
    }
    let (device, address) = (device.name(), given.interface);
    warn!(device, %address, why, "the network interface cannot be given what DHCP says; tried again");
    false
}

/// What the configuration says goes before what DHCP says.
fn with(settings: &config::Network, lease: Lease) -> Addressing {
    let config::Network { mtu, name_servers, .. } = settings;
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
    use std::net::Ipv4Addr;
    use std::sync::atomic::{AtomicU32, Ordering};

    use tokio::time::{Instant, timeout};

    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    /// A server that says this and then nothing.
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

    /// A device that takes nothing for so many times.
    struct FakeDevice {
        refusals: AtomicU32,
        applied: AtomicU32,
    }

    impl FakeDevice {
        fn refusing(times: u32) -> Self {
            Self { refusals: times.into(), applied: AtomicU32::default() }
        }
    }

    impl Device for FakeDevice {
        fn name(&self) -> &str {
            "fake0"
        }

        async fn apply(&self, _: &Addressing) -> Result<(), LinkError> {
            let less = |left: u32| left.checked_sub(1);
            if self.refusals.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
                return Err(LinkError::None);
            }
            self.applied.fetch_add(1, Ordering::Relaxed);
            Ok(())
        }

        async fn clear(&self) -> Result<(), LinkError> {
            Ok(())
        }
    }

    fn lease() -> Lease {
        Lease {
            interface: "192.0.2.10/24".parse().unwrap(),
            server: Ipv4Addr::new(192, 0, 2, 1),
            gateway: None,
            name_servers: vec![],
            time_servers: vec![],
            mtu: Some(9000),
            time: Some(HOUR),
            renewal: None,
            rebinding: None,
        }
    }

    /// It ended the boot.
    #[tokio::test(start_paused = true)]
    async fn an_address_that_the_device_refuses_is_tried_again() {
        let settings = config::Network::default();
        let mut leases = FakeLeases([Change::Bound(lease())].into());
        let begin = Instant::now();
        let found = timeout(HOUR, first_taken(&mut leases, &FakeDevice::refusing(3), &settings)).await.unwrap();
        assert_eq!(found, with(&settings, lease()));
        assert!((AGAIN * 3..AGAIN * 4).contains(&begin.elapsed()), "{:?}", begin.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn an_address_that_is_lost_before_the_device_takes_it_is_not_tried_again() {
        let mut leases = FakeLeases([Change::Bound(lease()), Change::Lost(lease())].into());
        let device = FakeDevice::refusing(1);
        let settings = config::Network::default();
        assert!(timeout(HOUR, first_taken(&mut leases, &device, &settings)).await.is_err());
        assert_eq!(device.applied.load(Ordering::Relaxed), 0);
    }

    /// The node had no address until the next renewal.
    #[tokio::test(start_paused = true)]
    async fn an_address_that_comes_back_and_is_refused_is_tried_again() {
        let settings = config::Network::default();
        let mut leases = FakeLeases([Change::Lost(lease()), Change::Bound(lease())].into());
        let device = FakeDevice::refusing(2);
        let now = with(&settings, lease());
        let missed = watch::Sender::default().subscribe();
        let kept = keep_taken(&mut leases, &device, &settings, now, missed, |_| panic!("nothing has changed"));
        assert!(timeout(HOUR, kept).await.is_err());
        assert_eq!(device.applied.load(Ordering::Relaxed), 1);
    }
}
