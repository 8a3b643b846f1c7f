//! DHCP leases.

use std::net::Ipv4Addr;
use std::time::Duration;

use ipnet::Ipv4Net;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Lease {
    pub(crate) interface: Ipv4Net,
    pub(crate) server: Ipv4Addr,
    pub(crate) gateway: Option<Ipv4Addr>,
    /// Name servers in order of preference.
    pub(crate) name_servers: Vec<Ipv4Addr>,
    /// NTP servers in order of preference.
    pub(crate) time_servers: Vec<Ipv4Addr>,
    pub(crate) mtu: Option<u16>,
    pub(crate) time: Option<Duration>,
    pub(crate) renewal: Option<Duration>,
    pub(crate) rebinding: Option<Duration>,
}

/// Minimum duration, so that short leases do not cause constant requests.
const SHORTEST: Duration = Duration::from_secs(60);

/// Times relative to the start of the lease, in this order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Times {
    pub(crate) renewal: Duration,
    pub(crate) rebinding: Duration,
    pub(crate) end: Duration,
}

impl Lease {
    /// The times of the server if they are in order, otherwise the defaults of RFC 2131. `None` for an infinite lease.
    pub(crate) fn times(&self) -> Option<Times> {
        let end = self.time?.max(SHORTEST);
        let usual = Times { renewal: end / 2, rebinding: end / 8 * 7, end };
        let renewal = self.renewal.unwrap_or(usual.renewal);
        let rebinding = self.rebinding.unwrap_or(usual.rebinding);
        let in_order = SHORTEST / 2 <= renewal && renewal < rebinding && rebinding < end;
        Some(if in_order { Times { renewal, rebinding, end } } else { usual })
    }
}
